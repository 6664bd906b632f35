"""NumPy's ``lib``, as far as programs use it: ``lib.stride_tricks``."""

from pygpukit.lib import stride_tricks

__all__ = ["stride_tricks"]
