"""Source to image: memory, then bundles, then the disk cache, then NVRTC."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import DeviceError, KernelCompileError
from pygpukit.jit.bundle import find_in_bundles
from pygpukit.jit.c_library import C_HEADERS
from pygpukit.jit.cache import open_cache
from pygpukit.jit.entry import Entry, ImageKind, image_key
from pygpukit.jit.headers import builtin_headers, used_headers
from pygpukit.jit.nvrtc import expected_version, open_nvrtc
from pygpukit.jit.progress import progress
from pygpukit.jit.toolkit import find_headers, folders_in_options, missing_headers

__all__ = [
    "Image",
    "arch_for",
    "compile_for_bundle",
    "compile_image",
    "file_name",
    "forget_images",
    "macro_texts",
    "target_of",
]

_ARCH = re.compile(r"[0-9]{2,3}[af]?")
_ARCH_OPTION = re.compile(r"--?(?:gpu-architecture|arch)\b.*")
_STD_OPTION = re.compile(r"--?std\b.*")
_FMAD_OPTION = re.compile(r"--?fmad\b.*")
_INCLUDE_OPTION = re.compile(r"-I.*|--?include-path\b.*|--?pre-include\b.*|-include\b.*")
_MAX_IMAGES = 256


class Image(NamedTuple):
    """A compiled image.

    Attributes
    ----------
    image : bytes
        What the driver loads: a cubin, or PTX with its closing zero byte.
    lowered : mapping of str to str
        Name expression to the name of its entry point.
    log : str
        Warnings of the compiler.
    cached : str or None
        Where it came from: ``"memory"``, ``"bundle"``, ``"disk"``, or None when it was compiled now.
    """

    image: bytes
    lowered: Mapping[str, str]
    log: str
    cached: Literal["memory", "bundle", "disk"] | None


class _Request(NamedTuple):
    """One compile with everything that decides its result."""

    source: str
    # Macros stand before the source and not among the options, where they would also hold in NVRTC's own headers:
    # a macro named T would break those.
    preamble: str
    name: str
    arch: str
    options: tuple[str, ...]
    headers: Mapping[str, str]
    expressions: tuple[str, ...]
    kind: ImageKind
    # Something outside the key has a say (folders of headers, NVRTC's variables): right for this process only.
    private: bool
    # Folders of the toolkit's headers, and what changes when these do: the key has the latter.
    folders: tuple[str, ...]
    identities: tuple[str, ...]

    def key(self, compiler: str) -> str:
        return image_key(
            self.preamble + self.source,
            headers=self.headers,
            options=(*self.options, *self.identities),
            arch=self.arch,
            expressions=self.expressions,
            kind=self.kind,
            compiler=compiler,
        )


_images: OrderedDict[str, Image] = OrderedDict()
_images_lock = threading.Lock()
_compiling: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


def arch_for(capability: tuple[int, int]) -> str:
    """Architecture to compile for on a device of this compute capability.

    From 9.0 on it is the variant with the architecture's own instructions, since the image runs on this device only.

    Examples
    --------
    >>> arch_for((8, 6)), arch_for((9, 0))
    ('86', '90a')
    """
    major, minor = capability
    if major < 8:
        raise DeviceError(f"compute capability {major}.{minor} is not supported: PyGPUkit needs 8.0 or newer")
    return f"{major}{minor}{'a' if major >= 9 else ''}"


def target_of(device: _native.Device) -> tuple[str, ImageKind]:
    """Architecture and kind of image a device runs: machine code on a GPU, PTX on the CPU device's emulator."""
    return arch_for(device.capability), "cubin" if device.kind == "cuda" else "ptx"


def file_name(name: str) -> str:
    """Name the compiler knows a kernel's text by, and its messages and reports use.

    Examples
    --------
    >>> file_name("add<float>")
    'add_float_.cu'
    """
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:100] + ".cu"


