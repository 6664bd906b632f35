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
    """How a product is asked for: element type of the operands, tolerance, and what `matmul` takes as ``precision``."""

    dtype: str
    tolerance: float
    precision: str | None = None


PRECISIONS = {
    "float32": Precision("float32", 1e-5),
    "tf32": Precision("float32", 1e-3, "tf32"),
    "bfloat16": Precision("bfloat16", 3e-3),
    "float16": Precision("float16", 4e-4),
    "float64": Precision("float64", 1e-13),
    "fp8": Precision("float8_e4m3fn", 4e-3, "fp8"),
    "int8": Precision("int8", 0.0, "int32"),
}
"""Names of ``--dtypes`` for products. float8 and int8 take the second operand as [N, K]."""


def gemm(options: Options) -> Iterator[Row]:
    """Square products of each size and type."""
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
        if gp.dtype(PRECISIONS[name].dtype).itemsize > 2 and options.on_gpu and not options.dtypes:
            continue
        for k, n in layers[:2] if options.quick else layers:
            yield Row(f"gemv {name} {k}x{n}", "gemv", name, lambda k=k, n=n, name=name: _layer(options, k, n, name))  # type: ignore[misc]


def _precisions(options: Options) -> tuple[str, ...]:
    names = options.dtypes or (("bfloat16", "float16", "tf32", "float32", "int8") if options.on_gpu else ("float32",))
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown:
        raise ValueError(f"no product is measured in {unknown[0]!r}; choose from {', '.join(PRECISIONS)}")
    return (*names, "fp8") if options.fp8 and "fp8" not in names else tuple(names)


def _square(options: Options, n: int, name: str) -> Work:
    a, b = (options.normal((n, n), PRECISIONS[name].dtype) for _ in range(2))
    return _work(options, name, [(a, b.T if _takes_rows(name) else b)], 3 * a.nbytes)


def _layer(options: Options, k: int, n: int, name: str) -> Work:
    x = options.normal((ROWS, k), PRECISIONS[name].dtype)
    first = options.normal((n, k), PRECISIONS[name].dtype)
    weights = [first] + [first.copy() for _ in range(options.copies(first.nbytes) - 1)]
    return _work(options, name, [(x, w.T) for w in weights], first.nbytes + x.nbytes)


def _takes_rows(name: str) -> bool:
    return name in ("fp8", "int8")


def _work(options: Options, name: str, operands: list[tuple[GPUArray, GPUArray]], nbytes: int) -> Work:
    _, tolerance, precision = PRECISIONS[name]
    a, b = operands[0]
    (m, k), n = a.shape, b.shape[1]
    out = gp.matmul(a, b, precision=precision)
    return Work(
        calls=tuple(_ours(x, y, out, precision) for x, y in operands),
        peer=_peer(options, name, operands),
        error=product_error(a, b, out),
        tolerance=tolerance,
        nbytes=nbytes,
        flops=2 * m * n * k,
        variant=gp.explain(gp.matmul, a, b, precision=precision).variant,
    )


def _ours(a: GPUArray, b: GPUArray, out: GPUArray, precision: str | None) -> Call:
    return lambda: gp.matmul(a, b, precision=precision, out=out)


def _peer(options: Options, name: str, operands: list[tuple[GPUArray, GPUArray]]) -> tuple[Call, ...]:
    if not options.has_peer:
        return ()
    if not options.on_gpu:
        return tuple(_numpy(a, b) for a, b in operands) if name == "float32" else ()
    return options.tried(f"gemm {name}", lambda: tuple(_torch(options, name, a, b) for a, b in operands))


def _numpy(a: GPUArray, b: GPUArray) -> Call:
    x, y = a.to_numpy(), b.to_numpy()
    return lambda: x @ y


def _torch(options: Options, name: str, a: GPUArray, b: GPUArray) -> Call:
    torch = options.torch
    assert torch is not None
    # float8 crosses as bytes: not every version of DLPack knows it.
    x, y = (options.to_torch(z.view("uint8")).view(torch.float8_e4m3fn) if name == "fp8" else options.to_torch(z)
            for z in (a, b.T))  # fmt: skip
    y = y.T
    if name == "int8":
        return lambda: torch._int_mm(x, y)
    if name == "fp8":
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    result = torch.empty((a.shape[0], b.shape[1]), dtype=x.dtype, device="cuda")

    def run() -> Any:
        # Read when the product is queued, so that it holds for this call alone.
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        return torch.matmul(x, y, out=result)

    return run


def product_error(a: GPUArray, b: GPUArray, out: GPUArray) -> float:
    """Compare rows and columns spread over the result with float64."""
    m, n = out.shape
    rows, columns = (np.unique(np.linspace(0, size - 1, min(size, _CHECKED)).astype(np.int64)) for size in (m, n))
    left: Any = gp.take(a, gp.asarray(rows), axis=0).to_numpy().astype(np.float64)
    right: Any = gp.take(b.T, gp.asarray(columns), axis=0).to_numpy().astype(np.float64)
    part = gp.take(gp.take(out, gp.asarray(rows), axis=0), gp.asarray(columns), axis=1)
    return distance(part.to_numpy(), left @ right.T)
