"""Decisions of admission per second with 1,000 tasks admitted: in Rust, by an example program, and from Python.

The rate in Rust needs cargo; without it only Python's is measured. No GPU is used.

    python benchmarks/scheduler/admission.py --json benchmarks/results/admission.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import _pygpukit_rust as rust

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

ADMITTED = 1_000
RUST_BAR, PYTHON_BAR = 200_000, 30_000
RUST_STRETCH = 1_000_000


def rates_in_rust() -> dict[str, float]:
    """Rates by kind of decision, from the example; empty where cargo is missing."""
    cargo = shutil.which("cargo")
    if cargo is None:
        print("cargo is not installed: the rates in Rust are left out", file=sys.stderr)
        return {}
    command = [cargo, "run", "--quiet", "--release", "-p", "pygpukit-core", "--example", "admission_rate"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    rates: dict[str, float] = json.loads(done.stdout)
    return rates


def rate(decide: Callable[[], object], count: int = 20_000, rounds: int = 7) -> float:
    """Calls per second, the median of some rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            decide()
        found.append(count / (time.perf_counter() - start))
    return statistics.median(found)


def filled(deadlines: bool) -> rust.QosPolicyEvaluator:
    """A GPU with many burstable tasks; with `deadlines` each has one."""
    evaluator = rust.QosPolicyEvaluator("128GiB", sms=132)
    for number in range(ADMITTED):
        answer = evaluator.reserve(asked(f"task-{number}", number, deadlines))
        if not answer.admitted:
            raise SystemExit(f"task {number} was not admitted: {answer.reason}")
    return evaluator


def asked(name: str, number: int, deadlines: bool) -> rust.QosTaskMeta:
    """A small burstable task."""
    deadline, cost = (0.1 + number * 1e-6, 40e-6) if deadlines else (None, None)
    return rust.QosTaskMeta(name, name, memory="64MiB", bandwidth=5e-4, deadline=deadline, cost=cost)


def rates_in_python() -> dict[str, float]:
    """Rates by kind of decision through the published view."""
    found = {}
    for name, deadlines in (("admit", False), ("deadline", True)):
        evaluator = filled(deadlines)
        task = asked("one", ADMITTED // 2, deadlines)

        def admit(evaluator: rust.QosPolicyEvaluator = evaluator, task: rust.QosTaskMeta = task) -> None:
            evaluator.reserve(task)
            evaluator.release("one")

        found[name] = rate(admit)
    evaluator = filled(False)
    task = asked("one", 0, False)
    large = rust.QosTaskMeta("large", "large", memory="100GiB")
    found["evaluate"] = rate(lambda: evaluator.evaluate(task))
    found["refuse"] = rate(lambda: evaluator.evaluate(large))
    found["make and evaluate"] = rate(lambda: evaluator.evaluate(asked("one", 0, False)))
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    report = Report()
    for name, found in rates_in_rust().items():
        report.add(f"Rust: {name}", found / 1e3, RUST_BAR / 1e3, "k/s", 1.0, at_least=True)
        if name == "admit":
            report.add(f"Rust: {name} (stretch)", found / 1e3, RUST_STRETCH / 1e3, "k/s", 1.0, at_least=True)
    for name, found in rates_in_python().items():
        report.add(f"Python: {name}", found / 1e3, PYTHON_BAR / 1e3, "k/s", 1.0, at_least=True)
    return report.finish(arguments.json, "python benchmarks/scheduler/admission.py")


if __name__ == "__main__":
    raise SystemExit(main())
