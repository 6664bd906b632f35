"""Tasks in processes of their own: results, faults, turns, memory, and nothing left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.errors import OutOfMemoryError, TaskCancelledError, TaskProcessError
from pygpukit.scheduler import Scheduler, Task

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs Unix sockets"),
    pytest.mark.timeout(120),
]

HERE = Path(__file__).resolve().parent
PATIENCE = 60.0

few_processors = pytest.mark.skipif(
    (os.cpu_count() or 1) < 4, reason="two processes and the scheduler's own need processors of their own"
)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The functions, under a name that a new process finds."""
    monkeypatch.syspath_prepend(str(HERE))
    # Threads of idle processes that spin would take the cores that others' time is measured on.
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    import process_programs

    return process_programs


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler("cpu")
    yield scheduler
    scheduler.shutdown(cancel=True, timeout=PATIENCE)
    assert multiprocessing.active_children() == []


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait for something that will be."""
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.005)
    return found


def pid_in(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text()))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def used(task: Task[Any]) -> float:
    return float(task.stats().get("gpu_seconds", 0.0))


def stop_with_a_turn(task: Task[Any]) -> int:
    """Stop the process of a task while it has the lane."""
    until(lambda: used(task) > 0)
    pid = int(task.stats()["process"]["pid"])

    def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        # What it had said before must have been heard, too.
        time.sleep(0.01)
        if task.stats()["lane_holder"] == task.name:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    until(stopped)
    return pid


def comes_to(tasks: list[Task[Any]], share: float) -> bool:
    """Does the first get about this part of the device time? Others' load blurs a window, but hardly each of them."""
    for _ in range(8):
        before = [used(task) for task in tasks]
        time.sleep(1.0)
        meanwhile = np.array([used(task) for task in tasks]) - before
        if abs(meanwhile[0] / meanwhile.sum() - share) < 0.08:
            return True
    return False


def test_result(scheduler: Scheduler, programs: Any) -> None:
    x = gp.ones((4, 4))
    task = scheduler.submit(programs.square, args=(x,), kwargs={"scale": 2.0}, isolation="process", bandwidth=0.5)
    found = task.result(timeout=PATIENCE)
    assert found["pid"] != os.getpid()
    assert isinstance(found["product"], np.ndarray)
    np.testing.assert_array_equal(found["product"], np.full((4, 4), 8.0, dtype=np.float32))
    assert "running" in found["task"]
    stats = task.stats()
    assert (stats["mode"], stats["state"]) == ("process", "done")
    assert stats["submissions"] > 0
    # However short it was: what it used was told before its result.
    assert 0 < stats["gpu_seconds"] < 60
    assert stats["memory_peak"] >= 2 * x.nbytes
    assert stats["process"] == {"pid": found["pid"], "state": "ended", "exit_code": 0, "mps": False}
    assert is_gone(found["pid"])


def test_arrays_of_every_type_come_back_as_numpy(scheduler: Scheduler, programs: Any) -> None:
    found = scheduler.submit(programs.bfloats, isolation="process").result(timeout=PATIENCE)
    assert isinstance(found, np.ndarray)
    assert str(found.dtype) == "bfloat16"
    assert found.tolist() == [1.0, 1.0, 1.0]


def test_coroutines_and_awaiting(scheduler: Scheduler, programs: Any) -> None:
    async def main() -> int:
        return await scheduler.submit(programs.wait_a_little, args=(40,), isolation="process")

    assert asyncio.run(main()) == 42


def test_decorated_functions(programs: Any) -> None:
    value, pid = programs.decorated(41)
    assert value == 42
    assert pid != os.getpid()
    gp.scheduler.shutdown()


def test_tasks_inside_share_the_turns(scheduler: Scheduler, programs: Any) -> None:
    assert scheduler.submit(programs.nest, isolation="process").result(timeout=PATIENCE) == [3, True]


def test_partitions_of_processes(scheduler: Scheduler, programs: Any) -> None:
    apart = scheduler.create_partition("apart", compute=0.3, isolation="process")
    task = apart.submit(programs.allocate, args=(100,))
    assert task.result(timeout=PATIENCE) == 100
    assert task.stats()["mode"] == "process"
    with pytest.raises(ValueError, match="submit\\(\\) a function"), apart.task():
        pass


def test_guaranteed(scheduler: Scheduler, programs: Any) -> None:
    task = scheduler.submit(programs.allocate, args=(10,), isolation="process", policy="guaranteed", memory="4MB")
    assert task.result(timeout=PATIENCE) == 10


