"""Smoke test of an installed PyGPUkit: runs in an empty directory, with the interpreter of an environment that has nothing else.

Standard library only until the import of pygpukit is measured; no test framework, since the environment has none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

KERNEL = """extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}"""
BASE = {"ml_dtypes", "msgpack", "numpy", "pygpukit", "rich"}
HEADERS = ("types.cuh", "f16.cuh", "bf16.cuh", "fp8.cuh", "ring.cuh")


def require(condition: bool, *what: object) -> None:
    """Stop with `what`; unlike assert it also holds under ``python -O``."""
    if not condition:
        raise SystemExit("smoke test failed: " + " ".join(str(part) for part in what))


def threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1


def check_import() -> None:
    """Importing takes the installed package, starts no thread and imports no module of an extra."""
    import ml_dtypes  # noqa: F401
    import numpy  # noqa: F401

    before, modules = threads(), set(sys.modules)
    start = time.perf_counter()
    import pygpukit

    milliseconds = (time.perf_counter() - start) * 1e3
    added = {name.split(".")[0] for name in set(sys.modules) - modules} - set(sys.stdlib_module_names)
    require(added == {"pygpukit"}, "the import brought", sorted(added - {"pygpukit"}))
    require(threads() == before, "the import started", threads() - before, "threads")
    where = Path(pygpukit.__file__).resolve()
    require(where.is_relative_to(Path(sysconfig.get_path("platlib")).resolve()), "imported from", where)
    print(f"import     {milliseconds:.0f} ms after numpy and ml_dtypes, from {where.parent}")


def check_operators() -> None:
    """Operators compute on NumPy, and through their kernels on the emulator."""
    program = (
        "import numpy as np, pygpukit as gp\n"
        "x, y = gp.full((8, 8), 2.0, 'float32'), gp.ones((8, 8), 'float32')\n"
        "assert (gp.add(x, y).to_numpy() == 3).all()\n"
        "assert (gp.matmul(x, y).to_numpy() == 16).all()\n"
        f"kernel = gp.jit({KERNEL!r}, func='scale')\n"
        "kernel(x, factor=0.5, n=x.size)\n"
        "assert (x.to_numpy() == 1).all()\n"
        "print(gp.current_device().kind)"
    )
    for device in ("cpu", "emulated"):
        shown = command([sys.executable, "-I", "-c", program], PYGPUKIT_DEVICE=device)
        print(f"operators  add, matmul and a kernel of gp.jit with PYGPUKIT_DEVICE={device}: {shown.strip()}")


def check_files() -> None:
    """The kernels' sources, the native module's stub and the marker of types are in the package."""
    package = importlib.resources.files("pygpukit")
    sources = {path.name for path in Path(str(package / "kernels")).rglob("*.cu*")}
    missing = [name for name in HEADERS if name not in sources]
    require(not missing, "headers that did not travel:", missing)
    require(sum(name.endswith(".cu") for name in sources) >= 2, "kernel files that travelled:", sorted(sources))
    for name in ("py.typed", "_pygpukit_rust.pyi"):
        require((package / name).is_file(), name, "did not travel")
    print(f"files      {len(sources)} kernel sources and headers")


def check_metadata() -> None:
    """The base install is the five packages that the documentation names; extras are not among them."""
    lines = importlib.metadata.requires("pygpukit") or []
    base = {line.split(">")[0].split(";")[0].strip().replace("-", "_") for line in lines if "extra ==" not in line}
    require(base <= BASE | {"nvidia_cuda_nvrtc"}, "the base install asks for", sorted(base))
    present = {dist.metadata["Name"].lower().replace("-", "_") for dist in importlib.metadata.distributions()}
    extras = {"matplotlib", "prometheus_client", "nvidia_ml_py", "uvloop", "nvidia_cublas", "torch", "cupy", "pytest"}
    require(not present & extras, "the environment is not empty:", sorted(present & extras))
    print(f"packages   {', '.join(sorted(present - {'pip', 'setuptools'}))}")


def check_commands() -> None:
    """The command is on the path of the environment, explains the machine and runs its demo."""
    tool = Path(sysconfig.get_path("scripts")) / "pygpukit"
    version = command([str(tool), "--version"]).split()[-1]
    require(version == importlib.metadata.version("pygpukit"), "the command's version is", version)
    info = json.loads(command([str(tool), "info", "--json"]))
    require(bool(info), "pygpukit info --json printed", info)
    text = command([str(tool), "info"])
    require("nvrtc" in text.lower(), "pygpukit info printed", text)
    demo = command([str(tool), "demo", "--size", "4096"])
    require(" NO" not in demo and "launched it, correct: yes" in demo, "the demo printed", demo)
    print(f"commands   pygpukit {version}: info, demo ({len(demo.splitlines())} lines)")


def command(words: list[str], **environment: str) -> str:
    """Run a command in the empty directory; returns what it printed."""
    settings = {"PYGPUKIT_DEVICE": "cpu", **environment}
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
    require(done.returncode == 0, *words, "ended with", done.returncode, done.stdout, done.stderr)
    return done.stdout


if __name__ == "__main__":
    require(not list(Path.cwd().iterdir()), Path.cwd(), "is not empty")
    os.environ["PYGPUKIT_CACHE_DIR"] = str(Path.cwd() / "kernels")
    check_import()
    check_metadata()
    check_files()
    check_operators()
    check_commands()
