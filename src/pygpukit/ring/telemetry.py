"""Figures of a ring kernel: what happened to its messages, and how long they took."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pygpukit.ring.states import KernelState

__all__ = ["KernelTelemetry", "Latency", "summed_up"]


@dataclass(frozen=True)
class Latency:
    """Percentiles in seconds, of logarithmic buckets eight to a power of two."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0


@dataclass(frozen=True)
class KernelTelemetry:
    """What happened to a kernel's messages since it was launched.

    Every accepted message is in exactly one place: ``received == processed + failed + displaced + expired + discarded +
    in_progress + input_depth``.
    """

    kernel_id: str
    state: KernelState
    received: int
    """Accepted into the input mailbox."""
    processed: int
    """Delivered, and the actor came back for more."""
    failed: int
    """Delivered, and the actor failed with them."""
    in_progress: int
    """Delivered, and the actor works on them."""
    displaced: int
    """Accepted, then dropped for newer ones."""
    expired: int
    """Not delivered before their deadline."""
    discarded: int
    """Left in the mailbox when the actor ended."""
    rejected: int
    """Not accepted: the mailbox was full."""
    dropped: int
    """Dropped instead of being accepted."""
    sent: int
    """Sent by the actor: into its output mailbox, to other actors, and as answers to calls."""
    answered: int
    """Answers to calls among them."""
    input_depth: int
    output_depth: int
    max_input_depth: int
    max_output_depth: int
    wait: Latency
    """From acceptance to delivery."""
    latency: Latency
    """From acceptance until the actor came back for more."""
    busy: float
    """Seconds the actor spent with messages."""
    uptime: float
    """Seconds since the launch, until the end."""
    restarts: int
    last_error: str | None
    ticks: int = 0
    """Times that its timer put into its mailbox; they are received as messages are."""
    missed_ticks: int = 0
    """Times that it did not, because the last one was not taken, or the mailbox was full, or the ring not there."""
    stuck: bool = False
    """Has a device actor's handler worked on one message for longer than the runtime's `watchdog` allows?"""
    idle_restarts: int = 0
    """Times that the TimeoutError of ``ctx.receive(timeout)`` left the function, which was called again."""

    @property
    def throughput(self) -> float:
        """Messages processed per second of uptime."""
        return self.processed / self.uptime if self.uptime > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**dataclasses.asdict(self), "state": self.state.name, "throughput": self.throughput}


_SUMMED = (
    *("received", "processed", "failed", "sent", "rejected", "dropped", "displaced", "expired", "discarded"),
    *("input_depth", "output_depth", "restarts"),
)


def summed_up(all_telemetry: Collection[KernelTelemetry]) -> dict[str, Any]:
    """How many kernels there are, how many in which state, and sums of their figures."""
    states = [one.state.name for one in all_telemetry]
    return {
        "kernels": len(states),
        "states": {name: states.count(name) for name in dict.fromkeys(states)},
        **{name: sum(getattr(one, name) for one in all_telemetry) for name in _SUMMED},
    }
