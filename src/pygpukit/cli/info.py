"""`pygpukit info`: everything a bug report needs, and what is missing."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import Any

from pygpukit.cli import memory
from pygpukit.config import format_size
from pygpukit.core.info import info
from pygpukit.llm import plugins

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``info`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("info", help="devices, libraries, versions, and what is missing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    memory.add_parser(parser.add_subparsers(metavar="[memory]", help="what there is of memory, and what bounds it"))


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit info``."""
    report = {**info(), "plugins": [plugin._asdict() for plugin in plugins.report()]}
    if args.json:
        print(json.dumps(report, indent=2, default=str))
        return 0
    rows = _rows(report)
    if sys.stdout.isatty():
        _show(rows, report["missing"])
        return 0
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {_indent(value, width + 2).lstrip()}")
    for item in report["missing"]:
        print(f"\nmissing: {item['what']}\n{_indent(item['why'])}\n  fix: {item['fix']}")
    return 0


def _indent(text: str, width: int = 2) -> str:
    return textwrap.indent(text, " " * width)


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("pygpukit", str(report["pygpukit"])),
        ("python", f"{report['python']} on {report['platform']}"),
        ("current device", report["current_device"]),
    ]
    driver = report["driver"]
    rows.append(("driver", "none" if driver is None else f"CUDA {_dotted(driver['version'])}, {driver['path']}"))
    for d in report["devices"]:
        rows.append((f"cuda:{d['index']}", d.get("error") or _device(d)))
    for name in ("nvrtc", "cublaslt"):
        found = report[name]
        rows.append((name, "none" if found is None else f"{_dotted(found['version'])}, {found['path']}"))
    rows.append(("packages", ", ".join(f"{k} {v}" for k, v in report["packages"].items() if v)))
    for plugin in report["plugins"]:
        state = f", left out: {plugin['error']}" if plugin["error"] else ""
        rows.append(("plugin", f"{plugin['kind']}.{plugin['name']} of {plugin['source']}{state}"))
    rows.append(("settings", ", ".join(f"{k}={v}" for k, v in report["settings"].items()) or "all default"))
    return rows


def _device(d: dict[str, Any]) -> str:
    major, minor = d["capability"]
    memory = f"{format_size(d['free_memory'])} free of {format_size(d['total_memory'])}"
    return f"{d['name']}, SM {major}.{minor}, {d['sm_count']} SMs, {memory}; {', '.join(d['features'])}"


def _dotted(version: Any) -> str:
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _show(rows: list[tuple[str, str]], missing: list[dict[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    # Texts everywhere: names such as "pygpukit[cublas]" must not be read as markup.
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console.print(table)
    for item in missing:
        text = Text.assemble(
            ("\nmissing:", "yellow"), f" {item['what']}\n{_indent(item['why'])}\n  fix: ", (item["fix"], "bold")
        )
        # The terminal breaks long lines: paths stay whole when they are copied.
        console.print(text, soft_wrap=True)
