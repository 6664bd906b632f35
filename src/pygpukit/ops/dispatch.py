"""What the operators ask Python for: kernels, casts where there is no kernel, and NumPy functions on the CPU device.

Plans, references and the compiler are imported when first asked for: importing the package stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, Device, GPUArray, Kernel
from pygpukit.array.creation import empty
from pygpukit.errors import NvrtcNotFoundError
from pygpukit.ops import planner
from pygpukit.ops.operands import as_array

if TYPE_CHECKING:
    from pygpukit.ops.promotion import Input

_Plan: TypeAlias = tuple[
    DataType,
    DataType,
    DataType,
    int,
    tuple[int, int, int],
    tuple[Kernel, Kernel] | None,
    tuple[Callable[..., Any], bool] | None,
]


def _plan_hook(name: str, inputs: tuple[Input, ...], out: DataType | None, device: Device) -> _Plan:
    """Types of an operator, and its kernels or NumPy function on a device; asked once per combination of types.

    Neither means that `apply_by_casts` runs the operator.
    """
    from pygpukit.ops.elementwise.plan import THREADS, plan, uniform
    from pygpukit.ops.elementwise.table import TABLE

    made = plan(name, inputs, out)
    kernels, host = None, None
    if device.kind == "cpu":
        from pygpukit.ops.elementwise.reference import prepare

        host = prepare(name, inputs, made.out)
    else:
        try:
            dense, strided = builtin_kernels(made.entry, made.source, (made.entry, made.entry_nd), device)
            kernels = (dense, strided)
        except NvrtcNotFoundError:
            if TABLE[name].rule == "cast" or plan(name, uniform(name, inputs)).entry == made.entry:
                raise
    blocks = (THREADS, made.per_block, made.per_block_nd)
    return made.common, made.compute, made.out, made.vector, blocks, kernels, host


def builtin_kernels(name: str, source: str, entries: tuple[str, ...], device: Device) -> list[Kernel]:
    """Compile a built-in source for a device, or find its image, and load its entries.

    Every built-in kernel starts with ``await_predecessor()``, so that graphs may launch it early.

    Raises
    ------
    NvrtcNotFoundError
        If it is in no bundle and cannot be compiled.
    """
    from pygpukit.jit.compiler import compile_image, target_of

    arch, kind = target_of(device)
    try:
        image = compile_image(source, name=name, arch=arch, kind=kind)
    except NvrtcNotFoundError as error:
        raise NvrtcNotFoundError(
            f"{error}\nA bundle of compiled kernels would also do, but none here has '{name}' for sm_{arch}: make one "
            f"where NVRTC is (pygpukit cache export FILE --arch {arch}), then pygpukit cache import FILE."
        ) from None
    return _native.load_kernels(image.image, list(entries), name, device, arch, True)


def _blocks_hook(*call: Any) -> None:
    """A NumPy function on arrays whose elements lie in different orders."""
    from pygpukit.ops.elementwise.reference import in_blocks

    in_blocks(*call)


def apply_by_casts(name: str, inputs: tuple[Any, ...], out: GPUArray) -> None:
    """An operator on CUDA without a kernel for these types: casts around the kernel for equal types.

    Bundles hold the casts between all types, and every operator on equal ones.
    """
    from pygpukit.ops.elementwise.plan import plan, uniform
    from pygpukit.ops.elementwise.reference import input_of

    wanted = uniform(name, tuple(x.dtype if isinstance(x, GPUArray) else input_of(x) for x in inputs))
    operands = [x if isinstance(to, str) else x.astype(to, copy=False) for x, to in zip(inputs, wanted, strict=True)]
    result = plan(name, wanted).out
    target = out if out.dtype is result else empty(out.shape, result, device=out.device)
    _native.apply(name, operands, target)
    if target is not out:
        _native.apply("copy", (target,), out)


def _coerce_hook(name: str, value: Any, device: Device) -> GPUArray:
    """An operand that is neither an array nor a Python number beside one, as an array."""
    return as_array(value, f"{name}()", device)


def _places_hook(condition: Any) -> Any:
    """`where` of a condition alone."""
    from pygpukit.ops.index.masks import nonzero

    return nonzero(condition)


def _extended_hook(*call: Any) -> GPUArray:
    """A call with keywords that NumPy has and launches do not."""
    from pygpukit.ops.elementwise.ufunc_methods import extended

    return extended(*call)


def install() -> None:
    """Give the native operators their Python side."""
    planner.install()
    _native.set_operator_hooks(_plan_hook, _blocks_hook, apply_by_casts, _coerce_hook, _places_hook, _extended_hook)
