"""What NumPy's ufuncs have besides a plain call: ``where`` and ``dtype``, `reduce`, `accumulate` and `outer`.

All of it is composed of the operators themselves; a plain call does not come here.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from functools import partial
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.array.creation import full
from pygpukit.dtypes import dtype as as_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise.plan import plan
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.operands import as_array
from pygpukit.ops.promotion import Input, can_cast
from pygpukit.ops.shape.arrays import check_cast

_REDUCTIONS = {
    "add": "sum", "mul": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
}  # fmt: skip
_SCANS = {"add": "cumsum", "mul": "cumprod"}
# Associative operators without a reduction of their own, and what each does to nothing: None where that is an error.
_IDENTITY: dict[str, Any] = {
    "bitwise_and": -1, "bitwise_or": 0, "bitwise_xor": 0, "logical_xor": False, "gcd": 0, "lcm": None, "hypot": 0,
    "logaddexp": -math.inf, "logaddexp2": -math.inf, "fmax": None, "fmin": None, "maximum": None, "minimum": None,
    "logical_and": True, "logical_or": False,
}  # fmt: skip


_CASTING = ("no", "equiv", "safe", "same_kind", "unsafe")


def extended(name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> GPUArray:
    """An operator called with more keywords than ``out`` and ``stream``.

    ``where`` is an array of bool: elements it does not name stay in ``out``, and are 0 without. ``dtype`` is the type
    that is computed in and of the result; ``casting`` says what may be converted to it, and of the result to ``out``.
    """
    out, stream = keywords.pop("out", None), keywords.pop("stream", None)
    mask, kind = keywords.pop("where", True), keywords.pop("dtype", None)
    casting = keywords.pop("casting", "same_kind")
    if type(out) is tuple and len(out) == 1:
        out = out[0]
    if keywords or TABLE[name].rule in ("where", "cast"):
        wrong = next(iter(keywords), "where")
        raise TypeError(f"{name}() got an unexpected keyword argument '{wrong}'")
    if out is not None and not isinstance(out, GPUArray):
        raise TypeError(f"{name}(): out must be a GPUArray, not {type(out).__name__}")
    if casting not in _CASTING:
        raise ValueError(f"casting must be one of {', '.join(map(repr, _CASTING))}, not {casting!r}")
    with stream if stream is not None else contextlib.nullcontext():
        if kind is not None:
            args = _converted(name, args, as_dtype(kind), casting)
        if out is not None and casting != "same_kind":
            own = plan(name, _inputs(args)).out
            check_cast(own, out.dtype, casting, f"{name}()")
            if own is not out.dtype:
                # Computed in its own type: only then is what is written converted.
                result = _native.apply(name, args)
                return _written(result, mask, out, name)
        if mask is True:
            return _native.apply(name, args, out)
        _check_mask(name, mask)
        result = _native.apply(name, args)
        if out is None:
            return _native.apply("where", (mask, result, False))
        if result.dtype is not out.dtype:
            plan(name, _inputs(args), out.dtype)
            result = result.astype(out.dtype)
        return _native.apply("where", (mask, result, out), out)


def _check_mask(name: str, mask: Any) -> None:
    if not isinstance(mask, GPUArray) or mask.dtype.name != "bool":
        got = mask.dtype.name if isinstance(mask, GPUArray) else type(mask).__name__
        raise TypeError(f"{name}(): where must be a GPUArray of bool, not {got}")


def _written(result: GPUArray, mask: Any, out: GPUArray, name: str) -> GPUArray:
    """Write a result of another type, where a mask says so."""
    if mask is True:
        return _native.apply("copy", (result,), out)
    _check_mask(name, mask)
    return _native.apply("where", (mask, result.astype(out.dtype), out), out)


def _inputs(args: tuple[Any, ...]) -> tuple[Input, ...]:
    from pygpukit.ops.elementwise.reference import input_of

    return tuple(x.dtype if isinstance(x, GPUArray) else input_of(x) for x in args)


def _converted(name: str, args: tuple[Any, ...], kind: DataType, casting: str) -> tuple[Any, ...]:
    """The operands in the types for which an operator computes in, and gives, ``kind``."""
    if plan(name, _inputs(args)).out is kind:
        return args
    try:
        is_there = plan(name, (kind,) * len(args)).out is kind
    except DTypeError:
        is_there = False
    if not is_there:
        raise DTypeError(f"{name}() computes nothing in {kind.name}: convert its result with astype")
    for x in args:
        if casting != "same_kind" and isinstance(x, GPUArray):
            check_cast(x.dtype, kind, casting, f"{name}()")
        elif isinstance(x, GPUArray) and not can_cast(x.dtype, kind):
            raise DTypeError(
                f"{name}(dtype={kind.name}): an operand of {x.dtype.name} would change its kind; convert it with astype"
            )
    return tuple(x.astype(kind, copy=False) if isinstance(x, GPUArray) else x for x in args)


def _array(function: Any, what: str, x: Any) -> GPUArray:
    return x if isinstance(x, GPUArray) else as_array(x, f"{function.__name__}.{what}()")


def _identity(name: str) -> Any:
    if name not in _IDENTITY:
        raise TypeError(
            f"{name} is not associative: it has no reduce or accumulate here, since their order would decide the result"
        )
    return _IDENTITY[name]


def reduce(function: Any, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False,
           initial: Any = None, where: Any = None) -> GPUArray:  # fmt: skip
    """Combine the elements along axes by the operator: ``add.reduce`` is a sum. ``axis`` None means all.

    Operators without a reduction of their own halve the axes again and again.
    """
    from pygpukit.ops.reduce.compositions import into
    from pygpukit.ops.reduce.layout import axes_of
    from pygpukit.ops.registry import functions

    name, x = function.__name__, _array(function, "reduce", array)
    where = None if where is True else where
    if _is_bool(function) and (initial is not None or name not in _REDUCTIONS):
        x = x.astype("bool", copy=False)
    if name in _REDUCTIONS and (dtype is None or name in _SCANS):
        options = {"dtype": dtype} if dtype is not None else {}
        if name.startswith("logical"):
            if initial is None:
                return functions()[_REDUCTIONS[name]](x, axis, out=out, keepdims=keepdims, where=where)  # type: ignore[no-any-return]
        else:
            return functions()[_REDUCTIONS[name]](  # type: ignore[no-any-return]
                x, axis, out=out, keepdims=keepdims, initial=initial, where=where, **options
            )
    identity, axes = _identity(name), axes_of(axis, x.ndim)
    if dtype is not None:
        x = x.astype(dtype, copy=False)
    if where is not None:
        if initial is None and identity is None:
            raise ValueError(f"{name}.reduce() has no identity: with where give initial, which stands for no elements")
        x = _native.apply("where", (where, x, identity if initial is None else initial))
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = [1 if i in axes else x.shape[i] for i in range(x.ndim) if keepdims or i not in axes]
    rows = x.transpose([*kept, *axes]).reshape([*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes)])
    result = _halved(function, rows, identity if initial is None else initial)
    if initial is not None:
        result = function(result, initial)
    return into(result.reshape(shape), out)


def _halved(function: Any, x: GPUArray, start: Any) -> GPUArray:
    """The last axis combined to one element: its halves with each other, until one is left."""
    n = x.shape[-1]
    if n == 0:
        if start is None and 0 not in x.shape[:-1]:
            raise ShapeError(f"{function.__name__}.reduce() of no elements has no value: an axis of 0 is reduced")
        return full(x.shape[:-1], 0 if start is None else start, x.dtype, device=x.device)
    while n > 1:
        half = n // 2
        result = function(x[..., :half], x[..., half : 2 * half])
        if n % 2:
            function(result[..., :1], x[..., n - 1 :], out=result[..., :1])
        x, n = result, half
    return x[..., 0]


def _is_bool(function: Any) -> bool:
    return bool(function.__name__.startswith("logical"))


def accumulate(function: Any, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> GPUArray:
    """All the partial results of `reduce` along an axis: ``add.accumulate`` is a cumulative sum."""
    from pygpukit.ops.reduce.compositions import into
    from pygpukit.ops.reduce.layout import axis_of
    from pygpukit.ops.registry import functions

    name, x = function.__name__, _array(function, "accumulate", array)
    axis = axis_of(axis, x.ndim)
    if name in _SCANS:
        return functions()[_SCANS[name]](x, axis, dtype, out=out)  # type: ignore[no-any-return]
    _identity(name)
    if dtype is not None:
        x = x.astype(dtype, copy=False)
    if _is_bool(function):
        x = x.astype("bool", copy=False)
    n, step = x.shape[axis], 1
    result = x.copy()
    # Each round every element takes in as many before it as it already stands for.
    while step < n:
        before, after = (x.narrow(axis, start, n - step) for start in (0, step))
        result = x.copy()
        function(before, after, out=result.narrow(axis, step, n - step))
        x, step = result, 2 * step
    return into(result, out)


def outer(function: Any, a: Any, b: Any, **keywords: Any) -> GPUArray:
    """The operator on every element of one array with every element of another: of shape ``a.shape + b.shape``."""
    if isinstance(a, GPUArray) and isinstance(b, GPUArray):
        a = a.reshape((*a.shape, *(1,) * b.ndim))
    return function(a, b, **keywords)  # type: ignore[no-any-return]


def _signature(function: Any) -> inspect.Signature:
    """What `inspect.signature` shows of an operator."""
    from pygpukit.ops.registry import OPERATORS, REQUIRED

    parameters = OPERATORS[function.__name__].parameters
    by_name: dict[str, Any] = {"out": None, "stream": None}
    if hasattr(function, "nin"):
        shown = [inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_ONLY) for p in parameters]
        by_name |= {"where": True, "dtype": None}
    else:
        either, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        firsts = [p.keyword_only for p in parameters]
        first = firsts.index(True) if True in firsts else len(firsts)
        shown = [inspect.Parameter(p.name, either if i < first else keyword,
                                   default=inspect.Parameter.empty if p.default is REQUIRED else p.default)
                 for i, p in enumerate(parameters)]  # fmt: skip
    shown += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v) for n, v in by_name.items()]
    return inspect.Signature(shown)


def attach(function: Any) -> Any:
    """Give the function of a row its methods."""
    if function.nin == 2:
        for method in (reduce, accumulate, outer):
            bound = partial(method, function)
            bound.__doc__ = method.__doc__
            setattr(function, method.__name__, bound)
    kind: Any = type(function)
    if "__signature__" not in vars(kind):
        kind.__signature__ = property(_signature)
    return function
