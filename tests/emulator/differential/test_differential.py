"""The emulator against recorded results of a GPU, instruction by instruction, and the tools that compare them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import vectors
from compare import compare, replay, report, table
from diff_case import LANES, Bound, Case
from generate import Outcome, all_cases, batches, run
from record import record
from tensor_core import blocks, is_modelled

import pygpukit as gp

FAMILIES = tuple(dict.fromkeys(case.family for case in all_cases()))


@pytest.fixture(scope="module")
def recorded() -> vectors.Vectors:
    if not vectors.PATH.exists():
        pytest.skip(f"{vectors.PATH.name} is not there: record it on a GPU with record.py")
    return vectors.load()


@pytest.fixture(scope="module")
def own() -> vectors.Vectors:
    """Results of the emulator itself."""
    with gp.device("cpu"):
        return record()


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_the_gpu(family: str, recorded: vectors.Vectors) -> None:
    cases = [case for case in all_cases() if case.family == family]
    comparisons, missing = replay(cases, recorded)
    assert not report(comparisons), "\n".join(report(comparisons))
    # Products that no GPU has run yet are compared with the model below.
    new = {case.name for case in cases if is_modelled(case) and case.name not in recorded.results}
    stale = [name for name, reason in missing.items() if "record.py" in reason and name not in new]
    assert not stale, f"recorded results are not of these cases; run record.py on a GPU: {stale}"
    assert comparisons or new


PRODUCTS = [case for case in all_cases() if is_modelled(case)]


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_products_are_those_of_the_model(case: Case, own: vectors.Vectors) -> None:
    """Bit for bit, with a model in integers that was written for itself."""
    for got, want in blocks(case, own.results[case.name]):
        np.testing.assert_array_equal(got, want)


def test_the_model_is_what_the_gpu_does(recorded: vectors.Vectors) -> None:
    known = [case for case in PRODUCTS if recorded.digests.get(case.name) == case.digest]
    assert len(known) >= 19
    for case in known:
        for got, want in blocks(case, recorded.results[case.name]):
            np.testing.assert_array_equal(got, want, err_msg=case.name)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_runs_on_the_emulator(family: str) -> None:
    outcome = Outcome()
    cases = [case for case in all_cases() if case.family == family]
    with gp.device("cpu"):
        for batch in batches(cases):
            run(batch, outcome)
    assert not outcome.refused
    assert outcome.results


def test_cases_run_alone_as_they_run_together(own: vectors.Vectors) -> None:
    """What one case of a kernel does has no effect on the next."""
    outcome = Outcome()
    with gp.device("cpu"):
        for case in all_cases()[::23]:
            run([case], outcome)
    for name, rows in outcome.results.items():
        np.testing.assert_array_equal(rows, own.results[name], err_msg=name)


def test_vectors_are_read_as_they_were_written(own: vectors.Vectors, tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    own.save(path, all_cases())
    assert path.stat().st_size < 1_500_000
    read = vectors.load(path)
    assert read.digests == own.digests
    assert read.refused == own.refused
    for name, rows in own.results.items():
        for mine, other in zip(rows, read.results[name], strict=True):
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other, err_msg=name)


def test_a_wrong_bit_is_found(own: vectors.Vectors) -> None:
    case = next(case for case in all_cases() if case.name == "add.u32")
    wrong = own.results[case.name][0].copy()
    wrong[17] ^= 0x100
    comparisons, missing = replay([case], vectors.Vectors({}, {case.name: case.digest}, {case.name: [wrong]}))
    assert not missing
    a, b = (int(word) for word in case.operands[:, 17])
    right = (a + b) % 2**32
    assert report(comparisons) == [
        f"add.u32: 1 of {LANES} results differ\n  lane 17, a0 = {a:#x}, a1 = {b:#x}: "
        f"d0 is {right:#010x} here, {right ^ 0x100:#010x} on the device"
    ]


def test_results_of_another_case_are_not_compared(own: vectors.Vectors) -> None:
    case = next(case for case in all_cases() if case.name == "add.u32")
    stale = vectors.Vectors({}, {case.name: case.digest ^ 1}, {case.name: own.results[case.name]})
    comparisons, missing = replay([case], stale)
    assert not comparisons
    assert "record.py" in missing["add.u32"]


@pytest.mark.parametrize(
    ("bound", "ours", "theirs", "fine"),
    [
        (Bound("f32", "", ulp=2), 1.0, 1.0 + 2**-22, True),
        (Bound("f32", "", ulp=2), 1.0, 1.0 + 2**-21, False),
        (Bound("f32", "", relative=2**-11), 100.0, 100.04, True),
        (Bound("f32", "", relative=2**-11), 100.0, 100.06, False),
        (Bound("f32", "", absolute=2**-20), 0.0, 2**-21, True),
        (Bound("f32", "", absolute=2**-20), 0.0, -(2**-19), False),
        (Bound("f32", "", ulp=2), np.inf, np.finfo(np.float32).max, True),
        (Bound("f32", "", ulp=2), np.inf, -np.inf, False),
        (Bound("f32", "", ulp=2), np.inf, 1.0, False),
        (Bound("f32", "", ulp=2), np.nan, np.inf, False),
        (Bound("f32", "", ulp=2), np.nan, np.nan, True),
        (Bound("f32", "", ulp=2), 0.0, -0.0, True),
        (Bound("f64", "", relative=2**-20), 1.0, 1.0 + 2**-21, True),
        (Bound("f64", "", relative=2**-20), np.inf, 1e300, False),
        (Bound("f64", "", relative=2**-20), 1e300, np.inf, False),
        (Bound("f16", "", absolute=2**-10), 0.5, 0.5 + 2**-11, True),
        (Bound("f16", "", absolute=2**-10), 0.5, 0.5 + 2**-9, False),
    ],
)
def test_bounds(bound: Bound, ours: float, theirs: float, fine: bool) -> None:
    width = bound.format[1:]
    case = Case("bounds", "test", "", ("f32",), (f"b{width}",), bound)
    rows = [[np.full(LANES, value, f"f{int(width) // 8}").view(f"u{int(width) // 8}")] for value in (ours, theirs)]
    assert (compare(case, *rows).wrong == 0) == fine


def test_the_table_names_every_family(own: vectors.Vectors) -> None:
    comparisons, _ = replay(all_cases(), own)
    text = table(comparisons, "a device")
    assert all(f"| {family} |" in text for family in FAMILIES)
    assert "| `ex2.approx.f32` | 2 ulp | 0 |" in text
