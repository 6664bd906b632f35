"""Keys and values stored as codes of 8 bits: the same bits alone and beside others, near the numbers they stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.errors import ModelLoadError
from pygpukit.llm import LLM, SamplingParams
from pygpukit.llm.testing import tiny_model

from .engines import few_pages, stepped
from .test_engine_batches import bits
from .test_quantized import CASES, rewrite, write

CODES = ("fp8", "int8")
DEVICES = [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]
PROMPT = [(7 * i) % 250 + 5 for i in range(40)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("llama") / "tiny")


@pytest.mark.parametrize("kv_dtype", CODES)
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gpt2"])
def test_scores_are_near_those_of_numbers(kv_dtype: str, arch: str, tmp_path: Path) -> None:
    folder = tiny_model(arch, tmp_path)
    with LLM(folder) as plain, LLM(folder, kv_dtype=kv_dtype) as coded:
        expected, found = (np.array(llm.score(PROMPT)) for llm in (plain, coded))
    apart = np.abs(found - expected)
    assert apart.max() > 1e-5, "codes are not used"
    # Of a random model with large weights; float8 keeps 3 bits of mantissa, int8 seven.
    assert apart.mean() < {"fp8": 0.2, "int8": 0.06}[kv_dtype]


@pytest.mark.parametrize("kv_dtype", CODES)
def test_pages_that_move_and_prompts_in_parts_keep_the_bits(
    kv_dtype: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=1, prompt_logprobs=0)
    prompts = [[5 + i] * 20 for i in range(4)]
    with LLM(llama, kv_dtype=kv_dtype, prefix_cache=False) as llm:
        expected = [bits(llm.generate(prompt, params)) for prompt in prompts]
    for host_pages, counted in ((20, "swapped_in"), (0, "recomputed")):
        few_pages(monkeypatch, 8, host_pages)
        with stepped(llama, kv_dtype=kv_dtype, max_batched_tokens=7) as engine:
            made = [engine.llm.submit(prompt, params) for prompt in prompts]
            engine.run()
            assert engine.llm.stats()[counted] > 0
            assert [bits(one.result(0)) for one in made] == expected


@pytest.mark.parametrize("kv_dtype", CODES)
def test_pages_that_are_found_keep_the_bits(kv_dtype: str, llama: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    with LLM(llama, kv_dtype=kv_dtype) as llm:
        first, second = (llm.generate(PROMPT, params) for _ in range(2))
    assert (first.usage.cached, second.usage.cached) == (0, 32)
    assert bits(first) == bits(second)


def test_several_replies_to_a_prompt_copy_pages_with_their_scales(llama: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, n=3, seed=4, ignore_eos=True, logprobs=0)
    with LLM(llama, kv_dtype="int8") as llm:
        forked = bits(llm.generate(PROMPT[:19], params))
        again = bits(llm.generate(PROMPT[:19], params))
    assert forked == again
    assert len({tuple(one[0]) for one in forked}) > 1


def test_scales_of_a_checkpoint(tmp_path: Path) -> None:
    coded, _, stored = write(tmp_path, "compressed tensor")
    attn = "model.layers.{}.self_attn".format
    scales = {f"{attn(0)}.k_scale": [0.02], f"{attn(0)}.v_scale": [0.5], f"{attn(1)}.v_proj.v_scale": [0.01, 4.0]}
    found = {}
    for name, more in (("without", {}), ("with", scales)):
        arrays = {key: np.array(value, np.float32) for key, value in more.items()}
        rewrite(coded, stored | arrays, CASES["compressed tensor"][0])
        with LLM(coded, kv_dtype="fp8") as llm:
            layers = llm._loop.runner.memory.layers
            found[name] = [None if one.scales is None else one.scales.tolist() for one in layers]
            found[f"{name} scores"] = llm.score(PROMPT)
    assert found["without"] == [None, None]
    wanted = [[[[[0.02, 0.02]], [[0.5, 0.5]]]], [[[[1.0, 1.0]], [[0.01, 4.0]]]]]
    np.testing.assert_array_equal(found["with"], np.array(wanted, np.float32))
    assert found["with scores"] != found["without scores"]
    assert np.abs(np.subtract(found["with scores"], found["without scores"])).mean() < 0.2
    for value, text in (([0.0], "must be one positive number"), ([1.0, 1.0, 1.0], "holds 3 numbers")):
        rewrite(coded, stored | {f"{attn(0)}.k_scale": np.array(value, np.float32)}, CASES["compressed tensor"][0])
        with pytest.raises(ModelLoadError, match=rf"self_attn\.k_scale .*{text}"):
            LLM(coded)


def test_memory_of_codes(llama: Path) -> None:
    pages = {}
    for kv_dtype in ("auto", "fp8", "int8"):
        with LLM(llama, kv_dtype=kv_dtype, max_model_len=64) as llm:
            memory = llm._loop.runner.memory
            scales = 0 if memory.scales is None else memory.scales.nbytes
            pages[kv_dtype] = (memory.device.nbytes + scales) // memory.device.shape[0]
            assert pages[kv_dtype] == llm._budget.page
            text = llm.explain()
            assert ("as codes of" in text) == (kv_dtype != "auto")
    # Heads of 10: a scale takes as much as four numbers.
    assert pages["auto"] == 4 * pages["fp8"]
    assert pages["int8"] == pages["fp8"] * 14 // 10


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv_dtype", CODES)
def test_kernels_give_the_same_bits_for_any_cut(kv_dtype: str, device: str, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "head_dim": 16, "num_attention_heads": 4}
    folder = tiny_model("llama", tmp_path, **sizes)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    with LLM(folder) as llm:
        near = llm.score(PROMPT[:12])
    with gp.device(device):
        found = []
        for most in (64, 5):
            options = {"dtype": "bfloat16", "kv_dtype": kv_dtype, "max_model_len": 32, "max_num_seqs": 2}
            with LLM(folder, max_batched_tokens=most, **options) as llm:
                assert llm._loop.runner.memory.device.dtype.name in ("float8_e4m3fn", "int8")
                found.append(llm.generate(PROMPT[:12], params))
    assert bits(found[0]) == bits(found[1])
    scores = [row[token] for row, token in zip(found[0].prompt_logprobs[1:], PROMPT[1:12], strict=True)]
    assert np.abs(np.array(scores) - near).mean() < 0.2
