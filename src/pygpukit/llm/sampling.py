"""How the next token is chosen: the parameters of a request, and the choice from scores of the vocabulary.

Draws depend on the seed and on the place of the token in the reply only, so a request gets the same reply alone or
beside others.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.llm import callbacks, plugins, structured
from pygpukit.ops.registry import functions as _functions
from pygpukit.ops.sampling import functions

__all__ = ["Line", "SamplingParams", "best", "best_tokens", "draw", "no_token", "process", "sample_token"]

_concatenate, _sample_rows = _functions()["concatenate"], _functions()["sample_rows"]
Array = np.ndarray[Any, Any]

_LARGEST_SEED, _MOST_REPLIES = 1 << 64, 4096
# Of float32 and int32, which parameters of rows have.
_LARGEST, _LARGEST_K = float(np.finfo(np.float32).max), (1 << 31) - 1


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
    schema, regex, grammar
        The form of the reply, one of them: a JSON schema as an object, its text, or a class with
        ``model_json_schema``; a regular expression; a grammar in llguidance's dialect of Lark.
    max_thinking_tokens
        Length of the thought of a model that thinks, in a conversation; its end is then the only token that may come.
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

        real("temperature", lambda v: 0 <= v <= _LARGEST, "0 or a positive number")
        real("top_p", lambda v: 0 < v <= 1, "above 0 and at most 1")
        real("min_p", lambda v: 0 <= v <= 1, "from 0 to 1")
        real("repetition_penalty", lambda v: 0 < v <= _LARGEST, "a positive number")
        real("frequency_penalty", lambda v: -2 <= v <= 2, "from -2 to 2")
        real("presence_penalty", lambda v: -2 <= v <= 2, "from -2 to 2")
        whole("top_k", 0)
        whole("max_tokens", 0)
        whole("min_tokens", 0)
        whole("n", 1)
        for name in ("logprobs", "prompt_logprobs"):
            whole(name, 0, none=True)
        whole("seed", 0, none=True)
        whole("max_thinking_tokens", 0, none=True)
        if self.seed is not None and self.seed >= _LARGEST_SEED:
            raise ValueError(f"seed is {self.seed}, and must be below 2**64")
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")
        if self.n > _MOST_REPLIES:
            raise ValueError(f"n is {self.n}, and must be at most {_MOST_REPLIES}")
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n is {self.n} with temperature 0: all replies would be the same")
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            texts = (value,) if isinstance(value, str) else _tuple(name, value, "texts")
            if not all(isinstance(text, str) and text for text in texts):
                raise ValueError(f"{name} is {value!r}, and must be texts that are not empty")
            object.__setattr__(self, name, texts)
        for name in ("stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            if value is not None or name == "stop_token_ids":
                ids = _tuple(name, value, "ids of tokens")
                if not all(hasattr(token, "__index__") for token in ids):
                    raise ValueError(f"{name} is {value!r:.80}, and must be ids of tokens, whole numbers")
                object.__setattr__(self, name, tuple(map(operator.index, ids)))
        if self.allowed_token_ids == ():
            raise ValueError("allowed_token_ids is empty: no token could come")
        bias: Any = self.logit_bias
        if not isinstance(bias, Mapping) or not all(
            hasattr(token, "__index__") and isinstance(value, int | float) for token, value in bias.items()
        ):
            raise ValueError(f"logit_bias is {self.logit_bias!r:.80}, and must be a number for each id of a token")
        if type(self.ignore_eos) is not bool:
            raise ValueError(f"ignore_eos is {self.ignore_eos!r}, and must be True or False")
        if not all(-_LARGEST <= value <= _LARGEST for value in self.logit_bias.values()):
            raise ValueError("logit_bias has a value that is not finite; allowed_token_ids leaves tokens out")
        object.__setattr__(
            self, "processors", tuple(map(_processor, _tuple("processors", self.processors, "functions")))
        )
        structured.grammar_of(self)

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens that were there have other scores."""
        return bool(self.repetition_penalty != 1 or self.frequency_penalty or self.presence_penalty)

    @property
    def adjusts(self) -> bool:
        """Whether scores are changed before a token is chosen."""
        return (
            self.counts_tokens or bool(self.logit_bias) or self.allowed_token_ids is not None or bool(self.processors)
        )


