"""From a call of a registered operator to its plan: infer the results, choose a variant, translate its launches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray, Kernel
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DeviceError, NvrtcNotFoundError
from pygpukit.ops.launch import Argument, Integer, KernelLaunch, Number, Pointer, Product, Struct, TensorMapOf, Unit
from pygpukit.ops.operands import as_array
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.registry import OPERATORS, REQUIRED, STRENGTH, Operator, Variant, level, promises
from pygpukit.ops.size import Trace

__all__ = ["bind", "choose", "describe", "install", "kernel", "problem_of"]


def problem_of(
    operator: Operator,
    values: Sequence[Any],
    outputs: Sequence[GPUArray],
    device: Device,
    sm_count: int,
    determinism: str | None = None,
) -> Problem:
    """Return the problem of a call, its results inferred; the level of determinism is the thread's unless given.

    Variables are made in the order in which the native side passes them: arrays, results that were given, numbers, SMs.
    """
    kind, arch = device.kind, ""
    if kind != "cpu":
        from pygpukit.jit.compiler import target_of

        arch, image = target_of(device)
        kind = "cuda" if image == "cubin" else "emulated"
    trace = Trace()
    problem = Problem(operator.name, kind, arch, trace, lambda unit: _loadable(unit, device))
    problem.determinism = level(determinism or _native.current_determinism())
    numbers = []
    count = 0
    for parameter, value in zip(operator.parameters, values, strict=True):
        if parameter.kind in ("array", "optional"):
            tensor = None if value is None else _tensor(trace, "input", count, value)
            problem.arrays[parameter.name] = tensor
            count += value is not None
            continue
        if parameter.kind == "operand":
            is_array = isinstance(value, GPUArray)
            problem.arrays[parameter.name] = _tensor(trace, "input", count, value) if is_array else None
            count += is_array
        problem.options[parameter.name] = value
        if parameter.kind == "number":
            numbers.append((parameter.name, value))
    given = [_tensor(trace, "output", i, out) for i, out in enumerate(outputs)]
    for name, value in numbers:
        problem.integers[name] = trace.variable(value if isinstance(value, int) else 0)
    problem.sm_count = trace.variable(sm_count)
    problem.requested = tuple(t.dtype for t in given)
    results = operator.infer(problem)
    made = [Tensor("output", i, r.dtype, r.shape) for i, r in enumerate(results)]
    for i, (tensor, result) in enumerate(zip(given, results, strict=False)):
        if tensor.ndim == len(result.shape) and tensor.dtype is result.dtype:
            made[i] = Tensor("output", i, result.dtype, result.shape, tensor.strides, tensor.alignment)
    problem.outputs = tuple(made)
    return problem


def _tensor(trace: Trace, role: str, index: int, array: GPUArray) -> Tensor:
    item = array.itemsize
    shape = [trace.variable(n) for n in array.shape]
    strides = [trace.variable(s // item) for s in array.strides]
    return Tensor(role, index, array.dtype, shape, strides, trace.variable(array._alignment))


def bind(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return a value per parameter, as a call with these arguments binds them.

    Raises
    ------
    TypeError
        If they do not fit the parameters.
    """
    shape = inspect.Signature(
        [
            inspect.Parameter(
                p.name,
                inspect.Parameter.KEYWORD_ONLY if p.keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if p.default is REQUIRED else p.default,
            )
            for p in operator.parameters
        ]
    )
    try:
        bound = shape.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{operator.name}(): {error}") from None
    bound.apply_defaults()
    return list(bound.arguments.values())


def choose(operator: Operator, problem: Problem) -> tuple[Variant, list[tuple[Variant, str]]]:
    """Return the variant that runs, and the reasons of those before it.

    It is the first that accepts and promises what is asked. Where none of those that accept does, it is the first of
    the strongest. The CPU device's functions are its only ones, so nothing is asked of them.

    Raises
    ------
    DeviceError
        If none accepts.
    """
    refused: list[tuple[Variant, str]] = []
    weaker: list[tuple[Variant, int]] = []
    for variant in operator.variants:
        reason = variant.refuses(problem)
        if reason is None:
            if variant.host is not None or promises(variant.determinism, problem.determinism):
                return variant, refused
            weaker.append((variant, len(refused)))
            reason = f"is {variant.determinism}, and {problem.determinism} is asked"
        refused.append((variant, reason))
    if weaker:
        # The first of the strongest: `min` keeps the order of equals.
        variant, before = min(weaker, key=lambda one: STRENGTH.index(one[0].determinism))
        return variant, refused[:before]
    reasons = "; ".join(f"{v.name}: {reason}" for v, reason in refused)
    raise DeviceError(f"{operator.name}(): no variant runs this call ({reasons})")


def _plan(
    name: str, values: Sequence[Any], outputs: Sequence[GPUArray], device: Device, sm_count: int, determinism: str
) -> Any:
    """The native side's question: a plan for this call and all for which its guards hold."""
    operator = OPERATORS[name]
    problem = problem_of(operator, values, outputs, device, sm_count, determinism)
    variant, _ = choose(operator, problem)
    return _translate(operator, variant, problem, device)


