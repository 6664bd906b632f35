"""The pass that ends a library's product: its kernel on sums that stand in for the library's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.gemm import epilogue, library
from pygpukit.ops.gemm.reference import reference
from pygpukit.ops.launch import Launch, Product
from pygpukit.ops.problem import Problem
from pygpukit.ops.registry import OPERATORS, Operator, Parameter, Variant, load, register
from pygpukit.ops.size import hint

pytestmark = pytest.mark.nvrtc


def _launch(p: Problem) -> Launch:
    """The pass as it is planned beside the library's step, with the sums of an array in the place of workspace."""
    made = library._launch_finished(p)
    first, finish = made.launches
    assert isinstance(first, Product)
    assert not isinstance(finish, Product)
    assert [hint(n) for n in first.out.shape] == [hint(n) for n in p["sums"].shape]
    _, sums, *others = finish.arguments
    assert sums.tensor is first.out  # type: ignore[union-attr]
    given = sums._replace(tensor=p["sums"])  # type: ignore[union-attr]
    return Launch((finish._replace(arguments=(finish.arguments[0], given, *others)),))


@pytest.fixture
def finish() -> Iterator[Any]:
    matmul = load()["matmul"]
    operator = Operator(
        name="test_finish",
        parameters=(*matmul.parameters, Parameter("sums", "optional", None, True)),
        infer=matmul.infer,
        reference=matmul.reference,
        variants=(Variant("the pass alone", "batch_invariant", library._lies_without_out, launch=_launch),),
        doc="For this test.",
        public=False,
    )
    try:
        yield register(operator)
    finally:
        del OPERATORS["test_finish"]


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("n", [8, 13, 40])
def test_sums_get_the_epilogue_of_our_kernels(finish: Any, kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    to = gp.to_numpy_dtype(kind)
    a, b, bias, residual = (rng.standard_normal(s).astype(to) for s in ((2, 3, 5, 16), (16, n), (n,), (2, 3, 5, n)))
    with gp.device("emulated"):
        x, y, c, r = (gp.from_numpy(v) for v in (a, b, bias, residual))
        total = gp.matmul(x, y, out=gp.empty((2, 3, 5, n), "float32")).to_numpy().reshape(6, 5, n)
        width = -(-n // 8) * 8
        sums = gp.from_numpy(np.pad(total, ((0, 0), (0, 0), (0, width - n)), constant_values=np.nan))
        for activation in epilogue.ACTIVATIONS:
            want = gp.matmul(x, y, bias=c, activation=activation, residual=r).to_numpy()
            got = finish(x, y, bias=c, activation=activation, residual=r, sums=sums).to_numpy()
            assert got.tobytes() == want.tobytes(), activation
        turned = gp.zeros((2, 3, n, 5), kind)
        finish(x, y, activation="relu", sums=sums, out=turned.mT)
        np.testing.assert_array_equal(turned.mT.to_numpy(), gp.matmul(x, y, activation="relu").to_numpy())
    np.testing.assert_allclose(
        want.astype("f8"), reference(a, b, None, bias, activation, residual).astype("f8"), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("steps", [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_sums_of_float8_are_scaled_first(finish: Any, steps: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    m, n, k = 5, 16, 32
    a, b = (rng.standard_normal(s).astype(gp.to_numpy_dtype("float8_e4m3fn")) for s in ((m, k), (k, n)))
    total = a.astype(np.float32) @ b.astype(np.float32)
    bias = rng.standard_normal(n).astype(gp.to_numpy_dtype("bfloat16"))
    rows, columns = (
        rng.random(size if step else 1).astype(np.float32) for size, step in zip((m, n), steps, strict=True)
    )
    want = np.maximum(total * rows[:, None] * columns + bias.astype(np.float32), 0).astype(bias.dtype)
    with gp.device("emulated"):
        x, y, c, sums = (gp.from_numpy(v) for v in (a, b, bias, total[None]))
        scales = {"scale_a": gp.from_numpy(rows), "scale_b": gp.from_numpy(columns)}
        got = finish(x, y, precision="fp8", bias=c, activation="relu", sums=sums, **scales)
        np.testing.assert_array_equal(got.to_numpy().view(np.uint16), want.view(np.uint16))
        alone = finish(x, y, precision="fp8", sums=sums, scale_b=scales["scale_b"], out=gp.empty((m, n), "float32"))
        np.testing.assert_array_equal(alone.to_numpy(), total * columns)
