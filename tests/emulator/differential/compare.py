"""Replay recorded results on the CPU device: the same bits, or within the bound of the instruction.

python tests/emulator/differential/compare.py [--table] [--vectors FILE] [--family NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import vectors
from diff_case import Bound, Case
from diff_operands import FORMATS
from generate import Outcome, Results, all_cases, batches, run

import pygpukit as gp


@dataclass
class Comparison:
    """One case: how many values were compared, how many differ, the first of these, and the largest error."""

    case: Case
    values: int = 0
    wrong: int = 0
    first: str = ""
    # The largest difference of finite results, in ulps, relative, absolute, and of what is allowed.
    ulps: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0
    used: float = 0.0


def values_of(words: np.ndarray, form: str) -> np.ndarray:
    """Results as numbers; pairs give two columns."""
    if form == "f64":
        return words.view(np.float64)[:, None]
    if form == "f32":
        return words.view(np.float32).astype(np.float64)[:, None]
    halves = words.view(np.uint16).reshape(len(words), -1)
    if form == "bf16":
        return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return halves.view(np.float16).astype(np.float64)


def spacing(numbers: np.ndarray, form: str) -> np.ndarray:
    """Distance of neighbours in the format around these numbers."""
    exponent, mantissa = FORMATS[form]
    least = 2 - (1 << (exponent - 1))
    _, power = np.frexp(np.where(np.isfinite(numbers), numbers, 1.0))
    return np.ldexp(1.0, np.maximum(power - 1, least) - mantissa)


def within(comparison: Comparison, bound: Bound, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Which lanes are within the bound; notes the largest error."""
    form = bound.format
    a, b = values_of(ours, form), values_of(theirs, form)
    # An overflow is near the largest number: infinity counts as the next power of two.
    limit = np.inf if form == "f64" else 2.0 ** (1 << (FORMATS[form][0] - 1))
    x, y = (np.where(np.isinf(v), np.copysign(limit, v), v) for v in (a, b))
    step = spacing(x, form)
    with np.errstate(invalid="ignore"):
        allowed = np.maximum(np.maximum(bound.ulp * step, bound.relative * np.abs(x)), bound.absolute)
        allowed = allowed + step / 2
        error = np.abs(x - y)
        # A relative bound of infinity says nothing.
        fine = np.where(np.isfinite(allowed), error <= allowed, np.isfinite(a))
    fine |= (np.isnan(a) & np.isnan(b)) | (a == b)
    both = np.isfinite(a) & np.isfinite(b)
    if both.any():
        e, s, near, room = error[both], step[both], np.abs(x[both]), allowed[both]
        comparison.ulps = max(comparison.ulps, float((e / s).max()))
        normal = near > s * 4
        comparison.relative = max(comparison.relative, float((e[normal] / near[normal]).max(initial=0.0)))
        comparison.absolute = max(comparison.absolute, float(e.max()))
        comparison.used = max(comparison.used, float((e / room).max()))
    return np.asarray(fine.all(axis=1))


def compare(case: Case, ours: Results, theirs: Results) -> Comparison:
    """Compare the emulator's results of a case with recorded ones."""
    found = Comparison(case)
    for k, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        found.values += len(mine)
        fine = within(found, case.bound, mine, other) if case.bound else mine == other
        wrong = np.flatnonzero(~fine)
        if len(wrong) and not found.first:
            found.first = _describe(case, int(wrong[0]), k, mine, other)
        found.wrong += len(wrong)
    return found


def _describe(case: Case, lane: int, k: int, mine: np.ndarray, other: np.ndarray) -> str:
    digits = mine.dtype.itemsize * 2
    operands = ", ".join(f"a{i} = {int(word):#x}" for i, word in enumerate(case.operands[:, lane]))
    return f"lane {lane}, {operands or 'no operands'}: d{k} is {int(mine[lane]):#0{digits + 2}x} here, " \
        f"{int(other[lane]):#0{digits + 2}x} on the device"  # fmt: skip


def replay(cases: Sequence[Case], recorded: vectors.Vectors) -> tuple[list[Comparison], dict[str, str]]:
    """Run cases on the CPU device and compare; and why the others could not be."""
    ours, missing = Outcome(), {}
    with gp.device("cpu"):
        for batch in batches(cases):
            run(batch, ours)
    comparisons = []
    for case in cases:
        theirs = recorded.results.get(case.name)
        if case.name in ours.refused:
            missing[case.name] = f"not on the emulator: {ours.refused[case.name]}"
        elif case.name in recorded.refused:
            missing[case.name] = f"not on the device: {recorded.refused[case.name]}"
        elif theirs is None or recorded.digests[case.name] != case.digest:
            missing[case.name] = "recorded before the case was changed, or not at all: run record.py on a GPU"
        else:
            comparisons.append(compare(case, ours.results[case.name], theirs))
    return comparisons, missing


def table(comparisons: Iterable[Comparison], device: str) -> str:
    """What was compared and the largest errors, in Markdown."""
    found = list(comparisons)
    lines = [f"Compared with {device}.", "", "| instructions | cases | results | differ |", "|---|---|---|---|"]
    for family in dict.fromkeys(one.case.family for one in found):
        group = [one for one in found if one.case.family == family]
        values, wrong = sum(one.values for one in group), sum(one.wrong for one in group)
        lines.append(f"| {family} | {len(group)} | {values} | {wrong} |")
    lines += [
        "",
        "| instruction | bound | largest error in ulps | relative | absolute | of what is allowed |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        if one.case.bound:
            name = one.case.name.replace(".sync.aligned", "").replace(".row.col", "")
            errors = f"{one.ulps:.3g} | {one.relative:.2e} | {one.absolute:.2e} | {one.used:.0%}"
            lines.append(f"| `{name}` | {one.case.bound.text} | {errors} |")
    return "\n".join(lines)


def report(comparisons: Iterable[Comparison]) -> list[str]:
    """A paragraph for each case that differs."""
    return [
        f"{one.case.name}: {one.wrong} of {one.values} results differ"
        f"{' beyond ' + one.case.bound.text if one.case.bound else ''}\n  {one.first}"
        for one in comparisons
        if one.wrong
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, default=vectors.PATH, help="recorded results (default: %(default)s)")
    parser.add_argument("--family", help="only the cases of this family")
    parser.add_argument("--table", action="store_true", help="print what was compared as Markdown")
    options = parser.parse_args()
    recorded = vectors.load(options.vectors)
    cases = [case for case in all_cases() if options.family in (None, case.family)]
    comparisons, missing = replay(cases, recorded)
    if options.table:
        print(table(comparisons, str(recorded.device["name"])))
        return
    problems = report(comparisons)
    print("\n".join(problems))
    for name, reason in missing.items():
        print(f"{name}: {reason}")
    print(f"{len(comparisons)} cases compared, {len(problems)} differ, {len(missing)} could not be compared")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
