"""Tensor maps as arguments of kernels: bulk copies in and out, on a GPU and on the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

# A box per block: `load` writes down what it finds in shared memory, `add` stores it changed.
SOURCE = """
#include "pygpukit/tensor_map.cuh"
typedef unsigned int u32;

extern __shared__ __align__(1024) unsigned short tile[];

__device__ u32 shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ void fetch(const CUtensorMap* map, int x, int y, u32 bytes) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    __shared__ unsigned long long object;
    const u32 bar = shared(&object);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     :: "r"(shared(tile)), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
    }
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
}

extern "C" __global__ void load(unsigned short* out, const __grid_constant__ CUtensorMap map, int rows, int cols) {
    fetch(&map, blockIdx.x * cols, blockIdx.y * rows, rows * cols * 2);
    const int box = (blockIdx.y * gridDim.x + blockIdx.x) * rows * cols;
    for (int i = threadIdx.x; i < rows * cols; i += blockDim.x) out[box + i] = tile[i];
}

extern "C" __global__ void add(const __grid_constant__ CUtensorMap to, const __grid_constant__ CUtensorMap from,
                               int rows, int cols, int step) {
    fetch(&from, blockIdx.x * cols, blockIdx.y * rows, rows * cols * 2);
    for (int i = threadIdx.x; i < rows * cols; i += blockDim.x) tile[i] += step;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&to), "r"(blockIdx.x * cols), "r"(blockIdx.y * rows), "r"(shared(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""
SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}


@cache
def emulated() -> gp.Device:
    """A CPU device that compiles for compute capability 9.0, checks kernels, and moves arrays out."""
    return native.open_cpu(24 << 20, capability=(9, 0), check=True, evicting=True)


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("cpu", marks=pytest.mark.nvrtc)])
def hopper(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    """The GPU, or the emulator in its place."""
    device: Any = "cuda"
    if request.param == "cpu":
        device = emulated()
    with gp.device(device) as current:
        if current.capability < (9, 0):
            pytest.skip("tensor maps need compute capability 9.0")
        yield current


def numbers(rows: int, cols: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(1, 1 << 16, (rows, cols)).astype(np.uint16)


def tiles_of(host: np.ndarray[Any, Any], rows: int, cols: int) -> np.ndarray[Any, Any]:
    """The boxes of a matrix, with zeros beyond its ends."""
    down, across = -(-host.shape[0] // rows), -(-host.shape[1] // cols)
    padded = np.zeros((down * rows, across * cols), host.dtype)
    padded[: host.shape[0], : host.shape[1]] = host
    return padded.reshape(down, rows, across, cols).swapaxes(1, 2)


@pytest.mark.parametrize("swizzle", SPANS)
def test_boxes_are_loaded_with_zeros_beyond_the_ends(hopper: gp.Device, swizzle: str) -> None:
    rows, span = 24, SPANS[swizzle]
    cols = max(span, 32) // 2 if swizzle != "none" else 40
    host = numbers(61, 136)
    x = gp.from_numpy(host)[:, :133]
    wanted = tiles_of(host[:, :133], rows, cols)
    out = gp.full(wanted.shape, 7, "uint16")
    tensor_map = gp.TensorMap(x, box=(rows, cols), swizzle=swizzle)
    assert (tensor_map.box, tensor_map.box_bytes) == ((rows, cols), rows * cols * 2)
    gp.jit(SOURCE, func="load")(
        out, tensor_map, rows, cols, grid=(wanted.shape[1], wanted.shape[0]), block=64, shared=rows * cols * 2
    )
    # Units of 16 bytes are exchanged within their 128-byte line, by the line's number.
    unit = np.arange(rows * cols // 8)
    line = unit // 8
    moved = unit ^ (line % (span // 16))
    units = out.to_numpy().reshape(*wanted.shape[:2], -1, 8)
    np.testing.assert_array_equal(units[:, :, moved].reshape(wanted.shape), wanted)


def test_boxes_are_stored_within_the_array_alone(hopper: gp.Device) -> None:
    host, rows, cols = numbers(45, 72), 16, 64
    whole = gp.full((50, 80), 7, "uint16")
    x, out = gp.from_numpy(host), whole[2:47, 8:80]
    to = gp.TensorMap(out, (rows, cols), access="write", swizzle="128B")
    add = gp.jit(SOURCE, func="add")
    assert add.params[0] == ("to", "CUtensorMap")
    add(to, gp.TensorMap(x, (rows, cols), swizzle="128B"), rows, cols, 3, grid=(2, 3), block=64, shared=rows * cols * 2)
    wanted = np.full((50, 80), 7, np.uint16)
    wanted[2:47, 8:80] = host + np.uint16(3)
    np.testing.assert_array_equal(whole.to_numpy(), wanted)


def test_maps_keep_their_arrays_in_graphs_and_under_eviction(hopper: gp.Device) -> None:
    rows, cols, height = 64, 64, 1 << 15
    host = np.arange(height * cols, dtype=np.uint32).astype(np.uint16).reshape(height, cols)
    with gp.memory.MemoryPool(enable_eviction=True):
        x = gp.from_numpy(host)
        maps = [gp.TensorMap(x, (rows, cols), access=access) for access in ("readwrite", "read")]
        del x
        add, graph = gp.jit(SOURCE, func="add"), gp.CudaGraph()
        launch: dict[str, Any] = {"grid": (1, 5), "block": 64, "shared": rows * cols * 2}
        with graph.capture():
            add(maps[0], maps[1], rows, cols, 2, **launch)
        for _ in range(2):
            assert maps[0].array.evict()
            graph.replay()
            assert maps[0].array.evict()
            add(*maps, rows, cols, 1, **launch)
        host[: 5 * rows] += 6
        assert maps[0].array.evict()
        np.testing.assert_array_equal(maps[1].array.to_numpy(), host)


@pytest.mark.nvrtc
def test_what_a_map_was_not_made_for_is_refused() -> None:
    with gp.device("cpu"):
        other = gp.TensorMap(gp.zeros((64, 64), "uint16"), (64, 64), access="write")
    with gp.device(emulated()):
        x, y = gp.zeros((64, 64), "uint16"), gp.zeros((64, 64), "uint16")
        add, box = gp.jit(SOURCE, func="add"), (64, 64)
        launch: dict[str, Any] = {"grid": 1, "block": 64, "shared": 8192}
        read = gp.TensorMap(x, box)
        with pytest.raises(gp.KernelFaultError, match="tensor map was made for reading"):
            add(read, read, 64, 64, 1, **launch)
        with pytest.raises(
            gp.KernelLaunchError, match=r"'to' \(CUtensorMap\) takes a pygpukit.TensorMap, not GPUArray"
        ):
            add(y, read, 64, 64, 1, **launch)
        write = gp.TensorMap(y, box, access="write")
        # PTX does not name the type.
        assert add.ptx is not None
        gp.load_ptx(add.ptx, "add")(write, read, 64, 64, 1, **launch)
        assert (y.to_numpy() == 1).all()
        y.setflags(write=False)
        with pytest.raises(gp.KernelLaunchError, match=r"'to' .* may be written, but the array .* is read-only"):
            add(write, read, 64, 64, 1, **launch)
        with pytest.raises(gp.KernelLaunchError, match="'to' is of another device"):
            add(other, read, 64, 64, 1, **launch)


def test_what_hardware_cannot_move_is_refused_with_the_value() -> None:
    with gp.device("cpu"):
        x = gp.zeros((6, 4, 64), "bfloat16")
        assert repr(gp.TensorMap(x, (2, 4, 8))) == "<TensorMap bfloat16 (6, 4, 64) box=(2, 4, 8)>"
        assert gp.TensorMap(x, (2, 4, 8), steps=(2, 1, 1)).box_bytes == 64
        assert gp.TensorMap(x[1:2, :, :5], (1, 4, 8)).array.shape == (1, 4, 5)
        refused: list[tuple[gp.GPUArray, tuple[int, ...], dict[str, Any], str]] = [
            (x, (4, 64), {}, "box has 2 numbers, and the array 3 dimensions"),
            (x, (1, 4, 64), {"steps": (1, 1)}, "steps has 2 numbers"),
            (x.T, (8, 4, 6), {}, "last axis has a stride of 256 elements"),
            (x[::-1], (1, 4, 8), {}, "axis 0 has a stride of -512 bytes"),
            (x[:, :, 1:], (1, 4, 8), {}, "must be a multiple of 16"),
            (x[:, ::2, :60], (1, 4, 12), {}, "rows of a box have 24 bytes"),
            (x, (1, 4, 257), {}, "257"),
            (x, (1, 0, 8), {}, "0 elements in dimension 1"),
            (x, (1, 4, 64), {"swizzle": "64B"}, "no more than 64"),
            (x, (1, 4, 8), {"steps": (1, 9, 1)}, "element stride 9"),
            (gp.zeros((4, 9), "float32"), (4, 4), {}, "stride 36"),
            (gp.zeros((), "float32"), (), {}, "0 dimensions"),
            (x, (1, 4, 8), {"swizzle": "16B"}, "'none', '32B', '64B', '128B', not '16B'"),
            (x, (1, 4, 8), {"access": "w"}, "access must be one of"),
            (x, (1, 4, 8), {"l2": "512B"}, "l2 must be one of"),
            (x, (1, 4, 8), {"fill": "one"}, "fill must be one of"),
            (gp.zeros((4, 16), "int32"), (4, 4), {"fill": "nan"}, "int32 cannot be filled with NaN"),
            (gp.zeros((4, 16), "complex64"), (4, 4), {}, "view the array as float32"),
        ]
        for array, box, options, part in refused:
            with pytest.raises((ValueError, TypeError, gp.GPUKitError)) as error:
                gp.TensorMap(array, box, **options)
            assert part in str(error.value), error.value
        x.setflags(write=False)
        with pytest.raises(ValueError, match="read-only"):
            gp.TensorMap(x, (1, 4, 8), access="write")
        gp.TensorMap(x, (1, 4, 8))


def shifted(operator_name: str) -> Any:
    """An operator of the registry whose kernel reads and writes through tensor maps: x + 3."""
    from pygpukit.ops.launch import KernelLaunch, Launch, Unit, i32, tensor_map
    from pygpukit.ops.problem import Problem, Result
    from pygpukit.ops.registry import Operator, Parameter, Variant, register
    from pygpukit.ops.size import ceil_div

    rows, cols = 16, 64
    unit = Unit("add_by_maps", SOURCE, ("add",))

    def launch(p: Problem) -> Launch:
        maps = (
            tensor_map(p.out, (rows, cols), access="write", swizzle="128B"),
            tensor_map(p["x"], (rows, cols), swizzle="128B"),
        )
        grid = (ceil_div(p["x"].shape[1], cols), ceil_div(p["x"].shape[0], rows))
        arguments = (*maps, i32(rows), i32(cols), i32(3))
        return Launch((KernelLaunch(unit, "add", grid, (64,), arguments, shared=rows * cols * 2),))

    return register(
        Operator(
            operator_name,
            (Parameter("x"),),
            lambda p: [Result(p["x"].shape, gp.uint16)],
            lambda x: x + 3,
            (Variant("boxes", "batch_invariant", lambda p: None, launch=launch, architectures="90a"),),
            "For the tests.",
            public=False,
        )
    )


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("cpu", marks=pytest.mark.nvrtc)])
def planned(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    """The GPU, or the emulator with operators run by their kernels."""
    device: Any = "cuda"
    if request.param == "cpu":
        device = native.open_cpu(24 << 20, emulated=True, capability=(9, 0), check=True, evicting=True)
    with gp.device(device) as current:
        if current.capability < (9, 0):
            pytest.skip("tensor maps need compute capability 9.0")
        yield current


def test_plans_encode_maps_for_each_call(planned: gp.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from pygpukit.ops import planner, registry

    shift = shifted("shift_by_maps")
    asked: list[int] = []
    monkeypatch.setattr(planner, "choose", lambda *a, real=planner.choose: asked.append(1) or real(*a))
    try:
        for rows, cols in ((45, 72), (16, 64), (3, 8), (100, 200), (45, 72)):
            host = numbers(rows, cols)
            np.testing.assert_array_equal(shift(gp.from_numpy(host)).to_numpy(), host + np.uint16(3))
            whole = gp.full((rows + 5, cols + 8), 7, "uint16")
            view = whole[2 : 2 + rows, 8:]
            shift(gp.from_numpy(host), out=view)
            np.testing.assert_array_equal(view.to_numpy(), host + np.uint16(3))
            assert (whole[:, :8].to_numpy() == 7).all()
        # One plan for a new result and one for `out`, whatever the sizes.
        assert len(asked) == 2
        graph, x = gp.CudaGraph(), gp.from_numpy(numbers(45, 72))
        shift(x)
        with graph.capture():
            y = shift(shift(x))
        for step in (1, 2):
            x.fill(step)
            graph.replay()
            assert (y.to_numpy() == step + 6).all()
        odd = gp.zeros((4, 9), "uint16")
        with pytest.raises(ValueError, match="stride 18"):
            shift(odd)
    finally:
        registry.OPERATORS.pop("shift_by_maps")


@pytest.mark.parametrize(
    "kind", [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("cpu", marks=pytest.mark.nvrtc)]
)
def test_graphs_exchange_arrays_that_kernels_reach_through_maps(kind: str) -> None:
    device: Any = kind if kind == "cuda" else native.open_cpu(24 << 20, emulated=True, capability=(9, 0), check=True)
    from pygpukit.ops import registry

    shift = shifted("shift_in_graphs")
    try:
        with gp.device(device):
            first, second = (gp.from_numpy(numbers(45, 72) // n) for n in (1, 2))
            out = gp.zeros((45, 72), "uint16")
            shift(first, out=out)
            graph = gp.CudaGraph()
            graph.parameter("x", first)
            with graph.capture():
                shift(first, out=out)
            for x in (second, first, second):
                graph.replay(x=x)
                np.testing.assert_array_equal(out.to_numpy(), x.to_numpy() + np.uint16(3))
    finally:
        registry.OPERATORS.pop("shift_in_graphs")
