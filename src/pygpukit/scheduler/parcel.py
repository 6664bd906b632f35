"""What travels between the process of a scheduler and those of its tasks: calls, results and exceptions, pickled."""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import to_numpy
from pygpukit.errors import TaskProcessError

__all__ = ["RemoteError", "pack_call", "pack_error", "pack_result", "unpack", "unpack_error"]

_PROTOCOL = pickle.HIGHEST_PROTOCOL


class RemoteError(Exception):
    """Where an exception was raised in the process of a task; the cause of that exception here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _CallPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """A decorated function is found under its name only through what decorates it."""
        if isinstance(obj, FunctionType):
            found: Any = sys.modules.get(obj.__module__)
            for part in obj.__qualname__.split("."):
                found = getattr(found, part, None)
            if found is not obj and getattr(found, "__wrapped__", None) is obj:
                return getattr, (found, "__wrapped__")
        return NotImplemented


class _ResultPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """The device memory of an array ends with its process."""
        if isinstance(obj, GPUArray):
            host = to_numpy(obj)
            # Through raw bytes, because NumPy cannot pickle every element type by itself.
            return _as_dtype, (host.view(f"V{host.itemsize}"), str(obj.dtype.name))
        return NotImplemented


def _as_dtype(raw: Any, name: str) -> Any:
    from pygpukit.dtypes import to_numpy_dtype

    return raw.view(to_numpy_dtype(name))


def _dump(pickler: type[pickle.Pickler], value: Any) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer, _PROTOCOL).dump(value)
    return buffer.getvalue()


def _why(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def pack_call(name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A call, ready to travel.

    Raises
    ------
    TypeError
        If the function or an argument cannot travel; the text says which, why, and what to do.
    """
    label = getattr(fn, "__qualname__", repr(fn))
    where = f"task '{name}' cannot run in a process of its own"
    if getattr(fn, "__module__", None) == "__main__" and not os.path.isfile(_main_file()):
        raise TypeError(
            f"{where}: its function {label} was typed in, and the new process has nowhere to import it from; "
            "put it in a module"
        )
    try:
        _dump(_CallPickler, fn)
    except Exception as error:
        raise TypeError(
            f"{where}: its function {label} cannot be pickled ({_why(error)}); "
            "define it with def at the top level of a module"
        ) from error
    for which, value in [*((f"{i}", v) for i, v in enumerate(args)), *((f"'{k}'", v) for k, v in kwargs.items())]:
        try:
            _dump(_CallPickler, value)
        except Exception as error:
            raise TypeError(
                f"{where}: argument {which} of {label}, a {type(value).__name__}, cannot be pickled ({_why(error)}); "
                "pass plain values or arrays, and make the rest in the function"
            ) from error
    return _dump(_CallPickler, (fn, tuple(args), dict(kwargs)))


def _main_file() -> str:
    return str(getattr(sys.modules.get("__main__"), "__file__", None) or "")


def pack_result(name: str, value: Any) -> bytes:
    """A result, ready to travel; arrays of the device become NumPy arrays.

    Raises
    ------
    TypeError
        If it cannot travel.
    """
    try:
        return _dump(_ResultPickler, value)
    except Exception as error:
        raise TypeError(
            f"task '{name}' returned a {type(value).__name__} that cannot be pickled ({_why(error)}); "
            "return plain values or arrays"
        ) from error


def unpack(parcel: bytes) -> Any:
    """What was packed; only ever by a process of ours."""
    return pickle.loads(parcel)


def pack_error(error: BaseException) -> bytes:
    """An exception and its traceback, ready to travel."""
    text = "".join(traceback.format_exception(error))
    # Frames cannot travel.
    bare = error.with_traceback(None)
    try:
        parcel = _dump(_ResultPickler, bare)
        pickle.loads(parcel)
    except Exception:
        told = TaskProcessError(f"{type(error).__name__}: {error} (this exception cannot be pickled)")
        parcel = pickle.dumps(told, _PROTOCOL)
    return pickle.dumps((parcel, text), _PROTOCOL)


def unpack_error(parcel: bytes) -> BaseException:
    """The exception, with its traceback as the cause."""
    inner, text = pickle.loads(parcel)
    try:
        error: BaseException = pickle.loads(inner)
    except Exception as failure:
        error = TaskProcessError(f"the exception of a task cannot be read here: {_why(failure)}")
    error.__cause__ = RemoteError(text)
    return error
