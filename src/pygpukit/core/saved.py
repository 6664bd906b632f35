"""Saving as JSON, and reading back: anything in a file is checked before it is believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pygpukit.errors import LoadError

__all__ = ["integer", "optional", "read_object", "text", "write_object"]

_T = TypeVar("_T")


def write_object(content: dict[str, Any], path: str | Path | None, indent: int | None = None) -> str:
    """An object as JSON, also written to a file if one is named."""
    import json

    result = json.dumps(content, indent=indent)
    if path is not None:
        Path(path).write_text(result + "\n", encoding="utf-8")
    return result


def read_object(path: str | Path, what: str, parse: Callable[[dict[str, Any]], _T]) -> _T:
    """Read a JSON object from a file and let `parse` make `what` of it.

    Raises
    ------
    LoadError
        If the file cannot be read, is no JSON, or is not what it should be; the text names it.
    """
    import json

    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path} is not {what}: it is no JSON ({error})") from None
    if not isinstance(content, dict):
        raise LoadError(f"{path} is not {what}: it holds a JSON {type(content).__name__}, not an object")
    try:
        return parse(content)
    except KeyError as error:
        raise LoadError(f"{path} is not {what}: it has no {error.args[0]!r}") from None
    except (ValueError, TypeError) as error:
        raise LoadError(f"{path} is not {what}: {error}") from None


def integer(value: object, what: str) -> int:
    """A number of bytes, nanoseconds or pools; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 2**64:
        raise ValueError(f"{what} is {_shown(value)}, not a whole number from 0 to 2**64 - 1")
    return value


def text(value: object, what: str) -> str:
    """A name, without what would move the cursor of a terminal; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {_shown(value)}, not a text")
    return "".join(c if c.isprintable() else "?" for c in value)


def optional(parse: Callable[[object, str], _T], value: object, what: str) -> _T | None:
    """None, or what `parse` makes of it."""
    return None if value is None else parse(value, what)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
