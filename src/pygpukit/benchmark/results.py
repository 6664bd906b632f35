"""Results of a run: as a table, as a file, as Markdown, and compared with those of another run."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import platform
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.benchmark.timing import Samples
from pygpukit.benchmark.work import Options, Work

SCHEMA = 1
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """A row that was measured, or the reason why not.

    Attributes
    ----------
    name, section, precision
        Of the row.
    ours, peer
        Seconds per call; empty where nothing was measured.
    nbytes, flops
        Of one call.
    error, tolerance
        Distance from the reference and what is allowed.
    variant
        What ran.
    failure
        Why there are no samples; empty if there are.
    tokens
        Of one call, of an engine's rows.
    """

    name: str
    section: str
    precision: str
    ours: tuple[float, ...] = ()
    peer: tuple[float, ...] = ()
    nbytes: int = 0
    flops: int = 0
    error: float = 0.0
    tolerance: float = 0.0
    variant: str = ""
    failure: str = ""
    tokens: int = 0

    @property
    def seconds(self) -> float:
        """Median of ours."""
        return statistics.median(self.ours)

    def of_roofline(self, ceilings: Mapping[str, float]) -> float:
        """Return the time the measured ceilings allow over the time taken."""
        rate = ceilings["read" if self.section in ("gemv", "llm") else "copy"]
        least = self.nbytes / rate
        compute = ceilings.get(self.precision)
        if self.flops and compute:
            least = max(least, self.flops / compute)
        return least / self.seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """All rows of a run, with the machine and its ceilings."""

    machine: dict[str, Any]
    ceilings: dict[str, float]
    rows: tuple[Measurement, ...]

    def save(self, path: Path) -> None:
        """Write the run as JSON."""
        content = {
            "schema": SCHEMA,
            "machine": self.machine,
            "ceilings": self.ceilings,
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }
        path.write_text(json.dumps(content, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> Run:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file is not a run, or of another schema.
        """
        try:
            content = json.loads(path.read_text())
            if content["schema"] != SCHEMA:
                raise ValueError(f"{path} has schema {content['schema']}, this version reads {SCHEMA}; measure again")
            rows = []
            for row in content["rows"]:
                row = dict(row, ours=tuple(map(float, row["ours"])), peer=tuple(map(float, row["peer"])))
                rows.append(Measurement(**row))
            return Run(dict(content["machine"]), {k: float(v) for k, v in content["ceilings"].items()}, tuple(rows))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a result of pygpukit bench --save: {error!r}") from None


def measured(row: Any, work: Work, ours: Samples, peer: Samples | None) -> Measurement:
    """Return the measurement of a row."""
    return Measurement(
        row.name, row.section, row.precision, ours.seconds, peer.seconds if peer is not None else (),
        work.nbytes, work.flops, work.error, work.tolerance, work.variant, tokens=work.tokens,
    )  # fmt: skip


def compute_ceilings(rows: Sequence[Measurement]) -> dict[str, float]:
    """Return operations per second by precision: the fastest product of the run, ours or the peer's."""
    best: dict[str, float] = {}
    for row in rows:
        if row.section != "gemm" or not row.ours:
            continue
        for samples in (row.ours, row.peer):
            if samples:
                rate = row.flops / statistics.median(samples)
                best[row.precision] = max(best.get(row.precision, 0.0), rate)
    return best


def machine(options: Options) -> dict[str, Any]:
    """Return what a result has to be read with: device, versions, what was asked for."""
    device = gp.get_device_info()
    versions = {"pygpukit": gp.__version__, "python": platform.python_version(), "numpy": np.__version__}
    if options.torch is not None:
        versions["torch"] = importlib.metadata.version("torch")
    arguments = sys.argv[2:] if sys.argv[1:2] == ["bench"] else sys.argv[1:]
    return {
        "device": device["name"],
        "kind": options.device.kind,
        "sms": device["sm_count"],
        "memory": device["total_memory"],
        "driver": device["driver_version"],
        "platform": platform.platform(),
        **versions,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["pygpukit", "bench", *arguments]),
    }


HEADINGS = ("row", "time", "spread", "rate", "of roofline", "peer / ours", "error", "variant")


