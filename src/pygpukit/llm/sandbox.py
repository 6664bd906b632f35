"""The jinja environment that chat templates run in.

jinja's sandbox keeps a template away from Python's objects, but lets it make a text or a number so large that one
operation never ends, where no clock can stop it. Here every operation that makes something larger has a limit.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from types import FrameType
from typing import Any

from pygpukit.errors import MissingPackageError

__all__ = ["Clock", "Overrun", "environment"]

_LONGEST_TEXT = 1 << 22
_LARGEST_NUMBER = 1 << 53
_WIDEST = 1000

# What templates use; the others pad, format or repeat, and none needs them.
_METHODS = frozenset(
    ("strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "upper", "lower", "title",
     "capitalize", "find", "rfind", "index", "count", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower",
     "partition", "rpartition", "removeprefix", "removesuffix", "replace", "join")
)  # fmt: skip
_FILTERS_GONE = ("center", "format", "pprint", "random", "urlize", "wordwrap", "xmlattr", "filesizeformat", "batch",
                 "slice")  # fmt: skip


class Overrun(BaseException):
    """The time is over. Not an Exception, so that a template cannot go on after it."""


class Clock:
    """Ends what this thread does after some seconds: loops of a template print nothing and never come back."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._end = time.monotonic() + self._seconds
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if time.monotonic() > self._end:
            raise Overrun
        return self._trace


def environment() -> Any:
    """Return a new environment.

    Raises
    ------
    MissingPackageError
        If jinja2 is not installed.
    """
    try:
        for name in ("ext", "sandbox", "visitor"):
            importlib.import_module(f"jinja2.{name}")
        jinja2: Any = importlib.import_module("jinja2")
    except ImportError as error:
        raise MissingPackageError("chat templates need the package 'jinja2': pip install 'pygpukit[llm]'") from error

    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
        """``{% generation %}`` marks what an assistant says, for training; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    class Joins(jinja2.visitor.NodeTransformer):  # type: ignore[misc]
        """``a ~ b`` becomes ``a|string + b|string``, which has a limit."""

        def visit_Concat(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            made: Any = None
            for part in node.nodes:
                text = jinja2.nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno)
                made = text if made is None else jinja2.nodes.Add(made, text, lineno=node.lineno)
            return made

        def visit_Const(self, node: Any) -> Any:  # noqa: N802
            return jinja2.nodes.Const(_limited(node.value), lineno=node.lineno)

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc]
        intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

        def _parse(self, source: Any, name: Any, filename: Any) -> Any:
            return Joins().visit(super()._parse(source, name, filename))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check(operator, left, right)
            return _limited(super().call_binop(context, operator, left, right))

        def wrap_str_format(self, value: Any) -> None:
            # Then it is a method of texts like others, and none of those above.
            return None

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            owner = getattr(function, "__self__", None)
            if isinstance(owner, str):
                name = getattr(function, "__name__", "")
                if name not in _METHODS:
                    raise jinja2.exceptions.SecurityError(f"the method {name!r} of texts is not for templates")
                if name == "replace":
                    return _replace(owner, *args, **kwargs)
                if name == "join":
                    return _join(args[0], owner)
            return _limited(super().call(context, function, *args, **kwargs))

    made = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"], optimized=False
    )
    for name in _FILTERS_GONE:
        made.filters.pop(name, None)
    whole, indented = made.filters["int"], made.filters["indent"]
    made.filters.update(
        # Jinja's own writes < and > for HTML.
        tojson=_tojson,
        replace=_replace,
        join=_join_filter,
        int=lambda *args, **kwargs: _limited(whole(*args, **kwargs)),
        indent=lambda text, width=4, *args, **kwargs: indented(text, _narrow(width), *args, **kwargs),
    )
    made.globals.pop("lipsum", None)
    return made


def _limited(value: Any) -> Any:
    if isinstance(value, int | float) and not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        raise ValueError(f"a number is beyond {_LARGEST_NUMBER}")
    if isinstance(value, str | list | tuple) and len(value) > _LONGEST_TEXT:
        raise ValueError(f"a text or a list is longer than {_LONGEST_TEXT}")
    return value


def _check(operator: str, left: Any, right: Any) -> None:
    """Refuse before it is computed what would be too large."""
    if operator == "**" and (not isinstance(right, int | float) or abs(right) > 64):
        raise ValueError("powers above 64 are not for templates")
    if operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                _room(len(sequence) * times)
    if operator == "%" and isinstance(left, str):
        _room(len(left))
        if "*" in left or any(len(digits) > 3 for digits in re.findall(r"\d+", left)):
            raise ValueError("texts are padded to less than 1000 characters")


def _room(length: int) -> None:
    if length > _LONGEST_TEXT:
        raise ValueError(f"a text or a list would be longer than {_LONGEST_TEXT}")


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    whole, most = str(text), -1 if count is None else count
    times = whole.count(str(old))
    _room(len(whole) + (times if most < 0 else min(most, times)) * len(str(new)))
    return whole.replace(str(old), str(new), most)


def _join(values: Any, between: str) -> str:
    parts = [str(value) for value in values]
    _room(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


def _join_filter(values: Any, d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = [value[attribute] if isinstance(value, dict) else "" for value in values]
    return _join(values, str(d))


def _narrow(width: Any) -> Any:
    if (isinstance(width, int) and width > _WIDEST) or (isinstance(width, str) and len(width) > _WIDEST):
        raise ValueError(f"texts are not indented by more than {_WIDEST} characters")
    return width


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False, separators: Any = None
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=_narrow(indent), sort_keys=sort_keys, separators=separators
    )
