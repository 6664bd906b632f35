"""Sampling with numbers for parameters, and the logarithms of probabilities."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray, Stream
from pygpukit.array.bridge import from_numpy
from pygpukit.errors import ShapeError
from pygpukit.ops.index.places import take_along_axis
from pygpukit.ops.reduce.derived import logsumexp
from pygpukit.ops.registry import export
from pygpukit.ops.sort.top import topk


@export
@dataclasses.dataclass(frozen=True)
class Penalties:
    """What changes logits before a token is drawn.

    Attributes
    ----------
    counts : GPUArray, optional
        int32, per row and id: how often it has been generated.
    prompt : GPUArray, optional
        bool, per row and id: whether it is in the prompt.
    repetition : float
        Logits of ids in ``counts`` or ``prompt`` are divided by it, multiplied where negative.
    frequency, presence : float
        Subtracted per count, and once where the count is not 0.
    bias : GPUArray, optional
        float32, added before the penalties.
    allowed : GPUArray, optional
        int32, a bit per id: those without are never drawn.

    Examples
    --------
    >>> import pygpukit as gp
    >>> logits = gp.asarray([2.0, 1.5, 0.0], "float32")
    >>> counts = gp.asarray([1, 0, 0], "int32")
    >>> gp.sample(logits, temperature=0.0, penalties=gp.Penalties(counts, frequency=1.0))
    1
    """

    # A default of None would be an attribute of the class, which has no docstring.
    counts: GPUArray | None = dataclasses.field(default_factory=type(None))
    prompt: GPUArray | None = dataclasses.field(default_factory=type(None))
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: GPUArray | None = dataclasses.field(default_factory=type(None))
    allowed: GPUArray | None = dataclasses.field(default_factory=type(None))

    def __post_init__(self) -> None:
        if not self.repetition > 0:
            raise ValueError(f"Penalties: repetition is {self.repetition}; give a positive number, 1 for none")


@export
def sample(
    logits: GPUArray,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    penalties: Penalties | None = None,
    seed: Any = 0,
    counter: Any = 0,
    *,
    stream: Stream | None = None,
) -> Any:
    """Draw a token of one row of logits as an int, or of several rows as an array.

    Parameters
    ----------
    logits : GPUArray
        ``[vocabulary]`` or ``[rows, vocabulary]``.
    temperature, top_k, top_p, min_p
        Numbers, or arrays with an element per row, as `sample_rows` takes them.
    penalties : Penalties, optional
        Mask, bias and penalties; of one row their arrays have one axis.
    seed : int or GPUArray
        Row ``i`` has the seed ``seed + i``, or its own of an array.
    counter : int or GPUArray
        The place of the token in its text: another one is another draw.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    int or GPUArray
        int32 of several rows; -1 where no logit is over -inf.

    Raises
    ------
    ValueError
        If no token of one row may be drawn.

    Examples
    --------
    >>> import pygpukit as gp
    >>> logits = gp.asarray([0.0, 3.0, 1.0], "float32")
    >>> gp.sample(logits, temperature=0.0), gp.sample(logits, top_k=1, seed=7)
    (1, 1)
    """
    from pygpukit.ops.sampling.rows import sample_rows

    if logits.ndim not in (1, 2):
        raise ShapeError(f"sample(): logits have shape {logits.shape}; they must be [vocabulary] or [rows, vocabulary]")
    one = logits.ndim == 1
    rows = 1 if one else logits.shape[0]

    def per_row(value: Any, kind: str, off: float | None = None) -> GPUArray | None:
        if isinstance(value, GPUArray):
            return value
        return None if value == off else from_numpy(np.full(rows, value, kind))

    def per_token(x: GPUArray | None) -> GPUArray | None:
        return x if x is None or not one else x.reshape((1, -1))

    seeds = seed
    if not isinstance(seed, GPUArray):
        seeds = from_numpy(np.uint64(seed & 0xFFFFFFFFFFFFFFFF) + np.arange(rows, dtype=np.uint64))
    chosen = penalties or Penalties()
    tokens = sample_rows(
        logits.reshape((1, -1)) if one else logits,
        per_row(temperature, "float32", 1.0), per_row(top_k, "int32", 0), per_row(top_p, "float32", 1.0),
        per_row(min_p, "float32", 0.0), seeds, per_row(counter, "int64", 0),
        per_row(chosen.repetition, "float32", 1.0), per_row(chosen.frequency, "float32", 0.0),
        per_row(chosen.presence, "float32", 0.0), *map(per_token, (chosen.counts, chosen.prompt, chosen.bias)),
        per_token(chosen.allowed), stream=stream,
    )  # fmt: skip
    if not one:
        return tokens
    token = tokens.item()
    if token < 0:
        raise ValueError("sample(): no token may be drawn: every logit is -inf, NaN or masked")
    return token


@export
def token_logprobs(logits: GPUArray, tokens: GPUArray, *, stream: Stream | None = None) -> GPUArray:
    """Logarithms of the probabilities of tokens, before temperature, penalties and masks: float32.

    Parameters
    ----------
    logits : GPUArray
        ``[rows, vocabulary]``.
    tokens : GPUArray
        int32 or int64 ``[rows]``.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> f"{gp.token_logprobs(gp.zeros((1, 4)), gp.asarray([2]))[0].item():.4f}"
    '-1.3863'
    """
    if logits.ndim != 2 or tokens.shape != logits.shape[:1]:
        raise ShapeError(f"token_logprobs(): logits {logits.shape} and tokens {tokens.shape} do not fit")
    with stream or nullcontext():
        chosen = take_along_axis(logits, tokens.astype("int64")[:, None], axis=1)[:, 0]
        return chosen.astype("float32") - logsumexp(logits.astype("float32"), axis=1)  # type: ignore[no-any-return]


@export
def top_logprobs(logits: GPUArray, n: int, *, stream: Stream | None = None) -> tuple[GPUArray, GPUArray]:
    """Logarithms of the n largest probabilities of rows and the tokens they belong to, before any penalty.

    Of equal ones those with lower ids come first.

    Parameters
    ----------
    logits : GPUArray
        ``[rows, vocabulary]``.
    n : int
        How many per row.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    tuple of GPUArray
        float32 and int64 ``[rows, n]``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> logprobs, tokens = gp.top_logprobs(gp.asarray([[0.0, 50.0, 49.0]]), 2)
    >>> tokens.tolist(), f"{logprobs[0, 0].item():.4f}"
    ([[1, 2]], '-0.3133')
    """
    if logits.ndim != 2:
        raise ShapeError(f"top_logprobs(): logits have shape {logits.shape}; they must be [rows, vocabulary]")
    with stream or nullcontext():
        wide = logits.astype("float32")
        values, tokens = topk(wide, n)
        return values - logsumexp(wide, axis=1, keepdims=True), tokens