def cells(row: Measurement, ceilings: Mapping[str, float]) -> tuple[str, ...]:
    """Return a line of the table."""
    if row.failure:
        return (row.name, "-", "", "", "", "", "", row.failure)
    seconds = row.seconds
    products = row.section in ("gemm", "attention")
    rate = f"{row.flops / seconds / 1e12:.1f} TFLOPS" if products else f"{row.nbytes / seconds / 1e9:,.0f} GB/s"
    rate = f"{row.tokens / seconds:,.0f} tokens/s" if row.tokens else rate
    peer = f"{statistics.median(row.peer) / seconds:.2f}" if row.peer else ""
    # Rows of requests are held against others, not against the machine.
    share = f"{100 * row.of_roofline(ceilings):.0f} %" if row.precision or row.section != "llm" else ""
    return (row.name, shown_time(seconds), f"{100 * Samples(row.ours).spread:.1f} %", rate, share, peer,
            f"{row.error:.1e}", row.variant)  # fmt: skip


def markdown(run: Run) -> str:
    """Return the run as a Markdown table with a line on the machine."""
    shown = ", ".join(f"{key} {value}" for key, value in run.machine.items())
    limits = ", ".join(
        f"{name} {rate / 1e9:,.0f} GB/s" if name in ("copy", "read") else f"{name} {rate / 1e12:,.1f} TFLOPS"
        for name, rate in run.ceilings.items()
    )
    lines = [f"Machine: {shown}.", "", f"Ceilings measured: {limits}.", "", "| " + " | ".join(HEADINGS) + " |"]
    lines.append("|" + "---|" * len(HEADINGS))
    lines += ["| " + " | ".join(cells(row, run.ceilings)) + " |" for row in run.rows]
    lines += ["", *(f"{line}." for line in invariance(run.rows))]
    return "\n".join(lines).rstrip() + "\n"


def invariance(rows: Sequence[Measurement]) -> list[str]:
    """Return what bits that do not depend on the batch cost: the rate of ``run_to_run`` that is kept, by batch."""
    found = {row.name: row for row in rows if row.section == "llm" and row.ours}
    lines = []
    for name, row in found.items():
        other = found.get(name.removesuffix("batch_invariant") + "run_to_run")
        if name.endswith(" batch_invariant") and other is not None:
            ratio = other.seconds / row.seconds
            lines.append(
                f"{name.removesuffix(' batch_invariant')}: batch_invariant has {ratio:.3f} of run_to_run's rate"
            )
    return lines


def shown_time(seconds: float) -> str:
    """Return a time with three digits.

    Examples
    --------
    >>> shown_time(0.00001234)
    '12.3 us'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


class Change:
    """How a row's time changed between two runs.

    Attributes
    ----------
    name
        The row.
    ratio
        New median over old.
    low, high
        Bounds of the ratio that hold in 95 of 100 resamplings of both runs.
    """

    def __init__(self, name: str, old: Sequence[float], new: Sequence[float]) -> None:
        self.name = name
        self.ratio = statistics.median(new) / statistics.median(old)
        random = np.random.default_rng(0)
        medians = [
            np.median(random.choice(np.asarray(samples), (_RESAMPLES, len(samples))), axis=1) for samples in (old, new)
        ]
        self.low, self.high = (float(x) for x in np.quantile(medians[1] / medians[0], (0.025, 0.975)))

    def is_slower(self, percent: float) -> bool:
        """Is it slower by more than ``percent``, beyond the noise?"""
        return self.low > 1.0 + percent / 100.0

    def __str__(self) -> str:
        return f"{self.name}: {self.ratio:.3f} of the time before ({self.low:.3f} to {self.high:.3f})"


def compare(old: Run, new: Run) -> list[Change]:
    """Return the change of every row that both runs measured.

    Raises
    ------
    ValueError
        If they were measured on different devices.
    """
    if old.machine["device"] != new.machine["device"]:
        raise ValueError(
            f"the saved run was measured on {old.machine['device']}, this one on {new.machine['device']}: "
            "times of two devices say nothing about a change"
        )
    before = {row.name: row for row in old.rows if row.ours}
    return [Change(row.name, before[row.name].ours, row.ours) for row in new.rows if row.ours and row.name in before]
