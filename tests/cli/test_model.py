"""`pygpukit model`, `generate` and `chat`, the last one in a terminal too."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pygpukit.cli import chat, main
from pygpukit.llm import LLM, SamplingParams, fetch
from pygpukit.llm.outputs import Piece
from pygpukit.llm.testing import tiny_gguf, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Positions enough for a reply that does not end by itself.
    return tiny_gguf(tmp_path_factory.mktemp("cli") / "tiny.gguf", max_position_embeddings=1 << 17)


def test_info(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "info", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "architecture     llama\n" in shown
    assert "tokenizer        gpt2 gpt-2\n" in shown
    assert main(["model", "info", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 2


def test_verify(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "verify", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "21 tensors of llama, 0 with values" in shown
    assert "a tokenizer of 259 tokens, 2 of them end a reply" in shown
    assert "a chat template, which makes 21 tokens" in shown
    data = bytearray(model.read_bytes())
    data[-4:] = b"\x00\x00\xc0\x7f"
    broken = tmp_path / "nan.gguf"
    broken.write_bytes(data)
    assert main(["model", "verify", str(broken)]) == 1
    assert "output.weight has values that are not finite" in capsys.readouterr().out
    assert main(["model", "verify", str(broken), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["output.weight has values that are not finite"]


def test_verify_looks_at_the_text_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    folder = tiny_model("llama", tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": "{{ nothing.at.all }}"}))
    assert main(["model", "verify", str(folder)]) == 1
    assert "chat template: the chat template cannot be used" in capsys.readouterr().out
    (folder / "tokenizer.json").write_text("{}")
    assert main(["model", "verify", str(folder)]) == 1
    assert "tokenizer: " in capsys.readouterr().out
    (folder / "tokenizer.json").unlink()
    assert main(["model", "verify", str(folder)]) == 0
    assert "no tokenizer" in capsys.readouterr().out


def test_errors_are_one_line(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:5000])
    for command, text in [
        (["model", "info", "nowhere"], "nowhere does not exist"),
        (["model", "info", str(cut)], "cut.gguf, byte"),
        (["generate", str(cut), "-p", "x"], "cut.gguf, byte"),
        (["generate", str(model), "-p", "x", "--top-p", "7"], "top_p is 7.0"),
        (["generate", str(model), "-f", str(tmp_path / "no.txt")], "no.txt cannot be read"),
        (["generate", str(model), "-p", ""], "the prompt is empty"),
        (["generate", str(model), "-p", "x", "--schema", str(tmp_path / "no.json")], "no.json cannot be read"),
        (["generate", str(model), "-p", "x", "--regex", ""], "regex is '', and must be a text"),
        (["chat", str(model), "--dtype", "int4"], "int4"),
    ]:
        assert main(command) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("pygpukit: ")
        assert text in line


def test_generate(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    options = ["--seed", "3", "--max-tokens", "9"]
    assert main(["generate", str(model), "-p", "Hi", "--json", *options]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (len(out["token_ids"]), out["finish_reason"], out["usage"]["prompt"]) == (9, "length", 2)
    (tmp_path / "prompt.txt").write_text("Hi")
    assert main(["generate", str(model), "-f", str(tmp_path / "prompt.txt"), *options]) == 0
    assert capsys.readouterr().out == out["text"] + "\n"


def test_generate_replies_to_a_message(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    command = ["generate", str(model), "-p", "Hi", "--chat", "--temperature", "0", "--max-tokens", "12"]
    assert main([*command, "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["usage"]["prompt"] == 21
    assert main(command) == 0
    assert capsys.readouterr().out == out["text"] + "\n"
    stop = out["text"][3]
    assert main([*command, "--stop", "never", "--stop", stop, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["stop_reason"]) == (out["text"][: out["text"].index(stop)], stop)


def test_generate_has_a_form(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("llguidance")
    (tmp_path / "schema.json").write_text('{"enum": ["yes", "no"]}')
    assert main(["generate", str(model), "-p", "Hi", "--schema", str(tmp_path / "schema.json")]) == 0
    assert json.loads(capsys.readouterr().out) in ("yes", "no")
    assert main(["generate", str(model), "-p", "Hi", "--regex", "[0-9]{4}"]) == 0
    assert int(capsys.readouterr().out) < 10_000


class Slow:
    """An engine whose reply says after each piece what is already shown."""

    name = "slow"

    def __init__(self, output: io.StringIO, interrupted: bool = False) -> None:
        self.output, self.interrupted, self.closed = output, interrupted, False
        self.messages: list[Any] = []

    def chat_stream(self, messages: Any, params: Any, template_kwargs: Any = None) -> Iterator[Piece]:
        self.messages.append(messages)
        try:
            for word in ("one ", "two ", "three"):
                yield Piece(word, "", [1])
                assert self.output.getvalue().endswith(word)
                if self.interrupted and word == "two ":
                    raise KeyboardInterrupt
        finally:
            self.closed = True

    def stats(self) -> dict[str, int]:
        return {"requests": len(self.messages)}


@pytest.mark.parametrize("interrupted", [False, True])
def test_each_piece_is_shown_before_the_next_is_made(monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    output = io.StringIO()
    engine: Any = Slow(output, interrupted)
    lines = iter(["Hi", "/think", "/clear", "again", "more", "/what", "/stats", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr(sys, "stdout", output)
    assert chat._Chat(engine, SamplingParams(), "Be brief.").run() == 0
    said = "one two (stopped)" if interrupted else "one two three"
    assert said in output.getvalue().replace("\n(stopped)", "(stopped)")
    assert "3 requests" in output.getvalue()
    assert "no thoughts" in output.getvalue()
    assert engine.closed
    # What was said, also until it was stopped, is part of the conversation; /clear leaves what the model is told first.
    contents = [[message["content"] for message in messages] for messages in engine.messages]
    reply = "one two " if interrupted else "one two three"
    assert contents == [["Be brief.", "Hi"], ["Be brief.", "again"], ["Be brief.", "again", reply, "more"]]


@pytest.mark.skipif(sys.platform == "win32", reason="terminals are Unix's here")
def test_chat_in_a_terminal(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    import pty

    parent, child = pty.openpty()
    environment = os.environ | {"PYGPUKIT_DEVICE": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "pygpukit", "chat", str(model), "--max-tokens", "100000", "--seed", "1"]
    # Ctrl-C reaches only a process whose terminal it is.
    program = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command], stdin=child, stdout=child, stderr=child, env=environment
    )  # fmt: skip
    os.close(child)
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        end = time.monotonic() + 60
        while text not in shown:
            assert time.monotonic() < end, shown[-500:]
            shown += os.read(parent, 4096)

    try:
        until(b"> ")
        shown = b""
        os.write(parent, b"Hi\n")
        # More than the echo of the line: the reply, which would go on for minutes, comes in pieces.
        reads = 0
        while len(shown) < 40 or reads < 5:
            shown += os.read(parent, 64)
            reads += 1
        os.write(parent, b"\x03")
        until(b"(stopped)\r\n> ")
        # Nothing is computed any more.
        counts = []
        for _ in range(2):
            shown = b""
            os.write(parent, b"/stats\n")
            until(b"\r\n> ")
            counts.append(re.search(rb"(\d+) completion tokens", shown))
            time.sleep(0.1)
        first, second = (0 if count is None else int(count[1]) for count in counts)
        assert 0 < first < 5000
        assert second - first <= 1, shown
        assert b" 0 running" in shown
        os.write(parent, b"/quit\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def test_fetch_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "fetch", "gpt5"]) == 2
    assert "no model is named 'gpt5'; known are smollm2" in capsys.readouterr().err
    known = fetch.MODELS["smollm2"]
    package = tmp_path / "pygpukit_test_weights"
    package.mkdir()
    # Importing the package would fail: it is found without that.
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / known.file).write_bytes(b"x")
    monkeypatch.setattr(fetch, "MODELS", {"smollm2": known._replace(module=package.name)})
    with pytest.raises(FileNotFoundError, match="pygpukit model fetch smollm2"):
        LLM("smollm2")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["model", "fetch", "smollm2"]) == 0
    assert capsys.readouterr().out.strip() == str(package / known.file)


def test_fetch_without_a_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = fetch.MODELS["smollm2"]._replace(module="pygpukit_no_such_module", requirement="pygpukit-no-such==1")
    monkeypatch.setattr(fetch, "MODELS", {"smollm2": known})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main(["model", "fetch", "smollm2"]) == 1
    output = capsys.readouterr()
    assert "93 MB, Apache-2.0" in output.out
    assert "pip could not install pygpukit-no-such==1 (exit status 1)" in output.err
    assert "Without a network, copy SmolLM2" in output.err
