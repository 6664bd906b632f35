"""Tables on narrow terminals."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from pygpukit.cli.board import Rates, actors, board
from pygpukit.cli.columns import shortened
from pygpukit.scheduler import Scheduler

LONG = "inference-server-replica-with-a-long-name-07"


def shown(what: RenderableType, width: int) -> list[str]:
    target = io.StringIO()
    Console(file=target, width=width, highlight=False).print(what)
    return [line.rstrip() for line in target.getvalue().splitlines()]


def task(number: int, name: str, **more: Any) -> dict[str, Any]:
    common = {"id": number, "name": name, "policy": "guaranteed", "partition": "a-partition-of-this-machine"}
    figures = {"lane": 3, "sm_count": 16, "share": 0.25, "gpu_seconds": 12345.67, "memory": 1 << 30}
    waits = {"memory_peak": 3 << 30, "throttled_seconds": 12.5, "throttled": 123}
    return {**common, **figures, **waits, "throttle_log": [(0.0, 0.0123, "turn_of_another")], **more}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("width", [80, 100, 160])
def test_names_stay_in_one_line_and_figures_whole(width: int, live: bool) -> None:
    with Scheduler() as scheduler:
        status = scheduler.status()
    tasks = [task(1, LONG, state="running"), task(2, "short", state="running", throttle_log=[])]
    tasks.append(task(3, LONG, state="queued", position=0, reason="200 MiB asked > 192 MiB of partition 'default'"))
    partition = {**status["partitions"][0], "name": LONG}
    answer = {**status, "tasks": tasks, "partitions": [partition], "pid": 1, "capacity": status["capacity"]}
    lines = shown(board(answer, live=live, width=width), width)
    text = "\n".join(lines)
    assert max(len(line) for line in lines[2:]) <= width
    rows = [line for line in lines if line.lstrip().startswith(("infer", "1 ", "3 ")) or "infer" in line[:30]]
    assert len(rows) == 3
    for row in rows:
        assert "-07" in row
    for figure in ("12345.67", "25.0%", "1.0 GiB", "16"):
        assert figure in text
    # The inequality may have several lines, its words not.
    assert "200 MiB asked" in text
    assert ("throttled" in text or "times" in text) == (width == 160)
    assert text.count("...") >= (3 if width == 80 else 0)


def test_actors_on_80_columns() -> None:
    rows = [
        {"kernel_id": LONG, "tier": "device", "state": "ACTIVE", "input_depth": 1234, "output_depth": 12, "restarts": 3}
        | {"processed": 123456789, "failed": 4, "latency": {"count": 9, "p50": 2e-6, "p99": 0.25}}
    ]
    ring = {"pid": 1, "ring": 1, "time": 1.0, "actors": rows, "dead_letters": {}}
    lines = shown(actors(ring, Rates(), 80), 80)
    [row] = [line for line in lines if "infer" in line]
    assert max(map(len, lines)) <= 80
    assert "..." in row
    assert "-07" in row
    for figure in ("ACTIVE", "1234", "2.0 us", "250.0 ms"):
        assert figure in row


def test_names_lose_their_middle() -> None:
    assert shortened("short", 12) == "short"
    assert shortened("abcdefghijkl", 9) == "abc...jkl"
    assert [len(shortened("abcdefghij", size)) for size in range(10)] == list(range(10))
