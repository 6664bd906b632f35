"""How the next token is chosen: the parameters of a request, and the choice from scores of the vocabulary.

Draws depend on the seed and on the place of the token in the reply only, so a request gets the same reply alone or
beside others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["SamplingParams", "log_softmax", "sample", "sample_token"]

Array = np.ndarray[Any, Any]

_LARGEST_SEED = 1 << 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What a request asks of its reply; checked when it is made.

    Attributes
    ----------
    temperature
        0 takes the best token, of equal ones the one with the lowest id.
    top_k, top_p, min_p
        Only the `top_k` best tokens (0 for all), the best that together have `top_p` of the probability, and those
        with at least `min_p` times the best one's.
    max_tokens, min_tokens
        Length of the reply.
    n
        Replies to one prompt.
    stop
        Texts that end a reply, and are no part of it.
    stop_token_ids
        Tokens that do.
    ignore_eos
        Go on after the model's own end.
    seed
        Of the draws; drawn itself where None.
    logprobs, prompt_logprobs
        How many of the best tokens are reported for each token, by their logarithmic probabilities before penalties.
    repetition_penalty, frequency_penalty, presence_penalty
        Against tokens that were there: in prompt and reply, per time in the reply, once in the reply.
    logit_bias
        Added to the scores of tokens.
    bad_words
        Texts that a reply must not have.
    allowed_token_ids
        The only tokens that may come.
    processors
        Called with the ids so far and the scores; each returns scores.

    Examples
    --------
    >>> SamplingParams(temperature=0, max_tokens=16).top_p
    1.0
    >>> SamplingParams(top_p=0)
    Traceback (most recent call last):
    ValueError: top_p is 0, and must be above 0 and at most 1
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 256
    min_tokens: int = 0
    n: int = 1
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] | None = None
    schema: Any = None
    regex: str | None = None
    grammar: str | None = None
    max_thinking_tokens: int | None = None
    processors: Sequence[Callable[[list[int], Array], Array]] = ()

    def __post_init__(self) -> None:
        def real(name: str, holds: Callable[[float], bool], what: str) -> None:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (holds(value)):
                raise ValueError(f"{name} is {value!r}, and must be {what}")

        def whole(name: str, least: int, none: bool = False) -> None:
            value = getattr(self, name)
            if none and value is None:
                return
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}, and must be a whole number of at least {least}")

        real("temperature", lambda v: 0 <= v < math.inf, "0 or a positive number")
        real("top_p", lambda v: 0 < v <= 1, "above 0 and at most 1")
        real("min_p", lambda v: 0 <= v <= 1, "from 0 to 1")
        real("repetition_penalty", lambda v: 0 < v < math.inf, "a positive number")
        real("frequency_penalty", lambda v: -2 <= v <= 2, "from -2 to 2")
        real("presence_penalty", lambda v: -2 <= v <= 2, "from -2 to 2")
        whole("top_k", 0)
        whole("max_tokens", 0)
        whole("min_tokens", 0)
        whole("n", 1)
        for name in ("logprobs", "prompt_logprobs"):
            whole(name, 0, none=True)
        whole("seed", 0, none=True)
        if self.seed is not None and self.seed >= _LARGEST_SEED:
            raise ValueError(f"seed is {self.seed}, and must be below 2**64")
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n is {self.n} with temperature 0: all replies would be the same")
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            texts = (value,) if isinstance(value, str) else tuple(value)
            if not all(isinstance(text, str) and text for text in texts):
                raise ValueError(f"{name} is {value!r}, and must be texts that are not empty")
            object.__setattr__(self, name, texts)
        for name in ("stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(int(token) for token in value))
        if self.allowed_token_ids == ():
            raise ValueError("allowed_token_ids is empty: no token could come")
        if not all(math.isfinite(value) for value in self.logit_bias.values()):
            raise ValueError("logit_bias has a value that is not finite; allowed_token_ids leaves tokens out")
        for name in ("schema", "regex", "grammar", "max_thinking_tokens"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not available yet: replies of a given form are not there")


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of the probabilities, in float32, of scores of one or several rows.

    Examples
    --------
    >>> np.exp(log_softmax(np.zeros(4, np.float32))).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float32))
    return result


def sample(
    logits: Array,
    params: SamplingParams,
    *,
    seed: int = 0,
    position: int = 0,
    prompt: Sequence[int] = (),
    reply: Sequence[int] = (),
    banned: Sequence[int] = (),
) -> int:
    """Return the next token for scores of the vocabulary.

    Parameters
    ----------
    logits : numpy.ndarray
        One row, float32.
    params : SamplingParams
    seed, position : int
        What the draw depends on.
    prompt, reply : sequence of int
        Tokens so far, for penalties.
    banned : sequence of int
        Tokens that must not come now.
    """
    scores = np.array(logits, np.float32)
    if params.allowed_token_ids is not None:
        kept = scores[list(params.allowed_token_ids)]
        scores[:] = -np.inf
        scores[list(params.allowed_token_ids)] = kept
    if banned:
        scores[list(banned)] = -np.inf
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    _penalise(scores, params, prompt, reply)
    for processor in params.processors:
        scores = np.asarray(processor([*prompt, *reply], scores), np.float32)
    if params.temperature == 0:
        return int(np.argmax(scores))
    return draw(scores, params.temperature, params.top_k, params.top_p, params.min_p, seed, position)


def draw(scores: Array, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int) -> int:
    """Return a token drawn by its probability among those that the limits leave."""
    scaled = scores.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    order = np.arange(scores.size)
    if top_k and top_k < scores.size:
        order = best_places(scores, top_k)
    if top_p < 1:
        total = weights[order].sum()
        # Most of the probability is with few tokens, and sorting all takes longer than the rest.
        for count in (min(256, order.size), order.size):
            best = order[best_places(scores[order], count)]
            before = np.cumsum(weights[best]) - weights[best]
            if before[-1] + weights[best[-1]] >= top_p * total or count == order.size:
                # A token stays while those before it have less than top_p.
                order = best[before < top_p * total]
                break
    if min_p:
        order = order[weights[order] >= min_p]
    # The largest of scores and Gumbel noise is a draw by probability; the noise of a token depends on its id alone.
    noise = np.random.Generator(np.random.Philox(key=[seed, position])).random(scores.size)
    with np.errstate(divide="ignore"):
        gumbel = -np.log(-np.log(noise[order]))
    return int(order[int(np.argmax(scaled[order] + gumbel))])


def best_places(scores: Array, count: int) -> Array:
    """Places of the largest scores in descending order, of equal ones the first."""
    if count < scores.size:
        least = np.partition(scores, scores.size - count)[scores.size - count]
        places = np.flatnonzero(scores >= least)
    else:
        places = np.arange(scores.size)
    best: Array = places[np.argsort(-scores[places], kind="stable")][:count]
    return best


def sample_token(logits: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> int:
    """Return a token for scores of the vocabulary, as NumPy or device array; the draw depends on NumPy's global state.

    Examples
    --------
    >>> sample_token(np.array([0.0, 3.0, 1.0], np.float32), temperature=0)
    1
    """
    host = np.asarray(logits.to_numpy() if hasattr(logits, "to_numpy") else logits, np.float32).reshape(-1)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    return sample(host, params, seed=int(np.random.randint(1 << 31)))


def _penalise(scores: Array, params: SamplingParams, prompt: Sequence[int], reply: Sequence[int]) -> None:
    if params.repetition_penalty != 1:
        seen = np.unique(np.array([*prompt, *reply], np.int64))
        values = scores[seen]
        scores[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if reply and (params.frequency_penalty or params.presence_penalty):
        tokens, counts = np.unique(np.array(reply, np.int64), return_counts=True)
        scores[tokens] -= params.frequency_penalty * counts + params.presence_penalty
