"""The CUDA sources that travel with the package, as text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pygpukit.jit.headers import builtin_headers
from pygpukit.ops.launch import Unit

_KERNELS = Path(__file__).resolve().parent.parent / "kernels"


@cache
def read(name: str) -> str:
    """Return the text of a kernel file, ``"gemm/simt.cu"`` for example."""
    return (_KERNELS / name).read_text("ascii")


def headers() -> dict[str, str]:
    """Return the headers every built-in kernel may include, by the name used in ``#include``."""
    return dict(builtin_headers(with_c_library=False))


def instance(file: str, lines: Sequence[str], entries: tuple[str, ...], architectures: str = "80") -> Unit:
    """Return a kernel file with lines that instantiate its templates; it is named by its first entry."""
    return Unit(entries[0], read(file) + "\n".join(lines) + "\n", entries, architectures)
