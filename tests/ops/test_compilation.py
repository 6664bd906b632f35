"""Every unit is valid to plain NVRTC, and the hot kernels have the instructions they need."""

from __future__ import annotations

import re

import nvrtc_library
import op_cases
import pytest

from pygpukit.dtypes import dtype
from pygpukit.ops.elementwise.plan import THREADS, plan
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.reduce.kernels import unit as reduction_unit
from pygpukit.ops.reduce.scan import unit as scan_unit
from pygpukit.ops.registry import load
from pygpukit.ops.source import headers
from pygpukit.ops.units import ALL_TYPES, builtin_units

pytestmark = [
    pytest.mark.nvrtc,
    pytest.mark.skipif(nvrtc_library.installed() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc"),
]


def test_conversions_compile() -> None:
    """Units that together use every conversion with inline PTX; test_architectures.py has the kernel files."""
    f32, bf16, f16, f64 = (dtype(x) for x in ("float32", "bfloat16", "float16", "float64"))
    e4m3, e5m2, u8 = (dtype(x) for x in ("float8_e4m3fn", "float8_e5m2", "uint8"))
    plans = [
        plan("add", (f32, f32)), plan("exp", (bf16,)), plan("gelu", (f16,)), plan("copy", (f64,), f16),
        plan("copy", (f16,), e4m3), plan("add", (e5m2, u8)), plan("where", (dtype("bool"), f64, f64)),
        plan("mul", (dtype("complex128"),) * 2), plan("copy", (u8,), dtype("complex128")),
    ]  # fmt: skip
    for made in plans:
        assert nvrtc_library.compile_source(made.source, "sm_80")[:4] == b"\x7fELF"


def check(sources: list[str]) -> None:
    """Run the compiler's front end, templates included; the test above covers the rest."""
    nvrtc_library.compile_source("\n".join(sources), "compute_80", ("--fdevice-syntax-only",), output=False)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_every_row_is_valid(name: str) -> None:
    check([op_cases.same_plan(row, name).source for row in op_cases.rows_of(name)])


def test_every_cast_is_valid() -> None:
    check([plan("copy", (dtype(a),), dtype(b)).source for a in ALL_TYPES for b in ALL_TYPES])


@pytest.mark.parametrize("name", sorted(set(load()) - set(TABLE)))
def test_every_instance_of_a_registered_operator_is_valid(name: str) -> None:
    by_file: dict[str, list[str]] = {}
    for unit in load()[name].units(ALL_TYPES):
        by_file.setdefault(unit.source.partition("\n")[0], []).append(unit.source)
    for found in by_file.values():
        # Units of one file differ in their last lines only.
        apart = next((i for i, x in enumerate(zip(*found, strict=False)) if len(set(x)) > 1), 0)
        kernel = found[0][:apart].rpartition("\n")[0]
        tails = [source.removeprefix(kernel) for source in found]
        if all(tail.count("{") == tail.count("}") for tail in tails) and not any("namespace" in tail for tail in tails):
            # Units may have variables of the same name.
            tails = [f"namespace unit{i} {{{tail}\n}}" for i, tail in enumerate(tails)]
        check([kernel, *tails])


def test_a_mistake_is_found() -> None:
    with pytest.raises(AssertionError, match="no_such_function"):
        check([plan("neg", (dtype("float32"),)).source.replace("neg(a)", "no_such_function(a)")])


@pytest.mark.parametrize(
    ("op", "kind"), [("add", "float32"), ("exp", "bfloat16"), ("mul", "float64"), ("copy", "uint8")]
)
def test_dense_kernels_move_16_bytes_with_all_loads_in_flight(op: str, kind: str) -> None:
    arity = {"add": 2, "mul": 2}.get(op, 1)
    made = plan(op, (dtype(kind),) * arity)
    ptx = nvrtc_library.compile_source(made.source, "compute_90").decode()
    body = ptx.split(f".entry {made.entry}(")[1].split(".entry")[0]
    steps = re.findall(r"(ld|st)\.global\.v4\.u32", body)
    vectors = made.per_block // (THREADS * made.vector)
    assert steps == ["ld"] * (vectors * arity) + ["st"] * vectors
    assert ".local" not in ptx


def test_reductions_read_16_bytes_with_all_loads_in_flight() -> None:
    f32 = dtype("float32")
    made = reduction_unit("sum", f32, f32, f32)
    ptx = nvrtc_library.compile_source(made.source, "compute_90").decode()
    for entry, loads in zip(made.entries, (8, 4, 0), strict=True):
        body = ptx.split(f".entry {entry}(")[1].split(".entry")[0]
        assert body.count("ld.global.v4.u32") == loads
    assert ".local" not in ptx
    made = scan_unit("cumsum", f32, f32, f32, by_columns=False)
    ptx = nvrtc_library.compile_source(made.source, "compute_90").decode()
    body = ptx.split(f".entry {made.entries[0]}(")[1].split(".entry")[0]
    assert (body.count("ld.global.v4.u32"), body.count("st.global.v4.u32")) == (4, 4)


def test_unit_list_is_deterministic_and_complete() -> None:
    units = builtin_units()
    assert [u.name for u in units] == [u.name for u in builtin_units()]
    assert len({u.name for u in units}) == len(units)
    assert len({u.source for u in units}) == len(units)
    entries = [e for u in units for e in u.entries]
    assert len(set(entries)) == len(entries)
    assert all(e in u.source for u in units for e in u.entries)
    casts = [u for u in units if u.name.startswith("pgk_copy_")]
    assert len(casts) == len(ALL_TYPES) ** 2
    some = builtin_units([dtype("float32"), dtype("bfloat16")])
    assert {u.name for u in some} < {u.name for u in units}
    assert all(name.startswith("pygpukit/") for name in headers())
