"""Streams: blocks of samples in, what is final out; joined, the bits of the function that gets all samples at once.

A stream keeps the end of what came, and computes each result from the same numbers, in the same order, as the function.
What needs a maximum of the whole sound (``top_db``, ``ref=max``, normalised onsets) has no stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import ceil
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import constant, fix_length, frames_first, positive, real_array, samples
from pygpukit.audio.filtering import block_of, cascade_of, convolve_blocks, run_cascade, second_order_sections
from pygpukit.audio.filters import mel_weights
from pygpukit.audio.mel import mel_bands
from pygpukit.audio.operators import gp
from pygpukit.audio.resampling import ratio_of, resampling_filter
from pygpukit.audio.spectrum import lengths, stft_frames
from pygpukit.audio.windows import padded_window
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.filtering import resample as resample_operator
from pygpukit.ops.audio.reference import BLOCK
from pygpukit.ops.audio.spectra import overlap_add

__all__ = ["ConvolveStream", "FilterStream", "ISTFTStream", "MelStream", "ResampleStream", "STFTStream"]


class Stream(ABC):
    """What all streams share. What came so far is in the attributes that `state` returns."""

    _kept: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._flushed = False
        self._shape: tuple[int, ...] | None = None
        self._dtype: Any = None

    @property
    @abstractmethod
    def latency(self) -> int:
        """Samples that have to follow a sample before what belongs to it is final."""

    def push(self, block: Any) -> GPUArray:
        """Take a block of samples, (..., n) with the same leading axes each time, and return what has become final.

        Raises
        ------
        ParameterError
            If the block's type or leading axes are not those of the one before, or the stream has ended.
        """
        x = self._checked(block)
        return self._push(x)

    def flush(self) -> GPUArray:
        """End the stream, and return the rest.

        Raises
        ------
        ParameterError
            If nothing came, or the stream has ended.
        """
        if self._flushed or self._shape is None:
            raise ParameterError("the stream has ended" if self._flushed else "no block has come: there is no rest")
        self._flushed = True
        return self._flush()

    def state(self) -> dict[str, Any]:
        """Return what the stream keeps, for `restore`. Arrays in it are never written."""
        return {name: getattr(self, name) for name in ("_flushed", "_shape", "_dtype", *self._kept)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned, of a stream with the same parameters.

        Raises
        ------
        ParameterError
            If it is the state of another kind of stream.
        """
        if set(state) != {"_flushed", "_shape", "_dtype", *self._kept}:
            raise ParameterError(f"this is no state of a {type(self).__name__}")
        for name, value in state.items():
            setattr(self, name, value)

    def _checked(self, block: Any) -> GPUArray:
        x = real_array(block, "block")
        return self._same_kind(x, x.shape[:-1])

    def _same_kind(self, x: GPUArray, lead: tuple[int, ...]) -> GPUArray:
        if self._flushed:
            raise ParameterError("the stream has ended; make another")
        if self._shape is None:
            self._shape, self._dtype = lead, x.dtype
            self._begin(x)
        if lead != self._shape or x.dtype is not self._dtype:
            raise ParameterError(
                f"a block of {x.dtype.name} with leading axes {lead} after {self._dtype.name} with {self._shape}"
            )
        return x

    def _begin(self, x: GPUArray) -> None:  # noqa: B027
        """Prepare for blocks like the first; most streams need nothing."""

    def _push(self, x: GPUArray) -> GPUArray:
        """Take a block whose kind is that of the stream."""
        return x

    @abstractmethod
    def _flush(self) -> GPUArray:
        """Return the rest."""


def _joined(a: GPUArray | None, b: GPUArray, axis: int = -1) -> GPUArray:
    if a is None or a.shape[axis] == 0:
        return b
    return a if b.shape[axis] == 0 else gp.concatenate([a, b], axis=axis)


def _kept(x: GPUArray, start: int) -> GPUArray:
    """The end of an array, in memory of its own: a view would keep all of it."""
    return x[..., start:].copy()


