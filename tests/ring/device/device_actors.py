"""Messages, handlers and waits that the tests of device actors share."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

_numbers = itertools.count()


@message
class Item:
    id: gp.int64
    hops: gp.int32
    value: gp.int32


@message
class Other:
    id: gp.int64
    x: gp.float64


# Bodies of handlers. The same texts make the same programs, which are compiled once.
ECHO = """
    if (ctx.lane == 0) { out = in; out.hops += 1; state.count += 1; }
    ctx.send(out);
"""
COUNT = """
    if (ctx.lane == 0) state.count += 1;
"""
PASS = """
    if (ctx.lane == 0) { out = in; out.hops += 1; state.count += 1; }
    ctx.send("next", out);
"""
# Fails with negative numbers.
PICKY = """
    if (in.value < 0) { ctx.fail(); return; }
    if (ctx.lane == 0) { out = in; state.count += 1; out.hops = (int)state.count; }
    ctx.send(out);
"""
BATCH = """
    for (unsigned i = ctx.lane; i < batch.size; i += ctx.width) { batch.out(i) = batch.in(i); batch.out(i).hops += 1; }
    if (ctx.lane == 0) state.count += batch.size;
"""


def new_id(what: str = "device") -> str:
    """A name that no kernel has."""
    return f"{what}-{next(_numbers)}"


def source_of(body: str, to: str | None = None, before: str = "") -> str:
    """A handler's text; `"next"` in it is the actor `to`."""
    into = "const Batch& batch" if "batch." in body else "const In& in, Out& out"
    entry = "handle_batch" if "batch." in body else "handle"
    text = f"{before}\n__device__ void {entry}({into}, State& state, Context& ctx) {{{body}}}\n"
    return text if to is None else text.replace('"next"', f'"{to}"')


def make(body: str = ECHO, *, to: str | None = None, kernel_id: str | None = None, **options: Any) -> str:
    """Define a device actor of a new id, and return the id."""
    options = {
        "input_type": Item,
        "output_type": Item,
        "device": "gpu",
        "state": {"count": gp.int64},
        "block_size": 32,
        **options,
    }

    def function() -> None: ...

    function.__doc__ = source_of(body, to)
    return ring_kernel(kernel_id=kernel_id or new_id(), **options)(function).kernel_id


def launch(runtime: RingKernelRuntime, *ids: str) -> None:
    """Launch actors together, so that the ring is built once."""

    async def all_of_them() -> None:
        await asyncio.gather(*(runtime.launch(one) for one in ids))

    runtime.run(all_of_them())


def start(runtime: RingKernelRuntime, *ids: str) -> list[Any]:
    """Launch and activate actors; their clients."""
    launch(runtime, *ids)
    for one in ids:
        runtime.run(runtime.activate(one))
    return [runtime.client(one) for one in ids]


def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait for something that happens elsewhere."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def numbered(count: int, first: int = 0, cls: Any = Item) -> np.ndarray[Any, Any]:
    """A structured array of messages with consecutive ids."""
    array = np.zeros(count, cls.dtype)
    array["id"] = np.arange(first, first + count)
    return array


def count_of(runtime: RingKernelRuntime, kernel_id: str) -> int:
    """The counter in an actor's state."""
    return int(runtime.get_state(kernel_id)["count"].to_numpy()[0])


def processed(runtime: RingKernelRuntime, kernel_id: str) -> int:
    return runtime.get_telemetry(kernel_id).processed


def letters(runtime: RingKernelRuntime, reason: str | None = None) -> list[int]:
    """Ids of the dead letters of a reason."""
    return [one.message.id for one in runtime.dead_letters() if reason in (None, one.reason)]


def check_balance(runtime: RingKernelRuntime, kernel_id: str, received: int) -> Any:
    """All that an actor was given is in one of its figures; it is at rest soon."""

    def is_balanced() -> bool:
        one = runtime.get_telemetry(kernel_id)
        gone = one.displaced + one.expired + one.discarded
        return one.received == received == one.processed + one.failed + gone + one.in_progress + one.input_depth

    try:
        until(is_balanced, 5)
    except AssertionError:
        raise AssertionError(f"not {received} received: {runtime.get_telemetry(kernel_id)}") from None
    return runtime.get_telemetry(kernel_id)
