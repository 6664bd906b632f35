"""`pygpukit demo scheduler`: a tenant that must answer quickly beside a hog, without a guarantee and with one."""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pygpukit as gp
from pygpukit.errors import MissingPackageError
from pygpukit.scheduler import Scheduler

__all__ = ["Outcome", "add_parser", "run"]

# A request is so many steps; the hog's steps are longer, and each has to end before anybody else's begins.
_REQUEST_STEPS = 2
_STEP_SECONDS = 1e-3
_HOG_SECONDS = 8e-3
# Part of the time that the requests need when they are alone.
_LOAD = 0.08
_SHARE = 0.5
_PERCENTILES = (50, 95, 99)
_BUCKETS = 10
_COLORS = ("#4c78a8", "#e45756", "#54a24b")


class Outcome(NamedTuple):
    """What one part of the demo gave.

    Attributes
    ----------
    title : str
        What was tried.
    latencies : list of float
        Seconds from the arrival of each request to its answer.
    hog_rate : float or None
        Steps of the hog per second; None when it was not there.
    """

    title: str
    latencies: list[float]
    hog_rate: float | None

    def percentile(self, percent: float) -> float:
        """Latency that so many percent of the requests stay below."""
        return float(np.percentile(self.latencies, percent)) if self.latencies else math.nan


class _Sizes(NamedTuple):
    """How much work a step is."""

    step: int
    hog: int


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``scheduler`` to the parser of ``pygpukit demo``."""
    parser = subparsers.add_parser(
        "scheduler", description="A tenant that must answer quickly beside a hog, without a guarantee and with one."
    )
    parser.add_argument("--seconds", type=_seconds, default=12.0, help="how long it takes about (12)")
    parser.add_argument("--plot", type=Path, metavar="PICTURE", help="draw the latencies into a .png or .svg file")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and 1 <= seconds <= 3600):
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 3600 seconds")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit demo scheduler``."""
    from pygpukit.cli.board import console

    problem = _plot_problem(args.plot)
    if problem:
        print(f"pygpukit: {problem}", file=sys.stderr)
        return 1
    screen = console()
    device = gp.current_device()
    with Scheduler(device) as scheduler:
        capacity = scheduler.status()["capacity"]
        divisible = capacity["divisible"]
        guarantee = {"policy": "guaranteed" if divisible else "burstable", "bandwidth": _SHARE}
        sizes = _Sizes(_calibrated(_STEP_SECONDS), _calibrated(_HOG_SECONDS))
        means = "SMs of its own" if divisible else "time, first in line, as this device cannot be divided"
        screen.print(
            f"{device.name}\n"
            f"Requests of {_REQUEST_STEPS} steps of about {_STEP_SECONDS * 1e3:g} ms come at random and need "
            f"{_LOAD:.0%} of the time.\n"
            f"The hog runs steps of about {_HOG_SECONDS * 1e3:g} ms without a pause.\n"
            f"The guarantee is {_SHARE:.0%} of the device: {means}.\n"
            '"pygpukit top" in another terminal shows what happens.\n'
        )
        parts: list[tuple[str, dict[str, Any], bool]] = [
            ("alone", guarantee, False),
            ("hog, no guarantee", {"policy": "besteffort"}, True),
            ("hog, guarantee", guarantee, True),
        ]
        outcomes = []
        for title, terms, with_hog in parts:
            outcome = Outcome(title, [], None)
            with _watched(scheduler, outcome, screen):
                rate = _part(scheduler, sizes, outcome.latencies, terms, with_hog, args.seconds / len(parts))
            outcomes.append(outcome._replace(hog_rate=rate))
    _report(screen, outcomes)
    if args.plot is not None:
        _draw(outcomes, device.name, args.plot)
        screen.print(f"drawn into {args.plot}")
    return 0


def _stepper(size: int) -> Callable[[], Any]:
    """A step of work on the current device: a product of matrices on a GPU, one core's work on the CPU device."""
    if gp.current_device().kind == "cuda":
        x = gp.full((size, size), 1.0 / size, "float32")
        y = gp.empty_like(x)
        return lambda: gp.matmul(x, x, out=y)
    x = gp.linspace(0.0, 1.0, size, dtype="float32")
    y = gp.empty_like(x)
    return lambda: gp.tanh(x, out=y)


