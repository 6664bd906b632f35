"""Views under the names of ``numpy.lib.stride_tricks``."""

from pygpukit.ops.shape.views import broadcast_arrays, broadcast_shapes, broadcast_to
from pygpukit.ops.shape.windows import sliding_window_view

__all__ = ["broadcast_arrays", "broadcast_shapes", "broadcast_to", "sliding_window_view"]