def _tuple(name: str, value: Any, what: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{name} is {value!r:.80}, and must be a list of {what}")
    return tuple(value)


def _processor(given: Any) -> Callable[[list[int], Array], Array]:
    """A processor itself, for its name too."""
    found = plugins.find("processor", given) if isinstance(given, str) and given else given
    if not callable(found):
        known = ", ".join(plugins.names("processor")) or "none"
        raise ValueError(f"there is no processor {given!r:.80}; plugins have {known}, and a function is one")
    made: Callable[[list[int], Array], Array] = found
    return made


class Line(NamedTuple):
    """What the choice of one token depends on beside its scores.

    Attributes
    ----------
    params
    seed, position
        What the draw depends on.
    prompt, reply
        Tokens so far, for penalties.
    banned
        Tokens that must not come now.
    mask
        A bit per token that may come by the form of the reply, int32; None for any.
    """

    params: SamplingParams
    seed: int = 0
    position: int = 0
    prompt: Sequence[int] = ()
    reply: Sequence[int] = ()
    banned: Sequence[int] = ()
    mask: Array | None = None

    @property
    def adjusts(self) -> bool:
        """Whether scores are changed before a token is chosen: such lines are cheapest behind all others."""
        return self.params.adjusts or bool(self.banned) or self.mask is not None


def draw(logits: GPUArray, lines: Sequence[Line]) -> GPUArray:
    """Return a token for each row of scores, int32; -1 where none may come.

    A token depends on its row and its line alone.

    Parameters
    ----------
    logits : GPUArray
        [lines, vocabulary].
    lines : sequence of Line
    """
    plain = next((i for i, line in enumerate(lines) if line.adjusts), len(lines))
    parts = []
    if plain:
        parts.append(_draw(logits[:plain], lines[:plain], {}))
    if plain < len(lines):
        parts.append(_draw(logits[plain:], lines[plain:], _adjustments(lines[plain:], logits.shape[1])))
    return parts[0] if len(parts) == 1 else _concatenate(parts)


def process(logits: GPUArray, lines: Sequence[Line]) -> tuple[GPUArray, dict[int, Exception]]:
    """Return scores as the processors of their lines change them, and what went wrong by line."""
    failed: dict[int, Exception] = {}
    changed = [i for i, line in enumerate(lines) if line.params.processors]
    if changed:
        logits = logits.astype("float32")
    for i in changed:
        scores = logits[i].to_numpy()
        try:
            for processor in lines[i].params.processors:
                ids = [*lines[i].prompt, *lines[i].reply]
                scores = np.asarray(callbacks.call("processor", processor, ids, scores), np.float32)
            if scores.shape != (logits.shape[1],):
                raise ValueError(f"a processor returned scores of shape {scores.shape}, not ({logits.shape[1]},)")
            if not (scores > -np.inf).any():
                raise ValueError("no token may come: a processor returned -inf or NaN for every one")
        except Exception as error:
            failed[i] = error
        except BaseException as error:
            # SystemExit is meant for a program, not for the engine's thread and the other requests.
            failed[i] = RuntimeError(f"a processor raised {error!r}")
        else:
            logits[i] = from_numpy(np.ascontiguousarray(scores))
    return logits, failed


def best_tokens(logits: GPUArray) -> GPUArray:
    """Return the best token of each row of scores, int32; -1 where all are -inf or NaN, which `argmax` would hide.

    Examples
    --------
    >>> best_tokens(gp.asarray([[0.0, float("nan"), 2.0, 2.0], [float("nan")] * 4], "float32")).tolist()
    [2, -1]
    """
    tokens: GPUArray = _sample_rows(logits, from_numpy(np.zeros(logits.shape[0], np.float32)))
    return tokens


def _draw(logits: GPUArray, lines: Sequence[Line], adjustments: Mapping[str, GPUArray]) -> GPUArray:
    every = [line.params for line in lines]
    if not adjustments and all(params.temperature == 0 for params in every):
        return best_tokens(logits)

    def column(name: str, kind: str, off: float) -> GPUArray | None:
        values = [min(getattr(params, name), _LARGEST_K) for params in every]
        return None if all(value == off for value in values) else from_numpy(np.array(values, kind))

    tokens: GPUArray = _sample_rows(
        logits,
        from_numpy(np.array([params.temperature for params in every], np.float32)),
        column("top_k", "int32", 0),
        column("top_p", "float32", 1.0),
        column("min_p", "float32", 0.0),
        from_numpy(np.array([line.seed & 0xFFFFFFFFFFFFFFFF for line in lines], np.uint64)),
        from_numpy(np.array([line.position for line in lines], np.int64)),
        **adjustments,
    )
    return tokens


def _adjustments(lines: Sequence[Line], size: int) -> dict[str, GPUArray]:
    """What lines ask of their scores, as arrays of `sample_rows`."""
    every = [line.params for line in lines]
    made: dict[str, Any] = {}
    for name, field, off in (
        ("repetition", "repetition_penalty", 1.0), ("frequency", "frequency_penalty", 0.0),
        ("presence", "presence_penalty", 0.0),
    ):  # fmt: skip
        values = [getattr(params, field) for params in every]
        if any(value != off for value in values):
            made[name] = np.array(values, np.float32)
    if made and any(line.reply for line in lines):
        counts = np.zeros((len(lines), size), np.int32)
        for row, line in zip(counts, lines, strict=True):
            if line.params.counts_tokens:
                row += np.bincount(np.asarray(line.reply, np.int64), minlength=size)[:size].astype(np.int32)
        made["counts"] = counts
    if "repetition" in made:
        there = made["prompt"] = np.zeros((len(lines), size), bool)
        for row, line in zip(there, lines, strict=True):
            if line.params.repetition_penalty != 1:
                row[[token for token in line.prompt if token < size]] = True
    if any(params.logit_bias for params in every):
        bias = made["bias"] = np.zeros((len(lines), size), np.float32)
        for row, params in zip(bias, every, strict=True):
            for token, value in params.logit_bias.items():
                if token < size:
                    row[token] = value
    if any(line.banned or line.params.allowed_token_ids is not None or line.mask is not None for line in lines):
        may = np.ones((len(lines), -(-size // 32) * 32), bool)
        for row, line in zip(may, lines, strict=True):
            if line.params.allowed_token_ids is not None:
                row[:] = False
                row[[token for token in line.params.allowed_token_ids if token < size]] = True
            row[list(line.banned)] = False
        bits = made["allowed"] = np.packbits(may, axis=1, bitorder="little").view(np.int32)
        for words, line in zip(bits, lines, strict=True):
            if line.mask is not None:
                words &= line.mask
    return {name: from_numpy(array) for name, array in made.items()}


def scores(logits: GPUArray, tokens: GPUArray, count: int) -> tuple[GPUArray, ...]:
    """Return the logarithmic probabilities of tokens, and if `count` is not 0 of the best, with their ids."""
    given = functions.token_logprobs(logits, tokens)
    return (given, *functions.top_logprobs(logits, min(count, logits.shape[1]))) if count else (given,)


def best(logits: GPUArray, tokens: Sequence[int], count: int) -> list[dict[int, float]]:
    """Return for each row of scores the logarithmic probabilities of the best tokens and of the given one.

    Examples
    --------
    >>> rows = best(gp.zeros((1, 4)), [2], 1)
    >>> sorted(rows[0])
    [0, 2]
    """
    given, *top = (part.tolist() for part in scores(logits, from_numpy(np.asarray(tokens, np.int64)), count))
    rows = [{int(token): float(value)} for token, value in zip(tokens, given, strict=True)]
    for row, numbers, ids in zip(rows, *top, strict=True) if top else ():
        for token, value in zip(ids, numbers, strict=True):
            row.setdefault(int(token), value)
    return rows


def sample_token(logits: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> int:
    """Return a token for scores of the vocabulary, a NumPy or device array; NumPy's global state seeds the draw.

    Raises
    ------
    ValueError
        If every score is -inf or NaN.

    Examples
    --------
    >>> sample_token(np.array([0.0, 3.0, 1.0], np.float32), temperature=0)
    1
    """
    scores = logits if isinstance(logits, GPUArray) else from_numpy(np.asarray(logits, np.float32))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    token = int(draw(scores.reshape(1, -1), [Line(params, seed=int(np.random.randint(1 << 31)))]).item())
    if token < 0:
        raise no_token(params)
    return token


def no_token(params: SamplingParams, limited: bool = False) -> ValueError:
    """Return the error of a row of scores that no token may come by; `limited` where more than `params` limits it."""
    if limited or params.adjusts:
        return ValueError("no token may come: every score is -inf, NaN or not allowed")
    return ValueError(
        "no token may come: the model's scores are NaN or -inf for every token. Its weights are damaged, or its "
        "numbers leave the range of the type that it computes in: try dtype='bfloat16' or 'float32'"
    )
