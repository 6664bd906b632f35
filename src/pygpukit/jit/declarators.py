"""C++ parameter declarations: name, C type and the type code the launcher takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["DeclarationError", "Param", "angle_end", "declare", "render", "specifiers", "split_arguments"]

_LONG = "32" if sys.platform == "win32" else "64"

_TAGS = {
    "void": "void",
    "bool": "b1",
    "float": "f32",
    "double": "f64",
    "__half": "f16",
    "half": "f16",
    "f16": "f16",
    "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "bf16": "bf16",
    "__nv_fp8_e4m3": "e4m3",
    "e4m3": "e4m3",
    "__nv_fp8_e5m2": "e5m2",
    "e5m2": "e5m2",
    "cuComplex": "c64",
    "cuFloatComplex": "c64",
    "complex<float>": "c64",
    "c64": "c64",
    "cuDoubleComplex": "c128",
    "complex<double>": "c128",
    "c128": "c128",
    "CUtensorMap": "tensormap",
    "CUtensorMap_st": "tensormap",
    "size_t": "u64",
    "uintptr_t": "u64",
    "ptrdiff_t": "i64",
    "intptr_t": "i64",
    "ssize_t": "i64",
    "uchar": "u8",
    "ushort": "u16",
    "uint": "u32",
    "ulong": f"u{_LONG}",
    "char8_t": "u8",
    "char16_t": "u16",
    "char32_t": "u32",
    "__int64": "i64",
} | {
    f"{sign}int{infix}{bits}_t": f"{sign or 'i'}{bits}"
    for sign in ("", "u")
    for infix in ("", "_least")
    for bits in (8, 16, 32, 64)
}

# Namespaces under which the names above are also known.
_NAMESPACES = ("std::", "cuda::std::", "thrust::", "pgk::", "cuda::", "::")

_INTEGER_WORDS = frozenset({"signed", "unsigned", "char", "short", "int", "long", "__signed__"})
_BUILTIN_WORDS = _INTEGER_WORDS | {"void", "bool", "float", "double"}
_IGNORED = frozenset(
    {"volatile", "typename", "struct", "class", "enum", "union", "register", "__grid_constant__", "__restrict__"}
    | {"__restrict", "restrict", "__volatile__", "__const__"}
)
_CALLED_ATTRIBUTES = frozenset({"__attribute__", "__declspec", "alignas", "__align__", "__nv_attribute__"})

_MAX_ALIAS_DEPTH = 16


class DeclarationError(ValueError):
    """A parameter that a kernel cannot have; the text says why."""


@dataclass(frozen=True)
class Param:
    """One kernel parameter.

    Attributes
    ----------
    name : str
        Its name; ``arg0``, ``arg1``, ... by position where the source gives none.
    ctype : str
        Its C type as written, template arguments and aliases replaced: ``"const float*"``.
    code : str
        How the launcher passes it: a dtype tag for a scalar (``"f32"``), ``"*f32"`` or ``"const*f32"`` for a pointer
        (``"*void"`` where the element type is not one of ours), ``"tensormap"`` for a ``CUtensorMap`` by value,
        ``"struct"`` for anything else by value.
    """

    name: str
    ctype: str
    code: str


@dataclass
class _Type:
    """A core type with its constness, and one flag per pointer level, innermost first: is that pointer const."""

    core: list[str]
    const: bool
    pointers: list[bool]


def declare(
    tokens: Sequence[str],
    position: int,
    bindings: Mapping[str, Sequence[str]],
    aliases: Mapping[str, Sequence[str] | None],
) -> Param:
    """Read one parameter declaration.

    Parameters
    ----------
    tokens : sequence of str
        The declaration, without the comma.
    position : int
        Index of the parameter, for a name where it has none.
    bindings : mapping
        Template parameters and the tokens they stand for.
    aliases : mapping
        Type aliases of the source; None for one that is defined in more than one way.

    Raises
    ------
    DeclarationError
        If a kernel cannot have such a parameter.
    """
    tokens = _without_attributes(_before_default(list(tokens)))
    if "..." in tokens:
        raise DeclarationError(f"parameter {position} is variadic; a kernel takes a fixed list of parameters")
    base, rest = specifiers(tokens)
    if not base:
        raise DeclarationError(f"parameter {position} ({render(tokens) or 'empty'}) has no type")
    name, pointers, is_function = _declarator(rest, position)
    kind = _resolve(base, bindings, aliases, 0)
    kind.pointers.extend(pointers)
    ctype = render([*(["const"] if kind.const else []), *kind.core])
    ctype += "".join("* const" if const else "*" for const in kind.pointers[:-1])
    if is_function:
        return Param(name, f"{ctype}(*)(...)", "*void")
    return Param(name, f"{ctype}*" if kind.pointers else ctype, _code(kind, name))


def render(tokens: Sequence[str]) -> str:
    """Tokens as text, with a space only where two words would meet and after commas."""
    text = ""
    for token in tokens:
        if text and (text[-1].isalnum() or text[-1] in "_$") and (token[0].isalnum() or token[0] in "_$"):
            text += " "
        text += ", " if token == "," else token
    return text


def angle_end(tokens: Sequence[str], start: int) -> int:
    """Index behind the ``>`` that closes the ``<`` at `start`; angle brackets inside parentheses do not count."""
    angles = depth = 0
    for i in range(start, len(tokens)):
        token = tokens[i]
        depth += (token == "(") - (token == ")")
        if depth == 0:
            angles += (token == "<") - (token == ">")
            if angles == 0:
                return i + 1
        if token in (";", "{"):
            return max(i, start + 1)
    return len(tokens)


def split_arguments(tokens: Sequence[str]) -> list[list[str]]:
    """Split at the commas that stand outside any bracket; angle brackets count up to an ``=``."""
    parts: list[list[str]] = [[]]
    depth = angles = 0
    in_default = False
    for token in tokens:
        if token in ("(", "[", "{"):
            depth += 1
        elif token in (")", "]", "}"):
            depth -= 1
        elif token == "<" and not depth and not in_default:
            angles += 1
        elif token == ">" and not depth and angles:
            angles -= 1
        elif token == "=" and not depth and not angles:
            in_default = True
        elif token == "," and not depth and not angles:
            parts.append([])
            in_default = False
            continue
        parts[-1].append(token)
    return parts if len(parts) > 1 or parts[0] else []


def _before_default(tokens: list[str]) -> list[str]:
    return tokens[: tokens.index("=")] if "=" in tokens else tokens


def _without_attributes(tokens: list[str]) -> list[str]:
    kept: list[str] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token in _CALLED_ATTRIBUTES or (token == "[" and tokens[i + 1 : i + 2] == ["["]):
            i = _skip_group(tokens, i + (token != "["))
            continue
        if token not in _IGNORED:
            kept.append(token)
        i += 1
    return kept


def _skip_group(tokens: Sequence[str], start: int) -> int:
    """Index behind the bracket group that opens at `start`; `start` itself where none does."""
    depth = 0
    for i in range(start, len(tokens)):
        depth += (tokens[i] in ("(", "[")) - (tokens[i] in (")", "]"))
        if depth <= 0:
            return i + (tokens[i] in (")", "]"))
    return len(tokens)


def _is_word(token: str) -> bool:
    return token[0].isalpha() or token[0] in "_$"


def specifiers(tokens: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """The type's own tokens (const included), and what follows: pointers, name, dimensions."""
    base: list[str] = []
    named = built_in = False
    i = 0
    while i < len(tokens):
        token = tokens[i]
        qualified = base[-1:] == ["::"]
        if token == "const" or (token in _BUILTIN_WORDS and (not named or qualified)):
            base.append(token)
            built_in |= token != "const"
        elif token == "::" or (_is_word(token) and (qualified or not (named or built_in))):
            base.append(token)
            named = True
        elif token == "<" and named:
            end = angle_end(tokens, i)
            base.extend(tokens[i:end])
            i = end - 1
        else:
            break
        i += 1
    return ([] if all(word == "const" for word in base) else base), tokens[i:]


