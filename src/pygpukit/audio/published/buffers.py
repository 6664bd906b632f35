"""Buffers of samples with a rate, a ring of them, and chunks cut out of a stream."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, positive
from pygpukit.audio.operators import gp
from pygpukit.audio.resampling import resample
from pygpukit.audio.windows import window_values
from pygpukit.errors import ParameterError

__all__ = ["AudioBuffer", "AudioRingBuffer", "AudioStream", "from_pcm", "samples_of"]


@dataclasses.dataclass
class AudioBuffer:
    """Samples on the device, their rate and their channels.

    Attributes
    ----------
    data
        float32 (n,); of several channels sample by sample (interleaved).
    sample_rate
        Samples per second.
    channels
        Channels.

    Examples
    --------
    >>> from pygpukit.ops.audio import from_pcm
    >>> buffer = from_pcm(np.array([0, 16384, -16384, 0], np.int16), sample_rate=48000, channels=2)
    >>> buffer.to_mono().to_numpy().tolist()
    [0.25, -0.25]
    """

    data: GPUArray
    sample_rate: int
    channels: int

    def _by_channel(self) -> GPUArray:
        if self.data.shape[0] % self.channels:
            raise ParameterError(f"{self.data.shape[0]} samples are no whole number of {self.channels} channels")
        return self.data.reshape((-1, self.channels)).T

    def to_mono(self) -> AudioBuffer:
        """Average the channels; a mono buffer is returned as it is."""
        if self.channels == 1:
            return self
        return AudioBuffer(gp.mean(self._by_channel(), axis=0), self.sample_rate, 1)

    def resample(self, target_rate: int) -> AudioBuffer:
        """Return the samples at another rate, as `pygpukit.audio.resample` makes them."""
        if self.sample_rate == target_rate:
            return self
        made = resample(self._by_channel(), orig_sr=self.sample_rate, target_sr=target_rate)
        return AudioBuffer(made.T.reshape((-1,)), target_rate, self.channels)

    def normalize(self, mode: str = "peak", target_db: float = -20.0) -> AudioBuffer:
        """Scale the samples in place, to a largest magnitude of 1 or (``"rms"``) a level in decibels; returns itself.

        Raises
        ------
        ParameterError
            If there is no such mode, or no sample.
        """
        samples_of(self, 1)
        if mode == "peak":
            size, level = gp.max(gp.abs(self.data)), 1.0
        elif mode == "rms":
            size, level = gp.sqrt(gp.mean(self.data * self.data)), 10.0 ** (target_db / 20)
        else:
            raise ParameterError(f"mode is '{mode}'; it is 'peak' or 'rms'")
        # Silence stays silence.
        self.data[...] = self.data * (level / gp.where(size > 0, size, gp.ones_like(size)))
        return self

    def to_numpy(self) -> Any:
        """Return the samples as a NumPy array."""
        return self.data.to_numpy()

    def __repr__(self) -> str:
        return f"AudioBuffer(samples={self.data.shape[0]}, sample_rate={self.sample_rate}, channels={self.channels})"


def samples_of(audio: Any, least: int = 0) -> GPUArray:
    """Return the samples of a buffer, or an array as it is; at least so many of them."""
    data = audio.data if isinstance(audio, AudioBuffer) else audio
    if not isinstance(data, GPUArray) or data.dtype.name not in ("float32", "float64") or data.ndim != 1:
        raise ParameterError("audio is an AudioBuffer, or a GPUArray of float32 samples, (n,)")
    if data.shape[0] < least:
        raise ParameterError(f"audio has {data.shape[0]} samples; it needs at least {least}")
    return data


def _on_device(values: Any, what: str) -> GPUArray:
    if isinstance(values, np.ndarray):
        values = gp.from_numpy(np.ascontiguousarray(values))
    if not isinstance(values, GPUArray) or values.ndim != 1:
        raise ParameterError(f"{what} are a NumPy array or a GPUArray, (n,)")
    return values


def from_pcm(samples: Any, sample_rate: int, channels: int = 1) -> AudioBuffer:
    """Make a buffer of int16 samples, which are divided by 32768, or of float32 samples.

    Parameters
    ----------
    samples : numpy.ndarray or GPUArray
        (n,); of several channels sample by sample.
    sample_rate : int
        Samples per second.
    channels : int, optional
        Channels.

    Raises
    ------
    ParameterError
        If they are of another type, or not as many for each channel.

    Examples
    --------
    >>> from_pcm(np.array([0, 16384], np.int16), sample_rate=16000).to_numpy().tolist()
    [0.0, 0.5]
    """
    data = _on_device(samples, "samples")
    if data.dtype.name == "int16":
        data = data.astype("float32") * (1.0 / 32768.0)
    elif data.dtype.name != "float32":
        raise ParameterError(f"samples are {data.dtype.name}; use int16 or float32")
    channels = at_least(channels, 1, "channels")
    if data.size % channels:
        raise ParameterError(f"{data.size} samples are not whole frames of {channels} channels")
    return AudioBuffer(data, at_least(sample_rate, 1, "sample_rate"), channels)


class AudioRingBuffer:
    """The last samples of a stream, on the device.

    Parameters
    ----------
    capacity : int
        Samples it holds.
    sample_rate : int, optional
        Samples per second.

    Examples
    --------
    >>> ring = AudioRingBuffer(4)
    >>> ring.write(np.arange(6, dtype=np.float32)), ring.read(2).tolist(), ring.overruns
    (6, [2.0, 3.0], 2)
    """

    def __init__(self, capacity: int, sample_rate: int = 16000) -> None:
        self._capacity = at_least(capacity, 1, "capacity")
        self._sample_rate = at_least(sample_rate, 1, "sample_rate")
        self._buffer = gp.zeros((self._capacity,), "float32")
        self._written = 0

    @property
    def capacity(self) -> int:
        """Samples it holds."""
        return self._capacity

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return self._sample_rate

    @property
    def samples_written(self) -> int:
        """Samples that came since it was made or cleared."""
        return self._written

    @property
    def samples_available(self) -> int:
        """Samples that can be read."""
        return min(self._written, self._capacity)

    @property
    def duration_available(self) -> float:
        """Seconds of them."""
        return self.samples_available / self._sample_rate

    @property
    def overruns(self) -> int:
        """Samples that later ones have taken the place of."""
        return max(0, self._written - self._capacity)

    def write(self, samples: Any) -> int:
        """Append samples, and return how many; the oldest make room."""
        data = _on_device(samples, "samples").astype("float32", copy=False)
        count = data.shape[0]
        kept = data[max(0, count - self._capacity) :]
        place = (self._written + count - kept.shape[0]) % self._capacity
        first = min(kept.shape[0], self._capacity - place)
        if first:
            self._buffer[place : place + first] = kept[:first]
        if kept.shape[0] > first:
            self._buffer[: kept.shape[0] - first] = kept[first:]
        self._written += count
        return count

    def read(self, num_samples: int, offset: int = 0) -> GPUArray:
        """Return samples from the oldest one plus an offset, as a copy.

        Raises
        ------
        ParameterError
            If there are not so many.
        """
        count, offset = at_least(num_samples, 0, "num_samples"), at_least(offset, 0, "offset")
        if offset + count > self.samples_available:
            raise ParameterError(f"{count} samples from {offset} on, of {self.samples_available} that are there")
        place = (self.overruns + offset) % self._capacity
        first = min(count, self._capacity - place)
        parts = [self._buffer[place : place + first], self._buffer[: count - first]]
        return gp.concatenate(parts)

    def clear(self) -> None:
        """Forget all samples."""
        self._written = 0

    def __repr__(self) -> str:
        return (
            f"AudioRingBuffer(capacity={self._capacity}, sample_rate={self._sample_rate}, "
            f"available={self.samples_available})"
        )


class AudioStream:
    """Overlapping chunks of samples that come in blocks of any size.

    Chunk k begins at sample ``k * hop_size``. A chunk of which the ring has lost a part is left out and counted.

    Parameters
    ----------
    chunk_size : int, optional
        Samples of a chunk.
    hop_size : int, optional
        Samples from chunk to chunk; half of one by default.
    sample_rate : int, optional
        Samples per second.
    buffer_duration : float, optional
        Seconds that are kept for chunks that are not taken.

    Examples
    --------
    >>> stream = AudioStream(chunk_size=4, hop_size=2)
    >>> stream.push(np.arange(6, dtype=np.float32)), stream.chunks_available
    (6, 2)
    >>> stream.pop_chunk(apply_window=False).tolist(), stream.pop_chunk(apply_window=False).tolist()
    ([0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0])
    """

    def __init__(
        self, chunk_size: int = 480, hop_size: int | None = None, sample_rate: int = 16000,
        buffer_duration: float = 30.0,
    ) -> None:  # fmt: skip
        self._chunk_size = at_least(chunk_size, 1, "chunk_size")
        self._hop_size = at_least(max(1, chunk_size // 2) if hop_size is None else hop_size, 1, "hop_size")
        capacity = int(positive(buffer_duration, "buffer_duration") * at_least(sample_rate, 1, "sample_rate"))
        if capacity < chunk_size:
            raise ParameterError(f"{buffer_duration} s at {sample_rate} Hz do not hold a chunk of {chunk_size} samples")
        self._ring = AudioRingBuffer(capacity, sample_rate)
        self._next = self._lost = 0

    @property
    def chunk_size(self) -> int:
        """Samples of a chunk."""
        return self._chunk_size

    @property
    def hop_size(self) -> int:
        """Samples from chunk to chunk."""
        return self._hop_size

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return self._ring.sample_rate

    @property
    def overruns(self) -> int:
        """Chunks that were not taken in time."""
        return self._lost

    @property
    def chunks_available(self) -> int:
        """Chunks that can be taken."""
        whole = (self._ring.samples_written - self._chunk_size) // self._hop_size + 1
        return max(0, whole - self._next)

    def push(self, samples: Any) -> int:
        """Append samples, and return how many."""
        count = self._ring.write(samples)
        # The first chunk that begins with a sample that is still there.
        first = -(-self._ring.overruns // self._hop_size)
        if first > self._next:
            self._lost += first - self._next
            self._next = first
        return count

    def has_chunk(self) -> bool:
        """Is there a whole chunk?"""
        return self.chunks_available > 0

    def pop_chunk(self, apply_window: bool = True) -> GPUArray:
        """Take the next chunk, times a Hann window by default.

        Raises
        ------
        RuntimeError
            If there is none.
        """
        if not self.has_chunk():
            raise RuntimeError("there is no whole chunk; ask has_chunk() first")
        chunk = self._ring.read(self._chunk_size, self._next * self._hop_size - self._ring.overruns)
        self._next += 1
        return chunk * constant(window_values("hann", self._chunk_size), chunk) if apply_window else chunk

    def reset(self) -> None:
        """Forget all samples and chunks."""
        self._ring.clear()
        self._next = self._lost = 0

    def __repr__(self) -> str:
        return (
            f"AudioStream(chunk_size={self._chunk_size}, hop_size={self._hop_size}, sample_rate={self.sample_rate}, "
            f"chunks_available={self.chunks_available})"
        )
