"""Sections ``gemm`` and ``gemv``: matrix products, and products of a few rows with the weights of model layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import pygpukit as gp
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.benchmark.work import Call, Options, Row, Work, distance

LAYERS = (
    (4096, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (8192, 29568), (29568, 8192),
    (3584, 4608), (3584, 3584), (3584, 37888), (18944, 3584),
)  # fmt: skip
"""K and N: those of published comparisons, then qkv, o, gate and up, and down of Qwen2.5-7B."""

ROWS = 1
_CHECKED = 48


class Precision(NamedTuple):
    """How a product is asked for: element type of the operands, and the tolerance of its result."""

    dtype: str
    tolerance: float


PRECISIONS = {
    "float32": Precision("float32", 1e-5),
    "bfloat16": Precision("bfloat16", 3e-3),
    "float16": Precision("float16", 4e-4),
    "float64": Precision("float64", 1e-13),
    "float8_e4m3fn": Precision("float8_e4m3fn", 4e-2),
}


def gemm(options: Options) -> Iterator[Row]:
    """Square products of each size and type; weights as they are, that is [K, N]."""
    if options.on_gpu:
        sizes = options.sizes or ((2048,) if options.quick else (2048, 4096, 8192))
    else:
        sizes = options.sizes or ((256,) if options.quick else (256, 512, 1024))
    for name in _precisions(options):
        for n in sizes:
            yield Row(f"gemm {name} {n}", "gemm", name, lambda n=n, name=name: _square(options, n, name))  # type: ignore[misc]


def gemv(options: Options) -> Iterator[Row]:
    """One row by the weights of a layer, stored as [N, K]; the weights of successive calls are not in the L2 cache."""
    layers = LAYERS if options.on_gpu else LAYERS[:1]
    for name in _precisions(options):
        if gp.dtype(PRECISIONS[name].dtype).itemsize > 2 and options.on_gpu:
            continue
        for k, n in layers[:2] if options.quick else layers:
            yield Row(f"gemv {name} {k}x{n}", "gemv", name, lambda k=k, n=n, name=name: _layer(options, k, n, name))  # type: ignore[misc]


def _precisions(options: Options) -> tuple[str, ...]:
    names = options.dtypes or (("bfloat16", "float16", "float32") if options.on_gpu else ("float32",))
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown:
        raise ValueError(f"no product is measured in {unknown[0]!r}; choose from {', '.join(PRECISIONS)}")
    return (*names, "float8_e4m3fn") if options.fp8 and "float8_e4m3fn" not in names else tuple(names)


def _square(options: Options, n: int, name: str) -> Work:
    kind, tolerance = PRECISIONS[name]
    a, b = (options.normal((n, n), kind) for _ in range(2))
    return _work(options, [(a, b)], [b], tolerance, 3 * a.nbytes)


def _layer(options: Options, k: int, n: int, name: str) -> Work:
    kind, tolerance = PRECISIONS[name]
    x = options.normal((ROWS, k), kind)
    first = options.normal((n, k), kind)
    weights = [first] + [first.copy() for _ in range(options.copies(first.nbytes) - 1)]
    return _work(options, [(x, w.T) for w in weights], weights, tolerance, first.nbytes + x.nbytes)


def _work(
    options: Options, operands: list[tuple[GPUArray, GPUArray]], owners: list[GPUArray], tolerance: float, nbytes: int
) -> Work:
    a, b = operands[0]
    (m, k), n = a.shape, b.shape[1]
    out = gp.matmul(a, b)
    return Work(
        calls=tuple(_ours(x, y, out) for x, y in operands),
        peer=tuple(_theirs(options, x, y) for x, y in operands) if options.has_peer else (),
        error=_error(a, b, out),
        tolerance=tolerance,
        nbytes=nbytes,
        flops=2 * m * n * k,
        variant=gp.explain(gp.matmul, a, b).variant,
    )


def _ours(a: GPUArray, b: GPUArray, out: GPUArray) -> Call:
    return lambda: gp.matmul(a, b, out=out)


def _theirs(options: Options, a: GPUArray, b: GPUArray) -> Call:
    torch = options.torch
    if torch is None:
        x, y = a.to_numpy(), b.to_numpy()
        return lambda: x @ y
    x, y = options.to_torch(a), options.to_torch(b)
    result = torch.empty((a.shape[0], b.shape[1]), dtype=x.dtype, device="cuda")
    return lambda: torch.matmul(x, y, out=result)


def _error(a: GPUArray, b: GPUArray, out: GPUArray) -> float:
    """Compare rows and columns spread over the result with float64."""
    m, n = out.shape
    rows, columns = (np.unique(np.linspace(0, size - 1, min(size, _CHECKED)).astype(np.int64)) for size in (m, n))
    left: Any = gp.take(a, gp.asarray(rows), axis=0).to_numpy().astype(np.float64)
    right: Any = gp.take(b.T, gp.asarray(columns), axis=0).to_numpy().astype(np.float64)
    part = gp.take(gp.take(out, gp.asarray(rows), axis=0), gp.asarray(columns), axis=1)
    return distance(part.to_numpy(), left @ right.T)
