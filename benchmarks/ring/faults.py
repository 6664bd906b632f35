"""What ends or stops a process with a running ring: each fault in a process of its own, with the time until it is over.

python benchmarks/ring/faults.py --json benchmarks/results/h200-ring-faults.json
python benchmarks/ring/faults.py --rows kill,stop
PYGPUKIT_DEVICE=cpu python benchmarks/ring/faults.py --rows isolated --json isolation.json
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

LEASE = 1.0
LONG = 60.0

BEGIN = """
import faulthandler, os, sys, threading, time
faulthandler.dump_traceback_later(50, exit=True)
import numpy as np
import pygpukit as gp
from pygpukit.errors import *
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

@message
class Item:
    id: gp.int64
    value: gp.int64

def actor(name, body, **options):
    def function(): ...
    function.__doc__ = "__device__ void handle(const Item& in, Item& out, State& state, Context& ctx) {" + body + "}"
    ring_kernel(kernel_id=name, input_type=Item, output_type=Item, device="gpu", block_size=32,
                state={"count": gp.int64}, **{"dedicated": True, **options})(function)

ECHO = "if (ctx.lane == 0) { out = in; state.count += 1; } ctx.send(out);"
actor("echo", ECHO)
actor("shared", ECHO, dedicated=False)
# Loops while nobody changes its state, and writes where nothing is.
actor("spin", "while (*(volatile long long*)&state.count == 0) {}")
actor("wild", "*(volatile int*)16 = 1; ctx.send(in);")

def fresh(number):
    x = gp.zeros(32)
    source = 'extern "C" __global__ void fresh(float* x) { x[threadIdx.x] = %d.0f; }' % number
    gp.jit(source, func="fresh")(x, grid=(1,), block=(32,))
    assert (x.to_numpy() == number).all()

def state_of(runtime, name, seconds=20):
    end = time.monotonic() + seconds
    while not runtime.get_kernel_state(name).is_over and time.monotonic() < end:
        time.sleep(0.005)
    return runtime.get_kernel_state(name).name

def line(*words):
    print(*words, flush=True)
"""
RING = f"""
runtime = RingKernelRuntime(lease={LEASE})
echo, shared = runtime.client("echo"), runtime.client("shared")
for client in (echo, shared):
    assert client.call(Item(1, 1), timeout=20).id == 1
line("ready")
"""
OTHER = """
fresh(os.getpid())
line("ready")
sys.stdin.readline()
fresh(os.getpid() + 1)
line("done")
"""
COUNTED = """
def work(client):
    n = 0
    while not is_over.is_set():
        assert client.call(Item(n, 0), timeout=20).id == n
        n += 1
    counts.append(n + 1)

counts, is_over = [], threading.Event()
threads = [threading.Thread(target=work, args=(client,)) for client in (echo, shared)]
for thread in threads: thread.start()
sys.stdin.readline()
is_over.set()
for thread in threads: thread.join()
link = runtime._tier.ring.link
launches = link.status()["launches"]
for name in ("echo", "shared"): runtime.run(runtime.deactivate(name, timeout=20))
states = [int(runtime.get_state(name)["count"].to_numpy()[0]) for name in ("echo", "shared")]
assert sorted(states) == sorted(counts), (states, counts)
assert runtime.dead_letters() == []
runtime.close()
line("equal", *states, launches)
"""
WILD = """
wild = runtime.client("wild")
try:
    wild.call(Item(1, 1), timeout=20)
    line("answered")
except Exception as error:
    line(type(error).__name__, str(error).replace("\\n", " ")[:300])
line(state_of(runtime, "wild"), state_of(runtime, "echo"))
try:
    echo.call(Item(2, 1), timeout=5)
    line("answered")
except Exception as error:
    line(type(error).__name__, str(error).replace("\\n", " ")[:300])
line("end")
"""
SPIN = """
spin = runtime.client("spin")
spin.send(Item(1, 1))
time.sleep(0.1)
try:
    runtime.run(runtime.deactivate("spin", timeout=1))
    line("it stands still")
