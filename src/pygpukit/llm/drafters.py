"""Guesses about the next tokens of a reply, and what a model's answer says about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Ids
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pygpukit.llm.scheduler import Branch
    from pygpukit.llm.sequence import Sequence

__all__ = ["Drafter", "JacobiDrafter", "LookaheadDrafter", "NgramDrafter", "NgramIndex", "accepted", "improved"]

# Places of one n-gram that are compared, the last ones first.
_MOST_PLACES = 64
# Tokens of an n-gram that lookahead keeps, and how many of them.
_NGRAM = 4
_MOST_NGRAMS = 4096


def accepted(guesses: Ids[int], said: Ids[int]) -> int:
    """Return how many guesses are right: what the model says in their places, up to the first that is not.

    Parameters
    ----------
    guesses : sequence of int
    said : sequence of int
        What the model says in the place of each guess, and behind the last.

    Examples
    --------
    >>> accepted([4, 5, 6], [4, 5, 9, 7])
    2
    """
    right = 0
    while right < len(guesses) and guesses[right] == said[right]:
        right += 1
    return right


def improved(said: Ids[int], right: int) -> list[int]:
    """Return the next guesses of Jacobi's iteration: what the model says behind the first wrong guess.

    Examples
    --------
    >>> improved([4, 5, 9, 7], 2)
    [7]
    """
    return list(said[right + 1 :])


class NgramIndex:
    """The n-grams of a text that grows, by their last tokens.

    Parameters
    ----------
    longest, shortest : int
        Tokens that must have been there before for a guess.

    Examples
    --------
    >>> index = NgramIndex()
    >>> index.extend([1, 2, 3, 4, 9, 2, 3])
    >>> index.following(5)
    [4, 9, 2, 3, 4]
    """

    def __init__(self, longest: int = 5, shortest: int = 2) -> None:
        self.longest, self.shortest = longest, shortest
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Ids[int]) -> None:
        """Append tokens."""
        known = len(self._tokens)
        self._tokens += tokens
        for end in range(max(known, self.shortest - 1), len(self._tokens)):
            key = tuple(self._tokens[end + 1 - self.shortest : end + 1])
            self._places.setdefault(key, []).append(end)

    def following(self, most: int) -> list[int]:
        """Return what followed the longest of the last n-grams when it was there last; it may run into the guesses."""
        tokens, last = self._tokens, len(self._tokens) - 1
        places = self._places.get(tuple(tokens[-self.shortest :]), ())
        best, length = -1, 0
        for place in reversed(places[-_MOST_PLACES - 1 :]):
            if place == last:
                continue
            same = self.shortest
            while same < self.longest and same <= place and tokens[place - same] == tokens[last - same]:
                same += 1
            if same > length:
                best, length = place, same
            if length == self.longest:
                break
        if best < 0:
            return []
        made: list[int] = []
        for place in range(best + 1, best + 1 + most):
            made.append(tokens[place] if place <= last else made[place - last - 1])
        return made


class Drafter(ABC):
    """What guesses the next tokens of replies for an engine, which verifies them: `LLM(speculative=...)`.

    A reply is the same whatever is guessed. A plugin of kind ``decode`` is a subclass, made without arguments.

    Attributes
    ----------
    name
        How it is called in `LLM.stats`.
    most
        Guesses for one reply in one step, at most.
    adapts
        Whether there are fewer while they are wrong.

    Examples
    --------
    >>> class Same(Drafter):
    ...     def propose(self, sequence, most):
    ...         return [(*sequence.prompt, *sequence.reply)[-1]] * most
    """

    name = ""
    most = 8
    adapts = True

    @abstractmethod
    def propose(self, sequence: Sequence, most: int) -> Ids[int]:
        """Return at most so many guesses about what follows the tokens of ``sequence.prompt`` and ``sequence.reply``.

        None at all is an answer. Tokens must be of the model's vocabulary.
        """

    def propose_all(self, asked: Ids[tuple[Branch, int]]) -> list[Ids[int]]:
        """Return guesses for several replies of a batch; those of `propose` by default."""
        return [self.propose(branch.sequence, most) for branch, most in asked]

    def learn(self, sequence: Sequence, drafts: Ids[int], said: Ids[int]) -> None:  # noqa: B027
        """See what the model says in the place of each guess, and behind the last.

        It is called before the tokens are appended to the reply; `accepted` tells how many guesses were right.
        """

    def explain(self) -> str:
        """Return how it guesses, and what that takes."""
        return f"by {self.name!r}"

    def close(self) -> None:  # noqa: B027
        """Give up memory."""


class NgramDrafter(Drafter):
    """What followed the last n-gram of 5 to 2 tokens when it was in prompt or reply before."""

    name, most = "ngram", 16

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Sequence, NgramIndex] = WeakKeyDictionary()

    def propose(self, sequence: Sequence, most: int) -> Ids[int]:
        """Return what followed before."""
        index = self._known.get(sequence)
        if index is None:
            index = self._known[sequence] = NgramIndex()
            index.extend(sequence.prompt)
        index.extend(sequence.reply[len(index) - len(sequence.prompt) :])
        return index.following(most)


class JacobiDrafter(Drafter):
    """What the model said behind the guess that was wrong (Jacobi's iteration); the last token again at first."""

    # A window that is narrow has nothing to improve.
    name, most, adapts = "jacobi", 7, False

    def __init__(self) -> None:
        self._guesses: WeakKeyDictionary[Sequence, list[int]] = WeakKeyDictionary()

    def propose(self, sequence: Sequence, most: int) -> Ids[int]:
        """Return the improved guesses, the last of them again where there are fewer."""
        made = self._guesses.get(sequence, [])[:most]
        last = made[-1] if made else (sequence.reply or sequence.prompt)[-1]
        return made + [last] * (most - len(made))

    def learn(self, sequence: Sequence, drafts: Ids[int], said: Ids[int]) -> None:
        """Keep the improved guesses."""
        self._guesses[sequence] = improved([token for token in said if token >= 0], accepted(drafts, said))


class LookaheadDrafter(JacobiDrafter):
    """Jacobi's iteration whose n-grams are kept, and guessed first where one begins with the last token.

    The window is one row of guesses, so that attention is that of a text; that of Fu et al. has several rows and a mask
    of its own.
    """

    name = "lookahead"

    def __init__(self) -> None:
        super().__init__()
        self._ngrams: WeakKeyDictionary[Sequence, dict[int, tuple[int, ...]]] = WeakKeyDictionary()

    def propose(self, sequence: Sequence, most: int) -> Ids[int]:
        """Return n-grams that begin with the last token, one behind the other, then the improved guesses."""
        known = self._ngrams.get(sequence, {})
        last = (sequence.reply or sequence.prompt)[-1]
        made: list[int] = []
        while len(made) < most and last in known:
            made += known[last]
            last = made[-1]
        return [*made[:most], *super().propose(sequence, most)[len(made) :]]

    def learn(self, sequence: Sequence, drafts: Ids[int], said: Ids[int]) -> None:
        """Keep the n-grams that end with what the model says, and the improved guesses."""
        super().learn(sequence, drafts, said)
        known = self._ngrams.setdefault(sequence, {})
        read = [(sequence.reply or sequence.prompt)[-1], *drafts]
        for end, token in enumerate(said):
            ngram = (*read[max(0, end - _NGRAM + 2) : end + 1], token)
            if token >= 0:
                known.pop(ngram[0], None)
                known[ngram[0]] = ngram[1:]
        while len(known) > _MOST_NGRAMS:
            del known[next(iter(known))]
