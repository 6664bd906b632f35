"""A runtime's device actors: the ring they share, and what comes from it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pygpukit.errors import ActorFailedError
from pygpukit.ring.device import DeviceRing, Place, RingOptions
from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.message import Message
from pygpukit.ring.post import Post
from pygpukit.ring.tables import REASONS

if TYPE_CHECKING:
    from pygpukit.ring.device_actor import DeviceActor

__all__ = ["DeviceTier"]


class DeviceTier:
    """A runtime's device actors: the ring they share, and what comes from it."""

    def __init__(self, post: Post, options: RingOptions) -> None:
        self._post = post
        self._options = options
        self._ring: DeviceRing | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._pending: list[tuple[RingKernel, asyncio.Future[Place]]] = []
        self._adding: asyncio.Task[None] | None = None
        self._types: dict[int, type[Message]] = {}
        self.actors: dict[int, DeviceActor] = {}

    @property
    def ring(self) -> DeviceRing:
        """The ring; there is one when the first actor is launched."""
        assert self._ring is not None
        return self._ring

    @property
    def is_made(self) -> bool:
        """Was a device actor launched?"""
        return self._ring is not None

    def type_of(self, kind: int) -> type[Message] | None:
        """The class of a message's type."""
        return self._types.get(kind)

    def seconds(self, cycles: int) -> float:
        """Time of the device's clock cycles."""
        return self._ring.cycle_seconds * cycles if self._ring is not None else 0.0

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run something that waits for the device."""
        return await asyncio.get_running_loop().run_in_executor(None, function)

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
            for (kernel, future), place in zip(pending, places, strict=True):
                self._learn(kernel)
                if not future.done():
                    future.set_result(place)

    async def _open(self) -> DeviceRing:
        """The ring; a new one for the first actor, and for the first one after it was closed."""
        if self._ring is None or self._ring.is_closed:
            self._ring = await self.in_thread(lambda: DeviceRing(self._options))
            self.actors = {}
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
        self._learn(kernel)
        if not future.done():
            future.set_result(place)

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
        self._collect()

    def _collect(self) -> None:
        link = self.ring.link
        for parts in link.take_answers():
            actor = self.actors.get(parts[0][6])
            if actor is not None:
                self._post.answer(actor.kernel.kernel_id, actor.loaded(parts))
        for parts in link.take_letters():
            self.bury(parts)
        failure = link.failure()
        if failure is not None:
            error = ActorFailedError(f"the ring is lost: {failure}")
            for actor in list(self.actors.values()):
                actor.failed(error)
        for actor in list(self.actors.values()):
            actor.outbox.wake()

    def bury(self, parts: Any) -> None:
        """Note a message that reached nobody."""
        (kind, _, priority, reason, number, correlation, _, destination, *_), payload = parts
        actor = self.actors.get(destination)
        name = actor.kernel.kernel_id if actor is not None else f"actor {destination}"
        cls = self.type_of(kind)
        message: Any = payload
        if cls is not None:
            message = cls._load(cls, payload, 0)
            message.message_id, message.correlation_id, message.priority = number, correlation, priority
        why = REASONS.get(reason, "lost")
        self._post.dead(name, message, why)
        if why == "failed" and actor is not None and self._loop is not None:
            # The device says so a moment later.
            self._loop.call_soon_threadsafe(self._check_failed, actor, 20)

    def _check_failed(self, actor: DeviceActor, tries: int) -> None:
        actor._look_at_mode()
        if tries and not actor.state.is_over and self._loop is not None and not self._loop.is_closed():
            self._loop.call_later(0.005, self._check_failed, actor, tries - 1)

    async def close(self) -> None:
        """End the kernel."""
        if self._ring is None or self._ring.is_closed:
            return
        ring = self._ring
        try:
            await self.in_thread(ring.close)
        finally:
            self._collect()
            if self._loop is not None and self._fd >= 0:
                self._loop.remove_reader(self._fd)
                ring.link.signal(-1)
                os.close(self._fd)
                self._fd = -1


def _settle(future: asyncio.Future[Place], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
