"""What a section of the benchmark gives: rows that are made ready one after the other, checked, and timed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import pygpukit as gp
from pygpukit._pygpukit_rust import GPUArray

Call: TypeAlias = Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A row that is ready to be timed.

    Attributes
    ----------
    calls
        The same operation on different operands, which together exceed the L2 cache where that matters.
    peer
        The same by the peer; empty without one.
    error, tolerance
        Distance of a result from its float64 reference, relative to the reference's root mean square, and what is
        allowed.
    nbytes, flops
        What one call has to move and compute.
    variant
        What `pygpukit.explain` says of it.
    tokens
        Of one call, where that is what its rate is told in.
    sample
        Times so many calls itself, and what they are held against, in place of `calls`.
    """

    calls: tuple[Call, ...]
    peer: tuple[Call, ...]
    error: float
    tolerance: float
    nbytes: int
    flops: int = 0
    variant: str = ""
    tokens: int = 0
    sample: Callable[[int], tuple[tuple[float, ...], tuple[float, ...]]] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row of a section.

    Attributes
    ----------
    name
        Unique in a run; rows of two runs are compared by it.
    section
        Name of the section.
    precision
        Names the compute ceiling it is held against.
    prepare
        Makes operands and checks a result.
    """

    name: str
    section: str
    precision: str
    prepare: Callable[[], Work]


class Options:
    """What was asked for.

    Attributes
    ----------
    device
        The device measured.
    torch
        The peer's module; None where it is missing or has no GPU.
    quick
        Fewer and smaller rows.
    sizes, dtypes, seq_lens
        As given; empty for a section's own.
    model
        A model to measure an engine with, in place of a random one.
    seed
        Of the random operands.
    """

    def __init__(
        self,
        *,
        quick: bool = False,
        sizes: Sequence[int] = (),
        dtypes: Sequence[str] = (),
        seq_lens: Sequence[int] = (),
        fp8: bool = False,
        peer: bool = True,
        model: Path | None = None,
        seed: int = 1,
    ) -> None:
        self.device = gp.current_device()
        self.on_gpu = self.device.kind == "cuda"
        self.quick, self.fp8, self.seed = quick, fp8, seed
        self.sizes, self.dtypes, self.seq_lens = tuple(sizes), tuple(dtypes), tuple(seq_lens)
        self.has_peer, self.model = peer, model
        self.torch = _torch() if peer and self.on_gpu else None
        self.l2_bytes = int(self.device.properties()["l2_bytes"])
        self._random = gp.random.default_rng(seed)

    def normal(self, shape: tuple[int, ...], dtype: str) -> GPUArray:
        """Return an array of normal numbers; of small integers for an integer type."""
        if gp.dtype(dtype).kind in "iu":
            low = 0 if gp.dtype(dtype).kind == "u" else -8
            return self._random.integers(low, 8, shape).astype(dtype)
        if gp.dtype(dtype).kind == "b":
            return self._random.integers(0, 2, shape).astype(dtype)
        return self._random.standard_normal(shape, dtype="float32").astype(dtype, copy=False)

    def copies(self, nbytes: int) -> int:
        """Return how many operands of this size exceed the L2 cache three times."""
        return max(1, min(64, -(-3 * self.l2_bytes // max(nbytes, 1))))

    def tried(self, what: str, make: Callable[[], tuple[Call, ...]]) -> tuple[Call, ...]:
        """Return the peer's calls if they run; without, a line on stderr says why a row has no peer."""
        try:
            calls = make()
            calls[0]()
        except Exception as error:
            print(f"no peer for {what}: {type(error).__name__}: {error}", file=sys.stderr)
            return ()
        return calls

    def to_torch(self, x: GPUArray) -> Any:
        """Return a tensor over the same memory."""
        assert self.torch is not None
        return self.torch.from_dlpack(x)


def _torch() -> Any:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def distance(result: Any, reference: Any) -> float:
    """Return the root mean square of the difference, relative to that of the reference; infinite where one has NaN.

    Examples
    --------
    >>> distance([1.0, 2.0], [1.0, 2.0])
    0.0
    """
    got, wanted = (np.asarray(x).astype(np.float64) for x in (result, reference))
    if got.shape != wanted.shape:
        return float("inf")
    size = float(np.sqrt(np.mean(np.square(wanted)))) if wanted.size else 0.0
    off = float(np.sqrt(np.mean(np.square(got - wanted)))) if wanted.size else 0.0
    if not np.isfinite(off):
        return float("inf")
    return off / size if size else off
