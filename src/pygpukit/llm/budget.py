"""How many pages an engine has: what is left of its memory beside weights and the arrays of a step."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from pygpukit._pygpukit_rust import MemoryPool
from pygpukit.config import parse_size
from pygpukit.core import memory as _memory
from pygpukit.core.device import current_device, synchronize
from pygpukit.errors import OutOfMemoryError
from pygpukit.llm.architecture import ModelSpec, wanted
from pygpukit.llm.config import TransformerConfig
from pygpukit.llm.kv_types import KVType
from pygpukit.llm.pages import PAGE_TOKENS

__all__ = ["Budget", "check_memory", "plan_pages", "reserve"]

# Of what the device has free once the weights are there, without a limit of the caller.
_SHARE = 0.85
# On the CPU device pages are taken from the same memory as everything else.
_HOST_BYTES = 1 << 30
_MOST_HOST_BYTES = 8 << 30
# Arrays of more than _SMALL bytes are mapped alone, in pieces of this size; smaller ones share some.
_PIECE, _SMALL = 2 << 20, 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of an engine.

    Attributes
    ----------
    weights, workspace, page
        Bytes of the weights, of the arrays of a step at most, of a page.
    pages, host_pages
        How many there are.
    total
        What `memory=` gives, 0 without.
    """

    weights: int
    workspace: int
    page: int
    pages: int
    host_pages: int
    total: int = 0


def check_memory(memory: str | int | None, config: TransformerConfig, spec: ModelSpec, itemsize: int) -> None:
    """Refuse a limit that weights which are not quantised would not fit, before any is loaded.

    Raises
    ------
    OutOfMemoryError
        With both numbers.
    """
    if memory is None:
        return
    total = parse_size(memory)
    least = 0 if itemsize < 4 else sum(math.prod(want.shape) for want in wanted(config, spec) if want.role != "head")
    if least * itemsize > total:
        raise OutOfMemoryError(
            f"memory={memory!r} is {total} bytes, and the weights alone take {least * itemsize}: give more memory, or "
            "load them in a smaller dtype"
        )


def reserve(memory: str | int | None) -> MemoryPool | None:
    """Return a pool with the memory that an engine may have, reserved; None without a limit."""
    if memory is None:
        return None
    total = parse_size(memory)
    try:
        # Only whole pieces can be kept free for the engine.
        return MemoryPool(quota=total, guarantee=total // _PIECE * _PIECE or total, name="llm")
    except ValueError as error:
        raise OutOfMemoryError(f"memory={memory!r} cannot be reserved, give more: {error}") from error


def plan_pages(
    config: TransformerConfig,
    dtype: Any,
    kv: KVType,
    weights: int,
    limited: bool,
    longest: int,
    max_num_seqs: int,
    max_batched_tokens: int,
    beside: Sequence[int] = (),
) -> Budget:
    """Return how an engine divides its memory, that of the current pool.

    Parameters
    ----------
    config : TransformerConfig
    dtype : DataType
    kv : KVType
    weights : int
        Bytes of the files.
    limited : bool
        The current pool is the engine's, and has a quota.
    longest, max_num_seqs, max_batched_tokens : int
    beside : sequence of int
        Bytes that other arrays have for each page, such as those of a draft model.

    Raises
    ------
    OutOfMemoryError
        If there is no room for the keys and values of one reply of the longest kind.
    """
    own = [PAGE_TOKENS * nbytes for nbytes in kv.bytes_of_token(config)]
    page, parts = sum(own), [*own, *beside]
    both = sum(parts)
    workspace = _workspace(config, dtype.itemsize, max_batched_tokens, max_num_seqs, longest)
    device, one = current_device(), -(-longest // PAGE_TOKENS)
    if not limited:
        # What a closed engine had may still be kept for arrays to come.
        synchronize()
        _memory.trim()
    there = _memory.stats()
    total = int(there["quota"]) if limited else 0
    if limited:
        # Weights may have moved to the host already.
        weights = there["used"] + there["evicted"]
        free = total - weights - workspace
    else:
        free = int(_SHARE * min(there["device_free"], there["available"])) - workspace
        if device.kind == "cpu":
            free = min(free, max(_HOST_BYTES, one * both))
    most = min(max(free, 0) // both, one * max_num_seqs)
    # The largest number of pages whose arrays fit.
    pages = bisect_right(range(1, most + 1), free, key=lambda n: sum(_taken(n * part) for part in parts))
    if pages < one:
        raise OutOfMemoryError(
            f"a reply of {longest} tokens needs {one * both} bytes of keys and values ({both // PAGE_TOKENS} a token), "
            f"and {max(free, 0)} bytes are left beside {weights} of weights and {workspace} of a step: "
            f"{pages * PAGE_TOKENS} tokens fit. Lower max_model_len or max_batched_tokens, or give more memory="
        )
    return Budget(weights, workspace, page, pages, min(pages, max(1, _MOST_HOST_BYTES // page)), total)


def _workspace(config: TransformerConfig, itemsize: int, tokens: int, rows: int, longest: int) -> int:
    """Bytes of the arrays that live at once in a step, and of the tables of positions, rounded up."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    widest = max(3 * config.intermediate_size, 2 * heads)
    logits = _taken(4 * min(rows, tokens) * config.vocab_size)
    ropes = sum(rope is not None for rope in (config.rope, config.local_rope))
    return (
        4 * _taken(tokens * itemsize * config.hidden_size)
        + _taken(tokens * itemsize * widest)
        + 4 * logits
        + 2 * ropes * _taken(4 * longest * config.head_dim // 2)
    )


def _taken(nbytes: int) -> int:
    """Bytes that an array takes of a pool: large ones whole pieces, small ones up to a quarter more."""
    return -(-nbytes // _PIECE) * _PIECE if nbytes > _SMALL else nbytes + nbytes // 4
