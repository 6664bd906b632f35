"""A GPU and a bundle, but no NVRTC: which kernels are launched for types the bundle has no kernel for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pygpukit.dtypes import dtype
from pygpukit.jit.bundle import write_bundle
from pygpukit.jit.entry import Entry
from pygpukit.ops.units import builtin_units, headers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake driver is for Linux")

# By name, because the package's attribute `jit` is the function.
compiler: Any = importlib.import_module("pygpukit.jit.compiler")

NO_NVRTC = "/nonexistent/libnvrtc.so.13"
TYPES = ("bool", "int32", "int64", "float16", "float32", "float64")

PRELUDE = """
def names():
    return [line.split()[0].removeprefix("pgk_") for line in launches()]

def ran(call):
    before = len(names())
    result = call()
    gp.synchronize()
    return result, names()[before:]

f, h, d, i = (gp.zeros((4, 4), kind) for kind in ("float32", "float16", "float64", "int32"))
"""

Run = Callable[[str], str]


def fake_bundle(path: Path, patterns: Iterable[str]) -> None:
    """Write a bundle whose images are what the fake driver loads: the names of the kernels."""
    entries = []
    for unit in builtin_units(map(dtype, TYPES)):
        if any(Path(unit.name).match(pattern) for pattern in patterns):
            request = compiler._request(unit.source, unit.name, "90a", (), headers(), None, (), "cubin")
            image = "".join(f".entry {entry}()\n" for entry in unit.entries)
            entries.append(Entry(request.key(""), unit.name, "90a", "cubin", image.encode("ascii")))
    write_bundle(path, entries)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "kernels.zip"
    names = ("add", "where", "less", "copy", "sum", "max", "cumsum", "matmul")
    fake_bundle(path, [f"pgk_{name}_*" for name in names])
    return path


@pytest.fixture
def run_bundled(run_fake: Callable[..., str], bundle: Path) -> Run:
    """Run a program on the fake driver, with the bundle and without NVRTC and disk cache."""

    def run(program: str) -> str:
        environ = {"PYGPUKIT_NVRTC": NO_NVRTC, "PYGPUKIT_BUNDLE": str(bundle), "PYGPUKIT_CACHE": "0"}
        return run_fake(PRELUDE + program, capability="9.0", **environ)

    return run


def test_operators(run_bundled: Run) -> None:
    program = """
def same(call, expected, kind):
    result, used = ran(call)
    assert result.dtype.name == kind and used == expected, (result.dtype, used)

same(lambda: gp.add(f, f), ["add_f32"], "float32")
same(lambda: gp.add(f, 1.5), ["add_f32"], "float32")
to_f64 = ["copy_i32_to_f64", "copy_f32_to_f64", "add_f64"]
for _ in range(2):
    same(lambda: gp.add(i, f), to_f64, "float64")
same(lambda: gp.add(i, 1.5), ["copy_i32_to_f64", "add_f64"], "float64")
same(lambda: gp.add(i[0], h[:, :1]), ["copy_i32_to_f64", "copy_f16_to_f64_nd", "add_f64_nd"], "float64")
same(lambda: gp.less(i, d), ["copy_i32_to_f64", "less_f64"], "bool")
same(lambda: gp.where(i, f, h), ["copy_i32_to_b1", "copy_f16_to_f32", "where_f32"], "float32")
same(lambda: gp.where(f < f, f, 0.0), ["less_f32", "where_f32"], "float32")
same(lambda: gp.add(f, f, out=d), ["add_f32", "copy_f32_to_f64"], "float64")
same(lambda: gp.add(i, d, out=d), ["copy_i32_to_f64", "add_f64"], "float64")
same(lambda: gp.add(i, d, out=h), ["copy_i32_to_f64", "add_f64", "copy_f64_to_f16"], "float16")
same(lambda: gp.add(1, 2.5, out=f), ["add_f64", "copy_f64_to_f32"], "float32")
# The output overlaps an operand it is not: through a temporary, as ever.
same(
    lambda: gp.add(i[:3], f[:3], out=f[1:]), [*to_f64, "copy_f64_to_f32", "copy_f32"], "float32"
)
print("ok")
"""
    assert run_bundled(program) == "ok\n"


def test_shapes_and_numbers_are_refused_as_ever(run_bundled: Run) -> None:
    program = """
