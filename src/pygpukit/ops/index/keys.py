"""Keys of indexing by NumPy's rules: which view of an array index arrays and masks pick from, and in which order."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.ops.index.layout import of_one_type

_KINDS = "only integers, slices, Ellipsis, None and arrays of integers or bool index an array"


class Places(NamedTuple):
    """A key of index arrays.

    Attributes
    ----------
    view
        The array after the key's slices and ints, indexed axes side by side.
    before
        Axes of the view before the indexed ones.
    indices
        Arrays of one type and of the shape `block`, one per indexed axis; none for a key with True or False alone.
    block
        The shape they have together, in place of the indexed axes.
    """

    view: GPUArray
    before: int
    indices: list[GPUArray]
    block: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what the key names."""
        shape = self.view.shape
        return (*shape[: self.before], *self.block, *shape[self.before + len(self.indices) :])


class Masked(NamedTuple):
    """A key with one mask, and slices and ints only beside it.

    Attributes
    ----------
    view
        The array after the key's slices.
    before
        Axes of the view before those of the mask.
    mask
        bool, on the device.
    known
        How many of its elements are True, where the mask came from the host.
    """

    view: GPUArray
    before: int
    mask: GPUArray
    known: int | None


_SLICE, _NEW, _DOTS, _INT, _FLAG, _ARRAY, _MASK = range(7)
"""Parts of a key: a slice, None, Ellipsis, an integer, True or False, an index array, a mask."""


def _classified(item: Any) -> tuple[int, Any]:
    """Return what a part of a key is, and the part as slice, None, Ellipsis, int, bool, NumPy array or GPUArray.

    Raises
    ------
    IndexError
        If it is none.
    """
    kind = type(item)
    if kind is slice:
        return _SLICE, item
    if kind is GPUArray:
        letter = item.dtype.kind
        if letter in "iu":
            return _ARRAY, item
        if letter != "b":
            raise IndexError(f"an array used as an index must be of integers or bool, not of {item.dtype.name}")
        return (_MASK, item) if item.ndim else (_FLAG, bool(item))
    if kind is int:
        return _INT, item
    if item is None:
        return _NEW, item
    if item is Ellipsis:
        return _DOTS, item
    return _other(item)


def _other(item: Any) -> tuple[int, Any]:
    """Return what a part of a key of less usual types is."""
    if isinstance(item, bool | np.bool_):
        return _FLAG, bool(item)
    if isinstance(item, int | np.integer):
        return _INT, int(item)
    if isinstance(item, str | bytes):
        raise IndexError(f"{_KINDS}, not {type(item).__name__}")
    if not isinstance(item, np.ndarray):
        try:
            return _INT, operator.index(item)
        except TypeError:
            pass
        if not isinstance(item, Sequence) and not hasattr(item, "__array__"):
            raise IndexError(f"{_KINDS}, not {type(item).__name__}")
        made = np.asarray(item)
        # Of no elements no type is known.
        item = made.astype(np.intp) if made.size == 0 and isinstance(item, Sequence) else made
    if item.dtype.kind not in "biu":
        raise IndexError(f"an array used as an index must be of integers or bool, not of {item.dtype}")
    if item.ndim == 0:
        return _classified(item.item())
    return (_MASK if item.dtype.kind == "b" else _ARRAY), item


def checked(host: np.ndarray[Any, Any], length: int, axis: int, device: Device) -> GPUArray:
    """Return indices from the host on the device.

    Raises
    ------
    IndexError
        If one is out of range.
    """
    if host.size:
        low, high = host.min(), host.max()
        if low < -length or high >= length:
            wrong = int(low if low < -length else high)
            raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {length}")
    small = device.kind != "cpu" and length <= 2**31 - 1
    return from_numpy(host.astype(np.int32 if small else np.int64, copy=False), device=device)


def _check_mask(x: GPUArray, mask: Any, axis: int) -> None:
    for d, (own, length) in enumerate(zip(mask.shape, x.shape[axis:], strict=False)):
        if own != length:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis + d}; size of axis is {length} but size "
                f"of corresponding boolean axis is {own}"
            )


