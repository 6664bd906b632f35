"""What is missing or too old: the driver, its calls, the GPU, the compiler. Every text says what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="file names of Linux")

Run = Callable[..., str]

OPEN = """
try:
    gp.zeros(3)
    print("works")
except gp.GPUKitError as error:
    print(type(error).__name__, error)
assert gp.is_cuda_available() in (True, False)
"""
OPEN_PLAIN = "import pygpukit as gp" + OPEN


def test_no_driver(run_python: Run) -> None:
    text = run_python(OPEN_PLAIN, PYGPUKIT_DEVICE="cuda", PYGPUKIT_LIBCUDA="/nonexistent/libcuda.so.1")
    assert text.startswith("DriverNotFoundError CUDA driver not detected: ")
    for part in ("/nonexistent/libcuda.so.1: no such file", "Install the NVIDIA driver", "PYGPUKIT_LIBCUDA"):
        assert part in text


def test_every_place_that_was_searched_is_listed(run_python: Run) -> None:
    text = run_python("import pygpukit as gp\nprint(gp.is_cuda_available())\n" + OPEN_PLAIN, PYGPUKIT_DEVICE="cuda")
    if text.startswith("True"):
        pytest.skip("this machine has a driver")
    assert "  libcuda.so.1: " in text
    assert "/usr/lib64/libcuda.so.1: " in text


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(60)])
def test_a_file_that_is_no_library(run_python: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(content)
    text = run_python(OPEN_PLAIN, PYGPUKIT_DEVICE="cuda", PYGPUKIT_LIBCUDA=str(path))
    assert text.startswith("DriverNotFoundError CUDA driver not detected: ")
    assert f"{path}: " in text


def test_a_library_that_is_no_driver(run_python: Run) -> None:
    import ctypes.util

    libc = ctypes.util.find_library("c")
    text = run_python(OPEN_PLAIN, PYGPUKIT_DEVICE="cuda", PYGPUKIT_LIBCUDA=str(libc))
    assert text.startswith("DriverError the CUDA driver ")
    assert "lacks cuDriverGetVersion" in text


@pytest.mark.parametrize(
    ("settings", "kind", "parts"),
    [
        ({"version": 12030}, "DriverError", ["speaks CUDA 12.3", "at least 12.4", "Update the NVIDIA driver"]),
        ({"version": 11080}, "DriverError", ["speaks CUDA 11.8"]),
        (
            {"devices": 0},
            "DeviceError",
            ["No GPU devices found (cudaGetDeviceCount == 0)", "nvidia-smi", "CUDA_VISIBLE_DEVICES"],
        ),
        ({"capability": "7.5"}, "DeviceError", ["PyGPUkit requires SM >= 80 (Ampere)", "7.5"]),
        ({"capability": "6.1"}, "DeviceError", ["6.1"]),
        ({"PYGPUKIT_DEVICE": "cuda:3"}, "DeviceError", ["There is no GPU 3", "offers 1"]),
        (
            {"withhold": "cuLaunchKernelEx,cuGraphLaunch"},
            "DriverError",
            ["lacks cuLaunchKernelEx, cuGraphLaunch", "550"],
        ),
        ({"fail": "cuInit:1:100:*"}, "DeviceError", ["No GPU devices found (cudaGetDeviceCount == 0)"]),
        ({"fail": "cuInit:1:34:*"}, "DriverNotFoundError", ["CUDA driver not detected", "stub"]),
        ({"fail": "cuInit:1:999:*"}, "DriverError", ["cuInit", "999"]),
        ({"fail": "cuDriverGetVersion:1:3:*"}, "DriverError", ["does not tell its version"]),
        ({"fail": "cuDevicePrimaryCtxRetain:1:46:*"}, "DriverError", ["exclusive mode"]),
        ({"fail": "cuDevicePrimaryCtxRetain:1:2:*"}, None, ["cuDevicePrimaryCtxRetain"]),
        ({"fail": "cuStreamCreateWithPriority:1:1:*"}, "DriverError", ["cuStreamCreateWithPriority"]),
    ],
)
def test_a_driver_that_cannot_be_used(
    run_fake: Run, settings: dict[str, object], kind: str | None, parts: list[str]
) -> None:
    text = run_fake(OPEN, **settings)
    if kind is not None:
        assert text.startswith(kind + " "), text
    assert not text.startswith("works")
    for part in parts:
        assert part in text, text


@pytest.mark.parametrize(
    "settings",
    [{"version": 12030}, {"devices": 0}, {"capability": "7.5"}, {"withhold": "cuFuncLoad"}, {"fail": "cuInit:1:999:*"}],
)
def test_without_a_wish_the_cpu_is_taken_with_the_reason(run_fake: Run, settings: dict[str, object]) -> None:
    program = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert gp.add(gp.ones(3), 1).tolist() == [2, 2, 2]
(one,) = caught
assert one.category is gp.FallbackWarning
print(one.message)
report = gp.info()
assert report["current_device"] == "<Device cpu>"
"""
    text = run_fake(program, PYGPUKIT_DEVICE="", **settings)
    assert text.startswith("Falling back to CPU simulation backend: ")
    assert len(text) > 60


