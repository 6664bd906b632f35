"""Headers of the CUDA toolkit and of the C library: found, keyed, and used by kernels that run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pygpukit as gp
from pygpukit.core import libraries
from pygpukit.errors import KernelCompileError
from pygpukit.jit.c_library import C_HEADERS
from pygpukit.jit.compiler import compile_image, forget_images
from pygpukit.jit.toolkit import install_hint

toolkit: Any = importlib.import_module("pygpukit.jit.toolkit")

KERNEL = 'extern "C" __global__ void k(float* x) { *x = 1; }'


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A site folder with the headers of CUDA 13 wheels and none bundled, and no toolkit."""
    root = tmp_path / "site" / "nvidia"
    include = root / "cu13" / "include"
    for name in ("mma.h", "crt/mma.h", "cccl/cub/block/block_reduce.cuh"):
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text("// one\n")
    spec = SimpleNamespace(submodule_search_locations=[str(root)])
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: spec if name == "nvidia" else None)
    for variable in ("CUDA_PATH", "CUDA_HOME", "PYGPUKIT_NVRTC"):
        monkeypatch.delenv(variable, raising=False)
    toolkit._identity.cache_clear()
    yield include
    toolkit._identity.cache_clear()


def folders(call: dict[str, Any]) -> list[str]:
    return [option.removeprefix("-I") for option in call["options"] if option.startswith("-I")]


def test_folders_of_wheels_are_given_to_sources_that_need_them(native: Any, tree: Path) -> None:
    compile_image(f"#include <stdio.h>\n{KERNEL}", name="k", arch="90a")
    assert folders(native.compiled[-1]) == []
    compile_image(f"#include <mma.h>\n{KERNEL}", name="k", arch="90a")
    assert folders(native.compiled[-1]) == [str(tree), str(tree / "cccl")]
    # What they include in turn is there too.
    assert "stdint.h" in native.compiled[-1]["headers"]
    compile_image(f"#include <cub/block/block_reduce.cuh>\n{KERNEL}", name="k", arch="90a")
    assert folders(native.compiled[-1]) == [str(tree), str(tree / "cccl")]
    compile_image(f"#include <unknown.h>\n{KERNEL}", name="k", arch="90a")
    assert folders(native.compiled[-1]) == []


def test_headers_are_looked_for_where_only_they_are_missing(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "expected_version", lambda: pytest.fail("no header is missing"))
    for name in ("cstdint", "math.h", "cuda_runtime.h", "pygpukit/f16.cuh"):
        compile_image(f"#include <{name}>\n{KERNEL}", name="k", arch="90a")
    compile_image(f'#include "mma.h"\n{KERNEL}', name="k", arch="90a", headers={"mma.h": ""})


def test_the_key_has_the_identity_of_the_headers(native: Any, tree: Path) -> None:
    source = f"#include <mma.h>\n{KERNEL}"

    def origin() -> str | None:
        forget_images()
        toolkit._identity.cache_clear()
        return compile_image(source, name="k", arch="90a").cached

    assert [origin(), origin()] == [None, "disk"]
    (tree / "crt" / "mma.h").write_text("// another\n")
    assert [origin(), origin()] == [None, "disk"]


def test_a_folder_of_the_caller_comes_first(native: Any, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "mma.h").write_text("")
    compile_image(f"#include <mma.h>\n{KERNEL}", name="k", arch="90a", options=[f"-I{tmp_path}"])
    assert folders(native.compiled[-1]) == [str(tmp_path)]
    source = f"#include <mma.h>\n#include <crt/mma.h>\n{KERNEL}"
    compile_image(source, name="k", arch="90a", options=[f"-I{tmp_path}"])
    assert folders(native.compiled[-1]) == [str(tmp_path), str(tree), str(tree / "cccl")]


def test_headers_in_the_compiler_are_unpacked_once_and_come_before_wheels(
    native: Any, tree: Path, cache_dir: Path
) -> None:
    native.bundled = {"mma.h": "", "cccl/cub/cub.h": ""}
    home = cache_dir / "headers-13.4"
    for arch in ("80", "90a"):
        compile_image(f"#include <mma.h>\n{KERNEL}", name="k", arch=arch)
        assert folders(native.compiled[-1]) == [str(home), str(home / "cccl")]
    assert native.unpacked == 1
    compile_image(f"#include <mma.h>\n#include <crt/mma.h>\n{KERNEL}", name="k", arch="80")
    assert folders(native.compiled[-1]) == [str(home), str(home / "cccl"), str(tree), str(tree / "cccl")]
    # The folder is no image of the cache.
    assert compile_image(f"#include <mma.h>\n{KERNEL}", name="k", arch="80").cached == "memory"