def places_of(mask: Any) -> list[Any]:
    """Return where a mask is True, an index array per axis: of one on the device this reads their number."""
    if isinstance(mask, GPUArray):
        from pygpukit.ops.index.masks import nonzero

        return list(nonzero(mask))
    return list(np.nonzero(mask))


def parse(x: GPUArray, key: Any) -> GPUArray | Places | Masked:
    """Return what a key names: a view, places by index arrays, or elements by a mask.

    Raises
    ------
    IndexError
        If the array has no such elements.
    """
    parts = [_classified(item) for item in key] if isinstance(key, tuple) else [_classified(key)]
    taken = dots = picks = arrays = 0
    for kind, part in parts:
        if kind == _DOTS:
            dots += 1
        elif kind >= _INT:
            picks += 1
            arrays += kind >= _FLAG
            taken += part.ndim if kind == _MASK else kind != _FLAG
        elif kind == _SLICE:
            taken += 1
    if dots > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if taken > x.ndim:
        raise IndexError(f"too many indices for array: array is {x.ndim}-dimensional, but {taken} were indexed")
    if not arrays:
        return _view(x, [part for _, part in parts])
    if not dots:
        parts.append((_DOTS, Ellipsis))

    basic: list[Any] = []
    indexed: list[tuple[int, int, Any]] = []  # Position in the view, axis of x, index array.
    block: tuple[int, ...] = ()
    mask: Any = None
    before = -1
    axis = position = last = 0
    is_separated = False
    for number, (kind, part) in enumerate(parts):
        if kind >= _INT:
            is_separated |= before >= 0 and number != last + 1
            before, last = (position if before < 0 else before), number
        if kind == _DOTS:
            rest = x.ndim - taken
            basic += [slice(None)] * rest
            position += rest
            axis += rest
        elif kind in (_SLICE, _NEW):
            basic.append(part)
            position += 1
            axis += kind == _SLICE
        elif kind == _INT:
            # Checked where the view is made.
            basic.append(part)
            axis += 1
        elif kind == _FLAG:
            block = _joint(block, (int(part),))
        elif kind == _ARRAY:
            indexed.append((position, axis, part))
            block = _joint(block, part.shape)
            basic.append(slice(None))
            position += 1
            axis += 1
        else:
            _check_mask(x, part, axis)
            if picks == 1:
                mask = part
            else:
                found = places_of(part)
                indexed += [(position + d, axis + d, array) for d, array in enumerate(found)]
                block = _joint(block, found[0].shape)
            basic += [slice(None)] * part.ndim
            position += part.ndim
            axis += part.ndim
    view = _view(x, basic)
    if mask is not None:
        if isinstance(mask, GPUArray):
            return Masked(view, before, mask, None)
        return Masked(view, before, from_numpy(mask, device=x.device), int(np.count_nonzero(mask)))
    if is_separated:
        before = 0
    moved = [at for at, *_ in indexed]
    if moved and moved != list(range(before, before + len(moved))):
        others = [at for at in range(view.ndim) if at not in moved]
        view = view._permute([*others[:before], *moved, *others[before:]])
    return Places(view, before, _uploaded(x, indexed, block), block)


def _view(x: GPUArray, key: Sequence[Any]) -> GPUArray:
    view = x._basic(tuple(key))
    assert view is not None
    return view


def _joint(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that index arrays have together."""
    if a == b or not a:
        return b
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        raise IndexError(
            f"shape mismatch: index arrays of shapes {tuple(a)} and {tuple(b)} do not broadcast together"
        ) from None


def _uploaded(x: GPUArray, indexed: Sequence[tuple[int, int, Any]], block: tuple[int, ...]) -> list[GPUArray]:
    """Return index arrays on the device, of one type, broadcast to one shape."""
    made = []
    for _, axis, array in indexed:
        length = x.shape[axis]
        if length == 0 and 0 not in block:
            raise IndexError(f"index is out of bounds for axis {axis} with size 0")
        made.append(array if isinstance(array, GPUArray) else checked(array, length, axis, x.device))
    if not made:
        return made
    return [index if index.shape == block else index._broadcast_to(block) for index in of_one_type(made)]
