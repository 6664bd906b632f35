"""Conversations as text: the published import path of what `pygpukit.llm.templates` has."""

from __future__ import annotations

from pygpukit.llm.templates import (
    ChatMessage,
    ThinkingParser,
    apply_chat_template,
    create_chat_prompt,
    format_chat_messages,
)

__all__ = ["ChatMessage", "ThinkingParser", "apply_chat_template", "create_chat_prompt", "format_chat_messages"]
