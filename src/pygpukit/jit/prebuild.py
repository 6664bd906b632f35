"""Many kernels at once: compile units in a pool of processes, to warm the cache or to write a bundle."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pygpukit.config import read_settings
from pygpukit.jit.bundle import BundleInfo, write_bundle
from pygpukit.jit.compiler import compile_for_bundle
from pygpukit.jit.entry import Entry

__all__ = ["Unit", "compile_units", "compiles_for", "export_bundle"]

_headers: Mapping[str, str] = {}


class Unit(Protocol):
    """A source that compiles to one image; its entry points are ``extern "C"``.

    One that does not compile for every architecture has ``architectures``: the lowest, such as ``"80"``, or the only
    one, such as ``"90a"``.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...


def compiles_for(unit: Unit, arch: str) -> bool:
    """Does a source compile for an architecture?

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> unit = SimpleNamespace(name="k", source="", architectures="90a")
    >>> compiles_for(unit, "90a"), compiles_for(unit, "100a")
    (True, False)
    """
    wanted = str(getattr(unit, "architectures", "0"))
    return int(arch.rstrip("af")) >= int(wanted) if wanted.isdigit() else arch == wanted


def compile_units(
    units: Iterable[Unit], arch: Sequence[str], *, headers: Mapping[str, str] | None = None, jobs: int | None = None
) -> list[Entry]:
    """Compile every unit for every architecture it is for, through the disk cache; needs NVRTC and no GPU.

    Parameters
    ----------
    units : iterable of Unit
        What to compile.
    arch : sequence of str
        Architectures, such as ``["80", "90a"]``.
    headers : mapping of str to str, optional
        Texts for ``#include``.
    jobs : int, optional
        Processes at a time; one per processor by default, and none but this one for 1.

    Raises
    ------
    KernelCompileError
        If a unit does not compile.
    NvrtcNotFoundError
        If NVRTC is not there.
    """
    if isinstance(arch, str):
        raise TypeError(f"arch must be a sequence of texts, not one text: use arch=[{arch!r}]")
    tasks = [
        (unit.name, unit.source, target)
        for target in dict.fromkeys(arch)
        for unit in units
        if compiles_for(unit, target)
    ]
    count = min(jobs or _processors(), len(tasks)) or 1
    text = f"compiling {len(tasks)} kernels"
    if count == 1:
        with _progress_bar(text, len(tasks)) as advance:
            return [_counted(advance, task, headers or {}) for task in tasks]
    # A forked child could not use a driver its parent has initialised.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(dict(headers or {}),))
    try:
        with _progress_bar(text, len(tasks)) as advance:
            futures: list[Future[Entry]] = [pool.submit(_work, *task) for task in tasks]
            for future in as_completed(futures):
                future.result()
                advance()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return [future.result() for future in futures]


def export_bundle(
    path: Path,
    units: Iterable[Unit],
    arch: Sequence[str],
    *,
    headers: Mapping[str, str] | None = None,
    jobs: int | None = None,
) -> BundleInfo:
    """Compile units as `compile_units` does and write them to a bundle."""
    return write_bundle(path, compile_units(units, arch, headers=headers, jobs=jobs))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(headers: Mapping[str, str]) -> None:
    global _headers
    _headers = headers
    # One bar speaks for all.
    os.environ["PYGPUKIT_QUIET"] = "1"


def _work(name: str, source: str, arch: str) -> Entry:
    return compile_for_bundle(source, name=name, arch=arch, headers=_headers)


def _counted(advance: Callable[[], None], task: tuple[str, str, str], headers: Mapping[str, str]) -> Entry:
    name, source, arch = task
    entry = compile_for_bundle(source, name=name, arch=arch, headers=headers)
    advance()
    return entry


@contextmanager
def _progress_bar(text: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, one line elsewhere, nothing with PYGPUKIT_QUIET=1."""
    if read_settings().quiet or sys.stderr is None:
        yield lambda: None
        return
    if not sys.stderr.isatty():
        print(f"pygpukit: {text} ...", file=sys.stderr, flush=True)
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)
