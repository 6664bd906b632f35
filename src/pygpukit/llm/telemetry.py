"""What an engine counts for monitoring systems: requests, tokens and latencies, by tenant."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygpukit.llm.outputs import FinishReason
    from pygpukit.llm.scheduler import Branch, Scheduler
    from pygpukit.llm.tenants import Tenant

__all__ = ["BOUNDS", "Figures", "Histogram", "Telemetry", "live_engines"]

# Upper bounds of latencies in seconds: a step of a small model takes a part of a millisecond, a long reply minutes.
BOUNDS = tuple(float(f"{digit}e{power}") for power in range(-4, 3) for digit in (1, 2.5, 5))

_numbers = itertools.count()
_lock = threading.Lock()
_live: weakref.WeakSet[Telemetry] = weakref.WeakSet()


class Histogram:
    """Latencies by the bounds that they are at most.

    Examples
    --------
    >>> latencies = Histogram()
    >>> latencies.observe(0.003)
    >>> latencies.observe(0.004)
    >>> [(bound, count) for bound, count in latencies.cumulative() if count][0], round(latencies.sum, 3)
    ((0.005, 2), 0.007)
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count a latency."""
        self.counts[bisect.bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """Return how many were at most each bound; the last one is infinite."""
        return list(zip((*BOUNDS, float("inf")), itertools.accumulate(self.counts), strict=True))


@dataclasses.dataclass(slots=True)
class Figures:
    """What one tenant's requests have come to.

    Attributes
    ----------
    tenant
    prompt_tokens, generation_tokens
    prefix_queries, prefix_hits
        Tokens of prompts that were looked up in the prefix cache, and found.
    drafts, draft_tokens, accepted_tokens
        Guesses of speculation: how often, their tokens, and those that were right.
    finished
        Replies by the reason for their end.
    first_token, inter_token, queue, total
        Latencies: from the request to its first token, between tokens, to its first step, to its end.
    """

    tenant: Tenant
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    finished: dict[str, int] = dataclasses.field(default_factory=dict)
    first_token: Histogram = dataclasses.field(default_factory=Histogram)
    inter_token: Histogram = dataclasses.field(default_factory=Histogram)
    queue: Histogram = dataclasses.field(default_factory=Histogram)
    total: Histogram = dataclasses.field(default_factory=Histogram)


class Telemetry:
    """The figures of an engine, which its thread writes and others read.

    Parameters
    ----------
    scheduler : Scheduler
        What runs and waits.

    Attributes
    ----------
    name : str
        Of the model.
    number : int
        Of the engine in this process.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.name, self.number = "", next(_numbers)
        self._scheduler = scheduler
        self._tenants: dict[str, Figures] = {}

    def publish(self, name: str) -> None:
        """Let exporters find the engine, under its model's name."""
        self.name = name
        with _lock:
            _live.add(self)

    def withdraw(self) -> None:
        """Let exporters forget the engine."""
        with _lock:
            _live.discard(self)

    def _of(self, branch: Branch) -> Figures:
        tenant = branch.tenant
        found = self._tenants.get(tenant.name)
        return self._tenants.setdefault(tenant.name, Figures(tenant)) if found is None else found

    def tenants(self) -> dict[str, Figures]:
        """Return the figures of all tenants that have had requests."""
        return dict(self._tenants)

    def begins(self, branch: Branch, now: float) -> None:
        """Count a reply's first step."""
        figures, sequence = self._of(branch), branch.sequence
        branch.begun = now
        figures.queue.observe(now - branch.arrived)
        figures.prompt_tokens += len(sequence.prompt)
        figures.prefix_queries += len(sequence.prompt)
        figures.prefix_hits += sequence.cached

    def token(self, branch: Branch, now: float) -> None:
        """Count a token."""
        figures = self._of(branch)
        figures.generation_tokens += 1
        if branch.last:
            figures.inter_token.observe(now - branch.last)
        else:
            branch.first = now
            figures.first_token.observe(now - branch.arrived)
        branch.last = now

    def drafts(self, branch: Branch, tokens: int, accepted: int) -> None:
        """Count guesses of one step."""
        figures = self._of(branch)
        figures.drafts += 1
        figures.draft_tokens += tokens
        figures.accepted_tokens += accepted

    def ends(self, branch: Branch, reason: FinishReason, now: float) -> None:
        """Count a reply's end."""
        figures = self._of(branch)
        figures.finished[reason] = figures.finished.get(reason, 0) + 1
        figures.total.observe(now - branch.arrived)

    @staticmethod
    def spans(branch: Branch, now: float) -> Iterator[tuple[str, float, float]]:
        """Return what a reply that has ended did: name, begin and end."""
        yield "request", branch.arrived, now
        times = (branch.arrived, branch.begun, branch.first, now)
        for name, begun, ended in zip(("queued", "prompt", "reply"), times, times[1:], strict=False):
            if begun:
                yield name, begun, ended or now
            if not ended:
                break

    def now(self) -> Iterator[tuple[str, int, int, float]]:
        """Return by tenant how many replies run and wait, and the part of the pages that running ones have.

        A page that replies share counts for each of them.
        """
        from pygpukit.llm.scheduler import pages_for

        running, waiting = list(self._scheduler.running), list(self._scheduler.waiting)
        for name in sorted(self._tenants.keys() | {branch.tenant.name for branch in (*running, *waiting)}):
            mine = [branch for branch in running if branch.tenant.name == name]
            pages = sum(pages_for(branch.computed) for branch in mine)
            waits = sum(branch.tenant.name == name for branch in waiting)
            yield name, len(mine), waits, pages / self._scheduler.cache.pages


def live_engines() -> list[Telemetry]:
    """Return the engines of this process, the oldest first."""
    with _lock:
        return sorted(_live, key=lambda engine: engine.number)
