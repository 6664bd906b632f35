"""Methods of GPUArray that are written in Python, attached to the native class at import."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array import bridge, creation, exchange, formatting, indexing
from pygpukit.array.creation import Shape, dimensions
from pygpukit.array.flat import Flat
from pygpukit.dtypes import DTypeLike, dtype, to_numpy_dtype


def astype(self: GPUArray, dtype_: DTypeLike, *, copy: bool = True) -> GPUArray:
    """The array converted to another element type; the array itself when nothing changes and `copy` is False."""
    target = dtype(dtype_)
    if target is self.dtype and not copy:
        return self
    return _native.apply("copy", (self,), _native.empty(list(self.shape), target, self.device))


def copy(self: GPUArray, order: str = "C") -> GPUArray:
    """A contiguous copy; with `order` ``"F"`` the transpose of one."""
    if order not in ("C", "K"):
        check_order(order, "copy()")
        if order == "F" or (self.flags.f_contiguous and not self.is_contiguous):
            return copy(self.T).T
    if not self.is_contiguous:
        return _native.apply("copy", (self,))
    out = _native.empty(list(self.shape), self.dtype, self.device)
    _native.copy_dense(out, self)
    return out


def contiguous(self: GPUArray) -> GPUArray:
    """The array itself when it is contiguous, else a contiguous copy."""
    return self if self.is_contiguous else copy(self)


def _spread(shape: tuple[Any, ...]) -> Shape:
    # Both x.reshape(2, 3) and x.reshape((2, 3)) are usual.
    first: Shape = shape[0] if len(shape) == 1 else shape
    return first


def check_order(order: str, what: str) -> None:
    """Refuse what is no order of elements."""
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"{what}: order must be one of 'C', 'F', 'A', or 'K', not {order!r}")


def reshape(self: GPUArray, *shape: Any, order: str = "C", copy: bool | None = None) -> GPUArray:
    """The elements in a new shape: a view where strides allow it, else a copy. One dimension may be -1.

    With `order` ``"F"`` the first index changes fastest; ``"A"`` means that only where memory is laid out so. `copy` is
    as in NumPy: True copies always, False never.
    """
    wanted = dimensions(_spread(shape))
    if order not in ("C", None):
        check_order(order, "reshape()")
        if order == "K":
            raise ValueError("reshape(): order 'K' is not permitted for reshaping")
        if order == "F" or (self.flags.f_contiguous and not self.is_contiguous):
            turned = reshape(self.T, wanted[::-1], copy=copy)
            return turned.T
    view = None if copy else self._reshape(wanted)
    if view is None:
        if copy is False:
            raise ValueError(
                f"no view of strides {self.strides} has shape {tuple(wanted)}; allow a copy with copy=None"
            )
        view = self.copy()._reshape(wanted)
        assert view is not None
    return view


def view(self: GPUArray, *shape_or_dtype: Any) -> GPUArray:
    """The same memory in another shape (never a copy), or read as another element type."""
    if len(shape_or_dtype) == 1 and not isinstance(shape_or_dtype[0], int | tuple | list):
        return self._reinterpret(dtype(shape_or_dtype[0]))
    wanted = dimensions(_spread(shape_or_dtype))
    view = self._reshape(wanted)
    if view is None:
        raise ValueError(f"no view of strides {self.strides} has shape {tuple(wanted)}; use reshape(), which may copy")
    return view


def transpose(self: GPUArray, *axes: Any) -> GPUArray:
    """The axes in another order, reversed by default; a view."""
    if not axes or axes == (None,):
        return self.T
    wanted = normalize_axis_tuple(dimensions(_spread(axes)), self.ndim, allow_duplicate=True)
    return self._permute([int(i) for i in wanted])


def narrow(self: GPUArray, axis: int, start: int, length: int) -> GPUArray:
    """`length` elements from `start` along an axis; a view."""
    return self._slice(axis, start, length, 1)


def slice_rows(self: GPUArray, start: int, stop: int) -> GPUArray:
    """Rows `start` to `stop`; a view."""
    return self._slice(0, start, max(stop - start, 0), 1)


def item(self: GPUArray, *args: Any) -> Any:
    """One element as a Python number; waits for it.

    The only one, that with a number in row-major order (``x.item(7)``), or that with an index per axis.
    """
    if not args:
        if self.size != 1:
            raise ValueError(f"item() needs an array of one element, not of {self.size}; name one with item(index)")
        host = np.empty(1, to_numpy_dtype(self.dtype))
        _native.read_buffer(self, host.view(np.uint8))
        return host.item()
    index = tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args
    numbers = [operator.index(i) for i in index]
    if len(numbers) == 1 and self.ndim != 1:
        flat = numbers[0]
        if not -self.size <= flat < self.size:
            raise IndexError(f"index {flat} is out of range for an array of {self.size} elements")
        numbers = [int(i) for i in np.unravel_index(flat % self.size, self.shape)]
    if len(numbers) != self.ndim:
        raise ValueError(f"item() needs an index per axis: {self.ndim}, not {len(numbers)}")
    return bridge.to_numpy(self[tuple(numbers)]).item()


def tolist(self: GPUArray) -> Any:
    """The elements as nested lists of Python numbers."""
    return bridge.to_numpy(self).tolist()


def tobytes(self: GPUArray, order: Any = "C") -> bytes:
    """The elements as bytes, in row-major order; with `order` ``"F"`` in column-major order."""
    return bridge.to_numpy(self).tobytes(order)


def tofile(self: GPUArray, fid: Any, sep: str = "", format: str = "%s") -> None:
    """Write the raw elements to a file, or with `sep` as text; `pygpukit.fromfile` reads them."""
    bridge.to_numpy(self).tofile(fid, sep, format)


def _set_flat(self: GPUArray, value: Any) -> None:
    Flat(self)[...] = value


def _bool(self: GPUArray) -> bool:
    if self.size != 1:
        raise ValueError(f"the truth of an array of {self.size} elements is ambiguous; use x.any() or x.all()")
    return bool(item(self))


def _number(self: GPUArray) -> Any:
    if self.size != 1:
        raise TypeError(f"an array of {self.size} elements is no number; name an element, as x[0]")
    return item(self)


def _float(self: GPUArray) -> float:
    return float(_number(self))


def _int(self: GPUArray) -> int:
    return int(_number(self))


def _complex(self: GPUArray) -> complex:
    return complex(_number(self))


def _index(self: GPUArray) -> int:
    if self.dtype.kind not in "iu" or self.ndim:
        raise TypeError("only an integer array without dimensions can be used as an index")
    return int(item(self))


def _iter(self: GPUArray) -> Iterator[GPUArray]:
    if self.ndim == 0:
        raise TypeError("iteration over an array without dimensions")
    return (self._select(0, i) for i in range(self.shape[0]))


def _array(self: GPUArray, *_args: Any, **_kwargs: Any) -> Any:
    raise TypeError("a GPUArray is not converted to NumPy silently; call to_numpy() to copy it to the host")


def _rebuild(host: np.ndarray[Any, Any], name: str) -> GPUArray:
    return bridge.from_numpy(host.view(to_numpy_dtype(name)))


def _reduce(self: GPUArray) -> tuple[Any, ...]:
    # Through raw unsigned bytes of the element's size: NumPy cannot pickle every ml_dtypes type by itself.
    raw = bridge.to_numpy(self).view(f"V{self.itemsize}")
    return _rebuild, (raw, self.dtype.name)


def _deepcopy(self: GPUArray, _memo: Any) -> GPUArray:
    return copy(self)


def _format(self: GPUArray, spec: str) -> str:
    if self.ndim == 0:
        return format(item(self), spec)
    if spec:
        raise TypeError(
            f"the format {spec!r} is for a number, and this array has {self.ndim} dimensions; print to_numpy() with "
            "numpy.array2string"
        )
    return str(self)


def _part(self: GPUArray, part: int) -> GPUArray:
    if self.dtype.kind == "c":
        return self._part(part)
    view = self[...] if part == 0 else creation.zeros((), self.dtype, device=self.device)._broadcast_to(self.shape)
    if part:
        view.setflags(write=False)
    return view


def _set_part(self: GPUArray, part: int, value: Any) -> None:
    if part and self.dtype.kind != "c":
        raise TypeError(f"an array of {self.dtype.name} has no imaginary part to set")
    indexing.setitem(_part(self, part), ..., value)


def _matrix_transpose(self: GPUArray) -> GPUArray:
    if self.ndim < 2:
        raise ValueError(f"mT needs at least two axes, and the array has {self.ndim}")
    return self._permute([*range(self.ndim - 2), self.ndim - 1, self.ndim - 2])


_METHODS: dict[str, Any] = {
    "to_numpy": bridge.to_numpy,
    "to_device": exchange.to_device,
    "astype": astype,
    "copy": copy,
    "clone": copy,
    "contiguous": contiguous,
    "reshape": reshape,
    "view": view,
    "transpose": transpose,
    "narrow": narrow,
    "slice_rows": slice_rows,
    "fill": creation.fill,
    "item": item,
    "tolist": tolist,
    "tobytes": tobytes,
    "tofile": tofile,
    "flat": property(Flat, _set_flat, doc="The elements in row-major order, for reading and writing."),
    "__setitem__": indexing.setitem,
    "__iter__": _iter,
    "__repr__": formatting.describe,
    "__str__": formatting.text,
    "__bool__": _bool,
    "__float__": _float,
    "__int__": _int,
    "__complex__": _complex,
    "__index__": _index,
    "__array__": _array,
    "__format__": _format,
    "mT": property(_matrix_transpose, doc="The last two axes exchanged; a view."),
    "real": property(
        lambda self: _part(self, 0),
        lambda self, value: _set_part(self, 0, value),
        doc="The real parts; a view.",
    ),
    "imag": property(
        lambda self: _part(self, 1),
        lambda self, value: _set_part(self, 1, value),
        doc="The imaginary parts: a view of complex arrays, read-only zeros of others.",
    ),
    "__dlpack__": exchange.dlpack,
    "__dlpack_device__": exchange.dlpack_device,
    "__cuda_array_interface__": property(exchange.cuda_array_interface),
    "__reduce__": _reduce,
    "__copy__": copy,
    "__deepcopy__": _deepcopy,
}


def attach() -> None:
    """Put the methods on the native class."""
    for name, method in _METHODS.items():
        setattr(GPUArray, name, method)
