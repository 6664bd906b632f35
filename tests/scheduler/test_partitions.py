"""Partitions as users meet them: contexts of models, and what a partition is in the way of."""

from __future__ import annotations

import asyncio
import threading

import pytest
from checks import PATIENCE, await_state, until_cancelled, use_device

from pygpukit.errors import DeviceError
from pygpukit.scheduler import Context, Scheduler


def test_contexts_of_models_run_beside_each_other(scheduler: Scheduler) -> None:
    async def both(one: Context, two: Context) -> list[int]:
        return list(await asyncio.gather(one.submit(lambda: 1), two.submit(lambda: 2, memory="8MiB")))

    with scheduler.create_context("a", max_vram="16MiB") as one, scheduler.create_context("b", max_vram="8MiB") as two:
        assert asyncio.run(both(one, two)) == [1, 2]
        assert [found.usage()["memory_capacity"] for found in (one, two)] == [16 << 20, 8 << 20]
        assert one.submit(lambda: 0, memory="17MiB").decision == "rejected"
        running = one.submit(until_cancelled)
        await_state(running, "running")
        with pytest.raises(DeviceError, match="memory"):
            scheduler.create_context("c", max_vram="41MiB")
        one.close(cancel=True)
        assert running.cancelled()
        one.close()
    assert [row["name"] for row in scheduler.status()["partitions"]] == ["default"]


def test_stats_takes_a_task_or_its_number(scheduler: Scheduler) -> None:
    task = scheduler.submit(use_device)
    task.result(PATIENCE)
    assert scheduler.stats(task) == scheduler.stats(task.id) == task.stats()
    with Scheduler(total_memory="1MiB") as other, pytest.raises(ValueError, match="another scheduler"):
        other.stats(task)


def test_a_request_that_a_partition_blocks_holds_nothing_up(scheduler: Scheduler) -> None:
    part = scheduler.create_partition("part", memory="16MiB")
    large = scheduler.submit(use_device, memory="50MiB")
    assert (large.decision, large.reason) == (
        "queued",
        "memory: 50.0 MiB asked > 48.0 MiB of partition 'default'",
    )
    assert scheduler.submit(use_device, memory="1MiB").result(PATIENCE) == 1000
    assert large.state == "queued"
    part.remove()
    assert large.result(PATIENCE) == 1000


def test_a_new_partition_lets_those_pass_that_waited_for_a_large_request(scheduler: Scheduler) -> None:
    go_on = threading.Event()
    holder = scheduler.submit(lambda: go_on.wait(PATIENCE), memory="20MiB")
    large = scheduler.submit(use_device, memory="60MiB")
    small = scheduler.submit(use_device, memory="1MiB")
    assert (large.decision, small.decision) == ("queued", "queued")
    part = scheduler.create_partition("part", memory="16MiB")
    assert small.result(PATIENCE) == 1000
    part.remove()
    go_on.set()
    assert holder.result(PATIENCE)
    assert large.result(PATIENCE) == 1000
