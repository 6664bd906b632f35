"""A kernel's source rewritten so that a launch may run a range of its blocks.

The variant takes four more parameters: the first block of the range, and the grid as the caller asked for it. Macros
give every kernel's `blockIdx` and `gridDim` a name that only the kernel's own body declares; so a function that looks
at them, wherever it is written, does not compile, and no block can ever take itself for another one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pygpukit.errors import KernelCompileError
from pygpukit.jit.headers import builtin_headers, used_headers
from pygpukit.jit.signature import Signature, parse_signatures
from pygpukit.jit.tokens import Token, tokenize, words_of

__all__ = ["SLICE_PARAMS", "NotSliceableError", "refuse_state", "sliced_source"]

SLICE_PARAMS = ("first", "grid_x", "grid_y", "grid_z")
"""What the variant takes behind the kernel's own parameters, each an unsigned int."""

# One line per entry: a pattern, and what it means for people.
_IMPOSSIBLE = (
    (re.compile(r"ctaid"), "it reads %ctaid or %nctaid in assembly"),
    (re.compile(r"cooperative_groups"), "it uses cooperative groups"),
    (re.compile(r"__cluster_dims__"), "it is launched in clusters"),
    (re.compile(r"<<<|\bcudaLaunch\w*"), "it launches kernels"),
    (re.compile(r"#[ \t]*(?:define|undef)[ \t]+(?:blockIdx|gridDim)\b|\b(?:push|pop)_macro\b"), "it changes macros"),
)
_WAIT = re.compile(r"\bld\.(?:acquire|relaxed|volatile|mmio)|\batomic_ref\b|cuda::atomic|\b_*nanosleep\b")
_WAITS = "its blocks seem to wait for each other"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\b[ \t]*["<]?([^">\n]*)', re.MULTILINE)
_FORCED_INCLUDE = re.compile(r"--?pre-include\b.*|-include\b.*")
_DIRECTIVE = re.compile(r"^[ \t]*#", re.MULTILINE)
_PTX_GLOBAL = re.compile(
    rb"^[ \t]*(?:\.(?:visible|extern|weak|common)[ \t]+)?\.global\b[^\n=;\[]*?([\w$]+)[ \t]*[\[=;]", re.MULTILINE
)
# Tables of the mathematical functions, and texts to print: nobody writes to them.
_CONSTANT = (b"__cudart_", b"$str")
_SYMBOLS = 2  # Of the types of ELF sections.
_OBJECT = 1  # Of the types of ELF symbols.


class NotSliceableError(ValueError):
    """A kernel that cannot be launched in ranges of blocks; the text says why."""


class _Head(NamedTuple):
    """Where the parts of a kernel's definition stand in the source."""

    name: str
    start: int
    params: Sequence[Token]
    end: int
    brace: int
    last: int


def sliced_source(
    source: str,
    signature: Signature,
    *,
    defines: Mapping[str, str],
    headers: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    sure: bool = False,
) -> str:
    """The source with the kernel taking a range of blocks; its lines keep their numbers.

    Parameters
    ----------
    source : str
        CUDA C++ text.
    signature : Signature
        The kernel, as `find_signature` found it in this source.
    defines : mapping of str to str
        Macros given to the compiler.
    headers : mapping of str to str, optional
        Texts for ``#include``.
    options : sequence of str, optional
        Options for the compiler.
    sure : bool, optional
        Blocks do not wait for each other, whatever it looks like.

    Raises
    ------
    NotSliceableError
        If it cannot be; the text says why. What is returned may still not compile, which means the same.
    """
    known = used_headers(source, {**builtin_headers(), **(headers or {})})
    for text in (source, *defines.values(), *options, *known.values()):
        for pattern, reason in _IMPOSSIBLE:
            if pattern.search(text):
                raise NotSliceableError(reason)
    if any(_FORCED_INCLUDE.fullmatch(option) for option in options):
        raise NotSliceableError("a header is included before it")
    heads = _heads(source, defines, headers)
    if not sure:
        others = [head for head in heads if head.end != signature.params_end]
        _look_for_waits([_without(source, others), *(known[name] for name in headers or () if name in known)])
        _look_for_unknown([source, *known.values()], known)
    mark = "pgk_slice"
    while any(mark in text for text in (source, *defines, *defines.values(), *options, *known.values())):
        mark += "x"
    return _preamble(mark) + _rewritten(source, signature, heads, mark)


def refuse_state(image: bytes) -> None:
    """Refuse an image with variables that last from launch to launch: those of the variant would be others.

    Raises
    ------
    NotSliceableError
        If it has such variables.
    """
    names = _cubin_globals(image) if image.startswith(b"\x7fELF") else _PTX_GLOBAL.findall(image)
    if not all(name.startswith(_CONSTANT) for name in names):
        raise NotSliceableError("it has variables that last from launch to launch; a table can be __constant__")


