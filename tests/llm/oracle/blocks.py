"""Write gguf_blocks.npz: random blocks of every quantised type, and their elements by the package gguf. Needs gguf."""

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

NAMES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"]


def main() -> None:
    rng, made = np.random.default_rng(22), {}
    for name in NAMES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (512 // elements, size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            made[f"{name}_blocks"], made[name] = blocks, dequantize(blocks, kind).reshape(-1)
    np.savez_compressed(Path(__file__).resolve().parent.parent / "gguf_blocks.npz", **made)


if __name__ == "__main__":
    main()
