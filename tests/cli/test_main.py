"""The command line itself: what every command shares."""

from __future__ import annotations

import pytest

from pygpukit.cli import main


@pytest.mark.parametrize("command", [["info"], ["cache", "list"], ["demo"]])
@pytest.mark.parametrize(
    ("name", "value"), [("PYGPUKIT_DEVICE", "gpu"), ("PYGPUKIT_CACHE_SIZE", "much"), ("PYGPUKIT_STREAMS", "later")]
)
def test_a_wrong_setting_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert main(command) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith(f"pygpukit: {name}={value!r} is not valid: use ")