def test_exceptions_bring_their_traceback(scheduler: Scheduler, programs: Any) -> None:
    task = scheduler.submit(programs.fail, args=("on purpose",), isolation="process")
    with pytest.raises(ValueError, match="on purpose") as caught:
        task.result(timeout=PATIENCE)
    assert "in fail" in str(caught.value.__cause__)
    assert task.state == "failed"
    stubborn = scheduler.submit(programs.fail_stubbornly, isolation="process")
    with pytest.raises(TaskProcessError, match=r"StubbornError: no way \(this exception cannot be pickled\)") as other:
        stubborn.result(timeout=PATIENCE)
    assert "in fail_stubbornly" in str(other.value.__cause__)


def test_what_cannot_travel_is_refused_at_once(scheduler: Scheduler, programs: Any) -> None:
    def local() -> None: ...

    for fn, name in [(local, "local"), (lambda: 1, "<lambda>")]:
        with pytest.raises(TypeError, match=f"{name} cannot be pickled .* at the top level of a module"):
            scheduler.submit(fn, isolation="process")
    with pytest.raises(TypeError, match="argument 0 of allocate, a lock, cannot be pickled"):
        scheduler.submit(programs.allocate, args=(threading.Lock(),), isolation="process")
    with pytest.raises(TypeError, match="argument 'nbytes' of allocate, a generator"):
        scheduler.submit(programs.allocate, kwargs={"nbytes": (i for i in ())}, isolation="process")
    assert scheduler.status()["tasks"] == []
    task = scheduler.submit(programs.return_a_lock, isolation="process")
    with pytest.raises(TypeError, match="task 'return_a_lock' returned a lock that cannot be pickled"):
        task.result(timeout=PATIENCE)


def test_bad_requests(scheduler: Scheduler, programs: Any) -> None:
    with pytest.raises(ValueError, match="'process' and a deadline exclude each other"):
        scheduler.submit(programs.nest, isolation="process", deadline=0.1, cost=0.01)
    with pytest.raises(ValueError, match="submit\\(\\) a function"), scheduler.task(isolation="process"):
        pass
    rejected = scheduler.submit(programs.nest, isolation="process", memory=1 << 60)
    assert rejected.decision == "rejected"


@pytest.mark.parametrize(("how", "said"), [("exit", "exited with code 3"), ("kill", "was ended by SIGKILL")])
def test_a_crash_harms_nobody(scheduler: Scheduler, programs: Any, tmp_path: Path, how: str, said: str) -> None:
    stop = tmp_path / "stop"
    neighbour = scheduler.submit(programs.loop_until, args=(64, stop), bandwidth=0.5)
    crashing = scheduler.submit(programs.end_by, args=(how,), isolation="process", bandwidth=0.5)
    with pytest.raises(TaskProcessError, match=said):
        crashing.result(timeout=PATIENCE)
    assert crashing.state == "failed"
    # Its place is free again.
    assert scheduler.submit(programs.allocate, args=(1,), isolation="process", bandwidth=0.5).result(PATIENCE) == 1
    before = neighbour.stats()["submissions"]
    until(lambda: neighbour.stats()["submissions"] > before + 20)
    stop.touch()
    assert neighbour.result(timeout=PATIENCE) > 0


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "was ended by SIGKILL"), (60.0, "said no more")])
def test_a_process_that_another_thread_reaps(
    scheduler: Scheduler, programs: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, said: str
) -> None:
    # Where there is no fork, there is no such module.
    from multiprocessing.popen_fork import Popen

    poll = Popen.poll
    told_at: dict[Popen, float] = {}

    def poll_late(self: Popen, flag: int = os.WNOHANG) -> int | None:
        # To reap a process and to say so are two steps, and others may look between them.
        code = poll(self, flag)
        if code is not None and time.monotonic() < told_at.setdefault(self, time.monotonic() + seconds):
            return None
        return code

    with monkeypatch.context() as patch:
        patch.setattr(Popen, "poll", poll_late)
        crashing = scheduler.submit(programs.end_by, args=("kill",), isolation="process")
        with pytest.raises(TaskProcessError, match=said):
            crashing.result(timeout=PATIENCE)
    assert len(told_at) == 1
    assert crashing.stats()["process"]["exit_code"] == (-signal.SIGKILL if seconds < 1 else None)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("isolation", ["auto", "process"])
