"""Memory sizes and environment settings: every ``PYGPUKIT_*`` variable is read and checked here."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Settings", "format_size", "parse_size", "read_settings"]

_T = TypeVar("_T")

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_LARGEST_SIZE = 2**63 - 1
_MOST_SMS = 1024

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def parse_size(size: SupportsIndex | str) -> int:
    """Number of bytes meant by an int or by a text such as ``"512MB"`` or ``"1.5GiB"``.

    KB, MB, GB, TB and PB are powers of 1000; KiB, MiB, GiB, TiB and PiB are powers of 1024. Case and spaces
    before the unit do not matter. A fraction of a byte is dropped.

    Parameters
    ----------
    size : int or str
        The size to read.

    Returns
    -------
    int
        Bytes, from 0 to ``2**63 - 1``.

    Raises
    ------
    ValueError
        If the text is not a size, or the size is negative or too large.
    TypeError
        If `size` is neither an int nor a str.

    Examples
    --------
    >>> parse_size("512MB"), parse_size("1GiB"), parse_size(4096)
    (512000000, 1073741824, 4096)
    """
    number: int
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        unit = _SIZE_UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(
                f"{size!r} is not a memory size: use bytes as a plain number, or a text such as "
                "'512MB' (powers of 1000) or '1GiB' (powers of 1024)"
            )
        whole, _, fraction = match[1].partition(".")
        # Exact in integers: a float would lose bytes of a large size.
        number = int(whole + fraction) * unit // 10 ** len(fraction)
    elif isinstance(size, bool):
        raise TypeError(f"a memory size must be an int or a str such as '512MB', not {size!r}")
    else:
        try:
            number = operator.index(size)
        except TypeError:
            raise TypeError(
                f"a memory size must be an int or a str such as '512MB', not {type(size).__name__}"
            ) from None
    if not 0 <= number <= _LARGEST_SIZE:
        raise ValueError(f"the memory size {size!r} is out of range: it must lie between 0 and 2**63 - 1 bytes")
    return number


def format_size(size: int) -> str:
    """Bytes as a person writes them, in powers of 1024.

    Parameters
    ----------
    size : int
        Bytes, not negative.

    Returns
    -------
    str
        A text that `parse_size` reads back, up to rounding.

    Examples
    --------
    >>> format_size(1023), format_size(4096), format_size(3 * 2**29)
    ('1023 B', '4.0 KiB', '1.5 GiB')
    """
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


class Settings(NamedTuple):
    """What the environment asks for; the defaults are those of an empty environment.

    Attributes
    ----------
    device : str or None
        ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"emulated"``; None takes CUDA when it is there (PYGPUKIT_DEVICE).
    pool : str
        ``"arena"``, or ``"none"`` to give every array its own allocation (PYGPUKIT_POOL).
    eviction : bool
        Arrays of the default pool move to the host when memory is short (PYGPUKIT_EVICTION).
    sync : bool
        Wait after every launch, to find the kernel that faults (PYGPUKIT_SYNC).
    cache : bool
        Use the disk cache of compiled kernels (PYGPUKIT_CACHE).
    cache_dir : Path or None
        Its folder; None means the platform's cache folder (PYGPUKIT_CACHE_DIR).
    cache_size : int
        Its largest size in bytes (PYGPUKIT_CACHE_SIZE).
    cache_ttl : float or None
        Seconds after which an entry is too old; None means never (PYGPUKIT_CACHE_TTL).
    quiet : bool
        No progress lines on stderr (PYGPUKIT_QUIET).
    deferred : int or None
        Seed of the order in which the CPU device runs queued work; None runs it at once (PYGPUKIT_STREAMS).
    nvrtc, cublaslt, cusolver, libcuda : Path or None
        Libraries to open instead of searching (PYGPUKIT_NVRTC, PYGPUKIT_CUBLASLT, PYGPUKIT_CUSOLVER, PYGPUKIT_LIBCUDA).
    bundle : tuple of Path
        Bundles of compiled kernels to search first (PYGPUKIT_BUNDLE).
    cpu_memory : int or None
        Memory of the CPU device in bytes; None means the machine's (PYGPUKIT_CPU_MEMORY).
    cpu_sms : int or None
        SMs of the CPU device, each a worker thread of its kernels; None means one per core (PYGPUKIT_CPU_SMS).
    emulated_capability : tuple of int
        Compute capability the CPU device compiles kernels for: (8, 0) or (9, 0) (PYGPUKIT_EMULATED_ARCH).
    check : bool
        Look for errors in every kernel the CPU device runs (PYGPUKIT_CHECK).
    kernel_timeout : int or None
        Seconds after which the CPU device ends a kernel; None never does (PYGPUKIT_KERNEL_TIMEOUT).
    pinned_limit : int or None
        Most bytes of page-locked host memory for a device; None means a quarter of the machine's memory
        (PYGPUKIT_PINNED_LIMIT).
    spill_limit : int or None
        Most other host memory for evicted arrays; None means a quarter of the machine's (PYGPUKIT_SPILL_LIMIT).
    leaks : bool
        Say at the end which arrays are alive, and where they were made (PYGPUKIT_LEAKS).
    status : bool
        Schedulers answer ``pygpukit status`` and ``pygpukit top`` (PYGPUKIT_STATUS).
    plugins : bool
        Load plugins that packages announce by entry points (PYGPUKIT_PLUGINS).
    allow_tf32 : bool
        float32 products may round their operands to tf32 (PYGPUKIT_ALLOW_TF32).
    no_tf32 : bool
        They may not, whatever else asks for it (PYGPUKIT_NO_TF32).
    tf32_v2 : bool
        A name of earlier versions, without effect (PYGPUKIT_TF32_V2).
    """

    device: str | None = None
    pool: str = "arena"
    eviction: bool = False
    sync: bool = False
    cache: bool = True
    cache_dir: Path | None = None
    cache_size: int = 512 * 10**6
    cache_ttl: float | None = None
    quiet: bool = False
    deferred: int | None = None
    nvrtc: Path | None = None
    cublaslt: Path | None = None
    cusolver: Path | None = None
    libcuda: Path | None = None
    bundle: tuple[Path, ...] = ()
    cpu_memory: int | None = None
    cpu_sms: int | None = None
    emulated_capability: tuple[int, int] = (8, 0)
    check: bool = False
    kernel_timeout: int | None = 600
    pinned_limit: int | None = None
    spill_limit: int | None = None
    leaks: bool = False
    status: bool = True
    plugins: bool = True
    allow_tf32: bool = False
    no_tf32: bool = False
    tf32_v2: bool = False


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check the ``PYGPUKIT_*`` variables; an empty value counts as unset.

    Parameters
    ----------
    environ : mapping of str to str, optional
        Where to read them; the process environment by default.

    Returns
    -------
    Settings
        The settings in force.

    Raises
    ------
    ValueError
        If a variable has a value it cannot have; the text names the variable, the value and what is accepted.

    Examples
    --------
    >>> read_settings({"PYGPUKIT_DEVICE": "cpu", "PYGPUKIT_CACHE_SIZE": "1GB"}).cache_size
    1000000000
    """
    variables = os.environ if environ is None else environ

    def read(suffix: str, parse: Callable[[str], _T], accepted: str, default: _T) -> _T:
        name = f"PYGPUKIT_{suffix}"
        text = variables.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            raise ValueError(f"{name}={text!r} is not valid: use {accepted}") from None

    flag = "1 or 0 (also true/false, yes/no, on/off)"
    default = Settings()
    return Settings(
        device=read("DEVICE", _device, "cpu, cuda, cuda:N (N from 0) or emulated", default.device),
        pool=read("POOL", _pool, "arena or none", default.pool),
        eviction=read("EVICTION", _flag, flag, default.eviction),
        sync=read("SYNC", _flag, flag, default.sync),
        cache=read("CACHE", _flag, flag, default.cache),
        cache_dir=read("CACHE_DIR", _path, "a folder", default.cache_dir),
        cache_size=read("CACHE_SIZE", parse_size, "a size such as 512MB or 1GiB", default.cache_size),
        cache_ttl=read("CACHE_TTL", _seconds, "seconds as a positive number", default.cache_ttl),
        quiet=read("QUIET", _flag, flag, default.quiet),
        deferred=read("STREAMS", _streams, "inline, deferred or deferred:SEED", default.deferred),
        nvrtc=read("NVRTC", _path, "the path of the NVRTC library", default.nvrtc),
        cublaslt=read("CUBLASLT", _path, "the path of the cuBLASLt library", default.cublaslt),
        cusolver=read("CUSOLVER", _path, "the path of the cuSOLVER library", default.cusolver),
        libcuda=read("LIBCUDA", _path, "the path of the CUDA driver library", default.libcuda),
        bundle=read("BUNDLE", _paths, f"bundle files separated by {os.pathsep!r}", default.bundle),
        cpu_memory=read("CPU_MEMORY", _memory, "a size above 0 such as 8GiB", default.cpu_memory),
        cpu_sms=read("CPU_SMS", _sms, f"a whole number from 1 to {_MOST_SMS}", default.cpu_sms),
        emulated_capability=read("EMULATED_ARCH", _emulated_arch, "80 or 90a", default.emulated_capability),
        check=read("CHECK", _flag, flag, default.check),
        kernel_timeout=read("KERNEL_TIMEOUT", _timeout, "whole seconds, 0 for no limit", default.kernel_timeout),
        pinned_limit=read("PINNED_LIMIT", parse_size, "a size such as 512MB or 0", default.pinned_limit),
        spill_limit=read("SPILL_LIMIT", parse_size, "a size such as 4GiB or 0", default.spill_limit),
        leaks=read("LEAKS", _flag, flag, default.leaks),
        status=read("STATUS", _flag, flag, default.status),
        plugins=read("PLUGINS", _flag, flag, default.plugins),
        allow_tf32=read("ALLOW_TF32", _flag, flag, default.allow_tf32),
        no_tf32=read("NO_TF32", _flag, flag, default.no_tf32),
        tf32_v2=read("TF32_V2", _flag, flag, default.tf32_v2),
    )


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError(text)


