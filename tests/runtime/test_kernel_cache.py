"""The kernel cache with the real compiler: unwritable, damaged, or shared; the kernels never suffer."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.nvrtc

Run = Callable[..., str]

PROGRAM = """
import sys, warnings
warnings.simplefilter("always")
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.jit import compiler

compiled = []
original = native.nvrtc_compile

class Counting:
    def __getattr__(self, name):
        return getattr(native, name)
    def nvrtc_compile(self, *args):
        compiled.append(args[1])
        return original(*args)

sys.modules["pygpukit.jit.compiler"]._native = Counting()
kernel = gp.jit('extern "C" __global__ void scale(float* x, int n) { if (n) x[0] = n; }')
assert kernel.params == [("x", "float*"), ("n", "int")]
print(len(compiled))
"""


@pytest.fixture
def run_python(run_python: Run, tmp_path: Path) -> Run:
    """Programs of one test share a cache of their own."""
    return lambda program, **environ: run_python(program, **{"PYGPUKIT_CACHE_DIR": str(tmp_path / "cache")} | environ)


def test_the_second_process_compiles_nothing(run_python: Run) -> None:
    assert [run_python(PROGRAM) for _ in range(2)] == ["1\n", "0\n"]


def test_without_the_cache_every_process_compiles(run_python: Run, tmp_path: Path) -> None:
    assert [run_python(PROGRAM, PYGPUKIT_CACHE="0") for _ in range(2)] == ["1\n", "1\n"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kind", ["a file in its place", "below a file", "no permission"])
def test_a_folder_that_cannot_be_written(run_python: Run, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "cache"
    if kind == "no permission":
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        folder.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    else:
        folder.write_text("here already")
        folder = folder / "below" if kind == "below a file" else folder
    program = PROGRAM + "\ngp.jit('extern \"C\" __global__ void other(int n) {}')\n"
    assert run_python(program, PYGPUKIT_CACHE_DIR=str(folder)) == "1\n"


def environment(repository: Path, cache: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYGPUKIT_")}
    own = {"PYGPUKIT_DEVICE": "cpu", "PYGPUKIT_CACHE_DIR": str(cache), "PYTHONPATH": str(repository / "src")}
    return kept | own


def entries(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 100]


@pytest.fixture(scope="module")
def compiled(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the program's kernel."""
    folder = tmp_path_factory.mktemp("compiled") / "cache"
    assert subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment(repository, folder)) == b"1\n"
    return folder


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "garbage", "link", "folder"])
def test_a_damaged_image_is_compiled_again(run_python: Run, tmp_path: Path, compiled: Path, damage: str) -> None:
    shutil.copytree(compiled, tmp_path / "cache")
    (entry,) = entries(tmp_path / "cache")
    data = entry.read_bytes()
    if damage in ("link", "folder"):
        entry.unlink()
        if damage == "link":
            entry.symlink_to("/dev/zero")
        else:
            entry.mkdir()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        entry.write_bytes({"cut": data[:middle], "flip": flipped, "empty": b"", "garbage": os.urandom(5000)}[damage])
    assert run_python(PROGRAM) == "1\n"
    if damage in ("cut", "link"):
        assert run_python(PROGRAM) == "0\n", "what was compiled again took its place"


def test_a_cache_of_no_size_holds_nothing_and_works(run_python: Run) -> None:
    assert [run_python(PROGRAM, PYGPUKIT_CACHE_SIZE="100B") for _ in range(2)] == ["1\n", "1\n"]


def test_processes_that_compile_the_same_kernel_at_once(repository: Path, tmp_path: Path) -> None:
    environ = environment(repository, tmp_path / "cache")
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    results = [p.communicate(timeout=100) for p in processes]
    assert [p.returncode for p in processes] == [0] * 4, results
    # One compiles, the others wait for it and read what it has made.
    assert sorted(int(out) for out, _ in results) == [0, 0, 0, 1]
    assert len(entries(tmp_path / "cache")) == 1


def test_threads_that_compile_the_same_kernel_at_once(run_python: Run) -> None:
    program = (
        PROGRAM.replace("print(len(compiled))", "")
        + """
from concurrent.futures import ThreadPoolExecutor
source = 'extern "C" __global__ void t(float* x, float f) { x[threadIdx.x] *= f; }'
with ThreadPoolExecutor(8) as executor:
    made = list(executor.map(lambda _: gp.jit(source), range(16)))
print(len(set(map(id, made))), len(compiled))
"""
    )
    assert run_python(program) == "1 2\n"


def test_a_compile_error_is_not_cached(run_python: Run, tmp_path: Path) -> None:
    program = """
import pygpukit as gp
for _ in range(2):
    try:
        gp.jit('extern "C" __global__ void broken(int n) { n = ; }')
    except gp.KernelCompileError as error:
        print(error.line)
print(gp.jit('extern "C" __global__ void fine(int n) {}').name)
"""
    assert run_python(program) == "1\n1\nfine\n"
    assert len(entries(tmp_path / "cache")) == 1


def test_the_command_lists_a_damaged_cache(run_python: Run, tmp_path: Path) -> None:
    run_python(PROGRAM)
    (entry,) = entries(tmp_path / "cache")
    entry.write_bytes(entry.read_bytes()[:-3])
    program = """
import sys
from pygpukit.cli import main
sys.argv = ["pygpukit", "cache", "list"]
main()
"""
    assert "Traceback" not in run_python(program)
