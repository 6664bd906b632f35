"""Importing is free of side effects: no CUDA call, no thread, no optional module."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

# NumPy's BLAS starts its own threads, so what is counted is what our import adds.
PROGRAM = """
import json, os, sys, threading, time
import ml_dtypes, numpy

def threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()

threads_before, modules_before = threads(), set(sys.modules)
start = time.perf_counter()
import pygpukit
seconds = time.perf_counter() - start
maps = open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else ""
new = {name.split(".")[0] for name in set(sys.modules) - modules_before}
print(json.dumps({
    "threads": threads() - threads_before,
    "modules": sorted(new - set(sys.stdlib_module_names)),
    "libraries": [name for name in ("libcuda.so", "libnvrtc", "libcublas", "libnvidia-ml", "libnccl") if name in maps],
    "milliseconds": seconds * 1e3,
}))
"""


@pytest.mark.parametrize("device", ["cpu", "cuda", ""])
def test_import_touches_nothing(
    device: str, run_python: Callable[..., str], record_property: Callable[[str, object], None]
) -> None:
    report = json.loads(run_python(PROGRAM, PYGPUKIT_DEVICE=device))
    record_property("import_milliseconds", report["milliseconds"])
    print(f"import pygpukit after numpy and ml_dtypes: {report['milliseconds']:.1f} ms")
    assert report["threads"] == 0
    assert report["libraries"] == []
    assert report["modules"] == ["pygpukit"], "only the standard library, numpy and ml_dtypes may be imported at once"


def test_the_native_module_has_one_object_under_both_names(run_python: Callable[..., str]) -> None:
    program = (
        "import _pygpukit_rust as rust, sys, pygpukit\n"
        "print(rust is pygpukit._pygpukit_rust, sys.modules['_pygpukit_rust'] is rust)"
    )
    assert run_python(program).split() == ["True", "True"]
