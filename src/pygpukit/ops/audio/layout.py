"""What the audio operators share: element types, contiguous arguments, and variants that copy first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.registry import OPERATORS, Variant

REALS = ("float32", "float64")


def real_input(p: Problem, name: str, ndim: int = 1) -> Tensor:
    """Return an array that must be float32 or float64 and have at least so many axes.

    Raises
    ------
    DTypeError, ShapeError
        If it is not.
    """
    x = p[name]
    if x.dtype.name not in REALS:
        raise DTypeError(f"{p.name}: '{name}' is {x.dtype.name}; it takes float32 and float64: convert with astype")
    if x.ndim < ndim:
        raise ShapeError(f"{p.name}: '{name}' has {x.ndim} axes; it needs at least {ndim}")
    return x


def same_type(p: Problem, name: str, kind: DataType) -> Tensor:
    """Return an array that must be of a type.

    Raises
    ------
    DTypeError
        If it is not.
    """
    x = p[name]
    if x.dtype is not kind:
        raise DTypeError(f"{p.name}: '{name}' is {x.dtype.name}, where {kind.name} is needed: convert with astype")
    return x


def dense(p: Problem) -> str | None:
    """Why an array does not lie as the kernels read it; None if all do."""
    for name, tensor in p.inputs.items():
        if not (tensor.is_contiguous() and tensor.is_aligned(tensor.dtype.itemsize)):
            return f"'{name}' is not contiguous"
    return None if all(t.is_contiguous() for t in p.outputs) else "an out is not contiguous"


def real_types(types: Sequence[str]) -> list[DataType]:
    """Return the types of kernels among element types."""
    return [dtype(name) for name in types if name in REALS]


def on_numpy(function: Callable[..., Any], options: Callable[[Problem], dict[str, Any]]) -> Variant:
    """Return the variant of the CPU device: a reference that returns its results."""

    def host(p: Problem) -> Callable[..., None]:
        chosen, count = options(p), len(p.outputs)

        def run(*values: Any) -> None:
            made = function(*values[:-count], **chosen)
            for out, value in zip(values[-count:], made if isinstance(made, tuple) else (made,), strict=True):
                np.copyto(out, value)

        return run

    return Variant("NumPy", "run_to_run", lambda p: None, host=host)


def copies_first() -> Variant:
    """Return the variant that calls the operator again with contiguous copies."""

    def compose(p: Problem) -> Callable[..., None]:
        name, parameters = p.name, OPERATORS[p.name].parameters
        options = {q.name: p.options[q.name] for q in parameters if q.kind == "choice"}
        count = sum(q.kind != "choice" for q in parameters)

        def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
            from pygpukit.ops.audio import rows

            values = [x.contiguous() if hasattr(x, "contiguous") else x for x in given[:count]]
            made = getattr(rows, name.removeprefix("audio_"))(*values, **options)
            for out, value in zip(results, made if isinstance(made, tuple) else (made,), strict=True):
                out[...] = value

        return run

    return Variant("contiguous copies", "batch_invariant", lambda p: None, compose=compose)
