"""Every family of built-in kernels compiles for every supported generation of GPUs; NVRTC needs none of them."""

from __future__ import annotations

import functools
import re
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

import pygpukit as gp
from pygpukit.cli.cache import _arch, _builtin_units
from pygpukit.fft.long import halves_unit
from pygpukit.jit.prebuild import Unit, compile_units, compiles_for
from pygpukit.ops.fuse.reduction import unit_of
from pygpukit.ring import message, ring_kernel
from pygpukit.ring.program import Handler, Program

pytestmark = pytest.mark.nvrtc

# The type of which each family is compiled; tests/ops/test_compilation.py has every type at the compiler's front end.
TYPE = "bf16"
# The oldest generation, and the one with kernels of its own and the only condition in the kernels' text.
EVERYTHING = ("80", "90a")
# What they compile is the text of one of those two; each family is compiled for one of them in turn.
SHARED = ("86", "89", "100", "120")


def family(unit: Unit, files: dict[str, str]) -> tuple[str, ...]:
    """Names of the kernel files a unit is made from; elementwise operators are written from their table."""
    return tuple(name for name, text in files.items() if text in unit.source) or ("elementwise",)


def texts(pattern: str) -> dict[str, str]:
    """The kernel files whose names match, by path."""
    folder = Path(str(resources.files("pygpukit.kernels")))
    return {path.relative_to(folder).as_posix(): path.read_text("ascii") for path in folder.rglob(pattern)}


@message
class Packet:
    x: gp.float32[4]


@ring_kernel(kernel_id="arch_one", input_type=Packet, output_type=Packet, device="gpu", state={"n": gp.int64})
def one() -> None:
    """
    __device__ void handle(const Packet& in, Packet& out, State& state, Context& ctx) {
        if (ctx.lane < 4) out.x[ctx.lane] = in.x[ctx.lane];
        state.n += 1;
        ctx.send(out);
        ctx.reply(out);
        ctx.publish("arch", out);
    }
    """


@ring_kernel(kernel_id="arch_many", input_type=Packet, output_type=Packet, device="gpu", topics=["arch"])
def many() -> None:
    """
    __device__ void handle_batch(const Batch& batch, State& state, Context& ctx) {
        for (unsigned i = ctx.lane; i < batch.size; i += ctx.width) batch.out(i) = batch.in(i);
    }
    """


def ring() -> Unit:
    """The program of a ring with a handler of each kind, and with groups of blocks."""
    program = Program()
    for kernel in (one, many):
        program.add(Handler.of(kernel))
    return SimpleNamespace(name="ring_kernel", source=program.source(128, True))


def fused_reduction() -> Unit:
    """A function that ends with a reduction; programs make these, so that no bundle holds them."""
    fused = gp.fuse(lambda x, y: gp.sum(x * y))
    with gp.device("cpu"):
        fused(gp.ones(3), gp.ones(3))
    ((traced,),) = fused._traces.values()
    return unit_of(traced.program)


@functools.cache
def representatives() -> tuple[list[Unit], dict[str, str]]:
    """One unit of each family, and the headers; of a family whose units are not named after types, the first."""
    files, (builtin, headers) = texts("*.cu"), _builtin_units("*")
    # Long transforms are made for their length, so that no bundle holds them.
    units = [*builtin, halves_unit(65536, gp.float32), fused_reduction()]
    chosen: dict[tuple[str, ...], Unit] = {}
    for unit in sorted(units, key=lambda unit: not unit.name.endswith(f"_{TYPE}")):
        chosen.setdefault(family(unit, files), unit)
    assert {name for names in chosen for name in names} == {*files, "elementwise"}, "a file without a unit"
    return [*chosen.values(), ring()], headers


def test_the_text_asks_for_no_other_architecture() -> None:
    """With another condition than these, the generation it asks for belongs to those that compile everything."""
    asked = {found for text in texts("*.cu*").values() for found in re.findall(r".*__CUDA_ARCH.*", text)}
    assert asked == {"#if __CUDA_ARCH__ >= 900"}


@pytest.mark.parametrize("name", [*EVERYTHING, *SHARED])
def test_every_family_compiles(name: str) -> None:
    arch, (units, headers) = _arch(name), representatives()
    share = units if name in EVERYTHING else units[SHARED.index(name) :: len(SHARED)]
    chosen = [unit for unit in share if compiles_for(unit, arch)]
    entries = compile_units(chosen, [arch], headers=headers, jobs=1)
    assert [entry.name for entry in entries] == [unit.name for unit in chosen]
    assert {entry.arch for entry in entries} == {arch}
    assert all(entry.image.startswith(b"\x7fELF") for entry in entries)
