"""Two vectors added on the device: buffers with two sides, a kernel from CUDA C++ source, and an orchestrator.

python examples/vector_add.py
python examples/vector_add.py --size 10000000
"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

from pygpukit.ring import Accelerator, ComputeOrchestrator, KernelLaunchConfig, UnifiedBuffer, cuda_source


@cuda_source("""
__global__ void vector_add(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
""")
def vector_add(x, y, out, n):  # type: ignore[no-untyped-def]
    """Stands for the kernel above."""


async def run(size: int) -> None:
    """Add, check, and say what it took."""
    rng = np.random.default_rng(0)
    x, y = (UnifiedBuffer.from_numpy(rng.random(size, np.float32)) for _ in range(2))
    out = UnifiedBuffer(size)
    async with ComputeOrchestrator() as orchestrator:
        orchestrator.register_kernel("vector_add", vector_add)
        config = KernelLaunchConfig(grid_size=-(-size // 256), block_size=256)
        done = await orchestrator.launch_kernel("vector_add", config, x, y, out, size)
    if done.error is not None:
        raise done.error
    print(f"{size} elements on {Accelerator().current_device.name}: {done.duration_ms:.3f} ms")
    print(f"equal to NumPy: {np.array_equal(out.host, x.host + y.host)}; out is {out.state.name}")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100_000, help="elements of a vector")
    asyncio.run(run(parser.parse_args().size))


if __name__ == "__main__":
    main()
