"""Checks of what audio functions take, and small steps on arrays that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, prod
from operator import index
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.operators import gp
from pygpukit.errors import ParameterError

__all__ = [
    "at_least",
    "constant",
    "fix_length",
    "framed",
    "frames_first",
    "magnitudes",
    "normalize",
    "not_negative",
    "number",
    "per_item",
    "positive",
    "real_array",
    "samples",
    "tiny",
    "whole_number",
]  # fmt: skip


def _array(x: Any, what: str) -> GPUArray:
    if isinstance(x, GPUArray):
        return x
    if isinstance(x, np.ndarray):
        raise ParameterError(f"{what} is a NumPy array; copy it to the device with gp.asarray({what})")
    return gp.asarray(x)


def real_array(x: Any, what: str) -> GPUArray:
    """Return an array of float32 or float64 with at least one axis.

    Raises
    ------
    ParameterError
        If it is another.
    """
    x = _array(x, what)
    if x.dtype.name not in ("float32", "float64"):
        raise ParameterError(f"{what} is {x.dtype.name}; float32 and float64 are computed: convert with astype")
    if x.ndim == 0:
        raise ParameterError(f"{what} is a single number; it needs at least one axis")
    return x


def samples(y: Any, what: str = "y") -> GPUArray:
    """Return audio: float32 or float64, any leading axes, at least one sample.

    Raises
    ------
    ParameterError
        If it is none.
    """
    y = _array(y, what)
    if y.dtype.kind in "iu":
        full = 2 ** (8 * y.itemsize - 1)
        raise ParameterError(f"{what} is {y.dtype.name}; audio is float32 or float64 from -1 to 1: divide by {full}")
    y = real_array(y, what)
    if y.size == 0:
        raise ParameterError(f"{what} has shape {y.shape}: there are no samples")
    return y


def magnitudes(S: Any, what: str = "S") -> GPUArray:
    """Return a spectrogram of real numbers: magnitudes of a complex one; at least two axes.

    Raises
    ------
    ParameterError
        If it is none.
    """
    S = _array(S, what)
    S = gp.abs(S) if S.dtype.kind == "c" else real_array(S, what)
    if S.ndim < 2:
        raise ParameterError(f"{what} has shape {S.shape}; a spectrogram is (..., bins, frames)")
    return S


def whole_number(value: Any, what: str) -> int:
    """Return an integer.

    Raises
    ------
    ParameterError
        If it is none.
    """
    try:
        return int(index(value))
    except TypeError:
        raise ParameterError(f"{what} is {value!r}; it is a whole number") from None


def at_least(value: Any, least: int, what: str) -> int:
    """Return an integer that must not be under another.

    Raises
    ------
    ParameterError
        If it is.
    """
    found = whole_number(value, what)
    if found < least:
        raise ParameterError(f"{what} is {found}; it is at least {least}")
    return found


def number(value: Any, what: str, rule: str = "it is a finite number") -> float:
    """Return a finite number.

    Raises
    ------
    ParameterError
        If it is none.
    """
    try:
        found = float("nan") if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    if not isfinite(found):
        raise ParameterError(f"{what} is {value!r}; {rule}")
    return found


def positive(value: Any, what: str) -> float:
    """Return a finite number above 0.

    Raises
    ------
    ParameterError
        If it is not.
    """
    rule = "it is a number above 0"
    found = number(value, what, rule)
    if not found > 0:
        raise ParameterError(f"{what} is {value!r}; {rule}")
    return found


def not_negative(value: Any, what: str, rule: str = "it is at least 0") -> float:
    """Return a finite number of at least 0.

    Raises
    ------
    ParameterError
        If it is not.
    """
    found = number(value, what, rule)
    if not found >= 0:
        raise ParameterError(f"{what} is {value!r}; {rule}")
    return found


def tiny(x: GPUArray) -> float:
    """Return the smallest normal number of an array's real type."""
    return float(np.finfo(np.float64 if x.dtype.name in ("float64", "complex128") else np.float32).tiny)


def constant(values: Any, like: GPUArray, dtype: str | None = None) -> GPUArray:
    """Return host values on the device of an array, in its real type."""
    kind = dtype or ("float64" if like.dtype.name in ("float64", "complex128") else "float32")
    with gp.device(like.device):
        return gp.from_numpy(np.ascontiguousarray(values, kind))


def frames_first(x: GPUArray) -> GPUArray:
    """Return a view with the last two axes exchanged."""
    return gp.swapaxes(x, -1, -2)


def framed(y: GPUArray, frame_length: int, hop_length: int) -> GPUArray:
    """Return frames of the last axis as a view: (..., frames, frame_length).

    Raises
    ------
    ParameterError
        If not one fits.
    """
    if y.shape[-1] < frame_length:
        raise ParameterError(f"{y.shape[-1]} samples are too few for a frame of {frame_length}")
    return gp.sliding_window_view(y, frame_length, axis=-1)[..., ::hop_length, :]


def fix_length(x: GPUArray, size: int, axis: int = -1) -> GPUArray:
    """Return an array with this many elements along an axis, cut or continued with zeros."""
    n = x.shape[axis]
    if n == size:
        return x
    if n > size:
        keep: list[Any] = [slice(None)] * x.ndim
        keep[axis] = slice(0, size)
        return x[tuple(keep)]
    width = [(0, 0)] * x.ndim
    width[axis] = (0, size - n)
    return gp.pad(x, width)


def normalize(S: GPUArray, norm: float | None = np.inf, axis: int = -2, threshold: float | None = None) -> GPUArray:
    """Divide by norms along an axis; what has a norm under the threshold stays as it is.

    Raises
    ------
    ParameterError
        If the norm is none of a number above 0, infinity or None.
    """
    if norm is None:
        return S
    size = gp.abs(S)
    if norm == np.inf:
        length = gp.max(size, axis=axis, keepdims=True)
    elif norm == 1:
        length = gp.sum(size, axis=axis, keepdims=True)
    elif norm > 0:
        length = gp.sum(size**norm, axis=axis, keepdims=True) ** (1.0 / norm)
    else:
        raise ParameterError(f"norm is {norm!r}; it is a number above 0, infinity or None")
    least = tiny(S) if threshold is None else threshold
    return S / gp.where(length < least, gp.ones_like(length), length)


def per_item(x: GPUArray, function: Callable[[GPUArray], Any], axes: int) -> GPUArray:
    """Apply a function of an item to each item of a batch; returns the numbers with ``axes`` axes of size 1 behind."""
    lead, item = x.shape[: x.ndim - axes], x.shape[x.ndim - axes :]
    items = x.reshape((prod(lead), *item))
    made = [gp.asarray(function(items[i])).astype(x.dtype).reshape(()) for i in range(items.shape[0])]
    return gp.stack(made).reshape((*lead, *(1,) * axes))


def each_item(x: GPUArray, function: Callable[[GPUArray], GPUArray], axes: int) -> GPUArray:
    """Apply a function of an item, an array of ``axes`` axes, to each item of a batch, and join the results."""
    if x.ndim <= axes:
        return function(x)
    lead, item = x.shape[: x.ndim - axes], x.shape[x.ndim - axes :]
    items = x.reshape((prod(lead), *item))
    made = gp.stack([function(items[i]) for i in range(items.shape[0])])
    return made.reshape((*lead, *made.shape[1:]))
