"""Times that are given in seconds: whether they are any, and how much of them is left."""

from __future__ import annotations

import math
import numbers
import time
from typing import Any

__all__ = ["MOST_SECONDS", "check_timeout", "end_of", "is_number", "left_of", "part_of"]

MOST_SECONDS = 1e9
"""Longer than anybody waits, and within what every clock can count in nanoseconds."""


def is_number(value: Any) -> bool:
    """Is it a number, which a bool is not?"""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_timeout(timeout: Any) -> float | None:
    """The seconds of a timeout that a user gave, from 0 on; None for no limit, which infinity is too.

    Examples
    --------
    >>> check_timeout(-1), check_timeout(2), check_timeout(float("inf"))
    (0.0, 2.0, None)
    """
    if timeout is None:
        return None
    if not is_number(timeout):
        raise TypeError(f"timeout must be seconds or None, not {timeout!r} ({type(timeout).__name__})")
    if math.isnan(timeout):
        raise ValueError(f"timeout must be seconds or None, not {timeout!r}")
    return max(0.0, float(timeout)) if timeout < MOST_SECONDS else None


def end_of(timeout: float | None) -> float | None:
    """When a timeout that begins now is over, in seconds of ``time.monotonic()``."""
    return None if timeout is None else time.monotonic() + timeout


def left_of(until: float | None) -> float | None:
    """How many seconds are left until then."""
    return None if until is None else max(0.0, until - time.monotonic())


def part_of(until: float | None, most: float) -> float:
    """How many seconds to wait now: what is left until then, and at most so many."""
    return most if until is None else min(most, max(0.0, until - time.monotonic()))