def _translate(operator: Operator, variant: Variant, problem: Problem, device: Device) -> Any:
    trace = problem.trace
    outputs = [(t.dtype, [trace.node(n) for n in t.shape]) for t in problem.outputs]
    scratch: list[Any] = []
    steps: list[Any] = []
    host = compose = None
    if variant.host is not None:
        host = variant.host(problem)
    elif variant.compose is not None:
        compose = variant.compose(problem)
    else:
        assert variant.launch is not None
        work = variant.launch(problem)
        scratch = [(trace.node(s.tensor.nbytes), s.counters) for s in work.scratch]
        numbers = [p.name for p in operator.parameters if p.kind == "number"]
        steps = [
            _product(trace, step) if isinstance(step, Product) else _step(trace, numbers, step, device)
            for step in work.launches
        ]
    names = list(problem.inputs)
    written = [names.index(name) for name in operator.updates if name in names]
    return _native.launch_plan(
        operator.name,
        len(names),
        trace.variables,
        trace.nodes,
        list(trace.guards),
        outputs,
        scratch,
        steps,
        host,
        compose,
        written,
    )


def _step(trace: Trace, numbers: Sequence[str], step: KernelLaunch, device: Device) -> Any:
    def three(sizes: Sequence[Any]) -> list[int]:
        return [trace.node(x) for x in (*sizes, 1, 1)[:3]]

    arguments: list[tuple[Any, ...]] = []
    for i, argument in enumerate(step.arguments):
        arguments += _argument(trace, numbers, argument, i)
    attributes = (list(step.cluster), step.cooperative, step.programmatic)
    return (
        kernel(step.unit, step.entry, device), three(step.grid), three(step.block), trace.node(step.shared), attributes,
        arguments,
    )  # fmt: skip


def _product(trace: Trace, step: Product) -> Any:
    sizes = (*step.sizes, *step.ld, *step.batch_strides, *(t.alignment for t in (step.a, step.b, step.out)))
    nodes = [trace.node(x) for x in sizes]
    inputs, target = [step.a.index, step.b.index], (step.out.role, step.out.index)
    room = step.workspace
    workspace = None if room is None else (room.index, int(room.nbytes))
    return (inputs, target, step.a.dtype, step.out.dtype, list(step.transposed), step.tf32, nodes, workspace)


def _argument(trace: Trace, numbers: Sequence[str], argument: Argument, parameter: int = 0) -> list[tuple[Any, ...]]:
    if isinstance(argument, Pointer):
        return [(argument.tensor.role, argument.tensor.index, argument.access)]
    if isinstance(argument, Integer):
        return [(f"i{argument.bits}", trace.node(argument.value))]
    if isinstance(argument, Number):
        return [("number", numbers.index(argument.parameter), argument.dtype)]
    if isinstance(argument, TensorMapOf):
        return [_tensor_map(trace, argument, parameter)]
    if isinstance(argument, Struct):
        members = [m for member in argument.members for m in _argument(trace, numbers, member)]
        return [("align", 8), *members]
    return [("bytes", argument)]


def _tensor_map(trace: Trace, argument: TensorMapOf, parameter: int) -> tuple[Any, ...]:
    # The hardware's first dimension is the array's last, whose stride is one element.
    t, item = argument.tensor, argument.tensor.dtype.itemsize
    dims = [trace.node(n) for n in reversed(t.shape)]
    strides = [trace.node(s * item) for s in reversed(t.strides[:-1])]
    sizes = (dims, strides, list(reversed(argument.box)))
    return ("map", t.role, t.index, argument.access, t.dtype, argument.swizzle, argument.l2, sizes, parameter)


_kernels: WeakValueDictionary[tuple[int, str, str], Kernel] = WeakValueDictionary()


def kernel(unit: Unit, entry: str, device: Device) -> Kernel:
    """Return a built-in kernel loaded on a device; plans that use it share it.

    Raises
    ------
    NvrtcNotFoundError
        If it is in no bundle and cannot be compiled.
    """
    from pygpukit.ops.dispatch import builtin_kernels

    key = (device._number, unit.name, entry)
    found = _kernels.get(key)
    if found is None:
        loaded = builtin_kernels(unit.name, unit.source, unit.entries, device)
        for name, made in zip(unit.entries, loaded, strict=True):
            _kernels[(device._number, unit.name, name)] = made
            if name == entry:
                found = made
    assert found is not None
    return found


_missing: set[tuple[int, str]] = set()


def _loadable(unit: Unit, device: Device) -> str | None:
    """None if the kernels of a source can be had on a device, else what is missing."""
    key = (device._number, unit.name)
    if key not in _missing:
        try:
            kernel(unit, unit.entries[0], device)
            return None
        except NvrtcNotFoundError:
            # Searching again costs more than what runs instead.
            _missing.add(key)
    return f"'{unit.name}' is in no bundle here, and there is no NVRTC to compile it"


def _normalise(name: str, parameter: str, value: Any) -> Any:
    """An argument of a type the native side does not know, as one it does."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, np.dtype | type):
        return dtype(value)
    if isinstance(value, list | tuple):
        return tuple(_normalise(name, parameter, x) if not isinstance(x, int | str) else x for x in value)
    raise TypeError(f"{name}(): '{parameter}' must not be of type {type(value).__name__} ({value!r})")


def _operand(name: str, parameter: str, value: Any, device: Device | None) -> GPUArray:
    """What stands in place of an array, as one."""
    (wanted,) = (p.number_type for p in OPERATORS[name].parameters if p.name == parameter)
    if wanted and isinstance(value, int | float) and not isinstance(value, bool):
        value = to_numpy_dtype(wanted).type(value)
    return as_array(value, f"{name}() for '{parameter}'", device)


def install() -> None:
    """Give the native operators of the registry their planner."""
    _native.set_planner(_plan, _normalise, _operand)


def describe(function: Callable[..., Any] | str) -> Operator:
    """Return the operator of a public function or a name.

    Raises
    ------
    TypeError
        If it is none.
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    operator: Operator | None = OPERATORS.get(name)
    if operator is None:
        raise TypeError(f"{function!r} is no operator of the registry; use one of {', '.join(sorted(OPERATORS))}")
    return operator
