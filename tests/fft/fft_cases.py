"""What the tests of Fourier transforms share: arrays, errors relative to NumPy in double, and devices."""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import pytest

DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"]

Array = np.ndarray[Any, np.dtype[Any]]


def values(shape: tuple[int, ...], kind: str, seed: int = 0) -> Array:
    """Return random numbers of a type."""
    rng = np.random.default_rng([seed, *shape])
    made = rng.standard_normal(shape)
    if np.dtype(kind).kind == "c":
        made = made + 1j * rng.standard_normal(shape)
    return (made * 20).astype(kind) if np.dtype(kind).kind in "iub" else made.astype(kind)


def wide(x: Array) -> Array:
    """The same values in double."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def assert_near(got: Array, want: Array, n: int, context: str = "") -> None:
    """Assert a relative distance in the 2-norm that grows with the logarithm of the length."""
    assert got.shape == want.shape, context
    unit = 3e-7 if got.dtype.itemsize == (8 if got.dtype.kind == "c" else 4) else 1e-15
    distance = np.linalg.norm((wide(got) - want).ravel())
    assert distance <= unit * max(1.0, log2(max(n, 2))) * np.linalg.norm(want.ravel()) + 1e-300, (
        f"{context}: {distance / max(np.linalg.norm(want.ravel()), 1e-300):.2e}"
    )
