"""One expression over two namespaces: the package's, and NumPy's main namespace, which implements the standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit import array_api as xp

BOOL = ("bool",)
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
REAL_FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
FLOATS = REAL_FLOATS + COMPLEX
REAL = INTEGERS + REAL_FLOATS
NUMERIC = REAL + COMPLEX
ALL = BOOL + NUMERIC
# Relative, of the results' type; kernels and NumPy may differ by a few units in the last place.
TOLERANCE = {"float32": 2e-6, "complex64": 4e-6, "float64": 1e-14, "complex128": 4e-14}

Host = np.ndarray[Any, Any]


def sample(name: str, shape: Any, seed: int = 0) -> Host:
    """Elements of a type: small ones of both signs with ties, and a few of any size."""
    rng = np.random.default_rng([seed, len(name), *name.encode()])
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name in INTEGERS:
        info = np.iinfo(name)
        small = rng.integers(max(info.min, -9), 10, shape).astype(name)
        return np.where(rng.random(shape) < 0.2, rng.integers(info.min, info.max, shape, name, endpoint=True), small)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)
    if name in COMPLEX:
        x = x + 1j * rng.standard_normal(shape)
    return np.asarray(x).astype(name)


def to_host(x: Any) -> Any:
    return x.to_numpy() if isinstance(x, gp.GPUArray) else np.asarray(x)


def name_of(x: Any) -> str:
    return str(x.dtype.name)


def same(ours: Any, theirs: Any, tolerance: float | None = None, where: object = "") -> None:
    """The same type, shape and elements; of sequences, the same of each."""
    if isinstance(theirs, tuple | list):
        assert isinstance(ours, tuple | list), where
        assert len(ours) == len(theirs), where
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, tolerance, where)
        return
    theirs = np.asarray(theirs)
    assert isinstance(ours, gp.GPUArray), (where, type(ours))
    assert name_of(ours) == name_of(theirs), where
    assert ours.shape == theirs.shape, where
    host = to_host(ours)
    if theirs.dtype.kind not in "fc":
        np.testing.assert_array_equal(host, theirs, err_msg=str(where))
        return
    allowed = TOLERANCE[theirs.dtype.name] if tolerance is None else tolerance
    np.testing.assert_allclose(host, theirs, rtol=allowed, atol=allowed * 1e-3, equal_nan=True, err_msg=str(where))


def agree(
    call: Callable[..., Any], *hosts: Host, tolerance: float | None = None, where: object = "", numpy: Any = np
) -> None:
    """``call(namespace, *arrays)`` gives the same over both."""
    with np.errstate(all="ignore"):
        theirs = call(numpy, *(np.asarray(h) for h in hosts))
    ours = call(xp, *(gp.from_numpy(h) for h in hosts))
    same(ours, theirs, tolerance, where or [f"{h.dtype}{h.shape}" for h in hosts])


def each(names: Sequence[str], shape: Any = (3, 4), seed: int = 0) -> list[Host]:
    return [sample(name, shape, seed) for name in names]
