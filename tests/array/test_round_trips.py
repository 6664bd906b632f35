"""No function reads from the device unless the shape of its result, or its error, depends on data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.registry import functions, methods

# Functions that read, and why; docs/coming-from-numpy.md names them.
COUNTS = {  # how many elements the result has
    "argwhere", "bincount", "compress", "extract", "flatnonzero", "intersect1d", "nonzero", "place", "setdiff1d",
    "setxor1d", "trim_zeros", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "repeat", "insert", "delete", "where", "piecewise", "mask_indices",
}  # fmt: skip
ANSWERS = {"allclose", "array_equal", "array_equiv", "real_if_close", "ndenumerate"}  # a bool, or a type
ON_THE_HOST = {"poly", "roots"}
# An array in place of a shape, an axis or a size of the result; `ix_` counts masks, `polyfit` wants a rank.
BY_ARRAYS = {
    "pad", "split", "array_split", "hsplit", "vsplit", "dsplit", "tile", "broadcast_shapes", "expand_dims", "indices",
    "ix_", "polyfit", "ravel_multi_index", "resize", "unravel_index",
}  # fmt: skip
MAY_READ = COUNTS | ANSWERS | ON_THE_HOST | BY_ARRAYS
# They raise LinAlgError where a matrix has no result, or return a rank.
LINALG = {
    "cholesky", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matrix_power", "pinv", "qr", "solve", "svd",
    "svdvals", "tensorinv", "tensorsolve", "cond", "matrix_rank", "matrix_norm", "norm", "det", "slogdet",
}  # fmt: skip

VECTOR, WHOLE, BOOLS = [1.5, 2.5, 0.5], [2, 1, 0], [True, False, True]
MATRIX = [[4.0, 1.0], [1.0, 5.0]]
ARGUMENTS: tuple[tuple[Any, ...], ...] = (
    (VECTOR,), (WHOLE,), (BOOLS,), (MATRIX,), (VECTOR, VECTOR), (WHOLE, WHOLE), (BOOLS, BOOLS), (VECTOR, 2.0),
    (WHOLE, 1), (MATRIX, MATRIX), (MATRIX, [1.0, 2.0]), (VECTOR, VECTOR, VECTOR), (BOOLS, VECTOR, VECTOR),
    (VECTOR, 0.5, 2.5), (BOOLS, VECTOR), (VECTOR, BOOLS), (VECTOR, WHOLE), (VECTOR, WHOLE, 0), (MATRIX, WHOLE),
    (WHOLE, (3, 3)),
    (VECTOR, BOOLS, VECTOR), (MATRIX, 0), (MATRIX, 1), (MATRIX, (2, 2)), (VECTOR, 2, 0), (VECTOR, 1, 7.0),
)  # fmt: skip


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read from the device."""
    found: list[int] = []
    real = native.read_buffer

    def read(array: gp.GPUArray, *rest: Any) -> None:
        found.append(array.nbytes)
        real(array, *rest)

    monkeypatch.setattr(native, "read_buffer", read)
    # The number of a mask's elements is read too.
    count = native.count_chosen
    monkeypatch.setattr(native, "count_chosen", lambda mask: found.append(8) or count(mask))
    return found


def called(function: Callable[..., Any], reads: list[int]) -> tuple[int, int]:
    """How many sets of arguments a function takes, and how many of these calls read from the device."""
    done = reading = 0
    for arguments in ARGUMENTS:
        arrays = [gp.asarray(a) if isinstance(a, list) else a for a in arguments]
        reads.clear()
        try:
            function(*arrays)
            # An error of work that is put off belongs to this call.
            gp.synchronize()
        except Exception:
            continue
        done += 1
        reading += bool(reads)
    return done, reading


def walked() -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Name, function, and may it read?"""
    for name, function in sorted(functions().items()):
        if hasattr(np, name) or name in gp.array_api.__all__:
            yield name, function, name in MAY_READ
    for name, function in sorted(methods().items()):
        yield f"x.{name}", function, name in MAY_READ
    for module in ("fft", "linalg"):
        for name in getattr(gp, module).__all__:
            function = getattr(getattr(gp, module), name)
            if not isinstance(function, type):
                yield f"{module}.{name}", function, module == "linalg" and name in LINALG


WALK = {name: (function, may) for name, function, may in walked()}


def test_functions_do_not_read(reads: list[int]) -> None:
    with gp.device("cpu"):
        done = {name: called(function, reads) for name, (function, _) in WALK.items()}
    assert sum(n > 0 for n, _ in done.values()) > 0.85 * len(WALK), "most functions are called"
    assert [name for name, (_, n) in done.items() if n and not WALK[name][1]] == []
    # What is said to read does: the list is no longer than it must be.
    reading = {name for name, (_, n) in done.items() if n}
    assert {"nonzero", "unique", "bincount", "compress", "roots", "repeat", "x.nonzero"} <= reading


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "call",
    [
        lambda x, i, m: gp.sort(x)[0] + gp.cumsum(x)[-1] * gp.argmax(x),
        lambda x, i, m: gp.where(m, x, 0).sum() / m.sum(),
        lambda x, i, m: gp.add.at(x, i, 1.0),
        lambda x, i, m: x.__setitem__(m, 0.0),
        lambda x, i, m: x.__setitem__(i, x[::-1][i]),
        lambda x, i, m: gp.take_along_axis(x, gp.argsort(x), 0),
        lambda x, i, m: gp.histogram(x, 4),
        lambda x, i, m: gp.median(x) + gp.percentile(x, 30),
        lambda x, i, m: gp.searchsorted(gp.sort(x), x),
        lambda x, i, m: gp.fft.irfft(gp.fft.rfft(x)),
        lambda x, i, m: gp.einsum("i,j->ij", x, x) @ x,
        lambda x, i, m: gp.clip(gp.interp(x, gp.sort(x), x), None, 1.0),
        lambda x, i, m: gp.var(x.reshape(2, -1), axis=1, keepdims=True),
        lambda x, i, m: gp.isin(i, i[:2]),
    ],
)
def test_programs_through_kernels_do_not_read(reads: list[int], call: Callable[..., Any]) -> None:
    with gp.device("emulated"):
        x, i, m = gp.asarray([0.5, 2.0, 1.0, 3.0]), gp.asarray([1, 3, 0, 1]), gp.asarray([True, False, True, True])
        reads.clear()
        call(x, i, m)
        assert not reads
        gp.nonzero(m)
        assert reads == [8]
