"""The tables of docs/determinism.md are those of the registry."""

from __future__ import annotations

import re
from pathlib import Path

from pygpukit.ops.registry import STRENGTH, load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "determinism.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.MULTILINE)


def test_operators_that_promise_less_are_named() -> None:
    weaker = {}
    for op in load().values():
        kernels = [v.determinism for v in op.variants if v.host is None]
        if kernels and min(map(STRENGTH.index, kernels)) > 0:
            weaker[op.name] = min(kernels, key=STRENGTH.index)
    assert dict(ROW.findall(PAGE.read_text())) == weaker


def test_no_operator_is_left_to_chance() -> None:
    assert not [op.name for op in load().values() if any(v.determinism == "not_guaranteed" for v in op.variants)]
    assert "No built-in operator has a way that is `not_guaranteed`." in PAGE.read_text()


def test_levels_are_named() -> None:
    text = PAGE.read_text()
    assert all(f'| `"{level}"`' in text for level in STRENGTH)
