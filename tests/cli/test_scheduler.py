"""`pygpukit status`, `top` and `demo scheduler`: what they print, and what they do without a scheduler to show."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import pygpukit as gp
from pygpukit.cli import main
from pygpukit.cli.board import board
from pygpukit.cli.demo_scheduler import Outcome, _histogram
from pygpukit.scheduler import Scheduler

PROGRAM = """
import sys, threading
import pygpukit as gp
from pygpukit.scheduler import Scheduler
scheduler = Scheduler(total_memory="100MB")
def work():
    x = gp.ones(1000)
    gp.tanh(x)
    gp.current_stream().synchronize()
    begun.set()
    sys.stdin.read()
begun = threading.Event()
task = scheduler.submit(work, name="[red]reader", memory="60MB")
scheduler.submit(int, name="later", memory="50MB")
begun.wait()
print("ready")
task.result()
"""


@pytest.fixture
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place without sockets."""
    with tempfile.TemporaryDirectory(prefix="pgk") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def tenant(no_scheduler: Path, repository: Path) -> Iterator[int]:
    """The number of a process with a scheduler, in which one task runs and one waits."""
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    command = [sys.executable, "-u", "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize("command", [["status"], ["top", "--once"], ["top"]])
def test_nothing_runs(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main(command) == 0
    said = capsys.readouterr().out
    what = "scheduler" if command == ["status"] else "scheduler or ring"
    assert f"no {what} runs" in said
    assert "pygpukit demo scheduler" in said
    assert main([*command, "--pid", "1"]) == 1
    assert f"process 1 has no {what} that answers" in capsys.readouterr().err


@pytest.mark.usefixtures("no_scheduler")
def test_no_scheduler_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", [["status"], ["top", "--once"]])
def test_a_scheduler_of_another_process(tenant: int, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"process {tenant} (-c)" in text
    assert gp.current_device().name in text
    assert "worker threads and turns" in text or "enforced by turns" in text
    (reader,) = (line for line in text.splitlines() if "[red]reader" in line)
    assert "burstable" in reader
    (later,) = (line for line in text.splitlines() if " later " in line)
    assert later.split()[:3] == ["1", "2", "later"]
    assert "memory: " in later
    (memory,) = (line for line in text.splitlines() if line.split()[:2] == ["default", "memory"])
    assert memory.split()[-2:] == ["1", "1"]


def test_json(tenant: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--pid", str(tenant)]) == 0
    (status,) = json.loads(capsys.readouterr().out)
    assert status["pid"] == tenant
    assert {task["state"] for task in status["tasks"]} == {"running", "queued"}


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast"])
def test_intervals(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["top", "--interval", text])
    assert "--interval" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals to open here")
@pytest.mark.parametrize(("columns", "leave"), [(80, "q"), (200, "Ctrl-C")])
def test_top_moves_until_it_is_left(tenant: int, repository: Path, columns: int, leave: str) -> None:
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "TERM": "xterm"}
    environment = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "pygpukit", "top", "--interval", "0.05"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    has_left = False
    try:
        # A terminal is read to its end, or the program could not write its last words.
        while part := _read(ours):
            seen += part
            # Two pictures, so that it has moved.
            if seen.count(b"q leaves") >= 2 and not has_left:
                has_left = True
                if leave == "q":
                    os.write(ours, b"q")
                else:
                    process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert f"process {tenant}".encode() in seen
    assert (b"lane held by" in seen) == (columns == 200)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        # So Linux says that nobody has the other side any more.
        return b""


def shown(status: dict[str, Any], **options: Any) -> str:
    target = io.StringIO()
    Console(file=target, width=200, highlight=False).print(board(status, **options))
    return target.getvalue()


def test_what_nvml_measures_is_shown() -> None:
    with Scheduler() as scheduler:
        status = scheduler.status()
    assert "NVML" not in shown(status)
    status["nvml"] = {"gpu_utilization": 0.87, "power": 412.3, "temperature": 51, "sm_clock": 1.98e9}
    assert "NVML: busy 87%, 1980 MHz, 412 W, 51 C" in shown(status)


def test_the_busiest_is_first_in_moving_pictures() -> None:
    with Scheduler() as scheduler:
        status = scheduler.status()
    tasks = [{"id": n, "name": f"task{n}", "state": "running", "share": n / 10} for n in (1, 3, 2)]
    text = shown({**status, "tasks": tasks}, live=True)
    assert text.index("task3") < text.index("task2") < text.index("task1")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
)
KEYS = ["id", "name", "state", "policy", "partition", "lane", "sm_count", "share", "gpu_seconds", "memory", "throttled"]
KEYS += ["memory_peak", "throttled_seconds", "throttle_log", "lane_holder", "position", "reason", "compute", "tasks"]
ROW = st.dictionaries(st.sampled_from(KEYS), JUNK)


@given(
    tasks=st.lists(st.builds(lambda row, state: {**row, "state": state}, ROW, st.sampled_from(["running", "queued"]))),
    partitions=st.lists(ROW, max_size=2),
    capacity=st.dictionaries(
        st.sampled_from(["sms", "memory", "granule", "divisible", "max_lanes", "mechanism"]), JUNK
    ),
    nvml=st.one_of(JUNK, st.dictionaries(st.sampled_from(["gpu_utilization", "memory_used", "power"]), JUNK)),
    live=st.booleans(),
)
def test_any_answer_of_the_right_shape_is_shown(
    tasks: Any, partitions: Any, capacity: Any, nvml: Any, live: bool
) -> None:
    answer = {"device": "d", "capacity": capacity, "partitions": partitions, "tasks": tasks, "nvml": nvml}
    assert "SMs" in shown({**answer, "unscheduled": nvml, "pid": 1}, live=live)


def test_demo(run_python: Callable[..., str], tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    arguments = ["demo", "scheduler", "--seconds", "1", "--plot", str(picture)]
    text = run_python(f"from pygpukit.cli import main\nassert main({arguments!r}) == 0")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ") and line.strip()}
    for percent in ("p50", "p95", "p99", "worst"):
        assert len([float(word) for word in rows[percent] if word != "ms"]) == 3
    assert len(set(rows["requests"])) == 1
    assert rows["hog"][0] == "-"
    assert rows["hog"][2] == rows["hog"][4] == "steps/s"
    assert picture.stat().st_size > 10_000


def test_demo_on_a_device_that_cannot_be_divided(run_python: Callable[..., str]) -> None:
    program = "from pygpukit.cli import main\nassert main(['demo', 'scheduler', '--seconds', '1']) == 0"
    assert "cannot be divided" in run_python(program, PYGPUKIT_CPU_SMS="1")


@pytest.mark.parametrize(
    ("name", "reason"), [("picture.unknown", "a picture ends with one of"), ("no/folder.png", "there is no folder")]
)
def test_a_picture_that_cannot_be_drawn_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    assert main(["demo", "scheduler", "--plot", str(tmp_path / name)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert reason in output.err


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["demo", "scheduler", "--plot", "x.png"]) == 1
    assert "pygpukit[plot]" in capsys.readouterr().err


def test_histograms_hold_every_request() -> None:
    outcomes = [Outcome("a", [0.001, 0.002, 0.1], None), Outcome("b", [0.5] * 4, 1.0), Outcome("c", [], 1.0)]
    target = io.StringIO()
    Console(file=target, width=200).print(_histogram(outcomes))
    words = [word for word in target.getvalue().split() if word.endswith("%")]
    for place, total in ((0, 100.0), (1, 100.0), (2, 0.0)):
        assert sum(float(word[:-1]) for word in words[place::3]) == pytest.approx(total, abs=0.6)
