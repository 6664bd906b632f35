"""Chat templates: jinja in a sandbox, with limits on what it may print and how long it may take.

A template comes with a model's files, so it is hostile until it has run: it sees messages and nothing else, and cannot
reach Python's objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pygpukit.errors import MissingPackageError, ModelLoadError
from pygpukit.llm import plugins, sandbox

__all__ = [
    "ChatMessage",
    "ThinkingParser",
    "apply_chat_template",
    "begun_conversation",
    "check_template",
    "create_chat_prompt",
    "format_chat_messages",
    "render",
]

# Behind a message that a reply goes on with; no text of a conversation has it.
_MARK = "\ue000pygpukit-end-of-message\ue000"
_LONGEST = 16 << 20
_LONGEST_TEMPLATE = 1 << 20
_SECONDS = 10.0


class ChatMessage(dict[str, Any]):
    """A message of a conversation: a dict with ``role`` and ``content``.

    Examples
    --------
    >>> ChatMessage("user", "Hi")
    {'role': 'user', 'content': 'Hi'}
    """

    def __init__(self, role: str, content: str, **more: Any) -> None:
        super().__init__(role=role, content=content, **more)

    @property
    def role(self) -> str:
        """Who says it."""
        return str(self["role"])

    @property
    def content(self) -> str:
        """What is said."""
        return str(self["content"])


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Any = None,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    now: datetime | None = None,
    limit: int = _LONGEST,
    seconds: float = _SECONDS,
    **values: Any,
) -> str:
    """Return the text of a conversation by a template.

    Parameters
    ----------
    template : str
    messages : sequence of mapping
        With ``role`` and ``content``.
    tools : optional
        Descriptions of functions that the model may call.
    add_generation_prompt : bool
        End with the beginning of a reply.
    now : datetime, optional
        The time that the template sees, where it asks for it; the clock's by default.
    limit, seconds : number
        Characters it may print, and how long it may take.
    **values
        Seen by the template, such as ``enable_thinking``.

    Raises
    ------
    ModelLoadError
        If the template is wrong, raises, prints too much or takes too long.

    Examples
    --------
    >>> render("{{ messages[0].role }}: {{ messages[0].content }}", [ChatMessage("user", "Hi")])  # doctest: +SKIP
    'user: Hi'
    """
    environment = _environment(template)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)
    pieces, size = [], 0
    try:
        with sandbox.Clock(seconds):
            stream = environment.from_string(template).generate(
                messages=[dict(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                bos_token=bos_token,
                eos_token=eos_token,
                **values,
            )
            for piece in stream:
                size += len(piece)
                if size > limit:
                    raise ModelLoadError(f"the chat template prints more than {limit} characters")
                pieces.append(piece)
    except (MissingPackageError, ModelLoadError):
        raise
    except sandbox.Overrun as error:
        raise ModelLoadError(f"the chat template takes more than {seconds:g} seconds") from error
    except Exception as error:  # whatever a template can do wrong
        raise ModelLoadError(f"the chat template cannot be used with these messages: {error}") from error
    return "".join(pieces)


def check_template(template: str) -> None:
    """Refuse what is no template, before there are messages.

    Raises
    ------
    ModelLoadError
        With the line.
    """
    template = _named(template)
    environment = _environment(template)
    try:
        with sandbox.Clock(_SECONDS):
            environment.from_string(template)
    except sandbox.Overrun as error:
        raise ModelLoadError(f"the chat template takes more than {_SECONDS:g} seconds to read") from error
    except Exception as error:  # whatever jinja finds wrong
        line = getattr(error, "lineno", None)
        raise ModelLoadError(f"this is no chat template{f', line {line}' if line else ''}: {error}") from error


def _environment(template: str) -> Any:
    if len(template) > _LONGEST_TEMPLATE:
        raise ModelLoadError(f"the chat template has {len(template)} characters; {_LONGEST_TEMPLATE} are allowed")
    return sandbox.environment()


def _named(template: str) -> str:
    """The text of a template, or of the plugin's that has this name: no template is without braces."""
    if "{" in template:
        return template
    named: str | None = plugins.find("template", template)
    if named is None:
        known = ", ".join(plugins.names("template")) or "none"
        raise ModelLoadError(f"there is no chat template {template!r:.80}; plugins have {known}")
    return named


def _refuse(message: str) -> None:
    raise ValueError(str(message))


