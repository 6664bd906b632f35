"""Audio files: WAV is read and written here, other formats by soundfile and PyAV where they are installed."""

from __future__ import annotations

import importlib
import os
import struct
from math import inf
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.audio.arrays import at_least, samples
from pygpukit.audio.resampling import resample, to_mono
from pygpukit.errors import AudioFormatError, MissingPackageError, ParameterError

__all__ = ["Recording", "load", "read", "save"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_MOST_CHANNELS = 1024
# Bytes per second are 32 bits in a file.
_HIGHEST_RATE = ((1 << 32) - 1) // (8 * _MOST_CHANNELS)
_SUBTYPES = {"PCM_U8": (_PCM, 8), "PCM_16": (_PCM, 16), "PCM_24": (_PCM, 24), "PCM_32": (_PCM, 32),
             "FLOAT": (_FLOAT, 32), "DOUBLE": (_FLOAT, 64)}  # fmt: skip


class Recording(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    values
        float32 (frames, channels) on the host.
    rate
        Samples per second.
    format
        That of the file, in words.
    """

    values: Any
    rate: int
    format: str


class _Format(NamedTuple):
    kind: int
    channels: int
    rate: int
    bits: int


def _format(data: bytes, path: str) -> _Format:
    if len(data) < 16:
        raise AudioFormatError(f"{path}: the format chunk has {len(data)} bytes; it has at least 16")
    kind, channels, rate, _, align, bits = struct.unpack("<HHIIHH", data[:16])
    if kind == _EXTENSIBLE and len(data) >= 26:
        kind = struct.unpack("<H", data[24:26])[0]
    known = (kind == _PCM and bits in (8, 16, 24, 32)) or (kind == _FLOAT and bits in (32, 64))
    if not known:
        raise AudioFormatError(f"{path}: WAV of format {kind} with {bits} bits; PCM and floats are read")
    if not 1 <= channels <= _MOST_CHANNELS or rate == 0 or align != channels * bits // 8:
        raise AudioFormatError(f"{path}: {channels} channels at {rate} Hz in frames of {align} bytes are no WAV")
    return _Format(kind, channels, rate, bits)


def _numbers(data: bytes, f: _Format) -> Any:
    if f.kind == _FLOAT:
        return np.frombuffer(data, "<f4" if f.bits == 32 else "<f8").astype(np.float32, copy=False)
    if f.bits == 24:
        raw = np.frombuffer(data, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(raw), 4), np.uint8)
        wide[:, 1:] = raw
        return (wide.view("<i4")[:, 0] >> 8).astype(np.float32) / np.float32(1 << 23)
    if f.bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    return np.frombuffer(data, f"<i{f.bits // 8}").astype(np.float32) / np.float32(2.0 ** (f.bits - 1))


def _read_wav(file: BinaryIO, path: str, offset: float, duration: float | None) -> Recording:
    """Read a RIFF file whose head has been checked."""
    found: _Format | None = None
    file.seek(0, os.SEEK_END)
    end = file.tell()
    file.seek(12)
    while file.tell() + 8 <= end:
        name, size = struct.unpack("<4sI", file.read(8))
        if name == b"fmt ":
            found = _format(file.read(min(size, 64)), path)
            file.seek(max(0, size - 64) + size % 2, os.SEEK_CUR)
        elif name == b"data":
            if found is None:
                raise AudioFormatError(f"{path}: samples come before their format")
            frame = found.channels * found.bits // 8
            # Files that were written to a pipe have no length, or the largest: what is there counts.
            count = min(size, end - file.tell()) // frame
            first = min(count, int(offset * found.rate))
            count -= first
            if duration is not None:
                count = min(count, int(duration * found.rate))
            file.seek(first * frame, os.SEEK_CUR)
            values = _numbers(file.read(count * frame), found).reshape(-1, found.channels)
            words = f"WAV, {'float' if found.kind == _FLOAT else 'PCM'} of {found.bits} bits"
            return Recording(values, found.rate, words)
        else:
            file.seek(size + size % 2, os.SEEK_CUR)
    raise AudioFormatError(f"{path}: there are no samples in it; the file is cut off")


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _read_soundfile(module: Any, path: str, offset: float, duration: float | None) -> Recording:
    with module.SoundFile(path) as file:
        rate = int(file.samplerate)
        file.seek(min(int(offset * rate), file.frames))
        count = -1 if duration is None else int(duration * rate)
        words = ", ".join(map(str, dict.fromkeys((file.format, file.subtype))))
        return Recording(file.read(frames=count, dtype="float32", always_2d=True), rate, words)


def _read_av(module: Any, path: str, offset: float, duration: float | None) -> Recording:
    with module.open(path) as container:
        if not container.streams.audio:
            raise AudioFormatError(f"{path}: there is no audio in it")
        stream = container.streams.audio[0]
        rate = int(stream.rate)
        convert = module.AudioResampler(format="fltp", rate=rate)
        parts = [part.to_ndarray() for frame in container.decode(stream) for part in convert.resample(frame)]
        parts += [part.to_ndarray() for part in convert.resample(None)]
        words = f"{container.format.name}, {stream.codec_context.name}"
    whole = np.concatenate(parts, axis=1).T if parts else np.zeros((0, 1), np.float32)
    first = int(offset * rate)
    return Recording(whole[first : None if duration is None else first + int(duration * rate)], rate, words)


def read(path: str, offset: float = 0.0, duration: float | None = None) -> Recording:
    """Read a file, or a part of it in seconds, to the host.

    Raises
    ------
    AudioFormatError
        If it is damaged, or nothing reads its format.
    MissingPackageError
        If it is no WAV and soundfile is not installed.
    """
    with open(path, "rb") as file:
        head = file.read(12)
        if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
            try:
                return _read_wav(file, path, offset, duration)
            except AudioFormatError:
                # Of other codecs in WAV soundfile may know more.
                if _package("soundfile") is None:
                    raise
    reasons = []
    for name, reader in (("soundfile", _read_soundfile), ("av", _read_av)):
        module = _package(name)
        if module is None:
            continue
        try:
            return reader(module, path, offset, duration)
        except AudioFormatError:
            raise
        except Exception as error:
            reasons.append(f"{name}: {error}")
    if reasons:
        raise AudioFormatError(f"{path}: {'; '.join(reasons)}")
    raise MissingPackageError(f"{path} is no WAV; to read others: pip install 'pygpukit[audio]'")


def load(
    path: Any, *, sr: float | None = 22050, mono: bool = True, offset: float = 0.0, duration: float | None = None,
    dtype: str = "float32", res_type: str = "soxr_hq",
) -> tuple[GPUArray, float]:  # fmt: skip
    """Read an audio file to the device.

    WAV (PCM of 8 to 32 bits, floats) is read as it is. Other formats need ``pip install 'pygpukit[audio]'``: soundfile
    reads FLAC, Ogg and MP3, and PyAV, where it is installed, what FFmpeg knows.

    Parameters
    ----------
    path : str or PathLike
        The file.
    sr : float, optional
        Rate to resample to; None for the file's own.
    mono : bool, optional
        Average channels.
    offset, duration : float, optional
        Seconds to leave out, and to read.
    dtype : str, optional
        ``"float32"`` or ``"float64"``.
    res_type : str, optional
        As of `resample`.

    Returns
    -------
    tuple
        Samples between -1 and 1, (n,) or (channels, n), and their rate.

    Raises
    ------
    AudioFormatError
        If the file is damaged, or nothing reads its format.
    MissingPackageError
        If it is no WAV and soundfile is not installed.
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.wav")
    >>> save(path, gp.asarray([0.0, 0.5, -0.5], "float32"), 8000)
    >>> y, sr = load(path, sr=None)
    >>> y.tolist(), sr
    ([0.0, 0.5, -0.5], 8000)
    """
    for seconds in (offset, 0.0 if duration is None else duration):
        if not isinstance(seconds, Real) or not 0 <= float(seconds) < inf:
            raise ParameterError(f"offset {offset!r} and duration {duration!r} are seconds, at least 0 and finite")
    if str(dtype) not in ("float32", "float64"):
        raise ParameterError(f"dtype is {dtype}; it is float32 or float64")
    values, rate, _ = read(os.fspath(path), float(offset), None if duration is None else float(duration))
    host = np.ascontiguousarray(values.T, dtype=str(dtype))
    y = from_numpy(host if host.shape[0] > 1 else host[0])
    if y.size == 0:
        return (y.reshape((-1,)) if mono else y), rate if sr is None else sr
    if mono:
        y = to_mono(y)
    if sr is None or sr == rate:
        return y, rate
    return resample(y, orig_sr=rate, target_sr=sr, res_type=res_type), sr


def _pcm(values: Any, bits: int) -> bytes:
    top = 2.0 ** (bits - 1)
    whole = np.clip(np.rint(values.astype(np.float64) * top), -top, top - 1).astype(np.int64)
    if bits == 8:
        return bytes((whole + 128).astype(np.uint8))
    if bits == 24:
        return whole.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


def save(path: Any, y: Any, sr: int, *, subtype: str = "PCM_16", format: str | None = None) -> None:
    """Write samples to an audio file; values beyond -1 and 1 are clipped where the format is of integers.

    Parameters
    ----------
    path : str or PathLike
        The file; its ending is its format. WAV is written here, others by soundfile.
    y : GPUArray
        (n,) or (channels, n).
    sr : int
        Samples per second.
    subtype : str, optional
        Of WAV ``PCM_U8``, ``PCM_16``, ``PCM_24``, ``PCM_32``, ``FLOAT`` or ``DOUBLE``.
    format : str, optional
        In place of the ending, such as ``"WAV"`` or ``"FLAC"``.

    Raises
    ------
    ParameterError
        If the samples or the subtype are not what they are said to be.
    AudioFormatError
        If the format cannot hold them.
    MissingPackageError
        If the format needs soundfile and that is not installed.
    """
    y = samples(y)
    rate = at_least(sr, 1, "sr")
    if rate > _HIGHEST_RATE:
        raise ParameterError(f"sr is {rate}; it is at most {_HIGHEST_RATE}, which a WAV file can hold")
    if y.ndim > 2 or (y.ndim == 2 and y.shape[0] > _MOST_CHANNELS):
        raise ParameterError(f"y has shape {y.shape}; a file has (n,) or (channels, n)")
    host = np.atleast_2d(y.to_numpy()).T
    if np.isnan(host).any():
        raise ParameterError("y has NaN, which no player knows: gp.nan_to_num(y)")
    kind = (format or Path(path).suffix.lstrip(".")).upper()
    if kind not in ("WAV", "WAVE"):
        module = _package("soundfile")
        if module is None:
            raise MissingPackageError(f"{path}: to write {kind}: pip install 'pygpukit[audio]'")
        try:
            module.write(os.fspath(path), host, rate, format=kind, subtype=None if subtype == "PCM_16" else subtype)
        except Exception as error:
            raise AudioFormatError(f"{path}: {error}") from error
        return
    if subtype not in _SUBTYPES:
        raise ParameterError(f"subtype is {subtype!r}; of WAV it is {', '.join(_SUBTYPES)}")
    code, bits = _SUBTYPES[subtype]
    data = host.astype(f"<f{bits // 8}").tobytes() if code == _FLOAT else _pcm(np.ascontiguousarray(host).ravel(), bits)
    channels, align = host.shape[1], host.shape[1] * bits // 8
    if len(data) > 0xFFFFFFFF - 64:
        raise AudioFormatError(f"{path}: WAV holds 4 GiB, and this is {len(data)} bytes")
    fact = struct.pack("<4sII", b"fact", 4, len(host)) if code == _FLOAT else b""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, code, channels, rate, rate * align, align, bits)
    body = form + fact + struct.pack("<4sI", b"data", len(data)) + data + b"\0" * (len(data) % 2)
    with open(path, "wb") as file:
        file.write(struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WAVE") + body)
