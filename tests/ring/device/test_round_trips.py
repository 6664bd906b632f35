"""Messages to device actors, and what comes back from them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from actors import run
from device_actors import (
    BATCH,
    ECHO,
    PASS,
    Item,
    check_balance,
    count_of,
    make,
    numbered,
    processed,
    source_of,
    start,
    until,
)

import pygpukit as gp
from pygpukit.errors import MessageError
from pygpukit.ring import RingKernelRuntime, message, ring_kernel


def test_calls_sends_and_receives(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        asked = Item(7, 1, -5)
        answer = client.call(asked, timeout=20)
        assert (answer.id, answer.hops, answer.value) == (7, 2, -5)
        assert answer.correlation_id == asked.message_id
        for n in range(20):
            assert client.send(Item(n, 0, 0)) is True
        assert [client.receive(timeout=20).id for _ in range(20)] == list(range(20))
        with pytest.raises(TimeoutError, match="sent nothing within"):
            client.receive(timeout=0.02)
        figures = check_balance(runtime, echo, 21)
        assert (figures.processed, figures.sent, figures.answered) == (21, 21, 1)
        assert count_of(runtime, echo) == 21


def test_coroutines(dedicated: bool) -> None:
    async def main() -> None:
        echo = make(dedicated=dedicated)
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(echo):
            assert (await runtime.send_and_receive(echo, Item(1, 0, 0), timeout=20)).id == 1
            waiting = asyncio.create_task(runtime.receive(echo))
            await asyncio.sleep(0.01)
            assert await runtime.send(echo, Item(2, 0, 0))
            assert (await waiting).id == 2
            assert await runtime.send(echo, Item(3, 0, 0))
            assert (await runtime.receive(echo, timeout=20)).id == 3
            with pytest.raises(TimeoutError):
                await runtime.receive(echo, timeout=0.02)

    run(main())


@pytest.mark.parametrize("isolation", [None, "process"])
def test_a_message_that_does_not_fit_can_be_mended(isolation: str | None) -> None:
    async def main() -> None:
        echo = make()
        asked: Any = Item(5, 1, 2)
        async with RingKernelRuntime(isolation=isolation) as runtime, runtime.kernel_scope(echo):
            client = runtime.client(echo)
            asked.value = "two"
            for _ in range(2):
                with pytest.raises(MessageError, match=r"Item\(.*'two'.* does not fit its layout"):
                    await asyncio.to_thread(client.call, asked, 20)
                with pytest.raises(MessageError, match="does not fit its layout"):
                    await runtime.send_and_receive(echo, asked, timeout=20)
            asked = Item(5, 1, 2)
            asked.value = "two"
            with pytest.raises(MessageError):
                await asyncio.to_thread(client.call, asked, 20)
            asked.value = 3
            answer = await asyncio.to_thread(client.call, asked, 20)
            assert (answer.value, answer.correlation_id) == (3, asked.message_id)

    run(main())


@message
class Arrays:
    """Nothing but arrays."""

    x: gp.int32[3]  # type: ignore[valid-type]
    y: gp.float64[2, 2]  # type: ignore[valid-type]


@message
class Mixed:
    """An array and a number of a type that Python does not have."""

    x: gp.int32[3]  # type: ignore[valid-type]
    weight: gp.bfloat16


@pytest.mark.parametrize("isolation", [None, "process"])
@pytest.mark.parametrize("kind", [Arrays, Mixed])
def test_answers_are_their_own(kind: Any, isolation: str | None) -> None:
    rest = {"y": np.arange(4.0).reshape(2, 2)} if kind is Arrays else {"weight": 1.5}
    copied = "out.y[i % 2][i / 2] = in.y[i % 2][i / 2];" if kind is Arrays else "out.weight = in.weight;"

    def function() -> None: ...

    function.__doc__ = f"""
    __device__ void handle(const {kind.__name__}& in, {kind.__name__}& out, State& state, Context& ctx) {{
        for (int i = ctx.lane; i < 4; i += ctx.width) {{
            if (i < 3) out.x[i] = in.x[i] + 1;
            {copied}
        }}
        ctx.sync();
        ctx.send(out);
    }}
    """
    ring_kernel(kernel_id="own", input_type=kind, output_type=kind, device="gpu", block_size=32)(function)
    with RingKernelRuntime(isolation=isolation) as runtime:
        [client] = start(runtime, "own")
        asked = [kind(x=np.full(3, n, np.int32), **rest) for n in range(4)]
        answers = [client.call(one, 20.0) for one in asked]
        for n, (one, answer) in enumerate(zip(asked, answers, strict=True)):
            assert type(answer) is kind
            assert answer.correlation_id == one.message_id
            assert answer.x.tolist() == 3 * [n + 1]
            assert (answer.y == rest["y"]).all() if kind is Arrays else answer.weight == 1.5


@pytest.mark.parametrize("isolation", [None, "process"])
def test_one_message_in_many_calls(isolation: str | None) -> None:
    async def main() -> None:
        echo = make()
        asked = Item(5, 1, 2)
        async with RingKernelRuntime(isolation=isolation) as runtime, runtime.kernel_scope(echo):
            answers = await asyncio.gather(*(runtime.send_and_receive(echo, asked, timeout=20) for _ in range(4)))
            client = runtime.client(echo)
            answers += await asyncio.gather(*(asyncio.to_thread(client.call, asked, 20) for _ in range(4)))
            assert [(one.id, one.hops) for one in answers] == 8 * [(5, 2)]
            assert await runtime.send(echo, asked)
            assert (await runtime.receive(echo, timeout=20)).id == 5
            assert runtime.dead_letters() == []

    run(main())


def test_concurrent_calls_get_their_own_answers(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    wrong: list[Any] = []

    def ask(client: Any, first: int) -> None:
        for n in range(first, first + 40):
            answer = client.call(Item(n, 0, -n), timeout=30)
            if (answer.id, answer.value) != (n, -n):
                wrong.append((n, answer))

    async def ask_all(runtime: RingKernelRuntime) -> None:
        async def one(n: int) -> None:
            answer = await runtime.send_and_receive(echo, Item(n, 0, -n), timeout=30)
            if (answer.id, answer.value) != (n, -n):
                wrong.append((n, answer))

        for first in range(10_000, 10_200, 50):
            await asyncio.gather(*(one(n) for n in range(first, first + 50)))

    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        threads = [threading.Thread(target=ask, args=(client, 1000 * at)) for at in range(4)]
        for thread in threads:
            thread.start()
        runtime.run(ask_all(runtime))
        for thread in threads:
            thread.join()
        assert wrong == []
        until(lambda: processed(runtime, echo) == 360)
        figures = check_balance(runtime, echo, 360)
        assert (figures.processed, figures.answered, figures.output_depth) == (360, 360, 0)


def test_batches_keep_their_order(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=64)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        array = numbered(1500)
        got: list[Any] = []
        reader = threading.Thread(target=lambda: got.append(client.receive_batch(1500, timeout=40)))
        reader.start()
        assert client.send_batch(array, timeout=40) == 1500
        reader.join()
        assert got[0].dtype == Item.dtype
        assert np.array_equal(got[0]["id"], array["id"])
        assert (got[0]["hops"] == 1).all()
        assert client.send_batch([Item(n, 0, 0) for n in range(10)], timeout=20) == 10
        assert [client.receive(timeout=20).id for _ in range(10)] == list(range(10))
        assert len(client.receive_batch(5, timeout=0.02)) == 0


def test_actors_that_take_batches(dedicated: bool) -> None:
    batch = make(BATCH, block_size=64)
    sender = make(PASS, to=batch, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, from_device = start(runtime, batch, sender)
        assert client.call(Item(5, 0, 9), timeout=20).value == 9
        assert client.send(Item(6, 0, 0))
        assert client.receive(timeout=20).id == 6
        assert client.send_batch(numbered(3000), timeout=30) == 3000
        got = client.receive_batch(3000, timeout=30)
        assert np.array_equal(got["id"], np.arange(3000))
        assert (got["hops"] == 1).all()
        assert from_device.send_batch(numbered(300), timeout=30) == 300
        got = client.receive_batch(300, timeout=30)
        assert np.array_equal(got["id"], np.arange(300))
        assert (got["hops"] == 2).all()
        figures = check_balance(runtime, batch, 3302)
        assert figures.processed == 3302
        assert count_of(runtime, batch) == 3302


def test_calls_and_batches_at_the_same_time() -> None:
    batch = make(BATCH, block_size=64, queue_size=256)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, batch)
        wrong: list[Any] = []

        def ask() -> None:
            wrong.extend(n for n in range(100) if client.call(Item(n, 0, 3), timeout=30).id != n)

        def write() -> None:
            client.send_batch(numbered(2000, 1000), timeout=30)

        threads = [threading.Thread(target=ask), threading.Thread(target=write)]
        for thread in threads:
            thread.start()
        got = client.receive_batch(2000, timeout=30)
        for thread in threads:
            thread.join()
        assert wrong == []
        assert np.array_equal(got["id"], np.arange(1000, 3000))


def _block(words: int) -> Any:
    return message(type(f"Block{words}", (), {"__annotations__": {"x": gp.int32[words]}}))


def test_small_and_large_messages() -> None:
    body = """
    for (int i = ctx.lane; i < (int)(sizeof(In) / 4); i += ctx.width) out.x[i] = in.x[i] + i;
    ctx.send(out);
    """
    sizes = (4, 16, 20, 24, 200, 1020, 1024)
    ids = {
        (words, own): make(body, input_type=_block(words), output_type=_block(words), dedicated=own, queue_size=8)
        for words in sizes
        for own in (True, False)
    }
    with RingKernelRuntime() as runtime:
        clients = dict(zip(ids, start(runtime, *ids.values()), strict=True))
        for (words, _), client in clients.items():
            cls = client._input_type
            values = np.arange(words, dtype=np.int32) * 1000
            for _ in range(20):
                answer = client.call(cls(values), timeout=20)
                assert np.array_equal(answer.x, values + np.arange(words))


def test_odd_block_sizes() -> None:
    body = """
    __shared__ int sum[1];
    if (ctx.lane == 0) sum[0] = 0;
    ctx.sync();
    for (int i = ctx.lane; i < 40; i += ctx.width) atomicAdd(sum, in.x[i]);
    ctx.sync();
    if (ctx.lane == 0) { out = in; out.x[0] = sum[0]; out.x[1] = (int)ctx.width; }
    ctx.send(out);
    """
    cls = _block(40)
    ids = {
        (size, own): make(body, input_type=cls, output_type=cls, dedicated=own, block_size=size, queue_size=8)
        for size in (1, 33, 128, 256)
        for own in (True, False)
    }
    with RingKernelRuntime() as runtime:
        for (size, _), client in zip(ids, start(runtime, *ids.values()), strict=True):
            for n in range(10):
                answer = client.call(cls(np.arange(40) + n), timeout=20)
                assert answer.x[0] == 780 + 40 * n
                assert answer.x[1] == -(-size // 32) * 32


@message
class Everything:
    a: bool
    b: gp.int8
    c: gp.uint8
    d: gp.int16
    e: gp.uint16
    f: gp.int32
    g: gp.uint32
    h: gp.int64
    i: gp.uint64
    j: gp.float16
    k: gp.bfloat16
    f4: gp.float32
    m: gp.float64
    n: gp.int8[3]
    o: gp.float64[2, 3]
    p: gp.bfloat16[5]
    q: int
    r: float


def test_every_kind_of_field(dedicated: bool) -> None:
    body = "if (ctx.lane == 0) { out = in; out.h = in.h - 1; out.o[1][2] = in.o[0][0] * 2; } ctx.send(out);"
    echo = make(body, input_type=Everything, output_type=Everything, dedicated=dedicated)
    sent = Everything(
        True, -8, 200, -3000, 60000, -(2**31), 2**32 - 1, -(2**62), 2**64 - 1, 0.5, 1.5, 2.25, 1e300,
        [1, -2, 3], np.arange(6.0).reshape(2, 3) + 1, np.full(5, 0.5), -7, 0.1,
    )  # fmt: skip
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        got = client.call(sent, timeout=20)
        rows = client.send_batch(np.frombuffer(sent.to_bytes(), Everything.dtype), timeout=20)
        assert (rows, client.receive(timeout=20)) == (1, got)
    assert got.h == sent.h - 1
    assert got.o[1, 2] == 2 * sent.o[0, 0]
    for name in ("f4", *"abcdefgijkmqr"):
        assert getattr(got, name) == getattr(sent, name)
    assert np.array_equal(got.n, sent.n)
    assert np.array_equal(got.o[0], sent.o[0])
    assert np.array_equal(got.p, sent.p)


def test_two_classes_of_one_name(dedicated: bool) -> None:
    small = message(type("Reading", (), {"__annotations__": {"x": gp.int32}}))
    large = message(type("Reading", (), {"__annotations__": {"x": gp.int64, "y": gp.int64}}))
    assert small.type_id != large.type_id

    def function() -> None: ...

    function.__doc__ = source_of("if (ctx.lane == 0) { out.x = in.x + 1; out.y = sizeof(In); } ctx.send(out);")
    kernel = ring_kernel(
        kernel_id=make(), input_type=small, output_type=large, device="gpu", dedicated=dedicated, block_size=32
    )(function)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, kernel.kernel_id)
        got = client.call(small(41), timeout=20)
        assert type(got) is large
        assert (got.x, got.y) == (42, small.dtype.itemsize)


def test_numbers_and_priorities_travel(dedicated: bool) -> None:
    echo = make(ECHO, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        seen = set()
        for n in range(30):
            asked = Item(n, 0, 0, priority=n)
            client.send(asked)
            got = client.receive(timeout=20)
            assert (got.correlation_id, got.priority) == (asked.message_id, n)
            seen.add(got.message_id)
        assert len(seen) == 30


@pytest.mark.parametrize("body", [ECHO, BATCH], ids=["one", "batch"])
def test_latencies_of_the_hosts_messages(dedicated: bool, body: str) -> None:
    """One in 16 is timed, from sending until the handler has returned."""
    echo = make(body, dedicated=dedicated or body is BATCH)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        began = time.monotonic()
        for n in range(64):
            assert client.call(Item(n, 0, 0), timeout=20).id == n
        took = time.monotonic() - began
        until(lambda: runtime.get_telemetry(echo).latency.count == 4)
        latency = runtime.get_telemetry(echo).latency
        assert 0 < latency.p50 <= latency.max <= 2 * took
