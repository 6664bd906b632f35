"""Functions of the CPU device whose rows have the same bits alone and beside others."""

from __future__ import annotations

import numpy as np
import pytest

import pygpukit as gp


@pytest.fixture(autouse=True)
def on_the_cpu_device() -> object:
    with gp.device("cpu"):
        yield


def variant(*arrays: gp.GPUArray) -> str | None:
    return gp.explain(gp.matmul, *arrays).variant


@pytest.mark.parametrize(("n", "k"), [(70, 33), (64, 576), (3, 1), (1, 40)])
def test_rows_of_a_product_do_not_depend_on_each_other(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    x, w = (rng.standard_normal((m, k), dtype=np.float32) for m in (70, n))
    whole = gp.matmul(gp.from_numpy(x), gp.from_numpy(w).T).to_numpy()
    np.testing.assert_allclose(whole, x @ w.T, rtol=1e-4, atol=1e-4)
    bias = rng.standard_normal(n, dtype=np.float32)
    for rows in (slice(0, 1), slice(5, 7), slice(3, 70)):
        part, right = gp.from_numpy(x[rows]), gp.from_numpy(w).T
        np.testing.assert_array_equal(gp.matmul(part, right).to_numpy().view(np.uint32), whole[rows].view(np.uint32))
        with_bias = gp.matmul(part, right, bias=gp.from_numpy(bias)).to_numpy()
        np.testing.assert_array_equal(with_bias, whole[rows] + bias)
    strided = gp.from_numpy(np.concatenate((x, x), axis=1))[:, :k]
    np.testing.assert_array_equal(gp.matmul(strided, gp.from_numpy(w).T).to_numpy(), whole)


def test_other_products_are_left_to_numpy() -> None:
    x, w = gp.ones((4, 8)), gp.ones((6, 8))
    assert variant(x, w.T) == "row by row"
    assert variant(x, w.T.contiguous()) == variant(x.astype("float64"), w.astype("float64").T) == "NumPy"
    assert variant(gp.broadcast_to(x[:1], (4, 8)), w.T) == variant(x[::-1], w.T) == variant(x, w[::-1].T) == "NumPy"
    assert gp.matmul(x[::-1], w[::-1].T).tolist() == [[8.0] * 6] * 4
    assert variant(x[0], w.T) == variant(x.T.contiguous().T, w.T) == "NumPy"
    assert gp.explain(gp.matmul, x, w.T, bias=gp.ones(6)).variant == "row by row"
    for more in ({"activation": "relu"}, {"residual": gp.ones((4, 6))}):
        assert gp.explain(gp.matmul, x, w.T, **more).variant != "row by row"
    with gp.deterministic("run_to_run"):
        assert variant(x, w.T) == "NumPy"


def test_empty_sizes() -> None:
    assert gp.matmul(gp.ones((0, 8)), gp.ones((6, 8)).T).shape == (0, 6)
    assert gp.matmul(gp.ones((4, 0)), gp.ones((6, 0)).T).tolist() == [[0.0] * 6] * 4


def test_a_token_in_pages_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(1)
    cache = gp.from_numpy(rng.standard_normal((9, 3, 2, 4, 2, 24), dtype=np.float32))[:, 1]
    q = gp.from_numpy(rng.standard_normal((14, 6, 24), dtype=np.float32))
    table = gp.asarray([[4, 2, 7, 0], [1, 8, 3, 6]], "int32")

    def attend(rows: gp.GPUArray, which: list[int], lengths: list[int], starts: list[int], window: int) -> np.ndarray:
        sizes = (gp.asarray(values, "int32") for values in (lengths, starts))
        return gp.sdpa_paged(rows, cache, table[which[0] : which[-1] + 1], *sizes, window=window or None).to_numpy()

    for window in (0, 5):
        both = attend(q, [0, 1], [10, 13], [0, 5, 14], window)
        np.testing.assert_array_equal(attend(q[:5], [0], [10], [0, 5], window), both[:5])
        for i in range(9):
            np.testing.assert_array_equal(attend(q[5 + i : 6 + i], [1], [5 + i], [0, 1], window)[0], both[5 + i])
