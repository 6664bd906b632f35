"""Models through the kernels, on the emulator: values near those of the CPU device, bits that no cut changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.llm import LLM, RequestOutput, SamplingParams
from pygpukit.llm.loading import load_model, open_checkpoint
from pygpukit.llm.testing import tiny_gguf, tiny_model

DEVICES = [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]
IDS = [5, 6, 7, 8, 9, 10]
# Half a unit in the last place of bfloat16 at the size of the logits, a few times over the layers.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.15}


def logits(path: Path, dtype: str, cuts: list[int], device: str) -> np.ndarray:
    with gp.device(device):
        model = load_model(open_checkpoint(path), dtype)
        cache, at, found = model.new_cache(len(IDS)), 0, []
        for count in cuts:
            found.append(model.get_logits(model.step(IDS[at : at + count], cache)).to_numpy())
            at += count
    return np.concatenate(found)


def check(path: Path, dtype: str, device: str) -> None:
    whole = logits(path, dtype, [6], device)
    assert np.abs(whole - logits(path, "float32", [6], "cpu")).max() < TOLERANCE[dtype]
    for cuts in ([1, 1, 1, 1, 1, 1], [2, 4], [5, 1]):
        np.testing.assert_array_equal(whole.view(np.uint32), logits(path, dtype, cuts, device).view(np.uint32))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("arch", "dtype"), [("llama", "bfloat16"), ("gemma2", "float32"), ("gpt2", "float32")])
def test_kernels_give_the_logits_and_no_cut_changes_a_bit(arch: str, dtype: str, device: str, tmp_path: Path) -> None:
    sizes = {"n_layer": 1, "n_head": 3} if arch == "gpt2" else {"num_hidden_layers": 1, "head_dim": 16}
    check(tiny_model(arch, tmp_path, **sizes), dtype, device)


@pytest.mark.parametrize("device", DEVICES)
def test_matrices_stay_in_their_blocks(device: str, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "q.gguf", kind="Q8_0", num_layers=1)
    with gp.device(device):
        model = load_model(open_checkpoint(path), "bfloat16")
    assert isinstance(model.blocks[0].attn.qkv.weight, gp.quant.QuantTensor)
    check(path, "bfloat16", device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("arch", "dtype"), [("llama", "bfloat16"), ("gpt2", "float32")])
def test_the_engine_gives_the_bits_of_a_request_alone(arch: str, dtype: str, device: str, tmp_path: Path) -> None:
    """Eager and in graphs, with tokens that the host learns a step late, beside others, from pages that are found."""
    sizes = {"n_layer": 1, "n_head": 3} if arch == "gpt2" else {"num_hidden_layers": 1, "head_dim": 16}
    path = tiny_model(arch, tmp_path, **sizes)
    prompts = [[5, 60, 7, 200, 33], [9] * 20, [7, 8]]
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=1)
    drawn = SamplingParams(seed=3, top_k=30, max_tokens=4, ignore_eos=True, logprobs=0, frequency_penalty=0.5)

    def bits(made: list[RequestOutput]) -> list[object]:
        return [(one.token_ids, one.logprobs) for one in made]

    with gp.device(device):
        with LLM(path, dtype=dtype, max_model_len=64, max_num_seqs=4, graphs=False) as llm:
            alone = [bits([llm.generate(prompt, one)])[0] for one in (params, drawn) for prompt in prompts]
        with LLM(path, dtype=dtype, max_model_len=64, max_num_seqs=4, max_batched_tokens=7) as llm:
            llm._loop.ahead = True
            requests = [llm.submit(prompt, one) for one in (params, drawn) for prompt in prompts]
            assert bits([request.result(300) for request in requests]) == alone
            assert bits(llm.generate(prompts, params)) == alone[:3]
            assert llm.stats()["graphs"] > 0
            assert llm.stats()["cached_tokens"] > 0


@pytest.mark.nvrtc
def test_what_a_closed_engine_had_is_there_for_the_next(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    with gp.device(native.open_cpu(64 << 20, emulated=True, sm_count=2)):
        pages = []
        for _ in range(2):
            with LLM(path, dtype="float32", max_model_len=64, max_num_seqs=100_000, max_batched_tokens=64) as llm:
                pages.append(llm.stats()["pages"])
    assert pages[0] == pages[1] > 4
