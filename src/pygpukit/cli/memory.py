"""`pygpukit info memory`: what there is of memory and what bounds it, and what saved snapshots and recordings tell."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pygpukit.config import format_size
from pygpukit.core.info import memory_info
from pygpukit.core.recording import load
from pygpukit.core.snapshot import Snapshot
from pygpukit.errors import GPUKitError

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memory`` to the parser of ``pygpukit info``."""
    parser = subparsers.add_parser("memory", description="What there is of memory, and what bounds it.")
    parser.add_argument(
        "file", nargs="?", type=Path, help="show a snapshot or a recording that was saved with to_json instead"
    )
    parser.add_argument("--plot", type=Path, metavar="PICTURE", help="draw the recording into a .html or .png file")
    # Not to undo the switch in "info --json memory".
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit info memory``."""
    if args.file is not None:
        return _show(args.file, args.plot, args.json)
    if args.plot is not None:
        print("pygpukit: --plot needs the file of a recording, as recording.to_json(FILE) writes it", file=sys.stderr)
        return 2
    report = memory_info()
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    for device in report["devices"]:
        print(device["device"])
        for name, value in _rows(device):
            print(f"  {name:<20}{value}")
    if report["host_memory"] is not None:
        print(f"host\n  {'memory':<20}{format_size(report['host_memory'])}")
    print("settings")
    for name, value in report["settings"].items():
        print(f"  {name:<24}{_setting(value)}")
    return 0


def _rows(device: dict[str, Any]) -> list[tuple[str, str]]:
    if "error" in device:
        return [("error", device["error"].replace("\n", "\n" + " " * 22))]
    return [
        ("name", device["name"]),
        ("memory", f"{format_size(device['free'])} free of {format_size(device['total'])}"),
        ("page", format_size(device["granularity"])),
        ("eviction", "possible" if device["can_evict"] else "not possible without virtual memory management"),
        ("page-locked limit", format_size(device["pinned_limit"])),
        ("spill limit", format_size(device["spill_limit"])),
    ]


def _setting(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "1" if value else "0"
    return format_size(value) if isinstance(value, int) else str(value)


def _show(file: Path, picture: Path | None, as_json: bool) -> int:
    shown = load(file)
    if picture is not None:
        if isinstance(shown, Snapshot):
            print(f"pygpukit: {file} is a snapshot of one moment; --plot draws recordings", file=sys.stderr)
            return 1
        try:
            shown.plot(picture)
        except GPUKitError:
            raise
        except (OSError, ValueError) as error:
            print(f"pygpukit: cannot write {picture}: {error}", file=sys.stderr)
            return 1
    print(shown.to_json() if as_json else shown.table())
    return 0
