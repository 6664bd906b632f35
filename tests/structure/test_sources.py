"""Rules every source file keeps: forbidden driver calls, one way to the device, ASCII, size, no unfinished markers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LINE_LIMIT = 700
SOURCES = {".py", ".pyi", ".rs", ".cu", ".cuh", ".md"}

# They wait for the whole device or go around the arena, the streams or the kernel loader.
FORBIDDEN = {
    "waits for the whole device": r"\bcuCtxSynchronize\w*",
    "waits for the whole device and goes around the arena": r"\bcuMemFree(_v2)?\b",
    "goes around the arena": r"\bcuMemAlloc(_v2)?\b",
    "ties a kernel to one context": r"\bcuModuleLoad\w*",
    "serialises with every other stream": r"\b(CU_STREAM_LEGACY|CU_STREAM_PER_THREAD|cudaStreamLegacy)\b",
}
# Spelled apart, so that this file does not hold them itself.
UNFINISHED = re.compile("|".join([r"\bTO" + r"DO\b", r"\bFIX" + "ME", r"\bX" + r"XX\b", "NotImplemented" + "Error"])
                        + "|" + r"\b(todo|unimplemented)!")  # fmt: skip


def matches(pattern: str | re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(pattern, line):
            yield number, line.strip()


def report(pattern: str | re.Pattern[str], paths: list[Path], root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{number}: {line}"
        for path in paths
        for number, line in matches(pattern, path.read_text(encoding="utf-8"))
    ]


def without_tests(text: str) -> str:
    """Rust source up to its unit tests."""
    return text.split("#[cfg(test)]", 1)[0]


@pytest.fixture(scope="module")
def sources(project_files: list[Path]) -> list[Path]:
    return [path for path in project_files if path.suffix in SOURCES]


@pytest.mark.parametrize("reason", sorted(FORBIDDEN))
def test_forbidden_driver_calls(reason: str, repository: Path) -> None:
    files = [path for path in sorted((repository / "rust").rglob("*.rs")) if "fake-cuda" not in path.parts]
    assert files
    found = report(FORBIDDEN[reason], files, repository)
    assert not found, f"{reason}:\n" + "\n".join(found)


def test_forbidden_patterns_spare_their_asynchronous_relatives() -> None:
    together = "|".join(FORBIDDEN.values())
    for name in ("cuMemFreeAsync", "cuMemFreeHost", "cuMemAllocAsync", "cuStreamSynchronize", "cuLibraryLoadData"):
        assert not re.search(together, name)
    for name in ("cuMemFree", "cuMemFree_v2", "cuMemAlloc_v2", "cuModuleLoadDataEx", '"cuCtxSynchronize"'):
        assert re.search(together, name)


def test_submit_is_the_only_way_to_the_device(repository: Path) -> None:
    callers = []
    for path in sorted((repository / "rust").glob("pygpukit-*/src/**/*.rs")):
        inside = path.relative_to(repository / "rust").as_posix()
        backend = re.search(r"/src/(cuda/|cpu/|cpu\.rs|device\.rs|launch/|launch\.rs)|/tests/", inside)
        if not backend and re.search(r"\.enqueue\(|device\.launch\(", without_tests(path.read_text(encoding="utf-8"))):
            callers.append(inside)
    assert not callers, "only the launch module may call Device::enqueue and Device::launch"


def test_rust_does_not_panic_on_purpose(repository: Path) -> None:
    """An `expect` states why it cannot fail; a bare unwrap or a panic does not."""
    found = []
    for path in sorted((repository / "rust").glob("pygpukit-*/src/**/*.rs")):
        if "tests" in path.parts or path.name in ("tests.rs", "testing.rs"):
            continue
        for number, line in matches(r"\.unwrap\(\)|\bpanic!\(", without_tests(path.read_text(encoding="utf-8"))):
            found.append(f"{path.relative_to(repository)}:{number}: {line}")
    assert not found


def test_text_is_ascii(project_files: list[Path], repository: Path) -> None:
    wrong = []
    for path in project_files:
        data = path.read_bytes()
        if b"\0" not in data and not data.isascii():
            line = next(n for n, text in enumerate(data.splitlines(), start=1) if not text.isascii())
            wrong.append(f"{path.relative_to(repository)}:{line}")
    assert not wrong


def test_nothing_is_left_unfinished(sources: list[Path], repository: Path) -> None:
    assert not report(UNFINISHED, sources, repository)


def test_files_stay_small(sources: list[Path], repository: Path) -> None:
    long = {
        str(path.relative_to(repository)): lines
        for path in sources
        # A module has one stub.
        if path.suffix != ".pyi" and (lines := path.read_bytes().count(b"\n")) > LINE_LIMIT
    }
    assert not long, "a file this long is usually two things"


def test_no_module_is_a_drawer(sources: list[Path]) -> None:
    assert not [path for path in sources if path.stem in ("utils", "util", "helpers", "misc")]
