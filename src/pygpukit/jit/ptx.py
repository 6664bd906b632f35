"""Entry points and parameters of PTX text."""

from __future__ import annotations

import difflib
import re

from pygpukit.errors import KernelCompileError
from pygpukit.jit.signature import Param

__all__ = ["ptx_entry"]

_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)")
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*+)\s*+(?:\(([^)]*+)\))?")
_PARAM = re.compile(r"\.param\b(?P<attributes>[^\[]*?)\s(?P<name>[A-Za-z_$%][\w$]*)\s*(?P<array>\[[^\]]*\])?\s*$")
_TYPE = re.compile(r"\.([usbf])(8|16|32|64)\b")


def ptx_entry(text: str, func: str | None) -> tuple[str, list[Param]]:
    """Name and parameters of the entry point that `func` names, or of the only one.

    PTX keeps sizes and few types: an integer may have been signed or not, and a 64-bit one may have been a pointer.
    Integers are taken as signed, and 64-bit ones as pointers to anything, which an integer may also be passed for.

    Raises
    ------
    KernelCompileError
        If there is no such entry point, or more than one and no name.
    """
    entries = {match[1]: match[2] or "" for match in _ENTRY.finditer(_COMMENT.sub(" ", text))}
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
    parts = [part.strip() for part in entries[func].split(",") if part.strip()]
    return func, [_param(part, i, text) for i, part in enumerate(parts)]


def _param(text: str, position: int, source: str) -> Param:
    match = _PARAM.match(text)
    kind = _TYPE.search(match["attributes"]) if match is not None else None
    if match is None or kind is None:
        raise KernelCompileError(f"cannot read PTX parameter {position}: {text!r}", source=source)
    name = f"arg{position}"
    if match["array"] is not None:
        return Param(name, f".{kind[1]}{kind[2]}{match['array']}", "struct")
    letter, bits = kind[1], kind[2]
    if bits == "64" and letter != "f":
        return Param(name, f".{letter}64", "*void")
    code = f"f{bits}" if letter == "f" else f"u{bits}" if bits == "8" else f"i{bits}"
    return Param(name, f".{letter}{bits}", code)
