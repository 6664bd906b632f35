"""Tenants that misbehave: others go on, the reason is said, and no process hangs or leaves anything behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]
Interrupted = Callable[..., tuple[int, str, str]]

BEGIN = """
import os, sys, threading, time
import pygpukit as gp
from pygpukit.errors import *
from pygpukit.scheduler import *
scheduler = Scheduler(total_memory="64MiB")
"""


@pytest.mark.parametrize("policy", ["besteffort", "guaranteed"])
def test_a_task_that_never_returns(on_eight_sms: Run, policy: str) -> None:
    program = f"""
scheduler = Scheduler(total_memory="64MiB")
asked = dict(memory="8MiB", bandwidth=0.25) if "{policy}" == "guaranteed" else {{}}
stuck = scheduler.submit(threading.Event().wait, name="stuck", policy="{policy}", **asked)
await_state(stuck, "running")
tasks = [scheduler.submit(use_device, memory="1MiB") for _ in range(10)]
tasks.append(scheduler.submit(use_device, policy="guaranteed", memory="2MiB", bandwidth=0.25))
assert [task.result(PATIENCE) for task in tasks] == [1000] * 11
assert scheduler.shutdown(timeout=0.05) is False
assert scheduler.shutdown(cancel=True, timeout=0.05) is False
assert stuck.state == "running"
print("end")
"""
    # It does not keep the process alive either.
    assert on_eight_sms(program) == "end\n"


@pytest.mark.parametrize("streams", ["inline", "deferred:1"])
def test_tasks_that_run_while_the_process_ends(run_python: Run, streams: str) -> None:
    program = """
def work():
    x = gp.ones(10_000)
    while True:
        gp.tanh(x)

async def waits():
    import asyncio
    while True:
        gp.ones(100)
        await asyncio.sleep(0)

for n in range(4):
    scheduler.submit(work, policy="guaranteed" if n == 0 else None, bandwidth=0.25 if n < 2 else None)
    default_scheduler().submit(work)
scheduler.submit(waits)
scheduler.submit(work, period=0.001, cost=0.0001)
time.sleep(0.1)
print("end")
"""
    assert run_python(BEGIN + program, PYGPUKIT_STREAMS=streams, PYGPUKIT_CPU_SMS="8") == "end\n"


def test_a_flood_is_bounded(on_eight_sms: Run) -> None:
    program = """
scheduler = Scheduler(total_memory="64MiB", max_queue=100)
go_on = threading.Event()
holder = scheduler.submit(go_on.wait, memory="64MiB")
flood = [scheduler.submit(use_device, args=[1], memory="1MiB") for _ in range(1000)]
verdicts = [str(task.decision) for task in flood]
assert verdicts == ["queued"] * 100 + ["rejected"] * 900
assert flood[-1].reason == "queue: 1 asked + 100 waiting > 100 of partition 'default'", flood[-1].reason
assert isinstance(flood[-1].exception(), AdmissionError)
# Who needs nothing that others wait for is not in the queue.
assert scheduler.submit(lambda: 3).result(PATIENCE) == 3
go_on.set()
assert [task.result(PATIENCE) for task in flood[:100]] == [1000] * 100
assert scheduler.submit(use_device, memory="64MiB").result(PATIENCE) == 1000

none = Scheduler(total_memory="64MiB", max_queue=0)
with none.task(memory="64MiB"):
    assert none.submit(int, memory="1MiB").decision == "rejected"
"""
    on_eight_sms(program)


def test_one_long_operator_holds_its_own_lane_only(on_eight_sms: Run) -> None:
    program = """
scheduler = Scheduler(total_memory="2GiB")
a = gp.ones((1500, 1500), dtype="float64")
ended, go_on = [], threading.Event()

def long():
    go_on.wait(PATIENCE)
    for _ in range(40):
        gp.matmul(a, a)
        if len(ended) == 3:
            return
    raise AssertionError("the others did not go on")

hog = scheduler.submit(long, name="hog")
lanes = [scheduler.submit(lambda: (go_on.wait(PATIENCE), use_device(), ended.append(1)), policy="guaranteed",
                          bandwidth=0.25, memory="2MiB") for _ in range(3)]
for task in (hog, *lanes):
    await_state(task, "running")
go_on.set()
for task in lanes:
    task.result(PATIENCE)
assert {task.stats()["throttled"] for task in lanes} == {0}
hog.result(PATIENCE)
"""
    on_eight_sms(program)


def test_statistics_name_who_has_the_lane(on_eight_sms: Run) -> None:
    program = """
