"""Layouts of checkpoints against the rules of others, packing and unpacking, and what broken files meet."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from weights import RULES, bits, random_parts, weight

import pygpukit as gp
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.quant.formats import FORMATS, rule_of
from pygpukit.quant.planes import pack, unpack

QuantTensor = gp.quant.QuantTensor
GGUF = [name for name, form in FORMATS.items() if form.block[0]]
LAYOUTS = {
    **{name: name for name in GGUF},
    "awq": "awq", "gptq": "gptq", "gptq_v2": "gptq_v2", "gptq_act": "gptq",
    "fp8_tensor": "fp8", "fp8_row": "fp8", "fp8_block": "fp8",
}  # fmt: skip


@pytest.fixture(scope="module")
def goldens() -> dict[str, dict[str, Any]]:
    """Arrays by layout and name."""
    found: dict[str, dict[str, Any]] = {}
    with np.load(Path(__file__).with_name("goldens.npz")) as file:
        for key in file.files:
            layout, _, name = key.rpartition(".")
            found.setdefault(layout, {})[name] = file[key]
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_goldens(name: str, goldens: dict[str, dict[str, Any]], device: gp.Device) -> None:
    tensors = dict(goldens[name])
    wanted = tensors.pop("wanted")
    q = QuantTensor.from_checkpoint(LAYOUTS[name], tensors)
    assert q.shape == wanted.shape
    np.testing.assert_array_equal(q.dequantize("float32").to_numpy(), wanted)
    back = q.to_checkpoint()
    assert set(back) == set(tensors)
    for key, x in tensors.items():
        got = back[key].view(np.uint8) if back[key].dtype.itemsize == 1 else back[key]
        np.testing.assert_array_equal(got.reshape(x.shape), x)


@pytest.mark.parametrize("name", RULES)
@hypothesis.settings(max_examples=6, derandomize=True)
@hypothesis.given(n=st.integers(1, 40), blocks=st.integers(1, 3), seed=st.integers(0, 9))
def test_packing_is_reversible(name: str, n: int, blocks: int, seed: int) -> None:
    rule = rule_of(name)
    k = blocks * 256 if "super" in name else blocks * rule.group if rule.group else 37 * blocks
    parts = random_parts(rule, n, k, seed)
    planes = pack(rule, parts)
    again = unpack(rule, planes, n, k)
    for one, two in zip(parts, again, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            np.testing.assert_array_equal(bits(one), bits(two))
    for plane, same in zip(planes.values(), pack(rule, again).values(), strict=True):
        assert plane.tobytes() == same.tobytes()


def test_the_order_of_planes_is_the_one_kernels_expect() -> None:
    """One code of four bits: tile 1, row 16 + 3 + 8, column 64 + 16 * 2 + 8 * 1 + 2 * 3 + 1."""
    rule = rule_of("i4_scale_f16_g128")
    parts = random_parts(rule, 32, 128)
    parts.codes[...] = 0
    parts.codes[16 + 3 + 8, 64 + 32 + 8 + 6 + 1] = 9
    words = pack(rule, parts)["codes"].view(np.uint32).reshape(2, 2, 32, 4)
    (place,) = np.argwhere(words)
    assert place.tolist() == [1, 1, 3 * 4 + 3, 2]
    assert words[tuple(place)] == 9 << 4 * (2 * 1 + 1 + 4 * 1)


def test_pickles_and_copies(goldens: dict[str, dict[str, Any]]) -> None:
    tensors = {key: x for key, x in goldens["gptq_act"].items() if key != "wanted"}
    q = QuantTensor.from_checkpoint("gptq", tensors).T
    again = pickle.loads(pickle.dumps(q))
    assert repr(again) == repr(q)
    np.testing.assert_array_equal(again.dequantize().to_numpy(), q.dequantize().to_numpy())
    fixed, planes, order = q.__reduce__()[1]
    with pytest.raises(ValueError, match="do not belong"):
        q.__reduce__()[0](fixed, planes | {"codes": planes["codes"][:, :1]}, order)
    assert copy.copy(q) is copy.deepcopy(q) is q
    moved = q.to_device("emulated")
    assert moved.device.kind == "emulated"
    assert q.to_device(q.device) is q


def test_a_weight_cannot_be_changed() -> None:
    q = gp.quant.quantize(gp.ones((64, 16)), "int8")
    with pytest.raises(AttributeError, match="cannot be changed"):
        q.group = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="quantize"):
        QuantTensor()
    for plane in q._stored.planes.values():
        assert not plane.flags.writeable
    with pytest.raises(TypeError, match="dequantize"):
        np.asarray(q)
    assert q.T.T.shape == q.shape == (64, 16)
    assert (q.axis, q.T.axis, q.ndim, q.size, q.bits, q.symmetric) == (0, 1, 2, 1024, 8, True)


BROKEN: list[tuple[str, str, Any, type[Exception], str]] = [
    ("awq", "qzeros", None, ValueError, "qzeros is missing"),
    ("awq", "qweight", lambda x: x.astype(np.int64), ValueError, "matrix of int32"),
    ("awq", "scales", lambda x: x[:, :4], ShapeError, "do not fit"),
    ("awq", "scales", lambda x: x[:2], ShapeError, "3"),
    ("awq", "scales", lambda x: x.astype(np.float32), DTypeError, "float16 or bfloat16"),
    ("awq", "scales", lambda x: np.where(x == x[1, 2], np.float16(np.inf), x), ValueError, "not finite"),
    ("gptq", "qzeros", lambda x: x[:1], ShapeError, "zero points"),
    ("gptq_act", "g_idx", lambda x: x[:-1], ShapeError, "g_idx"),
    ("gptq_act", "g_idx", lambda x: x + 1, ValueError, "g_idx"),
    ("gptq_act", "g_idx", lambda x: x * 0, ValueError, "g_idx"),
    ("fp8_block", "weight_scale_inv", lambda x: x[:1], ShapeError, "does not fit"),
    ("fp8_block", "weight_scale_inv", lambda x: x * np.nan, ValueError, "not finite"),
    ("fp8_row", "weight_scale", lambda x: x * np.float32(2.0**120), ValueError, "2\\*\\*100"),
    ("fp8_row", "weight", lambda x: x | 0x7F, ValueError, "NaN"),
    ("fp8_row", "weight", lambda x: x.astype(np.float32), ValueError, "float8_e4m3fn"),
    ("q4_k", "data", lambda x: x[:, :-1], ShapeError, "144-byte blocks"),
    ("q4_0", "data", lambda x: x.astype(np.int32), DTypeError, "bytes"),
]


@pytest.mark.parametrize(("name", "key", "change", "error", "text"), BROKEN)
def test_broken_checkpoints_are_refused(
    name: str, key: str, change: Any, error: type[Exception], text: str, goldens: dict[str, dict[str, Any]]
) -> None:
    tensors = {k: x for k, x in goldens[name].items() if k != "wanted"}
    if change is None:
        del tensors[key]
    else:
        tensors[key] = change(tensors[key])
    with pytest.raises(error, match=text):
        QuantTensor.from_checkpoint(LAYOUTS[name], tensors)


def test_shapes_of_blocks_are_checked() -> None:
    data = bytes(18 * 4)
    assert QuantTensor.from_checkpoint("Q4_0", {"data": data}, shape=(2, 64)).shape == (2, 64)
    for shape, text in (
        ((2, 32), "cut short"),
        ((4, 33), "whole number of blocks"),
        ((0, 32), "whole number"),
        (None, "matrix"),
    ):
        with pytest.raises(ShapeError, match=text):
            QuantTensor.from_checkpoint("q4_0", {"data": data}, shape=shape)
    with pytest.raises(ShapeError, match="as asked for"):
        QuantTensor.from_checkpoint(
            "fp8", {"weight": np.zeros((4, 8), np.uint8), "weight_scale": np.float32(1)}, shape=(8, 4)
        )
    with pytest.raises(ValueError, match="unknown layout 'exl2'"):
        QuantTensor.from_checkpoint("exl2", {})
    with pytest.raises(TypeError, match="buffer"):
        QuantTensor.from_checkpoint("q4_0", {"data": 3}, shape=(1, 32))


@pytest.mark.parametrize("name", ["i4_zero_f16_g64", "i6_superscale_f16_g16"])
def test_weights_of_one_row(name: str) -> None:
    q = weight(name, random_parts(rule_of(name), 1, 256))
    assert q.dequantize().shape == (256, 1)


@pytest.mark.parametrize("name", ["i4_zero_f16_g64", "e4m3_scale_f32_g128", "i6_superscale_f16_g16"])
def test_weights_are_joined_along_outputs(name: str, device: gp.Device) -> None:
    for sizes in ((32, 16, 5), (20, 7)):
        weights = [weight(name, random_parts(rule_of(name), n, 256, seed=n)) for n in sizes]
        joined = gp.quant.concatenate(weights)
        assert joined.shape == (256, sum(sizes))
        wanted = np.concatenate([w.dequantize().to_numpy() for w in weights], axis=1)
        np.testing.assert_array_equal(bits(joined.dequantize()), bits(wanted))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_packed_weights_are_given_back(zeros: bool, shuffled: bool) -> None:
    rng, (n, k) = np.random.default_rng(0), (12, 96)
    tensors: dict[str, Any] = {
        "weight_packed": rng.integers(-(2**31), 2**31, (n, k // 8)).astype(np.int32),
        "weight_scale": rng.random((n, 3)).astype(np.float16),
        "weight_shape": np.array([n, k]),
    }
    points = np.zeros((n, 3))
    if zeros:
        tensors["weight_zero_point"] = rng.integers(0, 2**31, (2, 3)).astype(np.int32) & 0x7FFF7FFF
        tensors["weight_zero_point"][1] &= 0xFFFF
        nibbles = tensors["weight_zero_point"][:, None] >> (4 * np.arange(8))[:, None] & 15
        points = nibbles.reshape(16, 3)[:n] - 8
    g_idx = np.arange(k) // 32
    if shuffled:
        g_idx = rng.permutation(g_idx)
        tensors["weight_g_idx"] = g_idx.astype(np.int32)
    q = QuantTensor.from_checkpoint("pack_quantized", tensors)
    codes = (tensors["weight_packed"][..., None] >> 4 * np.arange(8) & 15).reshape(n, k) - 8
    wanted = (codes - points[:, g_idx]) * tensors["weight_scale"].astype(np.float32)[:, g_idx]
    np.testing.assert_array_equal(q.dequantize().to_numpy(), wanted.astype(np.float32))
    again = q.to_checkpoint()
    assert again.keys() == tensors.keys()
    for key, x in tensors.items():
        np.testing.assert_array_equal(again[key], x, key)


def test_packed_and_plain_integers_of_8_bits() -> None:
    rng, (n, k) = np.random.default_rng(0), (6, 66)
    codes = rng.integers(-128, 128, (n, k)).astype(np.int8)
    scale = rng.random((n, 1)).astype(np.float16)
    wanted = codes.astype(np.float32) * scale.astype(np.float32)
    plain = {"weight": codes, "weight_scale": scale}
    words = np.zeros((n, 68), np.uint8)
    words[:, :k] = codes.view(np.uint8) ^ 0x80
    packed = {"weight_packed": words.view(np.int32), "weight_scale": scale, "weight_shape": np.array([n, k])}
    for layout, tensors in (("int8", plain), ("pack_quantized", packed)):
        q = QuantTensor.from_checkpoint(layout, tensors)
        np.testing.assert_array_equal(q.dequantize().to_numpy(), wanted)
        again = q.to_checkpoint()
        assert again.keys() == tensors.keys()
        for key, x in tensors.items():
            np.testing.assert_array_equal(again[key], x, key)
    for layout, tensors, change, error, text in (
        ("int8", plain, {"weight": codes.astype(np.int16)}, ValueError, "matrix of int8"),
        ("int8", plain, {"weight_scale": scale[:3]}, ShapeError, "neither one number nor one per row of 6"),
        ("int8", plain, {"weight_scale": scale.astype(np.float64)}, DTypeError, "float of 16 or 32 bits"),
        ("int8", plain, {"weight_scale": scale * np.float16("inf")}, ValueError, "not finite"),
        (
            "pack_quantized",
            packed,
            {"weight_shape": np.array([n, 90])},
            ShapeError,
            r"does not fit a weight of \(6, 90\)",
        ),
        ("pack_quantized", packed, {"weight_shape": np.array([n])}, ShapeError, "holds two integers"),
        ("pack_quantized", packed, {"weight_scale": scale[:2]}, ShapeError, "weight_scale of shape"),
        ("pack_quantized", packed, {"weight_scale": scale.repeat(4, 1)}, ValueError, "scales of shape"),
        ("pack_quantized", packed, {"weight_zero_point": scale}, ValueError, "zero points"),
    ):
        with pytest.raises(error, match=text):
            QuantTensor.from_checkpoint(layout, tensors | change)


def test_weights_of_several_kinds_are_joined(device: gp.Device) -> None:
    w = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    symmetric = [gp.quant.quantize(w, "int4", group=32, axis=1, symmetric=plain) for plain in (True, False)]
    one_scale = [gp.quant.quantize(part, "fp8_e4m3", group="tensor", axis=1) for part in (w, 3 * w)]
    rng, tensors = np.random.default_rng(1), {}
    tensors["g_idx"] = rng.permutation(np.arange(64) // 32).astype(np.int32)
    tensors["qweight"] = rng.integers(-(2**31), 2**31, (8, 40)).astype(np.int32)
    tensors["qzeros"] = rng.integers(-(2**31), 2**31, (2, 5)).astype(np.int32)
    tensors["scales"] = rng.random((2, 40)).astype(np.float16)
    sorted_ = [QuantTensor.from_checkpoint("gptq", tensors), QuantTensor.from_checkpoint("gptq", tensors)]
    for weights in (symmetric, one_scale, sorted_):
        wanted = np.concatenate([q.dequantize().to_numpy() for q in weights])
        joined = gp.quant.concatenate(weights)
        np.testing.assert_array_equal(bits(joined.dequantize()), bits(wanted))
        x = rng.standard_normal((2, 64)).astype(np.float32)
        y = gp.matmul(gp.asarray(x, "bfloat16"), joined.T).to_numpy().astype(np.float32)
        assert np.abs(y - x @ wanted.T).max() < 0.02 * np.abs(wanted).max() * 64**0.5 * 3
    tensors = tensors | {"g_idx": tensors["g_idx"][::-1].copy()}
    with pytest.raises(ValueError, match="each in its own order"):
        gp.quant.concatenate([sorted_[0], QuantTensor.from_checkpoint("gptq", tensors)])


def test_weights_that_cannot_be_joined() -> None:
    a = gp.quant.quantize(gp.ones((64, 32)), "int8")
    for others, error, text in (
        ([], TypeError, "at least one"),
        ([a, gp.quant.quantize(gp.ones((32, 32)), "int8")], ShapeError, "64 and of 32 inputs"),
        ([a, gp.quant.quantize(gp.ones((64, 32)), "q8_0")], ValueError, "coded differently"),
        ([a, a.T], ValueError, "transposed"),
    ):
        with pytest.raises(error, match=text):
            gp.quant.concatenate(others)
    with pytest.raises(ValueError, match=r"made by concatenate\(\)"):
        gp.quant.concatenate([a]).to_checkpoint()


ARRAYS = st.builds(
    lambda kind, shape, seed: np.random.default_rng(seed).integers(0, 120, shape).astype(kind),
    st.sampled_from(["int32", "uint8", "float16", "float32", "int64"]),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
    st.integers(0, 99),
)


@hypothesis.settings(max_examples=120, derandomize=True)
@hypothesis.given(
    layout=st.sampled_from(["awq", "gptq", "gptq_v2", "fp8", *GGUF]),
    tensors=st.fixed_dictionaries(
        {},
        optional={
            name: ARRAYS
            for name in ("qweight", "qzeros", "scales", "g_idx", "weight", "weight_scale", "weight_scale_inv", "data")
        },
    ),
    shape=st.none() | st.tuples(st.integers(-1, 300), st.integers(-1, 300)),
)
def test_any_arrays_are_read_or_refused(layout: str, tensors: dict[str, Any], shape: tuple[int, int] | None) -> None:
    try:
        q = QuantTensor.from_checkpoint(layout, tensors, shape=shape)
    except (ValueError, TypeError):
        return
    assert np.isfinite(q.dequantize().to_numpy()).all()


@hypothesis.settings(max_examples=25, derandomize=True)
@hypothesis.given(
    n=st.integers(1, 20), groups=st.integers(1, 3), size=st.sampled_from([32, 64]), seed=st.integers(0, 9)
)
def test_gptq_of_any_size_comes_back(n: int, groups: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = groups * size
    zeros = rng.integers(0, 2**32, (groups, -(-n // 8)), np.uint32)
    # Nibbles beyond the last column hold nothing.
    zeros[:, -1] &= np.uint32((1 << 4 * ((n - 1) % 8 + 1)) - 1)
    tensors = {
        "qweight": rng.integers(0, 2**32, (k // 8, n), np.uint32).view(np.int32),
        "qzeros": zeros.view(np.int32),
        "scales": rng.standard_normal((groups, n)).astype(np.float16),
        "g_idx": rng.permutation(np.arange(k) // size).astype(np.int32),
    }
    q = QuantTensor.from_checkpoint("gptq", tensors)
    back = q.to_checkpoint()
    if groups == 1:
        del tensors["g_idx"]
    for key, x in tensors.items():
        np.testing.assert_array_equal(back[key], x)
    assert q.dequantize().shape == (n, k)
