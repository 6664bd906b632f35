"""Entry points and parameters of PTX text."""

from __future__ import annotations

import difflib
import re

from pygpukit.errors import KernelCompileError
from pygpukit.jit.signature import Param

__all__ = ["ptx_entry"]

_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)")
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*+)\s*+(?:\(([^(){}]*+)\))?")
_LOAD = re.compile(r"ld\.param\.[usb]64\s+(%[\w$]+)\s*,\s*\[\s*([\w$%]+)\s*\]")
_CONVERSION = re.compile(r"cvta\.to\.\w+\.[usb]64\s+%[\w$]+\s*,\s*(%[\w$]+)")
_TYPE = re.compile(r"\.([usbf])(8|16|32|64)")


def ptx_entry(text: str, func: str | None) -> tuple[str, list[Param]]:
    """Name and parameters of the entry point that `func` names, or of the only one.

    PTX keeps sizes and few types. A 64-bit parameter is a pointer where it says so (``.ptr``) or where the code makes
    a global address of it; other integers are taken as signed.

    Raises
    ------
    KernelCompileError
        If there is no such entry point, or more than one and no name.
    """
    code = _COMMENT.sub(" ", text)
    entries = {match[1]: match for match in _ENTRY.finditer(code)}
    if not entries:
        raise KernelCompileError("the PTX text has no .entry function", source=text)
    if func is None:
        if len(entries) > 1:
            raise KernelCompileError(
                f"the PTX text has entries {', '.join(entries)}; say which with func=", source=text
            )
        func = next(iter(entries))
    if func not in entries:
        close = difflib.get_close_matches(func, entries, n=1)
        remark = f"; did you mean '{close[0]}'?" if close else ""
        raise KernelCompileError(
            f"the PTX text has no entry '{func}': it has {', '.join(entries)}{remark}", source=text
        )
    parts = [part.strip() for part in (entries[func][2] or "").split(",") if part.strip()]
    start = entries[func].end()
    end = code.find(".entry", start)
    pointers = _dereferenced(code[start : end if end >= 0 else len(code)])
    return func, [_param(part, i, pointers, text) for i, part in enumerate(parts)]


def _dereferenced(body: str) -> set[str]:
    """Parameters whose value the code turns into an address."""
    registers = {match[1] for match in _CONVERSION.finditer(body)}
    return {match[2] for match in _LOAD.finditer(body) if match[1] in registers}


def _param(text: str, position: int, pointers: set[str], source: str) -> Param:
    head, bracket, size = text.partition("[")
    words = head.split()
    kind = next((match for match in map(_TYPE.fullmatch, words[1:-1]) if match is not None), None)
    if words[:1] != [".param"] or kind is None:
        raise KernelCompileError(f"cannot read PTX parameter {position}: {text[:200]!r}", source=source)
    name, letter, bits = f"arg{position}", kind[1], kind[2]
    if bracket:
        return Param(name, f".{letter}{bits}[{size}", "struct")
    if bits == "64" and letter != "f" and (".ptr" in words or words[-1] in pointers):
        return Param(name, f".{letter}64", "*void")
    code = f"f{bits}" if letter == "f" else f"u{bits}" if bits == "8" else f"i{bits}"
    return Param(name, f".{letter}{bits}", code)
