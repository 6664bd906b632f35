"""`Chain`: effects one after the other, over arrays, over streams, and in real time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import samples, whole_number
from pygpukit.audio.chain.effects import Effect, checked_rate
from pygpukit.audio.chain.host import HostChain
from pygpukit.audio.chain.program import DeviceChain, Program
from pygpukit.audio.operators import gp
from pygpukit.audio.streams import Stream
from pygpukit.errors import ParameterError

if TYPE_CHECKING:
    from pygpukit.audio.chain.realtime import Realtime

__all__ = ["Chain", "ChainStream"]

_MOST_CHANNELS = 32


def _bounded(value: Any, low: int, high: int, what: str) -> int:
    number = whole_number(value, what)
    if not low <= number <= high:
        raise ParameterError(f"{what} is {number}; it is from {low} to {high}")
    return number


class Chain:
    """Effects one after the other: ``Chain(48000, channels=2) | Highpass(80) | Limiter(-1.0)``.

    Samples are computed in blocks on a fixed grid, so that a whole array, a stream in any cuts and blocks in real time
    have the same bits. ``|`` returns a new chain.

    Parameters
    ----------
    rate : float
        Samples per second, 1000 to 1,000,000.
    channels : int, optional
        1 to 32.
    block : int, optional
        Samples per block, 16 to 4096.
    effects : sequence of Effect, optional
        What the chain begins with.

    Raises
    ------
    ParameterError
        If a number is none of these, or an effect cannot be computed at this rate.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> chain = A.Chain(48000) | A.Highpass(80) | A.Compressor(-18, ratio=3) | A.Limiter(-1.0)
    >>> chain(gp.ones(1000, "float32")).shape, chain.latency
    ((1000,), 240)
    """

    def __init__(self, rate: float, *, channels: int = 1, block: int = 128, effects: Sequence[Effect] = ()) -> None:
        self.rate = checked_rate(rate)
        self.channels = _bounded(channels, 1, _MOST_CHANNELS, "channels")
        self.block = _bounded(block, 16, 4096, "block")
        self.effects: tuple[Effect, ...] = tuple(effects)
        for effect in self.effects:
            given: Any = effect
            if not isinstance(given, Effect) or type(given) is Effect:
                raise ParameterError(f"{effect!r} is no effect; use Highpass, Gate, Compressor, Convolve, Limiter, ...")
            effect.values(self.rate)
            effect.plan(self.rate, self.channels, self.block)

    def __or__(self, effect: Effect) -> Chain:
        return Chain(self.rate, channels=self.channels, block=self.block, effects=(*self.effects, effect))

    def __repr__(self) -> str:
        names = " | ".join(type(effect).__name__ for effect in self.effects)
        return f"<Chain of {self.channels} channels at {self.rate:g}, blocks of {self.block}: {names or 'no effects'}>"

    @property
    def latency(self) -> int:
        """Samples by which the result lies behind its input: look-ahead, and frames of spectral effects."""
        return sum(effect.latency(self.rate) for effect in self.effects)

    @cached_property
    def program(self) -> Program:
        """The chain as CUDA C++."""
        return Program(self.effects, self.rate, self.channels, self.block)

    def values(self) -> Any:
        """Return the numbers that may change while the chain runs, of all effects in a row."""
        return np.array([v for effect in self.effects for v in effect.values(self.rate)], np.float64)

    def changed(self, index: int, **parameters: Any) -> Chain:
        """Return the chain with other parameters of one effect; see `Effect.changed`.

        Raises
        ------
        ParameterError
            If there is no such effect, or a parameter is fixed or wrong.
        """
        at = _bounded(index, -len(self.effects), len(self.effects) - 1, "index of the effect")
        effects = list(self.effects)
        effects[at] = effects[at].changed(**parameters)
        found = Chain(self.rate, channels=self.channels, block=self.block, effects=effects)
        if "program" in self.__dict__:
            # What changes is not in the source.
            found.__dict__["program"] = self.program
        return found

    def __call__(self, y: Any) -> GPUArray:
        """Compute a whole array: as many samples as it has, late by `latency`.

        Parameters
        ----------
        y : GPUArray
            float32, (..., channels, n), or (..., n) of a chain of one channel. Each item of a batch begins anew.

        Raises
        ------
        ParameterError
            If it has another type or number of channels.
        """
        stream = self.stream()
        parts = [stream.push(samples(y)), stream.flush()]
        return parts[0] if parts[1].shape[-1] == 0 else gp.concatenate(parts, axis=-1)

    def stream(self) -> ChainStream:
        """Return a stream: blocks of any length in, what is final out."""
        return ChainStream(self)

    def realtime(
        self, *, deadline: float | None = None, on_late: str = "bypass", cost: float | None = None, **options: Any
    ) -> Realtime:
        """Return the chain as an actor that is fed block by block; see `Realtime`."""
        from pygpukit.audio.chain.realtime import Realtime

        return Realtime(self, deadline=deadline, on_late=on_late, cost=cost, **options)


class _HostChains:
    """`HostChain` over arrays, one for each item."""

    def __init__(self, chain: Chain, items: int) -> None:
        self._block = chain.block
        self._items = [HostChain(chain.effects, chain.rate, chain.channels, chain.block) for _ in range(items)]

    def run(self, x: GPUArray, values: Any) -> GPUArray:
        given, n, block = x.to_numpy(), x.shape[-1], self._block
        out = np.empty_like(given)
        for item, rows, made in zip(self._items, given, out, strict=True):
            for first in range(0, n, block):
                part = rows[:, first : first + block]
                full = part if part.shape[1] == block else np.pad(part, [(0, 0), (0, block - part.shape[1])])
                made[:, first : first + block] = item.run(full, values)[:, : part.shape[1]]
        return gp.from_numpy(out)

    @property
    def not_finite(self) -> int:
        return sum(item.not_finite for item in self._items)

    def state(self) -> Any:
        return [item.state() for item in self._items]

    def restore(self, state: Any) -> None:
        for item, kept in zip(self._items, state, strict=True):
            item.restore(kept)


class ChainStream(Stream):
    """A chain over blocks of any length, made by `Chain.stream`.

    The joined output, `flush` included, has the bits of the chain over all samples at once.

    Parameters
    ----------
    chain : Chain
        What is computed.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> stream = (A.Chain(8000, block=16) | A.Highpass(100)).stream()
    >>> stream.push(gp.ones(20, "float32")).shape, stream.flush().shape
    ((16,), (4,))
    """

    _kept = ("_chain", "_waiting")

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self._chain = chain
        self._waiting: GPUArray | None = None
        self._engine: Any = None

    @property
    def latency(self) -> int:
        """That of the chain, and a block but one sample: blocks are computed when they are whole."""
        return self._chain.latency + self._chain.block - 1

    @property
    def not_finite(self) -> int:
        """Samples that were not finite, and were taken for 0."""
        return 0 if self._engine is None else self._engine.not_finite

    def change(self, index: int, **parameters: Any) -> None:
        """Change parameters of an effect: they move linearly over the next block.

        Raises
        ------
        ParameterError
            If there is no such effect, or a parameter is fixed or wrong.
        """
        self._chain = self._chain.changed(index, **parameters)

    def state(self) -> dict[str, Any]:
        """Return what the stream keeps, for `restore`."""
        return {**super().state(), "engine": None if self._engine is None else self._engine.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned, of a stream of the same chain."""
        kept = dict(state)
        engine = kept.pop("engine", None)
        super().restore(kept)
        self._engine = None
        if engine is not None and self._waiting is not None:
            self._engine = self._made(self._waiting)
            self._engine.restore(engine)

    def _begin(self, x: GPUArray) -> None:
        channels = self._chain.channels
        if x.dtype.name != "float32":
            self._shape = None
            raise ParameterError(f"samples are {x.dtype.name}; a chain computes float32: convert with astype")
        if channels > 1 and (x.ndim < 2 or x.shape[-2] != channels):
            self._shape = None
            raise ParameterError(f"samples have shape {x.shape}; a chain of {channels} takes (..., {channels}, n)")
        self._waiting = gp.zeros((*x.shape[:-1], 0), "float32", device=x.device)
        self._engine = self._made(x)

    def _made(self, x: GPUArray) -> Any:
        items = prod(x.shape[:-1]) // self._chain.channels
        with gp.device(x.device):
            if gp.current_device().kind == "cpu":
                return _HostChains(self._chain, items)
            return DeviceChain(self._chain.program, items)

    def _push(self, x: GPUArray) -> GPUArray:
        assert self._waiting is not None
        joined = x if self._waiting.shape[-1] == 0 else gp.concatenate([self._waiting, x], axis=-1)
        whole = joined.shape[-1] // self._chain.block * self._chain.block
        self._waiting = joined[..., whole:].copy()
        return self._run(joined[..., :whole])

    def _run(self, x: GPUArray) -> GPUArray:
        if x.shape[-1] == 0 or x.size == 0:
            return x
        channels = self._chain.channels
        with gp.device(x.device):
            rows = x.reshape((prod(x.shape[:-1]) // channels, channels, x.shape[-1]))
            return self._engine.run(rows, self._chain.values()).reshape(x.shape)

    def _flush(self) -> GPUArray:
        assert self._waiting is not None
        return self._run(self._waiting)
