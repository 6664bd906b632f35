"""Pages of a KV cache from Python: the arrays of steps, and what is refused. The rules are tested in Rust."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pygpukit import _pygpukit_rust as native


def arrays(tokens: int, sequences: int, width: int) -> dict[str, Any]:
    return {
        "ids": np.full(tokens, 7, np.int32),
        "sources": np.full(tokens, 7, np.int32),
        "positions": np.full(tokens, 7, np.int32),
        "slots": np.full(tokens, 7, np.int64),
        "starts": np.full(sequences + 1, 7, np.int32),
        "lengths": np.full(sequences, 7, np.int32),
        "table": np.full((sequences, width), 7, np.int32),
    }


def test_a_step_of_a_prompt_a_drawn_token_and_drafts() -> None:
    cache = native.PageCache(16, 4)
    prompt, decode, drafted = (cache.begin(tokens) for tokens in ([1, 2, 3, 4, 5], [11, 12, 13, 14], [21, 22]))
    for sequence, count in ((prompt, 5), (decode, 5), (drafted, 4)):
        assert cache.reserve(sequence, count)
    cache.advance(decode, 4)
    cache.push_pending(decode, 3)
    step = arrays(12, 4, 3)
    assert cache.step([(prompt, 3), (decode, 1), (drafted, 2, [23, 24])], **step) == (8, 3)
    np.testing.assert_array_equal(step["ids"], [1, 2, 3, 0, 21, 22, 23, 24, 0, 0, 0, 0])
    np.testing.assert_array_equal(step["sources"], [-1, -1, -1, 3, -1, -1, -1, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(step["positions"], [0, 1, 2, 4, 0, 1, 2, 3, 0, 0, 0, 0])
    np.testing.assert_array_equal(step["starts"], [0, 3, 4, 8, 8])
    np.testing.assert_array_equal(step["lengths"], [3, 5, 4, 0])
    pages = [cache.sequence(s)["pages"] for s in (prompt, decode, drafted)]
    np.testing.assert_array_equal(step["table"], [[pages[0][0], 0, 0], [*pages[1], 0], [pages[2][0], 0, 0], [0, 0, 0]])
    own = [pages[0][0] * 4 + i for i in range(3)] + [pages[1][1] * 4] + [pages[2][0] * 4 + i for i in range(4)]
    np.testing.assert_array_equal(step["slots"], [*own, -1, -1, -1, -1])


def test_a_common_beginning_is_shared() -> None:
    cache = native.PageCache(16, 4)
    first = cache.begin([1, 2, 3, 4, 5])
    assert cache.reserve(first, 5)
    cache.advance(first, 5)
    second, other = cache.begin([1, 2, 3, 4, 9]), cache.begin([1, 2, 3, 4, 9], "another tenant")
    assert cache.sequence(second)["pages"] == cache.sequence(first)["pages"][:1]
    assert cache.sequence(other)["found"] == 0
    stats = cache.stats()
    assert (stats["asked"], stats["found"], stats["used"], stats["available"]) == (15, 4, 2, 14)
    for sequence in (first, second, other):
        cache.release(sequence)
    assert (cache.available, cache.stats()["kept"]) == (16, 1)
    cache.clear()
    assert cache.stats()["kept"] == 0


def test_moves_to_the_host_and_copies_of_a_fork() -> None:
    cache = native.PageCache(8, 4, 4)
    sequence = cache.begin([1, 2, 3, 4, 5])
    assert cache.reserve(sequence, 5)
    cache.advance(sequence, 5)
    made = cache.fork(sequence)
    assert made is not None
    copy, pages = made
    assert pages == (cache.sequence(sequence)["pages"][1], cache.sequence(copy)["pages"][1])
    moves = cache.swap_out(copy)
    assert moves is not None
    assert len(moves) == 2
    assert cache.sequence(copy)["on_host"]
    back = cache.swap_in(copy)
    assert back is not None
    assert len(back) == 1  # the full page is still there, shared with the first sequence


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ids": np.zeros(3, np.int64)}, "."),
        ({"ids": np.zeros(16, np.int32)[::2]}, "'ids' of a step must be a contiguous array"),
        ({"sources": np.zeros(7, np.int32)}, "do not fit together"),
        ({"starts": np.zeros(2, np.int32)}, "do not fit together"),
        ({"slots": np.zeros(0, np.int64)}, "do not fit together"),
        ({"lengths": np.zeros(0, np.int32)}, "do not fit together"),
    ],
)
def test_arrays_that_cannot_be_filled(change: dict[str, Any], match: str) -> None:
    cache = native.PageCache(8, 4)
    sequence = cache.begin([1, 2])
    cache.reserve(sequence, 2)
    with pytest.raises((ValueError, BufferError), match=match):
        cache.step([(sequence, 2)], **{**arrays(8, 2, 2), **change})


def test_arrays_that_share_memory_or_are_read_only_are_refused() -> None:
    cache = native.PageCache(8, 4)
    sequence = cache.begin([1, 2])
    cache.reserve(sequence, 2)
    step = arrays(8, 2, 2)
    with pytest.raises(ValueError, match="must not share memory"):
        cache.step([(sequence, 2)], **{**step, "sources": step["ids"]})
    step["ids"].setflags(write=False)
    with pytest.raises(ValueError, match="'ids' of a step must be a contiguous array"):
        cache.step([(sequence, 2)], **step)


@pytest.mark.parametrize("arguments", [(0, 4), (4, 0)])
def test_a_cache_has_pages_and_tokens(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be made"):
        native.PageCache(*arguments)


def test_sequences_that_are_gone_are_named() -> None:
    cache = native.PageCache(4, 4)
    sequence = cache.begin([1])
    cache.release(sequence)
    with pytest.raises(ValueError, match=f"there is no sequence {sequence}: it was released"):
        cache.reserve(sequence, 1)
    with pytest.raises(ValueError, match="at least one token"):
        cache.begin([])