def _calibrated(seconds: float) -> int:
    """Size of a step that takes so long."""
    is_cuda = gp.current_device().kind == "cuda"
    size = 512 if is_cuda else 1 << 16
    for _ in range(3):
        step = _stepper(size)
        step()
        times = []
        for _ in range(5):
            gp.synchronize()
            start = time.perf_counter()
            step()
            gp.synchronize()
            times.append(time.perf_counter() - start)
        # The fastest one was disturbed least. Products grow with the third power.
        factor = seconds / max(min(times), 1e-6)
        size = max(64, round(size * (factor ** (1 / 3) if is_cuda else factor)))
        size = -(-size // 64) * 64
    return size


def _part(
    scheduler: Scheduler,
    sizes: _Sizes,
    latencies: list[float],
    terms: dict[str, Any],
    with_hog: bool,
    seconds: float,
) -> float | None:
    """Serve requests for some seconds, and return the hog's speed. They come at the same times in every part."""
    request_seconds = _REQUEST_STEPS * _STEP_SECONDS
    random = np.random.default_rng(0)
    gaps = random.exponential(request_seconds / _LOAD, max(1, int(seconds * _LOAD / request_seconds)))
    arrivals = np.cumsum(gaps).tolist()
    stop, hog_began = threading.Event(), threading.Event()

    def serve() -> None:
        step, stream = _stepper(sizes.step), gp.current_stream()
        step()
        stream.synchronize()
        begin = time.perf_counter()
        for arrival in arrivals:
            while (left := begin + arrival - time.perf_counter()) > 0:
                time.sleep(left)
            for _ in range(_REQUEST_STEPS):
                step()
            stream.synchronize()
            latencies.append(time.perf_counter() - begin - arrival)

    def hog() -> float:
        step, stream = _stepper(sizes.hog), gp.current_stream()
        step()
        stream.synchronize()
        begin, steps = time.perf_counter(), 0
        hog_began.set()
        while not stop.is_set():
            step()
            steps += 1
        stream.synchronize()
        return steps / (time.perf_counter() - begin)

    neighbour = scheduler.submit(hog, name="hog", policy="besteffort") if with_hog else None
    if neighbour is not None:
        while not hog_began.wait(0.05) and not neighbour.done():
            continue
    try:
        scheduler.submit(serve, name="requests", **terms).result()
    finally:
        stop.set()
    return None if neighbour is None else float(neighbour.result())


@contextmanager
def _watched(scheduler: Scheduler, outcome: Outcome, screen: Any) -> Iterator[None]:
    """Show the scheduler while the block runs, where somebody watches."""
    if not screen.is_terminal:
        print(f"{outcome.title} ...", flush=True)
        yield
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from pygpukit.cli.board import board

    def picture() -> Group:
        answered = len(outcome.latencies)
        so_far = f"{answered} requests answered, p99 {_ms(outcome.percentile(99))}" if answered else "about to begin"
        title = Text(f"{outcome.title}: {so_far}", "bold yellow")
        return Group(title, board(scheduler.status(), live=True, width=screen.width))

    with Live(get_renderable=picture, console=screen, refresh_per_second=4, transient=True):
        yield


def _report(screen: Any, outcomes: Sequence[Outcome]) -> None:
    from rich import box
    from rich.table import Table

    table = Table("", box=box.SIMPLE_HEAD, title="latency of requests", title_justify="left", title_style="bold")
    for outcome in outcomes:
        table.add_column(outcome.title, justify="right")
    for percent in _PERCENTILES:
        table.add_row(f"p{percent}", *(_ms(outcome.percentile(percent)) for outcome in outcomes))
    table.add_row("worst", *(_ms(outcome.percentile(100)) for outcome in outcomes))
    table.add_row("requests", *(str(len(outcome.latencies)) for outcome in outcomes), end_section=True)
    rates = ["-" if outcome.hog_rate is None else f"{outcome.hog_rate:.0f} steps/s" for outcome in outcomes]
    table.add_row("hog", *rates)
    screen.print(table)
    screen.print(_histogram(outcomes))
    alone, without, guaranteed = (outcome.percentile(99) for outcome in outcomes)
    screen.print(
        f"p99 beside the hog: {_ms(without)} without a guarantee ({without / alone:.1f} x alone), "
        f"{_ms(guaranteed)} with one ({guaranteed / alone:.1f} x alone).\n"
        '"alone" has the same guarantee and no neighbour.'
    )


def _histogram(outcomes: Sequence[Outcome]) -> Any:
    """How many requests took how long, as a table with bars."""
    from rich import box
    from rich.table import Table

    table = Table("latency", box=box.SIMPLE_HEAD, title="of the requests", title_justify="left", title_style="bold")
    for outcome in outcomes:
        table.add_column(outcome.title, min_width=24)
    everything = [latency for outcome in outcomes for latency in outcome.latencies]
    if not everything:
        return table
    edges = np.geomspace(min(everything), max(everything) * 1.0001, _BUCKETS + 1)
    counts = [np.histogram(outcome.latencies, edges)[0] / max(1, len(outcome.latencies)) for outcome in outcomes]
    for bucket in range(_BUCKETS):
        bars = [f"{'#' * round(16 * count[bucket]):<16} {count[bucket]:>6.1%}" for count in counts]
        table.add_row(f"{_ms(edges[bucket])} to {_ms(edges[bucket + 1])}", *bars)
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _plot_problem(path: Path | None) -> str | None:
    """Why no picture can be drawn; better said before the demo than after it."""
    if path is None:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            f'matplotlib draws {path.name} ({error}): run pip install "pygpukit[plot]"; '
            "without --plot the distribution is printed"
        ) from None
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        return f"--plot {path}: a picture ends with one of {', '.join(sorted(known))}"
    if not path.parent.is_dir():
        return f"--plot {path}: there is no folder {path.parent}"
    return None


def _draw(outcomes: Sequence[Outcome], device: str, path: Path) -> None:
    """Latencies as shares of requests that were answered in time, and the hog's speed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=150, layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(3, 1))
    curves, bars = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    for outcome, color in zip(outcomes, _COLORS, strict=True):
        times = sorted(1e3 * latency for latency in outcome.latencies)
        parts = [(place + 1) / len(times) for place in range(len(times))]
        label = f"{outcome.title}: p99 {_ms(outcome.percentile(99))}"
        curves.step(times, parts, where="post", color=color, linewidth=1.8, label=label)
        if outcome.hog_rate is not None:
            bars.bar(outcome.title.removeprefix("hog, "), outcome.hog_rate, color=color)
    curves.set_xscale("log")
    curves.set_xlabel("latency (ms)")
    curves.set_ylabel("part of the requests answered")
    curves.set_ylim(0, 1.02)
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    bars.set_ylabel("steps of the hog per second")
    for panel in (curves, bars):
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
        panel.grid(color="#e4e4e4", linewidth=0.7)
    figure.suptitle(f"Requests beside a hog on {device}", fontsize=11, fontweight="bold", x=0.01, ha="left")
    figure.savefig(path)