scheduler = Scheduler(total_memory="64MiB")
stop = threading.Event()

def work():
    x = gp.ones(20_000)
    while not stop.is_set():
        gp.tanh(x)

tasks = [scheduler.submit(work, name=name) for name in ("first", "second")]
for task in tasks:
    await_submissions(task, 10)
holders = set()
for _ in range(int(PATIENCE * 1000)):
    holders.add(tasks[0].stats()["lane_holder"])
    if {"first", "second"} <= holders:
        break
    time.sleep(0.001)
assert {"first", "second"} <= holders, holders
assert holders <= {"first", "second", "(unscheduled)", None}, holders
gp.tanh(gp.ones(10))
assert scheduler.status()["unscheduled"]["submissions"] > 0
stop.set()
for task in tasks:
    task.result(PATIENCE)
    assert task.stats()["throttled"] > 0
    assert {why for _, _, why in task.stats()["throttle_log"]} <= {"turn", "in_flight", "limit"}
assert scheduler.status()["unscheduled"] is None
"""
    on_eight_sms(program)


def test_shutdown_with_work_queued(on_eight_sms: Run) -> None:
    program = """
def crowd(**options):
    scheduler = Scheduler(total_memory="8MiB")
    go_on, ran = threading.Event(), []
    def first():
        while not go_on.wait(0.001):
            yield_()
    tasks = [scheduler.submit(first, memory="8MiB")]
    tasks += [scheduler.submit(ran.append, args=[n], memory="8MiB") for n in range(20)]
    await_state(tasks[0], "running")
    threading.Timer(0.05, go_on.set).start()
    ended = scheduler.shutdown(**options)
    return scheduler, tasks, ran, ended

# Nothing that was taken is lost.
scheduler, tasks, ran, ended = crowd()
assert ended is True
assert ran == list(range(20))
assert {task.state for task in tasks} == {"done"}

scheduler, tasks, ran, ended = crowd(cancel=True)
assert ended is True
assert ran == []
assert {task.state for task in tasks} == {"cancelled"}

scheduler, tasks, ran, ended = crowd(timeout=0.001)
assert ended is False
assert scheduler.shutdown() is True
assert ran == list(range(20))

scheduler, tasks, ran, ended = crowd(wait=False)
assert ended is False
assert [task.wait(PATIENCE) for task in tasks] == [True] * 21
assert scheduler.shutdown() is True

try:
    with Scheduler(total_memory="8MiB") as scheduler:
        task = scheduler.submit(until_cancelled, memory="8MiB")
        queued = scheduler.submit(int, memory="8MiB")
        raise KeyError("body")
except KeyError:
    assert (task.state, queued.state) == ("cancelled", "cancelled")

# Whoever submits while others shut down is refused or waited for, never forgotten.
for turn in range(20):
    scheduler, taken = Scheduler(), []
    def submitter():
        while True:
            try:
                taken.append(scheduler.submit(int))
            except RuntimeError:
                return
    threads = [threading.Thread(target=submitter) for _ in range(3)]
    for thread in threads:
        thread.start()
    scheduler.shutdown()
    for thread in threads:
        thread.join(PATIENCE)
    assert scheduler.shutdown()
    assert {task.result(PATIENCE) for task in taken} <= {0}
    assert scheduler.status()["tasks"] == []
"""
    on_eight_sms(program)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("wait", ["task.result()", "task.wait()", "task.exception()", "scheduler.shutdown()"])
def test_interrupted_while_waiting_for_a_task(interrupted: Interrupted, wait: str) -> None:
    program = f"""
go_on = threading.Event()
task = scheduler.submit(go_on.wait, name="patient")
print("waiting")
try:
    {wait}
except KeyboardInterrupt:
    pass
else:
    raise SystemExit("it was not interrupted")
go_on.set()
assert task.result(60) is True
print("task.state", task.state)
"""
    status, out, err = interrupted(BEGIN + program, delay=0.1, PYGPUKIT_DEVICE="cpu")
    assert (status, out) == (0, "task.state done\n"), err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize(
    ("asked", "inside"),
    [
        ("memory='1MiB'", "gp.tanh(x)"),
        ("bandwidth=0.001, bandwidth_limit=0.001", "gp.tanh(x)"),
        ("policy='guaranteed', bandwidth=0.25", "time.sleep(0.001)"),
    ],
)
def test_interrupted_inside_a_block(interrupted: Interrupted, asked: str, inside: str) -> None:
    program = f"""
