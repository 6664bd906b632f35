"""The end of all actors of a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pygpukit.ring.actor import Actor
from pygpukit.ring.device_tier import DeviceTier
from pygpukit.ring.limits import end_of, left_of
from pygpukit.ring.states import KernelState

__all__ = ["end_all"]

# Seconds that actors have at least to end by themselves.
_GRACE = 0.1


async def end_all(actors: Mapping[str, Actor], tier: DeviceTier, drain: bool, timeout: float | None) -> None:
    """End a runtime's actors, with what was accepted handled or not, and their ring."""
    # Else there would always be something left to do.
    tier.stop_timers()
    until = end_of(timeout)
    # What is being launched comes up first, so that it can end.
    while any(actor.state is KernelState.CREATED for actor in actors.values()) and left_of(until) != 0.0:
        await asyncio.sleep(0.001)
    try:
        await _end_actors(list(actors.values()), tier, drain, until)
    except asyncio.CancelledError:
        # Device actors need the ring to end, which is left to whoever comes next.
        raise
    except BaseException:
        await tier.close()
        raise
    await tier.close()


async def _end_actors(actors: Sequence[Actor], tier: DeviceTier, drain: bool, until: float | None) -> None:
    if drain and len(actors) > 1:
        # Those that only make messages end first; else the others would never be done. Device actors only answer.
        makers = [one for one in actors if one.telemetry().received == 0 and one.kernel.kind != "device"]
        await _end(makers, drain, until)
        for actor in actors:
            actor.unbind_output()
        await _settle(actors, tier, until)
    await _end(actors, drain, until)


async def _end(actors: Sequence[Actor], drain: bool, until: float | None) -> None:
    left = None if until is None else max(_GRACE, left_of(until) or 0.0)
    ends = (actor.terminate(drain, left) for actor in actors if not actor.state.is_over)
    for end in await asyncio.gather(*ends, return_exceptions=True):
        if isinstance(end, BaseException):
            raise end


async def _settle(actors: Sequence[Actor], tier: DeviceTier, until: float | None) -> None:
    """Wait until no actor has anything left that it may send to another; then they can end in any order."""
    pause = 0.001
    while left_of(until) != 0.0:
        open_actors = [actor for actor in actors if actor.state.is_open]
        for actor in open_actors:
            if actor.state is not KernelState.ACTIVE:
                await actor.activate()
        figures = [actor.telemetry() for actor in open_actors]
        # Figures of the device are of a moment ago; whether it has really nothing left takes longer to find out.
        if not any(one.input_depth + one.in_progress for one in figures) and await tier.is_at_rest(left_of(until)):
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.05)
