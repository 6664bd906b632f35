"""Fixtures of the runtime tests: the fake CUDA driver, and programs that run on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Tests are imported by path: the programs they share.
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def fake_cuda(repository: Path) -> str:
    """Path of the fake CUDA driver, built here; its settings are the FAKECUDA_* variables."""
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("cargo is not installed, so the fake CUDA driver cannot be built")
    built = subprocess.run(
        [cargo, "build", "--quiet", "--locked", "-p", "fake-cuda", "--message-format=json"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.fail(f"the fake CUDA driver does not build:\n{built.stderr}")
    for line in built.stdout.splitlines():
        for file in json.loads(line).get("filenames", []):
            if Path(file).name in ("libfake_cuda.so", "libfake_cuda.dylib"):
                return str(file)
    pytest.skip("there is no fake CUDA driver on this platform")


_PRELUDE = """
import ctypes, os, pathlib, sys
import numpy as np
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.jit import bundle as _bundle

# What was compiled for real GPUs (make gpu-bundle) is nothing for a driver that is not.
_bundle._PACKAGE_BUNDLES = pathlib.Path("/nonexistent")

fake = ctypes.CDLL(os.environ["PYGPUKIT_LIBCUDA"])
fake.fakecuda_counter.restype = ctypes.c_uint64
fake.fakecuda_launches.restype = ctypes.c_size_t
fake.fakecuda_launches.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

def configure(name, value):
    assert fake.fakecuda_configure(name.encode(), str(value).encode()) == 0

def count(call):
    return fake.fakecuda_counter(call.encode())

def launches():
    size = fake.fakecuda_launches(None, 0)
    text = ctypes.create_string_buffer(size)
    fake.fakecuda_launches(text, size)
    return text.raw.decode().splitlines()

def kernel(name="scale", sizes="8,4,4", params=(("x", "*f32"), ("factor", "f32"), ("n", "i32")), **more):
    return native.load_kernel(f".entry {name}({sizes})\\n".encode(), name, name, list(params), **more)

def refused(call, kind=gp.GPUKitError):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it was not refused")
"""


@pytest.fixture
def run_fake(fake_cuda: str, run_python: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Run a program on the fake driver; keyword arguments are its settings, those in capitals environment variables."""
    own = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda, "PYGPUKIT_CACHE_DIR": str(tmp_path / "cache")}

    def run(program: str, **settings: object) -> str:
        environ = {
            name if name.isupper() else f"FAKECUDA_{name.upper()}": str(value) for name, value in settings.items()
        }
        return run_python(_PRELUDE + program, **(own | environ))

    return run
