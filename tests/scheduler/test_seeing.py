"""What others see of a scheduler: the status socket, traces, metrics, NVML."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import types
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.core.nvml import read_nvml
from pygpukit.errors import MissingPackageError
from pygpukit.monitor import SchedulerCollector, start_exporter
from pygpukit.scheduler import Scheduler, publish
from pygpukit.scheduler.publish import ask, live_schedulers, unpublished_because
from pygpukit.scheduler.trace import TraceEvents

Start = Callable[..., "subprocess.Popen[str]"]

TENANTS = """
import sys
from pygpukit.scheduler import Scheduler
scheduler = Scheduler(total_memory="100MB")
scheduler.create_partition("inference", memory="16MiB", compute=0.2)
running = scheduler.submit(sys.stdin.read, name="reader", memory="60MB", partition="default")
while running.state != "running":
    running.wait(0.001)
scheduler.submit(int, name="later", memory="50MB")
print("ready")
running.result()
"""


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with Scheduler() as made:
        yield made


def use_device(steps: int = 20) -> None:
    x = gp.ones(10_000)
    for _ in range(steps):
        gp.tanh(x)


def test_another_process_is_seen(program: Start) -> None:
    first, second = program(TENANTS), program(TENANTS)
    answers = ask()
    assert {answer["pid"] for answer in answers} == {first.pid, second.pid}
    (status,) = ask(second.pid)
    assert status["program"] == "-c"
    assert [part["name"] for part in status["partitions"]] == ["default", "inference"]
    reader, later = status["tasks"]
    assert (reader["name"], reader["state"]) == ("reader", "running")
    assert (later["name"], later["state"], later["position"]) == ("later", "queued", 0)
    assert "50" in later["reason"] or "47" in later["reason"]
    assert ask(1) == []


def test_only_this_user_can_reach_the_socket(program: Start, runtime_folder: Path) -> None:
    process = program(TENANTS)
    folder = runtime_folder / "pygpukit"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == [f"{process.pid}.sock"]
    process.communicate()
    assert list(folder.iterdir()) == []


def test_the_socket_of_a_dead_process_is_removed(program: Start, runtime_folder: Path) -> None:
    process = program(TENANTS)
    process.kill()
    process.wait()
    (left,) = (runtime_folder / "pygpukit").iterdir()
    assert ask() == []
    assert not left.exists()


def test_a_new_process_removes_it_too(program: Start, runtime_folder: Path) -> None:
    process = program(TENANTS)
    process.kill()
    process.wait()
    follower = program(TENANTS)
    assert [path.stem for path in (runtime_folder / "pygpukit").iterdir()] == [str(follower.pid)]


def test_it_can_be_switched_off(program: Start, runtime_folder: Path) -> None:
    program(TENANTS.replace("print(", "assert 'PYGPUKIT_STATUS' in scheduler.status()['unpublished']; print("),
            PYGPUKIT_STATUS="0")  # fmt: skip
    assert ask() == []
    assert not (runtime_folder / "pygpukit").exists()


def test_a_folder_of_others_is_not_used(program: Start, runtime_folder: Path) -> None:
    for name in ("pygpukit", f"pygpukit-{os.getuid()}"):
        folder = runtime_folder / name
        folder.mkdir()
        folder.chmod(0o777)
    check = "assert 'not a folder of this user alone' in scheduler.status()['unpublished']; print("
    program(TENANTS.replace("print(", check))
    assert ask() == []


def test_the_second_folder_is_used_where_the_first_is_not_good(program: Start, runtime_folder: Path) -> None:
    (runtime_folder / "pygpukit").touch()
    process = program(TENANTS)
    assert [answer["pid"] for answer in ask()] == [process.pid]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_answer_for_its_parent(program: Start, runtime_folder: Path) -> None:
    program(
        """
import os, sys
from pygpukit.scheduler import Scheduler
from pygpukit.scheduler.publish import live_schedulers, unpublished_because
scheduler = Scheduler()
assert unpublished_because() is None
reader, writer = os.pipe()
if os.fork():
    os._exit(0)
