"""Subscripts of einsum: from text or lists to one label per axis, checked against the shapes."""

from __future__ import annotations

import operator
import string
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = ["Expression", "interleaved", "parse"]

_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_ELLIPSIS = "..."


class Expression(NamedTuple):
    """What einsum computes.

    Attributes
    ----------
    inputs
        A label per axis of each operand. Letters come from the text; axes of an ellipsis have labels of their own.
    output
        The labels of the result's axes.
    sizes
        Elements of the axis of each label.
    """

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    sizes: dict[str, int]

    def text(self) -> str:
        """Return the expression as subscripts that `numpy.einsum_path` takes."""
        spare = iter(c for c in string.ascii_letters if c not in self.sizes)
        names = {label: label if label in string.ascii_letters else next(spare) for label in self.sizes}
        terms = ["".join(names[label] for label in term) for term in (*self.inputs, self.output)]
        return ",".join(terms[:-1]) + "->" + terms[-1]


def interleaved(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the text and the operands of the form ``a, [0, 1], b, [1, 2], [0, 2]``.

    Raises
    ------
    TypeError
        If a label is neither an integer nor an Ellipsis.
    ValueError
        If it is out of range.
    """
    arrays, lists = list(operands[: len(operands) // 2 * 2 : 2]), list(operands[1::2])
    terms = [_letters(labels) for labels in lists]
    text = ",".join(terms)
    return (f"{text}->{_letters(operands[-1])}" if len(operands) % 2 else text), arrays


def _letters(labels: Any) -> str:
    try:
        items = list(labels)
    except TypeError:
        raise TypeError(f"the subscripts of an operand are a list of integers, not {labels!r}") from None
    found = []
    for item in items:
        if item is Ellipsis:
            found.append(_ELLIPSIS)
            continue
        try:
            number = operator.index(item)
        except TypeError:
            raise TypeError(f"each subscript must be an integer or an Ellipsis, not {item!r}") from None
        if not 0 <= number < len(_LETTERS):
            raise ValueError(f"subscript {number} is not within the valid range [0, {len(_LETTERS)})")
        found.append(_LETTERS[number])
    return "".join(found)


def _term(text: str, what: str) -> tuple[str, str | None]:
    """Return the letters before and after an ellipsis; None after it where there is none."""
    before, dots, after = text.partition(_ELLIPSIS)
    for c in before + after:
        if c == ".":
            raise ValueError(
                f"the subscripts of {what} contain a '.' that is not part of an ellipsis ('...'): {text!r}"
            )
        if c not in string.ascii_letters:
            raise ValueError(f"invalid subscript {c!r} in the subscripts of {what}: subscripts must be letters")
    return before, after if dots else None


@lru_cache(512)
def parse(text: str, shapes: tuple[tuple[int, ...], ...]) -> Expression:
    """Return the expression of a text for operands of these shapes.

    Raises
    ------
    ValueError
        If the text is wrong, or does not fit the shapes.

    Examples
    --------
    >>> parse("ij,jk", ((2, 3), (3, 4))).output
    ('i', 'k')
    """
    text = text.replace(" ", "")
    head, arrow, tail = text.partition("->")
    terms = head.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"einsum subscripts {text!r} name {len(terms)} operands, and {len(shapes)} were given")
    inputs: list[tuple[str, ...]] = []
    sizes: dict[str, int] = {}
    spread = 0
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        before, after = _term(term, f"operand {i}")
        named = len(before) + len(after or "")
        if named > len(shape):
            raise ValueError(f"operand {i} of shape {shape} has fewer dimensions than its {named} subscripts {term!r}")
        if after is None and named < len(shape):
            raise ValueError(
                f"operand {i} of shape {shape} has more dimensions than its subscripts {term!r}, "
                "and there is no '...' for the others"
            )
        count = len(shape) - named
        # Axes of ellipses are counted from the last, as broadcasting does.
        labels = (*before, *(f".{count - 1 - j}" for j in range(count)), *(after or ""))
        _sizes(labels, shape, i, sizes)
        inputs.append(labels)
        spread = max(spread, count)
    output = _output(text, arrow, tail, inputs, spread)
    return Expression(tuple(inputs), output, sizes)


def _sizes(labels: Sequence[str], shape: Sequence[int], operand: int, sizes: dict[str, int]) -> None:
    own: dict[str, int] = {}
    for label, n in zip(labels, shape, strict=True):
        if own.setdefault(label, n) != n:
            raise ValueError(
                f"dimensions of operand {operand} for the index {label!r} don't match ({own[label]} != {n})"
            )
    for label, n in own.items():
        known = sizes.setdefault(label, n)
        if known == 1:
            sizes[label] = n
        elif n not in (1, known):
            what = "an axis of the ellipsis" if label[0] == "." else f"index {label!r}"
            raise ValueError(f"operands could not be broadcast together: {what} has sizes {known} and {n}")


def _output(text: str, arrow: str, tail: str, inputs: Sequence[Sequence[str]], spread: int) -> tuple[str, ...]:
    ellipsis = tuple(f".{spread - 1 - j}" for j in range(spread))
    letters = [c for term in inputs for c in term if c[0] != "."]
    if not arrow:
        return (*ellipsis, *sorted(c for c in set(letters) if letters.count(c) == 1))
    before, after = _term(tail, "the result")
    named = before + (after or "")
    for c in named:
        if named.count(c) > 1:
            raise ValueError(f"einsum subscripts {text!r} include the output subscript {c!r} several times")
        if c not in letters:
            raise ValueError(f"einsum subscripts {text!r}: the output subscript {c!r} is in no input")
    if after is None and spread:
        raise ValueError(
            f"einsum subscripts {text!r}: the inputs have axes of an ellipsis, and the output has no '...'"
        )
    return (*before, *(ellipsis if after is not None else ()), *(after or ""))
