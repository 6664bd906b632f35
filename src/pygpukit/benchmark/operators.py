"""Section ``ops``: every operator of the registry that says what to time, and the elementwise ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.benchmark.work import Call, Options, Row, Work, distance
from pygpukit.ops.registry import Case, Operator, load

QUICK = ("add", "exp", "gelu", "sum", "argmax", "cumsum", "softmax")
_CHECKED = 1 << 22
_PEERS: dict[str, Callable[..., Any]] = {
    "softmax": lambda torch, x: torch.softmax(x, -1),
    "layernorm": lambda torch, x, gamma, *beta: torch.nn.functional.layer_norm(x, gamma.shape, gamma, *beta),
    "rmsnorm": lambda torch, x, gamma: torch.nn.functional.rms_norm(x, gamma.shape, gamma),
}
"""Operators of torch that are called in another way."""


def ops(options: Options) -> Iterator[Row]:
    """A row per problem an operator names, and one per elementwise operator."""
    names = QUICK if options.quick else tuple(load())
    for name in names:
        operator = load()[name]
        for i, case in enumerate(_cases(operator, options)):
            kind = next(iter(case.arrays.values()))[0]
            if options.dtypes and kind not in options.dtypes:
                continue
            label = " ".join([name, kind, "x".join(map(str, next(iter(case.arrays.values()))[1]))])
            label += "".join(f" {key}={value}" for key, value in case.options.items())
            yield Row(
                f"op {label}" if i == 0 or case.options else f"op {label} #{i}",
                "ops", "", lambda operator=operator, case=case: _work(options, operator, case),  # type: ignore[misc]
            )  # fmt: skip


def _cases(operator: Operator, options: Options) -> tuple[Case, ...]:
    if not operator.public:
        return ()
    if operator.timed:
        return operator.timed if options.on_gpu else tuple(_smaller(case) for case in operator.timed)
    arrays = [p.name for p in operator.parameters if p.kind == "operand"]
    if not arrays or len(arrays) != len(operator.parameters):
        return ()
    n = options.sizes[0] if options.sizes else (1 << 28 if options.on_gpu else 1 << 22) // len(arrays)
    for kind in ("float32", "int32", "complex64"):
        case = Case({name: (kind, (n,)) for name in arrays})
        try:
            getattr(gp, operator.name)(*(gp.ones(1, dtype=kind) for _ in arrays))
        except gp.DTypeError:
            continue
        return (case,)
    return ()


def _smaller(case: Case) -> Case:
    """The case with its first axis cut, for a device without a GPU."""
    axes = max(len(shape) for _, shape in case.arrays.values())
    arrays = {
        name: (kind, (max(1, shape[0] // 64), *shape[1:]) if len(shape) == axes else shape)
        for name, (kind, shape) in case.arrays.items()
    }
    return Case(arrays, case.options)


def _work(options: Options, operator: Operator, case: Case) -> Work:
    call = getattr(gp, operator.name)
    arrays = {name: options.normal(shape, kind) for name, (kind, shape) in case.arrays.items()}
    result = call(*arrays.values(), **case.options)
    made = result if isinstance(result, tuple) else (result,)
    report = gp.explain(call, *arrays.values(), **case.options)
    return Work(
        calls=(lambda: call(*arrays.values(), **case.options),),
        peer=_peer(options, operator, arrays, case),
        error=_error(operator, arrays, case, made),
        tolerance=max(1e-6, 4 * operator.tolerance.get(made[0].dtype.name, 0.0)),
        nbytes=report.bytes,
        flops=0,
        variant=report.variant,
    )


def _error(operator: Operator, arrays: dict[str, GPUArray], case: Case, made: tuple[Any, ...]) -> float:
    """Compare with the reference; of large problems the first part is computed once more for that."""
    size = max(x.size for x in arrays.values())
    if size > _CHECKED:
        axes = max(x.ndim for x in arrays.values())
        rows = max(x.shape[0] for x in arrays.values() if x.ndim == axes)
        kept = max(1, rows * _CHECKED // size)
        arrays = {name: x[:kept] if x.ndim == axes else x for name, x in arrays.items()}
        result = getattr(gp, operator.name)(*arrays.values(), **case.options)
        made = result if isinstance(result, tuple) else (result,)
    wanted = operator.reference(*(x.to_numpy() for x in arrays.values()), **case.options)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    return max(distance(_numbers(x.to_numpy()), _numbers(y)) for x, y in zip(made, wanted, strict=True))


def _numbers(x: Any) -> Any:
    """NaN and infinities as numbers, so that a logarithm of negative numbers can be compared."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        x = np.stack([x.real, x.imag])
    return np.nan_to_num(x.astype(np.float64), nan=-1.0, posinf=2.0, neginf=-2.0)


def _peer(options: Options, operator: Operator, arrays: dict[str, GPUArray], case: Case) -> tuple[Call, ...]:
    if not options.has_peer:
        return ()
    if options.torch is None:
        if options.on_gpu:
            return ()
        host = [x.to_numpy() for x in arrays.values()]
        return (lambda: operator.reference(*host, **case.options),)
    torch = options.torch
    function = partial(_PEERS[operator.name], torch) if operator.name in _PEERS else None
    function = function or getattr(torch, operator.name, None) or getattr(torch.nn.functional, operator.name, None)
    if function is None:
        return ()
    tensors = [options.to_torch(x) for x in arrays.values()]
    given = {("dim" if key == "axis" else key): value for key, value in case.options.items()}
    try:
        function(*tensors, **given)
    except Exception:
        return ()  # torch has a function of this name that means something else
    return (lambda: function(*tensors, **given),)
