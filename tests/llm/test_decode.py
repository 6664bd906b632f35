"""Decode strategies and caches of a fixed size: every one gives the tokens of plain greedy decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.errors import ContextLengthError
from pygpukit.llm import (
    CausalTransformerModel,
    DecodeBatch,
    DecodeBuffers,
    DecodeJacobi,
    DecodeM1,
    DecodeM1Graph,
    DecodeSpeculative,
    PrefillBuffers,
    load_model_from_safetensors,
)
from pygpukit.llm.testing import tiny_model

PROMPT = [5, 60, 7, 200, 33, 60, 7]
N, SIZE = 12, 48
# A model that begins to repeat itself, so that guesses can be right: a small vocabulary.
SMALL = {"vocab_size": 9, "num_hidden_layers": 2, "max_position_embeddings": 64}


def load(folder: Path, arch: str = "llama", **sizes: Any) -> CausalTransformerModel:
    return load_model_from_safetensors(tiny_model(arch, folder, seed=3, **sizes), "float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalTransformerModel:
    return load(tmp_path_factory.mktemp("decode"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> CausalTransformerModel:
    return load(tmp_path_factory.mktemp("small"), **SMALL)


def prefill(model: CausalTransformerModel, prompt: list[int], size: int = SIZE) -> int:
    """As published programs do it: the model's keys and values are copied to the caches."""
    for block in model.blocks:
        block.attn.init_fixed_cache(size, dtype=model.dtype)
    hidden, past = model(prompt, use_cache=True)
    assert past is not None
    for block, (k, v) in zip(model.blocks, past, strict=True):
        gp.kv_cache_prefill_gqa(k, block.attn._k_cache, block.attn.num_heads, start_pos=0)
        gp.kv_cache_prefill_gqa(v, block.attn._v_cache, block.attn.num_heads, start_pos=0)
    model.set_lookahead_confirmed_pos(len(prompt))
    return int(model.get_logits(hidden[-1:]).to_numpy().argmax())


def greedy(model: CausalTransformerModel, prompt: list[int], n: int = N) -> list[int]:
    return model.generate(prompt, n, temperature=0)[len(prompt) :]


def by_steps(
    model: CausalTransformerModel, prompt: list[int], step: Callable[[int, int, int], Any], n: int = N
) -> list[int]:
    """Tokens where a step gives scores, or tokens and a position."""
    ids, position = [prefill(model, prompt)], len(prompt)
    while len(ids) < n:
        found = step(ids[-1], position, position + 1)
        if isinstance(found, tuple):
            new, position, _ = found
            ids += new
        else:
            assert found.shape == (1, model.config.vocab_size)
            ids.append(int(found.to_numpy().argmax()))
            position += 1
        assert position == len(prompt) + len(ids) - 1
    return ids[:n]


