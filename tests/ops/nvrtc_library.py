"""NVRTC through ctypes: enough to check that the sources compile, with no other part of the package."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pygpukit.ops.source import headers


def installed() -> Path | None:
    """Return the newest NVRTC of the installed wheels, or None."""
    spec = find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    found = sorted(p for f in folders for p in f.glob("cu1*/lib/libnvrtc.so.*"))
    return found[-1] if found else None


@cache
def library() -> ctypes.CDLL:
    """Open it, its builtins first: the oldest wheels do not find them by themselves."""
    path = installed()
    assert path is not None
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(path))


def compile_source(source: str, architecture: str, options: tuple[str, ...] = (), *, output: bool = True) -> bytes:
    """Return the cubin (for ``sm_..``) or PTX (for ``compute_..``) of a source that includes only our headers."""
    nvrtc = library()
    names, texts = list(headers()), list(headers().values())
    program = ctypes.c_void_p()

    def strings(values: list[str]) -> ctypes.Array[ctypes.c_char_p]:
        return (ctypes.c_char_p * len(values))(*(v.encode("ascii") for v in values))

    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode("ascii"), b"unit.cu", len(names), strings(texts), strings(names)
    )
    try:
        flags = [f"--gpu-architecture={architecture}", "-default-device", *options]
        status = nvrtc.nvrtcCompileProgram(program, len(flags), strings(flags))
        assert status == 0, f"{architecture}: {_read(nvrtc, program, 'ProgramLog').decode()[:3000]}\n{source[-1500:]}"
        if not output:
            return b""
        return _read(nvrtc, program, "CUBIN" if architecture.startswith("sm_") else "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw
