"""What a request gives: the reply, why it ended, and what it took."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

__all__ = ["Piece", "RequestOutput", "Timing", "Usage"]

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Tokens: of the prompt, of those already computed, of the reply; drafted and accepted by speculation."""

    prompt: int
    completion: int
    cached: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds to the first token, and to the last."""

    first_token: float
    total: float

    def rate(self, tokens: int) -> float:
        """Return tokens per second after the first."""
        spent = self.total - self.first_token
        return (tokens - 1) / spent if tokens > 1 and spent > 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished reply.

    Attributes
    ----------
    text
        Without the tokens and texts that ended it.
    token_ids
        With the token that ended it.
    thinking
        What the model thought before it answered, of models that do.
    finish_reason
        ``"stop"``, ``"length"``, ``"cancelled"`` or ``"error"``.
    stop_reason
        The text or the token that ended it, None for the model's own end.
    logprobs, prompt_logprobs
        Per token a dict of ids to logarithmic probabilities, the chosen one among them.
    outputs
        The replies, of which this is the first.
    """

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    stop_reason: str | int | None = None
    thinking: str = ""
    tool_calls: list[Any] = dataclasses.field(default_factory=list)
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    outputs: list[RequestOutput] = dataclasses.field(default_factory=list)


class Piece(NamedTuple):
    """A part of a reply as it appears: whole characters.

    Attributes
    ----------
    text
        Of the answer; all pieces together are the output's text.
    thinking
        Of the thought.
    token_ids
        Tokens since the piece before.
    output
        The finished reply, with the last piece.
    """

    text: str
    thinking: str
    token_ids: list[int]
    output: RequestOutput | None = None
