"""What is done around cuSOLVER, with the library's functions computed by NumPy: layouts, stacks, signs, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import solver_model
import test_linalg as cases

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.core import cusolver
from pygpukit.linalg import solver

CALLS: list[str] = []


class Plan:
    """In place of the native plan."""

    workspace = 64

    def __init__(self, name: str, dtype: Any, sizes: Any, flags: str, arrays: Any) -> None:
        assert len(arrays) == solver_model.ITEMS[name]
        self.name, self.sizes, self.flags = name, sizes, flags

    def run(self, arrays: list[gp.GPUArray], info: gp.GPUArray, workspace: gp.GPUArray) -> None:
        assert all(x.is_contiguous for x in arrays)
        assert (info.shape, info.dtype, workspace.nbytes) == ((1,), gp.int32, 64)
        CALLS.append(self.name)
        gp.synchronize()
        views = [x._host_view() for x in arrays]
        info._host_view()[0] = solver_model.compute(self.name, self.sizes, self.flags, views)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cusolver, "plan", Plan)
    monkeypatch.setattr(solver, "refuses", lambda kind: None)
    CALLS.clear()
    native.clear_plans()
    # The library promises no more, and NumPy's functions would come before it.
    with gp.deterministic("run_to_run"):
        yield
    native.clear_plans()
    assert CALLS


@pytest.fixture(params=[pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with gp.device(request.param):
        yield request.param


def test_equations(device: str) -> None:
    for name in cases.TYPES if device == "cpu" else ("float32",):
        a, b = cases.values(name, (3, 4, 4)), cases.values(name, (3, 4, 2), 1)
        x = gp.linalg.solve(gp.from_numpy(a), gp.from_numpy(b))
        cases.close(a @ x.to_numpy(), b)
        cases.both("solve", a[0], b)
        cases.both("solve", a, b[0, :, 0])
        cases.both("solve", a[0], b[0, :, 0])
        cases.close(a @ gp.linalg.inv(gp.from_numpy(a)).to_numpy(), np.broadcast_to(np.eye(4, dtype=name), a.shape))
        permuted = a[:, [2, 0, 3, 1]]
        cases.both("det", permuted)
        cases.both("slogdet", permuted)
        cases.both("slogdet", -permuted[0])
        cases.both("cond", a, 1)
    assert {"getrf", "getrs"} == set(CALLS)


def test_the_rest_as_on_the_host(device: str) -> None:
    if device == "emulated":
        cases.test_decompositions_on_devices("emulated")
        cases.test_cholesky("emulated")
        assert {"geqrf", "orgqr", "gesvd", "syevd", "potrf"} == set(CALLS)
        return
    cases.test_cholesky("cpu")
    cases.test_hermitian_matrices()
    cases.test_general_eigenvalues()
    cases.test_least_squares()
    cases.test_layouts()
    cases.test_ranks_and_pseudo_inverses()
    cases.test_shapes_of_equations()
    for shape in ((4, 4), (5, 3), (3, 5), (2, 4, 2), (1, 1), (0, 3), (3, 0)):
        cases.test_qr(shape)
        cases.test_svd(shape)
    for function in cases.ONE:
        cases.test_empty_matrices(function)
        cases.test_shapes_that_are_refused(function)


def test_singular_matrices(device: str) -> None:
    cases.test_singular_matrices(device)


def test_pairs_of_complex_eigenvalues() -> None:
    a = np.array([[0.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 5.0], [0.0, 0.0, -5.0, 2.0]])
    stack = np.stack([a, np.diag([1.0, 2.0, 3.0, 4.0]), a.T])
    w, v = (x.to_numpy() for x in gp.linalg.eig(gp.from_numpy(stack)))
    cases.close(stack @ v, v * w[:, None, :])


def test_a_refused_argument_is_no_singular_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_model, "compute", lambda *args: -3)
    with pytest.raises(gp.DeviceError, match="argument 3"):
        gp.linalg.cholesky(gp.eye(2))
