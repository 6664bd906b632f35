"""Speculation: which replies get guesses, how many, and when it pauses because they do not pay.

A guess is kept if it is the token that the reply gets without it: the best one, or the one that the seed and the place
draw. For guesses that are certain of themselves this is the rule of rejection sampling, with the draw that decides and
the draw of what comes instead in one: a guess is kept with its probability, and another token comes with its own.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pygpukit.llm import callbacks, plugins
from pygpukit.llm.draft_models import DraftModel, DraftModelDrafter, EarlyExitDrafter
from pygpukit.llm.drafters import Drafter, JacobiDrafter, LookaheadDrafter, NgramDrafter, accepted
from pygpukit.llm.runner import Runner
from pygpukit.llm.scheduler import Branch, Scheduler
from pygpukit.llm.sequence import Sequence as Reply

__all__ = ["Method", "Speculation", "make_drafter", "read_method"]

_NAMED: dict[str, type[Drafter]] = {made.name: made for made in (NgramDrafter, JacobiDrafter, LookaheadDrafter)}
_LONGEST = 64
# Replies at once beyond which rows of guesses cost what rows of other replies do, by the kind of device.
_REPLIES = {"cpu": 8}
_REPLIES_ON_GPU = 32
# Guesses of a reply's first step; the share of right ones below which it pauses, and what a new share counts.
_FIRST = 4
_LEAST_SHARE = 0.3
_WEIGHT = 0.25
_START_SHARE = 0.6
# Tokens that a pause lasts at first and at most, and steps without a guess before one where steps overlap.
_PAUSE, _LONGEST_PAUSE = 16, 256
_EMPTY = 8


@dataclasses.dataclass(frozen=True)
class Method:
    """What ``speculative=`` asks for.

    Attributes
    ----------
    name
        ``"ngram"``, ``"jacobi"``, ``"lookahead"``, ``"draft"``, ``"early_exit"`` or a plugin's.
    most
        Guesses at most; None for what is usual.
    value
        The path of the draft model, the number of layers, or what guesses.
    """

    name: str
    most: int | None = None
    value: Any = None

    def check(self, layers: int) -> None:
        """Refuse what a model of so many layers does not have."""
        if self.name == "early_exit" and self.value >= layers:
            raise ValueError(
                f"early_exit of speculative= is {self.value}, and the model has {layers} layers: give fewer"
            )


def read_method(given: Any) -> Method | None:
    """Return what ``speculative=`` asks for.

    Raises
    ------
    ValueError
        If it is nothing that there is.

    Examples
    --------
    >>> read_method({"early_exit": 4}).name
    'early_exit'
    """
    if given is None:
        return None
    if isinstance(given, str):
        found = _NAMED.get(given) or (plugins.find("decode", given) if given else None)
        if not (isinstance(found, type) and issubclass(found, Drafter)):
            why = "" if found is None else f"; {given!r} decodes over caches of a fixed size, and is no Drafter"
            raise ValueError(f"there is no speculative={given!r}: {_known()}{why}")
        return Method(given, value=found())
    if not isinstance(given, Mapping):
        raise ValueError(f"speculative is {given!r:.80}, and must be one of: {_known()}")
    values = dict(given)
    most = values.pop("k", None)
    if most is not None and (type(most) is not int or not 1 <= most <= _LONGEST):
        raise ValueError(f"k of speculative= is {most!r}, and must be a whole number from 1 to {_LONGEST}")
    if len(values) != 1 or not set(values) <= {"draft", "early_exit"}:
        raise ValueError(f"speculative has {sorted(map(str, given))}, and must be one of: {_known()}")
    name, value = values.popitem()
    if name == "draft" and not (isinstance(value, str | os.PathLike) and str(value)):
        raise ValueError(f"the draft model of speculative= is {value!r:.80}, and must be a path or a name")
    if name == "early_exit" and (type(value) is not int or value < 1):
        raise ValueError(f"early_exit of speculative= is {value!r}, and must be a number of layers, at least 1")
    return Method(name, most, value)


def _known() -> str:
    others = (name for name in plugins.names("decode") if name not in _NAMED)
    names = ", ".join(repr(name) for name in (*_NAMED, *others))
    return f'{names}, {{"draft": path, "k": 4}} or {{"early_exit": layers, "k": 4}}'


def make_drafter(method: Method, runner: Runner, scheduler: Scheduler, draft: DraftModel | None) -> Drafter:
    """Return what guesses for an engine."""
    if draft is not None:
        return DraftModelDrafter(draft, method.most, scheduler.max_batched_tokens)
    if method.name == "early_exit":
        return EarlyExitDrafter(method.value, method.most, runner, scheduler.reserve)
    made: Drafter = method.value
    made.name = made.name or method.name
    return made


@dataclasses.dataclass(slots=True)
class _Record:
    """How guesses about one reply fare.

    Attributes
    ----------
    width
        Guesses of the next step.
    share
        Of right ones, lately.
    until
        Tokens of the reply up to which it pauses.
    pause
        How long its next pause is.
    empty
        Steps for which there was no guess, one behind the other.
    """

    width: int
    share: float = _START_SHARE
    until: int = 0
    pause: int = _PAUSE
    empty: int = 0


class Speculation:
    """Guesses for the replies of an engine.

    Parameters
    ----------
    drafter : Drafter
    kind : str
        Of the device.
    allowed : int
        Ids from here on are no tokens.
    ahead : bool
        Steps overlap with the work of the host, except while a reply waits for guesses.
    """

    def __init__(self, drafter: Drafter, kind: str, allowed: int, ahead: bool = False) -> None:
        self.drafter, self._allowed, self.ahead = drafter, allowed, ahead
        self.replies = _REPLIES.get(kind, _REPLIES_ON_GPU)
        self.least_share = _LEAST_SHARE
        self._first = min(_FIRST, drafter.most) if drafter.adapts else drafter.most
        self.drafted = self.accepted = self._paused = 0
        self._reason = self._broken = ""
        # Steps that it pauses, after one without memory.
        self._rest = 0
        self._records: WeakKeyDictionary[Reply, _Record] = WeakKeyDictionary()
        self._made: dict[Branch, Sequence[int]] = {}

    def prepare(self, running: Iterable[Branch]) -> None:
        """Guess for a step over replies that run."""
        self._made.clear()
        replies = list(running)
        self._paused = sum(self._record(b.sequence).until > len(b.sequence.reply) + b.pending for b in replies)
        self._reason = self._broken
        if len(replies) > self.replies:
            self._reason = self._reason or f"{len(replies)} replies are running, more than {self.replies}"
        if self._rest:
            self._rest -= 1
            self._reason = self._reason or "there was no memory for guesses"
        if self._reason:
            return
        asked = [(branch, self._width(branch)) for branch in replies if self._is_next(branch)]
        asked = [(branch, most) for branch, most in asked if most > 0]
        try:
            proposed = callbacks.call("drafter", self.drafter.propose_all, asked) if asked else []
            guesses = [
                branch.sequence.fitting(self._checked(made[:most]))
                for (branch, most), made in zip(asked, proposed, strict=True)
            ]
        except MemoryError:
            self._rest = _PAUSE
            return
        except Exception as error:
            self._give_up(error)
            return
        for (branch, _), tokens in zip(asked, guesses, strict=True):
            record = self._record(branch.sequence)
            if tokens:
                self._made[branch] = tokens
                record.empty = 0
                continue
            record.empty += 1
            if self.ahead and record.empty >= _EMPTY:
                self._pause(branch.sequence, record)

    def __call__(self, branch: Branch, most: int) -> Sequence[int]:
        """Return the guesses for a reply, at most so many."""
        return self._made.get(branch, ())[:most]

    def learn(self, branch: Branch, drafts: Sequence[int], said: Sequence[int]) -> None:
        """Note what the model says in the place of each guess and behind the last."""
        sequence, right = branch.sequence, accepted(drafts, said)
        record = self._record(sequence)
        self.drafted += len(drafts)
        self.accepted += right
        record.share += _WEIGHT * (right / len(drafts) - record.share)
        if right == len(drafts):
            record.width, record.pause = min(2 * max(record.width, right), self.drafter.most), _PAUSE
        else:
            record.width = max(1, (record.width + right + 1) // 2)
        record.width = record.width if self.drafter.adapts else self.drafter.most
        if record.share < self.least_share:
            self._pause(sequence, record, right + 1)
        try:
            callbacks.call("drafter", self.drafter.learn, sequence, drafts, said)
        except Exception as error:
            self._give_up(error)

    def wants(self, branch: Branch) -> bool:
        """Whether a reply waits for guesses, so that its tokens must be known to the host."""
        return not self._reason and self._width(branch) > 0

    def stats(self) -> dict[str, Any]:
        """Return counts, the replies that pause, and why all do."""
        return {"method": self.drafter.name, "drafted": self.drafted, "accepted": self.accepted,
                "paused_replies": self._paused, "paused": self._reason}  # fmt: skip

    def explain(self) -> str:
        """Return how tokens are guessed, and what that takes."""
        return f"at most {self.drafter.most} guesses for a reply in a step, {self.drafter.explain()}"

    def close(self) -> None:
        """Give up the memory of guesses."""
        self._made.clear()
        self.drafter.close()

    def _record(self, sequence: Reply) -> _Record:
        return self._records.setdefault(sequence, _Record(self._first))

    def _pause(self, sequence: Reply, record: _Record, more: int = 0) -> None:
        record.until = len(sequence.reply) + more + record.pause
        record.pause = min(2 * record.pause, _LONGEST_PAUSE)
        record.share, record.empty, record.width = _START_SHARE, 0, self._first

    def _give_up(self, error: Exception) -> None:
        """Go on without guesses: replies are the same."""
        self._reason = self._broken = f"{self.drafter.name} failed: {type(error).__name__}: {error}"
        self._made.clear()
        warnings.warn(f"speculation pauses for good: {self._broken}", RuntimeWarning, stacklevel=2)

    def _width(self, branch: Branch) -> int:
        """Guesses that a reply may get: the last token needs none behind it."""
        sequence = branch.sequence
        have = len(sequence.reply) + branch.pending
        record = self._record(sequence)
        return 0 if record.until > have or not sequence.takes_drafts else min(record.width, sequence.limit - have - 1)

    @staticmethod
    def _is_next(branch: Branch) -> bool:
        return (
            not (branch.pending or branch.forks) and branch.length == branch.computed + 1 and branch.pages is not None
        )

    def _checked(self, made: Sequence[int]) -> list[int]:
        """Guesses up to the first that is no token."""
        tokens = [int(token) for token in made]
        wrong = (place for place, token in enumerate(tokens) if not 0 <= token < self._allowed)
        return tokens[: next(wrong, len(tokens))]
