"""A runtime's device actors: the ring they share, and what comes from it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pygpukit.core.device import Device, current_device, device_in_use
from pygpukit.errors import RingError, UndeliveredError
from pygpukit.ring.device import DeviceRing, Place, RingOptions
from pygpukit.ring.kernel import RingKernel, find_kernel
from pygpukit.ring.kinds import brief
from pygpukit.ring.message import Message
from pygpukit.ring.post import Post
from pygpukit.ring.tables import ANSWER, MODES, MORE, REASONS, WORKER_LOST
from pygpukit.ring.worker_link import NO_STATUS
from pygpukit.ring.worker_ring import WorkerRing

if TYPE_CHECKING:
    from pygpukit.ring.device_actor import DeviceActor
    from pygpukit.ring.device_mailbox import DeviceOutbox

__all__ = ["DeviceTier"]

_log = logging.getLogger("pygpukit.ring")

_EXITS = (None, "asked", "lease", "slice")

# How long an actor that is not wanted any more is waited for to end.
_ABANDON_SECONDS = 1.0

# What a kernel takes to end by a trap.
_ABORT_SECONDS = 5.0


class DeviceTier:
    """A runtime's device actors: the ring they share, and what comes from it.

    Parameters
    ----------
    post : Post
        The runtime's calls and dead letters.
    options : RingOptions
        How the ring uses the device.
    is_isolated : bool
        Is the ring in a process of its own?
    """

    def __init__(self, post: Post, options: RingOptions, is_isolated: bool = False) -> None:
        self._post = post
        self._options = options
        self._make: type[DeviceRing] | type[WorkerRing] = WorkerRing if is_isolated else DeviceRing
        self._ring: DeviceRing | WorkerRing | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._pending: list[tuple[RingKernel, asyncio.Future[Place]]] = []
        self._adding: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._types: dict[int, type[Message]] = {}
        self._stuck: set[int] = set()
        # Those that somebody has: one whose id was launched again may be gone, with its state.
        self.actors: WeakValueDictionary[int, DeviceActor] = WeakValueDictionary()
        self.awaited: set[DeviceOutbox] = set()
        # Of actors that were lost before they were known here.
        self._early: dict[int, RingError] = {}
        self.device: Device | None = None
        """Where the ring is made; by default on the device that is current then."""

    @property
    def ring(self) -> DeviceRing | WorkerRing:
        """The ring; there is one when the first actor is launched."""
        assert self._ring is not None
        return self._ring

    def current_device(self) -> Device | None:
        """The device that is current in this thread; None where a worker process is to find its own."""
        # With a worker this process may have nothing to do with any device, and is to open none.
        return device_in_use() if self.is_isolated else current_device()

    def device_for(self, kernel: str | RingKernel) -> Device | None:
        """The device that is current here, if that is for the launch of this kernel to say."""
        if self.is_made:
            return None
        try:
            spec = find_kernel(kernel)
        except RingError:
            # The launch says so.
            return None
        return self.current_device() if spec.kind == "device" else None

    @property
    def is_isolated(self) -> bool:
        """Are the actors in a process of their own?"""
        return self._make is WorkerRing

    @property
    def is_made(self) -> bool:
        """Was a device actor launched?"""
        return self._ring is not None

    def enrol(self, actor: DeviceActor) -> None:
        """Tell an actor from now on what happens to it."""
        index = actor.place.index
        self.actors[index] = actor
        error = self._early.pop(index, None)
        if error is not None:
            actor.lost(error, False)

    def status(self) -> dict[str, Any]:
        """Where the kernel is, and what became of it."""
        if self._ring is None:
            known: dict[str, Any] = NO_STATUS
            stuck: list[int] = []
        else:
            known, stuck = self._ring.link.status(), self._ring.link.stuck_actors()
        actors = dict(self.actors)
        return {
            "up": known["up"],
            "launches": known["launches"],
            "parks": known["parks"],
            "last_exit": _EXITS[known["last_exit"]],
            "beats": {"host": known["host_beat"], "device_ns": known["device_beat_ns"]},
            "stuck": known["stuck"],
            "stuck_actors": sorted(actors[index].kernel.kernel_id for index in stuck if index in actors),
        }

    def type_of(self, kind: int) -> type[Message] | None:
        """The class of a message's type."""
        return self._types.get(kind)

    def seconds(self, cycles: int) -> float:
        """Time of the device's clock cycles."""
        return self._ring.cycle_seconds * cycles if self._ring is not None else 0.0

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run something that waits for the device."""
        if self._threads is None:
            # The loop's own may all be taken by callers that wait for what is ordered here.
            self._threads = ThreadPoolExecutor(64, "pygpukit-ring")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def is_at_rest(self, timeout: float | None) -> bool:
        """Has no actor anything left to do?"""
        ring = self._ring
        return ring is None or bool(await self.in_thread(lambda: ring.is_at_rest(timeout)))

    async def place(self, kernel: RingKernel) -> Place:
        """Put a kernel on the device, together with all others that are launched at the same time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Place] = loop.create_future()
        self._pending.append((kernel, future))
        if self._adding is None or self._adding.done():
            self._adding = loop.create_task(self._add())
        return await future

    async def _add(self) -> None:
        await asyncio.sleep(0)
        while self._pending:
            pending, self._pending = self._pending, []
            kernels = [kernel for kernel, _ in pending]
            try:
                ring = await self._open()
                places = await self.in_thread(lambda ring=ring, kernels=kernels: ring.add(kernels))  # type: ignore[misc]
            except BaseException as error:
                if len(pending) > 1:
                    # One of them is wrong: each is told for itself.
                    for one in pending:
                        await self._add_one(one)
                    continue
                _settle(pending[0][1], error)
                continue
            for one, place in zip(pending, places, strict=True):
                await self._placed(one, place)

    async def _open(self) -> DeviceRing | WorkerRing:
        """The ring; a new one for the first actor, and for the first one after it was closed."""
        if self._ring is None or self._ring.is_closed:
            self._ring = await self.in_thread(lambda: self._make(self._options, self.device))
            self.actors, self._early = WeakValueDictionary(), {}
            self._stuck = set()
            self._listen()
        return self._ring

    async def _add_one(self, one: tuple[RingKernel, asyncio.Future[Place]]) -> None:
        kernel, future = one
        try:
            ring = await self._open()
            [place] = await self.in_thread(lambda: ring.add([kernel]))
        except BaseException as error:
            _settle(future, error)
            return
        await self._placed(one, place)

    async def _placed(self, one: tuple[RingKernel, asyncio.Future[Place]], place: Place) -> None:
        kernel, future = one
        self._learn(kernel)
        if not future.done():
            future.set_result(place)
            return
        # Whoever launched it does not want it any more.
        ring = self.ring
        ring.link.close(place.index)
        ring.retire(place)
        await self.in_thread(lambda: ring.link.set_mode(place.index, MODES["ENDED"], _ABANDON_SECONDS))

    def _learn(self, kernel: RingKernel) -> None:
        for one in (kernel.input_type, kernel.output_type):
            if one is not None:
                self._types[one.type_id] = one

    def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._fd, self._signalled)
        self.ring.link.signal(self._fd)

    def _signalled(self) -> None:
        """Something came that is for the event loop."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return
        self.ring.link.signalled()
        self.collect()

    def abort(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """End the kernel at once, and wait until its actors, which are those of this loop, are FAILED."""
        ring = self.ring
        is_up = isinstance(ring, DeviceRing) and ring.link.status()["up"]
        if ring.link.trap() and is_up and isinstance(ring, DeviceRing):
            end = time.monotonic() + _ABORT_SECONDS
            while ring.link.failure() is None and time.monotonic() < end:
                time.sleep(1e-3)

        async def collect() -> None:
            self.collect()

        if loop is not None and asyncio._get_running_loop() is loop:
            self.collect()
        elif loop is not None:
            asyncio.run_coroutine_threadsafe(collect(), loop).result()

    def collect(self) -> None:
        """Hand out what has come; in the runtime's loop."""
        link = self.ring.link
        # Looked at first: what was answered before a loss is answered.
        losses = self.ring.take_losses()
        for parts in link.take_answers():
            actor = self.actors.get(parts[0][6])
            if actor is not None:
                self._answer(actor, parts)
        for index, error, is_restarted, calls in losses:
            for number in calls:
                self._post.fail(number, error)
            actor = self.actors.get(index)
            if actor is not None:
                actor.lost(error, is_restarted)
            elif not is_restarted:
                self._early[index] = error
        for parts in link.take_letters():
            self.bury(parts)
        self._watch({index for index, *_ in losses})
        for outbox in list(self.awaited):
            outbox.wake()

    def _answer(self, actor: DeviceActor, parts: Any) -> None:
        message = actor.loaded(parts)
        if parts[0][1] & MORE:
            replies = self._post.replies_to(message.correlation_id)
            if replies is not None and replies.give(message):
                return
            # Nobody will read it.
            actor.took(1)
        self._post.answer(actor.kernel.kernel_id, message)

    def _watch(self, lost: set[int]) -> None:
        """Say which handlers do not return, and which did after all."""
        stuck = set(self.ring.link.stuck_actors())
        if stuck == self._stuck:
            return
        began, ended, self._stuck = stuck - self._stuck, self._stuck - stuck, stuck
        for index in began:
            _log.warning(
                "the handler of %r has worked on one message for more than %g s (watchdog), and holds up the other "
                "actors, and whoever uses a kernel for the first time, when the ring is to leave the device. A handler "
                "cannot be stopped: wait for it, or call runtime.abort(), %s",
                self.ring.name_of(index),
                self._options.watchdog,
                self.ring.after_abort,
            )
        for index in ended - lost:
            _log.info("the handler of %r has returned after all", self.ring.name_of(index))

    def bury(self, parts: Any) -> None:
        """Note a message that reached nobody."""
        (kind, flags, priority, reason, number, correlation, source, destination, *_), payload = parts
        actor = self.actors.get(destination)
        name = self.ring.name_of(destination)
        cls = self.type_of(kind)
        message: Any = payload
        if cls is not None:
            message = cls._load(cls, payload, 0)
            message.message_id, message.correlation_id, message.priority = number, correlation, priority
        why = REASONS.get(reason, "lost")
        self._post.dead(name, message, why, self.ring.loss_of(destination) if reason == WORKER_LOST else "")
        if flags & ANSWER:
            sender = self.actors.get(source)
            whose = repr(sender.kernel.kernel_id) if sender is not None else f"actor {source}"
            text = f"{whose} sent {brief(message)} as an answer, which was lost: {why}"
            self._post.fail(correlation, UndeliveredError(text))
        if why == "failed" and actor is not None and self._loop is not None:
            # The device says so a moment later.
            self._loop.call_soon_threadsafe(self._check_failed, actor, 20)

    def _check_failed(self, actor: DeviceActor, tries: int) -> None:
        actor._look_at_mode()
        if tries and not actor.state.is_over and self._loop is not None and not self._loop.is_closed():
            self._loop.call_later(0.005, self._check_failed, actor, tries - 1)

    def stop_timers(self) -> None:
        """Let no timer of the ring begin anything more."""
        if self._ring is not None:
            self._ring.stop_timers()

    async def close(self) -> None:
        """End the kernel; whoever comes while that is under way waits for it."""
        if self._closing is None:
            if self._ring is None or self._ring.is_closed:
                return
            self._closing = asyncio.ensure_future(self._close(self._ring))
        # Once begun it is done, also when who waits is cancelled.
        await asyncio.shield(self._closing)

    async def _close(self, ring: DeviceRing | WorkerRing) -> None:
        try:
            await self.in_thread(ring.close)
        except RingError as error:
            # It is left as it is, with nobody who would hear of it.
            self.collect()
            for actor in list(self.actors.values()):
                actor.lost(error, False)
            raise
        finally:
            self.collect()
            if self._loop is not None and self._fd >= 0:
                self._loop.remove_reader(self._fd)
                ring.link.signal(-1)
                os.close(self._fd)
                self._fd = -1
            if self._threads is not None:
                self._threads.shutdown(wait=False)
                self._threads = None
            self._closing = None


def _settle(future: asyncio.Future[Place], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
