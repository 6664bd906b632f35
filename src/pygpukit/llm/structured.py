"""Replies of a given form: which tokens may come next by a JSON schema, a regular expression or a grammar.

The package llguidance keeps the state of a parser and says for every token of the vocabulary whether the text can go on
with it. A `Constraint` belongs to one reply and knows nothing of how tokens are drawn.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit.errors import MissingPackageError
from pygpukit.llm import schemas

if TYPE_CHECKING:
    from pygpukit.llm.sampling import SamplingParams
    from pygpukit.llm.tokenizer import Tokenizer

__all__ = ["Constraint", "compile", "grammar_of"]

Array = np.ndarray[Any, Any]

# Compiled grammars that are kept: requests of a program often have the same one.
_KEPT = 32
_SCHEMA, _REGEX, _GRAMMAR = "schema", "regex", "grammar"


def library() -> Any:
    """Return the package `llguidance`.

    Raises
    ------
    MissingPackageError
        If it is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise MissingPackageError(
            "replies of a given form need the package 'llguidance': pip install 'pygpukit[structured]'"
        ) from error
    return llguidance


def grammar_of(params: SamplingParams) -> tuple[str, str] | None:
    """Return which form a reply must have, as a kind and a text; None for any.

    Raises
    ------
    ValueError
        If several are given, or one is of another type.
    """
    given = [name for name in (_SCHEMA, _REGEX, _GRAMMAR) if getattr(params, name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are given: a reply has one form")
    (kind,) = given
    value = getattr(params, kind)
    if kind == _SCHEMA:
        return kind, _schema(value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{kind} is {value!r:.80}, and must be a text")
    return kind, value


def _schema(value: Any) -> str:
    """The text of a schema: given as such, as Python's objects, or by a class that has one, such as pydantic's."""
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    try:
        found = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"schema is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"schema is {found!r:.80}, and must be an object")
    return text


class _Grammars:
    """What is compiled for one tokenizer: its trie of tokens, and the grammars used last."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: tuple[int, ...]) -> None:
        self._guidance = library()
        text = tokenizer._tokenizer.to_str()
        try:
            self._tokens = self._guidance.LLTokenizer(text, n_vocab=size, eos_token=list(ends) or None)
        except Exception as error:  # the library raises what it likes
            raise ValueError(f"replies of a given form cannot be had with this tokenizer: {error}") from error
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def matcher(self, kind: str, text: str) -> Any:
        """Return a parser at the beginning of a text."""
        found = self._kept.get((kind, text))
        if found is None:
            found = self._kept[kind, text] = self._compiled(kind, text)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end((kind, text))
        return found.deep_copy()

    def _compiled(self, kind: str, text: str) -> Any:
        matcher = self._guidance.LLMatcher
        if kind == _SCHEMA and not schemas.has_finite_value(json.loads(text)):
            raise ValueError(f"schema cannot be used: it refers to itself without end, so no value fits it: {text:.80}")
        try:
            if kind == _SCHEMA:
                grammar = matcher.grammar_from_json_schema(text)
            else:
                grammar = (matcher.grammar_from_regex if kind == _REGEX else matcher.grammar_from_lark)(text)
        except ValueError as error:
            raise ValueError(f"{kind} cannot be used: {error}") from error
        made = matcher(self._tokens, grammar, log_level=0)
        if not made.is_error():
            # Some forms are found to be wrong only when the first token is asked for.
            first = made.deep_copy()
            first.compute_bitmask()
            if first.is_error():
                raise ValueError(f"{kind} cannot be used: no text of that form can begin ({_reason(first)})")
        if made.is_error():
            raise ValueError(f"{kind} cannot be used: {_reason(made)}")
        return made


def _reason(matcher: Any) -> str:
    """What went wrong, without the library's own state, which follows in lines."""
    return str(matcher.get_error()).partition("<state>")[0].strip()


# Requests come from any thread.
_lock = threading.Lock()
_compiled: weakref.WeakKeyDictionary[Any, dict[tuple[int, tuple[int, ...]], _Grammars]] = weakref.WeakKeyDictionary()


def compile(tokenizer: Tokenizer, params: SamplingParams, *, size: int, ends: Iterable[int] = ()) -> Constraint | None:
    """Return what keeps a reply in its form; None where it may have any.

    Parameters
    ----------
    tokenizer : Tokenizer
    params : SamplingParams
        With a ``schema``, a ``regex`` or a ``grammar``.
    size : int
        Tokens that scores are for.
    ends : iterable of int
        Tokens that end a reply.

    Raises
    ------
    ValueError
        If the schema, the expression or the grammar is wrong.
    MissingPackageError
        If llguidance is not installed.
    """
    form = grammar_of(params)
    if form is None:
        return None
    key = size, tuple(sorted(ends))
    with _lock:
        known = _compiled.setdefault(tokenizer, {})
        if key not in known:
            known[key] = _Grammars(tokenizer, *key)
        return Constraint(known[key].matcher(*form), size)


class Constraint:
    """Which tokens may come next in one reply.

    Attributes
    ----------
    words
        Words of 32 bits in a mask.
    """

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher, self._size = matcher, size
        self.words = -(-size // 32)

    def mask(self) -> Array:
        """Return a bit per token, int32: those that are set may come."""
        self._check()
        found = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: self.words]
        self._check()
        return found

    def masks(self, drafts: Sequence[int]) -> Array:
        """Return the masks of the next token and behind each draft, [drafts + 1, words]; none behind a wrong one."""
        rows = np.zeros((len(drafts) + 1, self.words), np.int32)
        taken = 0
        try:
            for row, token in enumerate(drafts):
                rows[row] = self.mask()
                if not rows[row, token // 32] >> token % 32 & 1:
                    return rows
                self.accept(token)
                taken += 1
                if self.done:
                    return rows
            rows[-1] = self.mask()
        finally:
            self._matcher.rollback(taken)
        return rows

    def accept(self, token: int) -> None:
        """Go on with a token.

        Raises
        ------
        ValueError
            If it may not come.
        """
        # A wrong token would leave the parser in an error for good.
        if self._matcher.validate_tokens([token]) != 1:
            raise ValueError(f"token {token} does not fit the form of the reply")
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> list[int]:
        """Return the tokens that must come next whatever the scores are, as drafts; none where there is a choice."""
        self._check()
        return [] if self.done else [int(token) for token in self._matcher.compute_ff_tokens()]

    def valid(self, drafts: Sequence[int]) -> int:
        """Return how many of some drafts may come one behind the other."""
        return int(self._matcher.validate_tokens(list(drafts)))

    @property
    def done(self) -> bool:
        """Whether the text is complete and nothing can follow but the end of the reply."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    def complete(self) -> bool:
        """Whether the text so far has the form, though it may go on."""
        return bool(self._matcher.is_accepting())

    def copy(self) -> Constraint:
        """Return another one in the same state, for another reply to the prompt."""
        return Constraint(self._matcher.deep_copy(), self._size)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"the form of the reply became too complex to follow: {_reason(self._matcher)}")
