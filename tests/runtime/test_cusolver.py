"""Factorisations through a stand-in for cuSOLVER on the fake driver: arguments, workspaces, streams, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="there is no fake CUDA driver")

PRELUDE = """
from pygpukit.core import cusolver

random = np.random.default_rng(1)

def columns(x):
    # A column-major matrix is the transpose of a row-major one.
    return gp.from_numpy(np.ascontiguousarray(x.T))

def run(name, sizes, flags, *arrays, info=0):
    said = gp.zeros(1, "int32")
    plan = cusolver.plan(name, arrays[0].dtype, sizes, flags, arrays)
    work = gp.empty(plan.workspace, "uint8") if plan.workspace else None
    plan.run(list(arrays), said, work)
    assert said.to_numpy().tolist() == [info], said.to_numpy()
    if work is not None:
        assert (work.to_numpy() == 0xcd).all()
    return plan

def close(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
"""


@pytest.fixture
def run_solver(run_fake: Callable[..., str], fake_cuda: str) -> Callable[..., str]:
    return lambda program, **more: run_fake(PRELUDE + program + "\nprint('ok')", PYGPUKIT_CUSOLVER=fake_cuda, **more)


def test_factors_and_solutions_of_column_major_matrices(run_solver: Callable[..., str]) -> None:
    program = """
for kind in ("float32", "float64"):
    x = random.standard_normal((5, 5)).astype(kind)
    a = x @ x.T + 5 * np.eye(5, dtype=kind)
    for side, known in (("L", np.tril(np.linalg.cholesky(a))), ("U", np.triu(np.linalg.cholesky(a).T))):
        factor = columns(a)
        run("potrf", (5, 5, 0), side, factor)
        made = factor.to_numpy().T
        close(np.tril(made) if side == "L" else np.triu(made), known)
    bad = columns(np.diag([1.0, 2.0, -1.0]).astype(kind))
    run("potrf", (3, 3, 0), "L", bad, info=3)
    lu, pivots, b = columns(x), gp.zeros(5, "int64"), random.standard_normal((5, 3)).astype(kind)
    run("getrf", (5, 5, 0), "", lu, pivots)
    for letter, matrix in (("N", x), ("T", x.T)):
        sides = columns(b)
        plan = run("getrs", (5, 3, 0), letter, lu, pivots, sides)
        assert plan.workspace == 0
        close(matrix @ sides.to_numpy().T, b)
    run("getrf", (2, 2, 0), "", columns(np.ones((2, 2), kind)), gp.zeros(2, "int64"), info=2)
assert count("cusolverDnCreate") == 1, count("cusolverDnCreate")
plan = cusolver.plan("getrf", gp.float32, (2, 2, 0), "", [gp.ones((2, 2)), gp.zeros(2, "int64")])
assert "Getrf f32 m=2 n=2" in repr(plan), plan
"""
    assert run_solver(program) == "ok\n"


def test_every_function_and_type_gets_its_arguments(run_solver: Callable[..., str]) -> None:
    program = """
for kind, real in (("float32", "float32"), ("float64", "float64"), ("complex64", "float32"), ("complex128", "float64")):
    def made(*shape, dtype=kind):
        return gp.zeros(shape, dtype)
    a, tau = made(3, 5), made(3)
    run("geqrf", (5, 3, 0), "", a, tau)
    assert tau.to_numpy().real.tolist() == [5030, 5031, 5032], tau.to_numpy()
    q = made(4, 5)
    run("orgqr", (5, 4, 3), "", q, tau)
    assert q.to_numpy()[0, 0].real == 3 + 1000 * 5030
    for flags, code in (("NL", 0), ("NU", 1), ("VL", 10), ("VU", 11)):
        a, w = made(4, 4), made(4, dtype=real)
        run("syevd", (4, 4, 0), flags, a, w)
        assert w.to_numpy().tolist() == [1, 2, 3, 4] and a.to_numpy()[0, 0].real == code
    for job, left in (("A", 5), ("S", 3), ("N", 0)):
        a, s = made(3, 5), made(3, dtype=real)
        u, vt = (made(left, 5), made(3, 3)) if left else (made(0, 0), made(0, 0))
        run("gesvd", (5, 3, 0), job * 2, a, s, u, vt)
        assert s.to_numpy().tolist() == [3, 2, 1]
        if left:
            assert u.to_numpy()[-1, -1].real == vt.to_numpy()[-1, -1].real == ord(job)
    for flags in ("NN", "NV"):
        a, w, v = made(3, 3), made(3, dtype="complex64" if real == "float32" else "complex128"), made(3, 3)
        run("geev", (3, 3, 0), flags, a, w, v if flags == "NV" else made(0, 0))
        assert w.to_numpy().tolist() == [1, 2 - 1j, 3 - 2j]
        assert v.to_numpy()[-1, -1].real == (7 if flags == "NV" else 0)
    one, ones = gp.from_numpy(np.ones((1, 1), kind)), gp.from_numpy(np.ones((2, 1), kind))
    run("potrf", (1, 1, 0), "L", one)
    run("getrf", (1, 1, 0), "", one, gp.zeros(1, "int64"))
    run("getrs", (1, 2, 0), "T", one, gp.from_numpy(np.ones(1, np.int64)), ones)
"""
    assert run_solver(program) == "ok\n"


def test_what_does_not_fit_is_refused(run_solver: Callable[..., str]) -> None:
    program = """
a, pivots, info = gp.ones((3, 3)), gp.zeros(3, "int64"), gp.zeros(1, "int32")
plan = cusolver.plan("getrf", gp.float32, (3, 3, 0), "", [a, pivots])
work = gp.empty(plan.workspace, "uint8")
before = count("cusolverDnXgetrf")
for call, part in [
    (lambda: plan.run([a], info, work), "takes 2 arrays, not 1"),
    (lambda: plan.run([a.T[:2], pivots], info, work), "without gaps"),
    (lambda: plan.run([a, gp.zeros(3, "int32")], info, work), "int64"),
    (lambda: plan.run([gp.ones((3, 2)), pivots], info, work), "9 elements"),
    (lambda: plan.run([a, pivots], gp.zeros(1), work), "int32"),
    (lambda: plan.run([a, pivots], info), "needs a workspace"),
    (lambda: plan.run([a, pivots], info, work[1:]), "needs a workspace"),
    (lambda: cusolver.plan("getrf", gp.float32, (3, 4, 0), "", [a, pivots]), "do not fit"),
    (lambda: cusolver.plan("getri", gp.float32, (3, 3, 0), "", [a, pivots]), "not known"),
    (lambda: cusolver.plan("potrf", gp.float32, (3, 3, 0), "X", [a]), "letters"),
    (lambda: cusolver.plan("potrf", gp.float16, (3, 3, 0), "L", [a]), "float16"),
]:
    text = refused(call, (ValueError, TypeError))
    assert part in text, text
a.setflags(write=False)
assert "read-only" in refused(lambda: plan.run([a, pivots], info, work), ValueError)
assert count("cusolverDnXgetrf") == before
a.setflags(write=True)
# An error of the library is the caller's, and the next call works.
configure("FAIL", "cusolverDnXgetrf:1:7")
text = refused(lambda: plan.run([a, pivots], info, work))
assert "cusolverDnXgetrf failed with CUSOLVER_STATUS_INTERNAL_ERROR (7), cuSOLVER 12.3.5" in text, text
plan.run([a, pivots], info, work)
assert info.to_numpy()[0] == 2
with gp.device("cpu"):
    text = refused(lambda: cusolver.plan("potrf", gp.float32, (1, 1, 0), "L", [gp.ones((1, 1))]))
    assert "CUDA devices only" in text, text
"""
    assert run_solver(program) == "ok\n"


def test_streams_and_evicted_arrays(run_solver: Callable[..., str]) -> None:
    program = """
x = np.diag(np.arange(1.0, 513.0)).astype(np.float32) + 1
with gp.memory.MemoryPool(enable_eviction=True), gp.Stream():
    a, pivots, info = gp.from_numpy(x), gp.zeros(512, "int64"), gp.zeros(1, "int32")
    plan = cusolver.plan("getrf", gp.float32, (512, 512, 0), "", [a, pivots])
    work = gp.empty(plan.workspace, "uint8")
    assert a.evict()
    plan.run([a, pivots], info, work)
    lu = a.to_numpy().T
    close(np.tril(lu, -1) @ np.triu(lu) + np.triu(lu), x)
"""
    assert run_solver(program) == "ok\n"


def test_a_missing_library_is_said_with_the_remedy(run_fake: Callable[..., str]) -> None:
    program = """
for call in (gp.linalg.inv, gp.linalg.eigh, gp.linalg.svd):
    text = refused(lambda: call(gp.ones((2, 2))))
    assert "/nonexistent/libcusolver.so: no such file" in text and "pip install" in text and "[cusolver]" in text, text
print("ok")
"""
    assert run_fake(program, PYGPUKIT_CUSOLVER="/nonexistent/libcusolver.so") == "ok\n"
