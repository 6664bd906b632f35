"""`pygpukit top` shows the actors of running rings: states, depths, rates, latencies, restarts."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pygpukit.cli import main
from pygpukit.cli.board import Rates, actors
from pygpukit.ring import RingKernelRuntime, message, ring_kernel
from pygpukit.scheduler.publish import ask, ask_all

HOST = """
import sys
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

@message
class Number:
    value: float

@ring_kernel(kernel_id="[red]double", input_type=Number, output_type=Number)
def double(ctx):
    while not ctx.should_terminate:
        ctx.send(Number(2 * ctx.receive().value))

with RingKernelRuntime() as runtime:
    client = runtime.client("[red]double")
    for _ in range(5):
        client.call(Number(1.0))
    runtime.run(runtime.deactivate("[red]double"))
    client.send(Number(1.0))
    print("ready", flush=True)
    sys.stdin.read()
"""

DEVICE = """
import sys
import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

@message
class Number:
    value: gp.float32

@ring_kernel(kernel_id="fragile", input_type=Number, output_type=Number, device="gpu", block_size=32,
             restart="on_failure")
def fragile(): '''
    __device__ void handle(const Number& in, Number& out, State& state, Context& ctx) {
        if (in.value < 0.0f) return ctx.fail();
        if (ctx.lane == 0) out.value = sqrtf(in.value);
        ctx.send(out);
    }
'''

with RingKernelRuntime() as runtime:
    client = runtime.client("fragile")
    for value in (4.0, -1.0, 9.0, 16.0):
        client.send(Number(value))
    print([client.receive(timeout=60).value for _ in range(3)], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place without sockets."""
    with tempfile.TemporaryDirectory(prefix="pgk") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def begin(repository: Path, program: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def row_of(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.split()[:1] == [name])
    return line.split()


def test_actors_of_another_process(folder: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with begin(repository, HOST) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert main(["top", "--once", "--pid", str(process.pid)]) == 0
        said = capsys.readouterr().out
        assert ask() == []
        process.communicate("")
    assert f"process {process.pid} (-c)  ring of 1 actors" in said
    row = row_of(said, "[red]double")
    assert row[1:5] == ["thread", "DEACTIVATED", "1", "0"]
    assert row[-3:] == ["5", "0", "0"]
    assert ask_all() == ([], [])


@pytest.mark.nvrtc
def test_device_actors_and_their_restarts(folder: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with begin(repository, DEVICE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[2.0, 3.0, 4.0]\n"
        while True:
            _, (ring,) = ask_all(process.pid)
            if ring["actors"][0]["processed"] == 3 and ring["dead_letters"]:
                break
        assert main(["top", "--once"]) == 0
        process.communicate("")
    said = capsys.readouterr().out
    assert "dead letters: 1 failed" in said
    row = row_of(said, "fragile")
    assert row[1:5] == ["device", "ACTIVE", "0", "0"]
    assert row[-3:] == ["3", "1", "1"]


def test_a_ring_is_shown_while_it_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pygpukit.scheduler import publish

    monkeypatch.setattr(publish, "_publisher", publish._Publisher())

    @message
    class Number:
        value: float

    @ring_kernel(kernel_id="echo-seen", input_type=Number, output_type=Number)
    async def echo(ctx: Any) -> None:
        while not ctx.should_terminate:
            await ctx.send(await ctx.receive())

    with RingKernelRuntime() as first, RingKernelRuntime() as second:
        first.client("echo-seen").call(Number(1.0))
        _, rings = ask_all(os.getpid())
        assert sorted(len(ring["actors"]) for ring in rings) == [0, 1]
        second.client("echo-seen")
        assert {len(ring["actors"]) for ring in ask_all(os.getpid())[1]} == {1}
    assert ask_all(os.getpid()) == ([], [])


def test_rates_are_from_look_to_look() -> None:
    rates = Rates()

    def look(time: float, processed: int) -> float:
        return rates.of(
            {"pid": 1, "ring": 2, "time": time}, {"kernel_id": "a", "processed": processed, "throughput": 7.0}
        )

    assert look(10.0, 100) == 7.0
    assert look(12.0, 300) == 100.0
    assert look(13.0, 300) == 0.0
    # The same moment again, and an actor that was launched anew.
    assert look(13.0, 300) == 7.0
    assert look(14.0, 3) == 7.0


def shown(ring: dict[str, Any], width: int) -> str:
    target = io.StringIO()
    Console(file=target, width=width).print(actors(ring, Rates(), width))
    return target.getvalue()


def test_counts_are_left_out_where_they_do_not_fit() -> None:
    latency = {"count": 9, "p50": 2e-6, "p99": 0.25}
    row = {"kernel_id": "gain", "tier": "device", "state": "ACTIVE", "processed": 123, "failed": 4, "latency": latency}
    ring = {"pid": 1, "ring": 1, "time": 1.0, "actors": [row], "dead_letters": {}}
    wide, narrow = shown(ring, 160), shown(ring, 80)
    assert "2.0 us" in wide
    assert "250.0 ms" in wide
    assert "123" in wide
    assert "123" not in narrow
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= 80
    assert "250.0 ms" in narrow


def test_a_handler_that_does_not_return_is_shown() -> None:
    row = {"kernel_id": "gain", "tier": "device", "state": "ACTIVE", "stuck": False}
    ring = {"pid": 1, "ring": 1, "time": 1.0, "actors": [row], "dead_letters": {}}
    assert "STUCK" not in shown(ring, 160)
    row["stuck"] = True
    assert "STUCK" in shown(ring, 160)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.dictionaries(st.sampled_from(["p50", "count"]), st.floats()),
)
KEYS = [
    "kernel_id",
    "tier",
    "state",
    "input_depth",
    "output_depth",
    "processed",
    "throughput",
    "latency",
    "restarts",
    "stuck",
]


@given(
    rows=st.lists(st.dictionaries(st.sampled_from([*KEYS, "failed"]), JUNK), max_size=4),
    letters=st.dictionaries(st.text(max_size=5), JUNK, max_size=3),
    time=JUNK,
)
def test_any_answer_of_the_right_shape_is_shown(rows: Any, letters: Any, time: Any) -> None:
    ring = {"pid": 1, "ring": 1, "time": time, "actors": rows, "dead_letters": letters}
    assert f"ring of {len(rows)} actors" in shown(ring, 200)


@pytest.mark.parametrize(
    "row",
    [
        {"ring": "1", "actors": [], "dead_letters": {}},
        {"ring": 1, "actors": [1], "dead_letters": {}},
        {"ring": 1, "actors": {}, "dead_letters": {}},
        {"ring": 1, "actors": [], "dead_letters": []},
        {"ring": 1, "actors": []},
    ],
)
def test_strange_answers_are_left_out(folder: Path, row: dict[str, Any]) -> None:
    place = folder / "pygpukit"
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "1.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(json.dumps([row, {**row, "ring": 1, "actors": [], "dead_letters": {}}]).encode())

        thread = threading.Thread(target=answer)
        thread.start()
        _, rings = ask_all()
        thread.join()
    assert rings == [{**row, "ring": 1, "actors": [], "dead_letters": {}}]
