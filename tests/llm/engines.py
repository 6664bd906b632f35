"""Engines with few pages whose steps a test makes itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pygpukit.llm import LLM, budget
from pygpukit.llm.loop import EngineLoop


def few_pages(monkeypatch: pytest.MonkeyPatch, pages: int, host_pages: int) -> None:
    """Let engines that are made from now on have so many pages."""
    plan = budget.Budget(weights=0, workspace=0, page=16 * 512, pages=pages, host_pages=host_pages)
    monkeypatch.setattr(budget, "plan_pages", lambda *args: plan)


class Stepped:
    """An engine without a thread."""

    def __init__(self, path: Path, ahead: bool = False, **options: Any) -> None:
        self.llm = LLM(path, **options)
        self.loop: EngineLoop = self.llm._loop
        self.loop.ahead = ahead
        # A thread that is there already is not started.
        self.loop._thread = threading.current_thread()

    @property
    def busy(self) -> bool:
        return bool(self.loop._branches or self.loop._new or self.loop._touched)

    def step(self) -> None:
        if self.busy and self.loop._wait():
            self.loop._step()

    def run(self, most: int = 10_000) -> None:
        for _ in range(most):
            if not self.busy:
                break
            self.step()
        assert not self.busy, "the engine does not come to an end"
        if self.loop._drawn is not None:
            self.loop._finish()

    def pages(self) -> int:
        """Pages that are in use."""
        stats = self.loop.scheduler.cache.stats()
        return int(stats["used"] + stats["on_host"])


@contextmanager
def stepped(path: Path, ahead: bool = False, **options: Any) -> Iterator[Stepped]:
    made = Stepped(path, ahead, **options)
    try:
        yield made
    finally:
        made.llm.close()
