"""`FastMessageQueue`: four bands of priority, first come, first served in each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from pygpukit.compat.pydotcompute.ring_kernels.envelope import Envelope, priority_of
from pygpukit.compat.pydotcompute.ring_kernels.queue import RingMailbox

__all__ = ["FastMessageQueue", "PriorityBand", "QueueStats", "get_priority_band"]

T = TypeVar("T")


class PriorityBand(IntEnum):
    """Priorities that are treated alike; the smaller number goes first."""

    SYSTEM = 0
    """224 and above."""
    HIGH = 1
    """160 to 223."""
    NORMAL = 2
    """64 to 159."""
    LOW = 3
    """Below 64."""


def get_priority_band(priority: int) -> PriorityBand:
    """The band of a priority.

    Examples
    --------
    >>> get_priority_band(128).name
    'NORMAL'
    """
    if priority >= 224:
        return PriorityBand.SYSTEM
    if priority >= 160:
        return PriorityBand.HIGH
    return PriorityBand.NORMAL if priority >= 64 else PriorityBand.LOW


@dataclass
class QueueStats:
    """Figures of a queue."""

    total_enqueued: int = 0
    total_dequeued: int = 0
    total_dropped: int = 0
    current_size: int = 0
    peak_size: int = 0
    band_counts: dict[str, int] | None = None


class FastMessageQueue(RingMailbox[T]):
    """A bounded queue with four bands of priority.

    Parameters
    ----------
    maxsize : int
        Most messages it holds; 0 for any number.
    kernel_id : str
        For the text of errors.
    serialize : bool
        Hold the bytes of messages, and give bytes.

    Examples
    --------
    >>> queue = FastMessageQueue(maxsize=8)
    >>> queue.put_nowait("a")
    True
    >>> queue.get_stats()["band_counts"]
    {'system': 0, 'high': 0, 'normal': 1, 'low': 0}
    """

    def __init__(self, maxsize: int = 4096, *, kernel_id: str = "", serialize: bool = False) -> None:
        self._serialize = serialize
        self._in_band = [0] * len(PriorityBand)
        self._open(maxsize, "block", kernel_id)

    def _sealed(self, message: Any) -> Envelope:
        band = get_priority_band(priority_of(message))
        return Envelope(message.serialize() if self._serialize else message, len(PriorityBand) - 1 - band)

    def _entered(self, envelope: Envelope) -> None:
        self._in_band[envelope.priority] += 1

    def _left(self, envelope: Envelope) -> None:
        self._in_band[envelope.priority] -= 1

    def put_batch(self, messages: list[T]) -> int:
        """Put messages in until there is no room; how many."""
        count = 0
        for one in messages:
            if not self.put_nowait(one):
                break
            count += 1
        return count

    def get_batch(self, max_count: int) -> list[T]:
        """Up to `max_count` messages that are there."""
        taken: list[T] = []
        while len(taken) < max_count and (one := self.get_nowait()) is not None:
            taken.append(one)
        return taken

    def get_stats(self) -> dict[str, Any]:
        """As those of `MessageQueue`, with the largest size there was and the messages of each band."""
        names = [band.name.lower() for band in PriorityBand]
        return {
            **super().get_stats(),
            "peak_size": self._ring.counts()["max_depth"],
            "band_counts": dict(zip(names, reversed(self._in_band), strict=True)),
        }
