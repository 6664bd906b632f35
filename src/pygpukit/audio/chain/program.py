"""A chain as CUDA C++: the function of a block, its memory, and the kernel over whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.chain.effects import Effect, Plan
from pygpukit.audio.operators import gp
from pygpukit.jit import jit
from pygpukit.ops.source import read

__all__ = ["DeviceChain", "Memory", "Program"]

_BLOCKS_PER_LAUNCH = 2048

# Blocks and the position before them, then a count per channel of samples that were not finite.
_HEAD = 2

_ENTRY = """
struct Group {
    int lane, width;
    __device__ __forceinline__ void sync() const { __syncthreads(); }
};

// Items of a batch, each by a block of threads, over blocks `first` to `first + blocks` of n samples.
extern "C" __global__ void __launch_bounds__(THREADS) pgk_audio_chain(float* out, const float* x, const double* values,
        double* wide, float* narrow, const float* tables, float* scratch, long long n, long long first, int blocks) {
    const Group g = {(int)threadIdx.x, (int)blockDim.x};
    const long long item = blockIdx.x;
    out += item * CHANNELS * n;
    x += item * CHANNELS * n;
    scratch += item * SCRATCH;
    for (long long b = first; b < first + blocks; ++b) {
        for (int t = g.lane; t < CHANNELS * SIZE; t += g.width) {
            const long long at = b * SIZE + t % SIZE;
            scratch[t] = at < n ? x[t / SIZE * n + at] : 0.0f;
        }
        g.sync();
        chain_block(g, scratch, values, wide + item * WIDE, narrow + item * NARROW, tables, scratch + CHANNELS * SIZE);
        for (int t = g.lane; t < CHANNELS * SIZE; t += g.width) {
            const long long at = b * SIZE + t % SIZE;
            if (at < n) out[t / SIZE * n + at] = scratch[t];
        }
        g.sync();
    }
}
"""


def _even(n: int) -> int:
    """Sizes of float32 arrays are such that the next one can hold float64."""
    return n + n % 2


class Program:
    """The source and the sizes of a chain.

    Parameters
    ----------
    effects : sequence of Effect
        In order.
    rate : float
        Samples per second.
    channels, block : int
        Of each block.
    """

    def __init__(self, effects: Sequence[Effect], rate: float, channels: int, block: int) -> None:
        self.channels, self.block = channels, block
        self.plans: list[Plan] = [effect.plan(rate, channels, block) for effect in effects]
        self._counts = [len(effect.values(rate)) for effect in effects]
        self.values = sum(self._counts)
        self.wide = _HEAD + channels + self.values + sum(plan.wide for plan in self.plans)
        self.narrow = sum(_even(plan.narrow) for plan in self.plans)
        # A block of samples stands before what the effects use.
        self.scratch = _even(channels * block) + max((plan.scratch for plan in self.plans), default=0)
        most = max([channels * block, *(plan.sizes[3] * channels * (plan.sizes[0] // 2)
                                        for plan in self.plans if plan.function == "convolve")])  # fmt: skip
        self.threads = min(512, max(64, -(-most // 32) * 32))

    @property
    def tables(self) -> Any:
        """All constants in one row of float32."""
        parts = [np.zeros(2, np.float32)]
        for plan in self.plans:
            parts += [plan.tables, np.zeros(plan.tables.size % 2, np.float32)]
        return np.concatenate(parts)

    @cached_property
    def source(self) -> str:
        """``chain_block``, which changes a block of samples in place."""
        steps, value, wide, narrow, table = [], 0, _HEAD + self.channels + self.values, 0, 2
        for plan, count in zip(self.plans, self._counts, strict=True):
            sizes = ", ".join(map(str, (self.channels, self.block, *plan.sizes)))
            given = ["g", "x", f"p.after({value})"]
            if plan.function in ("limiter", "convolve", "spectral"):
                given.append("position")
            if plan.function != "convolve":
                given.append(f"wide + {wide}")
            if plan.function in ("limiter", "convolve", "spectral"):
                given.append(f"narrow + {narrow}")
            if plan.function in ("convolve", "spectral"):
                given.append(f"tables + {table}")
            if plan.function != "highpass":
                given.append("scratch")
            steps.append(f"    chain::{plan.function}<{sizes}>({', '.join(given)});")
            value, wide, narrow = value + count, wide + plan.wide, narrow + _even(plan.narrow)
            table += _even(plan.tables.size)
        c, block, count, before = self.channels, self.block, self.values, _HEAD + self.channels
        return read("audio/chain.cuh").replace("#pragma once\n", "") + "\n".join([
            "",
            "// wide: blocks so far, samples so far, a count per channel, the values at the end of the last block.",
            "template <class G>",
            "__device__ __noinline__ void chain_block(const G g, float* x, const double* values, double* wide,",
            "        float* narrow, const float* tables, float* scratch) {",
            "    const bool begins = wide[0] == 0.0;",
            "    const long long position = (long long)wide[1];",
            f"    const chain::Ramp p = {{begins ? values : wide + {before}, values, {float(block)}}};",
            f"    chain::admit<{c}, {block}>(g, x, wide + {_HEAD});",
            *steps,
            f"    for (int k = g.lane; k < {count}; k += g.width) wide[{before} + k] = values[k];",
            "    if (g.lane == 0) {",
            "        wide[0] += 1.0;",
            f"        wide[1] += {float(block)};",
            "    }",
            "    g.sync();",
            "}",
            "",
        ])  # fmt: skip

    def kernel(self) -> Any:
        """The kernel over whole arrays."""
        names = {
            "THREADS": self.threads, "CHANNELS": self.channels, "SIZE": self.block, "WIDE": self.wide,
            "NARROW": self.narrow, "SCRATCH": self.scratch,
        }  # fmt: skip
        text = "".join(f"#define {name} {value}\n" for name, value in names.items())
        return jit(text + self.source + _ENTRY, func="pgk_audio_chain", sliceable=False)


class Memory:
    """Device memory of a chain for some items.

    Parameters
    ----------
    program : Program
        Whose.
    items : int
        Items of a batch, each with a state of its own.
    """

    def __init__(self, program: Program, items: int = 1) -> None:
        self.wide = gp.zeros((items, program.wide), "float64")
        self.narrow = gp.zeros((items, max(2, program.narrow)), "float32")
        self.scratch = gp.zeros((items, program.scratch), "float32")
        self.tables = gp.from_numpy(program.tables)


class DeviceChain:
    """A chain over arrays on the device: what it was given is in its memory.

    Parameters
    ----------
    program : Program
        What is computed.
    items : int
        Items of a batch.
    """

    def __init__(self, program: Program, items: int) -> None:
        self._program, self._memory = program, Memory(program, items)
        self._kernel = program.kernel()

    def run(self, x: GPUArray, values: Any) -> GPUArray:
        """Return the result of (items, channels, n) samples, of which the last block is filled up with zeros."""
        memory, n = self._memory, x.shape[-1]
        x, out, given = gp.ascontiguousarray(x), gp.empty(x.shape, "float32"), gp.from_numpy(values)
        blocks = -(-n // self._program.block)
        for first in range(0, blocks, _BLOCKS_PER_LAUNCH):
            self._kernel(
                out, x, given, memory.wide, memory.narrow, memory.tables, memory.scratch, n, first,
                min(_BLOCKS_PER_LAUNCH, blocks - first), grid=x.shape[0], block=self._program.threads,
            )  # fmt: skip
        return out

    @property
    def not_finite(self) -> int:
        """Samples that were not finite, and were taken for 0."""
        return int(self._memory.wide[:, _HEAD : _HEAD + self._program.channels].to_numpy().sum())

    def state(self) -> Any:
        """Return a copy of what is kept from block to block."""
        return self._memory.wide.copy(), self._memory.narrow.copy()

    def restore(self, state: Any) -> None:
        """Go back to what `state` returned."""
        self._memory.wide, self._memory.narrow = (kept.copy() for kept in state)