def _device(text: str) -> str:
    lowered = text.lower()
    match = re.fullmatch(r"cuda:([0-9]{1,4})", lowered, re.ASCII)
    if match:
        return f"cuda:{int(match[1])}"
    if lowered in ("cpu", "cuda", "emulated"):
        return lowered
    raise ValueError(text)


def _emulated_arch(text: str) -> tuple[int, int]:
    known = {"80": (8, 0), "90a": (9, 0)}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def _timeout(text: str) -> int | None:
    seconds = int(text)
    if not 0 <= seconds < 2**31:
        raise ValueError(text)
    return seconds or None


def _pool(text: str) -> str:
    lowered = text.lower()
    if lowered in ("arena", "none"):
        return lowered
    raise ValueError(text)


def _streams(text: str) -> int | None:
    match = re.fullmatch(r"(inline|deferred(?::([0-9]{1,18}))?)", text.lower(), re.ASCII)
    if match is None:
        raise ValueError(text)
    return None if match[1] == "inline" else int(match[2] or 0)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(text)
    return seconds


def _memory(text: str) -> int | None:
    size = parse_size(text)
    if size == 0:
        raise ValueError(text)
    return size


def _sms(text: str) -> int | None:
    count = int(text)
    if not 1 <= count <= _MOST_SMS:
        raise ValueError(text)
    return count


def _path(text: str) -> Path | None:
    # Imported on use, as in the other modules that `import pygpukit` loads: pathlib takes several milliseconds.
    from pathlib import Path

    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # "~name" where no user has that name
        raise ValueError(text) from error


def _paths(text: str) -> tuple[Path, ...]:
    found = (_path(part) for part in text.split(os.pathsep) if part)
    return tuple(path for path in found if path is not None)
