"""Every Python block of the README and the documentation runs on the CPU device, unless marked ``<!-- no-run -->``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_RUN = "<!-- no-run -->"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """Line number and source of each block that is to run."""
    found = []
    for match in BLOCK.finditer(text):
        if not text[: match.start()].rstrip().endswith(NO_RUN):
            found.append((text.count("\n", 0, match.start(1)) + 1, match[1]))
    return found


def program(text: str) -> str:
    """The blocks of one page as one program in which line numbers are those of the page."""
    lines: list[str] = []
    for first, source in blocks(text):
        lines += [""] * (first - 1 - len(lines)) + source.splitlines()
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_examples_run(page: Path, run_python: Callable[..., str]) -> None:
    source = program(page.read_text(encoding="utf-8"))
    if not source.strip():
        pytest.skip("no example on this page")
    run_python(f"exec(compile({source!r}, {page.name!r}, 'exec'))")


def test_blocks_are_found_with_their_lines() -> None:
    text = f"# t\n```python\na = 1\n```\n{NO_RUN}\n```python\nb\n```\n```sh\nc\n```\n```python\nd = 2\n```\n"
    assert blocks(text) == [(3, "a = 1\n"), (13, "d = 2\n")]
    assert program(text).splitlines()[12] == "d = 2"
