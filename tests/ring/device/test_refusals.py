"""What device actors refuse, and what they say then."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import numpy as np
import pytest
from device_actors import BATCH, COUNT, ECHO, Item, Other, launch, make, new_id, numbered, source_of, start

import pygpukit as gp
from pygpukit.errors import KernelCompileError, MessageError, RingError
from pygpukit.ring import KernelState, RingKernelRuntime, message, ring_kernel


@message
class Text:
    id: gp.int64
    words: str


@message
class Huge:
    x: gp.float32[1025]


def define(doc: str | None, **options: Any) -> str:
    def function() -> None: ...

    function.__doc__ = doc
    options = {"input_type": Item, "output_type": Item, "device": "gpu", **options}
    return ring_kernel(kernel_id=new_id("bad"), **options)(function).kernel_id


def named(field: str, cls: str = "Named") -> Any:
    """A message with a field of this name."""
    return message(type(cls, (), {"__annotations__": {field: gp.int32}}))


BAD = {
    "no docstring": (None, {}, RingError, "has no handler: its docstring must be CUDA"),
    "no handler": ("__device__ void other() {}", {}, RingError, "has no handler"),
    "a commented handler": ("// __device__ void handle(const Item& in) {}", {}, RingError, "has no handler"),
    "both": (source_of(ECHO) + source_of(BATCH), {}, RingError, "has both handle and handle_batch"),
    "grid_size of batches": (source_of(BATCH), {"grid_size": 2}, RingError, "grid_size=2, but handle_batch is for one"),
    "grid_size that shares": (
        source_of(ECHO),
        {"grid_size": 2, "dedicated": False},
        RingError,
        "grid_size=2, but it shares blocks",
    ),
    "no input_type": (source_of(ECHO), {"input_type": None}, RingError, "needs an input_type"),
    "variable input": (source_of(ECHO), {"input_type": Text}, MessageError, "words"),
    "variable output": (source_of(ECHO), {"output_type": Text}, MessageError, "words"),
    "too large": (source_of(ECHO), {"input_type": Huge}, RingError, r"4112 bytes \(Huge\), and 4096 is the most"),
    "batch without output": (source_of(BATCH), {"output_type": None}, RingError, "needs an output_type"),
    "shared batch": (source_of(BATCH), {"dedicated": False}, RingError, "needs a block of its own"),
    "variable state": (source_of(ECHO), {"state": {"s": str}}, RingError, "'s' of the state"),
    "a name of state": (source_of(ECHO), {"state": {"a b": gp.int32}}, RingError, "'a b', which is no name"),
    "a word of state": (source_of(ECHO), {"state": {"class": gp.int32}}, RingError, "'class', which is no name"),
    "a number of state": (source_of(ECHO), {"state": {1: gp.int32}}, RingError, "a field 1, which is no name"),
    "letters of state": (source_of(ECHO), {"state": {"gr\u00f6sse": gp.int32}}, RingError, "which is no name in CUDA"),
    **{
        f"a field {name!r}": (source_of(ECHO), {side: named(name)}, RingError, f"Named has a field {name!r}; call it")
        for side, name in (
            *(("input_type", name) for name in ("int", "operator", "template", "this", "xor", "gr\u00f6sse")),
            *(("output_type", name) for name in ("float", "namespace")),
        )
    },
    "a class 'double'": (source_of(ECHO), {"input_type": named("x", "double")}, RingError, "double is called 'double'"),
    "a class 'State'": (source_of(ECHO), {"input_type": named("x", "State")}, RingError, "State is called 'State'"),
    "complex state": (source_of(ECHO), {"state": {"z": np.zeros(2, complex)}}, (RingError, TypeError), "complex"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_a_device_actor(what: str) -> None:
    doc, options, error, text = BAD[what]
    bad, good = define(doc, **options), make()
    with RingKernelRuntime() as runtime:
        with pytest.raises(error, match=text):
            runtime.run(runtime.launch(bad))
        assert runtime.get_kernel_state(bad) is KernelState.FAILED
        # Others are not affected.
        [client] = start(runtime, good)
        assert client.call(Item(1, 0, 0), timeout=20).id == 1


def test_an_unknown_name_among_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = importlib.import_module("pygpukit.ring.kernel")
    few = {f"k{n}": object() for n in (2, 0, 1)}
    monkeypatch.setattr(kernel, "_kernels", few)
    with pytest.raises(RingError, match=r"are: k0, k1, k2$"):
        kernel.find_kernel("none")
    monkeypatch.setattr(kernel, "_kernels", {f"k{n}": object() for n in range(100_000)})
    with pytest.raises(RingError, match=r"are: k0, k1, .* and 99980 others$"):
        kernel.find_kernel("none")
    assert kernel.find_kernel("k7") is kernel._kernels["k7"]


def test_a_coroutine_is_no_device_actor() -> None:
    async def function(ctx: Any) -> None: ...

    with pytest.raises(RingError, match="is a coroutine, and those run on the host"):
        ring_kernel(kernel_id=new_id(), device="gpu")(function)


def test_handlers_with_other_parameters() -> None:
    """Which of many it is, and what it should have."""
    bad = define("__global__ void handle(const Item& in) {}")

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            *others, error = await asyncio.gather(
                *(runtime.launch(one) for one in (make(), make(), bad)), return_exceptions=True
            )
            assert others == [None, None]
            assert isinstance(error, KernelCompileError)
            assert f"call of handle with in, out, state and ctx, handler of {bad!r}, line 1: " in str(error)

    asyncio.run(main())


def test_a_handler_that_does_not_compile(dedicated: bool) -> None:
    good = make(dedicated=dedicated)
    bad = define("""
    __device__ void handle(const Item& in, Item& out, State& state, Context& ctx) {
        int fine = 1;
        this is wrong;
    }
    """, dedicated=dedicated)  # fmt: skip
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, good)
        assert client.call(Item(1, 0, 0), timeout=20).id == 1
        with pytest.raises(KernelCompileError) as caught:
            runtime.run(runtime.launch(bad))
        assert f"handler of {bad!r}, line 3: " in str(caught.value)
        assert "this is wrong" in str(caught.value)
        assert client.call(Item(2, 0, 0), timeout=20).id == 2
        # It may be repaired and launched again.
        other = make(COUNT, dedicated=dedicated)
        start(runtime, other)
        assert client.call(Item(3, 0, 0), timeout=20).id == 3


def test_one_bad_actor_of_many_that_are_launched_together() -> None:
    import asyncio

    good, bad, also = make(), define("no handler"), make(COUNT)
    with RingKernelRuntime() as runtime:

        async def main() -> list[Any]:
            return await asyncio.gather(*(runtime.launch(one) for one in (good, bad, also)), return_exceptions=True)

        first, second, third = runtime.run(main())
        assert (first, third) == (None, None)
        assert isinstance(second, RingError)
        runtime.run(runtime.activate(good))
        assert runtime.client(good).call(Item(1, 0, 0), timeout=20).id == 1


def test_more_dedicated_actors_than_fit() -> None:
    good = make(dedicated=True)
    many = [make(dedicated=True, queue_size=2, block_size=992) for _ in range(600)]
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, good)
        with pytest.raises(RingError, match=r"need \d+ blocks of their own, and \d+ of \d+ blocks"):
            runtime._tier.ring.add([_kernel(one) for one in many])
        assert client.call(Item(1, 0, 0), timeout=20).id == 1


def _kernel(kernel_id: str) -> Any:
    from pygpukit.ring.kernel import find_kernel

    return find_kernel(kernel_id)


def test_messages_of_the_wrong_type(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        for wrong in (Other(1, 0.5), "text", None):
            for use in (client.send, lambda one: client.call(one, timeout=5), lambda one: client.send_batch([one])):
                with pytest.raises(MessageError, match="takes Item, not"):
                    use(wrong)
            with pytest.raises(MessageError, match="takes Item, not"):
                runtime.run(runtime.send(echo, wrong))
        with pytest.raises(MessageError, match="dtype"):
            client.send_batch(numbered(3, cls=Other))
        with pytest.raises(MessageError, match="dtype"):
            client.send_batch(np.zeros(3))
        assert client.send_batch(numbered(0)) == 0
        assert client.send_batch(numbered(20)[::2]) == 10
        assert [client.receive(timeout=20).id for _ in range(10)] == list(range(0, 20, 2))
        assert client.send_batch(numbered(4).reshape(2, 2)) in (2, 4)
        assert len(client.receive_batch(4, timeout=20)) == 4


def test_messages_of_a_subclass() -> None:
    @message
    class Longer(Item):
        more: gp.int32

    class Same(Item):
        pass

    echo = make()

    @ring_kernel(kernel_id=new_id("front"), input_type=Item)
    async def front(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = await ctx.receive()
            sent = [await ctx.send(cls.__new__(cls), to=echo) for cls in (Longer, Same)]
            await ctx.send(Item(one.id, sum(sent), 0))

    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        for wrong in (Longer(1, 0, 0, 0), Same(1, 0, 0)):
            for use in (
                client.send,
                lambda one: client.call(one, timeout=5),
                lambda one: client.send_batch([one]),
                lambda one: runtime.run(runtime.send(echo, one)),
                lambda one: runtime.run(runtime.send_and_receive(echo, one)),
            ):
                with pytest.raises(MessageError, match=f"'{echo}' takes exactly Item and nothing derived .*, not"):
                    use(wrong)
        # The actor that sends them goes on, as with any other type.
        assert runtime.client(front.kernel_id).call(Item(4, 0, 0), timeout=20).hops == 0
        assert [letter.reason for letter in runtime.dead_letters()] == ["wrong_type", "wrong_type"]


def test_words_of_cuda_are_names_on_the_host() -> None:
    odd = named("int")

    @ring_kernel(kernel_id=new_id("host"), input_type=odd)
    async def host(ctx: Any) -> None:
        await ctx.send(await ctx.receive())

    # A device actor that names it has nothing to do with its messages.
    body = f'if (in.value == 1) ctx.send("{host.kernel_id}", in);' + ECHO
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, make(body))
        assert client.call(Item(1, 0, 0), timeout=20).id == 1
        assert runtime.client(host.kernel_id).call(odd(5), timeout=20).int == 5


def test_an_actor_without_output(dedicated: bool) -> None:
    count = make(COUNT, output_type=None, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, count)
        client.send(Item(1, 0, 0))
        with pytest.raises(TimeoutError):
            client.receive(timeout=0.02)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease": 0}, "lease must be seconds above 0"),
        ({"lease": -1.0}, "lease must be"),
        ({"lease": float("nan")}, "lease must be"),
        ({"lease": "1"}, "lease must be"),
        ({"time_slice": 0}, "time_slice must be"),
        ({"time_slice": "1"}, "time_slice must be"),
        ({"sms": 0}, "sms must be an int of at least 1"),
        ({"sms": 1.5}, "sms must be"),
        ({"workers": 0}, "workers must be"),
    ],
)
def test_options_of_the_runtime(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RingError, match=text):
        RingKernelRuntime(**options)


def test_more_sms_than_there_are() -> None:
    echo = make()
    with (
        RingKernelRuntime(sms=5000) as runtime,
        pytest.raises(RingError, match=r"sms=5000 is more than the device has"),
    ):
        launch(runtime, echo)


def test_a_lane_of_its_own() -> None:
    echo = make()
    with RingKernelRuntime(sms=1) as runtime:
        [client] = start(runtime, echo)
        assert client.call(Item(1, 0, 0), timeout=20).id == 1


def test_two_runtimes(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    with RingKernelRuntime() as one, RingKernelRuntime() as two:
        [first], [second] = start(one, echo), start(two, echo)
        for n in range(20):
            assert first.call(Item(n, 0, 0), timeout=20).id == n
            assert second.call(Item(-n, 0, 0), timeout=20).id == -n
        one.run(one.terminate(echo))
        assert second.call(Item(5, 0, 0), timeout=20).id == 5
    with RingKernelRuntime() as three:
        [third] = start(three, echo)
        assert third.call(Item(6, 0, 0), timeout=20).id == 6


def test_a_runtime_that_is_used_again(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    runtime = RingKernelRuntime()
    for n in range(2):
        with runtime:
            [client] = start(runtime, echo)
            assert client.call(Item(n, 0, 0), timeout=20).id == n


def test_host_actors_beside_device_actors(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)

    @ring_kernel(kernel_id=new_id("host"), input_type=Item, output_type=Item)
    async def host(ctx: Any) -> None:
        while not ctx.should_terminate:
            await ctx.send(await ctx.receive(), to=echo)

    with RingKernelRuntime() as runtime:
        client, forwarding = start(runtime, echo, host.kernel_id)
        for n in range(20):
            forwarding.send(Item(n, 0, 0))
        assert [client.receive(timeout=20).id for _ in range(20)] == list(range(20))
        with pytest.raises(RingError, match="host actor"):
            runtime.get_state(host.kernel_id)
        with pytest.raises(RingError, match="host actor"):
            runtime.get_actor_number(host.kernel_id)