def macro_texts(defines: Mapping[str, object] | None) -> dict[str, str]:
    """Macros and their values as C++ text, in the order of their names; None stands for a macro without a value.

    Examples
    --------
    >>> macro_texts({"T": "float", "FAST": True, "DEBUG": None})
    {'DEBUG': '', 'FAST': '1', 'T': 'float'}
    """
    texts = {}
    for name, value in sorted((defines or {}).items()):
        text = "" if value is None else str(int(value)) if isinstance(value, bool) else str(value)
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"defines has {name!r}, which is not a macro's name")
        if "\n" in text or text.endswith("\\"):
            raise ValueError(f"the value of {name!r} in defines must be one line, not {text!r}")
        texts[name] = text
    return texts


def compile_image(
    source: str,
    *,
    name: str,
    arch: str,
    options: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    defines: Mapping[str, object] | None = None,
    expressions: Sequence[str] = (),
    kind: ImageKind = "cubin",
) -> Image:
    """Compile CUDA C++, or find the image of an earlier compile.

    Parameters
    ----------
    source : str
        CUDA C++ text.
    name : str
        Name for messages and listings.
    arch : str
        Architecture, such as ``"80"`` or ``"90a"``.
    options : sequence of str, optional
        Options for NVRTC, added to ours (C++17, fused multiply-add, unmarked functions on the device).
    headers : mapping of str to str, optional
        Texts for ``#include``, added to `pygpukit.jit.headers.builtin_headers`.
    defines : mapping of str to object, optional
        Macros.
    expressions : sequence of str, optional
        Entry points that need their lowered name: templates, and kernels without ``extern "C"``.
    kind : str, optional
        ``"cubin"``, or ``"ptx"`` for the emulator.

    Raises
    ------
    KernelCompileError
        If the source does not compile; the text shows the lines.
    NvrtcNotFoundError
        If it must be compiled and NVRTC is not there.
    """
    request = _request(source, name, arch, options, headers, defines, expressions, kind)
    key = request.key("")
    image = _remembered(key)
    if image is None:
        # Threads that ask for the same image wait for the first of them.
        with _lock_of(key):
            image = _remembered(key)
            if image is None:
                bundled = None if request.private else find_in_bundles(key)
                image = _image(bundled, "bundle") if bundled is not None else _image(*_load_or_compile(request))
                with _images_lock:
                    _images[key] = image
                    while len(_images) > _MAX_IMAGES:
                        _images.popitem(last=False)
    return image


def compile_for_bundle(source: str, *, name: str, arch: str, headers: Mapping[str, str]) -> Entry:
    """Compile a built-in kernel as a bundle holds it: keyed without the compiler, and the same bytes every time."""
    request = _request(source, name, arch, (), headers, None, (), "cubin")
    entry, _ = _load_or_compile(request)
    return entry._replace(key=request.key(""), name=name, log="", created=0.0)


def forget_images() -> None:
    """Forget the images kept in memory, so that the next compile looks at bundles and the disk again."""
    with _images_lock:
        _images.clear()


