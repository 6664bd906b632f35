"""The elementwise operators as functions: one built-in function per row of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops import dispatch
from pygpukit.ops.elementwise.aliases import ALIASES
from pygpukit.ops.elementwise.plan import THREADS, Plan, plan
from pygpukit.ops.elementwise.table import TABLE, Row
from pygpukit.ops.elementwise.ufunc_methods import attach
from pygpukit.ops.launch import KernelLaunch, Launch, Unit
from pygpukit.ops.problem import Problem, Result, broadcast
from pygpukit.ops.promotion import Input
from pygpukit.ops.registry import Operator, Parameter, Variant, docstring, export, register
from pygpukit.ops.size import ceil_div, hint
from pygpukit.ops.units import ALL_TYPES

# Parameter names that say more than x, y, z.
_PARAMETERS = {
    "atan2": ("y", "x"),
    "finite_or": ("x", "nan", "inf"),
    "geglu": ("gate", "up"),
    "geglu_erf": ("gate", "up"),
    "heaviside": ("x", "at_zero"),
    "nextafter": ("x", "towards"),
    "clamp": ("x", "low", "high"),
    "copysign": ("x", "sign"),
    "left_shift": ("x", "bits"),
    "lerp": ("start", "end", "weight"),
    "pow": ("base", "exponent"),
    "right_shift": ("x", "bits"),
    "swiglu": ("gate", "up"),
    "where": ("condition", "x", "y"),
}


def supported(row: Row) -> tuple[DataType, ...]:
    """Return the types the operator is defined for with all inputs of that type."""
    found = []
    for name in ALL_TYPES:
        try:
            plan(row.name, same(row, dtype(name)))
        except DTypeError:
            continue
        found.append(dtype(name))
    return tuple(found)


def same(row: Row, kind: DataType) -> tuple[DataType, ...]:
    """Return the types of the inputs where all are of one type; a condition is bool."""
    return (dtype("bool"), kind, kind) if row.rule == "where" else (kind,) * row.arity


def _input_of(value: Any) -> Input:
    from pygpukit.ops.elementwise.reference import input_of

    return input_of(value)


def _unit(made: Plan) -> Unit:
    return Unit(made.entry, made.source, (made.entry, made.entry_nd))


class _Row:
    """What the registry asks of one row. Calls are packed natively (rust/pygpukit-core/src/elementwise.rs)."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def inputs(self, p: Problem) -> tuple[Input, ...]:
        return tuple(t.dtype if t is not None else _input_of(p.options[name]) for name, t in p.arrays.items())

    def plan(self, p: Problem) -> Plan:
        return plan(self.row.name, self.inputs(p), p.requested[0] if p.requested else None)

    def infer(self, p: Problem) -> list[Result]:
        shape: tuple[Any, ...] = ()
        for tensor in p.inputs.values():
            joint = broadcast(shape, tensor.shape)
            if joint is None:
                shapes = ", ".join(str(tuple(hint(n) for n in t.shape)) for t in p.inputs.values())
                raise ShapeError(f"{self.row.name}: shapes {shapes} cannot be broadcast together")
            shape = joint
        return [Result(shape, self.plan(p).out)]

    def is_loadable(self, p: Problem) -> str | None:
        return p.missing(_unit(self.plan(p)))

    def is_dense(self, p: Problem) -> str | None:
        for tensor in (p.out, *p.inputs.values()):
            if tensor.size == 1 and tensor is not p.out:
                continue
            if (
                not tensor.is_contiguous()
                or tensor.ndim != p.out.ndim
                or any(a != b for a, b in zip(tensor.shape, p.out.shape, strict=True))
            ):
                return "an operand is neither dense nor a single element"
        return self.is_loadable(p)

    def launch_dense(self, p: Problem) -> Launch:
        made = self.plan(p)
        blocks = ceil_div(p.out.size, made.per_block)
        return Launch((KernelLaunch(_unit(made), made.entry, (blocks,), (THREADS,), ()),))

    def launch_strided(self, p: Problem) -> Launch:
        made = self.plan(p)
        blocks = ceil_div(p.out.size, made.per_block_nd)
        return Launch((KernelLaunch(_unit(made), made.entry_nd, (blocks,), (THREADS,), ()),))

    def host(self, p: Problem) -> Callable[..., Any]:
        from pygpukit.ops.elementwise.reference import prepare

        return prepare(self.row.name, self.inputs(p), self.plan(p).out)[0]

    def casts(self, p: Problem) -> Callable[..., Any]:
        return lambda results, given: dispatch.apply_by_casts(self.row.name, given, results[0])

    def units(self, types: Sequence[str]) -> Iterator[Unit]:
        targets = [dtype(name) for name in types]
        for kind in supported(self.row):
            if kind.name in types:
                for target in targets if self.row.rule == "cast" else (None,):
                    yield _unit(plan(self.row.name, same(self.row, kind), target))

    def reference(self, *arrays: Any) -> Any:
        from pygpukit.ops.elementwise import reference

        made = plan(self.row.name, tuple(_input_of(x) for x in arrays))
        out = np.empty(np.broadcast_shapes(*map(np.shape, arrays)), to_numpy_dtype(made.out))
        reference.apply(self.row.name, arrays, out)
        return out

    def flops(self, p: Problem) -> int:
        return self.row.flops * hint(p.out.size)


