"""What the native operators ask Python for: plans with compiled kernels, and the NumPy implementation on the CPU.

Plans, references and the compiler are imported when first asked for: importing the package stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, Device, GPUArray, Kernel
from pygpukit.array.bridge import from_numpy, host_view

if TYPE_CHECKING:
    from pygpukit.ops.call import KernelCall
    from pygpukit.ops.promotion import Input

_Plan: TypeAlias = tuple[DataType, DataType, DataType, int, tuple[int, int, int], tuple[Kernel, Kernel] | None]


def _plan_hook(name: str, inputs: tuple[Input, ...], out: DataType | None, device: Device) -> _Plan:
    """Types and kernels of an operator on a device; asked once per combination of types."""
    from pygpukit.ops.plan import THREADS, plan

    made = plan(name, inputs, out)
    kernels = None
    if device.kind == "cuda":
        dense, strided = builtin_kernels(made.entry, made.source, (made.entry, made.entry_nd), device)
        kernels = (dense, strided)
    blocks = (THREADS, made.per_block, made.per_block_nd)
    return made.common, made.compute, made.out, made.vector, blocks, kernels


def builtin_kernels(name: str, source: str, entries: tuple[str, ...], device: Device) -> list[Kernel]:
    """Compile a built-in source for a device, or find its image, and load its entries.

    Every built-in kernel starts with ``await_predecessor()``, so that graphs may launch it early.
    """
    from pygpukit.jit.compiler import arch_for, compile_image

    arch = arch_for(device.capability)
    image = compile_image(source, name=name, arch=arch)
    return _native.load_kernels(image.image, list(entries), name, device, arch, True)


def _cpu_hook(name: str, inputs: tuple[Any, ...], out: GPUArray) -> Callable[[], None]:
    """The work of an operator on the CPU device, to be run in stream order."""
    from pygpukit.ops import reference

    operands = tuple(host_view(x) if isinstance(x, GPUArray) else x for x in inputs)
    return partial(reference.apply, name, operands, host_view(out))


def _coerce_hook(name: str, value: Any, device: Device) -> GPUArray:
    """An operand that is neither an array nor a Python number: NumPy scalars carry a type and become arrays."""
    if isinstance(value, np.generic):
        return from_numpy(value, device=device)
    hint = "pygpukit.from_numpy()" if isinstance(value, np.ndarray) else "pygpukit.asarray()"
    raise TypeError(f"{name}() takes GPUArrays and numbers, not {type(value).__name__}; convert it with {hint}")


def install() -> None:
    """Give the native operators their Python side."""
    _native.set_operator_hooks(_plan_hook, _cpu_hook, _coerce_hook)


def run(
    calls: Sequence[KernelCall],
    buffers: Mapping[str, GPUArray],
    device: Device,
) -> None:
    """Launch planned kernels on the current stream; pointer arguments are names in `buffers`, the output first."""
    for call in calls:
        kernel = _kernel(call.entry, call.source, device)
        arguments = [buffers[a] if isinstance(a, str) else a for a in call.arguments]
        kernel._launch(call.grid, call.block, arguments)


_kernels: dict[tuple[str, int, str], Kernel] = {}


def _kernel(entry: str, source: str, device: Device) -> Kernel:
    # An entry's name says its types, and its source follows from them.
    key = (device.kind, device.index, entry)
    found = _kernels.get(key)
    if found is None:
        found = _kernels.setdefault(key, builtin_kernels(entry, source, (entry,), device)[0])
    return found
