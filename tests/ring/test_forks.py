"""Processes that are forked while a runtime runs: what belongs to the parent is refused there, and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PROGRAM = """
import asyncio, os, sys, time, warnings
import pygpukit as gp
from pygpukit.errors import ActorFailedError, ForkError
from pygpukit.ring import RingKernelRuntime, message, ring_kernel
warnings.simplefilter("ignore")

@message
class Ask:
    n: gp.int64

@ring_kernel(kernel_id="coroutine", input_type=Ask, output_type=Ask, queue_size=2)
async def coroutine(ctx):
    while not ctx.should_terminate:
        await ctx.send(Ask((await ctx.receive()).n))

@ring_kernel(kernel_id="thread", input_type=Ask, output_type=Ask, queue_size=2)
def thread(ctx):
    while not ctx.should_terminate:
        ctx.send(Ask(ctx.receive().n))

@ring_kernel(kernel_id="device", input_type=Ask, output_type=Ask, device="gpu", block_size=32)
def device():
    '''__device__ void handle(const Ask& in, Ask& out, State& state, Context& ctx) { ctx.send(in); }'''

def refused(use):
    try:
        found = use()
    except (ForkError, ActorFailedError) as error:
        assert "belongs to process" in str(error), error
    else:
        raise AssertionError(f"not refused: {found!r}")

def in_child(runtime, client, name):
    asked = Ask(1)
    for use in (
        lambda: client.send(asked),
        lambda: client.call(asked),
        lambda: client.receive(),
        lambda: client.receive_batch(5),
        lambda: client.send_batch([asked]),
        lambda: asyncio.run(runtime.send(name, asked)),
        lambda: asyncio.run(runtime.receive(name)),
        lambda: asyncio.run(runtime.send_and_receive(name, asked)),
        lambda: asyncio.run(runtime.deactivate(name)),
        lambda: asyncio.run(runtime.launch(name)),
        lambda: asyncio.run(runtime.publish("topic", asked)),
        lambda: asyncio.run(runtime.start()),
        lambda: runtime.run(runtime.terminate(name)),
        lambda: runtime.client(name),
        lambda: runtime.get_telemetry(name),
        lambda: runtime.get_kernel_state(name),
        lambda: runtime.get_state(name),
        lambda: runtime.kernel_ids,
        runtime.get_all_telemetry,
        runtime.get_summary,
        runtime.dead_letters,
        runtime.__enter__,
        runtime.status,
        runtime.abort,
    ):
        refused(use)
    asyncio.run(runtime.shutdown())
    runtime.close()
    # One of its own is as good as any.
    with RingKernelRuntime() as own:
        assert own.client("thread").call(Ask(2), timeout=30).n == 2

def child_of(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + 60
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise SystemExit("the forked process does not end")
        time.sleep(0.005)
    return found[1]
"""


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        ("coroutine", None),
        ("thread", None),
        pytest.param("device", None, marks=pytest.mark.nvrtc),
        pytest.param("device", "process", marks=pytest.mark.nvrtc),
    ],
)
def test_a_runtime_with_a_thread(run_python: Callable[..., str], name: str, isolation: str | None) -> None:
    program = f"""
runtime = RingKernelRuntime(isolation={isolation!r})
client = runtime.client({name!r})
assert client.call(Ask(1), timeout=60).n == 1
for n in (3, 4):
    client.send(Ask(n))
print(child_of(lambda: in_child(runtime, client, {name!r})), flush=True)
# Nothing was taken from the parent.
print([client.receive(timeout=60).n for _ in range(2)], client.call(Ask(5), timeout=60).n)
runtime.close()
print(runtime.get_kernel_state({name!r}).name)
"""
    assert run_python(PROGRAM + program) == "0\n[3, 4] 5\nTERMINATED\n"


def test_a_runtime_in_the_loop_that_forks(run_python: Callable[..., str]) -> None:
    program = """
async def main():
    async with RingKernelRuntime() as runtime:
        await runtime.launch("coroutine")
        await runtime.activate("coroutine")
        assert (await runtime.send_and_receive("coroutine", Ask(1), timeout=60)).n == 1
        pid = os.fork()
        if pid == 0:
            try:
                await runtime.send("coroutine", Ask(2))
            except ForkError:
                await runtime.shutdown()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        print((await runtime.send_and_receive("coroutine", Ask(3), timeout=60)).n)
asyncio.run(main())
"""
    assert run_python(PROGRAM + program) == "3\n"