x = gp.ones(1000)
before = scheduler.status()["partitions"][0]["memory_reserved"]
try:
    with scheduler.task({asked}) as task:
        print("waiting")
        while True:
            {inside}
except KeyboardInterrupt:
    pass
assert task.state == "failed", task.state
assert scheduler.status()["tasks"] == []
assert scheduler.status()["partitions"][0]["memory_reserved"] == before
gp.tanh(x)
with scheduler.task({asked}):
    gp.tanh(x)
print("end")
"""
    environment = {"PYGPUKIT_DEVICE": "cpu", "PYGPUKIT_CPU_SMS": "8"}
    status, out, err = interrupted(BEGIN + program, delay=0.1, **environment)
    assert (status, out) == (0, "end\n"), err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_interrupted_before_a_block(interrupted: Interrupted) -> None:
    program = """
go_on = threading.Event()
holder = scheduler.submit(go_on.wait, memory="64MiB")
print("waiting")
try:
    with scheduler.task(memory="1MiB"):
        raise SystemExit("it was run")
except KeyboardInterrupt:
    pass
assert [row["name"] for row in scheduler.status()["tasks"]] == ["wait"]
go_on.set()
assert holder.result(60)
with scheduler.task(memory="64MiB"):
    print("end")
"""
    status, out, err = interrupted(BEGIN + program, delay=0.1, PYGPUKIT_DEVICE="cpu")
    assert (status, out) == (0, "end\n"), err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children(run_python: Run) -> None:
    program = """
import signal
go_on = threading.Event()
task = scheduler.submit(go_on.wait, memory="1MiB")
default = default_scheduler()
assert default.submit(int).result(60) == 0

def in_child():
    try:
        scheduler.submit(int)
    except ForkError as error:
        assert f"belongs to process {os.getppid()}" in str(error), error
    else:
        raise AssertionError("the parent's threads are not here")
    assert scheduler.shutdown() is False
    assert default_scheduler() is not default
    assert submit(lambda: float(gp.sum(gp.ones(10)).item())).result(60) == 10
    with Scheduler(total_memory="8MiB") as own:
        assert own.submit(lambda: 5, memory="8MiB").result(60) == 5

child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        in_child()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
go_on.set()
assert task.result(60) is True
assert default.submit(int).result(60) == 0
print("end")
"""
    assert run_python(BEGIN + program) == "end\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_children_that_are_forked_in_the_middle_of_an_operator(run_python: Run) -> None:
    program = """
import signal
def long():
    x = gp.ones(2_000_000)
    while True:
        gp.tanh(x)

task = scheduler.submit(long)
while task.stats().get("submissions", 0) < 2:
    time.sleep(0.001)
for _ in range(3):
    child = os.fork()
    if child == 0:
        # Work of no task waits for nobody, before and after there are tasks here.
        signal.alarm(60)
        assert gp.sum(gp.ones(10)).item() == 10
        assert submit(lambda: float(gp.sum(gp.ones(10)).item())).result(60) == 10
        assert gp.sum(gp.ones(10)).item() == 10
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
task.cancel()
task.exception(60)
print("end")
"""
    assert run_python(BEGIN + program) == "end\n"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of Unix")
def test_a_killed_process_leaves_a_socket_and_nothing_else(
    program: Callable[..., object], runtime_folder: Path, run_python: Run
) -> None:
    source = """
import pygpukit as gp
from pygpukit.scheduler import Scheduler
scheduler = Scheduler(total_memory="64MiB")
def work():
    x = gp.ones(1000)
    while True:
        gp.tanh(x)
tasks = [scheduler.submit(work, memory="8MiB", policy=policy) for policy in ("guaranteed", "burstable")]
while not all(task.stats().get("submissions", 0) > 3 for task in tasks):
    pass
print("ready", flush=True)
tasks[0].result()
"""
    process = program(source)
    process.kill()  # type: ignore[attr-defined]
    process.wait()  # type: ignore[attr-defined]
    left = [path for path in runtime_folder.rglob("*") if path.is_file() or path.is_socket()]
    assert [path.suffix for path in left] == [".sock"]
    # The next one does not mind, and cleans up.
    run_python(
        "from pygpukit.scheduler import Scheduler\nassert Scheduler().submit(int, memory='64MiB').result(60) == 0",
        XDG_RUNTIME_DIR=str(runtime_folder),
        TMPDIR=str(runtime_folder),
    )
    assert [path for path in runtime_folder.rglob("*") if path.is_socket()] == []