def test_a_stopped_process_loses_its_turn(scheduler: Scheduler, programs: Any, tmp_path: Path, isolation: str) -> None:
    stop = tmp_path / "stop"
    task = scheduler.submit(programs.loop_until, args=(64, stop), isolation="process", bandwidth=0.5)
    pid = stop_with_a_turn(task)
    try:
        neighbour = scheduler.submit(programs.allocate, args=(1000,), isolation=isolation, bandwidth=0.5)
        assert neighbour.result(timeout=PATIENCE) == 1000
        assert task.stats()["process"]["state"] == "unresponsive"
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: task.stats()["process"]["state"] == "running")
    before = used(task)
    until(lambda: used(task) > before)
    stop.touch()
    assert task.result(timeout=PATIENCE) > 0


@few_processors
def test_work_longer_than_a_turn_is_told(scheduler: Scheduler, programs: Any, tmp_path: Path) -> None:
    ready, stop = tmp_path / "ready", tmp_path / "stop"
    long = scheduler.submit(programs.one_long_operator, args=(ready,), isolation="process", bandwidth=0.5)
    until(ready.exists)
    neighbour = scheduler.submit(programs.loop_until, args=(16, stop), bandwidth=0.5)
    seen = set()
    while not long.done():
        seen.add(long.stats()["process"]["state"])
        time.sleep(0.01)
    stop.touch()
    assert long.result() == 2500.0
    assert "overrunning" in seen
    assert "unresponsive" not in seen
    assert neighbour.result(timeout=PATIENCE) > 0
    # All of it was charged, though the turn was lost.
    assert long.stats()["gpu_seconds"] > 0.3


