"""Compile errors for people: the compiler's log joined with the source lines it speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pygpukit.errors import KernelCompileError
from pygpukit.jit.toolkit import install_hint

__all__ = ["compile_error"]

_MAX_SHOWN = 3
_MAX_LOG_LINES = 60
_MAX_LINE = 300

_ERROR = re.compile(r"^(?P<file>[^\n(]+)\((?P<line>[0-9]{1,9})\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$")

_NOT_FOUND = re.compile(r'could not open source file "([^"]*)"')
_HINTS = (
    (
        re.compile(r'identifier "(u?int(?:8|16|32|64|ptr)_t)" is undefined'),
        "'{0}' is declared by #include <cstdint>, which is always there.",
    ),
    (
        re.compile(r"^__nv_nvrtc_builtin_header\.h\(", re.MULTILINE),
        "A macro given as -D in options replaces a name in NVRTC's own header; give it with defines= instead.",
    ),
    (
        re.compile(r"invalid value for --gpu-architecture"),
        "This NVRTC does not know the architecture; a newer one may: pip install --upgrade nvidia-cuda-nvrtc.",
    ),
)


@dataclass(frozen=True)
class _Finding:
    file: str
    line: int
    text: str
    caret: str


def compile_error(
    log: str, *, name: str, file: str, source: str, headers: Mapping[str, str], options: Sequence[str], major: int = 13
) -> KernelCompileError:
    """The exception for a failed compile.

    Parameters
    ----------
    log : str
        What the compiler wrote.
    name : str
        The kernel's name.
    file : str
        The name under which the compiler knew the source.
    source : str
        The source.
    headers : mapping of str to str
        The headers it was given.
    options : sequence of str
        The options it was given.
    major : int, optional
        CUDA major version of the compiler.
    """
    findings = list(_findings(log))
    texts = {**headers, file: source}
    parts = [f"kernel '{name}' does not compile"]
    for finding in findings[:_MAX_SHOWN]:
        place = f"line {finding.line}" if finding.file == file else f"{finding.file}, line {finding.line}"
        parts.append("\n".join([f"{place}: {finding.text}", *_excerpt(texts.get(finding.file), finding)]))
    if len(findings) > _MAX_SHOWN:
        parts.append(f"... and {len(findings) - _MAX_SHOWN} more errors")
    missing = _NOT_FOUND.search(log)
    if missing is not None:
        parts.append(f"Header '{missing[1]}' is nowhere: {install_hint(missing[1], major)}.")
    parts.extend(hint.format(match[1] if match.re.groups else "") for hint, match in _hints(log))
    lines = log.strip().splitlines()
    if len(lines) > _MAX_LOG_LINES:
        lines = [*lines[:_MAX_LOG_LINES], f"... {len(lines) - _MAX_LOG_LINES} more lines, see the exception's log"]
    parts.append("Compiler log:\n" + ("\n".join(f"  {line[:_MAX_LINE]}" for line in lines) or "  (empty)"))
    parts.append("Options: " + " ".join(options))
    line = next((finding.line for finding in findings if finding.file == file), None)
    return KernelCompileError("\n\n".join(parts), log=log, options=options, source=source, line=line)


def _findings(log: str) -> Iterator[_Finding]:
    """Errors in the order of the log; behind each the compiler repeats the line and marks a column."""
    lines = log.splitlines()
    for i, text in enumerate(lines):
        match = _ERROR.match(text)
        if match is None:
            continue
        caret = ""
        for follower in lines[i + 1 : i + 4]:
            if follower.strip() == "^":
                # The log indents by two what it repeats.
                caret = follower[2:]
                break
        yield _Finding(match["file"], int(match["line"]), match["text"], caret)


def _hints(log: str) -> Iterator[tuple[str, re.Match[str]]]:
    for pattern, hint in _HINTS:
        match = pattern.search(log)
        if match is not None:
            yield hint, match


def _excerpt(text: str | None, finding: _Finding) -> list[str]:
    """The line before, the line itself with a mark, and the line after."""
    lines = text.replace("\r\n", "\n").split("\n") if text is not None else []
    if not 1 <= finding.line <= len(lines):
        return []
    first, last = max(1, finding.line - 1), min(len(lines), finding.line + 1)
    width = len(str(last))
    shown = []
    for number in range(first, last + 1):
        mark = ">" if number == finding.line else " "
        shown.append(f"{mark} {number:{width}} | {lines[number - 1][:_MAX_LINE]}".rstrip())
        if number == finding.line and finding.caret and len(finding.caret) <= _MAX_LINE:
            shown.append(f"  {'':{width}} | {finding.caret}")
    return shown
