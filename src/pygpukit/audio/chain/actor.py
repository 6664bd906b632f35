"""A chain as an actor of a ring: messages, the handler on the device, and the same in a thread on the CPU device."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit.audio.chain.host import HostChain
from pygpukit.audio.chain.program import Memory
from pygpukit.audio.operators import gp
from pygpukit.dtypes import float32, float64, int64
from pygpukit.errors import ParameterError
from pygpukit.ring import message
from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.program import MOST_BYTES

if TYPE_CHECKING:
    from pygpukit.audio.chain.chain import Chain

__all__ = ["ChainActor"]

_numbers = itertools.count()

# Blocks on their way to the actor, and from it.
_QUEUE = 64

_HANDLER = """
struct Group {
    Context ctx;
    int lane, width;
    __device__ __forceinline__ void sync() const { ctx.sync(); }
};

__device__ void handle(const ChainBlock& in, ChainResult& out, State& state, Context& ctx) {
    const Group g = {ctx, (int)ctx.lane, (int)ctx.width};
    const unsigned long long began = ctx.time();
    double* wide = (double*)state.wide;
    float* narrow = (float*)state.narrow;
    if (in.resets) {
        for (int t = g.lane; t < WIDE; t += g.width) wide[t] = 0.0;
        for (int t = g.lane; t < NARROW; t += g.width) narrow[t] = 0.0f;
    }
    for (int t = g.lane; t < CHANNELS * SIZE; t += g.width) out.x[t] = in.x[t];
    g.sync();
    chain_block(g, out.x, in.values, wide, narrow, (const float*)state.tables, (float*)state.scratch);
    if (g.lane == 0) {
        double dropped = 0.0;
        for (int c = 0; c < CHANNELS; c++) dropped += wide[2 + c];
        out.number = in.number;
        out.not_finite = (long long)dropped;
        out.processed = (long long)wide[0];
        out.nanoseconds = (long long)(ctx.time() - began);
    }
    ctx.send(out);
}
"""


class ChainActor:
    """What is launched for a chain, with its messages and its memory.

    Parameters
    ----------
    chain : Chain
        What is computed, on the current device.

    Attributes
    ----------
    kernel : RingKernel
        A device actor; on the CPU device a thread that computes with NumPy.
    block, result : type
        Classes of the messages to and from it.
    """

    def __init__(self, chain: Chain) -> None:
        # Fields of messages have at least one element.
        count, size = max(1, chain.values().size), chain.channels * chain.block
        for name, largest in (("from", 4 * size + 8 * count + 16), ("to", 4 * size + 32)):
            if largest > MOST_BYTES:
                most = (MOST_BYTES - max(8 * count + 16, 32)) // (4 * chain.channels)
                raise ParameterError(
                    f"a block of {chain.block} samples of {chain.channels} channels is a message of {largest} bytes "
                    f"{name} the host, and {MOST_BYTES} is the most: in real time use blocks of up to {most}"
                )
        self.block: Any = message(type("ChainBlock", (), {
            "__annotations__": {"number": int64, "resets": int64, "values": float64[count], "x": float32[size]},
        }))  # fmt: skip
        self.result: Any = message(type("ChainResult", (), {
            "__annotations__": {"number": int64, "nanoseconds": int64, "not_finite": int64, "processed": int64,
                                "x": float32[size]},
        }))  # fmt: skip
        self._count = count
        kind = gp.current_device().kind
        options: dict[str, Any] = {
            "kernel_id": f"audio_chain_{next(_numbers)}", "input_type": self.block, "output_type": self.result,
            "input_queue_size": _QUEUE, "output_queue_size": _QUEUE,
        }  # fmt: skip
        self.kernel = self._thread(chain, options) if kind == "cpu" else self._handler(chain, options)

    def message(self, number: int, x: Any, values: Any, resets: bool = False) -> Any:
        """A block (channels, samples) of float32 with the values at its end."""
        padded = values if values.size == self._count else np.zeros(self._count)
        return self.block(number=number, resets=int(resets), values=padded, x=x.reshape(-1))

    def _handler(self, chain: Chain, options: dict[str, Any]) -> RingKernel:
        program = chain.program
        memory = Memory(program)
        self._memory = memory
        names = {"CHANNELS": chain.channels, "SIZE": chain.block, "WIDE": program.wide, "NARROW": program.narrow}
        text = "".join(f"constexpr int {name} = {value};\n" for name, value in names.items())

        def handler() -> None:
            """Replaced by the handler's source."""

        handler.__doc__ = text + program.source + _HANDLER
        arrays = {"wide": memory.wide, "narrow": memory.narrow, "tables": memory.tables, "scratch": memory.scratch}
        gp.current_device().synchronize()
        state = {name: np.uint64(array.ptr) for name, array in arrays.items()}
        return RingKernel(
            handler, **options, device="gpu", block_size=program.threads, dedicated=True, state=state
        )  # fmt: skip

    def _thread(self, chain: Chain, options: dict[str, Any]) -> RingKernel:
        result, count = self.result, chain.values().size

        def made() -> HostChain:
            return HostChain(chain.effects, chain.rate, chain.channels, chain.block)

        def serve(ctx: Any) -> None:
            host = made()
            while not ctx.should_terminate:
                block = ctx.receive()
                began = time.perf_counter_ns()
                if block.resets:
                    host = made()
                x = host.run(np.asarray(block.x).reshape(chain.channels, chain.block), np.asarray(block.values)[:count])
                took = time.perf_counter_ns() - began
                counts = {"not_finite": host.not_finite, "processed": host.blocks}
                ctx.send(result(number=block.number, nanoseconds=took, x=x.reshape(-1), **counts))

        return RingKernel(serve, **options)