def _cubin_globals(image: bytes) -> Iterator[bytes]:
    """Names of the variables in global memory: the symbols of sections named so in a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", image, 40)
    width, count, names_at = struct.unpack_from("<HHH", image, 58)
    sections = [struct.unpack_from("<IIQQQQII", image, table + i * width) for i in range(count)]

    def text(section: int, at: int) -> bytes:
        start = sections[section][4] + at
        return image[start : image.index(b"\0", start)]

    for _, kind, _, _, start, size, strings, _ in sections:
        if kind != _SYMBOLS:
            continue
        for at in range(start, start + size, 24):
            name, info, _, home = struct.unpack_from("<IBBH", image, at)
            if info & 15 == _OBJECT and home < count and text(names_at, sections[home][0]).startswith(b".nv.global"):
                yield text(strings, name)


def _look_for_waits(texts: Sequence[str]) -> None:
    """Refuse what reads memory again and again until another block writes it, as far as that can be seen."""
    for text in texts:
        if _WAIT.search(text):
            raise NotSliceableError(_WAITS)
        words = words_of(text)
        for i, word in enumerate(words):
            if word == "volatile" and (i == 0 or words[i - 1] not in ("asm", "__asm", "__asm__")):
                raise NotSliceableError(_WAITS)
            if word in ("while", "for") and any(part.startswith("atomic") for part in _bracketed(words, i + 1)):
                raise NotSliceableError(_WAITS)


def _look_for_unknown(texts: Sequence[str], known: Mapping[str, str]) -> None:
    for text in texts:
        for match in _INCLUDE.finditer(text):
            if match[1] not in known:
                raise NotSliceableError(f"it includes {match[1].strip()!r}, whose text is not known")


def _bracketed(words: Sequence[str], start: int) -> Iterator[str]:
    depth = 0
    for i in range(start, len(words)):
        depth += (words[i] == "(") - (words[i] == ")")
        if depth <= 0:
            return
        yield words[i]


def _preamble(mark: str) -> str:
    """What stands before the source: the true values, the logical ones, and the names for them."""
    return f"""\
static __device__ __forceinline__ uint3 {mark}_launched() {{ return blockIdx; }}
static __device__ __forceinline__ dim3 {mark}_blocks() {{ return gridDim; }}
static __device__ __forceinline__ uint3 {mark}_at(unsigned block, unsigned x, unsigned y) {{
    if (block < x) return make_uint3(block, 0u, 0u);
    return make_uint3(block % x, block / x % y, block / x / y);
}}
#define blockIdx {mark}_blockIdx
#define gridDim {mark}_gridDim
#line 1
"""


def _rewritten(source: str, signature: Signature, heads: Sequence[_Head], mark: str) -> str:
    first, *grid = (f"{mark}_{name}" for name in SLICE_PARAMS)
    name, _, _ = signature.name.partition("<")
    edits: list[tuple[int, int, str]] = []
    found = False
    for head in heads:
        at = head.brace + 1
        if head.end != signature.params_end:
            if head.name != name:
                edits.append((at, at, _declared(mark, f"{mark}_launched()", f"{mark}_blocks()")))
            # Another version of the kernel: should it be the one that is compiled, it must not be.
            continue
        if _DIRECTIVE.search(source, head.start, head.brace):
            raise NotSliceableError("its head has preprocessor directives")
        found = True
        added = ", ".join(f"unsigned {name}" for name in (first, *grid))
        params = head.params
        if [param.text for param in params] == ["void"] and source.startswith("void", params[0].offset):
            edits.append((params[0].offset, params[0].offset + len("void"), added))
        else:
            edits.append((head.end, head.end, f", {added}" if params else added))
        block = f"{mark}_at({first} + {mark}_launched().x, {grid[0]}, {grid[1]})"
        edits.append((at, at, _declared(mark, block, f"dim3({', '.join(grid)})")))
    if not found:
        raise NotSliceableError("its body is not in the source, or a macro or a header writes it")
    for begin, end, text in sorted(edits, reverse=True):
        source = source[:begin] + text + source[end:]
    return source


def _declared(mark: str, block: str, grid: str) -> str:
    return f" const uint3 {mark}_blockIdx = {block}; const dim3 {mark}_gridDim = {grid};"


def _heads(source: str, defines: Mapping[str, str], headers: Mapping[str, str] | None) -> list[_Head]:
    """The kernels whose definition is in the text; one that is not does not compile, should it look at its block."""
    try:
        kernels = parse_signatures(source, defines, headers)
    except KernelCompileError as error:
        raise NotSliceableError(f"another kernel of the source cannot be read: {error}") from None
    tokens = tokenize(source, defines, headers)
    closes = {token.offset: i for i, token in enumerate(tokens) if token.text == ")"}
    heads = [_head(source, tokens, closes[kernel.params_end], kernel.name) for kernel in kernels]
    return [head for head in heads if head is not None]


def _head(source: str, tokens: Sequence[Token], close: int, name: str) -> _Head | None:
    start = close
    depth = 1
    while depth and start > 0:
        start -= 1
        depth += (tokens[start].text == ")") - (tokens[start].text == "(")
    brace = close + 1
    while brace < len(tokens) and tokens[brace].text not in ("{", ";", "}", "="):
        brace += 1
    if depth or brace == len(tokens) or tokens[brace].text != "{":
        return None
    # What a macro or a header writes stands elsewhere in the text.
    if not all(source.startswith(tokens[i].text, tokens[i].offset) for i in (start, close, brace)):
        return None
    last = brace
    depth = 1
    while depth and last + 1 < len(tokens):
        last += 1
        depth += (tokens[last].text == "{") - (tokens[last].text == "}")
    params = tokens[start + 1 : close]
    return _Head(name, tokens[start].offset, params, tokens[close].offset, tokens[brace].offset, tokens[last].offset)


def _without(source: str, heads: Sequence[_Head]) -> str:
    """The source less these kernels."""
    for head in sorted(heads, key=lambda head: head.start, reverse=True):
        source = source[: head.start] + source[head.last :]
    return source
