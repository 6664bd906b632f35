"""One kernel from its text: signature, image, loaded entry point."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import GPUKitError, KernelCompileError
from pygpukit.jit.compiler import compile_image, file_name, macro_texts, target_of
from pygpukit.jit.ptx import ptx_entry
from pygpukit.jit.signature import Signature, find_signature, parse_signatures
from pygpukit.jit.variables import parse_variables

if TYPE_CHECKING:
    from pygpukit.jit.modules import Module

__all__ = ["kernel_from_ptx", "kernel_from_source", "module_from_source"]


def kernel_from_source(
    device: _native.Device,
    source: str,
    func: str | None,
    options: Sequence[str],
    defines: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
    check: bool = False,
    seed: int | None = None,
    sliceable: bool | None = None,
) -> _native.Kernel:
    """Compile and load the kernel that `func` names; see `pygpukit.jit`."""
    macros = _macros(options, defines)
    signature = find_signature(source, func, macros, headers)
    _warn_of_shared_variables(source, macros, headers)
    # Who asks for it hears at once where it cannot be.
    made = _sliced(device, source, signature, options, defines, headers, sure=True) if sliceable else None

    def slicer() -> _native.Kernel | None:
        return made or _sliced_or_none(device, source, signature, options, defines, headers)

    # Blocks of different slices do not race, so a kernel is checked as a whole.
    ranges = None if check or sliceable is False else slicer
    return _load(device, source, source, signature, options, defines, headers, check, seed, ranges)


def module_from_source(
    device: _native.Device,
    source: str,
    kernels: Sequence[str],
    options: Sequence[str],
    defines: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
    check: bool = False,
    seed: int | None = None,
) -> Module:
    """Compile and load all kernels of a source together; see `pygpukit.module`."""
    from pygpukit.jit.modules import Module

    macros = _macros(options, defines)
    signatures = {s.name: s for s in parse_signatures(source, macros, headers) if not s.template_params}
    for name in kernels:
        signature = find_signature(source, name, macros, headers)
        signatures[signature.name] = signature
    if not signatures:
        find_signature(source, None, macros, headers)
    variables = {variable.name: variable for variable in parse_variables(source, macros, headers)}
    arch, kind = target_of(device)
    first = next(iter(signatures))
    image = compile_image(
        source,
        name=first,
        arch=arch,
        options=options,
        headers=headers,
        defines=defines,
        expressions=[
            *(name for name, signature in signatures.items() if not signature.extern_c),
            # The name of a variable in the image, which the compiler then keeps even where no kernel uses it.
            *(f"&{name}" for name in variables),
        ],
        kind=kind,
    )
    loaded = _native.load_module(image.image, device, arch, source, file_name(first), check, seed)
    entries = {name: (s, name if s.extern_c else image.lowered[name]) for name, s in signatures.items()}
    return Module(loaded, entries, {name: (v, image.lowered[f"&{name}"]) for name, v in variables.items()})


def _warn_of_shared_variables(source: str, macros: Mapping[str, str], headers: Mapping[str, str] | None) -> None:
    """Kernels that are compiled one by one have variables of their own, which a source with several may not expect."""
    if "__device__" not in source and "__managed__" not in source:
        return
    written = [variable for variable in parse_variables(source, macros, headers) if not variable.is_constant]
    kernels = {signature.name for signature in parse_signatures(source, macros, headers)} if written else set()
    if len(kernels) > 1:
        warnings.warn(
            f"the source has {len(kernels)} kernels and the variable '{written[0].name}' (line {written[0].line}): "
            "each kernel that jit() compiles has its own copy of it. gp.module(source) makes them share it",
            UserWarning,
            stacklevel=4,
        )


def _load(
    device: _native.Device,
    text: str,
    source: str,
    signature: Signature,
    options: Sequence[str],
    defines: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
    check: bool = False,
    seed: int | None = None,
    slicer: Callable[[], _native.Kernel | None] | None = None,
    added: Sequence[str] = (),
    accept: Callable[[bytes], None] | None = None,
) -> _native.Kernel:
    """Compile a text that was made of `source`, and load the kernel, which takes the `added` numbers too.

    `accept` sees the image before, and may raise.
    """
    arch, kind = target_of(device)
    image = compile_image(
        text,
        name=signature.name,
        arch=arch,
        options=options,
        headers=headers,
        defines=defines,
        expressions=() if signature.extern_c else (signature.name,),
        kind=kind,
    )
    if accept is not None:
        accept(image.image)
    entry = signature.name if signature.extern_c else image.lowered[signature.name]
    codes = [(param.name, param.code) for param in signature.params] + [(name, "u32") for name in added]
    return _native.load_kernel(
        image.image,
        entry,
        signature.name,
        codes,
        device=device,
        arch=arch,
        source=source,
        file=file_name(signature.name),
        check=check,
        seed=seed,
        slicer=slicer,
    )


def _sliced(
    device: _native.Device,
    source: str,
    signature: Signature,
    options: Sequence[str],
    defines: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
    sure: bool,
) -> _native.Kernel:
    """The kernel that runs a range of blocks."""
    from pygpukit.jit.slicing import SLICE_PARAMS, NotSliceableError, refuse_state, sliced_source

    macros = _macros(options, defines)
    try:
        text = sliced_source(source, signature, defines=macros, headers=headers, options=options, sure=sure)
        return _load(
            device, text, source, signature, options, defines, headers, added=SLICE_PARAMS, accept=refuse_state
        )
    except NotSliceableError as error:
        reason = str(error)
    except KernelCompileError as error:
        named = "_blockIdx" in str(error) or "_gridDim" in str(error)
        reason = "a function it may call looks at blockIdx or gridDim" if named else f"its variant is refused: {error}"
    raise KernelCompileError(
        f"kernel '{signature.name}' cannot be launched in ranges of blocks: {reason}; leave sliceable=True out",
        source=source,
        line=signature.line,
    )


def _sliced_or_none(
    device: _native.Device,
    source: str,
    signature: Signature,
    options: Sequence[str],
    defines: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
) -> _native.Kernel | None:
    """The same, or None for a kernel that is launched whole."""
    try:
        return _sliced(device, source, signature, options, defines, headers, sure=False)
    except (GPUKitError, OSError):
        # Nobody asked for it: whatever is wrong, the kernel itself is there.
        return None


def kernel_from_ptx(text: str, func: str | None) -> _native.Kernel:
    """Load the entry point that `func` names; see `pygpukit.load_ptx`."""
    entry, params = ptx_entry(text, func)
    # The driver reads PTX up to a zero byte.
    codes = [(param.name, param.code) for param in params]
    return _native.load_kernel(text.encode("utf-8") + b"\0", entry, entry, codes, source=text)


def _macros(options: Sequence[str], defines: Mapping[str, object] | None) -> dict[str, str]:
    """Macros the compiler will know, for reading the signature."""
    macros: dict[str, str] = {}
    for option in options:
        if option.startswith(("-D", "--define-macro=")):
            name, equals, value = option.removeprefix("-D").removeprefix("--define-macro=").partition("=")
            macros[name.strip()] = value if equals else "1"
    return macros | macro_texts(defines)