def test_without_the_disk_cache_they_are_unpacked_for_the_process(
    native: Any, tree: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYGPUKIT_CACHE", "0")
    monkeypatch.setattr(toolkit, "_temporary", lambda: tmp_path / "now")
    native.bundled = {"mma.h": ""}
    compile_image(f"#include <mma.h>\n{KERNEL}", name="k", arch="80")
    assert folders(native.compiled[-1])[0] == str(tmp_path / "now" / "headers-13.4")
    assert not cache_dir.exists()


def test_an_older_compiler_has_wheels_and_toolkits(
    native: Any, tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    native.version, native.bundled = (12, 8), {"mma.h": ""}
    runtime = tree.parent.parent / "cuda_runtime" / "include"
    kit = tmp_path / "kit" / "include"
    for folder, name in ((runtime, "cuda_fp16.h"), (kit, "mma.h")):
        folder.mkdir(parents=True)
        (folder / name).write_text("")
    monkeypatch.setenv("CUDA_PATH", str(kit.parent))
    compile_image(f"#include <cuda_fp16.h>\n#include <mma.h>\n{KERNEL}", name="k", arch="80")
    assert folders(native.compiled[-1]) == [str(runtime), str(kit)]
    assert native.unpacked == 0


def test_hints_name_the_header_and_the_pip_line() -> None:
    assert 'pip install "pygpukit[headers]"' in install_hint("cuda_gl_interop.h", 13)
    assert 'pip install "pygpukit[headers-cu12]"' in install_hint("mma.h", 12)
    assert "pip install nvidia-curand," in install_hint("curand_kernel.h", 13)
    assert "pip install nvidia-curand-cu12," in install_hint("curand_kernel.h", 12)
    assert "<cuda/std/tuple>" in install_hint("tuple", 13)


@pytest.mark.nvrtc
def test_a_missing_header_is_named() -> None:
    with pytest.raises(KernelCompileError, match=r"'no_such\.h' is nowhere: .*pip install .*headers=\{") as caught:
        compile_image(f"#include <no_such.h>\n{KERNEL}", name="k", arch="80")
    assert caught.value.line == 1


@pytest.mark.nvrtc
def test_the_c_library_compiles_together() -> None:
    includes = "".join(f"#include <{name}>\n" for name in C_HEADERS)
    source = (
        includes
        + """
    static_assert(sizeof(std::abs(-1.5f)) == 4 && sizeof(std::pow(2.f, 2.f)) == 4 && sizeof(std::sqrt(2.0)) == 8, "");
    static_assert(INT_MIN < 0 && INT64_MIN < 0 && UINT64_MAX == SIZE_MAX && ULLONG_MAX > LONG_MAX, "");
    static_assert(FLT_MAX < INFINITY && DBL_EPSILON < FLT_EPSILON && CHAR_BIT == 8, "");
    static_assert(offsetof(float2, y) == 4 && sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 64, "");
    static_assert(sizeof(std::size_t) == 8 && std::nullptr_t() == nullptr && NAN != NAN, "");
    extern "C" __global__ void k(float* x, int n) {
        assert(n > 0);
        std::printf("%d", n);
        std::memcpy(x, x + n, 16);
        void* memory = std::malloc(4);
        std::free(memory);
        x[0] = std::fmin(x[1], fabsf(x[2])) + (float)M_PI + std::isnan(x[3]) + std::llabs(n);
    }
    """
    )
    assert compile_image(source, name="k", arch="80").image


needs_bundle = pytest.mark.skipif(
    (gp.get_nvrtc_version() or (0, 0)) < (13, 3),
    reason="this NVRTC carries no headers",
)

_WMMA = """
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda::wmma;
extern "C" __global__ void k(float* out, const __half* a, const __half* b) {
    fragment<matrix_a, 16, 16, 16, half, row_major> left;
    fragment<matrix_b, 16, 16, 16, half, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sums;
    fill_fragment(sums, 0.0f);
    load_matrix_sync(left, a, 16);
    load_matrix_sync(right, b, 16);
    mma_sync(sums, left, right, sums);
    store_matrix_sync(out, sums, 16, mem_row_major);
}"""

_REDUCE = """
#include <cooperative_groups.h>
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void k(float* out, const float* x) {
    using Reduce = cub::BlockReduce<float, 64>;
    __shared__ typename Reduce::TempStorage storage;
    float sum = Reduce(storage).Sum(x[threadIdx.x]);
    if (cooperative_groups::this_thread_block().thread_rank() == 0) *out = sum;
}"""

_PIPELINE = """
#include <cuda_pipeline.h>
extern "C" __global__ void k(float* out, const float* x) {
    __shared__ float tile[64];
    __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x];
}"""


@needs_bundle
@pytest.mark.nvrtc
def test_kernels_with_toolkit_headers_run() -> None:
    with gp.device("cpu"):
        a, b = gp.arange(256).reshape(16, 16) % 7, gp.arange(256).reshape(16, 16) % 5
        out = gp.zeros((16, 16))
        gp.jit(_WMMA)(out, a.astype("float16"), b.astype("float16"), grid=1, block=32)
        assert out.tolist() == (a.to_numpy() @ b.to_numpy()).tolist()
        x = gp.arange(64, dtype="float32")
        gp.jit(_REDUCE, check=True)(out, x, grid=1, block=64)
        assert out[0, 0].item() == 2016
        gp.jit(_PIPELINE, check=True)(out, x, grid=1, block=64)
        assert out.to_numpy().ravel()[:64].tolist() == list(range(63, -1, -1))


_WHEEL = next((folders for folders in libraries.header_folders(13) if (folders[0] / "cuda_runtime.h").is_file()), None)


@pytest.mark.skipif(_WHEEL is None, reason="needs the wheels of pygpukit[headers]")
@pytest.mark.nvrtc
def test_real_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "_bundled", lambda: iter(()))
    for source in (_WMMA, _REDUCE, _PIPELINE):
        assert compile_image(source, name="k", arch="80").image


def test_folder_times_are_read_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = toolkit._identity((tree,))
    monkeypatch.setattr(os, "walk", lambda folder: pytest.fail("read again"))
    assert toolkit._identity((tree,)) == first
