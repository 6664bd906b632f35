"""The effects of a chain over NumPy blocks: what the CPU device runs, and kernels are compared with.

A block is (channels, samples): float64 inside of an effect and float32 between effects, as on the device. Each class
keeps what its effect needs from block to block.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit.audio.chain.effects import (
    Compressor,
    Convolve,
    Effect,
    Equalizer,
    Gate,
    Highpass,
    Limiter,
    SpectralGate,
    transform_size,
)

__all__ = ["LOUDEST", "HostChain"]

LOUDEST = 1e6
"""Largest magnitude that a chain takes; samples beyond it are set to that."""

_SILENT = 1e-10


def _decibels(x: Any) -> Any:
    return 20.0 * np.log10(np.maximum(np.abs(x), _SILENT))


def _gain(decibels: Any) -> Any:
    return 10.0 ** (decibels * 0.05)


def _followed(rows: Any, states: Any, rise: Any, fall: Any) -> Any:
    """Levels that follow rows (channels, n), with factors per sample; ``states`` (channels,) is replaced."""
    out = np.empty_like(rows)
    ups, downs = (1.0 - rise).tolist(), (1.0 - fall).tolist()
    for c, row in enumerate(rows):
        s, levels = float(states[c]), []
        for v, up, down in zip(row.tolist(), ups, downs, strict=True):
            s += (up if v > s else down) * (v - s)
            levels.append(s)
        out[c], states[c] = levels, s
    return out


class _Highpass:
    def __init__(self, effect: Highpass, rate: float, channels: int, block: int) -> None:
        del rate, block
        self.state = np.zeros((channels, effect.order // 2, 2))

    def run(self, x: Any, p: Any) -> Any:
        moves = (p != p[:, :1]).any()
        columns = p.T.tolist() if moves else []
        for c, row in enumerate(x):
            v = row.tolist()
            for k, state in enumerate(self.state[c]):
                (s, t), w = state.tolist(), []
                b0, b1, b2, a1, a2 = p[5 * k : 5 * k + 5, 0].tolist()
                for i, u in enumerate(v):
                    if moves:
                        b0, b1, b2, a1, a2 = columns[i][5 * k : 5 * k + 5]
                    y = b0 * u + s
                    s = b1 * u - a1 * y + t
                    t = b2 * u - a2 * y
                    w.append(y)
                state[:] = s, t
                v = w
            x[c] = v
        return x


class _Gate:
    def __init__(self, effect: Gate, rate: float, channels: int, block: int) -> None:
        del effect, rate, block
        self.level, self.opened = np.zeros(channels), np.zeros(channels)

    def run(self, x: Any, p: Any) -> Any:
        threshold, closed, attack, release, meter = p
        level = _followed(np.abs(x), self.level, np.zeros_like(meter), meter)
        opened = _followed((level >= threshold).astype(np.float64), self.opened, attack, release)
        return x * _gain((1.0 - opened) * closed)


class _Compressor:
    def __init__(self, effect: Compressor, rate: float, channels: int, block: int) -> None:
        del effect, rate, block
        self.level = np.zeros(channels)

    def run(self, x: Any, p: Any) -> Any:
        threshold, slope, knee, makeup, attack, release = p
        over = _decibels(x) - threshold
        bent = np.clip(over + 0.5 * knee, 0.0, knee)
        with np.errstate(invalid="ignore", divide="ignore"):
            down = np.where((over * 2 < knee) & (knee > 0), bent * bent / (2 * knee), np.maximum(over, 0.0))
        return x * _gain(makeup - _followed(down * slope, self.level, attack, release))


class _Limiter:
    def __init__(self, effect: Limiter, rate: float, channels: int, block: int) -> None:
        ahead = effect.latency(rate)
        self.size = ahead + 1
        # The last needs, what was held of them, and samples, as many as the look-ahead has.
        self.needs, self.held, self.late = (np.zeros((channels, ahead)) for _ in range(3))
        self.level = np.zeros(channels)

    def run(self, x: Any, p: Any) -> Any:
        ceiling, release = p
        n, ahead = x.shape[1], self.size - 1
        needs = np.concatenate([self.needs, np.maximum(_decibels(x) - ceiling, 0.0)], axis=1)
        late = np.concatenate([self.late, x], axis=1)
        most = np.lib.stride_tricks.sliding_window_view(needs, self.size, axis=1).max(-1)
        found = _followed(most, self.level, np.zeros(n), release)
        held = np.concatenate([self.held, found], axis=1)
        smooth = np.lib.stride_tricks.sliding_window_view(held, self.size, axis=1).sum(-1) / self.size
        self.needs, self.held, self.late = needs[:, n:], held[:, n:], late[:, n:]
        top = _gain(ceiling)
        return np.clip(late[:, :n] * _gain(-smooth), -top, top) if ahead else np.clip(x * _gain(-smooth), -top, top)


class _Convolve:
    def __init__(self, effect: Convolve, rate: float, channels: int, block: int) -> None:
        del rate
        self.spectra = effect.spectra(channels, block)
        size = transform_size(block)
        self.last = np.zeros((channels, size), np.float32)
        self.lines = np.zeros((len(self.spectra), channels, size // 2 + 1), np.complex64)
        self.at = 0

    def run(self, x: Any, p: Any) -> Any:
        wet, dry = p
        n = x.shape[1]
        self.last = np.concatenate([self.last[:, n:], x.astype(np.float32)], axis=1)
        parts = len(self.lines)
        self.lines[self.at] = np.fft.rfft(self.last)
        # Part p of the response meets the block p blocks ago.
        total = (self.spectra * self.lines[(self.at - np.arange(parts)) % parts]).sum(0)
        self.at = (self.at + 1) % parts
        made = np.fft.irfft(total, self.last.shape[1])[:, self.last.shape[1] - n :]
        return dry * x + wet * made


class _Spectral:
    def __init__(self, effect: SpectralGate | Equalizer, rate: float, channels: int, block: int) -> None:
        del block
        self.n, self.hop, self.gates = effect.n_fft, effect.hop, isinstance(effect, SpectralGate)
        self.window, self.total = effect.window()
        self.curve = effect.bins(rate)
        # The samples of a frame before the next one, and sums of the frames over samples that are not out.
        self.last = np.zeros((channels, self.n), np.float32)
        self.sums = np.zeros((channels, self.n), np.float32)
        self.opened = np.zeros((channels, self.n // 2 + 1))
        self.at = 0

    def run(self, x: Any, p: Any) -> Any:
        n, count = self.n, x.shape[1]
        samples = np.concatenate([self.last, x.astype(np.float32)], axis=1)
        # Column j of the sums is sample at - (n - 1) + j.
        sums = np.concatenate([self.sums, np.zeros((len(x), count), np.float32)], axis=1)
        first = self.at // self.hop + 1
        for end in range(first * self.hop, self.at + count + 1, self.hop):
            frame = samples[:, end - self.at : end - self.at + n]
            spectrum = np.fft.rfft(self.window * frame) * self._gains(frame, p[:, end - self.at - 1])
            made = self.window * np.fft.irfft(spectrum.astype(np.complex64), n)
            start = end - self.at - 1
            sums[:, start : start + n] += made
        late = np.arange(self.at, self.at + count) - (n - 1)
        out = np.where(late >= 0, sums[:, :count] / self.total[late % self.hop], 0.0)
        self.last, self.sums = samples[:, count:], sums[:, count:]
        self.at += count
        return out

    def _gains(self, frame: Any, p: Any) -> Any:
        if not self.gates:
            return self.curve
        threshold, closed, attack, release = p
        loud = (np.abs(np.fft.rfft(self.window * frame)) >= threshold).astype(np.float64)
        kept = np.where(loud > self.opened, attack, release)
        self.opened = self.opened + (1.0 - kept) * (loud - self.opened)
        return _gain((1.0 - self.opened) * closed)


_LINKS: dict[type[Effect], Any] = {
    Compressor: _Compressor,
    Convolve: _Convolve,
    Equalizer: _Spectral,
    Gate: _Gate,
    Highpass: _Highpass,
    Limiter: _Limiter,
    SpectralGate: _Spectral,
}


class HostChain:
    """A chain over NumPy blocks: what it was given is in its links.

    Parameters
    ----------
    effects : sequence of Effect
        In order.
    rate : float
        Samples per second.
    channels, block : int
        Of each block.
    """

    def __init__(self, effects: Sequence[Effect], rate: float, channels: int, block: int) -> None:
        self._links = [_LINKS[type(effect)](effect, rate, channels, block) for effect in effects]
        self._sizes = [len(effect.values(rate)) for effect in effects]
        self._before: Any = None
        self._steps = np.arange(1, block + 1) / block
        self.not_finite = self.blocks = 0

    def run(self, x: Any, values: Any) -> Any:
        """Return the result of a block (channels, block) of float32; ``values`` are those at its end."""
        before = values if self._before is None else self._before
        moving = before[:, None] + (values - before)[:, None] * self._steps
        self._before = values
        self.blocks += 1
        finite = np.isfinite(x)
        self.not_finite += x.size - int(finite.sum())
        x = np.clip(np.where(finite, x, np.float32(0)), -LOUDEST, LOUDEST)
        first = 0
        for link, size in zip(self._links, self._sizes, strict=True):
            x = link.run(x.astype(np.float64), moving[first : first + size]).astype(np.float32)
            first += size
        return x

    def state(self) -> Any:
        """Return a copy of what is kept from block to block."""
        # What never changes is not copied.
        known = {id(link.spectra): link.spectra for link in self._links if isinstance(link, _Convolve)}
        return copy.deepcopy((self._links, self._before, self.not_finite, self.blocks), known)

    def restore(self, state: Any) -> None:
        """Go back to what `state` returned."""
        known = {id(link.spectra): link.spectra for link in state[0] if isinstance(link, _Convolve)}
        self._links, self._before, self.not_finite, self.blocks = copy.deepcopy(state, known)
