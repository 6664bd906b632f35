"""Two models share a card that holds one and a half of them, and a picture shows what moved when.

python examples/memory_timeline.py timeline.html
python examples/memory_timeline.py timeline.png --quota 16GiB --layers 24   # needs pip install pygpukit[plot]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import pygpukit as gp
from pygpukit.config import parse_size


def model(pool: gp.memory.MemoryPool, layers: int, noise: np.ndarray) -> list[gp.GPUArray]:
    """Square matrices of the pool, the same for every model."""
    with pool:
        first = gp.from_numpy(noise)
        return [first, *(first * (1.0 + layer / layers) for layer in range(1, layers))]


def answer(weights: list[gp.GPUArray], request: gp.GPUArray) -> gp.GPUArray:
    """Pass the rows of a request through all layers."""
    x = request
    for matrix in weights:
        x = gp.tanh(gp.matmul(x, matrix))
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="file for the picture, .html or what matplotlib draws; or .json")
    parser.add_argument("--quota", default="32MiB", help="memory of the card (default: 32MiB)")
    parser.add_argument("--layers", type=int, default=6, help="matrices of each model (default: 6)")
    parser.add_argument("--rows", type=int, default=16, help="rows of each request (default: 16)")
    parser.add_argument("--turns", type=int, default=4, help="requests to each model (default: 4)")
    args = parser.parse_args()
    side = int((0.75 * parse_size(args.quota) / args.layers / 4) ** 0.5) // 8 * 8

    with gp.memory.MemoryPool(quota=args.quota, enable_eviction=True, name="card"):
        pools = [gp.memory.MemoryPool(enable_eviction=True, name=name) for name in ("first model", "second model")]
    # What leaves the card goes to page-locked memory, which is slow to make: not in the middle of the work.
    gp.memory.prepin(parse_size(args.quota) * 3 // 2)
    chance = np.random.default_rng(7)
    noise = chance.standard_normal((side, side), dtype=np.float32) / np.float32(side**0.5)
    request = gp.from_numpy(chance.standard_normal((args.rows, side), dtype=np.float32))
    with gp.memory.record() as recording:
        models = [model(pool, args.layers, noise) for pool in pools]
        answers = [answer(models[turn % 2], request).to_numpy() for turn in range(2 * args.turns)]
    for found in answers:
        np.testing.assert_array_equal(found, answers[0])  # whatever moved meanwhile

    print(recording.table())
    if args.picture.suffix == ".json":
        recording.to_json(args.picture)
    else:
        recording.plot(args.picture)
    print(f"\n{len(answers)} equal answers; the picture is {args.picture}")


if __name__ == "__main__":
    main()
