"""sliding_window_view: every window of an array, as a view."""

from __future__ import annotations

from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import dimensions
from pygpukit.ops.registry import export
from pygpukit.ops.shape.arrays import axes_of, need


@export
def sliding_window_view(x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
                        ) -> GPUArray:  # fmt: skip
    """Every window of a shape as a read-only view: the axes of the windows are the last ones.

    Parameters
    ----------
    x : GPUArray
    window_shape : int or sequence of int
        Elements along each axis.
    axis : int or sequence of int, optional
        The axes; all by default.
    subok : bool, optional
        Accepted for NumPy's sake.
    writeable : bool, optional
        Refused: elements of several windows are the same.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.sliding_window_view(gp.asarray([1, 2, 3, 4]), 3).tolist()
    [[1, 2, 3], [2, 3, 4]]
    """
    view = need(x, "sliding_window_view()")
    if writeable:
        raise ValueError("sliding_window_view(): windows share elements, so they are not written; copy them first")
    lengths = dimensions(window_shape)
    if any(n < 0 for n in lengths):
        raise ValueError(f"sliding_window_view(): window_shape must not be negative, but is {tuple(lengths)}")
    axes = range(view.ndim) if axis is None else axes_of(axis, view.ndim, repeated=True)
    if len(axes) != len(lengths):
        raise ValueError(f"sliding_window_view(): {len(lengths)} lengths of windows for {len(axes)} axes; give as many")
    for at, n in zip(axes, lengths, strict=True):
        if n > view.shape[at]:
            raise ValueError(f"sliding_window_view(): a window of {n} is longer than axis {at} of {view.shape[at]}")
        view = view._windows(at, n)
    view = view[...]
    view.setflags(write=False)
    return view
