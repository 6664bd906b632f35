"""Every architecture against transformers: logits of tiny random models, positions beyond their original ones."""

from __future__ import annotations

import importlib.util
import json
import tracemalloc
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pygpukit import llm
from pygpukit.errors import ModelLoadError
from pygpukit.llm import CausalTransformerModel, detect_model_spec
from pygpukit.llm.loading import load_model, open_checkpoint
from pygpukit.llm.testing import tiny_model


def cases() -> ModuleType:
    """The module beside this one, which the generator of the logits uses too."""
    spec = importlib.util.spec_from_file_location("golden_cases", Path(__file__).parent / "golden_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOLDEN = cases()


def load(folder: Path, tokens: int) -> CausalTransformerModel:
    model = load_model(open_checkpoint(folder))
    model.max_positions = max(tokens, model.max_positions) if model.position_embed is None else model.max_positions
    if model.config.rope is not None and model.config.rope.kind == "dynamic":
        model.max_positions = tokens
    return model


@pytest.mark.parametrize("name", GOLDEN.CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    prompt = GOLDEN.write(name, tmp_path)
    with np.load(GOLDEN.PATH) as golden:
        assert GOLDEN.digest(tmp_path) == golden[f"{name}:digest"], "other weights: run oracle/logits.py"
        expected = golden[name]
    model = load(tmp_path, len(prompt))
    cache = model.new_cache(len(prompt))
    logits = model.get_logits(model.step(prompt, cache)).to_numpy()
    assert np.abs(logits - expected).max() < 1e-4
    # The same a token at a time, after a beginning that is longer than the windows.
    cache = model.new_cache(len(prompt))
    model.step(prompt[:11], cache)
    for place, token in enumerate(prompt[11:], start=11):
        logits = model.get_logits(model.step([token], cache)).to_numpy()
        assert np.abs(logits[0] - expected[place]).max() < 1e-4


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gpt2"])
def test_architectures_are_known_by_their_tensors(name: str, tmp_path: Path) -> None:
    GOLDEN.write(name, tmp_path)
    assert detect_model_spec(open_checkpoint(tmp_path).files.tensor_names).name == name
    with pytest.raises(ValueError, match="Cannot detect model type"):
        detect_model_spec(["a.weight"])


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"model_type": "bert"}, "'bert' is unknown; known are gemma2"),
        ({"hidden_size": "48"}, "hidden_size is '48', and must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 5}, "5 heads cannot share 2"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_parameters": {"rope_type": "new"}}, "rope type 'new' is unknown"),
        ({"rope_parameters": {"rope_type": "linear", "factor": -1}}, "factor of rope must be a positive number"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor of rope must be 5"),
        ({"num_hidden_layers": 1 << 40}, "must be a whole number"),
        ({"num_hidden_layers": 1 << 30}, "at most 4096 are read"),
        (
            {"max_position_embeddings": 1 << 30, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "at most 4194304 with rope type 'dynamic'",
        ),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"tie_word_embeddings": "yes"}, "must be true or false"),
    ],
)
def test_settings_that_cannot_be_are_refused(entries: dict[str, object], reason: str, tmp_path: Path) -> None:
    GOLDEN.write("llama", tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | entries))
    with pytest.raises(ModelLoadError, match=reason):
        open_checkpoint(tmp_path)


def test_tables_of_positions_grow_with_the_sequence(tmp_path: Path) -> None:
    GOLDEN.write("llama", tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    # As many positions as no memory holds tables for.
    (tmp_path / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 1 << 30}))
    model = load_model(open_checkpoint(tmp_path))
    model.step([1, 2, 3], model.new_cache(10))
    (first,) = model._tables.values()
    model.step([1, 2, 3], model.new_cache(5000))
    (second,) = model._tables.values()
    assert (first[0].shape[0], second[0].shape[0]) == (4096, 8192)
    np.testing.assert_array_equal(first[0].to_numpy(), second[0].to_numpy()[:4096])


def test_loading_takes_little_of_the_host(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 512, "head_dim": 32}
    folder = tiny_model("llama", tmp_path, **sizes, num_attention_heads=8)
    checkpoint = open_checkpoint(folder)
    layer = sum(checkpoint.files.tensor_info(n).nbytes for n in checkpoint.files if ".layers.0." in n)
    assert checkpoint.files.file_size > 6 * layer
    load_model(checkpoint)
    tracemalloc.start()
    load_model(checkpoint)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * layer


def test_published_names(tmp_path: Path) -> None:
    assert llm.GPT2Model is llm.LlamaModel is llm.QwenModel is CausalTransformerModel
    prompt = GOLDEN.write("qwen3", tmp_path)
    model = llm.load_qwen3_from_safetensors(tmp_path)
    with pytest.raises(ModelLoadError, match="is of the architecture qwen3, not llama"):
        llm.load_llama_from_safetensors(tmp_path)
    ids = model.generate(prompt, max_new_tokens=5, temperature=0)
    assert ids[:40] == prompt
    assert ids[40:] == list(llm.QwenModel.from_safetensors(str(tmp_path), "float32").generate_stream(prompt, 5, 0))
    assert model.generate(prompt, 5, 0, eos_token_id=ids[42])[40:] == ids[40 : ids.index(ids[42], 40) + 1]
    hidden, past = model.forward(prompt, use_cache=True)
    assert past is not None
    assert (hidden.shape, past[0][0].shape) == ((40, 48), (40, 2, 12))
