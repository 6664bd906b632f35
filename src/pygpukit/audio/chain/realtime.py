"""`Realtime`: a chain that is fed block by block, with a deadline that was admitted, and late blocks counted."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit.audio.chain.actor import ChainActor
from pygpukit.audio.chain.effects import between
from pygpukit.audio.chain.picture import save_histogram
from pygpukit.audio.chain.reservation import Reservation
from pygpukit.audio.chain.timing import Timing
from pygpukit.audio.operators import gp
from pygpukit.errors import DeadlineRefusedError, ParameterError, RingError
from pygpukit.ring import RingKernelRuntime

if TYPE_CHECKING:
    from pygpukit.audio.chain.chain import Chain

__all__ = ["Realtime"]

_ON_LATE = ("bypass", "silence", "repeat", "raise", "wait")

# Blocks that may be with the actor before further ones are left out.
_DEPTH = 8

# Seconds in which an actor answers that is not stuck: the first block may find a device that is busy.
_PATIENCE = 60.0

# Seconds after which the ring leaves the device for a moment: so rarely that it is not among the slowest in a thousand.
_TIME_SLICE = 5.0

# Blocks of silence before the first one: what is loaded at first use is loaded then, and their times are looked at.
_TRIALS = 64


class Realtime:
    """A chain as one actor on the device, fed block by block; made by `Chain.realtime`.

    The device's scheduler reserves SMs of their own for the actor and admits the deadline, or it is refused with the
    numbers. No block launches or allocates anything on the device. One thread at a time calls `process`.

    Parameters
    ----------
    chain : Chain
        What is computed, on the current device. Messages bound a block to 4096 bytes.
    deadline : float, optional
        Seconds in which `process` is to return; at most, and by default, those between two blocks.
    on_late : str, optional
        What a late block's result is: ``"bypass"``, the input as late as the chain makes it; ``"silence"``;
        ``"repeat"``, the last result that was in time; ``"raise"``, a TimeoutError; ``"wait"``, its own, however late.
        It is counted in any case, and the chain has processed it.
    cost : float, optional
        Seconds of device time that a block takes at most; measured by default.
    scheduler : Scheduler, optional
        Which one reserves; the process's own by default.
    reserve : bool, optional
        Ask the scheduler, the default. Else the actor runs beside everything else, no deadline is refused for being
        too short, and late blocks are only counted.
    wait : str, optional
        How `process` waits: ``"hybrid"``, ``"spin"`` or ``"sleep"``, as of `RingKernelRuntime.client`.

    Raises
    ------
    DeadlineRefusedError
        If the deadline cannot be held, with the inequality that failed.
    ParameterError
        If a parameter makes no sense.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> chain = A.Chain(48000) | A.Highpass(80) | A.Limiter(-1.0)
    >>> with chain.realtime(on_late="wait") as rt:
    ...     rt.process(np.zeros(128, np.float32)).shape
    (128,)
    """

    def __init__(
        self, chain: Chain, *, deadline: float | None = None, on_late: str = "bypass", cost: float | None = None,
        scheduler: Any = None, reserve: bool = True, wait: str = "hybrid",
    ) -> None:  # fmt: skip
        self.chain = chain
        self.period = chain.block / chain.rate
        self.deadline = self.period if deadline is None else between(deadline, 1e-9, 3600, "deadline")
        if self.deadline > self.period:
            raise DeadlineRefusedError(
                f"deadline {_ms(self.deadline)} > period {_ms(self.period)} of {chain.block} samples at {chain.rate:g} "
                "a second: blocks that take so long pile up"
            )
        if on_late not in _ON_LATE:
            raise ParameterError(f"on_late is {on_late!r}; it is one of {', '.join(_ON_LATE)}")
        self.on_late = on_late
        self.cost = None if cost is None else between(cost, 1e-9, 3600, "cost")
        self._lock = threading.Lock()
        self._closed = False
        self._number = self._sent = self._answered = 0
        self._values = chain.values()
        self._resets = True
        self._not_finite = self._processed = 0
        self._last = np.zeros((chain.channels, chain.block), np.float32)
        self._dry = np.zeros((chain.channels, chain.latency if on_late == "bypass" else 0), np.float32)
        self._timing = Timing(self.deadline, self.period)
        self._promises = reserve and gp.current_device().kind == "cuda"
        with contextlib.ExitStack() as stack:
            self._actor = ChainActor(chain)
            task = None
            if reserve:
                reservation = stack.enter_context(
                    Reservation(chain, self.deadline, self.period, self.cost, scheduler, self._promises)
                )
                self.cost = reservation.cost
                task = reservation.task if reservation.has_lane else None
            runtime = stack.enter_context(RingKernelRuntime(task=task, time_slice=_TIME_SLICE))
            runtime.run(runtime.launch(self._actor.kernel))
            runtime.run(runtime.activate(self._actor.kernel.kernel_id))
            self._client = runtime.client(self._actor.kernel.kernel_id, wait=wait)
            self._try_out()
            self._stack = stack.pop_all()

    def process(self, block: Any, out: Any = None) -> Any:
        """Compute a block.

        Parameters
        ----------
        block : array
            NumPy float32 of (channels, block); (block,) of a chain of one channel.
        out : array, optional
            Where the result goes: NumPy float32 of the same shape.

        Returns
        -------
        numpy.ndarray
            ``out``, or a new array: late by `Chain.latency`, and what ``on_late`` says if the block was late.

        Raises
        ------
        ParameterError
            If the block is none of this chain.
        TimeoutError
            If the block was late, with ``on_late="raise"``.
        RingError
            If this was closed, or the actor has failed.
        """
        began = time.perf_counter()
        x = self._checked(block, "block")
        if out is not None:
            self._checked(out, "out")
        if not self._lock.acquire(blocking=False):
            raise RingError("two threads call process at the same time; blocks have one order, so let one thread do it")
        try:
            if self._closed:
                raise RingError("this chain was closed; make another with chain.realtime(...)")
            found = self._answer(x, began)
            took = time.perf_counter() - began
            late = found is None or took > self.deadline
            self._timing.note(began, took, late)
            made = self._replaced(x, found, took) if late else found
            if not late and self.on_late == "repeat":
                self._last = found.copy()
            self._remember(x)
        finally:
            self._lock.release()
        made = made.reshape(np.shape(block))
        if out is None:
            return made
        out[...] = made
        return out

    def change(self, index: int, **parameters: Any) -> None:
        """Change parameters of an effect: they move linearly over the next block.

        Raises
        ------
        ParameterError
            If there is no such effect, or a parameter is fixed or wrong.
        """
        self.chain = self.chain.changed(index, **parameters)
        self._values = self.chain.values()

    def flush(self) -> Any:
        """Return the `Chain.latency` samples that are still in the chain, by blocks of silence after them.

        Returns
        -------
        numpy.ndarray
            (channels, latency), or (latency,) of a chain of one channel.
        """
        latency, block = self.chain.latency, self.chain.block
        silent, parts = np.zeros((self.chain.channels, block), np.float32), []
        on_late, self.on_late = self.on_late, "wait"
        try:
            for _ in range(-(-latency // block)):
                parts.append(self.process(silent))
        finally:
            self.on_late = on_late
        rest = np.concatenate([np.zeros((self.chain.channels, 0), np.float32), *parts], axis=1)[:, :latency]
        return rest[0] if self.chain.channels == 1 else rest

    def stats(self) -> dict[str, Any]:
        """Return what happened, in seconds.

        ``blocks``, ``late`` and ``skipped`` (late, and not processed because the actor was too far behind) count;
        ``processed`` is how many blocks had been computed when the last result came, late ones included. ``gaps``
        counts pauses of the feeder of more than two periods. ``p50``, ``p99``, ``p999`` and ``max`` are of the time in
        `process`, of the last 65,536 blocks; ``device_p50`` and ``device_max`` of the time that the actor worked on
        them. ``histogram`` has all blocks, ``(edges, counts)``. ``not_finite`` samples were taken for 0.
        """
        return {
            **self._timing.figures(), "deadline": self.deadline, "period": self.period, "cost": self.cost,
            "not_finite": self._not_finite, "processed": self._processed,
        }  # fmt: skip

    def reset_stats(self) -> None:
        """Count from here on."""
        with self._lock:
            self._timing = Timing(self.deadline, self.period)

    def save_plot(self, path: Any, title: str = "") -> None:
        """Draw how long the blocks took to a file, whose ending is its format (png, svg, pdf).

        Raises
        ------
        MissingPackageError
            If matplotlib is missing: ``pip install 'pygpukit[plot]'``.
        """
        save_histogram(path, self.stats(), title)

    def close(self) -> None:
        """End the actor, and give its SMs back; once is enough."""
        if not self._closed:
            self._closed = True
            # A block that is being processed comes to its end.
            with self._lock:
                self._stack.close()

    def __enter__(self) -> Realtime:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _checked(self, block: Any, what: str) -> Any:
        channels, size = self.chain.channels, self.chain.block
        if not isinstance(block, np.ndarray) or block.dtype != np.float32:
            kind = block.dtype if isinstance(block, np.ndarray) else type(block).__name__
            raise ParameterError(f"{what} is {kind}; it is a NumPy array of float32, from -1 to 1")
        if block.shape != (channels, size) and not (channels == 1 and block.shape == (size,)):
            raise ParameterError(f"{what} has shape {block.shape}; the chain takes ({channels}, {size})")
        return block.reshape(channels, size)

    def _answer(self, x: Any, began: float) -> Any:
        """The result of a block; None if it has not come in time."""
        patient = self.on_late == "wait"
        until = began + (_PATIENCE if patient else self.deadline)
        while self._sent - self._answered >= _DEPTH:
            if self._receive(until) is None:
                self._timing.skipped += 1
                return None
        self._number += 1
        self._client.send(self._actor.message(self._number, x, self._values, self._resets), timeout=_PATIENCE)
        self._resets = False
        self._sent += 1
        while (result := self._receive(until)) is not None:
            if result.number == self._number:
                return np.array(result.x).reshape(x.shape)
        if patient:
            raise TimeoutError(f"the chain did not answer within {_PATIENCE:g} s")
        return None

    def _receive(self, until: float) -> Any:
        """The next result; None if the time is over."""
        try:
            result = self._client.receive(timeout=max(0.0, until - time.perf_counter()))
        except TimeoutError:
            return None
        self._answered += 1
        self._not_finite, self._processed = int(result.not_finite), int(result.processed)
        self._timing.note_device(result.nanoseconds)
        return result

    def _replaced(self, x: Any, found: Any, took: float) -> Any:
        """What the result of a late block is."""
        if self.on_late == "wait":
            return found
        if self.on_late == "raise":
            raise TimeoutError(f"a block took {_ms(took)}, and the deadline is {_ms(self.deadline)}")
        if self.on_late == "repeat":
            return self._last.copy()
        if self.on_late == "silence":
            return np.zeros_like(x)
        return np.concatenate([self._dry, x], axis=1)[:, : x.shape[1]]

    def _remember(self, x: Any) -> None:
        """Keep the input that `bypass` gives later."""
        if self._dry.shape[1]:
            self._dry = np.concatenate([self._dry, x], axis=1)[:, x.shape[1] :]

    def _try_out(self) -> None:
        """Compute silence, refuse a deadline that this does not hold, and begin anew."""
        silent, times = np.zeros((self.chain.channels, self.chain.block), np.float32), []
        on_late, self.on_late = self.on_late, "wait"
        for _ in range(_TRIALS if self._promises else 2):
            began = time.perf_counter()
            self._answer(silent, began)
            times.append(time.perf_counter() - began)
        self.on_late = on_late
        if self._promises:
            # The first ones load what is used; the ring may leave the device once for a moment.
            slow = float(np.percentile(times[_TRIALS // 4 :], 90))
            if slow > self.deadline:
                raise DeadlineRefusedError(
                    f"a block of silence takes {_ms(slow)} in nine of ten cases > deadline {_ms(self.deadline)}"
                )
        self._resets, self._not_finite, self._processed, self._number = True, 0, 0, 0
        self._timing = Timing(self.deadline, self.period)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
