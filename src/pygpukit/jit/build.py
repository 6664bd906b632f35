"""One kernel from its text: signature, image, loaded entry point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pygpukit import _pygpukit_rust as _native
from pygpukit.jit.compiler import compile_image, file_name, macro_texts, target_of
from pygpukit.jit.ptx import ptx_entry
from pygpukit.jit.signature import find_signature

__all__ = ["kernel_from_ptx", "kernel_from_source"]


def kernel_from_source(
    device: _native.Device,
    source: str,
    func: str | None,
    options: Sequence[str],
    defines: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
    check: bool = False,
    seed: int | None = None,
) -> _native.Kernel:
    """Compile and load the kernel that `func` names; see `pygpukit.jit`."""
    signature = find_signature(source, func, _macros(options, defines), headers)
    arch, kind = target_of(device)
    image = compile_image(
        source,
        name=signature.name,
        arch=arch,
        options=options,
        headers=headers,
        defines=defines,
        expressions=() if signature.extern_c else (signature.name,),
        kind=kind,
    )
    entry = signature.name if signature.extern_c else image.lowered[signature.name]
    codes = [(param.name, param.code) for param in signature.params]
    return _native.load_kernel(
        image.image,
        entry,
        signature.name,
        codes,
        arch=arch,
        source=source,
        file=file_name(signature.name),
        check=check,
        seed=seed,
    )


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
