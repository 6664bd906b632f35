"""Math functions of CUDA on the CPU device, against NumPy in double precision and the bounds CUDA documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc

Array = np.ndarray


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    with gp.device("cpu"):
        yield


def operands(dtype: type, n: int = 3000) -> tuple[Array, Array]:
    """Values of all magnitudes that functions do not overflow on, with zeros and ties."""
    rng = np.random.default_rng(7)
    x = np.ldexp(rng.uniform(-1, 1, n), rng.integers(-20, 7, n))
    y = np.ldexp(rng.uniform(-1, 1, n), rng.integers(-20, 4, n))
    x[:8] = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 1.0, -1.0]
    y[:4] = [1.0, -1.0, 2.0, -2.0]
    return x.astype(dtype), y.astype(dtype)


def run(expression: str, x: Array, y: Array, *options: str) -> Array:
    """The value of a C expression of x and y for each element."""
    ctype = "float" if x.dtype == np.float32 else "double"
    kernel = gp.jit(
        f"""extern "C" __global__ void k({ctype}* out, const {ctype}* a, const {ctype}* b, int n) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {{ {ctype} x = a[i], y = b[i]; out[i] = {expression}; }} }}""",
        options=options,
    )
    out = gp.zeros(x.size, x.dtype)
    kernel(out, gp.from_numpy(x), gp.from_numpy(y), x.size, grid=(x.size + 127) // 128, block=128)
    return out.to_numpy()


def ulps(got: Array, want: Array) -> float:
    """The largest error in units of the last place of the result's type."""
    want = np.asarray(want, np.longdouble)
    with np.errstate(over="ignore"):
        rounded = want.astype(got.dtype)
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    np.testing.assert_array_equal(got[special], rounded[special])
    error = np.abs(got[~special].astype(np.longdouble) - want[~special])
    return float(np.max(error / np.spacing(np.abs(rounded[~special])), initial=0.0))


def erf(x: Array) -> Array:
    from math import erf as of_one

    return np.array([of_one(value) for value in x])


SINGLE: list[tuple[str, Callable[[Array, Array], Array], float]] = [
    ("expf(x)", lambda x, y: np.exp(x), 1.0),
    ("exp2f(x)", lambda x, y: np.exp2(x), 2.0),
    ("logf(fabsf(x))", lambda x, y: np.log(np.abs(x)), 1.0),
    ("log2f(fabsf(x))", lambda x, y: np.log2(np.abs(x)), 1.0),
    ("sinf(x)", lambda x, y: np.sin(x), 2.0),
    ("cosf(x)", lambda x, y: np.cos(x), 2.0),
    ("tanhf(x)", lambda x, y: np.tanh(x), 2.0),
    ("erff(x)", lambda x, y: erf(x), 2.0),
    ("powf(fabsf(x), y)", lambda x, y: np.abs(x) ** y, 4.0),
    ("atan2f(x, y)", lambda x, y: np.arctan2(x, y), 3.0),
    ("rsqrtf(fabsf(y))", lambda x, y: 1 / np.sqrt(np.abs(y)), 2.0),
    ("x / y", lambda x, y: x / y, 0.5),
    ("1.0f / y", lambda x, y: 1 / y, 0.5),
    ("sqrtf(fabsf(x))", lambda x, y: np.sqrt(np.abs(x)), 0.5),
    ("fmodf(x, y)", lambda x, y: np.fmod(x, y), 0.0),
    ("rintf(x)", lambda x, y: np.rint(x), 0.0),
    ("floorf(x)", lambda x, y: np.floor(x), 0.0),
    ("ceilf(x)", lambda x, y: np.ceil(x), 0.0),
    ("truncf(x)", lambda x, y: np.trunc(x), 0.0),
    ("fmaxf(x, y)", lambda x, y: np.fmax(x, y), 0.0),
    ("(float)(int)x", lambda x, y: np.trunc(x), 0.0),
    ("x < y ? 1.0f : x != y ? 2.0f : 3.0f", lambda x, y: np.where(x < y, 1, np.where(x != y, 2, 3)), 0.0),
]


