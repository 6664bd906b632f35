"""Every Python block of the README and the documentation runs on the CPU device, or says why not.

A block is left out after ``<!-- no-run: reason -->``.
A page is skipped where a package of ``<!-- needs: a, b -->``, its first line, is not installed.
A text block marked ``<!-- output -->`` is what the Python block before it prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NEEDS = re.compile(r"\A<!-- needs: ([\w, ]+) -->$", re.MULTILINE)
NO_RUN = re.compile(r"<!-- no-run: (\w+) -->$")
OUTPUT = "<!-- output -->"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the emulator cannot replace: a package that no test installs.
REASONS = {"torch", "consumers"}


def blocks(text: str) -> list[tuple[int, str]]:
    """Line number and source of each block that is to run."""
    found = []
    for match in BLOCK.finditer(text):
        if match[1] == "python" and not NO_RUN.search(text[: match.start()].rstrip()):
            found.append((text.count("\n", 0, match.start(2)) + 1, match[2]))
    return found


def outputs(text: str) -> dict[int, str]:
    """What is said to be printed, by the line number of the block that prints it."""
    found, last = {}, 0
    for match in BLOCK.finditer(text):
        if match[1] == "python":
            last = text.count("\n", 0, match.start(2)) + 1
        elif text[: match.start()].rstrip().endswith(OUTPUT):
            assert last not in found | {0: ""}, "an output block follows the Python block that prints it"
            found[last] = match[2]
    return found


def program(text: str) -> str:
    """The blocks of one page as one program in which line numbers are those of the page.

    Where a block's fence was, the program prints a mark. A process that imports the program prints none.
    """
    lines: list[str] = []
    for first, source in blocks(text):
        lines += [""] * (first - 1 - len(lines)) + source.splitlines()
        lines.append(f"if __name__ == '__main__': print('\\n@@{first}')")
    return "\n".join(lines)


def printed(output: str) -> dict[int, str]:
    """What each block printed."""
    pieces = re.split(r"^@@(\d+)\n", output, flags=re.MULTILINE)
    return {int(line): text.removesuffix("\n") for text, line in zip(pieces[::2], pieces[1::2], strict=False)}


def comparable(text: str) -> list[str]:
    """Lines without what depends on the version of the compiler, and without differences in white space."""
    return [re.sub(r"PTX line \d+: .*", "PTX line", " ".join(line.split())) for line in text.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_examples_run(page: Path, tmp_path: Path, run_python: Callable[..., str]) -> None:
    text = page.read_text(encoding="utf-8")
    source = program(text)
    if not source.strip():
        pytest.skip("no example on this page")
    if needs := NEEDS.search(text):
        for package in needs[1].split(","):
            pytest.importorskip(package.strip())
    # A script, because a task in a process of its own imports the program that submitted it.
    script = tmp_path / f"{page.stem.replace('-', '_').lower()}.py"
    script.write_text(source, encoding="utf-8")
    shown = printed(run_python(str(script)))
    for line, expected in outputs(text).items():
        assert comparable(shown[line]) == comparable(expected), f"{page.name}:{line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_examples_are_left_out_for_a_reason(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- no-run(?:: )?(.*?) ?-->", text)) <= REASONS


def test_blocks_are_found_with_their_lines() -> None:
    text = (
        "# t\n```python\nprint(1)\n```\n<!-- no-run: torch -->\n```python\nb\n```\n```sh\nc\n```\n"
        f"```python\nd = 2\nprint(d)\n```\n{OUTPUT}\n```text\n2\n```\n"
    )
    assert blocks(text) == [(3, "print(1)\n"), (13, "d = 2\nprint(d)\n")]
    assert program(text).splitlines()[12:14] == ["d = 2", "print(d)"]
    assert outputs(text) == {13: "2\n"}
    assert printed("1\n\n@@3\n2\n\n@@13\n") == {3: "1\n", 13: "2\n"}
