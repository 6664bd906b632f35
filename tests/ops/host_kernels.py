"""Runs the CUDA sources on the host: the same text compiled by g++, one thread of the grid after another.

Only the inline PTX is replaced (by the integer code beside it in the headers); indexing, conversions and expressions
are the kernels' own.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.ops.elementwise.plan import THREADS, Plan
from pygpukit.ops.source import headers

GXX = shutil.which("g++")

PRELUDE = """
#include <cmath>
#include <utility>
#define __global__
#define __launch_bounds__(n)
#define __grid_constant__
#define __shared__ static
struct Index { unsigned x; };
static thread_local Index blockIdx, threadIdx;
template <class... P, std::size_t... I>
void call(void (*kernel)(P...), void** args, std::index_sequence<I...>) { kernel(*static_cast<P*>(args[I])...); }
"""

# Kernels without barriers: one thread after another.
SERIAL = """
template <class... P>
void run(void (*kernel)(P...), unsigned grid, unsigned block, void** args) {
    for (unsigned b = 0; b < grid; ++b)
        for (unsigned t = 0; t < block; ++t) {
            blockIdx.x = b; threadIdx.x = t;
            call(kernel, args, std::index_sequence_for<P...>());
        }
}
"""


def build(folder: Path, name: str, sources: Iterable[str], entries: Iterable[str]) -> ctypes.CDLL:
    """Compile sources that share no names into one library with a launcher ``run_<entry>`` for each entry."""
    assert GXX is not None
    include = folder / "pygpukit"
    include.mkdir(exist_ok=True)
    for header, text in headers().items():
        (folder / header).write_text(text, "ascii")
    launchers = [
        f'extern "C" void run_{e}(unsigned grid, unsigned block, void** args) {{ run({e}, grid, block, args); }}'
        for e in entries
    ]
    path = folder / f"{name}.cpp"
    path.write_text("\n".join([PRELUDE, SERIAL, *sources, "using namespace pgk;", *launchers]), "ascii")
    library = folder / f"lib{name}.so"
    options = ["-std=c++20", "-O0", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
    done = subprocess.run(
        [GXX, *options, "-I", str(folder), str(path), "-o", str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def launch(library: ctypes.CDLL, entry: str, grid: int, block: int, arguments: Sequence[bytes]) -> None:
    """Call a launcher with arguments given as the bytes the driver would copy."""
    buffers = [ctypes.create_string_buffer(a, len(a)) for a in arguments]
    # The driver aligns parameters; so must we.
    pointers = (ctypes.c_void_p * len(buffers))(*[ctypes.addressof(b) for b in buffers])
    getattr(library, f"run_{entry}")(ctypes.c_uint(grid), ctypes.c_uint(block), pointers)


def pack_operand(plan: Plan, value: Any, step: int = 1) -> bytes:
    """Return the bytes of an ``Operand``: an array's address, or a Python scalar rounded to the common type."""
    compute = to_numpy_dtype(plan.compute)
    if isinstance(value, np.ndarray):
        scalar, pointer = np.zeros((), compute), value.ctypes.data
    else:
        scalar, pointer, step = np.asarray(value).astype(to_numpy_dtype(plan.common)).astype(compute), 0, 0
    body = scalar.tobytes()
    return struct.pack("<qq", pointer, step) + body + bytes(-len(body) % 8)


def run_dense(library: ctypes.CDLL, plan: Plan, inputs: Sequence[Any], out: np.ndarray[Any, Any]) -> None:
    """Run the dense entry; arrays of size 1 beside larger ones are read as single device elements."""
    n = out.size
    steps = [0 if isinstance(x, np.ndarray) and x.size != n else 1 for x in inputs]
    dense = [out, *(x for x, s in zip(inputs, steps, strict=True) if isinstance(x, np.ndarray) and s)]
    vec = all(x.ctypes.data % (plan.vector * x.itemsize) == 0 for x in dense)
    arguments = [struct.pack("<q", out.ctypes.data)]
    arguments += [pack_operand(plan, x, s) for x, s in zip(inputs, steps, strict=True)]
    arguments += [struct.pack("<q", n), struct.pack("<i", vec)]
    launch(library, plan.entry, -(-n // plan.per_block), THREADS, arguments)


def pack_nd(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> bytes:
    """Return the bytes of ``Nd``, as the native side packs them."""
    rows = [(*row, *(0,) * (8 - len(row))) for row in (shape, *strides)]
    return struct.pack(f"<ii{8 * len(rows)}q", len(shape), 0, *(value for row in rows for value in row))


def run_strided(library: ctypes.CDLL, plan: Plan, inputs: Sequence[Any], out: np.ndarray[Any, Any]) -> None:
    """Run the strided entry on arrays broadcast to the output's shape."""
    arrays = [np.broadcast_to(x, out.shape) if isinstance(x, np.ndarray) else x for x in inputs]
    strides = [
        [s // x.itemsize for s in x.strides] if isinstance(x, np.ndarray) else [0] * out.ndim for x in (out, *arrays)
    ]
    arguments = [struct.pack("<q", out.ctypes.data), *(pack_operand(plan, x) for x in arrays)]
    arguments += [struct.pack("<q", out.size), pack_nd(out.shape, strides)]
    launch(library, plan.entry_nd, -(-out.size // plan.per_block_nd), THREADS, arguments)


def numpy_type(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a named element type."""
    return to_numpy_dtype(dtype(name))
