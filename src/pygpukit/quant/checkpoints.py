"""Weights as checkpoints store them: AWQ, GPTQ, compressed-tensors, float8 with scales, and the blocks of GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.quant import gguf
from pygpukit.quant.formats import FORMATS, TILE, Format, Rule
from pygpukit.quant.planes import Array, Parts

LAYOUTS = (
    "awq",
    "gptq",
    "gptq_v2",
    "pack_quantized",
    "int8",
    "fp8",
    *(name for name, form in FORMATS.items() if form.block[0]),
)

# The nibble of a word that holds column 0 .. 7 of eight.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
_IN_ORDER = tuple(range(8))
_SCALES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_GROUPS = (32, 64, 128)

Read = tuple[Format, Rule, Parts, Array | None]


def read(layout: str, tensors: Mapping[str, Any], shape: tuple[int, int] | None) -> Read:
    """Return format, rule and parts of a weight, and the order of its columns where they are sorted by group.

    Raises
    ------
    ValueError
        If the layout is unknown, or arrays are missing or do not fit each other.
    """
    name = layout.lower()
    if name not in LAYOUTS:
        raise ValueError(f"unknown layout '{layout}'; use one of {', '.join(LAYOUTS)}")
    given = {key: _host(key, x) for key, x in tensors.items()}
    if name == "awq":
        made = _read_awq(given)
    elif name in ("gptq", "gptq_v2"):
        made = _read_gptq(given, 1 if name == "gptq" else 0)
    elif name == "pack_quantized":
        made = _read_packed(given, shape)
    elif name == "int8":
        made = _read_int8(given)
    elif name == "fp8":
        made = _read_fp8(given)
    else:
        made = _read_gguf(FORMATS[name], given, shape)
    if shape is not None and made[2].codes.shape != tuple(shape):
        raise ShapeError(f"the {name} weight has shape {made[2].codes.shape}, not {tuple(shape)} as asked for")
    return made


def write(layout: str, rule: Rule, parts: Parts, order: Array | None) -> dict[str, Array]:
    """Return the arrays that `read` was given.

    Raises
    ------
    ValueError
        If the layout is none of a checkpoint.
    """
    if layout == "awq":
        return _write_awq(parts)
    if layout in ("gptq", "gptq_v2"):
        return _write_gptq(rule, parts, order, 1 if layout == "gptq" else 0)
    if layout == "pack_quantized":
        return _write_packed(rule, parts, order)
    if layout == "int8":
        return {"weight": (parts.codes ^ 0x80).view(np.int8), "weight_scale": parts.scales[..., 0]}
    if layout == "fp8":
        return _write_fp8(rule, parts)
    if layout in LAYOUTS:
        return {"data": gguf.write_blocks(FORMATS[layout], parts)}
    raise ValueError(f"this weight was made by {layout}(), not read from a checkpoint; pickle it to keep it")


def _host(key: str, x: Any) -> Array:
    if isinstance(x, GPUArray):
        return x.to_numpy()
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    try:
        return np.frombuffer(x, np.uint8)
    except TypeError:
        raise TypeError(
            f"'{key}' is a {type(x).__name__}; give a GPUArray, a NumPy array or an object with a buffer"
        ) from None


def _need(given: Mapping[str, Array], layout: str, *names: str) -> list[Array]:
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"a weight in layout '{layout}' needs {', '.join(names)}; {', '.join(missing)} is missing")
    return [given[name] for name in names]


def _words(x: Array, name: str) -> Array:
    if x.ndim != 2 or x.dtype.kind not in "iu" or x.dtype.itemsize != 4:
        raise ValueError(f"{name} is a matrix of int32, not {x.dtype.name} of shape {x.shape}")
    return np.ascontiguousarray(x).view(np.uint32)


def _nibbles(words: Array, places: tuple[int, ...], axis: int) -> Array:
    """Spread each word over eight numbers along an axis."""
    shifts = np.array(places, np.uint32) * 4
    parts = (words[..., None] >> shifts & np.uint32(15)).astype(np.uint8)
    if axis == 0:
        return parts.swapaxes(1, 2).reshape(-1, words.shape[1])
    return parts.reshape(len(words), -1)


def _from_nibbles(values: Array, places: tuple[int, ...], axis: int) -> Array:
    shifts = np.array(places, np.uint32) * 4
    n, k = values.shape
    eight = values.reshape(n // 8, 8, k).swapaxes(1, 2) if axis == 0 else values.reshape(n, k // 8, 8)
    words: Array = np.bitwise_or.reduce(eight.astype(np.uint32) << shifts, axis=-1)
    return words.view(np.int32)


def _int4(layout: str, k: int, n: int, zeros: Array, scales: Array) -> tuple[Rule, Array, Array | None]:
    """Check scales and zero points, (groups, n), and return the rule with them, a row per output."""
    groups = len(scales) if scales.ndim == 2 else 0
    if groups == 0 or scales.shape[1] != n or k % groups:
        raise ShapeError(f"{layout}: scales of shape {scales.shape} do not fit a weight of {k} inputs and {n} outputs")
    if zeros.shape != scales.shape:
        raise ShapeError(f"{layout}: qzeros hold {zeros.shape} zero points, but scales have shape {scales.shape}")
    if scales.dtype.name not in ("float16", "bfloat16"):
        raise DTypeError(f"{layout}: scales are float16 or bfloat16, not {scales.dtype.name}")
    group = 0 if groups == 1 and k not in _GROUPS else k // groups
    if group not in (0, *_GROUPS):
        raise ValueError(f"{layout}: groups of {group} values; 32, 64, 128 and whole rows are supported")
    plain = bool((zeros == 8).all())
    rule = Rule("i4", "scale" if plain else "zero", _SCALES[scales.dtype.name], group)
    return rule, np.ascontiguousarray(scales.T)[..., None], None if plain else np.ascontiguousarray(zeros.T)


def _read_awq(given: Mapping[str, Array]) -> Read:
    qweight, qzeros, scales = _need(given, "awq", "qweight", "qzeros", "scales")
    codes = _nibbles(_words(qweight, "qweight"), _AWQ_PLACES, 1)
    zeros = _nibbles(_words(qzeros, "qzeros"), _AWQ_PLACES, 1)
    k, n = codes.shape
    rule, s, z = _int4("awq", k, n, zeros, scales)
    return FORMATS["int4"], rule, Parts(np.ascontiguousarray(codes.T), s, z), None


def _write_awq(parts: Parts) -> dict[str, Array]:
    scales, zeros = _turned(parts)
    return {
        "qweight": _from_nibbles(parts.codes.T, _AWQ_PLACES, 1),
        "qzeros": _from_nibbles(zeros, _AWQ_PLACES, 1),
        "scales": scales,
    }


def _turned(parts: Parts) -> tuple[Array, Array]:
    scales = np.ascontiguousarray(parts.scales[..., 0].T)
    zeros = np.full(scales.shape, 8, np.uint8) if parts.extra is None else parts.extra.T
    return scales, zeros


def _read_gptq(given: Mapping[str, Array], less: int) -> Read:
    qweight, qzeros, scales = _need(given, "gptq", "qweight", "qzeros", "scales")
    codes = _nibbles(_words(qweight, "qweight"), _IN_ORDER, 0)
    zeros = _nibbles(_words(qzeros, "qzeros"), _IN_ORDER, 1) + np.uint8(less)
    k, n = codes.shape
    rule, s, z = _int4("gptq", k, n, zeros[:, :n], scales)
    order = None
    if "g_idx" in given:
        order = _order(given["g_idx"], k, rule.group or k)
        if order is not None:
            codes = codes[order]
    return FORMATS["int4"], rule, Parts(np.ascontiguousarray(codes.T), s, z), order


def _order(g_idx: Array, k: int, group: int) -> Array | None:
    """Return the columns sorted by their group; None where they are already."""
    if g_idx.shape != (k,) or g_idx.dtype.kind not in "iu":
        raise ShapeError(f"gptq: g_idx names the group of each of {k} inputs, but is {g_idx.dtype.name} {g_idx.shape}")
    groups = k // group
    wide = g_idx.astype(np.int64)
    if wide.min() < 0 or wide.max() >= groups or (np.bincount(wide, minlength=groups) != group).any():
        raise ValueError(f"gptq: g_idx does not give each of {groups} groups {group} inputs: the file is broken")
    order = np.argsort(wide, kind="stable")
    return None if (order == np.arange(k)).all() else order


def _write_gptq(rule: Rule, parts: Parts, order: Array | None, less: int) -> dict[str, Array]:
    scales, zeros = _turned(parts)
    codes = parts.codes.T
    made: dict[str, Array] = {}
    if order is not None:
        unsorted = np.empty_like(codes)
        unsorted[order] = codes
        codes = unsorted
        g_idx = np.empty(len(order), np.int32)
        g_idx[order] = np.arange(len(order)) // rule.group
        made["g_idx"] = g_idx
    # Words of zero points are whole ones.
    zeros = np.concatenate([zeros, np.full((len(zeros), -zeros.shape[1] % 8), less, np.uint8)], axis=1)
    return made | {
        "qweight": _from_nibbles(codes, _IN_ORDER, 0),
        "qzeros": _from_nibbles(zeros - np.uint8(less), _IN_ORDER, 1),
        "scales": scales,
    }


def _read_packed(given: Mapping[str, Array], shape: tuple[int, int] | None) -> Read:
    packed, scales = _need(given, "pack_quantized", "weight_packed", "weight_scale")
    words = _words(packed, "weight_packed")
    n, count = words.shape
    if "weight_shape" in given:
        sizes = given["weight_shape"]
        if sizes.shape != (2,) or sizes.dtype.kind not in "iu":
            raise ShapeError(f"pack_quantized: weight_shape holds two integers, not {sizes.dtype.name} {sizes.shape}")
        shape = int(sizes[0]), int(sizes[1])
    bits = 4 if shape is None or -(-shape[1] // 8) == count else 8
    n, k = (n, count * 32 // bits) if shape is None else shape
    if n != len(words) or -(-k * bits // 32) != count:
        raise ShapeError(f"pack_quantized: weight_packed of shape {packed.shape} does not fit a weight of {shape}")
    if scales.ndim != 2 or len(scales) != n:
        raise ShapeError(f"pack_quantized: weight_scale of shape {scales.shape} does not fit a weight of ({n}, {k})")
    if bits == 8:
        return _read_packed_bytes(words.view(np.uint8)[:, :k], scales, "weight_zero_point" in given)
    codes = _nibbles(words, _IN_ORDER, 1)[:, :k]
    zeros = np.full(scales.shape, 8, np.uint8)
    if "weight_zero_point" in given:
        zeros = _nibbles(_words(given["weight_zero_point"], "weight_zero_point"), _IN_ORDER, 0)[:n]
    rule, s, z = _int4("pack_quantized", k, n, np.ascontiguousarray(zeros.T), scales.T)
    order = None
    # Of columns in their own order it holds -1.
    if "weight_g_idx" in given and (given["weight_g_idx"] >= 0).all():
        order = _order(given["weight_g_idx"], k, rule.group or k)
        if order is not None:
            codes = codes[:, order]
    return FORMATS["int4"], rule, Parts(np.ascontiguousarray(codes), s, z), order


def _read_packed_bytes(codes: Array, scales: Array, zeros: bool) -> Read:
    n, k = codes.shape
    groups = scales.shape[1]
    group = 0 if groups == 1 else k // groups if groups and k % groups == 0 else -1
    if zeros or group not in (0, *_GROUPS):
        what = "zero points" if zeros else f"scales of shape {scales.shape}"
        raise ValueError(
            f"pack_quantized: a weight of 8 bits and shape ({n}, {k}) with {what}; groups of 32, 64 and 128 and whole "
            "rows without zero points are supported"
        )
    if scales.dtype.name not in _SCALES:
        raise DTypeError(f"pack_quantized: weight_scale is a float of 16 or 32 bits, not {scales.dtype.name}")
    scales = scales if group else scales.astype(np.float32)
    rule = Rule("i8", "scale", _SCALES[scales.dtype.name], group)
    return FORMATS["int8"], rule, Parts(np.ascontiguousarray(codes), np.ascontiguousarray(scales)[..., None]), None


def _write_packed(rule: Rule, parts: Parts, order: Array | None) -> dict[str, Array]:
    n, k = parts.codes.shape
    made: dict[str, Array] = {"weight_shape": np.array([n, k], np.int64), "weight_scale": parts.scales[..., 0]}
    if rule.code == "i8":
        padded = np.concatenate([parts.codes, np.zeros((n, -k % 4), np.uint8)], axis=1)
        return made | {"weight_packed": np.ascontiguousarray(padded).view(np.int32)}
    codes = parts.codes
    if order is not None:
        codes, g_idx = np.empty_like(parts.codes), np.empty(k, np.int32)
        codes[:, order], g_idx[order] = parts.codes, np.arange(k) // rule.group
        made["weight_g_idx"] = g_idx
    codes = np.concatenate([codes, np.zeros((n, -k % 8), np.uint8)], axis=1)
    made["weight_packed"] = _from_nibbles(codes, _IN_ORDER, 1)
    if parts.extra is not None:
        zeros = np.concatenate([parts.extra, np.zeros((-n % 8, parts.extra.shape[1]), np.uint8)])
        made["weight_zero_point"] = _from_nibbles(zeros, _IN_ORDER, 0)
    return made


def _read_int8(given: Mapping[str, Array]) -> Read:
    weight, scales = _need(given, "int8", "weight", "weight_scale")
    if weight.ndim != 2 or weight.dtype != np.int8:
        raise ValueError(f"int8: weight is a matrix of int8, not {weight.dtype.name} of shape {weight.shape}")
    n, _ = weight.shape
    if scales.dtype.name not in _SCALES:
        raise DTypeError(f"int8: weight_scale is a float of 16 or 32 bits, not {scales.dtype.name}")
    if scales.size not in (1, n) or scales.ndim > 2 or (scales.ndim == 2 and scales.shape[1] != 1):
        raise ShapeError(f"int8: weight_scale of shape {scales.shape} is neither one number nor one per row of {n}")
    every = np.broadcast_to(scales.astype(np.float32).reshape(-1), (n,)).copy()
    codes = np.ascontiguousarray(weight).view(np.uint8) ^ np.uint8(0x80)
    return FORMATS["int8"], Rule("i8", "scale", "f32", 0), Parts(codes, every.reshape(n, 1, 1)), None


def _read_fp8(given: Mapping[str, Array]) -> Read:
    (weight,) = _need(given, "fp8", "weight")
    if weight.ndim != 2 or weight.dtype.name not in ("float8_e4m3fn", "uint8"):
        raise ValueError(f"fp8: weight is a matrix of float8_e4m3fn, not {weight.dtype.name} of shape {weight.shape}")
    n, k = weight.shape
    codes = np.ascontiguousarray(weight).view(np.uint8)
    name = "weight_scale_inv" if "weight_scale_inv" in given else "weight_scale"
    (scales,) = _need(given, "fp8", name)
    if scales.dtype.name not in _SCALES:
        raise DTypeError(f"fp8: {name} is a float of 16 or 32 bits, not {scales.dtype.name}")
    wide = scales.astype(np.float32)
    if wide.size == 1:
        tiles = -(-n // TILE)
        return FORMATS["fp8_e4m3"], Rule("e4m3", "scale", "f32", 0), Parts(codes, np.full((tiles, 1), wide)), None
    if wide.shape in ((n,), (n, 1)):
        return FORMATS["fp8_e4m3"], Rule("e4m3", "scale", "f32", 0), Parts(codes, wide.reshape(n, 1, 1)), None
    if wide.shape == (-(-n // 128), -(-k // 128)):
        by_tile = np.repeat(wide, 128 // TILE, axis=0)[: -(-n // TILE)]
        return FORMATS["fp8_e4m3"], Rule("e4m3", "scale", "f32", 128), Parts(codes, by_tile), None
    raise ShapeError(
        f"fp8: {name} of shape {scales.shape} does not fit a weight of ({n}, {k}): one number, one per row, or "
        f"({-(-n // 128)}, {-(-k // 128)}) for blocks of 128"
    )


def _write_fp8(rule: Rule, parts: Parts) -> dict[str, Array]:
    import ml_dtypes

    weight = parts.codes.view(ml_dtypes.float8_e4m3fn)
    if parts.scales.ndim == 3:
        return {"weight": weight, "weight_scale": parts.scales[..., 0]}
    if rule.group == 0:
        return {"weight": weight, "weight_scale": parts.scales[0, 0]}
    return {"weight": weight, "weight_scale_inv": parts.scales[:: 128 // TILE]}


def _read_gguf(form: Format, given: Mapping[str, Array], shape: tuple[int, int] | None) -> Read:
    (data,) = _need(given, form.name, "data")
    values, nbytes = form.block
    flat = np.ascontiguousarray(data).view(np.uint8) if data.dtype.itemsize == 1 else data
    if flat.dtype != np.uint8:
        raise DTypeError(f"{form.name}: data is bytes, not {data.dtype.name}")
    if shape is None:
        if flat.ndim != 2 or flat.shape[1] % nbytes:
            raise ShapeError(
                f"{form.name}: without shape=, data is a matrix with a row of {nbytes}-byte blocks per output, not of "
                f"shape {flat.shape}"
            )
        shape = (len(flat), flat.shape[1] // nbytes * values)
    n, k = (int(x) for x in shape)
    if n <= 0 or k <= 0 or k % values:
        raise ShapeError(f"{form.name}: a row of {k} values is no whole number of blocks of {values}; shape is {shape}")
    if flat.size != n * (k // values) * nbytes:
        raise ShapeError(
            f"{form.name}: {flat.size} bytes for shape {shape}, which takes {n * (k // values) * nbytes}: the file "
            "is cut short or the shape is another's"
        )
    parts = gguf.read_blocks(form, flat.reshape(n, k // values, nbytes))
    return form, Rule(form.code, form.kind, "f16", form.groups[0]), parts, None