def _operator(name: str) -> Callable[..., GPUArray]:
    row = _Row(TABLE[name])
    operands = _PARAMETERS.get(name, ("x", "y", "z")[: row.row.arity])
    summary = row.row.doc + "\n\nThe operands broadcast; numbers take the arrays' type where it can hold them."
    made = Operator(
        name=name,
        parameters=tuple(Parameter(operand, "operand") for operand in operands),
        infer=row.infer,
        reference=row.reference,
        variants=(
            Variant("dense", "batch_invariant", row.is_dense, launch=row.launch_dense, units=row.units),
            Variant("strided", "batch_invariant", row.is_loadable, launch=row.launch_strided),
            Variant("NumPy", "batch_invariant", lambda p: None, host=row.host),
            Variant("casts around equal types", "batch_invariant", lambda p: None, compose=row.casts),
        ),
        doc=summary,
        flops=row.flops,
        public=row.row.public,
    )
    signature = f"{', '.join(operands)}, /, *, out=None, stream=None, where=True, dtype=None"
    function = register(made, attach(_native.operator(name, row.row.arity, signature, docstring(made))))
    for alias in ALIASES.get(name, ()):
        export(function, alias)
    return function


dispatch.install()

add = _operator("add")
sub = _operator("sub")
mul = _operator("mul")
div = _operator("div")
floor_divide = _operator("floor_divide")
mod = _operator("mod")
fmod = _operator("fmod")
pow = _operator("pow")
neg = _operator("neg")
abs = _operator("abs")
sign = _operator("sign")
reciprocal = _operator("reciprocal")
square = _operator("square")
lerp = _operator("lerp")
gcd = _operator("gcd")
lcm = _operator("lcm")
maximum = _operator("maximum")
minimum = _operator("minimum")
fmax = _operator("fmax")
fmin = _operator("fmin")
clamp = _operator("clamp")
where = _operator("where")
relu = _operator("relu")
copysign = _operator("copysign")
signbit = _operator("signbit")
heaviside = _operator("heaviside")
nextafter = _operator("nextafter")
exp = _operator("exp")
exp2 = _operator("exp2")
expm1 = _operator("expm1")
log = _operator("log")
log2 = _operator("log2")
log10 = _operator("log10")
log1p = _operator("log1p")
logaddexp = _operator("logaddexp")
logaddexp2 = _operator("logaddexp2")
sqrt = _operator("sqrt")
rsqrt = _operator("rsqrt")
cbrt = _operator("cbrt")
hypot = _operator("hypot")
sin = _operator("sin")
cos = _operator("cos")
tan = _operator("tan")
asin = _operator("asin")
acos = _operator("acos")
atan = _operator("atan")
atan2 = _operator("atan2")
sinh = _operator("sinh")
cosh = _operator("cosh")
tanh = _operator("tanh")
asinh = _operator("asinh")
acosh = _operator("acosh")
atanh = _operator("atanh")
erf = _operator("erf")
erfc = _operator("erfc")
sigmoid = _operator("sigmoid")
silu = _operator("silu")
gelu = _operator("gelu")
gelu_erf = _operator("gelu_erf")
relu2 = _operator("relu2")
swiglu = _operator("swiglu")
geglu = _operator("geglu")
geglu_erf = _operator("geglu_erf")
floor = _operator("floor")
ceil = _operator("ceil")
trunc = _operator("trunc")
round = _operator("round")
equal = _operator("equal")
not_equal = _operator("not_equal")
less = _operator("less")
less_equal = _operator("less_equal")
greater = _operator("greater")
greater_equal = _operator("greater_equal")
logical_and = _operator("logical_and")
logical_or = _operator("logical_or")
logical_xor = _operator("logical_xor")
logical_not = _operator("logical_not")
isnan = _operator("isnan")
isinf = _operator("isinf")
isfinite = _operator("isfinite")
bitwise_and = _operator("bitwise_and")
bitwise_or = _operator("bitwise_or")
bitwise_xor = _operator("bitwise_xor")
invert = _operator("invert")
left_shift = _operator("left_shift")
right_shift = _operator("right_shift")
bitwise_count = _operator("bitwise_count")
real = _operator("real")
imag = _operator("imag")
conj = _operator("conj")
mantissa = _operator("mantissa")
exponent = _operator("exponent")
fraction = _operator("fraction")
scalb = _operator("scalb")
finite_or = _operator("finite_or")
round_scaled = _operator("round_scaled")

_operator("copy")
