"""The CUDA sources that travel with the package, as text."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def read(name: str) -> str:
    """Return the text of a kernel file, ``"matmul.cu"`` for example."""
    return (resources.files("pygpukit.kernels") / name).read_text("ascii")


@cache
def headers() -> dict[str, str]:
    """Return the headers every kernel may include, by the name used in ``#include``."""
    folder = resources.files("pygpukit.kernels") / "common"
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(".cuh"))
    return {f"pygpukit/{name}": read(f"common/{name}") for name in names}