@pytest.mark.parametrize(("expression", "reference", "bound"), SINGLE, ids=[case[0] for case in SINGLE])
def test_single_precision(expression: str, reference: Callable[[Array, Array], Array], bound: float) -> None:
    x, y = operands(np.float32)
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64), y.astype(np.float64))
    # Half an ulp more for functions that are not exact: NumPy's own last bit, and the end of a binade.
    assert ulps(run(expression, x, y), want) <= (bound if bound <= 0.5 else bound + 0.5)


DOUBLE: list[tuple[str, Callable[[Array, Array], Array], float]] = [
    ("exp(x)", lambda x, y: np.exp(x), 1.0),
    ("log(fabs(x))", lambda x, y: np.log(np.abs(x)), 1.0),
    ("sin(x)", lambda x, y: np.sin(x), 2.0),
    ("tanh(x)", lambda x, y: np.tanh(x), 1.0),
    ("pow(fabs(x), y)", lambda x, y: np.abs(x) ** y, 2.0),
    ("cbrt(x)", lambda x, y: np.cbrt(x), 1.0),
    ("x / y", lambda x, y: x / y, 0.5),
    ("sqrt(fabs(x))", lambda x, y: np.sqrt(np.abs(x)), 0.5),
    ("round(x)", lambda x, y: np.trunc(x + np.copysign(0.5, x)), 0.0),
    ("fma(x, y, -1.0)", lambda x, y: x * y - 1, 0.5),
]


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs a format wider than double for the reference")
@pytest.mark.parametrize(("expression", "reference", "bound"), DOUBLE, ids=[case[0] for case in DOUBLE])
def test_double_precision(expression: str, reference: Callable[[Array, Array], Array], bound: float) -> None:
    x, y = operands(np.float64)
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.longdouble), y.astype(np.longdouble))
    # A quotient or a root rounded from the wider format may be off by the last bit of that format.
    assert ulps(run(expression, x, y), want) <= bound * 1.001 + (0.5 if bound > 0.5 else 0.0)


@pytest.mark.parametrize(
    ("expression", "reference"),
    [
        ("expf(x) + x * y", lambda x, y: np.exp(x) + x * y),
        ("sinf(x) * cosf(y)", lambda x, y: np.sin(x) * np.cos(y)),
        ("x / y", lambda x, y: x / y),
        ("sqrtf(fabsf(x)) + tanhf(y)", lambda x, y: np.sqrt(np.abs(x)) + np.tanh(y)),
        ("powf(fabsf(x) + 1.0f, y)", lambda x, y: (np.abs(x) + 1) ** y),
    ],
)
def test_fast_math(expression: str, reference: Callable[[Array, Array], Array]) -> None:
    x, y = operands(np.float32)
    got = run(expression, x, y, "--use_fast_math")
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=3e-4, atol=3e-6)


def test_half_precision_is_numpys() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    other = np.random.default_rng(3).permutation(bits)
    kernel = gp.jit("""
    extern "C" __global__ void k(unsigned short* sum, unsigned short* product, float* wide, unsigned short* narrow,
                                 const unsigned short* a, const unsigned short* b, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        asm("add.f16 %0, %1, %2;" : "=h"(sum[i]) : "h"(a[i]), "h"(b[i]));
        asm("mul.f16 %0, %1, %2;" : "=h"(product[i]) : "h"(a[i]), "h"(b[i]));
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide[i]) : "h"(a[i]));
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow[i]) : "f"(wide[i] * 1.37f));
    }
    """)
    n = bits.size
    out = [gp.zeros(n, dtype) for dtype in ("uint16", "uint16", "float32", "uint16")]
    kernel(*out, gp.from_numpy(bits), gp.from_numpy(other), n, grid=n // 256, block=256)
    a, b = bits.view(np.float16), other.view(np.float16)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float32)
        want = [a + b, a * b, wide, (wide * np.float32(1.37)).astype(np.float16)]
    for got, expected in zip(out, want, strict=True):
        np.testing.assert_array_equal(got.to_numpy().view(expected.dtype), expected)