def _chatml(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    lines = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join(lines), "<|im_start|>assistant\n"


def _llama3(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    return "".join(head.format(m["role"]) + f"{m['content']}<|eot_id|>" for m in messages), head.format("assistant")


def _instructions(messages: Sequence[Mapping[str, Any]], told: str = "<<SYS>>\n{}\n<</SYS>>\n\n") -> tuple[str, str]:
    """Llama 2 and Mistral: requests in brackets, replies behind them, what is told first within the first request."""
    first, text = "", ""
    for message in messages:
        content = message["content"]
        if message["role"] == "system":
            first = told.format(content)
        elif message["role"] == "assistant":
            text += f" {content}</s>"
        else:
            text += f"[INST] {first}{content} [/INST]"
            first = ""
    return text, ""


_FORMS: dict[str, Callable[[Sequence[Mapping[str, Any]]], tuple[str, str]]] = {
    **dict.fromkeys(("chatml", "qwen", "qwen2", "qwen3", "smollm2"), _chatml),
    "llama3": _llama3,
    "llama2": _instructions,
    "mistral": partial(_instructions, told="{}\n\n"),
}


def format_chat_messages(
    messages: Iterable[Mapping[str, Any]], model_type: str = "chatml", add_generation_prompt: bool = True
) -> str:
    """Return a conversation in a known form; `apply_chat_template` takes the model's own.

    Parameters
    ----------
    messages : iterable of mapping
        With ``role`` and ``content``.
    model_type : str
        ``"qwen"``, ``"qwen2"``, ``"qwen3"``, ``"llama2"``, ``"llama3"``, ``"mistral"``, or a plugin's; anything else is
        ChatML, which many models are trained on.
    add_generation_prompt : bool
        End with the beginning of a reply.

    Examples
    --------
    >>> format_chat_messages([ChatMessage("user", "Hi")])
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    other = None if model_type.lower() in _FORMS or not model_type else plugins.find("template", model_type)
    if other is not None:
        return render(other, list(messages), add_generation_prompt=add_generation_prompt)
    text, begun = _FORMS.get(model_type.lower(), _chatml)(list(messages))
    return text + begun if add_generation_prompt else text


def apply_chat_template(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any = None,
    add_generation_prompt: bool = True,
    *,
    template: str | None = None,
    **values: Any,
) -> Any:
    """Return a conversation by a template, the tokenizer's own by default, in the ChatML form where there is none.

    A template is a text, or the name of a plugin's.

    With a tokenizer of transformers, which has templates itself, the result are token ids.
    """
    if template is None and hasattr(tokenizer, "apply_chat_template"):
        plain = [dict(message) for message in messages]
        options = {"add_generation_prompt": add_generation_prompt, "tokenize": True, "return_dict": False}
        return list(tokenizer.apply_chat_template(plain, **options, **values))
    template = template or getattr(tokenizer, "chat_template", None)
    if not template:
        return format_chat_messages(messages, add_generation_prompt=add_generation_prompt)
    template = _named(template)
    tokens = {}
    if tokenizer is not None:
        tokens = {name: tokenizer.token(getattr(tokenizer, f"{name}_id")) for name in ("bos_token", "eos_token")}
    return render(template, messages, add_generation_prompt=add_generation_prompt, **tokens, **values)


def begun_conversation(messages: Sequence[Mapping[str, Any]], tokenizer: Any, **values: Any) -> str:
    """Return a conversation up to the end of its last message's content, which a reply goes on with.

    Raises
    ------
    ValueError
        If the template leaves out the last message.
    """
    # Templates strip contents: what is behind the mark is the template's end of a message.
    marked = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}{_MARK}"}]
    text = str(apply_chat_template(marked, tokenizer, False, **values))
    if _MARK not in text:
        raise ValueError("the chat template leaves out the last message, which the reply is to go on with")
    return text[: text.rindex(_MARK)]


def create_chat_prompt(
    user_message: str, system_message: str | None = None, assistant_prefix: str | None = None
) -> list[ChatMessage]:
    """Return the messages of a first turn; `assistant_prefix` begins the reply.

    Examples
    --------
    >>> create_chat_prompt("Hi", system_message="Be brief.")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}]
    """
    given = (("system", system_message), ("user", user_message), ("assistant", assistant_prefix))
    return [ChatMessage(role, content or "") for role, content in given if content or role == "user"]


class ThinkingParser:
    """Splits a reply into what is thought, between ``<think>`` and ``</think>``, and what is said.

    Parameters
    ----------
    start : bool
        The reply begins inside of the thought: some templates end with the opening tag.

    Examples
    --------
    >>> parser = ThinkingParser()
    >>> parser.add_text("<think>hm</thi"), parser.add_text("nk>Hello"), parser.flush()
    (('hm', ''), ('', 'Hello'), ('', ''))
    """

    _TAGS = ("<think>", "</think>")

    def __init__(self, start: bool = False) -> None:
        self._start = start
        self.reset()

    def reset(self) -> None:
        """Begin another reply."""
        self.thinking = self._start
        self._held = ""

    def add_text(self, text: str) -> tuple[str, str]:
        """Return what a piece adds to the thought and to the answer; what may be part of a tag is held back."""
        self._held += text
        parts = {True: "", False: ""}
        while True:
            tag = self._TAGS[self.thinking]
            before, found, after = self._held.partition(tag)
            if not found:
                break
            parts[self.thinking] += before
            self.thinking, self._held = not self.thinking, after
        keep = next((n for n in range(min(len(tag) - 1, len(self._held)), 0, -1) if tag.startswith(self._held[-n:])), 0)
        cut = len(self._held) - keep
        parts[self.thinking] += self._held[:cut]
        self._held = self._held[cut:]
        return parts[True], parts[False]

    def flush(self) -> tuple[str, str]:
        """Return what was held back at the end."""
        held, self._held = self._held, ""
        return (held, "") if self.thinking else ("", held)
