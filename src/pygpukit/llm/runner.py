"""One step on the device: tokens of many replies through the model, and a token drawn for each that needs one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray, PageCache
from pygpukit.array.bridge import from_numpy
from pygpukit.core.device import current_device
from pygpukit.core.transfer import Transfer, copy_to_host
from pygpukit.llm import layers, sampling
from pygpukit.llm.decoder import CausalTransformerModel, Step
from pygpukit.llm.pages import PAGE_TOKENS, PagedCache, PageMemory
from pygpukit.llm.rope import Rope
from pygpukit.llm.sampling import Line
from pygpukit.llm.scheduler import Branch, Row, pages_for
from pygpukit.llm.step_graphs import StepGraphs, bucket
from pygpukit.ops.registry import functions as _functions

__all__ = ["Drawn", "Runner"]

_maximum = _functions()["maximum"]

Array = Any

# Rows of scores that are made at once for a prompt: bounds their memory.
_SCORED = 64


@dataclasses.dataclass(slots=True)
class Drawn:
    """What a step has drawn: a token per line, read when it is asked for.

    Attributes
    ----------
    tokens
        int32 on the device, by line.
    lines
        Of each line the reply, which of its request's replies that is (a prompt with several has as many lines), and
        how many guesses the line takes for right.
    rows
        What was computed.
    wanted
        How many of the best tokens each line reports, None for none.
    failed
        What went wrong, by line.
    """

    tokens: GPUArray | None
    lines: list[tuple[Branch, int, int]]
    rows: Sequence[Row]
    wanted: list[int | None]
    failed: dict[int, Exception]
    scores: tuple[GPUArray, ...] = ()
    scored: list[int] = dataclasses.field(default_factory=list)
    _copy: Transfer | None = None

    def start_copy(self) -> None:
        """Begin to bring the tokens to the host, before later steps are queued."""
        if self.tokens is not None:
            self._copy = copy_to_host(self.tokens)

    def read(self) -> list[int]:
        """Wait for the tokens."""
        if self.tokens is None:
            return []
        if self._copy is not None:
            self._copy.wait()
            return [int(token) for token in self._copy.host]
        found: list[int] = self.tokens.tolist()
        return found

    def logprobs(self) -> dict[int, dict[int, float]]:
        """Return what lines report, by line."""
        if not self.scored or self.tokens is None:
            return {}
        tokens = self.tokens.tolist()
        given, *best = (part.tolist() for part in self.scores)
        made = {}
        for i, line in enumerate(self.scored):
            row = {tokens[line]: float(given[i])}
            count = self.wanted[line] or 0
            for value, token in zip(*(part[i][:count] for part in best), strict=True) if count else ():
                row.setdefault(int(token), float(value))
            made[line] = row
        return made


class Runner:
    """The model over a paged cache.

    Parameters
    ----------
    model : CausalTransformerModel
    cache : PageCache
    memory : PageMemory
    allowed : int
        Ids from here on are no tokens.
    graphs : bool
        Steps of one token per reply are captured, where kernels are launched.
    """

    def __init__(
        self, model: CausalTransformerModel, cache: PageCache, memory: PageMemory, allowed: int, graphs: bool = False
    ) -> None:
        self.model, self.cache, self.memory, self._allowed = model, cache, memory, allowed
        self._launches = current_device().kind != "cpu"
        self.graphs = StepGraphs(self._captured) if graphs else None
        config = model.config
        self._ropes = {rope for rope in (config.rope, config.local_rope) if rope is not None}
        self._longest = 1
        self._tables: dict[Rope, tuple[GPUArray, GPUArray]] = {}
        self._short_at: int | None = None

    def expect(self, length: int) -> None:
        """Make tables of positions for replies of this length."""
        if not self._tables or length > self._longest:
            before, self._longest = self._longest, max(length, self._longest)
            try:
                self._tables = {rope: self._table(rope) for rope in self._ropes}
            except BaseException:
                self._longest = before
                raise
            if self.graphs is not None:
                self.graphs.clear()

    def close(self) -> None:
        """Give up weights, pages, tables and captured steps, which keep the arrays that they read."""
        self.graphs = None
        for name in ("model", "memory", "_tables"):
            self.__dict__.pop(name, None)

    def _table(self, rope: Rope) -> tuple[GPUArray, GPUArray]:
        if rope.kind != "longrope" or not rope.is_long(self.model.max_positions):
            return self.model._positions(rope, self._longest)
        # Short and long replies turn by other frequencies: rows of the one table lie behind those of the other.
        long = self.model._positions(rope, self.model.max_positions)
        short = self.model._positions(rope, min(rope.original, self.model.max_positions))
        self._short_at = long[0].shape[0]
        return tuple(layers.concatenate(list(pair)) for pair in zip(long, short, strict=True))

    def run(self, rows: Sequence[Row], before: Drawn | None) -> Drawn:
        """Compute tokens of replies, and draw one for each reply whose known tokens are all computed then.

        Parameters
        ----------
        rows : sequence of (Branch, count)
        before : Drawn, optional
            The step before, whose tokens may be pending.
        """
        lines = sorted(self._lines(rows), key=lambda made: made[1].adjusts)
        drawn = Drawn(None, [target for target, _, _ in lines], rows, [], {})
        logits = self._logits(rows, [row for _, _, row in lines], before)
        if not lines:
            return drawn
        logits = logits[:, : self._allowed]
        chosen = [line for _, line, _ in lines]
        changed, drawn.failed = sampling.process(logits, chosen)
        drawn.tokens = sampling.draw(changed, chosen)
        drawn.wanted = [line.params.logprobs for line in chosen]
        drawn.scored = [i for i, count in enumerate(drawn.wanted) if count is not None]
        if drawn.scored:
            drawn.scores = self._scores(logits, drawn)
        return drawn

    def guess(self, rows: Sequence[Row], most: Sequence[int], depth: int | None = None) -> list[list[int]]:
        """Guess tokens behind those of rows, one by one, each drawn as the token of the reply would be.

        Penalties and the like see no guesses, and no processors are called: that only makes guesses worse.

        Parameters
        ----------
        rows : sequence of Row
            Their last tokens are the replies' last ones; pages for the guesses but the last are there.
        most : sequence of int
            How many guesses for each row, at least one.
        depth : int, optional
            How many layers guess; all by default.
        """
        order = sorted(range(len(rows)), key=lambda i: -most[i])
        made: list[list[int]] = [[] for _ in rows]
        drawn: list[GPUArray] = []
        for place in range(max(most, default=0)):
            now = [rows[i] for i in order if most[i] > place]
            tokens, count = sum(row.tokens + place for row in now), len(now)
            width = max(pages_for(row.branch.computed + row.tokens + place) for row in now)
            # The device has the guesses.
            words, _ = self._words([row._replace(drafts=[0] * place) for row in now], tokens, count, width)
            last = words[4 * tokens + 1 : 4 * tokens + 1 + count] - 1
            if place == 0:
                hidden = self._hidden(from_numpy(words), None, tokens, count, width, depth)
                hidden = layers.embedding(from_numpy(last), hidden) if tokens > count else hidden
            else:
                # What lies before the last guess is computed.
                rest = words[4 * tokens + count + 1 :]
                parts = [words[i * tokens : (i + 1) * tokens][last] for i in range(4)]
                sent = np.concatenate([*parts, np.arange(count + 1, dtype=np.int32), rest])
                hidden = self._hidden(from_numpy(sent), drawn[-1][:count], count, count, width, depth)
            logits = self.model.get_logits(hidden, widen=False)[:, : self._allowed]
            lines = [row.branch.sequence.line(place) for row in now]
            # What the form of a reply allows behind a guess is not asked.
            tokens_now = sampling.draw(logits, [line._replace(mask=None) if place else line for line in lines])
            # Where no token may come there is none to go on with.
            drawn.append(_maximum(tokens_now, 0))
        for tokens_of_place in drawn:
            for i, token in zip(order, tokens_of_place.tolist(), strict=False):
                made[i].append(int(token))
        return made

    def fill(self, row: Row) -> None:
        """Compute tokens of a reply for their keys and values only."""
        width = pages_for(row.branch.computed + row.tokens)
        words, _ = self._words([row], row.tokens, 1, width)
        self._hidden(from_numpy(words), None, row.tokens, 1, width)

    def _logits(self, rows: Sequence[Row], picked: list[int], before: Drawn | None) -> GPUArray:
        """The scores behind tokens of a step."""
        tokens, count = sum(row.tokens + len(row.drafts) for row in rows), len(rows)
        width = max(pages_for(row.branch.computed + row.tokens + len(row.drafts)) for row in rows)
        single = tokens == count and not any(row.branch.sequence.params.prompt_logprobs is not None for row in rows)
        room = bucket(count) if single and self.graphs is not None and not self.graphs.refused else None
        if room != count and not self._launches:
            # Rows that fill a graph up cost time where NumPy computes them.
            room = None
        if room is not None:
            width = 1 << (width - 1).bit_length()
        words, sources = self._words(rows, room or tokens, room or count, width)
        ids = None
        if (sources >= 0).any():
            assert before is not None
            assert before.tokens is not None
            earlier = before.tokens[from_numpy(np.maximum(sources, 0))]
            ids = layers.where(from_numpy(sources >= 0), earlier, from_numpy(words[: len(sources)]))
        if room is not None and self.graphs is not None:
            logits = self.graphs.run(words, ids, room, width)
            if picked != list(range(room)):
                logits = layers.embedding(from_numpy(np.array(picked, np.int32)), logits)
            return logits
        hidden = self._hidden(from_numpy(words), ids, tokens, count, width)
        self._score_prompts(rows, hidden)
        if picked != list(range(tokens)):
            hidden = layers.embedding(from_numpy(np.array(picked, np.int32)), hidden)
        return self.model.get_logits(hidden, widen=False)

    def _words(self, rows: Sequence[Row], tokens: int, count: int, width: int) -> tuple[Array, Array]:
        """All that a step reads beside the cache, and where tokens come from that the host does not know."""
        words = np.empty(4 * tokens + (count + 1) + count + count * width, np.int32)
        ids, positions, turns, to, rest = np.split(words, [tokens, 2 * tokens, 3 * tokens, 4 * tokens])
        starts, lengths, table = np.split(rest, [count + 1, 2 * count + 1])
        sources, slots = np.empty(tokens, np.int32), np.empty(tokens, np.int64)
        parts = [(branch.pages or 0, more, list(drafts)) for branch, more, drafts in rows]
        self.cache.step(parts, ids, sources, positions, slots, starts, lengths, table.reshape(count, width))
        to[:] = slots
        turns[:] = positions
        if self._short_at is not None:
            for i, row in enumerate(rows):
                sequence = row.branch.sequence
                if not any(rope.is_long(len(sequence.prompt) + sequence.limit) for rope in self._ropes):
                    turns[starts[i] : starts[i + 1]] += self._short_at
        return words, sources

    def _hidden(
        self, words: GPUArray, ids: GPUArray | None, tokens: int, count: int, width: int, depth: int | None = None
    ) -> GPUArray:
        """Hidden states of the tokens of a step, by its words on the device."""

        def part(start: int, size: int) -> GPUArray:
            return words[start : start + size]

        at = 4 * tokens
        cache = PagedCache(
            self.memory,
            part(2 * tokens, tokens),
            part(3 * tokens, tokens),
            part(at + 2 * count + 1, count * width).reshape(count, width),
            part(at + count + 1, count),
            part(at, count + 1),
            1 if self._launches and tokens == count else 0,
        )
        step = Step(cache, 0, tokens, part(tokens, tokens), self._tables)
        return self.model._through(part(0, tokens) if ids is None else ids, step, depth)

    def _captured(self, words: GPUArray, count: int, width: int) -> GPUArray:
        return self.model.get_logits(self._hidden(words, None, count, count, width), widen=False)

    @staticmethod
    def _lines(rows: Sequence[Row]) -> Iterator[tuple[tuple[Branch, int, int], Line, int]]:
        """The lines of a step: whose they are, what the draw depends on, the row of the scores."""
        end = 0
        for branch, count, drafts in rows:
            sequence = branch.sequence
            end += count + len(drafts)
            if branch.computed + count < branch.length or sequence.limit == 0:
                continue
            last = end - 1 - len(drafts)
            for guessed in range(len(drafts) + 1):
                yield (branch, 0, guessed), sequence.line(branch.pending, drafts[:guessed]), last + guessed
            for fork, copy in enumerate(branch.forks, 1):
                yield (branch, fork, 0), copy.line(), last

    def _score_prompts(self, rows: Sequence[Row], hidden: GPUArray) -> None:
        """Note the probabilities of tokens of prompts that want them."""
        end = 0
        for branch, count, drafts in rows:
            sequence = branch.sequence
            start, end = end, end + count + len(drafts)
            wanted = sequence.params.prompt_logprobs
            if wanted is None:
                continue
            found = sequence.prompt_logprobs = sequence.prompt_logprobs or [None]
            first = len(found) - 1
            last = min(branch.computed + count, len(sequence.prompt) - 1)
            for at in range(first, last, _SCORED):
                stop = min(at + _SCORED, last)
                row = start + at - branch.computed
                logits = self.model.get_logits(hidden[row : row + stop - at])[:, : self._allowed]
                found += sampling.best(logits, sequence.prompt[at + 1 : stop + 1], wanted)

    @staticmethod
    def _scores(logits: GPUArray, drawn: Drawn) -> tuple[GPUArray, ...]:
        tokens, most = drawn.tokens, max(drawn.wanted[i] or 0 for i in drawn.scored)
        assert tokens is not None
        if len(drawn.scored) < len(drawn.lines):
            where = from_numpy(np.array(drawn.scored, np.int32))
            logits, tokens = layers.embedding(where, logits.contiguous()), tokens[where]
        return sampling.scores(logits, tokens, most)


def page_bytes(config: Any, itemsize: int) -> int:
    """Return the bytes of a page."""
    return int(config.kv_bytes(itemsize)) * PAGE_TOKENS
