"""The benchmark: how far each operator is from what the machine can do, and from its peer.

``python -m pygpukit.benchmark`` and ``pygpukit bench`` run it. Every row checks its result before it is timed. On a GPU
the L2 cache is flushed before each sample, short kernels are repeated inside a graph, and ours and the peer (torch,
where it is installed; NumPy on the CPU device) take turns, so that drift of clocks meets both.
"""

from __future__ import annotations

from pygpukit.benchmark.command import main

__all__ = ["main"]
