"""The gallery's programs run with NumPy when their import is replaced, and give the same numbers."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp

ROOT = Path(__file__).resolve().parents[2]
# Small sizes, for the emulator too.
PROGRAMS = {
    "mandelbrot": ["--width", "31", "--height", "23", "--steps", "20"],
    "game_of_life": ["--height", "40", "--width", "50", "--generations", "12"],
    "heat_equation": ["--size", "45", "--steps", "10"],
    "image_filter": ["--size", "41", "--radius", "3"],
    "k_means": ["--points", "201", "--groups", "4", "--steps", "4"],
    "n_body": ["--bodies", "23", "--steps", "4"],
}


def run(name: str, *, numpy: bool, arguments: list[str]) -> Any:
    source = (ROOT / "examples" / "gallery" / f"{name}.py").read_text(encoding="utf-8")
    if numpy:
        source = source.replace("import pygpukit as np", "import numpy as np").replace(".to_numpy()", "")
    module = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module.main(arguments)


@pytest.mark.parametrize(
    "device", [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_those_of_numpy(name: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = run(name, numpy=True, arguments=PROGRAMS[name])
    printed = capsys.readouterr().out
    with gp.device(device):
        got = run(name, numpy=False, arguments=PROGRAMS[name])
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got.to_numpy(), expected, rtol=2e-5, atol=2e-6)
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("name", PROGRAMS)
def test_pictures(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"{name}.png"
    run(name, numpy=False, arguments=[*PROGRAMS[name], "--picture", str(picture)])
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_every_program_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples" / "gallery").glob("*.py")} == set(PROGRAMS)
