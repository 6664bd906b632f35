"""The client for threads: with a loop of the runtime's own, beside one, in batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from actors import KINDS, Answer, Ask, make_actor, run, until

import pygpukit as gp
from pygpukit.errors import ActorFailedError, MessageError, RingError
from pygpukit.ring import KernelState, RingKernelRuntime, message, ring_kernel


@message
class Block:
    id: gp.int64
    x: gp.float32[4]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_loop(kind: str) -> None:
    kernel = make_actor(kind).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        assert client.call(Ask(5), timeout=60).n == 5
        assert client.send(Ask(6))
        assert client.receive(timeout=60).n == 6
        with pytest.raises(TimeoutError, match=r"sent nothing within 0.01 s"):
            client.receive(timeout=0.01)
        with pytest.raises(MessageError, match="takes Ask"):
            client.send(Answer(1))
        runtime.run(runtime.deactivate(kernel))
        assert runtime.get_kernel_state(kernel) is KernelState.DEACTIVATED
        with pytest.raises(TimeoutError, match="did not answer"):
            client.call(Ask(1), timeout=0.01)
        client.send(Ask(7))
    assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED
    assert runtime.get_telemetry(kernel).received == runtime.get_telemetry(kernel).processed == 4
    assert client.receive(timeout=60).n == 7
    with pytest.raises(RingError, match="is TERMINATED"):
        client.receive()
    with pytest.raises(RingError, match="is TERMINATED"):
        client.send(Ask(1))


@pytest.mark.parametrize("kind", KINDS)
def test_from_many_threads_each_gets_its_own_answers(kind: str) -> None:
    kernel = make_actor(kind, lambda one: Answer(3 * one.n), queue_size=4).kernel_id
    wrong: list[tuple[int, int]] = []
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)

        def work(first: int) -> None:
            for n in range(first, first + 100):
                answer = client.call(Ask(n), timeout=60).n
                if answer != 3 * n:
                    wrong.append((n, answer))

        threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert wrong == []
        assert runtime.get_telemetry(kernel).answered == 600


@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_ask_for_a_client_at_once(kind: str, is_begun: bool) -> None:
    many = 6
    for _ in range(5):
        kernel, runtime, together = make_actor(kind).kernel_id, RingKernelRuntime(), threading.Barrier(many)
        if is_begun:
            runtime.__enter__()

        def ask(n: int, kernel: str = kernel, runtime: Any = runtime, together: threading.Barrier = together) -> int:
            together.wait(60)
            return int(runtime.client(kernel).call(Ask(n), timeout=60).n)

        try:
            with ThreadPoolExecutor(many) as threads:
                assert list(threads.map(ask, range(many))) == list(range(many))
        finally:
            runtime.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_one_that_has_ended(kind: str) -> None:
    kernel = make_actor(kind).kernel_id
    with RingKernelRuntime() as runtime:
        runtime.client(kernel).send(Ask(3))
        runtime.run(runtime.terminate(kernel))
        client = runtime.client(kernel)
        assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED
        assert client.receive(timeout=60).n == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_changes_no_state(kind: str) -> None:
    kernel = make_actor(kind).kernel_id
    with RingKernelRuntime() as runtime:
        for step, state in (("launch", "LAUNCHED"), ("activate", "ACTIVE"), ("deactivate", "DEACTIVATED")):
            runtime.run(getattr(runtime, step)(kernel))
            runtime.client(kernel).send(Ask(3))
            assert runtime.get_kernel_state(kernel).name == state


@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_running_loop(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind).kernel_id
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel):
            client = runtime.client(kernel)
            assert (await asyncio.to_thread(client.call, Ask(2), 60)).n == 2
            with pytest.raises(RingError, match="event loop wait for itself"):
                client.call(Ask(1))
            assert (await runtime.send_and_receive(kernel, Ask(3), timeout=60)).n == 3

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_another_loop_awaits_the_runtimes_methods(kind: str) -> None:
    kernel = make_actor(kind).kernel_id

    async def main(runtime: RingKernelRuntime) -> None:
        await runtime.launch(kernel)
        await runtime.activate(kernel)
        answers = await asyncio.gather(*(runtime.send_and_receive(kernel, Ask(n), timeout=60) for n in range(20)))
        assert [answer.n for answer in answers] == list(range(20))
        await runtime.send(kernel, Ask(50))
        assert (await runtime.receive(kernel, timeout=60)).n == 50
        await runtime.terminate(kernel)

    with RingKernelRuntime() as runtime:
        run(main(runtime))
        assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_a_structured_array(kind: str) -> None:
    def twice(one: Any) -> Any:
        return Block(one.id, one.x * np.float32(2))

    kernel = make_actor(kind, twice, input_type=Block, output_type=Block, queue_size=7, output_queue_size=100).kernel_id
    array = np.zeros(50, Block.dtype)
    array["id"] = np.arange(50)
    array["x"] = np.arange(200).reshape(50, 4)
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        assert client.send_batch(array) == 50
        got = client.receive_batch(50, timeout=60)
        assert got.dtype == Block.dtype
        assert np.array_equal(got["id"], array["id"])
        assert np.array_equal(got["x"], 2 * array["x"])
        assert len(client.receive_batch(3, timeout=0.01)) == 0
        with pytest.raises(MessageError, match="the array has dtype float64"):
            client.send_batch(np.zeros(3))


@pytest.mark.parametrize("kernel_id", [[1], {}, 7, None])
def test_what_names_no_kernel(kernel_id: object) -> None:
    with RingKernelRuntime() as runtime, pytest.raises(TypeError, match="a ring kernel is named by its id"):
        runtime.client(kernel_id)  # type: ignore[arg-type]


def test_batches_of_lists() -> None:
    kernel = make_actor("thread", queue_size=1000, input_type=None, output_type=None).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        assert client.send_batch([Ask(n) for n in range(500)]) == 500
        assert [answer.n for answer in client.receive_batch(500, timeout=60)] == list(range(500))
        with pytest.raises(MessageError, match="takes messages, not 1"):
            client.send_batch([1])
        with pytest.raises(MessageError, match="no input_type"):
            client.send_batch(np.zeros(2, Block.dtype))


def test_a_full_mailbox_ends_a_batch() -> None:
    kernel = make_actor("coroutine", queue_size=4, backpressure="reject").kernel_id
    with RingKernelRuntime() as runtime:
        runtime.run(runtime.launch(kernel))
        assert runtime.client(kernel).send_batch([Ask(n) for n in range(9)]) == 4
        assert runtime.get_telemetry(kernel).rejected == 1


def test_calls_of_threads_end_when_the_actor_fails() -> None:
    kernel = make_actor("thread", lambda one: 1 / 0 if one.n else None).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        errors: list[BaseException] = []

        def call() -> None:
            try:
                client.call(Ask(0), timeout=60)
            except ActorFailedError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while runtime.get_telemetry(kernel).processed == 0:
            pass
        client.send(Ask(1))
        thread.join(90)
        assert "ZeroDivisionError" in str(errors[0])


def test_an_answer_on_its_way_to_a_loop_is_late_too() -> None:
    asked, answered = threading.Event(), threading.Event()

    @ring_kernel(kernel_id="on-its-way", input_type=Ask, output_type=Answer)
    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = ctx.receive()
            asked.wait(60)
            ctx.send(Answer(one.n))
            answered.set()

    async def main() -> None:
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(thread) as kernel:
            call = asyncio.ensure_future(runtime.send_and_receive(kernel, Ask(5)))
            await asyncio.sleep(0)
            # The loop does nothing meanwhile, so that it finds the answer after the end of the call.
            asked.set()
            assert answered.wait(60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: len(runtime.dead_letters()) == 1)
            assert [(one.message.n, one.reason) for one in runtime.dead_letters()] == [(5, "late_answer")]

    run(main())


def test_run_is_for_threads() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            with pytest.raises(RingError, match="run\\(\\) is for threads"):
                runtime.run(runtime.launch("anything"))

    run(main())
    runtime = RingKernelRuntime()
    with pytest.raises(RingError, match="does not run"):
        runtime.run(runtime.launch("anything"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue_size": 0}, "input_queue_size of 'odd' must be an int from 1"),
        ({"block_size": 2048}, "block_size of 'odd'"),
        ({"backpressure": "often"}, "backpressure must be one of 'block'"),
        ({"restart": "always"}, "restart of 'odd' must be"),
        ({"input_type": int}, "input_type of 'odd' must be a class made by @message"),
        ({"device": "tpu"}, "device of 'odd' must be 'host' or 'gpu'"),
        ({"device": "gpu"}, "coroutine, and those run on the host"),
        ({"restart_window": 0}, "restart_window"),
    ],
)
def test_wrong_options_are_refused_where_they_are_given(options: dict[str, Any], text: str) -> None:
    async def odd(ctx: Any) -> None:
        return None

    with pytest.raises(RingError, match=text):
        ring_kernel(**options)(odd)


def test_a_kernel_is_its_function_too() -> None:
    @ring_kernel()
    def plain(a: int) -> int:
        """Adds one."""
        return a + 1

    assert (plain(1), plain.kernel_id, plain.__name__, plain.__doc__) == (2, "plain", "plain", "Adds one.")

    @ring_kernel
    async def bare(ctx: Any) -> None:
        return None

    assert (bare.kernel_id, bare.kind) == ("bare", "coroutine")


def test_device_actors_have_types() -> None:
    @ring_kernel(device="gpu")
    def on_the_device() -> None:
        """__device__ void handle() {}"""

    with RingKernelRuntime() as runtime, pytest.raises(RingError, match="needs an input_type"):
        runtime.client("on_the_device")


def test_a_runtime_is_closed_from_a_thread() -> None:
    kernel = make_actor("coroutine").kernel_id
    runtime = RingKernelRuntime()
    assert runtime.client(kernel).call(Ask(1), timeout=60).n == 1
    runtime.close()
    assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED


def test_the_process_ends_with_actors_that_wait(run_python: Callable[..., str]) -> None:
    program = """
