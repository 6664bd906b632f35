"""Quantising on load: numbers by the formats' definitions, and the report of what it costs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from pygpukit.cli import main
from pygpukit.errors import ModelLoadError
from pygpukit.llm import LLM, quantization_report
from pygpukit.llm.loading import load_model, open_checkpoint
from pygpukit.llm.safetensors import SafeTensorsFile
from pygpukit.llm.testing import tiny_model, write_safetensors

Array = Any

IDS = [5, 6, 7, 8, 9, 10, 200, 33]
SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160,
}  # fmt: skip
DEVICES = [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]


def rounded(w: Array, quantization: str) -> Array:
    """What a matrix becomes: a scale per row, or for 4 bits per 64 or 32 inputs."""
    if quantization == "int4":
        group = 64 if w.shape[1] % 64 == 0 else 32
        parts = w.reshape(len(w), -1, group)
        farthest = np.take_along_axis(parts, np.abs(parts).argmax(axis=2)[..., None], axis=2)
        scale = (farthest / np.float32(-8)).astype(ml_dtypes.bfloat16).astype(np.float32)
        return (np.clip(np.rint(parts / scale), -8, 7) * scale).reshape(w.shape)
    largest = np.abs(w).max(axis=1, keepdims=True)
    if quantization == "int8":
        scale = largest / np.float32(127)
        return np.rint(w / scale) * scale
    scale = largest / np.float32(448)
    return (w / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


def logits(folder: Path, quantization: str | None = None, dtype: str = "float32") -> Array:
    model = load_model(open_checkpoint(folder), dtype, quantization=quantization)
    return model.get_logits(model.step(IDS, model.new_cache(len(IDS)))).to_numpy()


def tensors(folder: Path) -> dict[str, Array]:
    with SafeTensorsFile(folder / "model.safetensors") as file:
        return {name: file.tensor_view(name).copy() for name in file.tensor_names}


@pytest.mark.parametrize("quantization", ["fp8", "int8", "int4"])
def test_logits_are_those_of_the_rounded_weights(quantization: str, tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "plain", **SIZES)
    before = tensors(folder)
    after = {n: rounded(x, quantization) if x.ndim == 2 and ".layers." in n else x for n, x in before.items()}
    other = tiny_model("llama", tmp_path / "rounded", **SIZES)
    write_safetensors(other / "model.safetensors", after)
    found = logits(folder, quantization)
    assert np.abs(found - logits(other)).max() < 1e-4
    assert np.abs(found - logits(folder)).max() > 1e-3

    report = quantization_report(folder, quantization)
    assert {tensor.name for tensor in report.tensors} == {n for n in before if after[n] is not before[n]}
    for tensor in report.tensors:
        w = before[tensor.name]
        expected = np.linalg.norm(after[tensor.name] - w) / np.linalg.norm(w)
        assert abs(tensor.error - expected) < 1e-3 * expected
    apart = sum(np.linalg.norm(after[tensor.name] - before[tensor.name]) ** 2 for tensor in report.tensors)
    whole = sum(np.linalg.norm(before[tensor.name]) ** 2 for tensor in report.tensors)
    assert abs(report.error - math.sqrt(apart / whole)) < 1e-3 * report.error
    assert report.perplexity is None
    assert {"fp8": 8, "int8": 8, "int4": 4}[quantization] < report.bits < 13


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("quantization", ["fp8", "int4"])
def test_matrices_are_codes_on_a_device_with_kernels(quantization: str, device: str, tmp_path: Path) -> None:
    folder = tiny_model("qwen2", tmp_path, **SIZES, num_hidden_layers=1)
    expected = logits(folder, quantization)
    with gp.device(device):
        model = load_model(open_checkpoint(folder), quantization=quantization)
        found = model.get_logits(model.step(IDS, model.new_cache(len(IDS)))).to_numpy()
    block = model.blocks[0]
    for layer in (block.attn.qkv, block.attn.o, block.mlp.up, block.mlp.down):
        assert isinstance(layer.weight, gp.quant.QuantTensor)
        assert layer.weight.bits == (8 if quantization == "fp8" else 4)
    assert isinstance(model.embed_tokens, gp.GPUArray)
    assert isinstance(model.lm_head.weight, gp.GPUArray)
    assert model.dtype == gp.bfloat16
    assert np.abs(found - expected).max() < 0.15


def test_numbers_that_are_not_finite_name_the_matrix(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    found = tensors(folder)
    name = "model.layers.1.self_attn.o_proj.weight"
    found[name][3, 4] = np.nan
    write_safetensors(folder / "model.safetensors", found)
    with pytest.raises(ModelLoadError, match=r"o_proj\.weight: .*NaN or infinity at \[3, 4\]"):
        load_model(open_checkpoint(folder), quantization="int8")


def test_the_report_has_both_perplexities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    folder = tiny_model("llama", tmp_path / "model", **SIZES)
    text = "Some text of a few words."
    report = quantization_report(folder, "int4", text)
    assert report.tokens == len(text) - 1
    with LLM(folder) as llm:
        assert report.perplexity == llm.perplexity(text)
    with LLM(folder, quantization="int4") as llm:
        assert report.quantized_perplexity == llm.perplexity(text)
    assert report.quantized_perplexity != report.perplexity
    assert f"perplexity of 24 tokens: {report.perplexity:.4f} as stored" in str(report)

    (tmp_path / "text").write_text(text)
    arguments = ["model", "info", str(folder), "--quantization", "int4", "--text", str(tmp_path / "text")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{report}\n"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quantized_perplexity"] == report.quantized_perplexity


def test_formats_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_model("llama", tmp_path)
    with pytest.raises(ValueError, match="'nvf4' is not available: no product reads that format yet; use one of fp8"):
        quantization_report(folder, "nvf4")
    assert main(["model", "info", str(folder), "--quantization", "int3"]) != 0
    assert "quantization is 'int3', and must be None" in capsys.readouterr().err
    assert main(["model", "info", str(folder), "--text", "x"]) != 0
    assert "--text is for --quantization" in capsys.readouterr().err
