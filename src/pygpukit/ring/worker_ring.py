"""The ring of a runtime with ``isolation="process"``: in a worker process, which is started again when it is lost."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from pygpukit.core.device import Device
from pygpukit.errors import ActorFailedError, FallbackWarning, RingError
from pygpukit.ring.device import Place, RingOptions
from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.program import Handler
from pygpukit.ring.states import Backpressure
from pygpukit.ring.tables import MODES
from pygpukit.ring.worker_link import WorkerLink
from pygpukit.ring.worker_peer import WorkerPeer
from pygpukit.ring.worker_process import WorkerGoneError, WorkerProcess
from pygpukit.ring.worker_wire import describe

__all__ = ["WorkerRing"]

_log = logging.getLogger("pygpukit.ring")

# How long the kernel may take to leave the device at the end, before its process is killed.
_CLOSE_SECONDS = 15.0
_STATE_SECONDS = 30.0

_CREATED, _ENDED = MODES["CREATED"], MODES["ENDED"]

_live: weakref.WeakSet[WorkerRing] = weakref.WeakSet()


def _nothing() -> None:
    """
    __device__ void handle(const In& in, Out& out, State& state, Context& ctx) {}
    """


class WorkerRing:
    """What `DeviceRing` is, in another process.

    Parameters
    ----------
    options : RingOptions
        How the worker's ring uses the device.
    where : Device, optional
        Which device; by default the one that the worker finds for itself, as every process does.
    """

    after_abort = "which ends the worker process with all that is in it"

    def __init__(self, options: RingOptions, where: Device | None = None) -> None:
        self.options = options
        self._device = None if where is None else _name_of(where)
        self.link = WorkerLink()
        self.cycle_seconds = 1e-9
        self.is_closed = False
        # The worker that is there or comes up; whoever moves it has the lock.
        self._process: WorkerProcess | None = None
        self._moving = threading.Lock()
        self._has_warned = False
        self._is_silent = False
        self._owner = os.getpid()
        _live.add(self)

    @property
    def pid(self) -> int | None:
        """Number of the worker process, when there is one."""
        process = self._process
        return None if process is None else process.pid

    def add(self, kernels: Sequence[RingKernel]) -> list[Place]:
        """Give actors their places in the worker, which is started if there is none.

        Raises
        ------
        RingError
            If they do not fit, or the worker is lost meanwhile.
        """
        handlers = [Handler.of(kernel) for kernel in kernels]
        specs = [describe(kernel, handler) for kernel, handler in zip(kernels, handlers, strict=True)]
        with self._moving:
            try:
                if self.link.process is None:
                    self._start()
                process = self.link.process
                if process is None:
                    raise WorkerGoneError("there is no worker")
                found = process.order("add", specs)
            except WorkerGoneError as error:
                raise ActorFailedError(f"the worker was lost while actors were launched: {error}") from error
            added = []
            with self.link.lock:
                for kernel, handler, row in zip(kernels, handlers, found["places"], strict=True):
                    index, number, dedicated, capacity, window = row
                    place = Place(index, kernel, handler, number, dedicated, capacity, window, None)
                    peer = WorkerPeer(place, self.link.lock)
                    peer.learn(found["names"])
                    self.link.peers.append(peer)
                    added.append(place)
                if self.link.process is not process:
                    # They were not told to whoever noticed that.
                    for peer in self.link.peers[-len(added) :]:
                        peer.has_ended = peer.is_over = True
                    raise ActorFailedError("the worker was lost while actors were launched")
            return added

    def is_at_rest(self, timeout: float | None) -> bool:
        """Has no actor anything left to do? One that is lost has not."""
        process = self.link.process
        if process is None:
            return True
        with suppress(WorkerGoneError, TimeoutError):
            return bool(process.order("rest", timeout, timeout=timeout))
        return False

    def retire(self, place: Place) -> None:
        """An actor has ended."""
        place.is_over = True
        self.link.retire(place.index)

    def state(self, place: Place) -> dict[str, Any]:
        """A copy of an actor's state as NumPy arrays."""
        layout = place.handler.state
        if layout is None:
            return {}
        process = self.link.process
        if process is None:
            raise RingError(
                f"the state of {place.kernel.kernel_id!r} is gone with its worker; try again when it is back"
            )
        data = process.order("state", place.index, timeout=_STATE_SECONDS)
        row = np.frombuffer(data, layout.dtype, 1).copy()
        return {one.name: np.array(row[one.name][0]).reshape(one.kind.shape or (1,)) for one in layout.fields}

    def ticks_of(self, index: int) -> tuple[int, int]:
        """As `DeviceRing.ticks_of`, by the figures that came last."""
        with self.link.lock:
            found = self.link.peers[index].figures()
        return found["ticks"], found["missed_ticks"]

    def stop_timers(self) -> None:
        """Give no more ticks, in this worker and the next."""
        self._is_silent = True
        self.link.tell("silence")

    def take_losses(self) -> list[tuple[int, ActorFailedError, bool, list[int]]]:
        """Actors whose worker was lost since the last look, why, whether they begin anew, and calls not answered."""
        losses = self.link.take_losses()
        return [(index, ActorFailedError(text), restarts, calls) for index, text, restarts, calls in losses]

    def name_of(self, index: int) -> str:
        """As `DeviceRing.name_of`."""
        peers = self.link.peers
        return peers[index].place.kernel.kernel_id if index < len(peers) else f"actor {index}"

    def loss_of(self, index: int) -> str:
        """Why an actor's worker was lost last."""
        return self.link.peers[index].loss

    def close(self) -> None:
        """End the worker."""
        self.is_closed = True
        with self._moving:
            process = self._process
            if process is None:
                return
            # One that does not end by itself is killed, and the kernel with it.
            with suppress(RingError, TimeoutError):
                process.order("close", timeout=_CLOSE_SECONDS)
            process.kill("the runtime was closed")
            process.join(_CLOSE_SECONDS)
        _live.discard(self)

    def kill(self) -> None:
        """End the worker, whatever it does; one forked from the runtime's process does not."""
        self.is_closed = True
        process = self._process
        if process is not None and os.getpid() == self._owner:
            process.kill("the runtime's process ends")

    def _start(self) -> None:
        """Start a worker with all actors there are; those that have ended keep their numbers."""
        process = self._process = WorkerProcess(self.link.heard, self._ended, self._device)
        try:
            self._bring_up(process)
        except WorkerGoneError:
            raise
        except BaseException:
            self._process = None
            process.kill()
            raise

    def _bring_up(self, process: WorkerProcess) -> None:
        opened = process.order("open", dataclasses.asdict(self.options))
        self.cycle_seconds = opened["cycle_seconds"]
        if not self._has_warned:
            self._has_warned = True
            for text in opened["warnings"]:
                warnings.warn(text, FallbackWarning, stacklevel=2)
        peers = self.link.peers
        if peers:
            kernels = [_replaced(peer) for peer in peers]
            process.order("add", [describe(kernel, Handler.of(kernel)) for kernel in kernels])
            for peer in peers:
                mode = _ENDED if peer.is_over else peer.mode
                if mode != _CREATED:
                    process.order("mode", peer.place.index, mode, None)
                if peer.is_over:
                    process.tell("retire", peer.place.index)
        self.link.set_process(process)
        # Looked at last: who says so from now on tells the worker.
        if self._is_silent:
            process.tell("silence")

    def _ended(self, process: WorkerProcess) -> None:
        """A worker is gone; in the thread that listened to it."""
        link = self.link
        why = process.epitaph()
        with link.lock:
            if self._process is not process:
                return
            self._process = None
            again = [peer for peer in link.peers if not self.is_closed and peer.may_restart()]
            if not self.is_closed:
                _log.error("the worker of the device actors was lost: %s", why)
            for peer in link.peers:
                if not peer.is_over:
                    link.lose(peer, self._told(peer, why, peer in again), peer in again)
            link.set_process(None)
        if again:
            self._restart()

    def _told(self, peer: WorkerPeer, why: str, restarts: bool) -> str:
        kernel = peer.place.kernel
        if restarts:
            what = "it is started again, and the actor with its first state"
        elif self.is_closed or peer.is_ending:
            what = "the actor was to end, and is not started again"
        elif kernel.restart == "never":
            what = "the actor is not started again, because its restart is 'never'"
        else:
            what = f"the actor is not started again after {kernel.max_restarts} restarts in {kernel.restart_window:g} s"
        return f"the worker process was lost; {what}: {why}"

    def _restart(self) -> None:
        with self._moving:
            if self.is_closed or self.link.process is not None:
                return
            try:
                self._start()
            except WorkerGoneError:
                # The thread that listened to that one goes on from here.
                return
            except BaseException as error:
                self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        text = f"the worker process was lost, and cannot be started again: {type(error).__name__}: {error}"
        with self.link.lock:
            for peer in self.link.peers:
                if not peer.is_over:
                    self.link.lose(peer, text, False)
            self.link.set_process(None)


def _replaced(peer: WorkerPeer) -> RingKernel:
    """What takes an actor's place in the next worker."""
    kernel = peer.place.kernel
    if not peer.is_over:
        return dataclasses.replace(kernel, dedicated=peer.place.dedicated)
    return dataclasses.replace(
        kernel,
        function=_nothing,
        state={},
        dedicated=False,
        grid_size=1,
        block_size=32,
        input_queue_size=1,
        output_queue_size=1,
        backpressure=Backpressure.BLOCK,
        topics=(),
        every=None,
    )


def _name_of(where: Device) -> str:
    """What `PYGPUKIT_DEVICE` calls a device."""
    return f"cuda:{where.index}" if where.kind == "cuda" else where.kind


@atexit.register
def _end_all() -> None:
    """Workers end with their sockets; this is sooner, and leaves nobody to be waited for."""
    for ring in list(_live):
        ring.kill()
