"""Every code of every rule, through every kernel, bit for bit as NumPy decodes it."""

from __future__ import annotations

import numpy as np
import pytest
from weights import RULES, bits, random_parts, small, weight

import pygpukit as gp
from pygpukit.quant.decode import decode
from pygpukit.quant.formats import rule_of

TYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("name", RULES)
def test_codes_become_numbers(name: str, kernels: gp.Device) -> None:
    k = 256 if "super" in name else 128
    parts = random_parts(rule_of(name), 21, k, spread=9)
    wanted = decode(rule_of(name), parts)
    q = weight(name, parts)
    for kind in TYPES:
        with np.errstate(over="ignore"):
            rounded = wanted.astype(small(kind))
        np.testing.assert_array_equal(bits(q.T.dequantize(kind)), bits(rounded), f"{name} to {kind}")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "bfloat16") for name in RULES),
        *(
            (name, "float16")
            for name in ("i4_zero_f16_g64", "i4_scale_bf16_g128", "i5_scale_f16_g32", "e4m3_scale_f32_g0")
        ),
    ],
)
def test_products_decode_alike(name: str, kind: str, kernels: gp.Device) -> None:
    """A row that picks one column gives that column of the weight: what the fragments hold, without a sum."""
    k = 256 if "super" in name else 128
    parts = random_parts(rule_of(name), 21, k, seed=1, spread=1)
    picked = np.arange(k)[:: 4 if k > 128 else 2]
    x = np.zeros((len(picked), k), np.float32)
    x[np.arange(len(picked)), picked] = 1
    got = (gp.from_numpy(x.astype(small(kind))) @ weight(name, parts)).to_numpy()
    wanted = decode(rule_of(name), parts).astype(small(kind)).T[picked]
    np.testing.assert_array_equal(got, wanted)


def test_scales_of_tiles_are_read(kernels: gp.Device) -> None:
    for name in ("e4m3_scale_f32_g0", "e4m3_scale_f32_g128"):
        parts = random_parts(rule_of(name), 37, 200, tiles=True)
        wanted = decode(rule_of(name), parts)
        np.testing.assert_array_equal(bits(weight(name, parts).T.dequantize()), bits(wanted))


def test_numbers_are_rounded_once_from_float32() -> None:
    parts = random_parts(rule_of("e4m3_scale_f32_g0"), 32, 64)
    q = weight("e4m3_scale_f32_g0", parts)
    with gp.device("cpu"):
        wide = q.dequantize("float32").to_numpy()
        np.testing.assert_array_equal(bits(q.dequantize("bfloat16")), bits(wide.astype(small("bfloat16"))))


@pytest.mark.parametrize("name", ["i4_zero_f16_g64", "i6_superscale_f16_g16", "e4m3_scale_f32_g0"])
def test_rows_by_id(name: str, device: gp.Device) -> None:
    q = weight(name, random_parts(rule_of(name), 40, 256, spread=2)).T
    ids = np.array([[0, 39, 7], [8, 17, 39]])
    for kind, of in (("bfloat16", "int64"), ("float32", "int32")):
        wanted = q.dequantize(kind).to_numpy()[ids]
        np.testing.assert_array_equal(bits(q.rows(gp.from_numpy(ids.astype(of)), kind)), bits(wanted))
        out = gp.empty_like(gp.from_numpy(wanted))
        q.rows(gp.from_numpy(ids.astype(of).T).T, kind, out=out)
        np.testing.assert_array_equal(bits(out), bits(wanted))
    with pytest.raises(ValueError, match=r"q\.T\.rows"):
        q.T.rows(gp.from_numpy(ids))
    outside = gp.asarray([40, -1, 3])
    if device.kind == "cpu":
        with pytest.raises(IndexError, match="id 40"):
            q.rows(outside).to_numpy()
    else:
        assert not q.rows(outside)[:2].to_numpy().any()
