"""What a user may do wrong: closed runtimes, functions that are no actors, exits, odd arguments."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, make_actor, run

from pygpukit.errors import ActorFailedError, RingError, UndeliveredError
from pygpukit.ring import KernelState, RingKernelRuntime, ring_kernel


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
