"""Decode strategies: how the next tokens are found over a model's caches of a fixed size.

All of them give the tokens that greedy decoding gives one by one; some compute several at once and drop what was
guessed wrong.

    >>> import tempfile
    >>> from pygpukit.llm.testing import tiny_model
    >>> from pygpukit.llm import DecodeSpeculative, load_model_from_safetensors
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = load_model_from_safetensors(tiny_model("llama", folder))
    >>> for block in model.blocks:
    ...     block.attn.init_fixed_cache(64, dtype="float32")
    >>> strategy = DecodeSpeculative(max_draft_tokens=2, draft_layers=1)
    >>> strategy.bind(model)
    >>> ids, position, stats = strategy.step_speculative(7, 0, 1)
    >>> position == len(ids) == 1 + stats["accepted_count"], stats["draft_count"]
    (True, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.errors import ContextLengthError
from pygpukit.llm import plugins
from pygpukit.llm.arguments import one_of, positive
from pygpukit.llm.buffers import DecodeBuffers
from pygpukit.llm.decoder import CausalTransformerModel
from pygpukit.llm.drafters import NgramIndex, accepted, improved

__all__ = ["DecodeBatch", "DecodeJacobi", "DecodeM1", "DecodeM1Graph", "DecodeSpeculative", "DecodeStrategy"]

Stats = dict[str, Any]
Found = tuple[list[int], int, Stats]

_GUESSES = ("repeat", "ngram", "greedy")


class DecodeStrategy:
    """How a model finds the next tokens; `bind` gives it the model."""

    def __init__(self) -> None:
        self._model: CausalTransformerModel | None = None

    def bind(self, model: CausalTransformerModel) -> None:
        """Use a model, whose layers have caches of a fixed size."""
        self._model = model

    @property
    def model(self) -> CausalTransformerModel:
        """The model that `bind` gave."""
        if self._model is None:
            raise ValueError(f"{type(self).__name__} has no model: call bind(model) first")
        return self._model

    @staticmethod
    def named(name: str, **options: Any) -> DecodeStrategy:
        """Return a strategy by its name: m1, m1_graph, batch, speculative, jacobi, or a plugin's.

        Examples
        --------
        >>> DecodeStrategy.named("jacobi", n_tokens=4).n_tokens
        4
        """
        found: type[DecodeStrategy] | None = _NAMED.get(name) or (plugins.find("decode", name) if name else None)
        if found is None or not issubclass(found, DecodeStrategy):
            known = ", ".join([*_NAMED, *plugins.names("decode")])
            raise ValueError(f"there is no decode strategy {name!r}; known are {known}")
        return found(**options)

    def step(self, token_id: int, position: int, context_len: int, buffers: DecodeBuffers | None = None) -> GPUArray:
        """Return the scores [1, vocabulary] of what follows a token, without guesses.

        ``context_len`` is ``position + 1``; with buffers, the layers write to those.
        """
        hidden = self.model._fixed_step([token_id], position, context_len, buffers)
        return self.model.get_logits(hidden, None if buffers is None else buffers.logits)

    def init_graph(self, max_seq_len: int = 512) -> None:
        """Record the step as a graph.

        Raises
        ------
        ValueError
            If the strategy has none.
        """
        raise ValueError(f"{type(self).__name__} has no graph; DecodeM1Graph and DecodeBatch have")

    def has_graph(self) -> bool:
        """Whether a graph was recorded."""
        return False


class DecodeM1(DecodeStrategy):
    """A token at a time."""


class DecodeM1Graph(DecodeStrategy):
    """A token at a time by a recorded graph."""

    def init_graph(self, max_seq_len: int = 512) -> None:
        """Record the step for contexts of at most `max_seq_len` tokens."""
        self.model.init_decode_graph(max_seq_len)

    def has_graph(self) -> bool:
        """Whether a graph was recorded."""
        return self._model is not None and 1 in self._model._graphs

    def step_graph(self, token_id: int, position: int, context_len: int) -> GPUArray:
        """Return the scores [1, vocabulary] of what follows a token; the next call overwrites them."""
        return self.model._decode_step_graph_replay(token_id, position, context_len)

    def step(self, token_id: int, position: int, context_len: int, buffers: DecodeBuffers | None = None) -> GPUArray:
        """The same as `step_graph`: the graph has buffers of its own."""
        return self.step_graph(token_id, position, context_len)


class DecodeBatch(DecodeStrategy):
    """Several tokens of one sequence at once.

    Parameters
    ----------
    batch_size : int
        The most at once; a graph takes exactly so many.
    """

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = positive("batch_size", batch_size)

    def init_graph(self, max_seq_len: int = 512) -> None:
        """Record the step of `batch_size` tokens for contexts of at most `max_seq_len`."""
        self.model._need_caches(max_seq_len)
        self.model._graphs[self.batch_size] = self.model._record(self.batch_size, max_seq_len)

    def has_graph(self) -> bool:
        """Whether a graph was recorded."""
        return self._model is not None and self.batch_size in self._model._graphs

    def step_batch(
        self, token_ids: Sequence[int], start_position: int, context_len: int, buffers: DecodeBuffers | None = None
    ) -> GPUArray:
        """Return the hidden states [tokens, hidden] of tokens that begin at `start_position`.

        ``context_len`` is ``start_position + len(token_ids)``. ``buffers`` are of ``max_batch_size`` rows or more.
        """
        self._check(token_ids, self.batch_size)
        if buffers is not None and buffers.batch is not None:
            buffers = buffers.batch
        return self.model._fixed_step(token_ids, start_position, context_len, buffers)

    def step_graph(self, token_ids: Sequence[int], start_position: int, context_len: int) -> GPUArray:
        """Return the scores [tokens, vocabulary] behind `batch_size` tokens; the next call overwrites them."""
        if len(token_ids) != self.batch_size:
            raise ValueError(
                f"{len(token_ids)} tokens, and the graph takes {self.batch_size}: use step_batch for fewer"
            )
        return self.model._replay(token_ids, start_position, context_len).logits

    @staticmethod
    def _check(token_ids: Sequence[int], most: int) -> None:
        if not 1 <= len(token_ids) <= most:
            raise ValueError(f"{len(token_ids)} tokens, and batch_size is {most}")


class DecodeSpeculative(DecodeStrategy):
    """The first layers guess tokens one by one, and the whole model verifies them at once.

    Parameters
    ----------
    max_draft_tokens : int
        Guesses per step.
    draft_layers : int
        Layers that guess; all where the model has fewer.
    """

    def __init__(self, max_draft_tokens: int = 4, draft_layers: int = 8) -> None:
        super().__init__()
        self.max_draft_tokens = positive("max_draft_tokens", max_draft_tokens)
        self.draft_layers = positive("draft_layers", draft_layers)

    def step_speculative(self, token_id: int, position: int, context_len: int) -> Found:
        """Return tokens that follow, the position of the last of them, and counts.

        Parameters
        ----------
        token_id : int
            The last accepted token.
        position, context_len : int
            Its position, and the tokens with it.

        Returns
        -------
        tuple of list of int, int, dict
            At least one id; the next step begins with the last of them at the returned position. Counts are
            ``draft_count`` and ``accepted_count``, the guesses that were right.
        """
        model = self.model
        room = _room(model, position, context_len)
        guesses: list[int] = []
        for _ in range(min(self.max_draft_tokens, room)):
            at = position + len(guesses)
            last = guesses[-1] if guesses else token_id
            hidden = model._fixed_step([last], at, at + 1, depth=self.draft_layers)
            guesses.append(_best(model, hidden))
        ids = model._verify([token_id, *guesses], position)
        return ids, position + len(ids), {"draft_count": len(guesses), "accepted_count": len(ids) - 1}


class DecodeJacobi(DecodeStrategy):
    """Several positions are guessed and improved together until they no longer change (Jacobi's iteration).

    Parameters
    ----------
    n_tokens : int
        Positions at once.
    max_iter : int
        Passes of the model per step at most.
    init_strategy : str
        The first guesses: ``"repeat"`` the token, ``"ngram"`` what followed it before, or ``"greedy"``, computed one by
        one.
    """

    def __init__(self, n_tokens: int = 8, max_iter: int = 3, init_strategy: str = "repeat") -> None:
        super().__init__()
        self.n_tokens, self.max_iter = positive("n_tokens", n_tokens), positive("max_iter", max_iter)
        one_of("init_strategy", init_strategy, _GUESSES)
        self.init_strategy = init_strategy

    def step_jacobi(self, token_id: int, position: int, context_len: int) -> Found:
        """Return tokens that follow, the position of the last of them, and counts.

        Parameters and result are those of `DecodeSpeculative.step_speculative`; counts are ``iterations``,
        ``converged``, ``draft_count`` and ``accepted_count``.
        """
        model = self.model
        n = min(self.n_tokens, _room(model, position, context_len) + 1)
        guesses = self._first(token_id, position, n - 1)
        found: list[int] = []
        before = dict(model.draft_counts)
        iterations = 0
        while iterations < self.max_iter and len(found) < n:
            iterations += 1
            # Keys and values of what was found are in the caches: only the rest is computed again.
            at = position + len(found)
            best = model._best_of([found[-1] if found else token_id, *guesses], at)
            right = accepted(guesses, best)
            model._count(len(guesses), right, at + right + 1)
            found += best[: right + 1]
            guesses = improved(best[:-1], right)
        drafted, kept = (model.draft_counts[key] - before[key] for key in ("drafted", "accepted"))
        stats = {"iterations": iterations, "converged": len(found) == n, "draft_count": drafted,
                 "accepted_count": kept}  # fmt: skip
        return found, position + len(found), stats

    def step_lookahead(self, token_id: int) -> tuple[list[int], Stats]:
        """`step_jacobi` at the model's own position, which moves on.

        ``model.set_lookahead_confirmed_pos`` says where it begins, such as behind a prompt.
        """
        position = self.model.get_lookahead_confirmed_pos()
        ids, _, stats = self.step_jacobi(token_id, position, position + 1)
        self.model.commit_lookahead_all(len(ids))
        return ids, stats

    def _first(self, token_id: int, position: int, n: int) -> list[int]:
        model = self.model
        if self.init_strategy == "greedy":
            guesses: list[int] = []
            for at in range(position, position + n):
                last = guesses[-1] if guesses else token_id
                guesses.append(_best(model, model._fixed_step([last], at, at + 1)))
            return guesses
        guesses = []
        if self.init_strategy == "ngram":
            # What followed the last time that the token was there, as far back as positions are known.
            first = next((p for p in range(position - 1, -1, -1) if p not in model._seen), -1) + 1
            index = NgramIndex(1, 1)
            index.extend([*(model._seen[p] for p in range(first, position)), token_id])
            guesses = index.following(n)
        return guesses or [token_id] * n


_NAMED: dict[str, type[DecodeStrategy]] = {
    "m1": DecodeM1,
    "m1_graph": DecodeM1Graph,
    "batch": DecodeBatch,
    "speculative": DecodeSpeculative,
    "jacobi": DecodeJacobi,
}


def _best(model: CausalTransformerModel, hidden: GPUArray) -> int:
    return model._argmax(hidden)[0]


def _room(model: CausalTransformerModel, position: int, context_len: int) -> int:
    """Positions that are left behind a token."""
    room = min(model._size(), model.max_positions) - position - 1
    if room < 0:
        raise ContextLengthError(f"position {position} is behind the last one that there is room for")
    if context_len != position + 1:
        raise ValueError(
            f"context_len is {context_len}, and must be {position + 1}: the token at {position} is the last"
        )
    return room
