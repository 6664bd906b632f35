"""The CUDA sources that travel with the package, as text."""

from __future__ import annotations

from functools import cache
from importlib import resources

from pygpukit.jit.headers import builtin_headers


@cache
def read(name: str) -> str:
    """Return the text of a kernel file, ``"matmul.cu"`` for example."""
    return (resources.files("pygpukit.kernels") / name).read_text("ascii")


def headers() -> dict[str, str]:
    """Return the headers every built-in kernel may include, by the name used in ``#include``."""
    return dict(builtin_headers(with_c_library=False))
