"""The state of device actors, on the device and from the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_actors import ECHO, Item, make, processed, start, until

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime

ADD = """
    for (unsigned i = ctx.lane; i < sizeof(state.x) / 4; i += ctx.width) state.x[i] += in.value;
    ctx.sync();
    if (ctx.lane == 0) { out = in; out.value = (int)state.x[3]; out.hops = (int)(state.x[sizeof(state.x) / 4 - 1]); }
    if (ctx.lane == 0) state.count += 1;
    ctx.send(out);
"""

# Below and above what a block of its own keeps in its shared memory.
SIZES = (64, 504, 600, 5000)


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_initial_values_and_what_is_written(dedicated: bool, size: int) -> None:
    begin = np.arange(size, dtype=np.float32)
    actor = make(ADD, state={"x": begin, "count": gp.int64, "flag": np.uint8(3)}, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, actor)
        state = runtime.get_state(actor)
        assert {name: (one.shape, str(one.dtype)) for name, one in state.items()} == {
            "x": ((size,), "float32"),
            "count": ((1,), "int64"),
            "flag": ((1,), "uint8"),
        }
        assert np.array_equal(state["x"].to_numpy(), begin)
        got = client.call(Item(1, 0, 10), timeout=20)
        assert (got.value, got.hops) == (13, size - 1 + 10)
        runtime.run(runtime.deactivate(actor))
        assert np.array_equal(runtime.get_state(actor)["x"].to_numpy(), begin + 10)
        assert int(state["count"].to_numpy()[0]) == 1
        assert int(state["flag"].to_numpy()[0]) == 3
        # What is written while it stands still counts from then on.
        state["x"][...] = 100.0
        gp.current_stream().synchronize()
        runtime.run(runtime.reactivate(actor))
        got = client.call(Item(1, 0, 1), timeout=20)
        assert (got.value, got.hops) == (101, 101)
    assert np.array_equal(runtime.get_state(actor)["x"].to_numpy(), np.full(size, 101, np.float32))


def test_state_is_kept_when_the_ring_is_rebuilt(dedicated: bool, size: int) -> None:
    actor = make(ADD, state={"x": gp.float32[size], "count": gp.int64}, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, actor)
        link = runtime._tier.ring.link
        for n in range(1, 5):
            got = client.call(Item(1, 0, 1), timeout=20)
            assert (got.value, got.hops) == (n, n)
            if n % 2:
                link.park()
                link.resume()
            else:
                start(runtime, make(ECHO, dedicated=dedicated))
        until(lambda: processed(runtime, actor) == 4)


def test_actors_of_one_handler_have_their_own_state(dedicated: bool) -> None:
    ids = [make(ADD, state={"x": gp.float32[64], "count": gp.int64}, dedicated=dedicated) for _ in range(3)]
    with RingKernelRuntime() as runtime:
        clients: list[Any] = start(runtime, *ids)
        for n, client in enumerate(clients, 1):
            assert client.call(Item(1, 0, n), timeout=20).value == n
        for n, client in enumerate(clients, 1):
            assert client.call(Item(1, 0, 0), timeout=20).value == n


def test_an_actor_without_state(dedicated: bool) -> None:
    actor = make("if (ctx.lane == 0) out = in; ctx.send(out);", state=None, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, actor)
        assert client.call(Item(1, 0, 4), timeout=20).value == 4
        assert runtime.get_state(actor) == {}
