"""Kernels that are launched and activated because somebody wants a client of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pygpukit.core.device import Device
from pygpukit.ring.actor import Actor
from pygpukit.ring.states import KernelState

__all__ = ["Starts"]


class Starts:
    """Starts each kernel once for all who want it; in the runtime's loop.

    Parameters
    ----------
    find : callable
        Gives the actor of an id, or None.
    launch : callable
        Launches a kernel on a device.
    """

    def __init__(
        self,
        find: Callable[[str], Actor | None],
        launch: Callable[[str, Device | None], Coroutine[Any, Any, None]],
    ) -> None:
        self._find = find
        self._launch = launch
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def start(self, kernel_id: str, where: Device | None) -> None:
        """Launch and activate a kernel; one that somebody else launched is theirs to activate."""
        started = self._under_way.get(kernel_id)
        if started is None:
            started = self._under_way[kernel_id] = asyncio.ensure_future(self._start(kernel_id, where))
        # One who gives up does not take the others along.
        await asyncio.shield(started)

    async def _start(self, kernel_id: str, where: Device | None) -> None:
        try:
            if self._find(kernel_id) is not None:
                return
            await self._launch(kernel_id, where)
            actor = self._find(kernel_id)
            if actor is not None and actor.state is KernelState.LAUNCHED:
                await actor.activate()
        finally:
            del self._under_way[kernel_id]
