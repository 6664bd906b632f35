"""Prompts: token ids of what requests give, which is text, ids or a conversation."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pygpukit.errors import MissingPackageError, ModelLoadError
from pygpukit.llm.templates import ThinkingParser, apply_chat_template, begun_conversation
from pygpukit.llm.tokenizer import Tokenizer

__all__ = ["Message", "Prompt", "Prompts", "is_one_prompt"]

# What a template gets otherwise.
_GIVEN = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "tokenizer", "template",
          "limit", "seconds")  # fmt: skip

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class Prompts:
    """Makes the token ids of requests.

    Parameters
    ----------
    name : str
        Of the model, for errors.
    tokenizer : Tokenizer, optional
        Without it there are no texts.
    chat_template : str, optional
    vocab_size : int
        Ids are below it.
    """

    def __init__(self, name: str, tokenizer: Tokenizer | None, chat_template: str | None, vocab_size: int) -> None:
        self.name, self.tokenizer, self.chat_template, self.vocab_size = name, tokenizer, chat_template, vocab_size

    def ids(self, prompt: Prompt, special: bool = True) -> list[int]:
        """Return the ids of a text, or check those that are given."""
        if isinstance(prompt, str):
            ids = self.need_tokenizer().encode(prompt, add_special_tokens=special)
        else:
            ids = _token_ids(prompt)
        if not ids:
            raise ValueError("the prompt is empty: a reply needs at least one token before it")
        wrong = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"token {wrong} is not in the vocabulary of {self.vocab_size}")
        return ids

    def need_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, or say what is missing."""
        if self.tokenizer is None:
            try:
                import tokenizers  # noqa: F401
            except ImportError as error:
                raise MissingPackageError(
                    "text needs the package 'tokenizers': pip install 'pygpukit[llm]'; token ids work without it"
                ) from error
            raise ModelLoadError(f"{self.name} has no tokenizer: give one with tokenizer=path, or token ids")
        return self.tokenizer

    def conversation(
        self, messages: Sequence[Message], tools: Any, values: Mapping[str, Any] | None, continue_final: bool
    ) -> tuple[list[int], ThinkingParser | None]:
        """Return the ids of a conversation's text by the template, and a parser of thoughts for models that think."""
        given: Any = messages
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
            raise TypeError(f"messages are {given!r:.80}, and must be a list of mappings with role and content")
        if not given:
            raise ValueError("the conversation is empty: it needs at least one message")
        for message in given:
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                raise ValueError(f"a message has a role and a content, and this is {message!r:.80}")
        if values is not None and not isinstance(values, Mapping):
            raise TypeError(f"template_kwargs is {values!r:.80}, and must be a mapping of names to values")
        names: list[Any] = list(values or ())
        for name in names:
            if not isinstance(name, str) or name in _GIVEN:
                raise ValueError(f"template_kwargs has {name!r:.80}: a name is a text, and none of {', '.join(_GIVEN)}")
        tokenizer = self.need_tokenizer()
        template = self.chat_template
        more = dict(values or {})
        if continue_final:
            text = begun_conversation(messages, tokenizer, template=template, tools=tools, **more)
        else:
            text = apply_chat_template(messages, tokenizer, True, template=template, tools=tools, **more)
        thinks = tokenizer.token_id("</think>") is not None
        # Templates of some models end with the opening tag, so that the reply has the closing one only.
        begun = text.rstrip().endswith("<think>")
        return self.ids(text, special=False), ThinkingParser(start=begun) if thinks else None


def is_one_prompt(prompts: Any) -> bool:
    """Return whether what `LLM.generate` got is one prompt, rather than several.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if isinstance(prompts, str):
        return True
    try:
        if len(prompts) == 0:
            raise ValueError("the prompt is empty: a reply needs at least one token before it")
        first = prompts[0]
    except (TypeError, KeyError):
        raise TypeError(f"{prompts!r:.80} is no prompt: give a text, a list of token ids, or a list of those") from None
    return not isinstance(first, str) and np.ndim(first) == 0


def _token_ids(prompt: Any) -> list[int]:
    """The ids of a prompt that is no text."""
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise TypeError(f"{prompt!r:.80} is no prompt: it must be a text or whole numbers, the ids of tokens") from None