@pytest.mark.parametrize(
    ("arch", "sizes"),
    [
        ("llama", {}),
        ("qwen3", {}),
        ("gpt2", {}),
        ("gemma2", {"sliding_window": 8}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    ],
)
def test_every_strategy_is_plain_greedy(arch: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    model = load(tmp_path, arch, **sizes)
    expected = greedy(model, PROMPT)
    single, graph = DecodeM1(), DecodeM1Graph()
    speculative, jacobi = DecodeSpeculative(3, 1), DecodeJacobi(4)
    for strategy in (single, graph, speculative, jacobi):
        strategy.bind(model)
    buffers = DecodeBuffers.allocate(model.config, "float32", vocab_size=model.config.vocab_size)
    assert by_steps(model, PROMPT, single.step) == expected
    assert by_steps(model, PROMPT, lambda *at: single.step(*at, buffers)) == expected
    assert by_steps(model, PROMPT, speculative.step_speculative) == expected
    assert by_steps(model, PROMPT, jacobi.step_jacobi) == expected
    prefill(model, PROMPT)
    assert not graph.has_graph()
    graph.init_graph(SIZE)
    assert graph.has_graph()

    def replayed(*at: int) -> Any:
        if at[1] == len(PROMPT):
            # The caches are new ones since `prefill`.
            graph.init_graph(SIZE)
        return graph.step_graph(*at)

    assert by_steps(model, PROMPT, replayed) == expected


@pytest.mark.parametrize("guess", ["repeat", "ngram", "greedy"])
@pytest.mark.parametrize("seed", [0, 1])
def test_guesses_that_are_right_are_taken_at_once(small: CausalTransformerModel, guess: str, seed: int) -> None:
    prompt = np.random.default_rng(seed).integers(0, 9, 5).tolist()
    expected = greedy(small, prompt, 30)
    jacobi = DecodeJacobi(5, 3, guess)
    jacobi.bind(small)
    before = dict(small.draft_counts)
    ids, counted, steps = [prefill(small, prompt)], {"drafted": 0, "accepted": 0}, 0
    while len(ids) < 30:
        new, stats = jacobi.step_lookahead(ids[-1])
        ids += new
        counted["drafted"] += stats["draft_count"]
        counted["accepted"] += stats["accepted_count"]
        steps += stats["iterations"]
        assert small.get_lookahead_confirmed_pos() == len(prompt) + len(ids) - 1
    assert ids[:30] == expected
    # Every pass gives one token, and one more for every guess that is right.
    assert len(ids) == 1 + steps + counted["accepted"]
    assert {key: small.draft_counts[key] - before[key] for key in before} == counted
    assert 0 < counted["accepted"] <= counted["drafted"]
    if guess == "greedy":
        assert counted["accepted"] == counted["drafted"]


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    strategy=st.one_of(
        st.builds(DecodeSpeculative, st.integers(1, 6), st.integers(1, 3)),
        st.builds(DecodeJacobi, st.integers(1, 8), st.integers(1, 4), st.sampled_from(["repeat", "ngram", "greedy"])),
    ),
)
def test_any_strategy_after_any_prompt(
    small: CausalTransformerModel, prompt: list[int], strategy: DecodeSpeculative | DecodeJacobi
) -> None:
    strategy.bind(small)
    step = strategy.step_speculative if isinstance(strategy, DecodeSpeculative) else strategy.step_jacobi
    assert by_steps(small, prompt, step, 20) == greedy(small, prompt, 20)


def test_all_layers_guess_right(small: CausalTransformerModel) -> None:
    strategy = DecodeSpeculative(max_draft_tokens=3, draft_layers=8)
    strategy.bind(small)
    first = prefill(small, [1, 2, 3])
    ids, position, stats = strategy.step_speculative(first, 3, 4)
    assert (len(ids), position, stats) == (4, 7, {"draft_count": 3, "accepted_count": 3})
    assert [first, *ids] == greedy(small, [1, 2, 3], 5)


def test_the_end_of_the_caches(small: CausalTransformerModel) -> None:
    expected = greedy(small, [1, 2, 3], 6)
    for strategy in (DecodeSpeculative(4, 1), DecodeJacobi(8)):
        strategy.bind(small)
        ids, position = [prefill(small, [1, 2, 3], size=8)], 3
        step = strategy.step_speculative if isinstance(strategy, DecodeSpeculative) else strategy.step_jacobi
        while position < 8:
            new, position, _ = step(ids[-1], position, position + 1)
            ids += new
        assert ids[:6] == expected
        assert len(ids) == 6
        with pytest.raises(ContextLengthError, match="position 8 is behind"):
            step(ids[-1], 8, 9)


def test_several_tokens_at_once(model: CausalTransformerModel) -> None:
    expected = model.get_logits(model(PROMPT)[0]).to_numpy()
    batch = DecodeBatch(batch_size=4)
    batch.bind(model)
    for buffers in (None, DecodeBuffers.allocate(model.config, "float32", max_batch_size=5)):
        prefill(model, PROMPT[:1])
        hidden = [batch.step_batch(PROMPT[1:5], 1, 5, buffers).to_numpy()]
        hidden.append(batch.step_batch(PROMPT[5:], 5, 7, buffers).to_numpy())
        logits = model.get_logits(gp.from_numpy(np.concatenate(hidden))).to_numpy()
        np.testing.assert_allclose(logits, expected[1:], atol=2e-5)
    assert not batch.has_graph()
    batch.init_graph(SIZE)
    logits = batch.step_graph(PROMPT[1:5], 1, 5).to_numpy()
    np.testing.assert_allclose(logits, expected[1:5], atol=2e-5)
    with pytest.raises(ValueError, match="the graph takes 4"):
        batch.step_graph(PROMPT[:2], 1, 3)
    with pytest.raises(ValueError, match="batch_size is 4"):
        batch.step_batch(PROMPT, 0, 7)


def test_jacobi_steps_of_the_model(small: CausalTransformerModel) -> None:
    prompt = [1, 2, 3]
    expected = greedy(small, prompt, 12)
    first = prefill(small, prompt)
    with pytest.raises(ValueError, match=r"call init_jacobi_decode\(\) first"):
        small.jacobi_decode_step([first], 3)
    small.init_jacobi_decode(lookahead_k=3, max_seq_len=SIZE)
    # All guesses right, the second wrong, none.
    assert small.jacobi_decode_step(expected[:4], 3) == expected[1:5]
    wrong = (expected[6] + 1) % 9
    assert small.jacobi_decode_step([*expected[4:6], wrong], 7) == expected[5:7]
    assert small.jacobi_decode_step([expected[6]], 9) == [expected[7]]
    with pytest.raises(ValueError, match="at most 3 guesses"):
        small.jacobi_decode_step([1] * 5, 10)


def test_a_step_takes_no_device_memory(model: CausalTransformerModel) -> None:
    expected = greedy(model, PROMPT, 4)
    first = prefill(model, PROMPT)
    buffers = DecodeBuffers.allocate(model.config, "float32")
    shapes = buffers.hidden.shape, buffers.q.shape, buffers.k.shape, buffers.v.shape, buffers.attn_out.shape
    assert shapes == ((1, 48), (1, 6, 10), (1, 2, 10), (1, 2, 10), (6, 1, 10))
    model._decode_step_zero_alloc(first, 7, 8, buffers)
    with gp.memory.MemoryPool("64MiB") as pool:
        hidden = model._decode_step_zero_alloc(expected[1], 8, 9, buffers)
        assert pool.stats()["allocations"] == 0
    assert hidden is buffers.hidden
    assert int(model.get_logits(hidden).to_numpy().argmax()) == expected[2]
    # The parts are those of the step: what was turned is in the caches.
    np.testing.assert_array_equal(buffers.turned.to_numpy()[0, :, 0], model.blocks[-1].attn._k_cache.to_numpy()[::3, 8])


def test_scores_in_buffers(model: CausalTransformerModel) -> None:
    expected = greedy(model, PROMPT, 3)
    first = prefill(model, PROMPT)
    strategy = DecodeM1()
    strategy.bind(model)
    buffers = DecodeBuffers.allocate(model.config, "float32", vocab_size=259)
    strategy.step(first, 7, 8, buffers)
    with gp.memory.MemoryPool("64MiB") as pool:
        logits = strategy.step(expected[1], 8, 9, buffers)
        assert pool.stats()["allocations"] == 0
    assert logits is buffers.logits
    assert int(logits.to_numpy().argmax()) == expected[2]


def test_prefill_with_buffers(model: CausalTransformerModel) -> None:
    buffers = PrefillBuffers.allocate(model.config, max_seq_len=16, dtype="float32")
    hidden, past = model._prefill_with_buffers(PROMPT, buffers)
    expected, expected_past = model(PROMPT, use_cache=True)
    np.testing.assert_allclose(hidden.to_numpy(), expected.to_numpy(), atol=2e-5)
    assert past is not None
    assert expected_past is not None
    np.testing.assert_allclose(past[1][0].to_numpy(), expected_past[1][0].to_numpy(), atol=2e-5)


def test_snapshots(model: CausalTransformerModel) -> None:
    first = prefill(model, PROMPT)
    saved = model.snapshot_kv_cache()
    arrays = [block.attn._k_cache for block in model.blocks]
    expected = model._decode_step_fixed_cache(first, 7, 8).to_numpy()
    for token in (3, 4):
        model._decode_step_fixed_cache(token, 2, 3)
    assert not np.array_equal(model.snapshot_kv_cache()[0][0], saved[0][0])
    model.restore_kv_cache(saved)
    assert all(a is b.attn._k_cache for a, b in zip(arrays, model.blocks, strict=True))
    for (k, v), (k_now, v_now) in zip(saved, model.snapshot_kv_cache(), strict=True):
        np.testing.assert_array_equal(k, k_now)
        np.testing.assert_array_equal(v, v_now)
    np.testing.assert_array_equal(model._decode_step_fixed_cache(first, 7, 8).to_numpy(), expected)
    with pytest.raises(ValueError, match="the snapshot has 1 layers"):
        model.restore_kv_cache(saved[:1])
    prefill(model, PROMPT, size=20)
    with pytest.raises(ValueError, match=r"float32\[6, 48, 10\], and the caches are float32\[6, 20, 10\]"):
        model.restore_kv_cache(saved)


def test_lookahead_positions(small: CausalTransformerModel) -> None:
    first = prefill(small, [1, 2, 3])
    assert small.get_lookahead_confirmed_pos() == 3
    small._decode_step_fixed_cache_batch([first, 4, 5], 3, 6)
    small.commit_lookahead_all(1)
    assert small.get_lookahead_confirmed_pos() == 4
    small.reset_lookahead_all()
    with pytest.raises(ValueError, match="1 positions cannot be accepted: 0 were computed"):
        small.commit_lookahead_all(1)
    with pytest.raises(ValueError, match="the position is 999"):
        small.set_lookahead_confirmed_pos(999)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    model = load(tmp_path)
    strategy = DecodeM1Graph()
    with pytest.raises(ValueError, match=r"call bind\(model\) first"):
        strategy.step_graph(1, 0, 1)
    strategy.bind(model)
    with pytest.raises(ValueError, match=r"call block\.attn\.init_fixed_cache"):
        model._decode_step_fixed_cache(1, 0, 1)
    with pytest.raises(ValueError, match="float16, and the model computes in float32"):
        model.blocks[0].attn.init_fixed_cache(32, "float16")
    model.blocks[0].attn.init_fixed_cache(32)
    assert model.blocks[0].attn._k_cache.dtype is model.dtype
    prefill(model, PROMPT)
    with pytest.raises(ValueError, match="there is no graph"):
        strategy.step_graph(1, 7, 8)
    strategy.init_graph(16)
    with pytest.raises(ContextLengthError, match="the graph takes 16"):
        strategy.step_graph(1, 16, 17)
    with pytest.raises(ValueError, match="context_len is 9, and must be 8"):
        strategy.step_graph(1, 7, 9)
    with pytest.raises(ContextLengthError, match="49 positions, and there is room for 48"):
        model._decode_step_fixed_cache(1, 48, 49)
    with pytest.raises(ValueError, match="the caches have 48 places"):
        strategy.init_graph(64)
    prefill(model, PROMPT)
    with pytest.raises(ValueError, match="other ones than the graph was made for"):
        strategy.step_graph(1, 7, 8)
    buffers = DecodeBuffers.allocate(model.config)
    with pytest.raises(ValueError, match="the buffers are float16, and the model computes in float32"):
        model._decode_step_zero_alloc(1, 7, 8, buffers)
    with pytest.raises(ValueError, match="2 tokens, and the buffers have rows for 1"):
        model._fixed_step([1, 2], 7, 9, DecodeBuffers.allocate(model.config, "float32"))
    for made in (lambda: DecodeBatch(0), lambda: DecodeSpeculative(0), lambda: DecodeJacobi(init_strategy="x")):
        with pytest.raises(ValueError, match="must be"):
            made()
    with pytest.raises(ValueError, match="DecodeM1 has no graph"):
        DecodeM1().init_graph()


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param("emulated", "float32", marks=pytest.mark.nvrtc),
        pytest.param("cuda", "float32", marks=pytest.mark.cuda),
        pytest.param("cuda", "bfloat16", marks=pytest.mark.cuda),
    ],
)
def test_kernels_give_one_set_of_bits(device: str, dtype: str, tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path, num_hidden_layers=1, head_dim=16)
    with gp.device(device):
        model = load_model_from_safetensors(folder, dtype)
        expected = model.get_logits(model([5, 6, 7])[0]).to_numpy()
        prefill(model, [5], size=16)
        buffers = DecodeBuffers.allocate(model.config, dtype)
        single = model.get_logits(model._decode_step_zero_alloc(6, 1, 2, buffers)).to_numpy()
        model.init_decode_graph(16)
        replayed = model._decode_step_graph_replay(7, 2, 3).to_numpy()
        both = model.get_logits(model._decode_step_fixed_cache_batch([6, 7], 1, 3)).to_numpy()
    np.testing.assert_array_equal(np.concatenate((single, replayed)), expected[1:])
    np.testing.assert_array_equal(both, expected[1:])
