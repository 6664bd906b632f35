"""CUDA C++ source as a list of tokens: comments gone, conditionals followed, macros of signatures replaced.

This is not a preprocessor. It follows what it can decide (`#if 0`, `#ifdef` of a known name, headers whose text is
given, object-like macros, macros that write kernels) and keeps both branches of what it cannot; the compiler has the
last word. Every step is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Token", "tokenize", "words_of"]

# Possessive repeats and "or the rest of the text" alternatives keep hostile input linear.
_LEXEME = re.compile(
    r"""
    (?P<blank>  [ \t\r\f\v]++ | \\\r?\n | //(?:[^\\\n]++|\\\r?\n|\\)*+ | /\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z) )
  | (?P<newline>\n)
  | (?P<raw>    (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\( )
  | (?P<string> (?:u8|[uUL])?"(?:[^"\\\n]++|\\\r?\n|\\.)*+"? )
  | (?P<char>   (?:u8|[uUL])?'(?:[^'\\\n]++|\\.)*+'? )
  | (?P<word>   [A-Za-z_$][\w$]*+ )
  | (?P<number> \.?[0-9](?:[eEpP][+-]|'?[\w.])*+ )
  | (?P<mark>   :: | -> | \.\.\. | \#\# | && | \|\| | [=!<>]= | . )
    """,
    re.VERBOSE | re.ASCII,
)

_MAX_MACRO_TOKENS = 256
_MAX_MACRO_DEPTH = 16
_MAX_INCLUDE_DEPTH = 64


class Token(NamedTuple):
    """One token and where it starts in the text."""

    text: str
    offset: int


@dataclass
class _Branch:
    """One open ``#if``: is this branch read, was one surely taken already, and is it, or one around it, a guess."""

    read: bool
    decided: bool
    guessed: bool


@dataclass
class _KernelMacro:
    """A macro with arguments whose body writes a kernel."""

    params: list[str]
    body: list[str]


@dataclass
class _Call:
    """A use of such a macro, while its arguments are read."""

    name: Token
    macro: _KernelMacro
    arguments: list[list[str]]
    depth: int = 0


def words_of(text: str) -> list[str]:
    """Token texts of a fragment such as a macro's value or a template argument."""
    return [token for kind, token, _ in _lexemes(text) if kind not in ("blank", "newline")]


def tokenize(
    source: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> list[Token]:
    """Split CUDA C++ source into what the compiler would see, as far as it can be told.

    Parameters
    ----------
    source : str
        The text.
    defines : mapping of str to str, optional
        Macros given on the compiler's command line.
    headers : mapping of str to str, optional
        Texts for ``#include``; a token of a header is placed at its include.
    """
    reader = _Reader({name: words_of(value) for name, value in (defines or {}).items()}, headers or {})
    reader.read(source, None)
    return reader.tokens


def _lexemes(source: str) -> list[tuple[str, str, int]]:
    """(kind, text, offset) of everything in the text, blanks included."""
    found: list[tuple[str, str, int]] = []
    position, end = 0, len(source)
    while position < end:
        match = _LEXEME.match(source, position)
        if match is None or match.lastgroup is None:
            position += 1
            continue
        kind, start, position = match.lastgroup, position, match.end()
        if match["raw"] is not None:
            close = source.find(f'){match["delimiter"]}"', position)
            position = end if close < 0 else close + len(match["delimiter"]) + 2
            found.append(("string", '""', start))
        else:
            found.append((kind, match[0], start))
    return found


class _Reader:
    """Follows directives and collects tokens."""

    def __init__(self, macros: dict[str, list[str]], headers: Mapping[str, str]) -> None:
        self.tokens: list[Token] = []
        # None: defined, but which way is not known.
        self._macros: dict[str, list[str] | None] = dict(macros)
        self._kernel_macros: dict[str, _KernelMacro] = {}
        self._call: _Call | None = None
        self._headers = headers
        self._included: set[str] = set()
        self._branches: list[_Branch] = []
        self._reading = True
        self._unknown_headers = False
        self._macro_depth = self._include_depth = 0
        # Expansion may not multiply a hostile text: what it adds in all is bounded.
        self._allowance = 100_000

    def read(self, text: str, place: int | None) -> None:
        """Read a source, or a header whose include stands at `place`."""
        directive: list[Token] | None = None
        line_is_empty = True
        for kind, lexeme, offset in _lexemes(text):
            if kind == "newline":
                if directive is not None:
                    self._directive(directive, text, place)
                    directive = None
                line_is_empty = True
            elif kind == "blank":
                continue
            elif directive is not None:
                directive.append(Token(lexeme, offset))
            elif lexeme == "#" and line_is_empty:
                directive = []
            else:
                line_is_empty = False
                if self._reading:
                    self._token(Token(lexeme, offset if place is None else place))
        if directive is not None:
            self._directive(directive, text, place)

    def _token(self, token: Token) -> None:
        if self._call is not None:
            self._argument(self._call, token)
        elif token.text in self._kernel_macros and self._macro_depth < _MAX_MACRO_DEPTH:
            self._call = _Call(token, self._kernel_macros[token.text], [[]])
        elif token.text in self._macros:
            expansion = self._expand(token.text, 0)
            self._spend(len(expansion))
            self.tokens.extend(Token(text, token.offset) for text in expansion)
        else:
            self.tokens.append(token)

    def _argument(self, call: _Call, token: Token) -> None:
        text = token.text
        if call.depth == 0 and text != "(":
            # The name alone is no use of the macro.
            self._call = None
            self.tokens.append(call.name)
            self._token(token)
            return
        call.depth += (text == "(") - (text == ")")
        if call.depth == 0:
            self._call = None
            expansion = _substitute(call)
            self._spend(len(expansion))
            self._macro_depth += 1
            for part in expansion:
                self._token(Token(part, call.name.offset))
            self._macro_depth -= 1
        elif text == "," and call.depth == 1:
            call.arguments.append([])
        elif text != "(" or call.depth > 1:
            call.arguments[-1].append(text)

    def _spend(self, count: int) -> None:
        self._allowance -= count
        if self._allowance < 0:
            self._macros.clear()
            self._kernel_macros.clear()

    def _expand(self, name: str, depth: int) -> list[str]:
        body = self._macros.get(name)
        if body is None or depth >= _MAX_MACRO_DEPTH:
            return [name]
        expansion: list[str] = []
        for text in body:
            expansion.extend(self._expand(text, depth + 1) if text in self._macros and text != name else [text])
            if len(expansion) > _MAX_MACRO_TOKENS:
                # Too long to be part of a signature; not looked at again.
                self._macros[name] = None
                return [name]
        return expansion

    def _directive(self, tokens: list[Token], source: str, place: int | None) -> None:
        if not tokens:
            return
        name, rest = tokens[0].text, tokens[1:]
        texts = [token.text for token in rest]
        if name in ("if", "ifdef", "ifndef"):
            self._open(self._condition(name, texts))
        elif name in ("elif", "elifdef", "elifndef", "else"):
            self._next(True if name == "else" else self._condition(name.removeprefix("el"), texts))
        elif name == "endif":
            if self._branches:
                self._branches.pop()
        elif self._reading and rest:
            if name == "include":
                self._include(rest, source, tokens[0].offset if place is None else place)
            elif name == "define":
                self._define(rest, source)
            elif name == "undef":
                self._macros.pop(texts[0], None)
                self._kernel_macros.pop(texts[0], None)
        self._reading = not self._branches or self._branches[-1].read

    def _include(self, rest: list[Token], source: str, place: int) -> None:
        name = rest[0].text[1:-1]
        if rest[0].text == "<":
            end = next((token.offset for token in rest if token.text == ">"), rest[0].offset + 1)
            name = source[rest[0].offset + 1 : end]
        if name not in self._headers or self._include_depth >= _MAX_INCLUDE_DEPTH:
            self._unknown_headers = True
        elif name not in self._included:
            # Once each, as with "#pragma once": a header that counts on being read twice holds no signatures.
            self._included.add(name)
            self._include_depth += 1
            self.read(self._headers[name], place)
            self._include_depth -= 1

    def _define(self, rest: list[Token], source: str) -> None:
        macro, body = rest[0].text, [token.text for token in rest[1:]]
        after = rest[0].offset + len(macro)
        if source[after : after + 1] == "(":
            self._macros.pop(macro, None)
            end = body.index(")") if ")" in body else len(body)
            params, body = body[1:end], body[end + 1 :]
            if "__global__" in body or any(text in self._kernel_macros for text in body):
                names = ["__VA_ARGS__" if param == "..." else param for param in params if param != ","]
                self._kernel_macros[macro] = _KernelMacro(names, body)
            return
        guessed = bool(self._branches) and self._branches[-1].guessed
        differs = macro in self._macros and self._macros[macro] != body
        self._macros[macro] = None if guessed and differs else body

    def _open(self, condition: bool | None) -> None:
        read = self._reading and condition is not False
        decided = not self._reading or condition is True
        guessed = condition is None or (bool(self._branches) and self._branches[-1].guessed)
        self._branches.append(_Branch(read, decided, guessed))

    def _next(self, condition: bool | None) -> None:
        if not self._branches:
            return
        branch = self._branches[-1]
        outer = self._branches[-2].read if len(self._branches) > 1 else True
        branch.read = outer and not branch.decided and condition is not False
        branch.decided |= condition is True
        branch.guessed |= condition is None

    def _condition(self, kind: str, texts: list[str]) -> bool | None:
        """Truth of a condition, or None where only the compiler knows."""
        if kind in ("ifdef", "ifndef"):
            known = self._defined(texts[0]) if texts else None
            return known if known is None or kind == "ifdef" else not known
        negate = texts[:1] == ["!"]
        if negate:
            texts = texts[1:]
        value: bool | None = None
        if texts[:1] == ["defined"] and len(texts) in (2, 4):
            value = self._defined(texts[-2] if len(texts) == 4 else texts[1])
        elif len(texts) == 1:
            body = self._macros.get(texts[0])
            text = body[0] if body is not None and len(body) == 1 else texts[0]
            value = int(text) != 0 if text.isdecimal() and len(text) < 19 else None
        return value if value is None or not negate else not value

    def _defined(self, name: str) -> bool | None:
        if name in self._macros:
            return True
        # Names the compiler predefines begin with underscores; a header may define anything.
        return None if self._unknown_headers or name.startswith("_") else False


def _substitute(call: _Call) -> list[str]:
    """Body of the macro with the arguments in place, ``##`` carried out."""
    params, given = call.macro.params, call.arguments
    if params[-1:] == ["__VA_ARGS__"]:
        fixed = len(params) - 1
        extra = [text for argument in given[fixed:] for text in (",", *argument)][1:]
        given = [*given[:fixed], extra]
    values = dict(zip(params, given, strict=False))
    expansion: list[str] = []
    paste = False
    for text in call.macro.body:
        if text == "##":
            paste = True
            continue
        part = values.get(text, [text])
        if paste and expansion and part:
            expansion[-1] += part[0]
            part = part[1:]
        expansion.extend(part)
        paste = False
    return expansion
