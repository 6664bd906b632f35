"""`pygpukit audio`: facts about files, conversion, pictures, and what is said where something is missing or damaged."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.cli import main
from pygpukit.errors import ParameterError

RATE = 8000


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    t = np.arange(RATE, dtype=np.float32) / RATE
    y = np.stack([0.5 * np.sin(2 * np.pi * 440 * t), np.zeros_like(t)])
    A.save(tmp_path / "tone.wav", gp.asarray(y), RATE)
    return tmp_path / "tone.wav"


def test_info_says_what_is_in_files(tone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audio", "info", str(tone)]) == 0
    said = capsys.readouterr().out
    assert "tone.wav: WAV, PCM of 16 bits" in said
    assert "1.000 s, 8000 samples at 8000 Hz, 2 channels, 32044 bytes" in said
    assert "peak -6.0 dBFS, RMS -12.0 dBFS, 0 clipped samples" in said
    assert main(["audio", "info", "--json", str(tone)]) == 0
    facts = json.loads(capsys.readouterr().out)[0]
    assert (facts["rate"], facts["channels"], facts["samples"]) == (8000, 2, 8000)
    # A sine of half the full scale in one channel.
    assert -12 < facts["loudness_lufs"] < -9
    assert abs(facts["true_peak_db"] + 6.02) < 0.1


def test_info_goes_on_after_a_file_that_cannot_be_read(tone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tone.with_name("damaged.wav")
    damaged.write_bytes(tone.read_bytes()[:30])
    missing, empty = tone.with_name("missing.wav"), tone.with_name("empty.wav")
    empty.write_bytes(tone.read_bytes()[:44].replace((32000).to_bytes(4, "little"), bytes(4)))
    assert main(["audio", "info", *map(str, (damaged, missing, empty, tone))]) == 1
    said = capsys.readouterr()
    assert f"{damaged}: " in said.err
    assert f"{missing}: No such file or directory" in said.err
    assert "0.000 s, 0 samples" in said.out
    assert "8000 samples" in said.out


def test_silence_and_numbers_that_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    A.save(tmp_path / "silence.wav", gp.zeros(RATE, "float32"), RATE)
    A.save(tmp_path / "broken.wav", gp.full((RATE,), float("inf"), "float32"), RATE, subtype="FLOAT")
    assert main(["audio", "info", str(tmp_path / "silence.wav"), str(tmp_path / "broken.wav")]) == 0
    said = capsys.readouterr().out
    assert "peak silence, RMS silence" in said
    assert "loudness silence" in said
    assert "numbers in it that are not finite" in said


def test_convert_changes_rate_channels_and_length(tone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tone.with_name("out.wav")
    given = ["audio", "convert", str(tone), str(target), "--rate", "4000", "--mono", "--offset", "0.25", "--duration"]
    assert main([*given, "0.5", "--subtype", "FLOAT"]) == 0
    assert "0.500 s at 4000 Hz, 1 channel" in capsys.readouterr().out
    y, rate = A.load(target, sr=None, mono=False)
    assert (y.shape, rate) == ((2000,), 4000)
    assert main([*given, "0.5"]) == 1
    assert "exists; give another name, or --force" in capsys.readouterr().err
    assert main([*given, "0.1", "--force"]) == 0
    assert A.load(target, sr=None)[0].shape == (400,)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["out"], "has no ending"),
        (["out.wav", "--rate", "0"], "0.0"),
        (["out.wav", "--rate", "4000.5"], "whole number"),
        (["out.wav", "--subtype", "MP3"], "subtype is 'MP3'"),
        (["out.wav", "--quality", "best", "--rate", "4000"], "res_type is 'best'"),
        (["out.wav", "--offset", "-1"], "offset -1.0"),
        (["out.wav", "--offset", "9"], "there are no samples"),
    ],
)
def test_convert_refuses_with_a_reason(
    tone: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tone.with_name(arguments[0])
    assert main(["audio", "convert", str(tone), str(target), *arguments[1:]]) == 1
    assert text in capsys.readouterr().err
    assert not target.exists()


def test_formats_that_need_a_package_name_it(
    tone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "av", None)
    assert main(["audio", "convert", str(tone), str(tone.with_name("out.flac"))]) == 1
    assert "pip install 'pygpukit[audio]'" in capsys.readouterr().err
    other = tone.with_name("talk.mp3")
    other.write_bytes(b"ID3" + bytes(200))
    assert main(["audio", "info", str(other)]) == 1
    assert "pip install 'pygpukit[audio]'" in capsys.readouterr().err


def test_every_kind_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    A.save(tmp_path / "a.wav", A.limiter(gp.random.default_rng(1).normal(size=6000, dtype="float32"), sr=RATE), RATE)
    picture = tmp_path / "a.png"
    kinds = ["spectrogram", "mel", "pitch", "onsets", "chroma"]
    given = ["audio", "plot", str(tmp_path / "a.wav"), "--rate", "8000"]
    assert main([*given, "--kind", *kinds, "-o", str(picture)]) == 0
    assert "of 0.750 s" in capsys.readouterr().out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main([*given, "--duration", "0.1", "-o", str(tmp_path / "b.png")]) == 1
    assert "800 samples are too few for a picture" in capsys.readouterr().err
    assert main([*given, "-o", str(tmp_path / "b.abc")]) == 1
    assert "ends in one of" in capsys.readouterr().err
    assert main([*given, "-o", str(tmp_path / "no" / "b.png")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_a_picture_of_silence_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    A.save_plot(tmp_path / "a.svg", gp.zeros((2, 4096), "float32"), sr=RATE, kinds=("mel", "onsets"), title="silence")
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    with pytest.raises(ParameterError, match="kinds is 'sound'; use spectrogram, mel"):
        A.save_plot(tmp_path / "a.png", gp.zeros(4096, "float32"), kinds="sound")


def test_without_matplotlib_the_extra_is_named(
    tone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["audio", "plot", str(tone), "-o", str(tone.with_name("a.png"))]) == 1
    assert "pip install 'pygpukit[plot]'" in capsys.readouterr().err


def test_kinds_of_the_command_are_those_that_are_drawn() -> None:
    from pygpukit.audio.pictures import KINDS
    from pygpukit.cli import audio

    assert isinstance(audio, types.ModuleType)
    assert audio._KINDS == KINDS
