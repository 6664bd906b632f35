"""`pygpukit demo` ends with a reply of a model."""

from __future__ import annotations

import pytest

from pygpukit.cli import demo
from pygpukit.llm import fetch


def test_it_says_which_model_replied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "installed", lambda name: None)
    ((title, line),) = demo._reply()
    assert title == "model"
    assert "a tiny random model goes on with " in line
    assert "pygpukit model fetch smollm2; 24 tokens" in line
