"""``pygpukit bench``: arguments, progress and the order of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pygpukit.benchmark import results
from pygpukit.benchmark.attention import attention
from pygpukit.benchmark.engine import llm
from pygpukit.benchmark.operators import ops
from pygpukit.benchmark.products import gemm, gemv
from pygpukit.benchmark.timing import Samples, Timer, ceilings
from pygpukit.benchmark.work import Options, Row
from pygpukit.errors import GPUKitError

SECTIONS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "gemm": gemm,
    "gemv": gemv,
    "attention": attention,
    "ops": ops,
    "llm": llm,
}
"""In the order they run; products come first, since they measure the compute ceilings."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments to a parser."""
    sections = parser.add_argument_group("what to measure (default: all but --ops and --llm, with --quick --ops too)")
    sections.add_argument("--all", action="store_true", help="every section")
    for name in SECTIONS:
        sections.add_argument(f"--{name}", action="store_true", help=(SECTIONS[name].__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few rows of each section, in under a minute on a GPU")
    parser.add_argument(
        "--sizes", type=_numbers, default=(), metavar="N,N", help="sizes of square products; elements; batches"
    )
    parser.add_argument("--seq-lens", type=_numbers, default=(), metavar="N,N", help="lengths of sequences")
    parser.add_argument("--dtypes", type=_words, default=(), metavar="T,T", help="element types, such as bfloat16")
    parser.add_argument("--fp8", action="store_true", help="products of float8_e4m3fn too")
    parser.add_argument("--model", type=Path, metavar="F", help="what --llm measures, in place of random weights")
    parser.add_argument("--only", metavar="TEXT", help="only rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=15, help="samples of a row (default 15)")
    parser.add_argument("--seed", type=int, default=1, help="of the random operands")
    parser.add_argument(
        "--no-peer", action="store_true", help="do not time torch (NumPy on the CPU device) beside ours"
    )
    parser.add_argument("--save", type=Path, metavar="F", help="write the run as JSON")
    parser.add_argument("--compare", type=Path, metavar="F", help="compare with a run that was saved")
    parser.add_argument(
        "--fail-on-regression", type=float, nargs="?", const=5.0, metavar="PERCENT",
        help="exit with 1 where a row is slower than the compared run's by more than this, beyond the noise (5)",
    )  # fmt: skip
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--plot", type=Path, metavar="F", help="draw the roofline (extra `plot`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, 1 for a wrong result or a regression, 2 for wrong arguments.

    Examples
    --------
    >>> main(["--gemm", "--sizes", "64", "--no-peer", "--rounds", "3", "--markdown"])  # doctest: +SKIP
    0
    """
    parser = argparse.ArgumentParser(prog="python -m pygpukit.benchmark", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except GPUKitError as error:
        print(f"pygpukit.benchmark: {error}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace) -> int:
    """Carry out a run for parsed arguments."""
    try:
        if args.rounds < 1:
            raise ValueError(f"--rounds must be at least 1, not {args.rounds}")
        if args.fail_on_regression is not None and args.compare is None:
            raise ValueError("--fail-on-regression needs --compare FILE")
        before = results.Run.load(args.compare) if args.compare is not None else None
        made = _measure(args)
        changes = results.compare(before, made) if before is not None else []
    except (ValueError, OSError) as error:
        if isinstance(error, GPUKitError):
            raise
        print(f"pygpukit bench: {error}", file=sys.stderr)
        return 2
    if args.save is not None:
        made.save(args.save)
    if args.markdown:
        print(results.markdown(made))
    if args.plot is not None:
        from pygpukit.benchmark.plot import draw

        draw(made, args.plot)
    for change in changes:
        print(change)
    wrong = [row for row in made.rows if row.failure]
    slower = [c for c in changes if args.fail_on_regression is not None and c.is_slower(args.fail_on_regression)]
    for change in slower:
        print(f"slower beyond the noise: {change}", file=sys.stderr)
    return 1 if wrong or slower else 0


def _measure(args: argparse.Namespace) -> results.Run:
    options = Options(quick=args.quick, sizes=args.sizes, dtypes=args.dtypes, seq_lens=args.seq_lens, fp8=args.fp8,
                      peer=not args.no_peer, model=args.model, seed=args.seed)  # fmt: skip
    chosen = [name for name in SECTIONS if args.all or getattr(args, name)]
    chosen = chosen or [name for name in SECTIONS if name != "llm" and (name != "ops" or args.quick)]
    timer = Timer(options, args.rounds)
    rows = [row for name in chosen for row in SECTIONS[name](options) if args.only is None or args.only in row.name]
    if not rows:
        raise ValueError(f"no row has {args.only!r} in its name" if args.only else "nothing to measure")
    limits = ceilings(options, timer)
    say = print if not args.markdown else (lambda *_: None)
    say(f"copy {limits['copy'] / 1e9:,.0f} GB/s, read {limits['read'] / 1e9:,.0f} GB/s")
    kept: list[results.Measurement] = []
    with _Progress(len(rows)) as advance:
        for row in rows:
            kept.append(_one(row, timer))
            known = {**limits, **results.compute_ceilings(kept)}
            shown = results.cells(kept[-1], known)
            say(f"{shown[0]:42} " + "  ".join(f"{cell:>12}" for cell in shown[1:7]) + f"  {shown[7]}")
            advance()
    for line in results.invariance(kept):
        say(line)
    return results.Run(results.machine(options), {**limits, **results.compute_ceilings(kept)}, tuple(kept))


def _one(row: Row, timer: Timer) -> results.Measurement:
    """Check and time a row; a wrong result is not timed."""
    work = row.prepare()
    if not work.error <= work.tolerance:
        failure = f"wrong result: distance {work.error:.1e} from the reference, {work.tolerance:.1e} allowed"
        return results.Measurement(row.name, row.section, row.precision, error=work.error, tolerance=work.tolerance,
                                   variant=work.variant, failure=failure)  # fmt: skip
    if work.sample is not None:
        ours, beside = (Samples(seconds) for seconds in work.sample(timer.rounds))
        return results.measured(row, work, ours, beside if beside.seconds else None)
    return results.measured(row, work, *timer.measure(work.calls, work.peer))


class _Progress:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("rows", total=total)

    def __enter__(self) -> Callable[[], None]:
        if self._bar is None:
            return lambda: None
        self._bar.start()
        return lambda: self._bar.advance(self._task)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if any(n < 1 for n in numbers):
        raise argparse.ArgumentTypeError(f"sizes are at least 1, not {text!r}")
    return numbers


def _words(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)
