"""The life of device actors: every step is answered by the device."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from actors import run
from device_actors import (
    BATCH,
    COUNT,
    ECHO,
    PASS,
    Item,
    check_balance,
    count_of,
    launch,
    letters,
    make,
    new_id,
    numbered,
    processed,
    start,
    until,
)

import pygpukit as gp
from pygpukit.errors import ActorFailedError, KernelCompileError, RingError
from pygpukit.ring import KernelState, RingClient, RingKernelRuntime, ring_kernel
from pygpukit.ring.device import DeviceRing


def test_steps(dedicated: bool) -> None:
    async def main() -> None:
        echo = make(dedicated=dedicated)
        async with RingKernelRuntime() as runtime:
            assert runtime.get_kernel_state(echo) is KernelState.CREATED
            with pytest.raises(RingError, match="launch it first"):
                await runtime.send(echo, Item(1, 0, 0))
            steps = (
                (runtime.launch, KernelState.LAUNCHED),
                (runtime.activate, KernelState.ACTIVE),
                (runtime.deactivate, KernelState.DEACTIVATED),
                (runtime.reactivate, KernelState.ACTIVE),
                (runtime.terminate, KernelState.TERMINATED),
            )
            for step, state in steps:
                await step(echo)
                assert runtime.get_kernel_state(echo) is state
                if state is not KernelState.ACTIVE:
                    with pytest.raises(RingError, match="cannot deactivate"):
                        await runtime.deactivate(echo)
            with pytest.raises(RingError, match="launch it again"):
                await runtime.send(echo, Item(1, 0, 0))
            with pytest.raises(RingError, match="launch it again"):
                await runtime.receive(echo)

    run(main())


def test_nothing_is_done_before_it_is_active(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        assert client.send_batch(numbered(100), timeout=20) == 100
        time.sleep(0.05)
        assert (processed(runtime, echo), count_of(runtime, echo)) == (0, 0)
        assert check_balance(runtime, echo, 100).input_depth == 100
        runtime.run(runtime.activate(echo))
        assert np.array_equal(client.receive_batch(100, timeout=20)["id"], np.arange(100))


def test_a_deactivated_actor_stands_still_under_load(dedicated: bool) -> None:
    end = make(COUNT, dedicated=dedicated)
    first = make(PASS, to=end, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, first, end)
        sent = [0]
        is_over = threading.Event()

        def load() -> None:
            while not is_over.is_set():
                sent[0] += client.send_batch(numbered(50), timeout=0.2)

        loader = threading.Thread(target=load)
        loader.start()
        try:
            for _ in range(3):
                before = processed(runtime, end)
                until(lambda: processed(runtime, end) > before)  # noqa: B023
                runtime.run(runtime.deactivate(end))
                still = (processed(runtime, end), count_of(runtime, end))
                time.sleep(0.03)
                assert (processed(runtime, end), count_of(runtime, end)) == still
                runtime.run(runtime.reactivate(end))
        finally:
            is_over.set()
            loader.join()
        until(lambda: processed(runtime, end) == sent[0])
        runtime.run(runtime.deactivate(end))
        assert count_of(runtime, end) == sent[0]
        check_balance(runtime, end, sent[0])


def test_an_ended_actor_is_launched_again(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    end = make(PASS, to=echo, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, sender = start(runtime, echo, end)
        for round_ in range(3):
            assert client.call(Item(1, 0, 0), timeout=20).id == 1
            sender.send(Item(round_, 0, 0))
            assert client.receive(timeout=20).id == round_
            until(lambda: count_of(runtime, echo) == 2)
            runtime.run(runtime.terminate(echo))
            with pytest.raises(RingError):
                client.send(Item(1, 0, 0))
            [client] = start(runtime, echo)
            assert runtime.get_telemetry(echo).received == 0
        assert runtime.dead_letters() == []


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Actors are added to the ring when this is set."""
    go, add = threading.Event(), DeviceRing.add

    def held_add(ring: DeviceRing, kernels: Any) -> Any:
        assert go.wait(30)
        return add(ring, kernels)

    monkeypatch.setattr(DeviceRing, "add", held_add)
    return go