@pytest.mark.parametrize("withheld", ["cuMemCreate", "cuMemAddressReserve,cuMemMap", "cuMemGetAllocationGranularity"])
def test_without_virtual_memory_arrays_get_whole_allocations(run_fake: Run, withheld: str) -> None:
    program = """
import time
x = gp.from_numpy(np.arange(1000, dtype=np.float32))
y = x.copy()
z = [gp.zeros(n) for n in (1, 1000, 1 << 20)]
assert y.tolist() == list(range(1000)) and z[2].to_numpy().sum() == 0
del x, y, z
# A thread that copied may let go of the array a moment after the copy was told to be done.
end = time.monotonic() + 60
while gp.memory.get_default_pool().stats()["reserved"] > 0:
    assert time.monotonic() < end
    gp.synchronize(); gp.memory.trim()
print(count("cuMemAllocAsync") > 0, count("cuMemAllocAsync") == count("cuMemFreeAsync"))
print(gp.get_device_capabilities()["vmm"])
"""
    assert run_fake(program, withhold=withheld) == "True True\nFalse\n"


@pytest.mark.parametrize(
    "settings",
    [{"withhold": "cuKernelGetParamInfo"}, {"withhold": "cuGreenCtxCreate"}, {"version": 12040}, {"version": 14020}],
)
def test_optional_calls_degrade_by_name(run_fake: Run, settings: dict[str, object]) -> None:
    program = """
k = kernel(sizes="4,8,8", params=[("n", "i32"), ("x", "*f32"), ("d", "f64")])
k(7, gp.zeros(3), 2.5, grid=1)
start, end = gp.Event(), gp.Event()
start.record(); end.record(); end.synchronize()
assert start.elapsed_ms(end) >= 0
gp.synchronize()
print(launches()[0].split("args=")[1].split()[0])
assert gp.info()["devices"]
"""
    args = bytes.fromhex(run_fake(program, **settings).strip())
    assert args[:4] == (7).to_bytes(4, "little")
    assert len(args) == 24


def test_no_compiler(run_python: Run) -> None:
    program = """
import pygpukit as gp
print(gp.is_nvrtc_available(), gp.get_nvrtc_version(), gp.get_nvrtc_path())
try:
    gp.jit('extern "C" __global__ void f(int n) {}')
except gp.NvrtcNotFoundError as error:
    print(error)
assert gp.add(gp.ones(2), 1).tolist() == [2, 2]
missing = [m for m in gp.info()["missing"] if m["what"] == "nvrtc"]
assert "pip install" in missing[0]["fix"]
"""
    text = run_python(program, PYGPUKIT_NVRTC="/nonexistent/libnvrtc.so.13")
    assert text.startswith("False None None\nNVRTC JIT compiler not available")
    for part in ("/nonexistent/libnvrtc.so.13: no such file", "pip install"):
        assert part in text


def test_operators_on_a_gpu_without_a_compiler_say_what_to_do(run_fake: Run) -> None:
    program = """
x = gp.zeros(3)
text = refused(lambda: gp.add(x, x), gp.NvrtcNotFoundError)
assert "pip install" in text, text
# What needs no kernel still works.
assert x.copy().tolist() == [0, 0, 0]
print("ok")
"""
    assert run_fake(program, PYGPUKIT_NVRTC="/nonexistent/libnvrtc.so.13") == "ok\n"


@pytest.mark.nvrtc
def test_a_compiler_of_a_newer_major_is_named_but_not_used(run_fake: Run) -> None:
    import pygpukit as gp

    version = gp.get_nvrtc_version()
    if version is None or version[0] < 13:
        pytest.skip("the compiler here is not newer than the driver of this test")
    program = """
text = refused(lambda: gp.jit('extern "C" __global__ void f(int n) {}'), gp.NvrtcNotFoundError)
print(text)
"""
    text = run_fake(program, version=12040, CUDA_PATH="", CUDA_HOME="")
    assert "libnvrtc.so.12" in text
    assert "does not run on this driver (CUDA 12.x)" in text
    assert "pygpukit[cuda12]" in text


def test_an_image_the_driver_cannot_read(run_fake: Run) -> None:
    program = """
for image, params in (
    (b"garbage", []),
    (b".entry g()\\n", []),
    (b".entry f(8)\\n", [("x", "*f32"), ("n", "i32")]),
    (b".entry f(8)\\n", [("n", "i32")]),
):
    print(repr(refused(lambda: native.load_kernel(image, "f", "f", params))))
"""
    lines = run_fake(program).splitlines()
    assert "200" in lines[0] or "218" in lines[0]
    assert "'f'" in lines[1] or "500" in lines[1]
    assert "the signature has 2 parameters, the compiled kernel 1" in lines[2]
    assert "takes 8 bytes" in lines[3]
