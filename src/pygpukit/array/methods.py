"""Methods of GPUArray that are written in Python, attached to the native class at import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array import bridge, creation, formatting, indexing
from pygpukit.array.creation import Shape, dimensions
from pygpukit.dtypes import DTypeLike, dtype, to_numpy_dtype


def _astype(self: GPUArray, dtype_: DTypeLike, *, copy: bool = True) -> GPUArray:
    """The array converted to another element type; the array itself when nothing changes and `copy` is False."""
    target = dtype(dtype_)
    if target is self.dtype and not copy:
        return self
    out = creation.empty(self.shape, target, device=self.device)
    return _native.apply("copy", (self,), out)


def _copy(self: GPUArray) -> GPUArray:
    """A contiguous copy."""
    if not self.is_contiguous:
        return _native.apply("copy", (self,))
    out = creation.empty(self.shape, self.dtype, device=self.device)
    _native.copy_dense(out, self)
    return out


def _contiguous(self: GPUArray) -> GPUArray:
    """The array itself when it is contiguous, else a contiguous copy."""
    return self if self.is_contiguous else _copy(self)


def _spread(shape: tuple[Any, ...]) -> Shape:
    # Both x.reshape(2, 3) and x.reshape((2, 3)) are usual.
    first: Shape = shape[0] if len(shape) == 1 else shape
    return first


def _reshape(self: GPUArray, *shape: Any) -> GPUArray:
    """The elements in a new shape: a view where strides allow it, else a copy. One dimension may be -1."""
    wanted = dimensions(_spread(shape))
    view = self._reshape(wanted)
    if view is None:
        view = _copy(self)._reshape(wanted)
        assert view is not None
    return view


def _view(self: GPUArray, *shape_or_dtype: Any) -> GPUArray:
    """The same memory in another shape (never a copy), or read as another element type."""
    if len(shape_or_dtype) == 1 and not isinstance(shape_or_dtype[0], int | tuple | list):
        return self._reinterpret(dtype(shape_or_dtype[0]))
    wanted = dimensions(_spread(shape_or_dtype))
    view = self._reshape(wanted)
    if view is None:
        raise ValueError(f"no view of strides {self.strides} has shape {tuple(wanted)}; use reshape(), which may copy")
    return view


def _transpose(self: GPUArray, *axes: Any) -> GPUArray:
    """The axes in another order, reversed by default; a view."""
    if not axes or axes == (None,):
        return self.T
    return self._permute(dimensions(_spread(axes)))


def _narrow(self: GPUArray, axis: int, start: int, length: int) -> GPUArray:
    """`length` elements from `start` along an axis; a view."""
    return self._slice(axis, start, length, 1)


def _slice_rows(self: GPUArray, start: int, stop: int) -> GPUArray:
    """Rows `start` to `stop`; a view."""
    return self._slice(0, start, max(stop - start, 0), 1)


def _item(self: GPUArray) -> Any:
    """The one element as a Python number; waits for it."""
    if self.size != 1:
        raise ValueError(f"item() needs an array of one element, not of {self.size}")
    return bridge.to_numpy(self).reshape(()).item()


def _tolist(self: GPUArray) -> Any:
    """The elements as nested lists of Python numbers."""
    return bridge.to_numpy(self).tolist()


def _bool(self: GPUArray) -> bool:
    if self.size != 1:
        raise ValueError(f"the truth of an array of {self.size} elements is ambiguous; use x.any() or x.all()")
    return bool(_item(self))


def _float(self: GPUArray) -> float:
    return float(_item(self))


def _int(self: GPUArray) -> int:
    return int(_item(self))


def _complex(self: GPUArray) -> complex:
    return complex(_item(self))


def _index(self: GPUArray) -> int:
    if self.dtype.kind not in "iu" or self.ndim:
        raise TypeError("only an integer array without dimensions can be used as an index")
    return int(_item(self))


def _iter(self: GPUArray) -> Iterator[GPUArray]:
    if self.ndim == 0:
        raise TypeError("iteration over an array without dimensions")
    return (self._select(0, i) for i in range(self.shape[0]))


def _format(self: GPUArray, spec: str) -> str:
    if not spec:
        return str(self)
    if self.ndim:
        raise TypeError(
            f"an array of shape {tuple(self.shape)} has no format {spec!r}: format an element, or print with "
            "numpy.array2string(x.to_numpy())"
        )
    return format(_item(self), spec)


def _array(self: GPUArray, *_args: Any, **_kwargs: Any) -> Any:
    raise TypeError("a GPUArray is not converted to NumPy silently; call to_numpy() to copy it to the host")


def _rebuild(host: np.ndarray[Any, Any], name: str) -> GPUArray:
    return bridge.from_numpy(host.view(to_numpy_dtype(name)))


def _reduce(self: GPUArray) -> tuple[Any, ...]:
    # Through raw unsigned bytes of the element's size: NumPy cannot pickle every ml_dtypes type by itself.
    raw = bridge.to_numpy(self).view(f"V{self.itemsize}")
    return _rebuild, (raw, self.dtype.name)


def _deepcopy(self: GPUArray, _memo: Any) -> GPUArray:
    return _copy(self)


_METHODS: dict[str, Any] = {
    "to_numpy": bridge.to_numpy,
    "astype": _astype,
    "copy": _copy,
    "clone": _copy,
    "contiguous": _contiguous,
    "reshape": _reshape,
    "view": _view,
    "transpose": _transpose,
    "narrow": _narrow,
    "slice_rows": _slice_rows,
    "fill": creation.fill,
    "item": _item,
    "tolist": _tolist,
    "__setitem__": indexing.setitem,
    "__iter__": _iter,
    "__repr__": formatting.describe,
    "__str__": formatting.text,
    "__bool__": _bool,
    "__float__": _float,
    "__int__": _int,
    "__complex__": _complex,
    "__format__": _format,
    "__index__": _index,
    "__array__": _array,
    "__reduce__": _reduce,
    "__copy__": _copy,
    "__deepcopy__": _deepcopy,
    # NumPy must hand mixed expressions to us instead of walking the array element by element.
    "__array_ufunc__": None,
}


def attach() -> None:
    """Put the methods on the native class."""
    for name, method in _METHODS.items():
        setattr(GPUArray, name, method)
