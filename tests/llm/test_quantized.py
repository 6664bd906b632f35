"""Quantised checkpoints: AWQ, GPTQ and float8, written by the formats' definitions, against models of plain weights."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from pygpukit.errors import ModelLoadError
from pygpukit.llm.loading import load_model, open_checkpoint
from pygpukit.llm.quantized import read_scheme
from pygpukit.llm.safetensors import SafeTensorsFile
from pygpukit.llm.testing import tiny_model, write_safetensors

Array = Any
Tensors = dict[str, Array]
Encoder = Callable[[Array, np.random.Generator], tuple[Tensors, Array]]

IDS = [5, 6, 7, 8, 9, 10, 200, 33]
SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160,
}  # fmt: skip
DEVICES = [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]


def codes_of_4_bits(w: Array, rng: np.random.Generator, groups: Array) -> tuple[Array, Array, Array, Array]:
    """Codes [in, out], zero points and scales [groups, out] of a weight [out, in], and the numbers they mean."""
    columns = w.T
    n_groups = int(groups.max()) + 1
    scales = np.stack([np.abs(columns[groups == g]).max(axis=0) / 6 for g in range(n_groups)]).astype(np.float16)
    # Zero points of GPTQ's first version are 1 to 16 as they are used, all others 0 to 15.
    zeros = rng.integers(6, 11, scales.shape)
    codes = np.clip(np.rint(columns / scales.astype(np.float32)[groups]) + zeros[groups], 0, 15).astype(np.int64)
    meant = (codes - zeros[groups]).astype(np.float32) * scales.astype(np.float32)[groups]
    return codes, zeros, scales, meant.T


def words(values: Array, order: tuple[int, ...], axis: int) -> Array:
    """Eight numbers of 4 bits along an axis in a word; the number at ``order[i]`` of eight is in nibble i."""
    moved = np.moveaxis(values, axis, -1)
    packed = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), np.int64)
    for nibble, place in enumerate(order):
        packed |= moved[..., place::8] << 4 * nibble
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis)).astype(np.uint32).view(np.int32)


def awq(w: Array, rng: np.random.Generator) -> tuple[Tensors, Array]:
    codes, zeros, scales, meant = codes_of_4_bits(w, rng, np.arange(w.shape[1]) // 32)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": words(codes, order, 1), "qzeros": words(zeros, order, 1), "scales": scales}, meant


def gptq(less: int, groups: Callable[[int], Array] | None = None) -> Encoder:
    def encode(w: Array, rng: np.random.Generator) -> tuple[Tensors, Array]:
        g_idx = np.arange(w.shape[1]) // 32 if groups is None else groups(w.shape[1])
        codes, zeros, scales, meant = codes_of_4_bits(w, rng, g_idx)
        plain = tuple(range(8))
        made = {"qweight": words(codes, plain, 0), "qzeros": words(zeros - less, plain, 1), "scales": scales}
        return made | {"g_idx": g_idx.astype(np.int32)}, meant

    return encode


def shuffled(k: int) -> Array:
    """The same order for all modules with as many inputs, as their calibration sees the same inputs."""
    return np.random.default_rng(k).permutation(np.arange(k) // 32)


def always_new() -> Callable[[int], Array]:
    rng = np.random.default_rng(0)
    return lambda k: rng.permutation(np.arange(k) // 32)


def float8(name: str, shape: Callable[[int, int], tuple[int, int]], kind: Any) -> Encoder:
    def encode(w: Array, rng: np.random.Generator) -> tuple[Tensors, Array]:
        n, k = w.shape
        rows, columns = shape(n, k)
        scales = np.empty((-(-n // rows), -(-k // columns)), kind)
        codes, meant = np.empty(w.shape, ml_dtypes.float8_e4m3fn), np.empty_like(w)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
                scales[i, j] = np.abs(w[block]).max() / 448 * 1.01
                codes[block] = (w[block] / np.float32(scales[i, j])).astype(ml_dtypes.float8_e4m3fn)
                meant[block] = codes[block].astype(np.float32) * np.float32(scales[i, j])
        return {"weight": codes, name: scales.reshape(1) if scales.size == 1 and columns >= k else scales}, meant

    return encode


def packed(zeros: bool, groups: Callable[[int], Array] | None = None) -> Encoder:
    """Words of eight codes along the inputs, and of eight zero points along the outputs; both with 8 added."""

    def encode(w: Array, rng: np.random.Generator) -> tuple[Tensors, Array]:
        g_idx = np.arange(w.shape[1]) // 32 if groups is None else groups(w.shape[1])
        columns, plain = w.T, tuple(range(8))
        scales = np.stack([np.abs(columns[g_idx == g]).max(axis=0) / 6 for g in range(int(g_idx.max()) + 1)])
        scales = scales.astype(ml_dtypes.bfloat16).astype(np.float32)
        points = rng.integers(-2, 3, scales.shape) if zeros else np.zeros(scales.shape, np.int64)
        codes = np.clip(np.rint(columns / scales[g_idx]) + points[g_idx], -8, 7).astype(np.int64)
        meant = (codes - points[g_idx]).astype(np.float32) * scales[g_idx]
        made = {
            "weight_packed": words(np.ascontiguousarray(codes.T) + 8, plain, 1),
            "weight_scale": np.ascontiguousarray(scales.T).astype(ml_dtypes.bfloat16),
            "weight_shape": np.array(w.shape, np.int32),
        }
        if zeros:
            made["weight_zero_point"] = words(np.ascontiguousarray(points.T) + 8, plain, 0)
        if groups is not None:
            made["weight_g_idx"] = g_idx.astype(np.int32)
        return made, meant.T

    return encode


def eight_bits(group: int, as_words: bool) -> Encoder:
    def encode(w: Array, rng: np.random.Generator) -> tuple[Tensors, Array]:
        n, k = w.shape
        parts = w.reshape(n, -1, group or k)
        scales = (np.abs(parts).max(axis=2) / 127 * 1.01).astype(ml_dtypes.bfloat16)
        codes = np.rint(parts / scales.astype(np.float32)[..., None])
        meant = (codes * scales.astype(np.float32)[..., None]).reshape(n, k)
        codes = codes.reshape(n, k).astype(np.int8)
        if not as_words:
            return {"weight": codes, "weight_scale": scales}, meant
        made = np.ascontiguousarray((codes.astype(np.int16) + 128).astype(np.uint8)).view(np.int32)
        return {"weight_packed": made, "weight_scale": scales, "weight_shape": np.array([n, k], np.int32)}, meant

    return encode


def compressed(strategy: str, format: str = "float-quantized", **more: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False, **more}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"dynamic": True}}
    return {
        "quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip


INT4 = {"num_bits": 4, "type": "int", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int"}
PACKED = compressed("group", "pack-quantized", **INT4)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
CASES: Mapping[str, tuple[dict[str, Any], Encoder]] = {
    "awq": (AWQ, awq),
    "gptq": (GPTQ, gptq(1)),
    "gptq_v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, gptq(0)),
    "gptq sorted": (GPTQ | {"desc_act": True, "checkpoint_format": "gptq"}, gptq(1, shuffled)),
    "gptq sorted, each its own": (GPTQ | {"desc_act": True}, gptq(1, always_new())),
    "fp8 blocks": (
        FP8 | {"weight_block_size": [128, 128]},
        float8("weight_scale_inv", lambda n, k: (128, 128), np.float32),
    ),
    "fp8 tensor": (FP8, float8("weight_scale", lambda n, k: (n, k), np.float32)),
    "compressed channel": (compressed("channel"), float8("weight_scale", lambda n, k: (1, k), ml_dtypes.bfloat16)),
    "compressed tensor": (compressed("tensor"), float8("weight_scale", lambda n, k: (n, k), np.float32)),
    "packed": (compressed("group", "pack-quantized", **INT4 | {"symmetric": False}), packed(True)),
    "packed symmetric": (PACKED, packed(False)),
    "packed sorted": (compressed("group", "pack-quantized", **INT4, actorder="group"), packed(False, shuffled)),
    "packed 8 bits": (compressed("group", "pack-quantized", **INT8, group_size=32), eight_bits(32, True)),
    "packed 8 bits, rows": (compressed("channel", "pack-quantized", **INT8), eight_bits(0, True)),
    "int8 channel": (compressed("channel", "int-quantized", **INT8), eight_bits(0, False)),
    "compressed block": (
        compressed("block", block_structure=[128, 128]),
        float8("weight_scale", lambda n, k: (128, 128), ml_dtypes.bfloat16),
    ),
}


def write(
    folder: Path,
    case: str,
    keep: Callable[[str], bool] = lambda name: False,
    entry: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[Path, Path, Tensors]:
    """A quantised checkpoint, one with the numbers it means, and the tensors of the first."""
    arch = config.pop("arch", "llama")
    settings, encode = CASES[case]
    plain = tiny_model(arch, folder / "plain", **{**SIZES, **config})
    coded = tiny_model(arch, folder / "coded", **{**SIZES, **config})
    rng = np.random.default_rng(1)
    file = SafeTensorsFile(plain / "model.safetensors")
    meant, stored = {}, {}
    for name in file.tensor_names:
        array = file.tensor_view(name).copy()
        module = name.removesuffix(".weight")
        if ".layers." in name and array.ndim == 2 and not keep(module):
            made, array = encode(array, rng)
            stored |= {f"{module}.{end}": part for end, part in made.items()}
        else:
            stored[name] = array
        meant[name] = np.ascontiguousarray(array)
    file.close()
    write_safetensors(plain / "model.safetensors", meant)
    rewrite(coded, stored, settings if entry is None else entry)
    return coded, plain, stored


def rewrite(folder: Path, tensors: Tensors, entry: Any) -> None:
    write_safetensors(folder / "model.safetensors", tensors)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"quantization_config": entry}))


def logits(folder: Path, quantization: str | None = None) -> Array:
    model = load_model(open_checkpoint(folder), "float32", quantization=quantization)
    return model.get_logits(model.step(IDS, model.new_cache(len(IDS)))).to_numpy()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_decoded_weights(case: str, tmp_path: Path) -> None:
    coded, plain, _ = write(tmp_path, case)
    np.testing.assert_array_equal(logits(coded), logits(plain))


def test_codes_are_decoded_before_they_are_quantised_otherwise(tmp_path: Path) -> None:
    coded, plain, _ = write(tmp_path, "gptq")
    np.testing.assert_array_equal(logits(coded, "int8"), logits(plain, "int8"))


@pytest.mark.parametrize("case", ["awq", "gptq", "fp8 tensor"])
def test_joined_tensors_of_the_file(case: str, tmp_path: Path) -> None:
    coded, plain, _ = write(tmp_path, case, arch="phi3", pad_token_id=0)
    np.testing.assert_array_equal(logits(coded), logits(plain))


@pytest.mark.parametrize(
    ("case", "names", "more"),
    [
        ("awq", ["self_attn.k_proj", "layers.1.mlp.up_proj"], lambda n: AWQ | {"modules_to_not_convert": n}),
        ("fp8 blocks", ["layers.1.mlp"], lambda n: FP8 | {"modules_to_not_convert": n}),
        ("fp8 tensor", ["layers.0.self_attn.o_proj"], lambda n: FP8 | {"ignored_layers": n}),
        ("gptq", ["layers.1"], lambda n: GPTQ | {"dynamic": {rf"-:.*\.{name}\..*": {} for name in n}}),
        (
            "compressed channel",
            ["v_proj", "down_proj"],
            lambda n: compressed("channel") | {"ignore": [f"re:.*{x}$" for x in n]},
        ),
        (
            "compressed channel",
            ["model.layers.0.mlp.gate_proj"],
            lambda n: compressed("channel") | {"ignore": ["lm_head", *n]},
        ),
    ],
)
def test_modules_that_are_not_quantised(case: str, names: list[str], more: Any, tmp_path: Path) -> None:
    def keep(module: str) -> bool:
        return any(f".{name}." in f".{module}." for name in names)

    coded, plain, stored = write(tmp_path, case, keep, more(names))
    assert any(name.endswith("_proj.weight") and array.dtype == np.float32 for name, array in stored.items())
    np.testing.assert_array_equal(logits(coded), logits(plain))


def test_gptq_names_what_is_quantised(tmp_path: Path) -> None:
    entry = GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.down_proj"]]}
    chosen = ("q_proj", "k_proj", "down_proj")
    coded, plain, _ = write(tmp_path, "gptq", lambda module: not module.endswith(chosen), entry)
    np.testing.assert_array_equal(logits(coded), logits(plain))


def test_a_quantised_head(tmp_path: Path) -> None:
    coded, plain, stored = write(tmp_path, "compressed channel")
    made, meant = CASES["compressed channel"][1](stored.pop("lm_head.weight"), np.random.default_rng(0))
    rewrite(
        coded, stored | {f"lm_head.{end}": part for end, part in made.items()}, compressed("channel") | {"ignore": []}
    )
    file = SafeTensorsFile(plain / "model.safetensors")
    write_safetensors(
        plain / "model.safetensors",
        {n: file.tensor_view(n).copy() for n in file.tensor_names} | {"lm_head.weight": meant},
    )
    np.testing.assert_array_equal(logits(coded), logits(plain))


def test_what_is_of_no_use_is_left(tmp_path: Path) -> None:
    coded, plain, stored = write(tmp_path, "compressed tensor")
    one = np.ones(1, np.float32)
    attn = "model.layers.0.self_attn"
    rewrite(coded, stored | {f"{attn}.q_proj.input_scale": one, f"{attn}.k_scale": one}, CASES["compressed tensor"][0])
    np.testing.assert_array_equal(logits(coded), logits(plain))
    coded, plain, stored = write(tmp_path / "gptq", "gptq")
    bias = np.zeros(64, np.float16)
    rewrite(coded, stored | {f"{attn}.q_proj.bias": bias}, GPTQ)
    np.testing.assert_array_equal(logits(coded), logits(plain))
    rewrite(coded, stored | {f"{attn}.q_proj.bias": bias + 1}, GPTQ)
    with pytest.raises(ModelLoadError, match=r"unexpected: .*q_proj\.bias"):
        open_checkpoint(coded).check()


def test_all_that_does_not_fit_is_listed_by_the_names_of_the_format(tmp_path: Path) -> None:
    coded, _, stored = write(tmp_path, "gptq sorted")
    layer = "model.layers.0.mlp"
    del stored[f"{layer}.up_proj.g_idx"], stored[f"{layer}.gate_proj.qzeros"]
    stored[f"{layer}.down_proj.scales"] = stored[f"{layer}.down_proj.scales"][:, :8].copy()
    stored[f"{layer}.down_proj.qweight"] = stored[f"{layer}.down_proj.qweight"].view(np.float32)
    stored[f"{layer}.down_proj.weight"] = np.ones((64, 160), np.float32)
    rewrite(coded, stored, CASES["gptq sorted"][0])
    with pytest.raises(ModelLoadError) as raised:
        load_model(open_checkpoint(coded))
    text = str(raised.value)
    assert "5 tensors do not fit the architecture llama, quantised as gptq" in text
    for line in (
        f"missing: {layer}.up_proj.g_idx, I32 of shape [64]",
        f"missing: {layer}.gate_proj.qzeros, I32 of shape [2, 20]",
        f"mis-shaped: {layer}.down_proj.scales is [5, 8], and must be [5, 64]",
        f"of another type: {layer}.down_proj.qweight is F32, and must be I32",
        f"unexpected: {layer}.down_proj.weight, of shape [64, 160]",
    ):
        assert line in text
    coded, _, stored = write(tmp_path / "fp8", "compressed channel")
    stored["model.layers.1.mlp.up_proj.weight"] = stored["model.layers.1.mlp.up_proj.weight"].astype(np.float32)
    stored["model.layers.1.mlp.up_proj.weight_scale"] = np.ones((3, 1), np.float32)
    rewrite(coded, stored, CASES["compressed channel"][0])
    with pytest.raises(ModelLoadError, match=r"2 tensors.*quantised as compressed-tensors") as raised:
        open_checkpoint(coded).check()
    assert "up_proj.weight is F32, and must be F8_E4M3" in str(raised.value)
    assert "up_proj.weight_scale is [3, 1], and must be [1] or [] or [1, 1] or [160, 1]" in str(raised.value)


@pytest.mark.parametrize(
    ("case", "end", "broken", "reason"),
    [
        ("gptq sorted", "g_idx", lambda x: np.zeros_like(x), "g_idx does not give each of 2 groups 32 inputs"),
        ("awq", "scales", lambda x: x * np.float16("nan"), "a scale of the int4 weight is not finite"),
        ("packed", "weight_shape", lambda x: x - np.array([0, 1], np.int32), "do not fit a weight of 63 inputs"),
        (
            "packed 8 bits, rows",
            "weight_shape",
            lambda x: x - np.array([0, 1], np.int32),
            "has shape .32, 63., not .32, 64",
        ),
        ("packed", "weight_shape", lambda x: -x, r"does not fit a weight of \(-32, -64\)"),
    ],
)
def test_broken_numbers_name_the_module(case: str, end: str, broken: Any, reason: str, tmp_path: Path) -> None:
    coded, _, stored = write(tmp_path, case)
    name = "model.layers.1.self_attn.v_proj"
    stored[f"{name}.{end}"] = broken(stored[f"{name}.{end}"])
    rewrite(coded, stored, CASES[case][0])
    with pytest.raises(ModelLoadError, match=rf"v_proj: .*{reason}"):
        load_model(open_checkpoint(coded))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ([], r"quantization_config is \[\], and must be an object"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes', and must be one of awq, gptq, fp8"),
        (AWQ | {"bits": 3}, "bits is 3, and must be 4; what is read: awq"),
        (AWQ | {"version": "gemv"}, "version is 'gemv', and must be 'gemm'"),
        (AWQ | {"group_size": 16}, "group_size is 16, and must be 32, 64, 128 or -1"),
        (
            AWQ | {"modules_to_not_convert": "lm_head"},
            "modules_to_not_convert is 'lm_head', and must be a list of names",
        ),
        (GPTQ | {"bits": 8}, "bits is 8, and must be 4"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', and must be 'gptq' or 'gptq_v2'"),
        (GPTQ | {"dynamic": {"+:.*up.*": {"bits": 8}}}, "settings per module are not read"),
        (GPTQ | {"dynamic": {"-:(a+)+$": {}}}, "which may take too long"),
        (GPTQ | {"dynamic": {"-:(a": {}}}, "which is none"),
        (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (FP8 | {"weight_block_size": [64, 64]}, r"weight_block_size is \[64, 64\], and must be \[128, 128\]"),
        (
            compressed("channel", num_bits=4, type="int"),
            "are 4 bits of 'int' in format 'float-quantized'; what is read",
        ),
        (compressed("group"), "strategy is 'group'"),
        (compressed("group", "pack-quantized", **INT4 | {"num_bits": 3}), "are 3 bits of 'int' in format 'pack-quant"),
        (compressed("group", "pack-quantized", **INT4 | {"group_size": 16}), "group_size is 16"),
        (compressed("channel", "int-quantized", **INT8 | {"symmetric": False}), "symmetric is False, and must be True"),
        (compressed("tensor") | {"config_groups": {}}, "config_groups has 0 ways to store weights, and must have one"),
        (GPTQ | {"modules_in_block_to_quantize": 3}, "modules_in_block_to_quantize is 3, and must be a list of names"),
        ({"quant_method": ["awq"]}, r"quant_method is \['awq'\], and must be one of"),
        (compressed("block", block_structure=[64, 128]), r"block_structure is \[64, 128\]"),
        (compressed("tensor") | {"format": "marlin-24"}, "format is 'marlin-24'"),
        (compressed("tensor") | {"ignore": ["re:" + "a*" * 30]}, "which may take too long"),
    ],
)
def test_what_is_not_read_is_said(entry: Any, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        read_scheme({"quantization_config": entry})


JUNK = (None, True, -1, 1 << 70, float("nan"), "x", "re:(", [], [[1]], [None], ["re:" + "(a|b)" * 50], {}, {"a": 1})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, inner in items for p in places(inner, (*path, key)))]


@pytest.mark.parametrize("case", ["awq", "gptq sorted", "fp8 blocks", "packed sorted"])
def test_settings_of_any_kind_are_read_or_refused(case: str) -> None:
    for path in places(CASES[case][0]):
        for junk in JUNK:
            entry: Any = {"quantization_config": copy.deepcopy(CASES[case][0])}
            inner = entry
            for key in ("quantization_config", *path)[:-1]:
                inner = inner[key]
            inner[("quantization_config", *path)[-1]] = junk
            with contextlib.suppress(ModelLoadError):
                scheme = read_scheme(entry)
                if scheme is not None:
                    scheme.is_plain("model.layers.0.self_attn.q_proj")
                    assert scheme.parts(64, 64, [])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", ["awq", "gptq sorted", "fp8 tensor", "fp8 blocks", "packed", "int8 channel"])
def test_weights_stay_in_their_codes_on_a_device_with_kernels(case: str, device: str, tmp_path: Path) -> None:
    coded, plain, _ = write(tmp_path, case, num_hidden_layers=1, num_key_value_heads=4)
    expected = logits(plain)
    with gp.device(device):
        model = load_model(open_checkpoint(coded), "bfloat16")
        block = model.blocks[0]
        found = model.get_logits(model.step(IDS, model.new_cache(len(IDS)))).to_numpy()
    for layer in (block.attn.qkv, block.attn.o, block.mlp.up, block.mlp.down):
        assert isinstance(layer.weight, gp.quant.QuantTensor)
    assert np.abs(found - expected).max() < 0.15


@pytest.mark.parametrize("device", DEVICES)
def test_orders_that_differ_are_decoded(device: str, tmp_path: Path) -> None:
    coded, plain, _ = write(tmp_path, "gptq sorted, each its own", num_hidden_layers=1)
    expected = logits(plain)
    with gp.device(device):
        model = load_model(open_checkpoint(coded), "bfloat16")
        assert isinstance(model.blocks[0].attn.qkv.weight, gp.GPUArray)
        assert isinstance(model.blocks[0].attn.o.weight, gp.quant.QuantTensor)
        found = model.get_logits(model.step(IDS, model.new_cache(len(IDS)))).to_numpy()
    assert np.abs(found - expected).max() < 0.15
