"""Makes goldens.npz: weights in each layout, as bytes, and their numbers by others' rules.

GGUF's come from the package ``gguf`` (pip install gguf), which the tests do not need; AWQ's, GPTQ's and float8's from
loops written from the descriptions of these formats, one number at a time.

    python tests/quant/make_goldens.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

BLOCKS = {
    "q4_0": ("Q4_0", 1), "q4_1": ("Q4_1", 2), "q5_0": ("Q5_0", 1), "q5_1": ("Q5_1", 2), "q8_0": ("Q8_0", 1),
    "q4_k": ("Q4_K", 2), "q5_k": ("Q5_K", 2), "q6_k": ("Q6_K", 1),
}  # fmt: skip
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def gguf_goldens(rng: np.random.Generator) -> dict[str, Any]:
    """Random codes and scales, and scales of every sign and size."""
    import gguf

    made: dict[str, Any] = {}
    for name, (kind, heads) in BLOCKS.items():
        values, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        rows, blocks = 5, 3 if values == 32 else 1
        data = rng.integers(0, 256, (rows, blocks, nbytes), np.uint8)
        scales = rng.standard_normal((rows, blocks, heads)) * 10.0 ** rng.integers(-6, 3, (rows, blocks, heads))
        scales[0, 0] = 0.0
        at = slice(208, 210) if kind == "Q6_K" else slice(0, 2 * heads)
        data[..., at] = scales.astype(np.float16).view(np.uint8).reshape(rows, blocks, -1)
        made[f"{name}.data"] = data.reshape(rows, -1)
        wanted = gguf.quants.dequantize(made[f"{name}.data"], gguf.GGMLQuantizationType[kind])
        made[f"{name}.wanted"] = wanted.astype(np.float32)
    return made


def int4_goldens(rng: np.random.Generator) -> dict[str, Any]:
    """AWQ, and GPTQ in both versions, with inputs sorted by group and in any order."""
    made: dict[str, Any] = {}
    k, n, group = 96, 8, 32
    scales = (rng.standard_normal((k // group, n)) / 16).astype(np.float16)
    words = rng.integers(0, 2**32, (k, n // 8), np.uint32)
    zeros = rng.integers(0, 2**32, (k // group, n // 8), np.uint32)
    wanted = np.zeros((n, k), np.float32)
    for i in range(k):
        for c in range(n // 8):
            for nibble in range(8):
                j = c * 8 + AWQ[nibble]
                q = int(words[i, c]) >> 4 * nibble & 15
                z = int(zeros[i // group, c]) >> 4 * nibble & 15
                wanted[j, i] = (q - z) * float(scales[i // group, j])
    made |= {"awq.qweight": words.view(np.int32), "awq.qzeros": zeros.view(np.int32), "awq.scales": scales}
    made["awq.wanted"] = wanted
    words = rng.integers(0, 2**32, (k // 8, n), np.uint32)
    zeros = rng.integers(0, 2**32, (k // group, n // 8), np.uint32)
    g_idx = rng.permutation(np.arange(k) // group).astype(np.int32)
    for name, more, shuffled in (("gptq", 1, False), ("gptq_v2", 0, False), ("gptq_act", 1, True)):
        wanted = np.zeros((n, k), np.float32)
        for i in range(k):
            g = int(g_idx[i]) if shuffled else i // group
            for j in range(n):
                q = int(words[i // 8, j]) >> 4 * (i % 8) & 15
                z = (int(zeros[g, j // 8]) >> 4 * (j % 8) & 15) + more
                wanted[j, i] = (q - z) * float(scales[g, j])
        made |= {f"{name}.qweight": words.view(np.int32), f"{name}.qzeros": zeros.view(np.int32)}
        made |= {f"{name}.scales": scales, f"{name}.wanted": wanted}
    made["gptq_act.g_idx"] = g_idx
    return made


def fp8_goldens(rng: np.random.Generator) -> dict[str, Any]:
    """Every code, with one scale, a scale per row, and a scale per block of 128 x 128."""
    made: dict[str, Any] = {}
    for name, key, n, k, shape in (
        ("fp8_tensor", "weight_scale", 17, 40, (1, 1)),
        ("fp8_row", "weight_scale", 17, 40, (17, 1)),
        ("fp8_block", "weight_scale_inv", 130, 140, (2, 2)),
    ):
        codes = np.resize(np.arange(256, dtype=np.uint8), n * k).reshape(n, k)
        codes[(codes & 0x7F) == 0x7F] = 0
        scales = rng.uniform(1e-4, 1, shape).astype(np.float32)
        wanted = np.zeros((n, k), np.float32)
        for i in range(n):
            for j in range(k):
                scale = scales[i if shape[0] == n else i // 128, j // 128 if shape[1] > 1 else 0]
                byte = int(codes[i, j])
                exponent, fraction = byte >> 3 & 15, byte & 7
                size = 2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8
                wanted[i, j] = np.float32(-size if byte & 0x80 else size) * scale
        made |= {f"{name}.weight": codes, f"{name}.{key}": scales, f"{name}.wanted": wanted}
    return made


def main() -> None:
    rng = np.random.default_rng(2024)
    made = gguf_goldens(rng) | int4_goldens(rng) | fp8_goldens(rng)
    path = Path(__file__).with_name("goldens.npz")
    np.savez_compressed(path, **made)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
