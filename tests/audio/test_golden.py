"""Our results against those of librosa 0.11 that are stored in golden.npz."""

from __future__ import annotations

import warnings
from pathlib import Path

import golden_cases
import numpy as np
import pytest

import pygpukit as gp
import pygpukit.audio as A

GOLDEN = np.load(Path(__file__).with_name("golden.npz"))


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in golden_cases.CASES])
def test_results_are_those_of_librosa(case: golden_cases.Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = golden_cases.run(case, A, gp.asarray)
    assert f"{case.name}.{len(results)}" not in GOLDEN.files
    for i, got in enumerate(results):
        want = GOLDEN[f"{case.name}.{i}"]
        assert got.shape == tuple(GOLDEN[f"{case.name}.{i}.shape"])
        ours = golden_cases.thinned(got)
        assert ours.dtype.kind == want.dtype.kind
        if case.limit == 0:
            np.testing.assert_array_equal(ours, want)
            continue
        finite = np.isfinite(want)
        np.testing.assert_array_equal(np.isfinite(ours), finite)
        peak = float(np.abs(want[finite]).max(initial=0.0))
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        error = np.abs(ours[finite].astype(wide) - want[finite].astype(wide)).max(initial=0.0)
        assert error <= case.limit * (1.0 if "_db" in case.name else max(peak, 1e-30)), (case.name, error, peak)