import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel
@message
class Ask:
    n: int
@ring_kernel(kernel_id="thread", input_type=Ask)
def thread(ctx):
    while not ctx.should_terminate:
        ctx.send(Ask(ctx.receive().n + 1))
@ring_kernel(kernel_id="coroutine", input_type=Ask)
async def coroutine(ctx):
    while not ctx.should_terminate:
        await ctx.send(Ask((await ctx.receive()).n + 1))
runtime = RingKernelRuntime()
print([runtime.client(name).call(Ask(1)).n for name in ("thread", "coroutine")])
"""
    assert run_python(program) == "[2, 2]\n"


def test_a_runtime_outlives_its_loop() -> None:
    kernel = make_actor("coroutine").kernel_id
    runtime = RingKernelRuntime()

    async def main() -> None:
        await runtime.start()
        await runtime.launch(kernel)
        await runtime.activate(kernel)
        assert (await runtime.send_and_receive(kernel, Ask(1), timeout=60)).n == 1

    # Each time the loop is closed under the runtime, and the actor with it.
    run(main())
    assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED
    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_was_sent_before_it_is_called_with(kind: str) -> None:
    """Both are handled, and each has its own answer."""
    kernel = make_actor(kind).kernel_id
    with RingKernelRuntime() as runtime:
        runtime.run(runtime.launch(kernel))
        client, once = runtime.client(kernel), Ask(7)
        assert client.send(once)
        with ThreadPoolExecutor(1) as threads:
            called = threads.submit(client.call, once, 30)
            runtime.run(until(lambda: runtime.get_telemetry(kernel).input_depth == 2))
            runtime.run(runtime.activate(kernel))
            answer, result = called.result(), client.receive(timeout=30)
        assert result.correlation_id == once.message_id != answer.correlation_id
        assert runtime.dead_letters() == []
