"""`pygpukit cache`: list, warm, clear, export and import compiled kernels."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pygpukit import _pygpukit_rust as _native
from pygpukit.config import format_size
from pygpukit.errors import CacheError, DeviceError, GPUKitError
from pygpukit.jit.bundle import bundle_paths, import_bundle, imported_bundles
from pygpukit.jit.cache import CachedFile, DiskCache, open_cache
from pygpukit.jit.compiler import arch_for
from pygpukit.jit.prebuild import Unit, compile_units, export_bundle

__all__ = ["add_parser", "run"]

_COLUMNS = ("name", "arch", "size", "age", "last use")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``cache`` to the parser of ``pygpukit``; `run` carries it out."""
    parser = subparsers.add_parser("cache", help="list, warm, clear, export and import compiled kernels")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="show what is in the kernel cache")
    listing.add_argument("--json", action="store_true", help="print JSON")

    warm = actions.add_parser("warm", help="compile the built-in kernels into the cache")
    _add_build_options(warm, "architectures; that of the GPU by default")

    clear = actions.add_parser("clear", help="remove the compiled kernels")
    clear.add_argument("--bundles", action="store_true", help="remove imported bundles too")

    export = actions.add_parser("export", help="compile the built-in kernels into a bundle that runs without NVRTC")
    export.add_argument("path", type=Path, help="the zip file to write")
    _add_build_options(export, "architectures, such as 80 86 89 90a 100 120; that of the GPU by default")

    importing = actions.add_parser("import", help="check a bundle and use it from now on")
    importing.add_argument("path", type=Path, help="the zip file to read")


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit cache``; returns the exit status."""
    try:
        if args.action == "list":
            _list(args.json)
        elif args.action == "warm":
            _warm(args)
        elif args.action == "clear":
            _clear(args.bundles)
        elif args.action == "export":
            _export(args)
        else:
            info = import_bundle(args.path)
            print(f"{info.entries} kernels for {_archs(info.arch)} imported to {info.path}")
    except GPUKitError as error:
        print(f"pygpukit cache {args.action}: {error}", file=sys.stderr)
        return 1
    return 0


def _add_build_options(parser: argparse.ArgumentParser, arch_help: str) -> None:
    parser.add_argument("--arch", nargs="+", type=_arch, metavar="SM", help=arch_help)
    parser.add_argument(
        "--match", action="append", metavar="PATTERN",
        help="only kernels whose name fits, such as 'add_*'; may be given again",
    )  # fmt: skip
    parser.add_argument("--jobs", type=_jobs, metavar="N", help="processes at a time; one per processor by default")


def _arch(text: str) -> str:
    """``90``, ``9.0``, ``sm_90`` and ``90a`` all mean what a device of capability 9.0 asks for."""
    digits = text.removeprefix("sm_").replace(".", "").removesuffix("a")
    if not digits.isdecimal() or not 2 <= len(digits) <= 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not an architecture: use 80, 86, 89, 90a, 100, 120, ...")
    try:
        return arch_for((int(digits[:-1]), int(digits[-1])))
    except DeviceError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: use 1 or more")
    return int(text)


def _cache() -> DiskCache:
    cache = open_cache()
    if cache is None:
        raise CacheError("the kernel cache is off: unset PYGPUKIT_CACHE, or set PYGPUKIT_CACHE_DIR to a folder")
    return cache


def _list(as_json: bool) -> None:
    cache = _cache()
    files = cache.files()
    total = sum(file.size for file in files)
    if as_json:
        kernels = [
            {
                "key": file.summary.key,
                "name": file.summary.name,
                "arch": file.summary.arch,
                "size": file.size,
                "created": file.summary.created,
                "used": file.used,
            }
            for file in files
        ]
        bundles = [str(path) for path in bundle_paths()]
        content = {"folder": str(cache.folder), "limit": cache.limit, "size": total, "kernels": kernels}
        print(json.dumps({**content, "bundles": bundles}, indent=2))
        return
    now = time.time()
    _table([_row(file, now) for file in files])
    print(f"{len(files)} kernels, {format_size(total)} of {format_size(cache.limit)}, in {cache.folder}")
    for path in bundle_paths():
        print(f"bundle {path}")


def _row(file: CachedFile, now: float) -> tuple[str, ...]:
    summary = file.summary
    return (
        summary.name,
        f"sm_{summary.arch}",
        format_size(file.size),
        _age(now - summary.created),
        _age(now - file.used),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*_COLUMNS)
        for row in rows:
            # A name comes from a file: it must not be read as markup.
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in (_COLUMNS, *rows)) for i in range(len(_COLUMNS))]
    for row in (_COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _clear(with_bundles: bool) -> None:
    count, freed = _cache().clear()
    print(f"{count} kernels removed, {format_size(freed)} freed")
    if with_bundles:
        paths = imported_bundles()
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise CacheError(f"cannot remove bundle {path}: {error.strerror}") from error
        print(f"{len(paths)} bundles removed")


def _warm(args: argparse.Namespace) -> None:
    cache = _cache()
    units, headers = _builtin_units(args.match)
    entries = compile_units(units, args.arch or [_device_arch()], headers=headers, jobs=args.jobs)
    size = sum(len(entry.image) for entry in entries)
    print(f"{len(entries)} kernels, {format_size(size)}, are compiled in {cache.folder}")


def _export(args: argparse.Namespace) -> None:
    units, headers = _builtin_units(args.match)
    _check_target(args.path)
    info = export_bundle(args.path, units, args.arch or [_device_arch()], headers=headers, jobs=args.jobs)
    print(f"{info.entries} kernels for {_archs(info.arch)}, {format_size(info.size)}, written to {info.path}")


def _check_target(path: Path) -> None:
    """Find out before minutes of compiling whether the bundle can be written."""
    if path.is_dir():
        raise CacheError(
            f"cannot write bundle {path}: it is a folder; name a file in it, such as {path / 'kernels.zip'}"
        )
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise CacheError(
            f"cannot write bundle {path}: {path.parent} is no folder to write to: {error.strerror or error}; "
            "make it first, or choose another"
        ) from error


def _builtin_units(patterns: Sequence[str] | None) -> tuple[list[Unit], dict[str, str]]:
    from pygpukit.ops.units import builtin_units, headers

    units: list[Unit] = list(builtin_units())
    if patterns:
        names = [unit.name for unit in units]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise CacheError(f"no built-in kernel has a name like {pattern!r}")
        units = [unit for unit in units if any(fnmatchcase(unit.name, pattern) for pattern in patterns)]
    return units, headers()


def _device_arch() -> str:
    device = _native.current_device()
    if device.kind != "cuda":
        raise DeviceError("there is no GPU to compile for: say which with --arch, such as --arch 90a")
    return arch_for(device.capability)


def _archs(archs: Sequence[str]) -> str:
    return ", ".join(f"sm_{arch}" for arch in archs)