def test_an_idle_process_does_not_keep_the_lane(scheduler: Scheduler, programs: Any, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    idle = scheduler.submit(programs.sleep_with_a_turn, args=(ready,), isolation="process", bandwidth=0.5)
    pid_in(ready)
    neighbour = scheduler.submit(programs.square, args=(gp.ones((4, 4)),), bandwidth=0.5)
    neighbour.result(timeout=PATIENCE)
    assert idle.stats()["process"]["state"] == "running"
    idle.cancel()


def test_cancel_in_each_phase(scheduler: Scheduler, programs: Any, tmp_path: Path) -> None:
    running_at, stubborn_at, stopped_at = (tmp_path / name for name in ("running", "stubborn", "stopped"))
    running = scheduler.submit(programs.loop, args=(16, running_at), isolation="process", bandwidth=0.6)
    queued = scheduler.submit(programs.loop, args=(16,), isolation="process", bandwidth=0.6)
    stubborn = scheduler.submit(programs.ignore_the_end, args=(stubborn_at,), isolation="process")
    stopped = scheduler.submit(programs.loop, args=(16, stopped_at), isolation="process")
    pids = [pid_in(path) for path in (running_at, stubborn_at, stopped_at)]
    os.kill(pids[2], signal.SIGSTOP)
    starting = scheduler.submit(programs.loop, args=(16,), isolation="process")
    assert queued.state == "queued"
    tasks = [queued, starting, running, stubborn, stopped]
    for task in tasks:
        assert task.cancel()
    for task in tasks:
        with pytest.raises(TaskCancelledError):
            task.result(timeout=PATIENCE)
        assert task.cancelled()
        assert not task.cancel()
    assert all(is_gone(pid) for pid in pids)


@few_processors
def test_shares_of_two_processes(scheduler: Scheduler, programs: Any, tmp_path: Path) -> None:
    ready = [tmp_path / "a", tmp_path / "b"]
    tasks = [
        scheduler.submit(programs.loop, args=(256, path), isolation="process", bandwidth=share)
        for path, share in zip(ready, (0.25, 0.75), strict=True)
    ]
    for path in ready:
        pid_in(path)
    assert comes_to(tasks, 0.25)


@few_processors
def test_shares_of_a_process_and_a_thread(scheduler: Scheduler, programs: Any, tmp_path: Path) -> None:
    ready = tmp_path / "process"
    apart = scheduler.submit(programs.loop, args=(256, ready), isolation="process", bandwidth=0.75)
    pid_in(ready)
    here = scheduler.submit(programs.loop, args=(256,), bandwidth=0.25)
    until(lambda: used(here) > 0)
    assert comes_to([here, apart], 0.25)


def test_memory(scheduler: Scheduler, programs: Any) -> None:
    hog = scheduler.submit(programs.allocate, args=(64 << 20,), isolation="process", memory_limit="16MB")
    with pytest.raises(OutOfMemoryError):
        hog.result(timeout=PATIENCE)
    fits = scheduler.submit(programs.allocate, args=(4 << 20,), isolation="process", memory="8MB")
    assert fits.result(timeout=PATIENCE) == 4 << 20
    whole = int(scheduler.status()["capacity"]["memory"])
    first = scheduler.submit(programs.sleep_with_a_turn, args=(Path(os.devnull),), isolation="process", memory="8MB")
    second = scheduler.submit(programs.allocate, args=(1,), isolation="process", memory=whole)
    assert second.decision == "queued"
    assert "memory" in str(second.reason)
    second.cancel()
    first.cancel()


def test_shutdown_with_processes_running(programs: Any, tmp_path: Path) -> None:
    scheduler = Scheduler("cpu")
    ready = [tmp_path / "a", tmp_path / "b"]
    tasks = [scheduler.submit(programs.loop, args=(16, path), isolation="process") for path in ready]
    pids = [pid_in(path) for path in ready]
    assert scheduler.shutdown(cancel=True, timeout=PATIENCE)
    assert [task.state for task in tasks] == ["cancelled", "cancelled"]
    assert all(is_gone(pid) for pid in pids)
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_no_descriptor_is_left(scheduler: Scheduler, programs: Any) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    scheduler.submit(programs.allocate, args=(1,), isolation="process").result(timeout=PATIENCE)
    before = count()
    for how in ("exit", "kill"):
        assert scheduler.submit(programs.end_by, args=(how,), isolation="process").exception(PATIENCE)
    assert scheduler.submit(programs.allocate, args=(1,), isolation="process").result(timeout=PATIENCE) == 1
    assert count() == before


PARENT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
import process_programs
from pygpukit.scheduler import Scheduler

if __name__ == "__main__":
    scheduler = Scheduler("cpu")
    task = scheduler.submit(process_programs.{function}, args=({args}), isolation="process")
    {then}
"""


def start_parent(folder: Path, function: str, args: str, then: str) -> subprocess.Popen[str]:
    script = folder / "parent.py"
    script.write_text(PARENT.format(here=str(HERE), function=function, args=args, then=then))
    environment = os.environ | {"PYGPUKIT_DEVICE": "cpu", "PYTHONPATH": str(HERE.parents[1] / "src")}
    return subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("function", ["loop", "sleep_with_a_turn"])
def test_it_ends_with_its_parent(tmp_path: Path, function: str) -> None:
    ready = tmp_path / "ready"
    args = f"16, Path({str(ready)!r})" if function == "loop" else f"Path({str(ready)!r}),"
    with start_parent(tmp_path, function, args, "time.sleep(600)") as parent:
        pid = pid_in(ready)
        parent.kill()
    until(lambda: is_gone(pid))


def test_leaving_the_program_ends_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    then = f"[time.sleep(0.01) for _ in range(3000) if not Path({str(ready)!r}).exists()]"
    with start_parent(tmp_path, "loop", f"16, Path({str(ready)!r})", then) as parent:
        pid = pid_in(ready)
        assert parent.wait(timeout=PATIENCE) == 0
    until(lambda: is_gone(pid))


def test_functions_of_a_typed_program_are_refused() -> None:
    program = (
        "from pygpukit.scheduler import Scheduler\n"
        "def f(): pass\n"
        "try:\n    Scheduler('cpu').submit(f, isolation='process')\n"
        "except TypeError as error:\n    print(error)\n"
    )
    environment = os.environ | {"PYGPUKIT_DEVICE": "cpu", "PYTHONPATH": str(HERE.parents[1] / "src")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert "its function f was typed in" in done.stdout, done.stderr


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text(
        "from pygpukit.scheduler import Scheduler\n"
        "def f(): return 1\n"
        "try:\n    Scheduler('cpu').submit(f, isolation='process').result(timeout=60)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n    raise SystemExit(1)\n"
    )
    environment = os.environ | {"PYGPUKIT_DEVICE": "cpu", "PYTHONPATH": str(HERE.parents[1] / "src")}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=100)
    assert "below if __name__ == '__main__'" in done.stdout, done.stdout + done.stderr


def test_mps_is_found_by_its_daemon(tmp_path: Path) -> None:
    from pygpukit.scheduler.process import finds_mps

    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    record = tmp_path / "nvidia-cuda-mps-control.pid"
    assert not finds_mps(environment)
    record.write_text("no number")
    assert not finds_mps(environment)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    record.write_text(gone.stdout)
    assert not finds_mps(environment)
    record.write_text(f"{os.getpid()}\n")
    assert finds_mps(environment)
