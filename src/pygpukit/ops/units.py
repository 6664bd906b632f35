"""Sources of the built-in kernels, and the list of all of them for ahead-of-time bundles."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def headers() -> dict[str, str]:
    """Return the headers every kernel may include, by the name used in ``#include``."""
    folder = resources.files("pygpukit.kernels") / "common"
    found = {f"pygpukit/{path.name}": path.read_text("ascii") for path in folder.iterdir() if path.name.endswith(".cuh")}
    return dict(sorted(found.items()))
