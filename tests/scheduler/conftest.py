"""Schedulers in other processes, and a place of their own for their sockets."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Tests are imported by path: what they share.
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty XDG_RUNTIME_DIR; pytest's own folders have names too long for the address of a socket."""
    with tempfile.TemporaryDirectory(prefix="pgk") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        # Sockets of this machine's other users of the package are none of the tests' business.
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def program(runtime_folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program and wait until it prints "ready"; it is ended with the test, or when its input is closed."""
    with ExitStack() as processes:

        def start(source: str, **environ: str) -> subprocess.Popen[str]:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("PYGPUKIT_")}
            environment |= {"PYGPUKIT_DEVICE": "cpu", "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(runtime_folder)}
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", source],
                env=environment | environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        yield start


@pytest.fixture
def on_eight_sms(run_python: Callable[..., str]) -> Callable[..., str]:
    """Run a program that begins with the tests' checks on a CPU device of 8 SMs."""
    prologue = """
import asyncio, gc, os, signal, sys, threading, time
import numpy as np
import pygpukit as gp
from checks import *
from pygpukit.errors import *
from pygpukit.scheduler import *
"""
    here = str(Path(__file__).resolve().parent)

    def run(program: str, **environ: str) -> str:
        return run_python(prologue + program, **{"PYGPUKIT_CPU_SMS": "8", "PYTHONPATH": here, **environ})

    return run
