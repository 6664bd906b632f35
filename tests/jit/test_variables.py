"""Variables in device memory, read from the source alone."""

from __future__ import annotations

import pytest

from pygpukit.jit.variables import Variable, parse_variables, shape_of

SOURCE = """
#define N 4
using real = double;
struct Pair { int a; __device__ int method(); static __device__ int inside; };
__device__ unsigned int counter = 7;
static __device__ volatile real sums[N][2 * N], *where;
namespace a { namespace b { __constant__ __align__(16) float taps[] = {1, 2, f(3)}; } }
extern "C" __device__ Pair pair;
extern "C" { alignas(8) __device__ long long big{3}; }
extern __device__ int elsewhere;
constexpr __device__ int table[SIZE + 1] = {5};
__device__ int helper(int x) { static __device__ int local; return x; }
template <class T> __device__ T generic;
__global__ void k(int* x) { __shared__ int tile[4]; }
__device__ int (*function)(int);
__managed__ short last;
"""


def test_what_is_found() -> None:
    found = {v.name: (v.code, v.dims, v.is_constant, v.line) for v in parse_variables(SOURCE)}
    assert found == {
        "counter": ("u32", (), False, 5),
        "sums": ("f64", (4, 8), False, 6),
        "where": ("u64", (), False, 6),
        "a::b::taps": ("f32", (None,), True, 7),
        "pair": (None, (), False, 8),
        "big": ("i64", (), False, 9),
        "table": ("i32", (None,), True, 11),
        "last": ("i16", (), False, 16),
    }


def test_macros_and_headers_count() -> None:
    [variable] = parse_variables('#include "v.h"\n', {"T": "short"}, {"v.h": "__device__ T x[2];"})
    assert (variable.name, variable.code, variable.dims) == ("x", "i16", (2,))


@pytest.mark.parametrize(
    ("dims", "count", "shape"),
    [((), 1, ()), ((2, 3), 6, (2, 3)), ((None, 3), 12, (4, 3)), ((None, None), 6, (6,)), ((2, 3), 7, (7,))],
)
def test_shapes(dims: tuple[int | None, ...], count: int, shape: tuple[int, ...]) -> None:
    assert shape_of(Variable("x", "f32", dims, False, 1), count) == shape


@pytest.mark.parametrize(
    ("text", "dim"), [("3*4u", 12), ("1 << 4", 16), ("(2+1)*2", 6), ("2-3", None), ("1<<60", None), ("f(2)", None)]
)
def test_numbers(text: str, dim: int | None) -> None:
    [variable] = parse_variables(f"__device__ int x[{text}];")
    assert variable.dims == (dim,)


@pytest.mark.parametrize(
    "text", ["__device__", "__device__ int x[", "__device__ int x = {", "extern __device__", "__constant__ ;"]
)
def test_cut_sources_end(text: str) -> None:
    assert parse_variables(text) == []
    assert parse_variables(text * 2000) is not None
