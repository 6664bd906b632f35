"""The table of all cases, and how a device runs them: one kernel for some forty of them, from PTX text."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from diff_case import LANES, WIDTHS, Case, module
from diff_chains import chain_cases
from diff_convert import convert_cases
from diff_float import float_cases
from diff_integer import integer_cases
from diff_matrix import matrix_cases
from diff_warp import warp_cases

import pygpukit as gp

BATCH = 40
Results = list[np.ndarray]


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """Every case, in the order of the tables."""
    tables = (integer_cases, float_cases, convert_cases, warp_cases, matrix_cases, chain_cases)
    cases = tuple(case for table in tables for case in table())
    names = {case.name for case in cases}
    if len(names) != len(cases):
        raise ValueError("two cases have the same name")
    return cases


def batches(cases: Sequence[Case], size: int = BATCH) -> Iterator[Sequence[Case]]:
    """Cases in groups for one kernel each."""
    for first in range(0, len(cases), size):
        yield cases[first : first + size]


@dataclass
class Outcome:
    """What a device made of some cases: the results by name, and why it refused the others."""

    results: dict[str, Results] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def run(cases: Sequence[Case], outcome: Outcome) -> None:
    """Run cases on the current device; one that it does not load is refused, not the others."""
    try:
        kernel = gp.load_ptx(module(cases), "kernel")
    except gp.errors.GPUKitError as error:
        if len(cases) == 1:
            outcome.refused[cases[0].name] = " ".join(str(error).split())[:300]
            return
        half = len(cases) // 2
        run(cases[:half], outcome)
        run(cases[half:], outcome)
        return
    words = np.concatenate([*(case.operands for case in cases), np.zeros((1, LANES), np.uint64)])
    count = sum(len(case.outputs) for case in cases)
    source, target = gp.from_numpy(words), gp.from_numpy(np.zeros((count, LANES), np.uint64))
    kernel(source.ptr, target.ptr, grid=1, block=LANES)
    rows = iter(target.to_numpy())
    for case in cases:
        outcome.results[case.name] = [narrow(next(rows), width) for width in case.outputs]


def narrow(words: np.ndarray, width: str) -> np.ndarray:
    """Results as unsigned numbers of their own width; predicates as bytes."""
    count = WIDTHS[width]
    if count == 1:
        return words.astype(np.uint8)
    return words.astype({16: np.uint16, 32: np.uint32, 64: np.uint64}[count])