def test_who_sends_during_a_launch_waits_for_it(dedicated: bool, held: threading.Event) -> None:
    echo, host = make(dedicated=dedicated), new_id("host")

    @ring_kernel(kernel_id=host, input_type=Item)
    async def forward(ctx: Any) -> None:
        while not ctx.should_terminate:
            await ctx.send(await ctx.receive(), to=echo)

    with RingKernelRuntime() as runtime:
        start(runtime, host)
        for again in (0, 100):
            held.clear()
            launching = threading.Thread(target=start, args=(runtime, echo))
            launching.start()
            until(lambda: echo in runtime.kernel_ids and runtime.get_kernel_state(echo) is KernelState.CREATED)

            async def main(again: int = again) -> Any:
                tasks = [
                    asyncio.create_task(runtime.send_and_receive(echo, Item(again, 0, 0), timeout=20)),
                    asyncio.create_task(runtime.send(echo, Item(again + 1, 0, 0), timeout=20)),
                    asyncio.create_task(runtime.receive(echo, timeout=20)),
                ]
                await runtime.send(host, Item(again + 1, 0, 0))
                with pytest.raises(TimeoutError):
                    await runtime.send(echo, Item(0, 0, 0), timeout=0.01)
                with pytest.raises(TimeoutError):
                    await runtime.receive(echo, timeout=0.01)
                held.set()
                return await asyncio.gather(*tasks)

            client = runtime.client(echo)
            with pytest.raises(RingError, match="it is being launched"):
                runtime.run(runtime.launch(echo))
            told = r"is being launched, and was not ready within 0\.01 s"
            with pytest.raises(TimeoutError, match=told):
                client.send(Item(0, 0, 0), timeout=0.01)
            with pytest.raises(TimeoutError, match=told):
                client.call(Item(0, 0, 0), timeout=0.01)
            with pytest.raises(TimeoutError, match=told):
                client.send_batch(numbered(1), timeout=0.01)
            assert len(client.receive_batch(1, timeout=0.01)) == 0
            calls: list[Any] = []
            calling = threading.Thread(target=lambda: calls.append(client.call(Item(7, 0, 0), timeout=30)))  # noqa: B023
            calling.start()
            answer, accepted, first = runtime.run(main())
            launching.join()
            calling.join()
            assert (answer.id, accepted, first.id) == (again, True, again + 1)
            assert [one.id for one in calls] == [7]
            assert client.receive(timeout=20).id == again + 1
            check_balance(runtime, echo, 4)
            runtime.run(runtime.terminate(echo))
        assert runtime.dead_letters() == []


def test_who_waits_for_a_launch_that_fails_is_told(held: threading.Event) -> None:
    bad = make("this is wrong;")
    with RingKernelRuntime() as runtime:

        async def main() -> list[Any]:
            launching = asyncio.create_task(runtime.launch(bad))
            await asyncio.sleep(0.01)
            tasks = [
                launching,
                asyncio.create_task(runtime.send(bad, Item(0, 0, 0))),
                asyncio.create_task(runtime.receive(bad)),
                asyncio.create_task(runtime.receive(bad, timeout=20)),
            ]
            await asyncio.sleep(0.01)
            held.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        errors = runtime.run(main())
        assert isinstance(errors[0], KernelCompileError)
        assert all(isinstance(one, ActorFailedError) for one in errors[1:]), errors
        client = RingClient(runtime._launched(bad), runtime._running_loop())
        with pytest.raises(ActorFailedError):
            client.receive(timeout=5)


def test_the_device_is_the_callers(device: str) -> None:
    """Not that of the thread in which the ring is made, nor of the loop's."""
    other = "emulated" if device == "cpu" else f"cuda:{gp.device_count() - 1}"
    echo, second = make(), make(COUNT)
    with RingKernelRuntime() as runtime:
        with gp.device(other) as chosen:
            client = runtime.client(echo)
            assert client.call(Item(1, 0, 0), timeout=20).id == 1
        # The first one decides.
        start(runtime, second)
        assert repr(runtime._tier.ring.device) == repr(chosen)
        assert {repr(runtime.get_state(one)["count"].device) for one in (echo, second)} == {repr(chosen)}

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            with gp.device(other) as chosen:
                await runtime.launch(echo)
            assert repr(runtime._tier.ring.device) == repr(chosen)

    run(main())