except TimeoutError as error:
    line("TimeoutError", error)
end = time.monotonic() + 5
while not runtime.status()["stuck_actors"] and time.monotonic() < end:
    time.sleep(0.01)
line("stuck", *runtime.status()["stuck_actors"])
runtime.abort()
line(state_of(runtime, "spin", 10), state_of(runtime, "echo", 1), runtime._tier.ring.link.failure())
line("end")
"""
ISOLATED = """
import logging, statistics
logging.getLogger("pygpukit.ring").setLevel(logging.CRITICAL)
WILD = "if (in.value == 13) *(volatile int*)16 = 1;" + ECHO

def median(client, calls=1000):
    seconds = []
    for n in range(calls):
        began = time.perf_counter()
        assert client.call(Item(n, 0), timeout=20).id == n
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[calls // 10:]) * 1e6

actor("risky", WILD, restart="on_failure")

def measure(isolation, faults=0):
    with RingKernelRuntime(isolation=isolation) as runtime:
        client = runtime.client("risky")
        line(isolation, median(client))
        for n in range(faults):
            began = time.perf_counter()
            try:
                client.call(Item(n, 13), timeout=30)
                # A GPU may notice it when the handler has gone on.
                while True:
                    client.call(Item(n, 0), timeout=30)
            except ActorFailedError as error:
                lost = time.perf_counter() - began
                assert "started again" in str(error), error
            assert client.call(Item(n, 0), timeout=50).id == n
            line("again", lost, time.perf_counter() - began)
        figures = runtime.get_telemetry("risky")
        # The call that found out: it was on its way, or the handler was done with it.
        assert figures.restarts == faults and len(runtime.dead_letters()) <= faults, figures
        fresh(os.getpid())

# In turns, so that whatever else the machine does is in both.
for _ in range(4):
    measure(None)
    measure("process")
measure("process", faults=3)
line("end")
"""
TWO = """
other = RingKernelRuntime()
mine = other.client("echo")
for n in range(200):
    assert echo.call(Item(n, 0), timeout=20).id == n
    assert mine.call(Item(n, 0), timeout=20).id == n
fresh(os.getpid())
runtime.close()
for n in range(200):
    assert mine.call(Item(n, 0), timeout=20).id == n
other.close()
line("both")
"""


class Child:
    """A program in a fresh interpreter; what it says comes line by line."""

    def __init__(self, program: str) -> None:
        paths = [str(Path(gp.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYGPUKIT_QUIET": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", BEGIN + program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def expect(self, word: str) -> None:
        """Its next line begins so."""
        assert self.process.stdout is not None
        timer = threading.Timer(LONG, self.process.kill)
        timer.start()
        try:
            found = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not found.startswith(word):
            raise AssertionError(f"expected {word!r}, and got {found!r} and {self.end()}")

    def say(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """Its exit code and what else it said; one that does not end is killed."""
        try:
            out, err = self.process.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            err += f"it did not end within {LONG:g} s"
        return self.process.returncode, out, err[-2000:]


class Faults:
    """A row of the report each."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def add(self, what: str, seconds: float, most: float, **extra: str) -> None:
        """It was over in time."""
        self.report.add(f"{what} (s)", seconds, 1.0, "s", most, **extra)

    def kill(self) -> None:
        """SIGKILL: another process loads a module and runs a kernel, within the lease and a bit."""
        victim, other = Child(RING + "time.sleep(100)"), Child(OTHER)
        victim.expect("ready")
        other.expect("ready")
        began = time.perf_counter()
        victim.process.kill()
        other.say()
        other.expect("done")
        self.add("killed: until another process ran a new kernel", time.perf_counter() - began, LEASE + 5)
        victim.process.wait(LONG)
        self.add("killed: until the process was gone", time.perf_counter() - began, LEASE + 5)
        assert other.end()[0] == 0

    def stop(self) -> None:
        """SIGSTOP for longer than the lease: it goes on, and the counts are equal."""
        child = Child(RING + COUNTED)
        child.expect("ready")
        time.sleep(0.5)
        child.process.send_signal(signal.SIGSTOP)
        time.sleep(2 * LEASE)
        child.process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        began = time.perf_counter()
        child.say()
        code, out, err = child.end()
        assert code == 0, out + err
        assert out.startswith("equal"), out + err
        self.add(
            "stopped: until the ring had ended with equal counts", time.perf_counter() - began, 10.0, said=out.strip()
        )

    def wild(self) -> None:
        """A handler writes out of bounds: all actors are FAILED with an error, and the process ends by itself."""
        child = Child(RING + WILD)
        child.expect("ready")
        began = time.perf_counter()
        code, out, err = child.end()
        said = out.strip().split("\n")
        assert "answered" not in said, out + err
        assert "FAILED FAILED" in said, out + err
        assert said[-1] == "end", out + err
        seconds = time.perf_counter() - began
        self.add("wild write: until the process has ended", seconds, 45.0, said=out.strip(), code=str(code))

    def isolated(self) -> None:
        """The same with isolation="process": the process goes on, and the next call is answered by a new worker."""
        child = Child(ISOLATED)
        code, out, err = child.end()
        said = [one.split() for one in out.strip().split("\n")]
        assert code == 0, out + err
        assert said[-1] == ["end"], out + err
        alone, apart = ([float(one[1]) for one in said if one[0] == where] for where in ("None", "process"))
        # No bar: with few cores it depends on who else wants them, so all medians and the load are told.
        extra = {"here": alone, "in a worker": apart, "load": os.getloadavg()[0], "cores": os.cpu_count()}
        what = "call in a worker process beside one in this, best of medians (stretch)"
        self.report.add(what, min(apart), min(alone), "us", 4, **extra)
        lost, back = (max(float(one[i]) for one in said if one[0] == "again") for i in (1, 2))
        self.add("wild write in a worker process: until the call raised", lost, 10.0)
        self.add("wild write in a worker process: until the next call was answered", back, 30.0)

    def spin(self) -> None:
        """A handler never returns: orders time out, and `abort` ends it."""
        child = Child(RING + SPIN)
        child.expect("ready")
        began = time.perf_counter()
        code, out, err = child.end()
        said = out.strip().split("\n")
        assert said[0].startswith("TimeoutError"), out + err
        self.report.add("endless handler: status says stuck", "stuck spin" in said, 1.0, "", 1, at_least=True)
        assert any(one.startswith("FAILED FAILED") for one in said), out + err
        assert said[-1] == "end", out + err
        seconds = time.perf_counter() - began
        self.add("endless handler: until the process has ended", seconds, 45.0, said=out.strip(), code=str(code))

    def leave(self) -> None:
        """The interpreter exits while the ring runs."""
        child = Child(RING)
        child.expect("ready")
        began = time.perf_counter()
        code, out, err = child.end()
        assert (code, out, err) == (0, "", ""), (code, out, err)
        self.add("exit with a running ring", time.perf_counter() - began, 10.0)

    def two(self) -> None:
        """Two runtimes beside each other; one ends first."""
        child = Child(RING + TWO)
        child.expect("ready")
        began = time.perf_counter()
        code, out, err = child.end()
        assert (code, out) == (0, "both\n"), (code, out, err)
        self.add("two runtimes", time.perf_counter() - began, 45.0)


def main() -> int:
    """Try them and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("kill", "stop", "wild", "isolated", "spin", "leave", "two")
    parser.add_argument("--rows", default=",".join(names), help="which, with commas")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    rows = options.rows.split(",")
    if unknown := [name for name in rows if name not in names]:
        parser.error(f"there is no row {unknown}; there is {', '.join(names)}")
    report = Report()
    faults = Faults(report)
    for name in rows:
        try:
            getattr(faults, name)()
        except AssertionError as error:
            print(f"{name}: {error}", flush=True)
            report.add(f"{name}: went wrong", 1.0, 1.0, "", 0, error=str(error)[-3000:])
    return report.finish(options.json, f"python benchmarks/ring/faults.py --rows {options.rows}")


if __name__ == "__main__":
    sys.exit(main())