os.close(writer)
os.read(reader, 1)
assert live_schedulers() == []
assert unpublished_because() == "no scheduler was made yet"
print("ready")
sys.stdin.read()
"""
    )
    # The parent is dead and the child alive: nobody listens, and the file is removed. The end of the parent's pipe may
    # be seen before the end of its socket.
    pause = threading.Event()
    for _ in range(6000):
        assert ask() == []
        if not list((runtime_folder / "pygpukit").iterdir()):
            return
        pause.wait(0.01)
    raise AssertionError("the file of a dead process was not removed")


def test_somebody_silent_does_not_keep_others_from_asking(program: Start, runtime_folder: Path) -> None:
    process = program(TENANTS)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(runtime_folder / "pygpukit" / f"{process.pid}.sock"))
        assert len(ask()) == 1


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"17", b"[1, {}]", b'[{"device": "d", "capacity": {}, "partitions": [1], "tasks": []}]', b"[" * 9999],
)
def test_strange_answers_are_left_out(runtime_folder: Path, answer: bytes) -> None:
    folder = runtime_folder / "pygpukit"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "1.sock"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert ask() == []
        thread.join()


def test_schedulers_that_are_over_are_not_shown() -> None:
    scheduler = Scheduler()
    assert scheduler in live_schedulers()
    scheduler.shutdown()
    assert scheduler not in live_schedulers()


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, runtime_folder: Path) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(publish, "_publisher", publish._Publisher())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        scheduler = Scheduler()
    assert unpublished_because() == "can't start new thread"
    assert scheduler.submit(int).result() == 0


def slices(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["tid"]].append(event)
    return rows


def test_trace(scheduler: Scheduler, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with scheduler.trace(path):
        tasks = [
            scheduler.submit(use_device, args=(300,), name="shared"),
            scheduler.submit(use_device, args=(300,), name="owner", policy="guaranteed", bandwidth=0.5),
        ]
        for task in tasks:
            task.result()
    events = json.loads(path.read_text())
    rows = slices(events)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(names) == set(rows)
    assert all(name.startswith(f"lane {tid % 1000} (") and "SMs)" in name for tid, name in names.items())
    for task in tasks:
        turns = [event for row in rows.values() for event in row if event["name"] == task.name]
        # What was charged without being measured is not drawn.
        assert 0 < sum(event["args"]["submissions"] for event in turns) <= task.stats()["submissions"]
        seconds = sum(event["dur"] for event in turns) / 1e6
        assert seconds == pytest.approx(task.stats()["measured_seconds"], abs=1e-6 * len(turns))
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"share of shared", "share of owner"}
    (process,) = (event for event in events if event["name"] == "process_name")
    assert process["args"]["name"] == scheduler.device.name


TURN = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 2),
    st.integers(1, 4),
    st.floats(0, 1),
    st.floats(0, 0.3),
    st.integers(1, 9),
    st.floats(0, 1),
    st.floats(1, 2),
)


@given(st.lists(TURN, max_size=40))
def test_turns_are_drawn_beside_each_other_and_shares_add_up(turns: list[Any]) -> None:
    maker = TraceEvents(sms=4, began=0.0)
    turns.sort(key=lambda turn: turn[3])
    for row in slices(list(maker.of(turns))).values():
        for before, after in pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"] + 1.01
    counters = defaultdict(list)
    for event in maker.shares():
        counters[event["name"]].append((event["ts"], event["args"]["share"]))
    for task in "abc":
        points = counters[f"share of {task}"]
        area = sum(share * (end - start) for (start, share), (end, _) in pairwise(points)) / 1e6
        expected = sum(seconds * sms / 4 for name, _, sms, _, seconds, *_ in turns if name == task)
        # Shares are told to four digits, in up to 130 intervals of 10 ms.
        assert area == pytest.approx(expected, abs=1e-4)
        assert not points or points[-1][1] == 0


def test_a_trace_by_hand(scheduler: Scheduler, tmp_path: Path) -> None:
    trace = scheduler.trace(tmp_path / "first.json").start()
    with pytest.raises(RuntimeError, match=r"first\.json already"):
        scheduler.trace(tmp_path / "second.json").start()
    assert not (tmp_path / "second.json").exists()
    scheduler.submit(use_device).result()
    trace.stop()
    trace.stop()
    first = len(json.loads(trace.path.read_text()))
    assert first > 1
    with trace:
        pass
    assert len(json.loads(trace.path.read_text())) == 1


@pytest.mark.parametrize("name", ["", "no/folder.json"])
def test_a_path_that_cannot_be_written_is_an_error_at_once(scheduler: Scheduler, tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=str(tmp_path)):
        scheduler.trace(tmp_path / name).start()
    with scheduler.trace(tmp_path / "good.json"):
        pass


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk(scheduler: Scheduler, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        scheduler.trace("/dev/full").start()
    trace = scheduler.trace(tmp_path / "trace.json").start()
    assert trace._file is not None
    trace._file.close()
    with open("/dev/full", "w") as full:
        trace._file = full
        scheduler.submit(use_device).result()
        with pytest.raises(OSError, match=r"trace\.json is not whole: .*No space left"):
            trace.stop()
    with scheduler.trace(tmp_path / "next.json"):
        scheduler.submit(use_device).result()


@pytest.fixture
def metrics() -> Callable[[SchedulerCollector], dict[str, float]]:
    """Collected values by name and labels, as Prometheus reads them."""
    client = pytest.importorskip("prometheus_client")
    parser = pytest.importorskip("prometheus_client.parser")

    def read(collector: SchedulerCollector) -> dict[str, float]:
        registry = client.CollectorRegistry()
        registry.register(collector)
        found = {}
        for family in parser.text_string_to_metric_families(client.generate_latest(registry).decode()):
            for sample in family.samples:
                key = sample.name + "".join(f" {sample.labels[label]}" for label in sorted(sample.labels))
                assert key not in found
                found[key] = sample.value
        return found

    return read


def test_metrics(scheduler: Scheduler, metrics: Callable[[SchedulerCollector], dict[str, float]]) -> None:
    collector = SchedulerCollector([scheduler])
    scheduler.create_partition("inference", memory="16MiB", compute=0.25, memory_limit="32MiB")
    release = threading.Event()

    def work() -> None:
        use_device()
        kept = gp.ones(1000)
        release.wait()
        del kept

    tasks = [scheduler.submit(work, name="twin", memory="1MB") for _ in range(2)]
    scheduler.submit(use_device, name="job", period=0.01, cost=0.001, deadline=0.01, jobs=3).result()
    while not all(task.stats().get("submissions") for task in tasks):
        threading.Event().wait(0.001)
    first = metrics(collector)
    release.set()
    for task in tasks:
        task.result()
    last = metrics(collector)
    twin = "cpu default burstable twin"
    assert first[f"pygpukit_task_memory_bytes {twin}"] > 0
    assert f"pygpukit_task_memory_bytes {twin}" not in last
    used = sum(task.stats()["gpu_seconds"] for task in tasks)
    assert last[f"pygpukit_task_gpu_seconds_total {twin}"] == pytest.approx(used)
    assert all(value >= first.get(name, 0) for name, value in last.items() if "_total" in name)
    job = "cpu default burstable job"
    assert last[f"pygpukit_task_jobs_met_total {job}"] + last[f"pygpukit_task_jobs_missed_total {job}"] == 3
    assert last["pygpukit_partition_memory_guaranteed_bytes cpu inference"] == 16 * 2**20
    assert last["pygpukit_partition_memory_limit_bytes cpu inference"] == 32 * 2**20
    assert last["pygpukit_partition_compute_guaranteed_ratio cpu inference"] == 0.25
    assert last["pygpukit_device_sms cpu"] == scheduler.status()["capacity"]["sms"]
    assert last["pygpukit_queue_length cpu"] == 0


def test_two_schedulers_of_one_device_are_one_series(metrics: Callable[[SchedulerCollector], dict[str, float]]) -> None:
    with Scheduler(total_memory="1MB") as first, Scheduler(total_memory="2MB") as second:
        assert (
            metrics(SchedulerCollector([first, second]))["pygpukit_partition_memory_guaranteed_bytes cpu default"]
            == 3e6
        )


def test_exporter(scheduler: Scheduler) -> None:
    pytest.importorskip("prometheus_client")
    scheduler.submit(use_device, name="exported").result()
    with start_exporter(port=0) as exporter:
        text = urllib.request.urlopen(exporter.url, timeout=10).read().decode()
        with pytest.raises(OSError, match=f"127.0.0.1 port {exporter.port}"):
            start_exporter(port=exporter.port)
    assert 'task="exported"' in text
    exporter.close()


def test_metrics_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingPackageError, match=r"pygpukit\[metrics\]"):
        start_exporter(port=0)
    with pytest.raises(MissingPackageError, match=r"pygpukit\[metrics\]"):
        list(SchedulerCollector().collect())


class FakeGPU:
    kind = "cuda"

    def __init__(self, bus: str) -> None:
        self.bus = bus

    def properties(self) -> dict[str, str]:
        return {"pci_bus_id": self.bus}


def fake_nvml(**functions: Callable[..., Any]) -> types.ModuleType:
    class NVMLError(Exception):
        pass

    def absent(*_: object) -> None:
        raise NVMLError("Not Supported")

    module: Any = types.ModuleType("pynvml")
    module.NVMLError = NVMLError
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM, module.NVML_TEMPERATURE_GPU = 1, 2, 0
    names = ("UtilizationRates", "MemoryInfo", "ClockInfo", "PowerUsage", "EnforcedPowerLimit", "Temperature")
    for name in names:
        setattr(module, f"nvmlDeviceGet{name}", functions.get(name, absent))
    module.nvmlInit = functions.get("Init", lambda: None)
    module.nvmlDeviceGetHandleByPciBusId = lambda bus: bus
    return module  # type: ignore[no-any-return]


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = FakeGPU("0000:01:00.0")
    module = fake_nvml(
        UtilizationRates=lambda handle: types.SimpleNamespace(gpu=87, memory=12),
        MemoryInfo=lambda handle: types.SimpleNamespace(used=5, total=9),
        ClockInfo=lambda handle, kind: 1980 if kind == 1 else 3200,
        Temperature=lambda handle, sensor: 51,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found = read_nvml(gpu)
    assert found is not None
    assert (found["gpu_utilization"], found["memory_used"], found["temperature"]) == (0.87, 5, 51)
    assert (found["sm_clock"], found["memory_clock"]) == (1.98e9, 3.2e9)
    assert "power" not in found


def test_nvml_is_silently_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    absent: Any = FakeGPU("0000:02:00.0")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml(absent) is None
    broken: Any = FakeGPU("0000:03:00.0")
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(Init=fail))
    assert read_nvml(broken) is None
    assert read_nvml(gp.current_device()) is None
    assert Scheduler().status()["nvml"] is None
