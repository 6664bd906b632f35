"""Models that guess: a second one with pages of its own, or the first layers of the model itself over its pages."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import Any

from pygpukit._pygpukit_rust import PageCache
from pygpukit.errors import ModelLoadError
from pygpukit.llm import fetch
from pygpukit.llm.drafters import Drafter, accepted
from pygpukit.llm.kv_types import kv_type
from pygpukit.llm.loading import load_model, open_checkpoint
from pygpukit.llm.pages import PAGE_TOKENS, PageMemory
from pygpukit.llm.runner import Runner
from pygpukit.llm.scheduler import Branch, Row
from pygpukit.llm.sequence import Sequence
from pygpukit.llm.tokenizer import Tokenizer
from pygpukit.llm.tokenizer_files import find_tokenizer

__all__ = ["DraftModel", "DraftModelDrafter", "EarlyExitDrafter"]

_USUAL = 4


class EarlyExitDrafter(Drafter):
    """The first layers of the model, its norm and its head guess tokens one by one.

    Their keys and values go where those of the verified tokens go, which overwrite them with the same.

    Parameters
    ----------
    layers : int
    most : int, optional
        Guesses at most.
    runner : Runner
        Of the model.
    reserve : callable
        Gives a reply pages for so many tokens more than are computed; False if there are none.
    """

    name = "early_exit"

    def __init__(self, layers: int, most: int | None, runner: Runner, reserve: Callable[[Branch, int], bool]) -> None:
        self.layers, self.most, self._runner, self._reserve = layers, most or _USUAL, runner, reserve
        self._of = len(runner.model.blocks)

    def explain(self) -> str:
        """Return how many layers guess."""
        return f"by the first {self.layers} of {self._of} layers"

    def propose(self, sequence: Sequence, most: int) -> Ids[int]:
        """Return nothing: guesses are made for a batch."""
        return ()

    def propose_all(self, asked: Ids[tuple[Branch, int]]) -> list[Ids[int]]:
        """Return what the first layers say."""
        able = [(branch, most) for branch, most in asked if self._reserve(branch, most + 1)]
        made = self._runner.guess([Row(branch, 1) for branch, _ in able], [most for _, most in able], self.layers)
        found = dict(zip((branch for branch, _ in able), made, strict=True))
        return [found.get(branch, ()) for branch, _ in asked]


class DraftModel:
    """A smaller model with the vocabulary of the model it guesses for.

    Parameters
    ----------
    path : str or path-like
    dtype : str
        As `LLM` takes it.
    allowed : int
        Tokens of the other model, and its tokenizer.
    tokenizer : Tokenizer, optional
    limit : int
        Tokens of a prompt and its reply.

    Raises
    ------
    ModelLoadError
        If the vocabularies differ.
    """

    def __init__(
        self, path: str | os.PathLike[str], dtype: str, allowed: int, tokenizer: Tokenizer | None, limit: int
    ) -> None:
        checkpoint = open_checkpoint(fetch.find(str(path)) if str(path) in fetch.MODELS else path)
        try:
            config = checkpoint.config
            own, _ = find_tokenizer(checkpoint, None)
            _check_vocabulary(path, config.vocab_size, own, allowed, tokenizer)
            self.model = load_model(checkpoint, dtype)
        finally:
            checkpoint.close()
        self.config, self.allowed = config, allowed
        self.limit = min(limit, config.max_position_embeddings) if config.learned_positions else limit
        self.model.max_positions = self.limit
        self._kv = kv_type("auto", self.model.dtype)

    @property
    def page_bytes(self) -> int:
        """Bytes that a page of its keys and values has."""
        return sum(self._kv.bytes_of_token(self.config)) * PAGE_TOKENS

    def allocate(self, pages: int) -> None:
        """Take the memory of so many pages."""
        memory = PageMemory(self.config, self._kv, pages, 0)
        self.runner = Runner(self.model, PageCache(pages, PAGE_TOKENS, 0, prefix=False), memory, self.allowed)


@dataclasses.dataclass(slots=True)
class _Shadow:
    """A reply in the pages of the draft model.

    Attributes
    ----------
    branch
    known
        Tokens that the pages' index knows.
    guesses
        The last ones, for what followed `known`.
    """

    branch: Branch
    known: int
    guesses: list[int] = dataclasses.field(default_factory=list)


class DraftModelDrafter(Drafter):
    """A smaller model guesses tokens one by one, each as if the reply were its own.

    Where a token is drawn, it is drawn by the seed and the place of the reply's own draw, so that both models take the
    same token as often as their probabilities are alike.

    Parameters
    ----------
    model : DraftModel
    most : int, optional
        Guesses at most.
    max_batched_tokens : int
        Tokens of a step.
    """

    name = "draft"

    def __init__(self, model: DraftModel, most: int | None, max_batched_tokens: int) -> None:
        self.most, self._limit, self._most_tokens = most or _USUAL, model.limit, max_batched_tokens
        self._model, self._runner = model, model.runner
        self._shadows: dict[Sequence, _Shadow] = {}

    def propose(self, sequence: Sequence, most: int) -> Ids[int]:
        """Return nothing: guesses are made for a batch."""
        return ()

    def propose_all(self, asked: Ids[tuple[Branch, int]]) -> list[Ids[int]]:
        """Return what the smaller model says."""
        for sequence in [sequence for sequence in self._shadows if sequence.finish_reason is not None]:
            self._drop(sequence)
        wanted = {branch.sequence for branch, _ in asked}
        able = [(shadow, most) for branch, most in asked if (shadow := self._ready(branch, most, wanted)) is not None]
        shadows, most_of = [shadow for shadow, _ in able], [most for _, most in able]
        counts = self._catch_up(shadows)
        rows = [Row(shadow.branch, count) for shadow, count in zip(shadows, counts, strict=True)]
        made = self._runner.guess(rows, most_of)
        found: dict[Sequence, list[int]] = {}
        for shadow, count, guesses in zip(shadows, counts, made, strict=True):
            # The last token is left to be computed again, so that there is one where nothing is accepted.
            self._advance(shadow, count - 1)
            shadow.guesses = found[shadow.branch.sequence] = guesses
        return [found.get(branch.sequence, ()) for branch, _ in asked]

    def explain(self) -> str:
        """Return what the model is, and what its pages take."""
        config = self._model.config
        return (
            f"by a draft model: {config.architecture}, {config.num_layers} layers of {config.hidden_size}, keys and "
            f"values {self._model.page_bytes // PAGE_TOKENS} bytes a token"
        )

    def close(self) -> None:
        """Give up weights and pages."""
        self._shadows.clear()
        self._runner.close()
        self._model.__dict__.pop("model", None)

    def _ready(self, branch: Branch, most: int, wanted: set[Sequence]) -> _Shadow | None:
        """A reply whose tokens have pages; None where there is no room."""
        sequence, cache = branch.sequence, self._runner.cache
        length = len(sequence.prompt) + len(sequence.reply)
        if length + most > self._limit:
            return None
        shadow = self._shadows.get(sequence)
        if shadow is None:
            # Ids of padding rows, which the smaller model may not have.
            if max(sequence.prompt) >= self._model.config.vocab_size:
                return None
            self._runner.expect(len(sequence.prompt) + sequence.limit)
            own = Branch(branch.request, sequence, branch.order)
            own.pages = cache.begin([*sequence.prompt, *sequence.reply])
            shadow = self._shadows[sequence] = _Shadow(own, length)
        self._follow(shadow)
        pages = shadow.branch.pages
        assert pages is not None
        needed = length - shadow.branch.computed + most - 1
        while not cache.reserve(pages, needed):
            victim = next((other for other in self._shadows if other not in wanted), None)
            if victim is None:
                self._drop(sequence)
                return None
            self._drop(victim)
        return shadow

    def _follow(self, shadow: _Shadow) -> None:
        """Note the tokens that the reply got since; those that were guessed are computed."""
        branch, sequence = shadow.branch, shadow.branch.sequence
        assert branch.pages is not None
        new = sequence.reply[shadow.known - len(sequence.prompt) :]
        if not new:
            return
        for token in new:
            self._runner.cache.push(branch.pages, token)
        if shadow.guesses:
            # Those before the last guess were computed, and so was the token before them.
            self._advance(shadow, 1 + accepted(shadow.guesses[:-1][: len(new) - 1], new))
        shadow.known += len(new)
        shadow.guesses = []

    def _catch_up(self, shadows: Ids[_Shadow]) -> list[int]:
        """Compute tokens as far as they do not fit one step; return how many are left of each."""
        rest = max(self._most_tokens // max(len(shadows), 1), 1)
        counts = []
        for shadow in shadows:
            branch = shadow.branch
            while branch.length - branch.computed > rest:
                count = min(branch.length - branch.computed - 1, self._most_tokens)
                self._runner.fill(Row(branch, count))
                self._advance(shadow, count)
            counts.append(branch.length - branch.computed)
        return counts

    def _advance(self, shadow: _Shadow, count: int) -> None:
        assert shadow.branch.pages is not None
        self._runner.cache.advance(shadow.branch.pages, count)
        shadow.branch.computed += count

    def _drop(self, sequence: Sequence) -> None:
        shadow = self._shadows.pop(sequence)
        assert shadow.branch.pages is not None
        self._runner.cache.release(shadow.branch.pages)


def _check_vocabulary(path: Any, rows: int, own: Tokenizer | None, allowed: int, other: Tokenizer | None) -> None:
    known = rows if own is None else min(rows, own.vocab_size)
    advice = "a draft model must have the model's vocabulary"
    if known != allowed:
        raise ModelLoadError(f"the draft model {path} has {known} tokens, and the model {allowed}: {advice}")
    if own is None or other is None:
        return
    for token in range(allowed):
        if own.id_to_token(token) != other.id_to_token(token):
            raise ModelLoadError(
                f"token {token} is {own.id_to_token(token)!r} for the draft model {path}, and "
                f"{other.id_to_token(token)!r} for the model: {advice}"
            )
