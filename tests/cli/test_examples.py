"""The programs in examples/ run, and do what they say."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest


def run(repository: Path, name: str, *arguments: str, said: str | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(repository / "examples" / name), *arguments]
    done = subprocess.run(
        command, env=environment, input=said, capture_output=True, text=True, encoding="utf-8", timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("suffix", ["html", "png", "json"])
def test_memory_timeline(repository: Path, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"timeline.{suffix}"
    said = run(repository, "memory_timeline.py", str(picture), "--turns", "2")
    assert "4 equal answers" in said
    first = next(line.split() for line in said.splitlines() if line.startswith("first model"))
    allocated, freed, evicted, restored, _, refused = map(int, first[-6:])
    assert (allocated, freed, refused) == (6, 0, 0)
    assert evicted >= restored > 0
    assert picture.stat().st_size > 1000


def test_scheduler_tenants(repository: Path) -> None:
    said = run(repository, "scheduler_tenants.py", "--seconds", "0.3")
    assert "late: rejected, memory: 64.0 MiB asked + 16.0 MiB reserved > 64.0 MiB" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line}
    assert rows["requests"][1] == "guaranteed"
    assert rows["hog"][1] == "besteffort"
    assert "requests: median" in said


@pytest.mark.nvrtc
def test_vector_add(repository: Path) -> None:
    assert "equal to NumPy: True; out is SYNCHRONIZED" in run(repository, "vector_add.py", "--size", "5000")


def test_host_actors(repository: Path) -> None:
    said = run(repository, "host_actors.py", "--lines", "3000", "--workers", "3")
    assert "as expected: True" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line}
    assert rows["total"][1:] == ["received", "31", "processed", "31", "TERMINATED"]
    assert sum(int(rows[f"worker-{number}"][4]) for number in range(3)) == 30


@pytest.mark.nvrtc
@pytest.mark.parametrize("parts", [1, 3])
def test_pagerank_actor(repository: Path, parts: int) -> None:
    said = run(repository, "pagerank_actor.py", "--nodes", "300", "--parts", str(parts))
    assert "as expected: True" in said
    assert "dead letter" not in said
    words = next(line.split() for line in said.splitlines() if "supersteps" in line)
    steps, messages = int(words[0]), int(words[5])
    # In a step each part is told to go, gives to all and reports; the host began it.
    assert messages == steps * (parts * parts + 2 * parts) + 1


@pytest.mark.nvrtc
def test_streaming_pipeline(repository: Path) -> None:
    said = run(repository, "streaming_pipeline.py", "--readings", "700", "--batch", "64")
    assert "equal to NumPy: True" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line}
    assert rows["parse"][1:3] == ["700", "700"]
    assert rows["filter"][1] == "700"
    assert rows["filter"][2] == rows["window"][1] == rows["window"][2] == rows["alert"][1] == rows["alert"][2]
    assert int(rows["filter"][3]) > 0


@pytest.mark.nvrtc
@pytest.mark.parametrize("pace", ["--paced", "--no-paced"])
def test_audio_chain(repository: Path, pace: str) -> None:
    said = run(repository, "audio_chain.py", "--seconds", "0.12", pace)
    assert "as expected: True" in said
    (deadlines,) = (line.split() for line in said.splitlines() if line.startswith("deadlines"))
    assert int(deadlines[4]) + int(deadlines[6]) == 45
    assert ("not paced" in said) == (pace == "--no-paced")


@pytest.mark.nvrtc
def test_anomaly_detection(repository: Path) -> None:
    said = run(repository, "anomaly_detection.py", "--frames", "300")
    assert "equal to NumPy: True" in said


@pytest.mark.nvrtc
def test_device_requests(repository: Path) -> None:
    said = run(repository, "device_requests.py", "--calls", "60", "--clients", "3")
    assert "equal to NumPy: True" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line}
    # An order asks two questions.
    assert rows["desk"][1:] == ["received", "180", "sent", "180"]
    assert rows["prices"][1:] == rows["rates"][1:] == ["received", "60", "sent", "60"]


def test_chat_with_every_strategy(repository: Path) -> None:
    pytest.importorskip("tokenizers")
    replies = set()
    for options in ([], ["--cuda-graph"], ["--speculative", "--draft-layers", "1"], ["--batch-size", "4"]):
        said = run(
            repository, "chat/chat_cli.py", "--model", "tiny", "--dtype", "float32", "--temperature", "0",
            "--repetition-penalty", "1", "--max-new-tokens", "24", *options, said="Hi\n/clear\nHi\n/quit\n",
        )  # fmt: skip
        first, second = (part.split("\n[")[0] for part in said.split("Assistant: ")[1:])
        assert first == second
        assert ("guesses right" in said) == (options not in ([], ["--cuda-graph"]))
        replies.add(first)
    assert len(replies) == 1


def test_chat_with_thoughts(repository: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    options = ["--model", "tiny", "--dtype", "float32", "--max-new-tokens", "8", "--hide-thinking"]
    said = run(repository, "chat/chat_cli_thinking.py", *options, said="Hi\n/think\n/clear\nHi\n")
    assert "thoughts hidden. /clear" in said
    assert "thoughts shown\n" in said
    counts = [line for line in said.splitlines() if line.startswith("[") and "tokens of prompt" in line]
    assert len(counts) == 2
    # After /clear the conversation is as long as the first one.
    assert counts[0].split()[0] == counts[1].split()[0]


def test_live_chain(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "late.png"
    said = run(repository, "live_chain.py", "--seconds", "0.2", "--picture", str(picture))
    assert "the bits of the whole sound at once: True" in said
    assert "240 samples were still in the chain" in said
    # 75 blocks of the sound, and two for what was still in the chain.
    assert "\n77 blocks, " in said
    rows = [line.split("us")[1].split() for line in said.splitlines() if "#" in line]
    assert sum(int(row[0]) for row in rows) == 77
    assert picture.stat().st_size > 5000
    refused = live(repository, "--deadline", "99")
    assert (refused.returncode, "refused: deadline 99 ms > period 2.667 ms" in refused.stdout) == (1, True)


def live(repository: Path, *arguments: str, before: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = [str(path) for path in (before, repository / "src") if path is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(repository / "examples" / "live_chain.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def test_live_chain_with_a_microphone_that_stops(repository: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "sounddevice.py").write_text("raise ImportError('not here')\n")
    done = live(repository, "--microphone", before=missing)
    assert (done.returncode, done.stderr) == (2, "--microphone needs sounddevice: pip install 'pygpukit[live]'\n")
    (tmp_path / "sounddevice.py").write_text(
        "import threading\n"
        "import numpy as np\n"
        "class Stream:\n"
        "    def __init__(self, *, samplerate, blocksize, channels, dtype, callback):\n"
        "        assert (samplerate, dtype) == (48000, 'float32')\n"
        "        self.shape, self.callback = (blocksize, channels), callback\n"
        "    def run(self):\n"
        "        for _ in range(20):\n"
        "            wanted = np.full(self.shape, 9, np.float32)\n"
        "            self.callback(np.zeros(self.shape, np.float32), wanted, self.shape[0], None, None)\n"
        "            assert not wanted.any()\n"
        "    def __enter__(self):\n"
        "        threading.Thread(target=self.run).start()\n"
        "    def __exit__(self, *_):\n"
        "        pass\n"
    )
    done = live(repository, "--microphone", "--seconds", "20", "--channels", "1", before=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the microphone stopped: nothing came for 1 s" in done.stdout
    assert "\n22 blocks, " in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "name",
    [
        "chat/chat_cli.py",
        "chat/chat_cli_thinking.py",
        "pagerank_actor.py",
        "streaming_pipeline.py",
        "audio_chain.py",
        "audio_gallery.py",
        "anomaly_detection.py",
        "device_requests.py",
        "live_chain.py",
    ],
)
def test_help(repository: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository / "examples" / name
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == 0
    assert f"python examples/{name}" in capsys.readouterr().out


def test_audio_gallery(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said = run(repository, "audio_gallery.py", "--seconds", "2", "--folder", str(tmp_path))
    written = {path.name: path.read_bytes()[:4] for path in tmp_path.iterdir()}
    assert len([name for name, head in written.items() if name.endswith(".wav") and head == b"RIFF"]) == 7
    pictures = {name for name, head in written.items() if head == b"\x89PNG"}
    # They are those of the documentation; examples/live_chain.py makes the one of late blocks.
    shown = {path.name for path in (repository / "docs" / "images").glob("audio-*.png")}
    assert pictures == shown - {"audio-late-blocks.png"}
    assert "slower.wav             2.67 s" in said


def test_sound_features(repository: Path) -> None:
    said = run(repository, "sound_features.py", "--seconds", "3")
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert "3.00 s at 22050 Hz" in said
    assert "117 bpm" in lines["tempo"]
    assert "A3 C4 E4 A4" in lines["pitch"]
    assert "the same bits" in lines["mel"]
