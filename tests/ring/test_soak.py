"""Everything at once: senders of all kinds, pauses, failures, deadlines; then the counts must agree."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import time
import weakref
from collections import Counter
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, make_actor, run

from pygpukit.errors import MailboxFullError, UndeliveredError
from pygpukit.ring import KernelState, RingKernelRuntime

POLICIES = ("block", "reject", "drop_oldest", "drop_new")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_counts_agree_whatever_happened(kind: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pygpukit.ring")
    rng = random.Random(seed)
    told: Counter[str] = Counter()
    lock = threading.Lock()

    def count(what: str) -> None:
        with lock:
            told[what] += 1

    def handle(one: Any) -> Any:
        if one.n % 50 == 49:
            raise ValueError(one.n)
        count("handled")
        return Answer(one.n)

    kernel = make_actor(
        kind, handle, backpressure=POLICIES[seed], queue_size=16, output_queue_size=1 << 20,
        restart="on_failure", max_restarts=1 << 20,
    ).kernel_id  # fmt: skip

    def ask(n: int) -> Any:
        deadline = time.monotonic() if n % 31 == 0 else None
        return Ask(n, priority=n % 3, deadline=deadline)

    async def sending(runtime: RingKernelRuntime, first: int) -> None:
        for n in range(first, first + 300):
            try:
                count("sent" if await runtime.send(kernel, ask(n)) else "dropped")
            except MailboxFullError:
                count("rejected")
                await asyncio.sleep(0)

    async def calling(runtime: RingKernelRuntime, first: int) -> None:
        for n in range(first, first + 100):
            try:
                assert (await runtime.send_and_receive(kernel, ask(n), timeout=60)).n == n
                count("answered")
            except (UndeliveredError, MailboxFullError):
                count("unanswered")

    def in_thread(runtime: RingKernelRuntime, first: int) -> None:
        client = runtime.client(kernel)
        for n in range(first, first + 100):
            try:
                assert client.call(ask(n), timeout=60).n == n
                count("answered")
            except (UndeliveredError, MailboxFullError):
                count("unanswered")

    async def pausing(runtime: RingKernelRuntime) -> None:
        for _ in range(10):
            await asyncio.sleep(rng.random() * 0.005)
            await runtime.deactivate(kernel)
            before = runtime.get_telemetry(kernel)
            await asyncio.sleep(rng.random() * 0.002)
            after = runtime.get_telemetry(kernel)
            assert (before.processed, before.failed) == (after.processed, after.failed)
            await runtime.reactivate(kernel)

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            await runtime.activate(kernel)
            await asyncio.gather(
                *(sending(runtime, 1000 * at) for at in range(3)),
                *(calling(runtime, 10_000 * at) for at in range(1, 3)),
                *(asyncio.to_thread(in_thread, runtime, 100_000 * at) for at in range(1, 3)),
                pausing(runtime),
            )
            await runtime.terminate(kernel)
            figures = runtime.get_telemetry(kernel)
            letters = Counter(letter.reason for letter in runtime.dead_letters())
        gone = figures.displaced + figures.expired + figures.discarded
        assert figures.received == figures.processed + figures.failed + gone
        assert (figures.in_progress, figures.input_depth, figures.discarded) == (0, 0, 0)
        assert figures.processed == told["handled"] == figures.sent
        assert figures.answered == told["answered"]
        assert told["answered"] + told["unanswered"] == 400
        assert figures.restarts == figures.failed == letters["failed"]
        assert (letters["expired"], letters["dropped_oldest"]) == (figures.expired, figures.displaced)
        assert letters["dropped_new"] == figures.dropped
        assert figures.output_depth == figures.sent - figures.answered
        assert figures.latency.count == figures.processed
        assert figures.state is KernelState.TERMINATED
        if POLICIES[seed] == "block":
            assert figures.received == 900 + 400

    run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tidy", [True, False])
def test_nothing_is_left_of_a_runtime(kind: str, tidy: bool) -> None:
    def use() -> list[Any]:
        runtime = RingKernelRuntime()
        kernel = make_actor(kind).kernel_id

        async def main() -> None:
            await runtime.start()
            await runtime.launch(kernel)
            await runtime.activate(kernel)
            assert (await runtime.send_and_receive(kernel, Ask(1), timeout=60)).n == 1
            if tidy or kind == "thread":
                await runtime.shutdown()

        run(main())
        actor: Any = runtime._actors[kernel]
        if kind == "thread":
            actor._thread.join(60)
        return [weakref.ref(runtime), weakref.ref(actor), weakref.ref(actor.inbox)]

    left = use()
    gc.collect()
    assert [one() for one in left] == [None, None, None]