def _request(
    source: str,
    name: str,
    arch: str,
    options: Sequence[str],
    headers: Mapping[str, str] | None,
    defines: Mapping[str, object] | None,
    expressions: Sequence[str],
    kind: ImageKind,
) -> _Request:
    if isinstance(options, str):
        raise TypeError(f"options must be a sequence of texts, not one text: use options=[{options!r}]")
    if _ARCH.fullmatch(arch) is None:
        raise ValueError(f"{arch!r} is not an architecture: use '80', '86', '89', '90a', '100a', '120a', ...")
    if kind not in ("cubin", "ptx"):
        raise ValueError(f"kind={kind!r} is not valid: use 'cubin' or 'ptx'")
    given = list(options)
    macros = [f"#define {macro} {text}\n" for macro, text in macro_texts(defines).items()]
    preamble = "".join([*macros, "#line 1\n"]) if macros else ""
    chosen = next((option for option in given if _ARCH_OPTION.fullmatch(option)), None)
    if chosen is not None:
        raise ValueError(f"options has {chosen!r}, but the architecture is that of the device; leave it out")
    ours = ["--gpu-architecture=" + ("sm_" if kind == "cubin" else "compute_") + arch, "-default-device"]
    if kind == "ptx":
        # The emulator's reports name source lines.
        ours.append("--generate-line-info")
    if not any(_STD_OPTION.fullmatch(option) for option in given):
        ours.append("--std=c++17")
    if not any(_FMAD_OPTION.fullmatch(option) for option in given):
        ours.append("--fmad=true")
    given_folders = folders_in_options(given)
    # NVRTC adds options from these variables by itself.
    private = any(_INCLUDE_OPTION.fullmatch(option) for option in given) or any(
        os.environ.get(f"NVRTC_{place}_FLAGS") for place in ("PREPEND", "APPEND")
    )
    has_c_library = any((folder / name).is_file() for folder in given_folders for name in ("stdint.h", "cstdint"))
    texts = {**builtin_headers(with_c_library=not has_c_library), **(headers or {})}
    used = used_headers(source, texts)
    sets = find_headers(missing_headers(source, used, given_folders))
    if sets and not has_c_library:
        # The toolkit's headers may include them too.
        used = {**C_HEADERS, **used}
    return _Request(
        source,
        preamble,
        name,
        arch,
        (*ours, *given),
        MappingProxyType(used),
        tuple(expressions),
        kind,
        private,
        tuple(f"-I{folder}" for found in sets for folder in found.folders),
        tuple(f"headers={found.identity}" for found in sets),
    )


def _remembered(key: str) -> Image | None:
    with _images_lock:
        image = _images.get(key)
        if image is None:
            return None
        _images.move_to_end(key)
        return image if image.cached == "memory" else image._replace(cached="memory")


def _lock_of(key: str) -> threading.Lock:
    with _images_lock:
        lock = _compiling.get(key)
        if lock is None:
            lock = _compiling[key] = threading.Lock()
        return lock


def _load_or_compile(request: _Request) -> tuple[Entry, Literal["disk"] | None]:
    cache = None if request.private else open_cache()
    if cache is None:
        return _compile(request), None
    key = request.key(_compiler_name(expected_version()))
    entry = cache.get(key)
    if entry is not None:
        return entry, "disk"
    # Another copy may be loaded already, by another library and of another version; it is the one that is used.
    key = request.key(_compiler_name(open_nvrtc().version))
    with cache.lock(key):
        # Another process may have compiled it while we waited.
        entry = cache.get(key)
        if entry is not None:
            return entry, "disk"
        entry = _compile(request)
        cache.put(entry)
    return entry, None


def _image(entry: Entry, cached: Literal["bundle", "disk"] | None) -> Image:
    return Image(entry.image, MappingProxyType(dict(entry.lowered)), entry.log, cached)


def _compiler_name(version: tuple[int, int]) -> str:
    return f"nvrtc {version[0]}.{version[1]}"


def _compile(request: _Request) -> Entry:
    version = open_nvrtc().version
    file = file_name(request.name)
    target = f"sm_{request.arch}" if request.kind == "cubin" else f"compute_{request.arch}"
    try:
        with progress(f"compiling kernel '{request.name}' for {target} ..."):
            result = _native.nvrtc_compile(
                request.preamble + request.source,
                file,
                [*request.options, *request.folders],
                dict(request.headers),
                list(request.expressions),
                request.kind,
            )
    except KernelCompileError as error:
        from pygpukit.jit.diagnostics import compile_error

        raise compile_error(
            error.log or str(error),
            name=request.name,
            file=file,
            source=request.source,
            headers=request.headers,
            options=(*request.options, *request.folders),
            major=version[0],
        ) from None
    image = bytes(result.image)
    if request.kind == "ptx" and not image.endswith(b"\0"):
        image += b"\0"
    return Entry(
        key=request.key(_compiler_name(version)),
        name=request.name,
        arch=request.arch,
        kind=request.kind,
        image=image,
        lowered=dict(result.lowered),
        log=result.log,
        created=time.time(),
    )