class STFTStream(Stream):
    """`stft` of samples that come in blocks: `push` returns new frames, (..., bins, frames).

    Parameters
    ----------
    n_fft, hop_length, win_length, window, center, pad_mode
        As of `stft`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> stream = A.STFTStream(n_fft=8, hop_length=4)
    >>> [stream.push(gp.ones(6, "float32")).shape, stream.push(gp.ones(6, "float32")).shape, stream.flush().shape]
    [(5, 1), (5, 2), (5, 1)]
    """

    _kept = ("_waiting", "_tail", "_total", "_drop")

    def __init__(
        self, *, n_fft: int = 2048, hop_length: int | None = None, win_length: int | None = None, window: Any = "hann",
        center: bool = True, pad_mode: str = "constant",
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_fft, self.hop_length, win = lengths(n_fft, hop_length, win_length)
        self._window = padded_window(window, win, self.n_fft)
        self._edge = self.n_fft // 2 if center else 0
        if center and pad_mode not in ("constant", "edge", "reflect"):
            raise ParameterError(f"pad_mode is '{pad_mode}'; of a stream it is constant, edge or reflect")
        self._mode = pad_mode
        # Samples from where the next frame begins, the last ones that came, how many came, and how many of those to
        # come lie before the next frame.
        self._waiting: GPUArray | None = None
        self._tail: GPUArray | None = None
        self._total = self._drop = 0

    @property
    def latency(self) -> int:
        """Samples that have to follow the middle (with ``center=False`` the first sample) of a frame."""
        return self.n_fft - self._edge

    @property
    def _needed(self) -> int:
        """Samples that the mirrored beginning is made of, but one; what is constant needs none."""
        return self._edge if self._mode == "reflect" else 0

    def _padded(self, x: GPUArray, before: int, after: int) -> GPUArray:
        return gp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)], mode=self._mode)

    def _push(self, x: GPUArray) -> GPUArray:
        begun = self._total > self._needed
        self._total += x.shape[-1]
        self._tail = _joined(self._tail, x)
        if self._tail.shape[-1] > self._edge + 1:
            self._tail = _kept(self._tail, self._tail.shape[-1] - self._edge - 1)
        if self._edge and not begun:
            waiting = _joined(self._waiting, x)
            if self._total <= self._needed or self._total == 0:
                self._waiting = waiting
                return self._spectra(waiting, 0)
            return self._frames(self._padded(waiting, self._edge, 0))
        return self._frames(self._after_dropped(x))

    def _after_dropped(self, x: GPUArray) -> GPUArray:
        dropped = min(self._drop, x.shape[-1])
        self._drop -= dropped
        return _joined(self._waiting, x[..., dropped:])

    def _spectra(self, x: GPUArray, count: int) -> GPUArray:
        if count == 0:
            kind = "complex64" if x.dtype.name == "float32" else "complex128"
            return gp.zeros((*x.shape[:-1], self.n_fft // 2 + 1, 0), kind, device=x.device)
        used = x[..., : (count - 1) * self.hop_length + self.n_fft]
        return frames_first(stft_frames(used, self.n_fft, self.hop_length, self._window))

    def _frames(self, x: GPUArray) -> GPUArray:
        count = max(0, (x.shape[-1] - self.n_fft) // self.hop_length + 1)
        end = count * self.hop_length
        self._drop += max(0, end - x.shape[-1])
        self._waiting = _kept(x, min(end, x.shape[-1]))
        return self._spectra(x, count)

    def _flush(self) -> GPUArray:
        assert self._tail is not None
        if self._total == 0:
            raise ParameterError("no sample has come: there is no rest")
        if self._edge and self._total <= self._needed:
            assert self._waiting is not None
            return self._frames(self._padded(self._waiting, self._edge, self._edge))
        behind = self._padded(self._tail, 0, self._edge)[..., self._tail.shape[-1] :]
        return self._frames(self._after_dropped(behind))


class MelStream(Stream):
    """`melspectrogram` of samples that come in blocks: `push` returns new frames, (..., n_mels, frames).

    Parameters
    ----------
    sr, n_fft, hop_length, win_length, window, center, pad_mode, power, n_mels, fmin, fmax, htk, norm
        As of `melspectrogram`; power is 1 or 2.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> stream = A.MelStream(sr=8000, n_fft=64, hop_length=32, n_mels=8)
    >>> stream.push(gp.ones(100, "float32")).shape, stream.flush().shape
    ((8, 3), (8, 1))
    """

    def __init__(
        self, *, sr: float = 22050, n_fft: int = 2048, hop_length: int | None = 512, win_length: int | None = None,
        window: Any = "hann", center: bool = True, pad_mode: str = "constant", power: float = 2.0, n_mels: int = 128,
        fmin: float = 0.0, fmax: float | None = None, htk: bool = False, norm: Any = "slaney",
    ) -> None:  # fmt: skip
        super().__init__()
        self._stft = STFTStream(
            n_fft=n_fft, hop_length=hop_length, win_length=win_length, window=window, center=center, pad_mode=pad_mode
        )
        if power not in (1, 2):
            raise ParameterError(f"power is {power}; of a stream it is 1 or 2")
        self._power = int(power)
        self._weights = mel_weights(sr, self._stft.n_fft, n_mels, fmin, fmax, htk, norm)

    @property
    def latency(self) -> int:
        """That of the transform."""
        return self._stft.latency

    def push(self, block: Any) -> GPUArray:
        """Take a block of samples, and return the frames that have become final."""
        return self._mel(self._stft.push(block))

    def flush(self) -> GPUArray:
        """End the stream, and return the rest."""
        return self._flush()

    def state(self) -> dict[str, Any]:
        """Return what the stream keeps, for `restore`."""
        return self._stft.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned, of a stream with the same parameters."""
        self._stft.restore(state)

    def _flush(self) -> GPUArray:
        return self._mel(self._stft.flush())

    def _mel(self, D: GPUArray) -> GPUArray:
        return frames_first(mel_bands(frames_first(D), self._weights, self._power))


class ISTFTStream(Stream):
    """`istft` of frames that come in blocks, (..., bins, frames): `push` returns new samples.

    Parameters
    ----------
    n_fft : int
        Samples of a frame.
    hop_length, win_length, window, center
        As of `istft`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> y = gp.ones(40, "float64")
    >>> stream = A.ISTFTStream(n_fft=8)
    >>> [x.shape for x in (stream.push(A.stft(y, n_fft=8)), stream.flush())]
    [(38,), (2,)]
    """

    _kept = ("_frames", "_first", "_total", "_done")

    def __init__(
        self, *, n_fft: int = 2048, hop_length: int | None = None, win_length: int | None = None, window: Any = "hann",
        center: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_fft, self.hop_length, win = lengths(n_fft, hop_length, win_length)
        self._window = padded_window(window, win, self.n_fft)
        self._edge = self.n_fft // 2 if center else 0
        # Frames that samples to come need, the number of the first of them, how many came, and samples that are out.
        self._frames: GPUArray | None = None
        self._first = self._total = 0
        self._done = self._edge

    @property
    def latency(self) -> int:
        """Samples by which the end of a frame lies behind what is final."""
        return max(0, self.n_fft - self.hop_length)

    def push(self, block: Any) -> GPUArray:
        """Take frames, and return the samples that no later frame touches.

        Raises
        ------
        ParameterError
            If they are no frames of this length, or other frames than before, or the stream has ended.
        """
        if not isinstance(block, GPUArray) or block.dtype.kind != "c" or block.ndim < 2:
            raise ParameterError("a block is a complex GPUArray of (..., bins, frames)")
        if block.shape[-2] != self.n_fft // 2 + 1:
            bins = self.n_fft // 2 + 1
            raise ParameterError(f"a block of {block.shape[-2]} bins, where n_fft={self.n_fft} makes {bins}")
        D = self._same_kind(block, block.shape[:-2])
        if D.shape[-1]:
            self._frames = _joined(self._frames, gp.fft.irfft(frames_first(D), self.n_fft), axis=-2)
            self._total += D.shape[-1]
        last = (self._total - 1) * self.hop_length + self.n_fft - self._edge
        return self._up_to(min(self._total * self.hop_length, last) if self._total else self._done)

    def _up_to(self, end: int) -> GPUArray:
        if self._frames is None or end <= self._done:
            kind = "float32" if self._dtype.name == "complex64" else "float64"
            assert self._shape is not None
            return gp.zeros((*self._shape, 0), kind)
        start = self._first * self.hop_length
        whole = overlap_add(self._frames, constant(self._window, self._frames), hop=self.hop_length)
        found = whole[..., self._done - start : end - start].copy()
        self._done = end
        # The last frame stays, so that the gaps of long hops are filled.
        keep = max(ceil(self.n_fft / self.hop_length) - 1, 1)
        if self._frames.shape[-2] > keep:
            self._first += self._frames.shape[-2] - keep
            self._frames = self._frames[..., self._frames.shape[-2] - keep :, :].copy()
        return found

    def _flush(self) -> GPUArray:
        return self._up_to((self._total - 1) * self.hop_length + self.n_fft - self._edge)


class FilterStream(Stream):
    """`sosfilt` of samples that come in blocks; nothing is held back.

    Parameters
    ----------
    sos : array
        (sections, 6), as of `sosfilt`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> stream = A.FilterStream([[1.0, 0, 0, 1, -0.5, 0]])
    >>> stream.push(gp.asarray([1.0, 0.0])).tolist(), stream.push(gp.asarray([0.0])).tolist()
    ([1.0, 0.5], [0.25])
    """

    _kept = ("_pending", "_bound")

    def __init__(self, sos: Any) -> None:
        super().__init__()
        self._cascade = cascade_of(second_order_sections(sos))
        # Samples since the last whole block, and the state there.
        self._pending: GPUArray | None = None
        self._bound: GPUArray | None = None

    @property
    def latency(self) -> int:
        """None."""
        return 0

    def _push(self, x: GPUArray) -> GPUArray:
        if x.shape[-1] == 0:
            return x
        before = 0 if self._pending is None else self._pending.shape[-1]
        whole = _joined(self._pending, x)
        y, _, bound = run_cascade(self._cascade, whole, self._bound)
        rest = whole.shape[-1] // BLOCK * BLOCK
        if rest or self._bound is None:
            self._bound = bound
        self._pending = _kept(whole, rest)
        return y[..., before:]

    def _flush(self) -> GPUArray:
        assert self._pending is not None or self._shape is not None
        return gp.zeros((*(self._shape or ()), 0), self._dtype.name)


class ConvolveStream(Stream):
    """`fftconvolve` with a response, of samples that come in blocks; `flush` returns the tail.

    Parameters
    ----------
    ir : GPUArray
        The response, (n,) or with leading axes as `fftconvolve` takes them.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> stream = A.ConvolveStream(gp.asarray([0.0, 1.0]))
    >>> stream.push(gp.asarray([1.0, 2.0, 3.0])).shape, stream.flush().round(9).tolist()
    ((0,), [0.0, 1.0, 2.0, 3.0])
    """

    _kept = ("_waiting", "_total")

    def __init__(self, ir: Any) -> None:
        super().__init__()
        self._ir = samples(ir, "ir")
        self._taps = self._ir.shape[-1]
        self._block, self._size = block_of(self._taps)
        self._spectrum = gp.fft.rfft(self._ir, self._size)
        # The samples before the next block, as many as the response reaches back, and those of it that came.
        self._waiting: GPUArray | None = None
        self._total = 0

    @property
    def latency(self) -> int:
        """Samples of a block but one: a block is transformed when it is whole."""
        return self._block - 1

    def _begin(self, x: GPUArray) -> None:
        if x.dtype is not self._ir.dtype:
            raise ParameterError(f"a block is {x.dtype.name} and the response {self._ir.dtype.name}; use one type")
        self._waiting = gp.zeros((*x.shape[:-1], self._taps - 1), x.dtype.name, device=x.device)

    def _push(self, x: GPUArray) -> GPUArray:
        self._total += x.shape[-1]
        return self._blocks(_joined(self._waiting, x))

    def _blocks(self, x: GPUArray) -> GPUArray:
        count = (x.shape[-1] - self._taps + 1) // self._block
        if count == 0:
            self._waiting = x
            return x[..., :0]
        used = x[..., : self._taps - 1 + count * self._block]
        made = convolve_blocks(used, self._spectrum, self._taps, self._block, self._size)
        self._waiting = _kept(x, count * self._block)
        return made

    def _flush(self) -> GPUArray:
        assert self._waiting is not None
        done = self._total // self._block * self._block
        rest = self._total + self._taps - 1 - done
        blocks = -(-rest // self._block)
        filled = self._waiting.shape[-1] - self._taps + 1
        width = [(0, 0)] * (self._waiting.ndim - 1) + [(0, blocks * self._block - filled)]
        return self._blocks(gp.pad(self._waiting, width))[..., :rest]


class ResampleStream(Stream):
    """`resample` of samples that come in blocks.

    Parameters
    ----------
    orig_sr, target_sr : float
        Rates.
    res_type : str, optional
        As of `resample`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> stream = A.ResampleStream(2, 1)
    >>> stream.push(gp.ones(1000, "float32")).shape[-1] + stream.flush().shape[-1]
    500
    """

    _kept = ("_waiting", "_start", "_total", "_done")

    def __init__(self, orig_sr: float, target_sr: float, *, res_type: str = "soxr_hq") -> None:
        super().__init__()
        self._ratio = positive(target_sr, "target_sr") / positive(orig_sr, "orig_sr")
        self._same = orig_sr == target_sr
        self._filter = resampling_filter(*ratio_of(orig_sr, target_sr), res_type)
        # Samples that outputs to come need, where they begin, how many came, and outputs that are out.
        self._waiting: GPUArray | None = None
        self._start = self._total = self._done = 0

    @property
    def latency(self) -> int:
        """Samples of the first rate under the later half of the filter."""
        return 0 if self._same else self._filter.center // self._filter.up

    def _push(self, x: GPUArray) -> GPUArray:
        if self._same:
            return x
        f = self._filter
        self._total += x.shape[-1]
        self._waiting = _joined(self._waiting, x)
        # Outputs whose last sample has come.
        return self._up_to(max(self._done, -((f.center - self._total * f.up) // f.down)))

    def _up_to(self, end: int) -> GPUArray:
        x, f = self._waiting, self._filter
        assert x is not None
        if end <= self._done:
            return x[..., :0]
        # Inputs from a multiple of `down` have the phases of those from 0.
        ahead = self._start // f.down * f.up
        made = resample_operator(x, constant(f.phases, x), up=f.up, down=f.down, center=f.center, length=end - ahead)
        found = made[..., self._done - ahead :]
        self._done = end
        first = max(0, (end * f.down + f.center) // f.up - f.taps + 1) // f.down * f.down
        if first > self._start:
            self._waiting, self._start = _kept(x, min(first - self._start, x.shape[-1])), first
        return found

    def _flush(self) -> GPUArray:
        if self._same:
            return gp.zeros((*(self._shape or ()), 0), self._dtype.name)
        if self._total == 0:
            return gp.zeros((*(self._shape or ()), 0), self._dtype.name)
        length = ceil(self._total * self._ratio)
        end = -(-self._total * self._filter.up // self._filter.down)
        before = self._done
        return fix_length(self._up_to(end), length - before)