def test_terminate_drains_all(dedicated: bool) -> None:
    count = 10_000
    echo = make(dedicated=dedicated, queue_size=16384)
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        assert client.send_batch(numbered(count), timeout=30) == count
        runtime.run(runtime.terminate(echo))
        assert runtime.get_kernel_state(echo) is KernelState.TERMINATED
        figures = check_balance(runtime, echo, count)
        assert (figures.processed, figures.sent, figures.input_depth) == (count, count, 0)
        assert count_of(runtime, echo) == count
        got = client.receive_batch(count + 1, timeout=20)
        assert np.array_equal(got["id"], np.arange(count))
        with pytest.raises(RingError, match="launch it again"):
            client.receive(timeout=5)
        assert len(client.receive_batch(1, timeout=5)) == 0


def test_terminate_drains_a_small_output(dedicated: bool) -> None:
    """Nobody receives meanwhile: the output grows beyond its size."""
    echo = make(dedicated=dedicated, queue_size=1024, output_queue_size=8)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        assert client.send_batch(numbered(500), timeout=20) == 500
        until(lambda: processed(runtime, echo) >= 8)
        runtime.run(runtime.terminate(echo, timeout=20))
        assert np.array_equal(client.receive_batch(500, timeout=20)["id"], np.arange(500))


@pytest.mark.parametrize("isolation", [None, "process"])
def test_nothing_is_accepted_once_it_is_to_end(dedicated: bool, isolation: str | None) -> None:
    """Senders that wait for room are told so, and all others' messages are handled."""
    echo = make(COUNT, dedicated=dedicated, queue_size=8)
    accepted, refused = [0] * 4, [0] * 4

    def send(n: int) -> None:
        try:
            while client.send(Item(n, 0, 0), timeout=60):
                accepted[n] += 1
        except RingError:
            refused[n] += 1

    with RingKernelRuntime(isolation=isolation) as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: sum(accepted) >= 8)
        runtime.run(runtime.terminate(echo, timeout=60))
        for thread in threads:
            thread.join()
        assert refused == [1] * 4
        assert runtime.dead_letters() == []
        assert check_balance(runtime, echo, sum(accepted)).processed == sum(accepted)


def test_terminate_without_draining(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=1024)
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        assert client.send_batch(numbered(700), timeout=20) == 700
        runtime.run(runtime.terminate(echo, drain=False, timeout=20))
        until(lambda: len(letters(runtime)) == 700)
        assert letters(runtime, "terminated") == list(range(700))
        figures = check_balance(runtime, echo, 700)
        assert (figures.discarded, figures.processed, figures.input_depth) == (700, 0, 0)


def test_what_comes_after_the_end_is_a_dead_letter(dedicated: bool) -> None:
    end = make(COUNT, dedicated=dedicated)
    first = make(PASS, to=end, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, first, end)
        client.send(Item(1, 0, 0))
        until(lambda: processed(runtime, end) == 1)
        runtime.run(runtime.terminate(end))
        for n in range(20):
            client.send(Item(10 + n, 0, 0))
        until(lambda: len(letters(runtime)) == 20)
        assert sorted(letters(runtime)) == list(range(10, 30))
        assert {one.reason for one in runtime.dead_letters()} <= {"terminated", "unknown_destination"}


def test_shutdown_with_work_queued(dedicated: bool) -> None:
    end = make(COUNT, dedicated=dedicated, queue_size=64)
    middle = make(PASS, to=end, dedicated=dedicated, queue_size=64)
    first = make(PASS, to=middle, dedicated=dedicated, queue_size=4096)
    runtime = RingKernelRuntime()
    with runtime:
        client, *_ = start(runtime, first, middle, end)
        assert client.send_batch(numbered(2000), timeout=20) == 2000
    for one in (first, middle, end):
        assert runtime.get_kernel_state(one) is KernelState.TERMINATED
        figures = runtime.get_telemetry(one)
        assert (figures.received, figures.processed, figures.input_depth) == (2000, 2000, 0)
    assert runtime.dead_letters() == []


def test_shutdown_with_full_outputs(dedicated: bool) -> None:
    end = make(ECHO, dedicated=dedicated, queue_size=8)
    first = make(PASS, to=end, dedicated=dedicated, queue_size=256)
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, first, end)
        assert client.send_batch(numbered(200), timeout=20) == 200
        runtime.run(asyncio.wait_for(runtime.shutdown(), 15))
        assert np.array_equal(last.receive_batch(200, timeout=20)["id"], np.arange(200))
    assert runtime.dead_letters() == []


