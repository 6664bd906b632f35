"""CUDA C++ source as a list of tokens: comments gone, conditionals followed, simple macros replaced.

This is not a preprocessor. It follows what it can decide (`#if 0`, `#ifdef` of a known name, object-like macros) and
keeps both branches of what it cannot; the compiler has the last word. Every step is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Token", "TokenStream", "tokenize", "words_of"]

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
  | (?P<mark>   :: | -> | \.\.\. | && | \|\| | [=!<>]= | . )
    """,
    re.VERBOSE | re.ASCII,
)

_MAX_MACRO_TOKENS = 256
_MAX_MACRO_DEPTH = 16


class Token(NamedTuple):
    """One token and where it starts in the text."""

    text: str
    offset: int


@dataclass
class TokenStream:
    """Tokens of a source and what its directives say.

    Attributes
    ----------
    tokens : list of Token
        What the compiler would see, as far as it can be told.
    kernel_macros : bool
        A function-like macro writes ``__global__``: the source may have kernels that are not among the tokens.
    """

    tokens: list[Token] = field(default_factory=list)
    kernel_macros: bool = False


@dataclass
class _Branch:
    """One open ``#if``: is this branch read, was one surely taken already, and is it, or one around it, a guess."""

    read: bool
    decided: bool
    guessed: bool


def words_of(text: str) -> list[str]:
    """Token texts of a fragment such as a macro's value or a template argument."""
    return [token for kind, token, _ in _lexemes(text) if kind not in ("blank", "newline")]


def tokenize(source: str, defines: Mapping[str, str] | None = None) -> TokenStream:
    """Split CUDA C++ source into tokens.

    Parameters
    ----------
    source : str
        The text.
    defines : mapping of str to str, optional
        Macros given on the compiler's command line.
    """
    reader = _Reader({name: words_of(value) for name, value in (defines or {}).items()})
    directive: list[Token] | None = None
    line_is_empty = True
    for kind, text, offset in _lexemes(source):
        if kind == "newline":
            if directive is not None:
                reader.directive(directive, source)
                directive = None
            line_is_empty = True
        elif kind == "blank":
            continue
        elif directive is not None:
            directive.append(Token(text, offset))
        elif text == "#" and line_is_empty:
            directive = []
        else:
            line_is_empty = False
            reader.token(Token(text, offset))
    if directive is not None:
        reader.directive(directive, source)
    return reader.stream


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

    def __init__(self, macros: dict[str, list[str]]) -> None:
        self.stream = TokenStream()
        # None: defined, but which way is not known.
        self._macros: dict[str, list[str] | None] = dict(macros)
        self._branches: list[_Branch] = []
        self._reading = True
        self._includes = False
        # Expansion may not multiply a hostile text: what it adds in all is bounded.
        self._allowance = 100_000

    def token(self, token: Token) -> None:
        if not self._reading:
            return
        if token.text not in self._macros:
            self.stream.tokens.append(token)
            return
        expansion = self._expand(token.text, 0)
        self._allowance -= len(expansion)
        if self._allowance < 0:
            self._macros.clear()
        self.stream.tokens.extend(Token(text, token.offset) for text in expansion)

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

    def directive(self, tokens: list[Token], source: str) -> None:
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
        elif self._reading:
            self._define(name, rest, source)
        self._reading = not self._branches or self._branches[-1].read

    def _define(self, name: str, rest: list[Token], source: str) -> None:
        if name == "include":
            self._includes = True
        elif name == "undef" and rest:
            self._macros.pop(rest[0].text, None)
        elif name == "define" and rest:
            macro, body = rest[0].text, [token.text for token in rest[1:]]
            after = rest[0].offset + len(macro)
            if source[after : after + 1] == "(":
                self.stream.kernel_macros |= "__global__" in body
                self._macros.pop(macro, None)
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
        return None if self._includes or name.startswith("_") else False
