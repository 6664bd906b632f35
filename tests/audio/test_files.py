"""Files: WAV of every kind forth and back, parts of files, damage, and formats that need packages."""

from __future__ import annotations

import contextlib
import importlib.util
import struct
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.audio import files
from pygpukit.errors import AudioFormatError, MissingPackageError, ParameterError


def values(shape: Any) -> Any:
    return np.random.default_rng(3).uniform(-0.99, 0.99, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("subtype", "limit"),
    [("PCM_U8", 2**-7), ("PCM_16", 2**-15), ("PCM_24", 2**-23), ("PCM_32", 2**-23), ("FLOAT", 0), ("DOUBLE", 0)],
)
def test_wav_forth_and_back(tmp_path: Path, subtype: str, limit: float) -> None:
    for shape in ((501,), (3, 200)):
        y = values(shape)
        A.save(tmp_path / "a.wav", gp.asarray(y), 11025, subtype=subtype)
        got, sr = A.load(tmp_path / "a.wav", sr=None, mono=False)
        assert sr == 11025
        assert got.dtype is gp.float32
        np.testing.assert_allclose(got.to_numpy(), y, atol=limit)


def test_other_readers_of_wav_agree(tmp_path: Path) -> None:
    y = values((2, 77))
    A.save(tmp_path / "a.wav", gp.asarray(y), 8000)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes(), file.getsampwidth()) == (2, 8000, 77, 2)
        raw = np.frombuffer(file.readframes(77), "<i2").reshape(77, 2).T
    np.testing.assert_array_equal(raw, np.rint(y * 32768.0))
    with wave.open(str(tmp_path / "b.wav"), "wb") as file:
        file.setparams((1, 3, 8000, 0, "NONE", ""))
        file.writeframes(bytes([0, 0, 0x40, 0xFF, 0xFF, 0xFF]))
    assert A.load(tmp_path / "b.wav", sr=None)[0].tolist() == [0.5, -(2.0**-23)]


def test_loud_samples_are_clipped(tmp_path: Path) -> None:
    A.save(tmp_path / "a.wav", gp.asarray([2.0, -2.0, 1.0], "float64"), 8000)
    assert A.load(tmp_path / "a.wav", sr=None)[0].tolist() == [1 - 2**-15, -1.0, 1 - 2**-15]


def test_parts_mono_and_rates(tmp_path: Path) -> None:
    y = values((2, 1000))
    A.save(tmp_path / "a.wav", gp.asarray(y), 1000, subtype="FLOAT")
    got, sr = A.load(tmp_path / "a.wav", sr=None, offset=0.25, duration=0.5)
    assert sr == 1000
    np.testing.assert_array_equal(got.to_numpy(), y[:, 250:750].mean(0))
    got, sr = A.load(tmp_path / "a.wav", sr=500, dtype="float64")
    assert (got.shape, got.dtype.name, sr) == ((500,), "float64", 500)
    assert A.load(tmp_path / "a.wav", sr=None, offset=5)[0].shape == (0,)


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


FORMAT = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (riff((b"data", b"1234")), "before their format"),
        (riff((b"fmt ", FORMAT)), "no samples in it"),
        (riff((b"fmt ", FORMAT[:9])), "format chunk has 9 bytes"),
        (riff((b"fmt ", FORMAT[:-2] + b"\7\0"), (b"data", b"12")), "with 7 bits"),
        (riff((b"fmt ", struct.pack("<HHIIHH", 1, 0, 8000, 0, 0, 16)), (b"data", b"12")), "0 channels"),
        (riff((b"fmt ", struct.pack("<HHIIHH", 1, 1, 8000, 0, 77, 16)), (b"data", b"12")), "frames of 77 bytes"),
    ],
)
def test_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, text: str) -> None:
    monkeypatch.setattr(files, "_package", lambda name: None)
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(AudioFormatError, match=text):
        A.load(tmp_path / "a.wav")


def test_a_file_that_is_cut_off_has_what_is_there(tmp_path: Path) -> None:
    whole = riff((b"junk", b"abc"), (b"fmt ", FORMAT), (b"data", bytes(range(40))))
    (tmp_path / "a.wav").write_bytes(whole[:-11])
    got, _ = A.load(tmp_path / "a.wav", sr=None)
    np.testing.assert_array_equal(got.to_numpy(), np.frombuffer(bytes(range(28)), "<i2") / 32768)


@settings(max_examples=60)
@given(st.binary(max_size=120), st.integers(0, 60))
def test_any_bytes_are_read_or_refused(data: bytes, at: int) -> None:
    whole = bytearray(riff((b"fmt ", FORMAT), (b"data", bytes(20))))
    whole[at : at + len(data)] = data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.wav"
        path.write_bytes(whole)
        with contextlib.suppress(AudioFormatError, MissingPackageError):
            A.load(path, sr=None)


def test_what_needs_packages_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_package", lambda name: None)
    (tmp_path / "a.ogg").write_bytes(b"OggS" + bytes(40))
    with pytest.raises(MissingPackageError, match=r"pip install 'pygpukit\[audio\]'"):
        A.load(tmp_path / "a.ogg")
    with pytest.raises(MissingPackageError, match="to write FLAC"):
        A.save(tmp_path / "a.flac", gp.ones(9, "float32"), 8000)


@pytest.mark.skipif(importlib.util.find_spec("soundfile") is None, reason="soundfile is not installed")
def test_flac_by_soundfile(tmp_path: Path) -> None:
    y = values((2, 999))
    A.save(tmp_path / "a.flac", gp.asarray(y), 16000)
    got, sr = A.load(tmp_path / "a.flac", sr=None, mono=False)
    assert sr == 16000
    np.testing.assert_allclose(got.to_numpy(), y, atol=2**-15)


def test_wrong_parameters(tmp_path: Path) -> None:
    A.save(tmp_path / "a.wav", gp.ones(9, "float32"), 8000)
    with pytest.raises(ParameterError, match="offset -1"):
        A.load(tmp_path / "a.wav", offset=-1)
    for values in ({"offset": float("inf")}, {"duration": float("inf")}, {"duration": "x"}):
        with pytest.raises(ParameterError, match="are seconds, at least 0 and finite"):
            A.load(tmp_path / "a.wav", **values)
    with pytest.raises(ParameterError, match="sr is 8589934592; it is at most"):
        A.save(tmp_path / "a.wav", gp.ones(9, "float32"), 1 << 33)
    with pytest.raises(ParameterError, match="dtype is int16"):
        A.load(tmp_path / "a.wav", dtype="int16")
    with pytest.raises(ParameterError, match="subtype is 'PCM_12'"):
        A.save(tmp_path / "a.wav", gp.ones(9, "float32"), 8000, subtype="PCM_12")
    with pytest.raises(ParameterError, match="NaN"):
        A.save(tmp_path / "a.wav", gp.asarray([float("nan")], "float32"), 8000)
    with pytest.raises(ParameterError, match="shape"):
        A.save(tmp_path / "a.wav", gp.ones((2, 2, 2), "float32"), 8000)
    with pytest.raises(FileNotFoundError):
        A.load(tmp_path / "none.wav")
