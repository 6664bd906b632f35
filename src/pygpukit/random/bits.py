"""Philox as a bit generator: a key, and the place in its sequence."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, Event, GPUArray
from pygpukit.array.creation import full
from pygpukit.core.device import device as on_device
from pygpukit.errors import GraphError
from pygpukit.ops.elementwise import rows as e

__all__ = ["Philox4x32"]

_BLOCKS = 2**64
_STREAMS = 2**31


class _Counter:
    """On one device: the blocks that draws in graphs have used, which every replay counts up."""

    def __init__(self, device: Device, replayed: dict[str, int]) -> None:
        self.name = f"{device.kind}:{device.index}"
        self._device, self._settled = device, False
        # Memory that outlives the graph being captured, if one is, and the pool of the caller.
        with _outside(device):
            self.array = full(1, replayed.get(self.name, 0), "int64")
            self._event = Event(timing=False)

    def is_capturing(self) -> bool:
        """Is this thread capturing a graph? Then every wait is refused; an event never recorded is not waited for."""
        try:
            self._event.synchronize()
        except GraphError:
            return True
        return False

    def settle(self) -> None:
        """Wait, once, until the counter has its first value: a graph cannot wait for work from before it."""
        if not self._settled:
            with _outside(self._device):
                self.array.item()
            self._settled = True


@contextmanager
def _outside(device: Device) -> Iterator[None]:
    """Work outside of the capture, the stream and the pool of this thread."""
    context = _native.swap_context(None)
    try:
        with on_device(device):
            yield
    finally:
        _native.swap_context(context)


class Philox4x32:
    """The counter-based generator Philox4x32-10, whose words depend on a key and a counter alone.

    Parameters
    ----------
    seed : int, sequence of int, numpy.random.SeedSequence, optional
        The key is made of it by `numpy.random.SeedSequence`; without one, of the system's entropy.

    Examples
    --------
    >>> Philox4x32(1).state["state"]["offset"]
    0
    """

    def __init__(self, seed: Any = None) -> None:
        self._seed_seq = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._key = int(self._seed_seq.generate_state(1, np.uint64)[0])
        self._offset = 0
        self._stream = 0
        # By number of the device, and how far replays were when the state was set, by its name.
        self._counters: dict[int, _Counter] = {}
        self._replayed: dict[str, int] = {}
        self._lock = threading.RLock()

    @property
    def seed_seq(self) -> np.random.SeedSequence:
        """What the key was made of."""
        return self._seed_seq

    @property
    def lock(self) -> threading.RLock:
        """Held while the place in the sequence changes."""
        return self._lock

    def spawn(self, n_children: int) -> list[Philox4x32]:
        """Make generators whose sequences are independent of this one and of each other.

        Examples
        --------
        >>> len(Philox4x32(1).spawn(3))
        3
        """
        return [Philox4x32(child) for child in self._seed_seq.spawn(n_children)]

    def jumped(self, jumps: int = 1) -> Philox4x32:
        """A generator of the same key, 2**66 words further for each jump: none draws as many.

        Examples
        --------
        >>> Philox4x32(1).jumped(2).state["state"]["stream"]
        2
        """
        made = Philox4x32(self._seed_seq)
        with self._lock:
            made._key, made._offset = self._key, self._offset
            made._stream = self._stream + operator.index(jumps)
        if jumps < 0 or made._stream >= _STREAMS:
            raise ValueError(f"jumps must be from 0 to {_STREAMS - 1 - self._stream}, not {jumps}")
        return made

    @property
    def state(self) -> dict[str, Any]:
        """Where the generator is: a dict that can be set again. Reads the counters of draws in graphs, if any."""
        with self._lock:
            replayed = dict(self._replayed)
            replayed.update({c.name: int(c.array.item()) for c in self._counters.values()})
            used = {name: count for name, count in replayed.items() if count}
            place = {"key": self._key, "offset": self._offset, "stream": self._stream, "replayed": used}
        return {"bit_generator": type(self).__name__, "state": place}

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        if not isinstance(value, dict):
            raise TypeError(f"state must be a dict, not {type(value).__name__}")
        if value.get("bit_generator") != type(self).__name__:
            raise ValueError(f"state must be for a {type(self).__name__} generator, not {value.get('bit_generator')!r}")
        place = value["state"]
        key, offset, stream = (int(place[name]) for name in ("key", "offset", "stream"))
        replayed = {str(name): int(count) for name, count in place.get("replayed", {}).items()}
        if not (0 <= key < 2**64 and 0 <= offset < _BLOCKS and 0 <= stream < _STREAMS):
            raise ValueError(f"state is out of range: key {key}, offset {offset}, stream {stream}")
        if any(not 0 <= count < 2**63 for count in replayed.values()):
            raise ValueError(f"state is out of range: replayed {replayed}")
        with self._lock:
            self._key, self._offset, self._stream, self._replayed = key, offset, stream, replayed
            for counter in self._counters.values():
                counter.array.fill(replayed.get(counter.name, 0))

    def draw(
        self, function: Any, device: Device, n: int, per_block: int, *args: Any, out: GPUArray | None = None
    ) -> Any:
        """Call an operator that draws a vector of `n` elements, from where the generator is, and advance.

        Parameters
        ----------
        function : callable
            Takes the counter, n, key, offset, stream and ``args``.
        device : Device
            Where the result is.
        n, per_block : int
            Elements, and how many of them a block of four words gives.
        out : GPUArray, optional
            Where they are written.
        """
        blocks = -(-n // per_block)
        with self._lock:
            counter = self._counters.get(device._number)
            if counter is None:
                counter = self._counters[device._number] = _Counter(device, self._replayed)
            if not counter.is_capturing():
                made = function(counter.array, n, self._key, self._offset, 2 * self._stream, *args, out=out)
                self._offset = (self._offset + blocks) % _BLOCKS
                return made
            counter.settle()
            made = function(counter.array, n, self._key, 0, 2 * self._stream + 1, *args, out=out)
            e.add(counter.array, blocks, out=counter.array)
            return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._seed_seq, self.state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key=0x{self._key:016x})"


def _restored(kind: type[Philox4x32], seed_seq: np.random.SeedSequence, state: dict[str, Any]) -> Philox4x32:
    made = kind(seed_seq)
    made.state = state
    return made
