"""Every family of built-in kernels compiles for every supported generation of GPUs; NVRTC needs none of them."""

from __future__ import annotations

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

# Types of which each family is compiled: those whose headers have instructions of an architecture's own. No header has
# anything for 86, 100 and 120 alone, so one type shows there that the compiler takes a family.
ARCHITECTURES = {
    "80": ("bf16", "e4m3"), "86": ("bf16",), "89": ("bf16", "e4m3"), "90a": ("f32", "bf16", "e4m3"), "100": ("bf16",),
    "120": ("bf16",),
}  # fmt: skip


def family(unit: Unit, files: dict[str, str]) -> tuple[str, ...]:
    """Names of the kernel files a unit is made from; elementwise operators are written from their table."""
    return tuple(name for name, text in files.items() if text in unit.source) or ("elementwise",)


def representatives(units: list[Unit], tags: tuple[str, ...]) -> list[Unit]:
    """One unit of each family and type; of a family whose units are not named after types, the first."""
    folder = Path(str(resources.files("pygpukit.kernels")))
    files = {path.relative_to(folder).as_posix(): path.read_text("ascii") for path in folder.rglob("*.cu")}
    chosen: dict[tuple[tuple[str, ...], str], Unit] = {}
    for unit in units:
        tag = unit.name.rsplit("_", 1)[-1]
        chosen.setdefault((family(unit, files), tag if tag in tags else ""), unit)
    named = {names for names, tag in chosen if tag}
    assert {name for names, _ in chosen for name in names} == {*files, "elementwise"}, "a file without a unit"
    for names in named:
        chosen.pop((names, ""), None)
    return list(chosen.values())


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


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_family_compiles(name: str) -> None:
    arch = _arch(name)
    units, headers = _builtin_units("*")
    # Long transforms are made for their length, so that no bundle holds them.
    units = [*units, halves_unit(65536, gp.float32), fused_reduction()]
    chosen = [unit for unit in [*representatives(units, ARCHITECTURES[name]), ring()] if compiles_for(unit, arch)]
    entries = compile_units(chosen, [arch], headers=headers, jobs=1)
    assert [entry.name for entry in entries] == [unit.name for unit in chosen]
    assert {entry.arch for entry in entries} == {arch}
    assert all(entry.image.startswith(b"\x7fELF") for entry in entries)
