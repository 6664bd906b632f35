"""Checks of arguments: what a value is, what it must be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["one_of", "positive", "text_or_none", "true_or_false", "whole"]


def positive(name: str, value: Any) -> int:
    """Return a whole number of at least 1.

    Examples
    --------
    >>> positive("layers", 0)
    Traceback (most recent call last):
    ValueError: layers is 0, and must be a whole number of at least 1
    """
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r:.80}, and must be a whole number of at least 1")
    return value


def whole(name: str, value: Any) -> int:
    """Return a whole number."""
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r:.80}, and must be a whole number")
    return value


def true_or_false(name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.80}, and must be True or False")
    return value


def text_or_none(name: str, value: Any) -> str | None:
    """Return a text, or None."""
    if not isinstance(value, str | None):
        raise ValueError(f"{name} is {value!r:.80}, and must be a text")
    return value


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """Return a name that is known."""
    names = list(known)
    if value not in names:
        raise ValueError(f"{name} is {value!r:.80}, and must be one of {', '.join(names)}")
    return str(value)
