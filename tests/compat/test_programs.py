"""Whole programs of the kind that is published, from their imports to their results."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from pygpukit.compat.pydotcompute import (
    ComputeOrchestrator,
    RingKernelRuntime,
    UnifiedBuffer,
    kernel,
    message,
    ring_kernel,
)
from pygpukit.compat.pydotcompute.core.orchestrator import KernelLaunchConfig
from pygpukit.compat.pydotcompute.ring_kernels.lifecycle import KernelContext, RingKernelConfig


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


# Adding vectors: an actor whose messages hold arrays, and a kernel on buffers.


@message
@dataclass
class AddVectors:
    x: np.ndarray
    y: np.ndarray
    message_id: UUID = field(default_factory=uuid4)
    priority: int = 128
    correlation_id: UUID | None = None


@message
class VectorSum:
    total: np.ndarray


@ring_kernel(kernel_id="vectors", input_type=AddVectors, output_type=VectorSum, queue_size=64)
async def vectors(ctx: KernelContext[AddVectors, VectorSum]) -> None:
    while not ctx.should_terminate:
        if not ctx.is_active:
            await ctx.wait_active()
            continue
        try:
            request = await ctx.receive(timeout=0.1)
        except Exception:
            continue
        await ctx.send(VectorSum(request.x + request.y, correlation_id=request.message_id))


@kernel
def add_on_device(x: Any, y: Any, out: Any, n: Any) -> None:
    """
    extern "C" __global__ void add_on_device(const float* x, const float* y, float* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] + y[i];
    }
    """


def test_adding_vectors_with_an_actor() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await runtime.launch("vectors")
            await runtime.activate("vectors")
            requests = [AddVectors(np.full(8, float(i)), np.arange(8.0)) for i in range(10)]
            for request in requests:
                await runtime.send("vectors", request)
            for i, request in enumerate(requests):
                answer = await runtime.receive("vectors", timeout=60)
                assert answer.correlation_id == request.message_id
                np.testing.assert_array_equal(answer.total, i + np.arange(8.0))
            telemetry = runtime.get_telemetry("vectors")
            assert telemetry.messages_processed == 10
            assert telemetry.throughput > 0

    run(main())


@pytest.mark.nvrtc
@pytest.mark.parametrize("where", ["cpu", pytest.param("gpu", marks=pytest.mark.cuda)])
def test_adding_vectors_with_a_kernel(where: str) -> None:
    async def main() -> None:
        n = 1000
        x, y, out = (UnifiedBuffer((n,), dtype=np.float32).allocate() for _ in range(3))
        x.host[:] = np.arange(n)
        x.mark_host_dirty()
        y.fill(0.5)
        await x.ensure_on_device()
        async with ComputeOrchestrator() as orchestrator:
            orchestrator.register_kernel("add", add_on_device)
            config = KernelLaunchConfig(grid_size=(4,), block_size=(256,))
            assert (await orchestrator.launch_kernel("add", config, x, y, out, n)).success
            assert orchestrator.get_execution_history(kernel_name="add")[0].duration_ms >= 0
        await out.ensure_on_host()
        np.testing.assert_array_equal(out.host, np.arange(n, dtype=np.float32) + 0.5)

    run(main())


# PageRank: an actor for each part of a graph, and one that adds up what they send.


@message
class Round:
    ranks: list
    damping: float = 0.85


@message
class Share:
    part: int
    inflow: list


GRAPH = {0: [1, 2], 1: [2], 2: [0], 3: [0, 2], 4: [3, 1]}


def part_actor(part: int, parts: int) -> Any:
    async def actor(ctx: KernelContext[Round, Share]) -> None:
        own = {node: targets for node, targets in GRAPH.items() if node % parts == part}
        while not ctx.should_terminate:
            if not ctx.is_active:
                await ctx.wait_active()
                continue
            try:
                request = await ctx.receive(timeout=0.1)
            except Exception:
                continue
            inflow = [0.0] * len(GRAPH)
            for node, targets in own.items():
                for target in targets:
                    inflow[target] += request.ranks[node] / len(targets)
            await ctx.send(Share(part, inflow, correlation_id=request.message_id))

    return actor


def expected_ranks(damping: float, rounds: int) -> np.ndarray:
    n = len(GRAPH)
    matrix = np.zeros((n, n))
    for node, targets in GRAPH.items():
        matrix[targets, node] = 1 / len(targets)
    ranks = np.full(n, 1 / n)
    for _ in range(rounds):
        ranks = (1 - damping) / n + damping * matrix @ ranks
    return ranks


def test_pagerank_with_an_actor_for_each_part() -> None:
    async def main() -> None:
        n, parts, rounds = len(GRAPH), 2, 30
        names = [f"part-{part}" for part in range(parts)]
        async with RingKernelRuntime() as runtime:
            for part, name in enumerate(names):
                await runtime.launch(name, part_actor(part, parts), input_type=Round, output_type=Share)
                await runtime.activate(name)
            ranks = [1 / n] * n
            for _ in range(rounds):
                asked = (runtime.send_and_receive(name, Round(ranks), timeout=60) for name in names)
                shares = await asyncio.gather(*asked)
                assert [one.part for one in shares] == list(range(parts))
                ranks = [0.15 / n + 0.85 * sum(flows) for flows in zip(*(s.inflow for s in shares), strict=True)]
            summary = runtime.get_summary()
            assert (summary["kernel_count"], summary["total_messages_processed"]) == (parts, parts * rounds)
        np.testing.assert_allclose(ranks, expected_ranks(0.85, rounds), rtol=1e-12)
        assert sum(ranks) == pytest.approx(1.0)

    run(main())


# A pipeline: stages that hand on what they made, the urgent first, with the last stage full now and then.


@message
@dataclass
class Reading:
    value: float
    stage: int = 0
    message_id: UUID = field(default_factory=uuid4)
    priority: int = 128
    correlation_id: UUID | None = None


def stage_actor(work: Any) -> Any:
    async def actor(ctx: KernelContext[Reading, Reading]) -> None:
        while not ctx.should_terminate:
            reading = await ctx.receive(timeout=0.05)
            reading.value = work(reading.value)
            reading.stage += 1
            await ctx.send(reading)

    return actor


def test_a_pipeline_of_three_stages() -> None:
    async def main() -> None:
        works = [lambda x: x * 2, lambda x: x + 1, lambda x: x**2]
        names = ["scale", "shift", "square"]
        async with RingKernelRuntime() as runtime:
            for name, work in zip(names, works, strict=True):
                config = RingKernelConfig(name, input_queue_size=4, output_queue_size=4)
                await runtime.launch(name, stage_actor(work), config=config)
                await runtime.activate(name)

            async def carry(source: str, target: str, count: int) -> None:
                for _ in range(count):
                    await runtime.send(target, await runtime.receive(source))

            async def feed(count: int) -> list[Reading]:
                sent = [Reading(float(i)) for i in range(count)]
                for reading in sent:
                    await runtime.send("scale", reading)
                return sent

            async def collect(count: int) -> list[Reading]:
                return [await runtime.receive("square", timeout=60) for _ in range(count)]

            count = 50
            carriers = [carry("scale", "shift", count), carry("shift", "square", count)]
            sent, *_, results = await asyncio.gather(feed(count), *carriers, collect(count))
            assert [one.value for one in results] == [(2.0 * i + 1) ** 2 for i in range(count)]
            assert {one.stage for one in results} == {3}
            assert [one.message_id for one in results] == [one.message_id for one in sent]
            for name in names:
                assert runtime.get_telemetry(name).messages_processed == count

    run(main())


def test_the_urgent_go_first() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            order: list[float] = []
            await runtime.launch("urgent", stage_actor(lambda x: order.append(x) or x))
            await runtime.activate("urgent")
            await runtime.deactivate("urgent")
            for priority in (50, 100, 200):
                await runtime.send("urgent", Reading(float(priority), priority=priority))
            await runtime.reactivate("urgent")
            for _ in range(3):
                await runtime.receive("urgent", timeout=60)
            assert order == [200.0, 100.0, 50.0]

    run(main())
