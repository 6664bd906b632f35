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


def _classified(item: Any) -> Any:
    """Return one part of a key as slice, None, Ellipsis, int, bool, NumPy array or GPUArray.

    Raises
    ------
    IndexError
        If it is none.
    """
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, bool | np.bool_):
        return bool(item)
    if isinstance(item, int | np.integer):
        return int(item)
    if isinstance(item, GPUArray):
        kind = item.dtype.kind
        if kind not in "biu":
            raise IndexError(f"an array used as an index must be of integers or bool, not of {item.dtype.name}")
        return bool(item) if kind == "b" and item.ndim == 0 else item
    if isinstance(item, str | bytes):
        raise IndexError(f"{_KINDS}, not {type(item).__name__}")
    if not isinstance(item, np.ndarray):
        try:
            return operator.index(item)
        except TypeError:
            pass
        if not isinstance(item, Sequence) and not hasattr(item, "__array__"):
            raise IndexError(f"{_KINDS}, not {type(item).__name__}")
        made = np.asarray(item)
        # Of no elements no type is known.
        item = made.astype(np.intp) if made.size == 0 and isinstance(item, Sequence) else made
    if item.dtype.kind not in "biu":
        raise IndexError(f"an array used as an index must be of integers or bool, not of {item.dtype}")
    return item.item() if item.ndim == 0 else item


def _is_mask(item: Any) -> bool:
    if isinstance(item, GPUArray):
        return item.dtype.kind == "b"
    return isinstance(item, np.ndarray) and item.dtype.kind == "b"


def _axes_of(item: Any) -> int:
    """Return how many axes of the array a part of a key takes."""
    return item.ndim if _is_mask(item) else 0 if item is None or item is Ellipsis or isinstance(item, bool) else 1


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
                f"boolean index did not match indexed array along axis {axis + d}; size of axis is {length} but size of "
                f"corresponding boolean axis is {own}"
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
    parts = [_classified(item) for item in (key if isinstance(key, tuple) else (key,))]
    taken = sum(map(_axes_of, parts))
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if taken > x.ndim:
        raise IndexError(f"too many indices for array: array is {x.ndim}-dimensional, but {taken} were indexed")
    if not any(isinstance(part, bool | np.ndarray | GPUArray) for part in parts):
        view = x._basic(tuple(parts))
        assert view is not None
        return view
    if not dots:
        parts.append(Ellipsis)
    only_mask = sum(isinstance(part, int | np.ndarray | GPUArray) for part in parts) == 1

    basic: list[Any] = []
    indexed: list[tuple[int, int, int, Any]] = []  # Axis of the view, axis and length in x, index array.
    shapes: list[tuple[int, ...]] = []
    order: list[bool] = []
    mask: Any = None
    before = axis = position = 0
    for part in parts:
        picks = isinstance(part, int | np.ndarray | GPUArray)
        if picks and not any(order):
            before = position
        order.append(picks)
        if part is Ellipsis:
            rest = x.ndim - taken
            basic += [slice(None)] * rest
            position, axis = position + rest, axis + rest
        elif not picks:
            basic.append(part)
            position, axis = position + 1, axis + (part is not None)
        elif isinstance(part, bool):
            shapes.append((int(part),))
        elif isinstance(part, int):
            # Checked where the view is made.
            basic.append(part)
            axis += 1
        else:
            if _is_mask(part):
                _check_mask(x, part, axis)
                mask = part
            arrays = [part] if not _is_mask(part) else [None] * part.ndim if only_mask else places_of(part)
            for array in arrays:
                if array is not None:
                    indexed.append((position, axis, x.shape[axis], array))
                    shapes.append(tuple(array.shape))
                basic.append(slice(None))
                position, axis = position + 1, axis + 1
    view = x._basic(tuple(basic))
    assert view is not None
    if only_mask and mask is not None:
        if isinstance(mask, GPUArray):
            return Masked(view, before, mask, None)
        return Masked(view, before, from_numpy(mask, device=x.device), int(np.count_nonzero(mask)))
    try:
        block = np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " ".join(map(str, shapes))
        raise IndexError(
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {listed}"
        ) from None
    if _is_separated(order):
        before = 0
    moved = [at for at, *_ in indexed]
    others = [at for at in range(view.ndim) if at not in moved]
    permutation = [*others[:before], *moved, *others[before:]]
    if permutation != list(range(view.ndim)):
        view = view._permute(permutation)
    return Places(view, before, _uploaded(indexed, block, x.device), block)


def _is_separated(order: Sequence[bool]) -> bool:
    """Is there a part of another kind between those that pick?"""
    first, last = order.index(True), len(order) - order[::-1].index(True)
    return not all(order[first:last])


def _uploaded(indexed: Sequence[tuple[int, int, int, Any]], block: tuple[int, ...], device: Device) -> list[GPUArray]:
    made = []
    for _, axis, length, array in indexed:
        if length == 0 and 0 not in block:
            raise IndexError(f"index is out of bounds for axis {axis} with size 0")
        index = array if isinstance(array, GPUArray) else checked(array, length, axis, device)
        made.append(index)
    if not made:
        return []
    return [index if index.shape == block else index._broadcast_to(block) for index in of_one_type(made)]