def test_shutdown_without_draining(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=4096)
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        assert runtime.client(echo).send_batch(numbered(3000), timeout=20) == 3000
        runtime.run(runtime.shutdown(drain=False))
        assert runtime.get_telemetry(echo).discarded == 3000
    assert runtime.get_summary()["dead_letters"] == {"terminated": 3000}


def test_kernel_scope(dedicated: bool) -> None:
    async def main() -> None:
        echo = make(dedicated=dedicated)
        async with RingKernelRuntime() as runtime:
            for _ in range(2):
                async with runtime.kernel_scope(echo) as kernel_id:
                    for n in range(20):
                        await runtime.send(kernel_id, Item(n, 0, 0))
                assert runtime.get_kernel_state(echo) is KernelState.TERMINATED
                assert [(await runtime.receive(echo)).id for _ in range(20)] == list(range(20))

    run(main())


def test_actors_are_added_under_load(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=256)
    end = make(ECHO, dedicated=not dedicated, queue_size=256)
    first = make(PASS, to=end, dedicated=dedicated, queue_size=256)
    later = [make(ECHO, dedicated=dedicated), make(COUNT, dedicated=not dedicated), make(PASS, to=echo)]
    with RingKernelRuntime() as runtime:
        client, sender, last = start(runtime, echo, first, end)
        wrong: list[Any] = []
        is_over = threading.Event()
        counts = [0, 0]

        def call() -> None:
            while not is_over.is_set():
                counts[0] += 1
                if client.call(Item(counts[0], 0, 0), timeout=30).id != counts[0]:
                    wrong.append(counts[0])

        def write() -> None:
            while not is_over.is_set():
                counts[1] += sender.send_batch(numbered(20, counts[1]), timeout=30)

        threads = [threading.Thread(target=call), threading.Thread(target=write)]
        for thread in threads:
            thread.start()
        got: list[int] = []
        for one in later:
            [new] = start(runtime, one)
            new.send(Item(-1, 0, 0))
            got += last.receive_batch(50, timeout=30)["id"].tolist()
        is_over.set()
        for thread in threads:
            thread.join()
        got += last.receive_batch(counts[1] - len(got), timeout=30)["id"].tolist()
        assert wrong == []
        assert got == list(range(counts[1]))
        check_balance(runtime, first, counts[1])
        runtime.run(runtime.deactivate(first))
        assert count_of(runtime, first) == counts[1]


def test_many_actors_at_once() -> None:
    ids = [make(ECHO, dedicated=False, queue_size=4) for _ in range(200)]
    with RingKernelRuntime() as runtime:

        async def all_of_them() -> None:
            await asyncio.gather(*(runtime.launch(one) for one in ids))
            await asyncio.gather(*(runtime.activate(one) for one in ids))
            answers = await asyncio.gather(
                *(runtime.send_and_receive(one, Item(n, 0, 0), timeout=30) for n, one in enumerate(ids))
            )
            assert [answer.id for answer in answers] == list(range(200))

        runtime.run(all_of_them())


def test_closing_while_the_first_actor_is_launched() -> None:
    echo = make()

    async def main() -> RingKernelRuntime:
        async with RingKernelRuntime() as runtime:
            launch = asyncio.create_task(runtime.launch(echo))
            await asyncio.sleep(0)
        await asyncio.gather(launch, return_exceptions=True)
        return runtime

    runtime = asyncio.run(main())
    assert not runtime.status()["up"]
    assert runtime.get_kernel_state(echo).is_over


def test_blocks_of_batches_that_ended_are_others() -> None:
    batch = make(BATCH)
    with RingKernelRuntime() as runtime:
        for n in range(5):
            [client] = start(runtime, batch)
            assert client.call(Item(n, 0, 0), timeout=20).id == n
            runtime.run(runtime.terminate(batch))
        start(runtime, make())
        assert sum(place.dedicated for place in runtime._tier.ring.places) <= 2


def test_orders_beside_callers_that_take_all_threads() -> None:
    echo = make()

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await runtime.launch(echo)
            client = runtime.client(echo)
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(2))
            calls = [asyncio.to_thread(client.call, Item(n, 0, 0), 30.0) for n in range(4)]
            waiting = asyncio.gather(*calls)
            await asyncio.sleep(0.05)
            await asyncio.wait_for(runtime.activate(echo), 20)
            assert [answer.id for answer in await waiting] == [0, 1, 2, 3]

    asyncio.run(main())
