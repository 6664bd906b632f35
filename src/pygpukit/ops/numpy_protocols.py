"""NumPy's functions on arrays: ``np.add(x, y)`` and ``np.sum(x)`` call the functions of the same names here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray

__all__ = ["array_function", "array_namespace", "array_ufunc"]

_PACKAGE = __name__.partition(".")[0]

# What NumPy's methods of ufuncs do, by the ufunc.
_REDUCTIONS = {
    "add": "sum",
    "logical_and": "all",
    "logical_or": "any",
    "maximum": "max",
    "minimum": "min",
    "multiply": "prod",
}
_COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
_SCANS = {"add": "cumsum", "maximum": "cummax", "minimum": "cummin", "multiply": "cumprod"}
# Keyword arguments of ufuncs that say what holds anyway.
_DEFAULTS: dict[str, Any] = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "dtype": None}

# Questions about an array that need no function of the package.
_ANSWERS: dict[str, Callable[..., Any]] = {
    "iscomplexobj": lambda x: x.dtype.kind == "c",
    "isrealobj": lambda x: x.dtype.kind != "c",
    "ndim": lambda a: a.ndim,
    "shape": lambda a: a.shape,
    "size": lambda a, axis=None: a.size if axis is None else a.shape[axis],
}


# Functions that were found, and types of operands that need no look at what else they can do.
_FOUND: dict[tuple[str, str], Callable[..., Any]] = {}
_CALLS: dict[np.ufunc, Callable[..., Any]] = {}
_NUMBERS = frozenset({GPUArray, bool, int, float, complex, *np.sctypeDict.values()})


def _namespace(path: str) -> ModuleType | None:
    """The module of the package for one of NumPy's: the package itself for ``numpy``."""
    parts = path.split(".")
    if parts[0] != "numpy" or len(parts) > 2:
        return None
    try:
        return importlib.import_module(".".join([_PACKAGE, *parts[1:]]))
    except ImportError:
        return None


def _find(name: str, path: str = "numpy") -> Callable[..., Any] | None:
    known = _FOUND.get((name, path))
    if known is not None:
        return known
    namespace = _namespace(path)
    if namespace is None or name not in getattr(namespace, "__all__", ()):
        return None
    found = getattr(namespace, name, None)
    if not callable(found):
        return None
    return _FOUND.setdefault((name, path), found)


def _missing(what: str, reason: str = "there is no such function in pygpukit") -> TypeError:
    return TypeError(
        f"{what} does not take a GPUArray: {reason}. Nothing is copied to the host silently; call to_numpy() first to "
        "use NumPy's"
    )


def array_ufunc(self: GPUArray, ufunc: np.ufunc, method: str, /, *inputs: Any, **kwargs: Any) -> Any:
    """Call the function of a ufunc's name: its value, its reduction or scan, or its outer product."""
    if not kwargs and method == "__call__":
        known = _CALLS.get(ufunc)
        if known is not None and all(type(value) in _NUMBERS for value in inputs):
            return known(*inputs)
    name = ufunc.__name__
    out = kwargs.pop("out", ())
    if any(_is_foreign(value) for value in (*inputs, *out)):
        return NotImplemented
    if any(isinstance(value, np.ndarray) for value in out):
        raise TypeError(
            f"numpy.{name}: the result of work on a GPUArray is not written to a NumPy array; convert that with "
            "pygpukit.from_numpy(), or the GPUArray with to_numpy()"
        )
    what = f"numpy.{name}" if method == "__call__" else f"numpy.{name}.{method}"
    options = {key: value for key, value in kwargs.items() if key not in _DEFAULTS or not _is_default(key, value)}
    if name in _COMPARISONS:
        # NumPy's scalars compare as arrays without axes.
        inputs = tuple(value[()] if isinstance(value, np.ndarray) and not value.ndim else value for value in inputs)
    if out:
        options["out"] = out[0] if len(out) == 1 else out
    target: Callable[..., Any] | None = None
    if method in ("__call__", "outer"):
        target = _find(name)
        if target is not None:
            _CALLS.setdefault(ufunc, target)
        unknown = [key for key in options if key != "out"]
        if unknown:
            raise _missing(what, f"the argument '{unknown[0]}' is not supported")
        if method == "outer" and target is not None:
            if len(inputs) != 2:
                raise TypeError(f"{what} takes two arrays, not {len(inputs)}")
            inputs = _outer(*inputs)
    elif method == "reduce":
        target = _find(_REDUCTIONS.get(name, ""))
    elif method == "accumulate":
        target = _find(_SCANS.get(name, ""))
    if method in ("reduce", "accumulate"):
        # The axis is 0 by default, where that of functions is None.
        options.setdefault("axis", 0)
    if target is None:
        raise _missing(what)
    return target(*inputs, **options)


def _is_default(key: str, value: Any) -> bool:
    return value is _DEFAULTS[key] or (isinstance(value, str) and value == _DEFAULTS[key])


def _is_foreign(value: Any) -> bool:
    """Is it of a library that handles ufuncs itself?"""
    return hasattr(type(value), "__array_ufunc__") and not isinstance(value, GPUArray | np.ndarray | np.generic)


def _outer(a: Any, b: Any) -> tuple[Any, Any]:
    if not isinstance(b, GPUArray) or not isinstance(a, GPUArray):
        return a, b
    return a.reshape(a.shape + (1,) * b.ndim), b


def array_function(
    self: GPUArray, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call the function of the same name in `pygpukit`, `pygpukit.fft` or `pygpukit.linalg`."""
    if not all(issubclass(kind, GPUArray | np.ndarray) for kind in types):
        return NotImplemented
    name, path = func.__name__, func.__module__
    target = _find(name, path)
    if target is None and path == "numpy":
        target = _ANSWERS.get(name)
    if target is None:
        raise _missing(f"{path}.{name}")
    return target(*args, **kwargs)


def array_namespace(self: GPUArray, *, api_version: str | None = None) -> ModuleType:
    """The module with the functions of the Python array API standard."""
    try:
        return importlib.import_module(f"{_PACKAGE}.array_api")
    except ImportError:
        return importlib.import_module(_PACKAGE)
