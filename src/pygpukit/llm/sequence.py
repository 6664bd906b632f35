"""One reply as it comes about: tokens, text, and what ends it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from collections.abc import Sequence as Ids
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from pygpukit.llm.outputs import FinishReason, Piece, RequestOutput, Timing, Usage
from pygpukit.llm.sampling import Line, SamplingParams
from pygpukit.llm.structured import Constraint
from pygpukit.llm.templates import ThinkingParser
from pygpukit.llm.tokenizer import Detokenizer, Tokenizer

__all__ = ["Sequence"]

_Answer = TypeVar("_Answer")

_APART = 0x9E3779B97F4A7C15


class Sequence:
    """A prompt and its reply.

    Parameters
    ----------
    prompt : list of int
    params : SamplingParams
    limit : int
        Tokens that the reply may get.
    stops : set of int
        Tokens that are the model's own end.
    tokenizer : Tokenizer, optional
    allowed : int
        Ids from here on are no tokens, though the model has scores for them.
    thinking : ThinkingParser, optional
    index : int
        Which reply to the prompt this is.
    constraint : Constraint, optional
        What keeps the answer in its form; thoughts before it are free.

    Attributes
    ----------
    problem
        Why no token may come, where that is known.
    """

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        limit: int,
        stops: set[int],
        tokenizer: Tokenizer | None,
        allowed: int,
        thinking: ThinkingParser | None = None,
        index: int = 0,
        constraint: Constraint | None = None,
    ) -> None:
        self.prompt, self.params, self.limit, self.index = prompt, params, limit, index
        self.reply: list[int] = []
        self.finish_reason: FinishReason | None = None if limit > 0 else "length"
        self.stop_reason: str | int | None = None
        self.logprobs: list[dict[int, float]] | None = None if params.logprobs is None else []
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        seed = secrets.randbits(63) if params.seed is None else params.seed
        # Far apart, so that replies to one prompt have no draws of the next request's.
        self._seed = (seed + index * _APART) % (1 << 64)
        self._stops = set() if params.ignore_eos else stops
        self._also = set(params.stop_token_ids)
        self._allowed = allowed
        self.tokenizer = tokenizer
        self.cached = self.drafted = self.accepted = 0
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, prompt)
        self._bad = [] if tokenizer is None else _spellings(params.bad_words, tokenizer)
        # A reply of a form that does not begin with a thought has none: its answer may hold the tags.
        answers = constraint is not None and thinking is not None and not thinking.thinking
        self._thinking, self._constraint = None if answers else thinking, constraint
        self.problem: Exception | None = None
        # Tokens of the thought.
        self._thought = 0
        self._held = ""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._begun = time.perf_counter()
        self._first = 0.0

    @property
    def is_simple(self) -> bool:
        """Whether the next token may be drawn before the host knows those before it."""
        bound = self._constraint is not None or self.params.max_thinking_tokens is not None
        return not (self.params.adjusts or self._bad or self.params.min_tokens or bound)

    @property
    def takes_drafts(self) -> bool:
        """Whether what may come behind a guess is known before the guess is right."""
        # A guess may begin or end a thought.
        return self.params.max_thinking_tokens is None and not (self._constraint is not None and self._is_thinking)

    def fitting(self, drafts: Ids[int]) -> Ids[int]:
        """Return the guesses that the form of the reply allows."""
        if self._constraint is None or self._is_thinking:
            return drafts
        return drafts[: self._asked(lambda form: form.valid(drafts), 0)]

    def forced(self) -> list[int]:
        """Return the tokens that come next by the form of the reply alone, as guesses: there may be other spellings."""
        return [] if self._is_thinking else self._asked(lambda form: form.forced(), [])

    def _asked(self, question: Callable[[Constraint], _Answer], otherwise: _Answer) -> _Answer:
        """What the form of the reply says. Where that breaks no token may come, and the other replies go on."""
        if self._constraint is None or self.problem is not None:
            return otherwise
        try:
            return question(self._constraint)
        except BaseException as error:
            # Panics of Rust are no Exception.
            broken = RuntimeError(f"the form of the reply cannot be followed: {error!r:.200}")
            self.problem = error if isinstance(error, ValueError) else broken
            return otherwise

    def line(self, pending: int = 0, drafts: Ids[int] = ()) -> Line:
        """Return what the choice of the next token depends on.

        Parameters
        ----------
        pending : int
            Tokens that are drawn and not known yet.
        drafts : sequence of int
            Tokens that are taken for the next ones.
        """
        reply = [*self.reply, *drafts] if drafts else self.reply
        place = len(reply) + pending
        banned = []
        if self._bad:
            banned = [word[-1] for word in self._bad if reply[len(reply) - len(word) + 1 :] == word[:-1]]
        if place < self.params.min_tokens:
            banned += [token for token in self._stops | self._also if token < self._allowed]
        return Line(self.params, self._seed, place, self.prompt, reply, banned, self._mask(drafts))

    def _mask(self, drafts: Ids[int]) -> np.ndarray[Any, Any] | None:
        """Bits of the tokens that the form of the reply, or the end of a long thought, allows behind guesses."""
        if self._is_thinking:
            return self._end_of_thought()
        if self._constraint is None:
            return None
        none = np.zeros(self._constraint.words, np.int32)
        return self._asked(lambda form: form.masks(drafts)[-1] if drafts else form.mask(), none)

    def _end_of_thought(self) -> np.ndarray[Any, Any] | None:
        most = self.params.max_thinking_tokens
        token = None if self.tokenizer is None or most is None else self.tokenizer.token_id("</think>")
        if most is None or token is None or self._thought < most or token >= self._allowed:
            return None
        words = np.zeros(-(-self._allowed // 32), np.uint32)
        words[token // 32] = 1 << token % 32
        return words.view(np.int32)

    @property
    def _is_thinking(self) -> bool:
        return self._thinking is not None and self._thinking.thinking

    def fork(self, index: int) -> Sequence:
        """Return another reply to the prompt, with draws of its own."""
        thinking = None if self._thinking is None else ThinkingParser(self._thinking.thinking)
        constraint = None if self._constraint is None else self._constraint.copy()
        copy = Sequence(
            self.prompt,
            self.params,
            self.limit,
            self._stops,
            self.tokenizer,
            self._allowed,
            thinking,
            index,
            constraint,
        )
        copy.prompt_logprobs, copy.cached, copy._begun = self.prompt_logprobs, self.cached, self._begun
        return copy

    def add(self, token: int) -> Piece:
        """Append a token and return what it adds to the text."""
        if not self.reply:
            self._first = time.perf_counter() - self._begun
        self.reply.append(token)
        text = ""
        if self._is_thinking:
            self._thought += 1
        elif self._constraint is not None:
            self._constraint.accept(token)
        if token in self._stops:
            self.finish_reason = "stop"
        elif token in self._also:
            self.finish_reason, self.stop_reason = "stop", token
        elif self._detokenizer is not None:
            text = self._after_stops(self._detokenizer.add(token))
        if self.finish_reason is None and self._constraint is not None and self._constraint.done:
            self.finish_reason = "stop"
        if self.finish_reason is None and len(self.reply) >= self.limit:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            text += self._rest()
        return self._piece(text, [token])

    def end(self, reason: FinishReason) -> Piece:
        """End the reply before its time."""
        self.finish_reason = reason
        rest = ""
        with suppress(BaseException):
            # What failed may be the tokenizer.
            rest = self._rest()
        return self._piece(rest, [])

    def output(self) -> RequestOutput:
        """Return the finished reply."""
        assert self.finish_reason is not None
        return RequestOutput(
            prompt_token_ids=self.prompt,
            text="".join(self._texts),
            token_ids=list(self.reply),
            finish_reason=self.finish_reason,
            usage=Usage(len(self.prompt), len(self.reply), self.cached, self.drafted, self.accepted),
            timing=Timing(self._first, time.perf_counter() - self._begun),
            stop_reason=self.stop_reason,
            thinking="".join(self._thoughts),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _after_stops(self, text: str) -> str:
        """Text that is certainly no part of a stop; the rest is held back."""
        self._held += text
        found = [(at, stop) for stop in self.params.stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda pair: (pair[0], -len(pair[1])))
            shown, self._held = self._held[:at], ""
            self.finish_reason, self.stop_reason = "stop", stop
            return shown
        keep = max((_overlap(self._held, stop) for stop in self.params.stop), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _rest(self) -> str:
        """Text that is held back at the end."""
        if self._detokenizer is None or isinstance(self.stop_reason, str):
            return ""
        rest = self._detokenizer.flush()
        before = self.finish_reason, self.stop_reason
        shown = self._after_stops(rest)
        if not isinstance(self.stop_reason, str):
            self.finish_reason, self.stop_reason = before
            shown += self._held
            self._held = ""
        return shown

    def _piece(self, text: str, tokens: list[int]) -> Piece:
        thought = ""
        if self._thinking is not None:
            thought, text = self._thinking.add_text(text)
            answers = self._constraint is not None and not self._thinking.thinking
            if self.finish_reason is not None or answers:
                more = self._thinking.flush()
                thought, text = thought + more[0], text + more[1]
            if answers:
                self._thinking = None
        self._texts.append(text)
        self._thoughts.append(thought)
        return Piece(text, thought, tokens, self.output() if self.finish_reason is not None else None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of a text that is a beginning of another."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-n:])), 0)


def _spellings(words: Ids[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Tokens of words, alone and after a space."""
    found = [tokenizer.encode(before + word, add_special_tokens=False) for word in words for before in ("", " ")]
    return [ids for ids in found if ids]
