"""Plugins: what a program registers, what a package announces, and what is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import llm
from pygpukit.cli import main
from pygpukit.errors import ModelLoadError
from pygpukit.llm import LLM, DecodeM1, DecodeStrategy, SamplingParams, plugins
from pygpukit.llm.loading import load_model, open_checkpoint
from pygpukit.llm.testing import tiny_model

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llm_plugin"
PROMPT = list(range(3, 33))
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


def install(folder: Path, name: str, entries: dict[str, str]) -> None:
    """What pip leaves of a package: its entry points. No network is needed."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pygpukit.llm]", *lines, ""]))


def example(folder: Path) -> None:
    """Install the example: its entry points are those of its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(folder, project["name"], project["entry-points"]["pygpukit.llm"])
    source = EXAMPLE / "src" / "pygpukit_llm_example"
    (folder / source.name).mkdir()
    for path in source.glob("*.py"):
        (folder / source.name / path.name).write_bytes(path.read_bytes())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the module path, where plugins are looked for."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    before = dict(plugins._registered)
    plugins._forget()
    yield place
    plugins._forget()
    plugins._registered.update(before)
    for name in [name for name in sys.modules if name.startswith("pygpukit_llm_example")]:
        del sys.modules[name]


def test_an_architecture_of_a_package(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"'starcoder2' is unknown; known are .*register\('architecture', name"):
        tiny_model("starcoder2", tmp_path / "model")
    example(folder)
    plugins._forget()
    assert plugins.names("architecture") == ["starcoder2"]
    assert "pygpukit_llm_example" not in sys.modules, "imported when it is used"
    model = load_model(open_checkpoint(tiny_model("starcoder2", tmp_path / "model", sliding_window=9)))
    assert (model.config.norm_type, model.config.gated, model.config.windows) == ("layernorm", False, (9, 9))
    logits = model.get_logits(model(PROMPT)[0]).to_numpy()
    with np.load(Path(__file__).parent / "plugin_logits.npz") as golden:
        assert np.abs(logits[-3:] - golden["logits"]).max() < 1e-4


def test_a_processor_of_a_package(folder: Path, tmp_path: Path) -> None:
    example(folder)
    plugins._forget()
    model = tiny_model("llama", tmp_path / "model", vocab_size=6)
    with LLM(model) as engine:
        plain = engine.generate([1, 2, 3], GREEDY).token_ids
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, processors=["no_repeat"])
        ids = [1, 2, 3, *engine.generate([1, 2, 3], params).token_ids]
    runs = [tuple(ids[i : i + 3]) for i in range(len(ids) - 2)]
    assert len(set(runs)) == len(runs)
    assert ids[3:] != plain


def test_none_are_loaded_where_that_is_wished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example(folder)
    monkeypatch.setenv("PYGPUKIT_PLUGINS", "0")
    plugins._forget()
    assert plugins.report() == []
    assert plugins.find("processor", "no_repeat") is None
    with pytest.raises(ValueError, match="there is no processor 'no_repeat'; plugins have none"):
        SamplingParams(processors=["no_repeat"])


def test_broken_ones_are_left_out_with_a_report(folder: Path) -> None:
    entries = {
        "processor.missing": "pygpukit_no_such_module:f",
        "processor.number": "math:pi",
        "architecture.fine": "pygpukit.llm.models.llama:SPEC",
        "template.fine": "string:digits",
        "flavour.x": "math:pi",
        "alone": "math:pi",
    }
    install(folder, "broken-plugin", entries)
    plugins._forget()
    with pytest.warns(RuntimeWarning, match="'missing' of broken-plugin 0.1.0 is left out: ModuleNotFoundError"):
        assert plugins.find("processor", "missing") is None
    # Said once.
    assert plugins.find("processor", "missing") is None
    report = {f"{plugin.kind}.{plugin.name}": plugin.error or "" for plugin in plugins.report()}
    assert "ModuleNotFoundError" in report["processor.missing"]
    assert "must be a function of token ids and scores" in report["processor.number"]
    assert "has a ModelSpec of the name 'llama'" in report["architecture.fine"]
    assert report["template.fine"] == ""
    assert "must be a kind and a name: architecture, processor" in report["flavour.x"] == report["alone."]
    assert plugins.names("processor") == []


def test_info_shows_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example(folder)
    install(folder, "broken-plugin", {"template.bad": "math:pi"})
    plugins._forget()
    assert main(["info", "--json"]) == 0
    found = {f"{p['kind']}.{p['name']}": p for p in json.loads(capsys.readouterr().out)["plugins"]}
    assert sorted(found) == ["architecture.starcoder2", "processor.no_repeat", "template.bad"]
    assert found["processor.no_repeat"]["source"] == "pygpukit-llm-example 0.1.0"
    assert "must be the text of a chat template" in found["template.bad"]["error"]
    assert main(["info"]) == 0
    assert "template.bad of broken-plugin 0.1.0, left out: ValueError" in capsys.readouterr().out


def test_a_new_process_finds_them(tmp_path: Path) -> None:
    example(tmp_path)
    program = "from pygpukit.llm import plugins; print(*plugins.names('processor'), plugins.report()[0].error)"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "no_repeat None\n"


class Slower(DecodeM1):
    """A strategy of a program."""


def test_what_a_program_registers(folder: Path, tmp_path: Path) -> None:
    llm.register("processor", "flat", lambda ids, scores: np.zeros_like(scores))
    assert SamplingParams(processors=["flat"]).processors[0]([], np.ones(2, np.float32)).tolist() == [0, 0]
    llm.register("decode", "slower", Slower)
    assert isinstance(DecodeStrategy.named("slower"), Slower)
    assert DecodeStrategy.named("batch", batch_size=3).batch_size == 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"no decode strategy 'x'; known are m1, .*, slower"):
        DecodeStrategy.named("x")
    messages = [llm.ChatMessage("user", "Hi")]
    llm.register("template", "plain", "{{ messages[0].content }}!")
    assert llm.format_chat_messages(messages, "plain") == "Hi!" == llm.apply_chat_template(messages, template="plain")
    with pytest.raises(ModelLoadError, match="there is no chat template 'other'; plugins have plain"):
        llm.apply_chat_template(messages, template="other")


def test_a_way_to_quantise(folder: Path, tmp_path: Path) -> None:
    model = tiny_model("llama", tmp_path / "model", hidden_size=64, intermediate_size=64, head_dim=16)
    with pytest.raises(ValueError, match="quantization is 'rough', and must be"):
        LLM(model, quantization="rough")
    seen = []

    def rough(matrix: np.ndarray) -> gp.quant.QuantTensor:
        """Multiples of a quarter, in 8 bits."""
        seen.append(matrix.shape)
        return gp.quant.quantize(np.round(matrix * 4) / 4, "int8", axis=1)

    llm.register("quantization", "rough", rough)
    llm.register("quantization", "wrong", lambda matrix: matrix)
    with LLM(model, quantization="rough") as quantised, LLM(model, quantization="int8") as usual:
        assert len(quantised.generate([3, 4, 5], GREEDY).token_ids) == 30
        assert quantised.score([3, 4, 5, 6]) != usual.score([3, 4, 5, 6])
    assert (96, 64) in seen
    assert (64, 64) in seen
    with pytest.raises(
        ModelLoadError, match=r"q_proj\.weight: the plugin 'wrong' returned ndarray, and must return a QuantTensor"
    ):
        LLM(model, quantization="wrong")


@pytest.mark.parametrize(
    ("kind", "name", "thing", "reason"),
    [
        ("colour", "x", 1, "must be one of architecture, processor"),
        ("processor", "", print, "the name is empty"),
        ("processor", "x", 3, "is 3, and must be a function"),
        ("architecture", "x", print, "must be a ModelSpec"),
        ("decode", "x", DecodeM1(), "must be a subclass of DecodeStrategy or Drafter"),
        ("template", "x", b"", "must be the text of a chat template"),
    ],
)
def test_what_cannot_be_registered(folder: Path, kind: str, name: str, thing: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        llm.register(kind, name, thing)
    llm.register("processor", "taken", print)
    llm.register("processor", "taken", print)
    with pytest.raises(ValueError, match="is registered already"):
        llm.register("processor", "taken", repr)


if __name__ == "__main__":
    # For oracle/plugin.py: the files of the model that transformers computes logits of.
    sys.path.insert(0, str(EXAMPLE / "src"))
    from pygpukit_llm_example.starcoder2 import SPEC

    llm.register("architecture", "starcoder2", SPEC)
    tiny_model("starcoder2", sys.argv[1], sliding_window=9)
