"""For pytest: ``pytest --pgk-check`` runs every kernel on the CPU device with the checks of ``jit(check=True)``."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: Any) -> None:
    """Add the option."""
    group = parser.getgroup("pygpukit")
    group.addoption(
        "--pgk-check",
        action="store_true",
        help="look for errors in every kernel the CPU device runs (sets PYGPUKIT_CHECK=1)",
    )


def pytest_configure(config: Any) -> None:
    """Ask for the checks before any device is opened; worker processes inherit it."""
    if config.getoption("--pgk-check"):
        os.environ["PYGPUKIT_CHECK"] = "1"