def _declarator(tokens: Sequence[str], position: int) -> tuple[str, list[bool], bool]:
    """Name, constness of each pointer, and whether it is a pointer to a function."""
    name = ""
    pointers: list[bool] = []
    grouped = is_function = False
    arrays = 0
    for i, token in enumerate(tokens):
        if token in ("&", "&&"):
            raise DeclarationError(
                f"parameter {position} ({render(tokens[i:]).lstrip('&') or 'unnamed'}) is a reference, "
                "which would hold a host address on the device; pass it by value or as a pointer"
            )
        if token == "*" and not arrays:
            pointers.append(False)
        elif token == "const" and pointers:
            pointers[-1] = True
        elif token == "(":
            is_function = grouped
            grouped = True
            if is_function:
                break
        elif token == "[":
            # Only the first dimension of a plain array decays; behind "(*x)" the pointer is already there.
            arrays += 1
        elif _is_word(token) and not arrays and token != "const":
            name = name or token
    if arrays and not grouped:
        pointers.append(False)
    return name or f"arg{position}", pointers, is_function


def _resolve(
    tokens: Sequence[str],
    bindings: Mapping[str, Sequence[str]],
    aliases: Mapping[str, Sequence[str] | None],
    depth: int,
) -> _Type:
    """Replace template parameters and aliases until a core type is left."""
    const = "const" in tokens
    core = [token for token in tokens if token != "const"]
    target: Sequence[str] | None = None
    next_bindings: Mapping[str, Sequence[str]] = bindings
    if len(core) == 1 and depth < _MAX_ALIAS_DEPTH:
        if core[0] in bindings:
            # A template argument is written where the kernel is asked for: no template parameter is visible there.
            target, next_bindings = bindings[core[0]], {}
        else:
            target = aliases.get(core[0])
    if target is None:
        replaced = [part for token in core for part in bindings.get(token, (token,))]
        return _Type(replaced, const, [])
    base, rest = specifiers(_without_attributes(list(target)))
    _, pointers, _ = _declarator(rest, 0)
    inner = _resolve(base or ["void"], next_bindings, aliases, depth + 1)
    inner.pointers.extend(pointers)
    if inner.pointers:
        # "const P x" with P = "float*" makes the pointer const, not what it points to.
        inner.pointers[-1] |= const
    else:
        inner.const |= const
    return inner


def _code(kind: _Type, name: str) -> str:
    if len(kind.pointers) > 1:
        return "const*void" if kind.pointers[-2] else "*void"
    tag = _tag(kind.core)
    if kind.pointers and tag == "tensormap":
        tag = None
    if kind.pointers:
        return ("const*" if kind.const else "*") + (tag or "void")
    if tag == "void":
        raise DeclarationError(f"parameter '{name}' has type void")
    return tag or "struct"


def _tag(core: Sequence[str]) -> str | None:
    if all(word in _INTEGER_WORDS for word in core):
        sign = "u" if "unsigned" in core else "i"
        if "char" in core:
            return f"{sign}8"
        if "short" in core:
            return f"{sign}16"
        longs = core.count("long")
        return f"{sign}{'64' if longs > 1 else _LONG if longs else '32'}"
    text = render(core)
    for prefix in _NAMESPACES:
        if text in _TAGS:
            break
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
            break
    return _TAGS.get(text)
