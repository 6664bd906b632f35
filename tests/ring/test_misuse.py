"""What a user may do wrong: closed runtimes, functions that are no actors, exits, odd arguments."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from actors import KINDS, Answer, Ask, make_actor, run, until

from pygpukit.errors import ActorFailedError, MessageError, RingError, UndeliveredError
from pygpukit.ring import KernelState, RingKernel, RingKernelRuntime, message, ring_kernel
from pygpukit.ring.kernel import find_kernel
from pygpukit.ring.kinds import brief


def test_closing_twice() -> None:
    kernel = make_actor("coroutine").kernel_id
    runtime = RingKernelRuntime()
    runtime.close()
    assert runtime.client(kernel).call(Ask(1), timeout=60).n == 1
    runtime.close()
    runtime.close()
    with RingKernelRuntime() as runtime:
        runtime.close()


def test_closing_in_several_threads() -> None:
    kernel = make_actor("thread").kernel_id
    with RingKernelRuntime() as runtime:
        runtime.client(kernel)
        threads = [threading.Thread(target=runtime.close, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED


def test_a_coroutine_that_is_run_at_the_end_is_cancelled() -> None:
    runtime = RingKernelRuntime()
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    def run_it() -> None:
        with pytest.raises(concurrent.futures.CancelledError):
            runtime.run(endless())

    with runtime, concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run_it)
        assert begun.wait(60)
        runtime.close()
        waiting.result(60)


def test_a_loop_of_its_own_and_another_one_after_it() -> None:
    kernel = make_actor("coroutine").kernel_id
    runtime = RingKernelRuntime()
    assert runtime.client(kernel).call(Ask(1), timeout=60).n == 1

    async def main() -> None:
        await runtime.shutdown()
        async with runtime:
            await runtime.launch(kernel)
            with pytest.raises(RingError, match=r"close\(\) is for a runtime with a loop of its own"):
                runtime.close()

    run(main())
    runtime.close()


def test_closing_in_the_loop_is_refused() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            with pytest.raises(RingError, match=r"close\(\) is for a runtime with a loop of its own"):
                runtime.close()
        runtime.close()

    run(main())


def test_a_runtime_that_was_shut_down_gives_no_clients() -> None:
    kernel = make_actor("thread").kernel_id
    with RingKernelRuntime() as runtime:
        runtime.client(kernel)
    before = threading.active_count()
    for name in (kernel, make_actor("thread").kernel_id):
        with pytest.raises(RingError, match=f"no client of '{name}': the runtime was shut down"):
            runtime.client(name)
    assert threading.active_count() == before
    # It may be started again.
    with runtime:
        assert runtime.client(name).call(Ask(3), timeout=60).n == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_is_a_failure_as_any_other(kind: str) -> None:
    def leave(one: Any) -> Any:
        if one.n == 3:
            raise SystemExit(one.n)
        return Answer(one.n)

    async def main() -> None:
        kernel = make_actor(kind, leave, restart="on_failure", max_restarts=1).kernel_id
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel):
            with pytest.raises(UndeliveredError, match=r"failed .SystemExit: 3"):
                await runtime.send_and_receive(kernel, Ask(3), timeout=60)
            assert (await runtime.send_and_receive(kernel, Ask(4), timeout=60)).n == 4
            with pytest.raises(RingError, match="SystemExit: 3"):
                await runtime.send_and_receive(kernel, Ask(3), timeout=60)
            with pytest.raises(ActorFailedError, match="SystemExit: 3"):
                await runtime.receive(kernel, timeout=60)
            assert runtime.get_kernel_state(kernel) is KernelState.FAILED

    run(main())


class _Called:
    """Objects that are called in place of functions."""

    class Coroutine:
        async def __call__(self, ctx: Any) -> None:
            while not ctx.should_terminate:
                await ctx.send(Answer((await ctx.receive()).n))

    class Generator:
        def __call__(self, ctx: Any) -> Iterator[None]:
            yield ctx.receive()


def _generator(ctx: Any) -> Iterator[None]:
    yield ctx.receive()


async def _async_generator(ctx: Any) -> AsyncIterator[None]:
    yield await ctx.receive()


@pytest.mark.parametrize(
    "function",
    [_generator, _async_generator, functools.partial(_generator), _Called.Generator()],
    ids=["function", "async", "partial", "object"],
)
def test_generators_are_no_actors(function: Any) -> None:
    with pytest.raises(TypeError, match="'odd' has 'yield': calling it makes a generator and runs nothing"):
        ring_kernel(kernel_id="odd")(function)


def test_an_object_with_a_coroutine_is_an_actor() -> None:
    kernel = ring_kernel(kernel_id="object", input_type=Ask, output_type=Answer)(_Called.Coroutine())
    assert kernel.kind == "coroutine"
    with RingKernelRuntime() as runtime:
        assert runtime.client("object").call(Ask(2), timeout=60).n == 2


def test_a_function_that_only_makes_a_coroutine_fails() -> None:
    async def work(ctx: Any) -> None:
        await ctx.receive()

    kernel = ring_kernel(kernel_id="maker", input_type=Ask)(lambda ctx: work(ctx))
    with RingKernelRuntime() as runtime:
        runtime.run(runtime.launch(kernel))
        with pytest.raises(ActorFailedError, match="function of 'maker' returned a coroutine, which nobody runs"):
            runtime.run(runtime.receive("maker", timeout=60))


def test_a_function_without_a_name_needs_an_id() -> None:
    with pytest.raises(RingError, match="kernel_id must be a name, not None"):
        ring_kernel()(functools.partial(print))


NO_TIMES = {
    "nan": (float("nan"), ValueError, "timeout must be seconds or None, not nan"),
    "bool": (True, TypeError, r"timeout must be seconds or None, not True \(bool\)"),
    "str": ("1", TypeError, r"timeout must be seconds or None, not '1' \(str\)"),
}


@pytest.mark.parametrize("what", NO_TIMES)
def test_what_is_no_timeout(what: str) -> None:
    timeout, error, text = NO_TIMES[what]
    kernel = make_actor("coroutine").kernel_id

    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        for call in (
            lambda: client.send(Ask(1), timeout),
            lambda: client.receive(timeout),
            lambda: client.call(Ask(1), timeout),
            lambda: client.send_batch([Ask(1)], timeout),
            lambda: client.receive_batch(1, timeout),
            lambda: runtime.run(runtime.send(kernel, Ask(1), timeout=timeout)),
            lambda: runtime.run(runtime.publish("topic", Ask(1), timeout=timeout)),
            lambda: runtime.run(runtime.receive(kernel, timeout)),
            lambda: runtime.run(runtime.send_and_receive(kernel, Ask(1), timeout)),
            lambda: runtime.run(runtime.deactivate(kernel, timeout)),
            lambda: runtime.run(runtime.terminate(kernel, timeout=timeout)),
            lambda: runtime.run(runtime.shutdown(timeout=timeout)),
            lambda: runtime.close(timeout),
        ):
            with pytest.raises(error, match=text):
                call()
        # Nothing was begun.
        assert runtime.get_kernel_state(kernel) is KernelState.ACTIVE
        assert runtime.get_telemetry(kernel).received == 0


@pytest.mark.parametrize("kind", KINDS)
def test_timeouts_of_actors(kind: str) -> None:
    found: list[Any] = []

    async def coroutine(ctx: Any) -> None:
        for timeout in (-1, "1", float("nan")):
            try:
                await ctx.receive(timeout)
            except (TimeoutError, TypeError, ValueError) as error:
                found.append(type(error))
        found.append((await ctx.receive(float("inf"))).n)

    def thread(ctx: Any) -> None:
        for timeout in (-1, "1", float("nan")):
            try:
                ctx.receive(timeout)
            except (TimeoutError, TypeError, ValueError) as error:
                found.append(type(error))
        found.append(ctx.receive(float("inf")).n)

    async def main() -> None:
        kernel = ring_kernel(kernel_id=f"waits-{kind}", input_type=Ask)(coroutine if kind == "coroutine" else thread)
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel):
            await until(lambda: len(found) == 3)
            await runtime.send(kernel.kernel_id, Ask(7))

    run(main())
    assert found == [TimeoutError, TypeError, ValueError, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_times_without_end_and_in_the_past(kind: str) -> None:
    kernel = make_actor(kind).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        for timeout in (float("inf"), 1e300, np.float32(60)):
            assert client.call(Ask(5), timeout).n == 5
            assert runtime.run(runtime.send_and_receive(kernel, Ask(6), timeout)).n == 6
            assert client.send(Ask(7), timeout)
            assert client.receive(timeout).n == 7
            assert runtime.run(runtime.send(kernel, Ask(8), timeout=timeout))
            assert runtime.run(runtime.receive(kernel, timeout)).n == 8
        for timeout in (-1, -1e300, 0):
            with pytest.raises(TimeoutError, match=r"sent nothing within 0\.0 s"):
                client.receive(timeout)
            with pytest.raises(TimeoutError, match=r"no message came within 0\.0 s"):
                runtime.run(runtime.receive(kernel, timeout))
            assert client.send(Ask(9), timeout)
            assert client.receive(60).n == 9
        runtime.run(runtime.deactivate(kernel, float("inf")))
        runtime.run(runtime.terminate(kernel, timeout=float("inf")))


def test_sizes_of_batches() -> None:
    fixed, any_size = make_actor("thread").kernel_id, make_actor("thread", output_type=None).kernel_id
    with RingKernelRuntime() as runtime:
        for kernel in (fixed, any_size):
            client = runtime.client(kernel)
            client.send_batch([Ask(n) for n in range(3)])
            assert len(client.receive_batch(0)) == 0
            assert len(client.receive_batch(np.int64(2))) == 2
            for n, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError), (None, TypeError)):
                with pytest.raises(error, match=rf"n must be .*, not {n}"):
                    client.receive_batch(n)
            assert len(client.receive_batch(1)) == 1


@pytest.mark.parametrize("kernel", [None, 5, b"name"])
def test_what_is_no_kernel(kernel: Any) -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            with pytest.raises(TypeError, match=f"by its id or by what @ring_kernel returned, not by {kernel!r}"):
                await runtime.launch(kernel)
            with pytest.raises(TypeError, match="by its id"):
                await runtime.send(kernel, Ask(1))
            with pytest.raises(TypeError, match="by its id"):
                runtime.client(kernel)
            with pytest.raises(TypeError, match="by its id"):
                async with runtime.kernel_scope(kernel):
                    pass

    run(main())


@pytest.mark.parametrize(
    "options",
    [
        *({"dead_letters": one} for one in (-1, None, 1.5, True)),
        *({"lease": one} for one in (0, -1, float("nan"), float("inf"), True, "1", None)),
        *({"time_slice": one} for one in (0, float("nan"), True, "1")),
        *({"watchdog": one} for one in (0, 0.01, float("nan"), True, "1")),
        *({"workers": one} for one in (0, 1.5, True)),
    ],
    ids=str,
)
def test_odd_options_of_a_runtime(options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(RingError, match=f"^{name} must be .*, not {value!r}$"):
        RingKernelRuntime(**options)


@pytest.mark.parametrize(
    "options",
    [
        *({"restart_window": one} for one in ("x", None, True, -1, float("nan"), float("inf"))),
        *({"max_restarts": one} for one in (-1, 1.5, None, True)),
        *({"dedicated": one} for one in (1, "yes")),
        *({"escalate": one} for one in (1, None)),
    ],
    ids=str,
)
def test_odd_options_of_a_kernel(options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(RingError, match=f"^{name} of 'odd' must be .*, not {value!r}$"):
        ring_kernel(kernel_id="odd", **options)(lambda ctx: None)


@pytest.mark.parametrize("kind", KINDS)
def test_one_message_in_many_calls(kind: str) -> None:
    async def main() -> None:
        first, second = (make_actor(kind, make).kernel_id for make in (None, lambda one: Answer(-one.n)))
        asked = Ask(3, priority=7, deadline=1e6)
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(first), runtime.kernel_scope(second):
            calls = [runtime.send_and_receive(one, asked, timeout=60) for one in (first, second, first, second)]
            answers = await asyncio.gather(*calls)
            assert [answer.n for answer in answers] == [3, -3, 3, -3]
            assert len({answer.correlation_id for answer in answers}) == 4
            assert answers[0].correlation_id == asked.message_id
            client = runtime.client(first)
            found = await asyncio.gather(*(asyncio.to_thread(client.call, asked, 60) for _ in range(8)))
            assert len({answer.correlation_id for answer in found}) == 8
            # One that was called with can be sent as well, and what comes of it is nobody's answer.
            assert await runtime.send(first, asked)
            assert await asyncio.to_thread(client.send, asked)
            assert await asyncio.to_thread(client.send_batch, [asked, Ask(4)]) == 2
            got = [(await runtime.receive(first, timeout=60)).n for _ in range(4)]
            assert got == [3, 3, 3, 4]
            assert runtime.dead_letters() == []

    run(main())


def test_a_call_is_not_answered_by_an_earlier_one() -> None:
    go = threading.Event()

    def wait(one: Any) -> Answer:
        go.wait(60)
        return Answer(one.n)

    asked = Ask(1)
    with RingKernelRuntime() as runtime:
        client = runtime.client(make_actor("thread", wait).kernel_id)
        with pytest.raises(TimeoutError, match="did not answer"):
            client.call(asked, timeout=0.01)
        go.set()
        answer = client.call(asked, timeout=60)
    assert answer.correlation_id != asked.message_id
    assert [letter.reason for letter in runtime.dead_letters()] == ["late_answer"]


def defined(module: str, name: str, kernel_id: str) -> Any:
    """What a module of this name makes when it defines an actor."""
    text = f"def {name}(ctx):\n    pass\n"
    space: dict[str, Any] = {"__name__": module}
    exec(compile(text, f"/somewhere/{module}.py", "exec"), space)
    return ring_kernel(kernel_id=kernel_id)(space[name])


def test_another_function_with_the_id_of_a_kernel_is_refused() -> None:
    first = defined("first", "actor", "misuse-id")
    # Loaded again.
    second = defined("first", "actor", "misuse-id")
    assert find_kernel("misuse-id") is second is not first
    place = (
        r"defined at /somewhere/first\.py:1 \(actor\); the one at /somewhere/{}\.py:1 \({}\) needs another kernel_id"
    )
    with pytest.raises(RingError, match="'misuse-id' already, " + place.format("other", "actor")):
        defined("other", "actor", "misuse-id")
    with pytest.raises(RingError, match=place.format("first", "others")):
        defined("first", "others", "misuse-id")
    assert find_kernel("misuse-id") is second


def test_functions_inside_of_others_replace_each_other() -> None:
    def make() -> RingKernel:
        @ring_kernel(kernel_id="misuse-inner")
        def inner(ctx: Any) -> None:
            pass

        return inner

    first, second = make(), make()
    assert find_kernel("misuse-inner") is second is not first


@message
class Large:
    data: bytes


@pytest.mark.parametrize("kind", KINDS)
def test_errors_show_a_part_of_a_large_message(kind: str) -> None:
    kernel = make_actor(kind).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        with pytest.raises(MessageError, match=r"not Large\(data=b'xxx") as caught:
            client.send(Large(b"x" * 5_000_000))
    assert len(str(caught.value)) < 500
    assert "letters] ..." in str(caught.value)
    assert brief(Large(b"x")) == repr(Large(b"x"))