assert "(4, 4)" in refused(lambda: gp.add(i, f, out=gp.zeros(4, "float64")), gp.ShapeError)
assert "float64" in refused(lambda: gp.add(i, f, out=i), gp.DTypeError)
try:
    gp.add(gp.zeros(3, "int32"), 2**40, out=gp.zeros(3, "int64"))
except OverflowError as error:
    print(error)
assert names() == []
"""
    assert run_bundled(program).startswith("Python integer")


def test_streams_and_graphs(run_bundled: Run) -> None:
    program = """
stream = gp.Stream()
before = gp.current_stream().id
gp.add(i, f, stream=stream)
stream.synchronize()
assert names() == ["copy_i32_to_f64", "copy_f32_to_f64", "add_f64"], names()
assert gp.current_stream().id == before
refused(lambda: gp.less(i, gp.sin(f)), gp.NvrtcNotFoundError)
assert gp.current_stream().id == before
graph = gp.CudaGraph()
with graph.capture():
    out = gp.add(gp.add(i, f), h)
seen = len(names())
graph.replay()
gp.synchronize()
assert out.dtype.name == "float64"
print(*names()[seen:])
"""
    used = run_bundled(program).split()
    assert sorted(used) == sorted(["copy_i32_to_f64", "copy_f32_to_f64", "add_f64", "copy_f16_to_f64", "add_f64"])


def test_sums_and_products(run_bundled: Run) -> None:
    program = """
for call, expected in (
    (lambda: gp.sum(f), ["sum_f32"]),
    (lambda: gp.sum(f, dtype="float64"), ["copy_f32_to_f64", "sum_f64"]),
    (lambda: gp.sum(h, dtype="float64"), ["copy_f16_to_f64", "sum_f64"]),
    (lambda: gp.sum(i, axis=0, out=gp.zeros(4, "int32")), ["sum_i32", "copy_i64_to_i32"]),
    (lambda: gp.sum(gp.zeros(10_000, "float16"), dtype="float64"), ["copy_f16_to_f64", "sum_f64", "sum_f64_fold"]),
    (lambda: gp.max(f, out=gp.zeros((), "float64")), ["max_f32", "copy_f32_to_f64"]),
    (lambda: gp.cumsum(h, 0, dtype="float64"), ["copy_f16_to_f64", "cumsum_f64_cols", "copy_f64"]),
    (lambda: gp.matmul(f, f), ["matmul_rows_f32_nn"]),
    (lambda: gp.matmul(h, h), ["matmul_mma_f16_any_64x64"]),
    (lambda: gp.matmul(i, f), ["copy_i32_to_f64", "copy_f32_to_f64", "matmul_f64"]),
    (lambda: gp.matmul(f, h), ["copy_f16_to_f32", "matmul_rows_f32_nn"]),
    (lambda: gp.matmul(h, h, out=f), ["copy_f16_to_f32", "copy_f16_to_f32", "matmul_rows_f32_nn"]),
    (lambda: gp.matmul(f, d, out=d), ["copy_f32_to_f64", "matmul_f64", "copy_f64"]),
    (lambda: gp.matmul(f, f, out=d), ["matmul_rows_f32_nn", "copy_f32_to_f64"]),
):
    for _ in range(2):
        _, used = ran(call)
        assert used == expected, used
print("ok")
"""
    assert run_bundled(program) == "ok\n"


def test_what_no_bundle_has_says_what_to_do(run_bundled: Run) -> None:
    program = """
for call, name in (
    (lambda: gp.sin(f), "pgk_sin_f32"),
    (lambda: gp.mul(i, f), "pgk_mul_f64"),
    (lambda: gp.add(gp.zeros(3, "int8"), gp.zeros(3, "int32")), "pgk_copy_i8_to_i32"),
    (lambda: gp.matmul(gp.zeros((2, 2), "int8"), f[:2, :2]), "pgk_copy_i8_to_f32"),
    (lambda: gp.sum(gp.zeros(3, "int8")), "pgk_sum_i8"),
):
    for _ in range(2):
        text = refused(call, gp.NvrtcNotFoundError)
        assert text.startswith("NVRTC JIT compiler not available") and "pip install" in text, text
        assert f"'{name}' for sm_90a" in text and "pygpukit cache import" in text, text
print("ok")
"""
    assert run_bundled(program) == "ok\n"
