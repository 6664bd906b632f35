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

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.llm import plugins
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.sampling import functions

__all__ = ["SamplingParams", "best", "sample", "sample_token"]

_argmax = FUNCTIONS["argmax"]
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
        Called first, with the ids so far and the scores as NumPy's; each returns scores. A text is the name of a
        plugin's.

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
    processors: Sequence[Any] = ()

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
        object.__setattr__(self, "processors", tuple(map(_processor, self.processors)))
        for name in ("schema", "regex", "grammar", "max_thinking_tokens"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not available yet: replies of a given form are not there")


def _processor(given: Any) -> Callable[[list[int], Array], Array]:
    """A processor itself, for its name too."""
    found = plugins.find("processor", given) if isinstance(given, str) and given else given
    if not callable(found):
        known = ", ".join(plugins.names("processor")) or "none"
        raise ValueError(f"there is no processor {given!r:.80}; plugins have {known}, and a function is one")
    made: Callable[[list[int], Array], Array] = found
    return made


def sample(
    logits: GPUArray,
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
    logits : GPUArray
        One row, float32.
    params : SamplingParams
    seed, position : int
        What the draw depends on.
    prompt, reply : sequence of int
        Tokens so far, for penalties.
    banned : sequence of int
        Tokens that must not come now.
    """
    if params.processors:
        scores = logits.to_numpy()
        for processor in params.processors:
            scores = np.asarray(processor([*prompt, *reply], scores), np.float32)
        logits = from_numpy(scores)
    penalties = _penalties(params, logits.shape[0], prompt, reply, banned)
    if params.temperature == 0 and penalties is None:
        return int(_argmax(logits).item())
    limits = params.temperature, params.top_k, params.top_p, params.min_p
    return int(functions.sample(logits, *limits, penalties=penalties, seed=seed, counter=position))


def _penalties(
    params: SamplingParams, size: int, prompt: Sequence[int], reply: Sequence[int], banned: Sequence[int]
) -> functions.Penalties | None:
    """What the parameters ask of the scores, None for nothing."""
    counts = seen = bias = mask = None
    counted = params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
    if counted and reply:
        counts = from_numpy(np.bincount(np.asarray(reply, np.int64), minlength=size)[:size].astype(np.int32))
    if params.repetition_penalty != 1:
        there = np.zeros(size, bool)
        there[[token for token in prompt if token < size]] = True
        seen = from_numpy(there)
    if params.logit_bias:
        added = np.zeros(size, np.float32)
        for token, value in params.logit_bias.items():
            if token < size:
                added[token] = value
        bias = from_numpy(added)
    if banned or params.allowed_token_ids is not None:
        may = np.full(-(-size // 32) * 32, params.allowed_token_ids is None)
        may[[token for token in params.allowed_token_ids or () if token < size]] = True
        may[list(banned)] = False
        mask = from_numpy(np.packbits(may, bitorder="little").view(np.int32))
    if counts is None and seen is None and bias is None and mask is None:
        return None
    return functions.Penalties(
        counts=counts,
        prompt=seen,
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        bias=bias,
        allowed=mask,
    )


def best(logits: GPUArray, tokens: Sequence[int], count: int) -> list[dict[int, float]]:
    """Return for each row of scores the logarithmic probabilities of the best tokens and of the given one.

    Examples
    --------
    >>> rows = best(gp.zeros((1, 4)), [2], 1)
    >>> sorted(rows[0])
    [0, 2]
    """
    given = functions.token_logprobs(logits, from_numpy(np.asarray(tokens, np.int64))).tolist()
    rows = [{int(token): float(value)} for token, value in zip(tokens, given, strict=True)]
    if count:
        values, places = (part.tolist() for part in functions.top_logprobs(logits, min(count, logits.shape[1])))
        for row, ids, numbers in zip(rows, places, values, strict=True):
            for token, value in zip(ids, numbers, strict=True):
                row.setdefault(token, value)
    return rows


def sample_token(logits: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> int:
    """Return a token for scores of the vocabulary, a NumPy or device array; NumPy's global state seeds the draw.

    Examples
    --------
    >>> sample_token(np.array([0.0, 3.0, 1.0], np.float32), temperature=0)
    1
    """
    scores = logits if isinstance(logits, GPUArray) else from_numpy(np.asarray(logits, np.float32))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    return sample(scores.reshape(-1), params, seed=int(np.random.randint(1 << 31)))
