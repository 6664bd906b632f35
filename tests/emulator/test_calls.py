"""Functions that parts of a warp are in at the same time, on the CPU device: each thread keeps its own values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc

# Orders in which the parts of a warp take turns.
ORDERS: list[dict[str, Any]] = [{}, {"check": True}, *({"check": "fuzz", "seed": seed} for seed in range(4))]


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    with gp.device("cpu"):
        yield


def run(source: str, i: str, shape: tuple[int, int], n: int, **options: Any) -> list[int]:
    """Run kernel `k`, whose thread number is the text `i`."""
    x, out = gp.from_numpy(np.arange(32, dtype=np.int32)), gp.zeros(64, "uint64")
    grid, block = shape
    gp.jit(source.replace("THREAD", i), **options)(x, out, n, grid=grid, block=block)
    gp.synchronize()
    return list(out.tolist())


def compare(source: str, n: int) -> None:
    """Warps in all orders give what threads give that have a warp of their own."""
    want = run(source, "blockIdx.x", (64, 1), n)
    assert len(set(want)) > 8
    for options in ORDERS:
        assert run(source, "threadIdx.x", (1, 64), n, **options) == want, options


KERNEL = 'extern "C" __global__ void k(const int* x, unsigned long long* out, int n) { int i = THREAD; '


@pytest.mark.parametrize("n", [3, 40, 200])
def test_halves_of_a_warp_in_two_functions(n: int) -> None:
    compare(
        """
    __device__ __noinline__ int f(const int* x, int n) {
        int a = 1, b = 2, c = 3, d = 4;
        for (int j = 0; j < n; j++) { a += x[j & 31]; b ^= a; c += b * 3; d -= c; }
        return a + b + c + d;
    }
    __device__ __noinline__ int g(const int* x, int n) {
        long long a = 5, b = 6, c = 7;
        for (int j = 0; j < n; j++) { a = a * 3 + x[j & 31]; b += a; c ^= b; }
        return (int)(a + b + c);
    }
    """
        + KERNEL
        + "out[i] = i & 1 ? f(x, n + i) : g(x, n + i); }",
        n,
    )


def test_a_wide_frame_beside_deep_calls() -> None:
    many = range(40)
    declare = "".join(f"unsigned long long v{j} = x[{j % 32}] * {2 * j + 3}ull + n;" for j in many)
    step = "".join(f"v{j} = v{j} * 6364136223846793005ull + v{(j + 7) % 40};" for j in many)
    compare(
        f"""
    __device__ __noinline__ unsigned long long f(const int* x, int n) {{
        {declare}
        for (int j = 0; j < n; j++) {{ {step} }}
        return {"^".join(f"v{j}" for j in many)};
    }}
    __device__ __noinline__ unsigned h2(const int* x, int n) {{
        unsigned s = n;
        for (int j = 0; j < n; j++) s = s * 3 + j;
        return s;
    }}
    __device__ __noinline__ unsigned h(const int* x, int n) {{ return h2(x, n) + h2(x, n + 1) * 3; }}
    __device__ __noinline__ unsigned g(const int* x, int n) {{
        unsigned r = 0;
        for (int j = 0; j < n; j++) r += h(x, j);
        return r;
    }}
    """
        + KERNEL
        + "out[i] = i & 1 ? f(x, n + i) : g(x, n + i); }",
        60,
    )


def random_functions(seed: int) -> str:
    """Functions with frames, loops, local arrays and calls of each other, recursive ones too, all in a table."""
    choose = random.Random(seed)
    count = choose.randrange(3, 7)
    source = "".join(f"__device__ int f{k}(const int* x, int n, int left);\n" for k in range(count))
    source += "typedef int (*function)(const int*, int, int);\nextern __device__ function table[];\n"
    for k in range(count):
        names = [f"v{j}" for j in range(choose.randrange(1, 12))]
        kind = choose.choice(["int", "unsigned", "long long", "unsigned short"])
        lines = [f"{kind} {name} = n * {choose.randrange(1, 99)} + {j};" for j, name in enumerate(names)]
        array = choose.random() < 0.5
        if array:
            lines.append("int a[12]; for (int j = 0; j < 12; j++) a[j] = x[(j * n) & 31];")
        step = "".join(f"{name} = {name} * 3 + {choose.choice(names)} + x[(j + n) & 31];" for name in names)
        step += "v0 += a[(j * 7 + n) % 12u];" if array else ""
        lines.append(f"for (int j = 0; j < (n * 5) % {choose.choice([7, 90])}u; j++) {{ {step} }}")
        call = choose.choice([f"f{choose.randrange(count)}", f"table[(n + left) % {count}u]"])
        many = choose.randrange(1, 3)
        lines.append(f"if (left > 0) for (int c = 0; c < {many}; c++) v0 += {call}(x, n + c, left - 1);")
        lines.append(f"return (int)({' ^ '.join(names)}{' ^ a[n % 12u]' if array else ''});")
        body = "\n    ".join(lines)
        source += f"__device__ __noinline__ int f{k}(const int* x, int n, int left) {{\n    {body}\n}}\n"
    source += f"__device__ function table[] = {{{', '.join(f'f{k}' for k in range(count))}}};\n"
    return source + KERNEL + f"for (int j = 0; j < 3; j++) out[i] += table[(i * 5 + j) % {count}](x, i + j, n); }}"


@pytest.mark.parametrize("seed", range(5))
def test_random_functions_by_pointer(seed: int) -> None:
    compare(random_functions(seed), 5)


def test_threads_that_end_in_a_function() -> None:
    compare(
        """
    __device__ __noinline__ int f(const int* x, int n, unsigned long long* out) {
        int s = 1;
        for (int j = 0; j < n; j++) { s = s * 3 + x[j & 31]; if (j == 60) { *out = s; asm volatile("exit;"); } }
        return s;
    }
    __device__ __noinline__ int g(const int* x, int n, unsigned long long* out) {
        long long s = 1;
        for (int j = 0; j < n; j++) s = s * 5 + f(x, j % 9, out);
        return (int)s;
    }
    """
        + KERNEL
        + "out[i] = (i & 1 ? f : g)(x, n + i, out + i); out[i] += g(x, i & 3, out + i); }",
        30,
    )


@pytest.mark.parametrize("options", ORDERS)
def test_lanes_meet_in_a_function_that_they_call_from_different_places(options: dict[str, Any]) -> None:
    kernel = gp.jit(
        """
    __device__ __noinline__ int total(int v, int n) {
        int s = v;
        for (int j = 0; j < n; j++) s = s * 3 + j;
        for (int k = 16; k > 0; k /= 2) s += __shfl_xor_sync(~0u, s, k);
        return s;
    }
    extern "C" __global__ void k(int* x) {
        int i = threadIdx.x;
        if (i % 3 == 0) x[i] = total(i, i * 9 % 100);
        else if (i % 3 == 1) x[i] = total(i, i * 5 % 90) + 1;
        else x[i] = total(i, 2) + 2;
    }""",
        **options,
    )
    x = gp.zeros(32, "int32")
    kernel(x, grid=1, block=32)
    total = 0
    for i in range(32):
        value = i
        for j in range([i * 9 % 100, i * 5 % 90, 2][i % 3]):
            value = (value * 3 + j) & 0xFFFFFFFF
        total += value
    want = (total + np.arange(32) % 3) & 0xFFFFFFFF
    np.testing.assert_array_equal(x.to_numpy(), want.astype(np.uint32).view(np.int32))
