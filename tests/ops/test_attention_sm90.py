"""Attention by wgmma: the bits of the kernels for SM 80, under the emulator's checks or on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit.jit.compiler import compile_image
from pygpukit.ops.attention import sm90 as sm90_kernels
from pygpukit.ops.registry import OPERATORS, load, register
from pygpukit.ops.source import headers

pytestmark = pytest.mark.nvrtc


@pytest.fixture(scope="module")
def by() -> Iterator[Callable[[str, str], Callable[..., gp.GPUArray]]]:
    """An operator by one of its variants."""
    made: dict[tuple[str, str], Callable[..., gp.GPUArray]] = {}

    def one(name: str, variant: str) -> Callable[..., gp.GPUArray]:
        if (name, variant) not in made:
            operator = load()[name]
            (chosen,) = (v for v in operator.variants if v.name == variant)
            made[name, variant] = register(
                dataclasses.replace(
                    operator, name=f"test_{name}_{len(made)}", variants=(chosen,), cases=(), public=False
                )
            )
        return made[name, variant]

    yield one
    for i, (name, _) in enumerate(made):
        del OPERATORS[f"test_{name}_{i}"]


def normal(*shape: int, seed: int = 0, dtype: str = "bfloat16") -> op_cases.Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(gp.to_numpy_dtype(dtype))


def bits(x: gp.GPUArray) -> op_cases.Array:
    return x.to_numpy().view(np.uint16)


@pytest.mark.parametrize(
    ("heads", "tokens", "keys", "dim", "options"),
    [
        ((1, 1), 150, 300, 64, {}),
        ((4, 2), 70, 150, 64, {"causal": True}),
        ((4, 1), 80, 300, 128, {"causal": True, "window": 150}),
        ((1, 1), 300, 300, 80, {"causal": True, "window": 20, "scale": 0.3}),
        ((2, 1), 40, 1, 128, {}),
        ((2, 2), 70, 140, 64, {"causal": True, "softcap": 2.0}),
    ],
)
def test_dense_keys(
    heads: tuple[int, int],
    tokens: int,
    keys: int,
    dim: int,
    options: dict[str, Any],
    sm90: gp.Device,
    by: Callable[[str, str], Callable[..., gp.GPUArray]],
) -> None:
    q, k, v = (gp.from_numpy(normal(h, n, dim, seed=n + h)) for h, n in ((heads[0], tokens), *[(heads[1], keys)] * 2))
    assert gp.explain(gp.sdpa, q, k, v, **options).variant == "wgmma"
    got, want = (by("sdpa", name)(q, k, v, **options) for name in ("wgmma", "tensor cores"))
    np.testing.assert_array_equal(bits(got), bits(want))


def test_batches_with_lengths_on_the_device(
    sm90: gp.Device, by: Callable[[str, str], Callable[..., gp.GPUArray]]
) -> None:
    q = gp.from_numpy(normal(3, 2, 70, 64, dtype="float16"))
    k, v = (normal(3, 2, 200, 64, seed=s, dtype="float16") for s in (1, 2))
    lengths = [130, 200, 0]
    for b, n in enumerate(lengths):
        k[b, :, n:], v[b, :, n:] = np.nan, np.nan
    arrays = (q, gp.from_numpy(k), gp.from_numpy(v))
    got, want = (
        by("sdpa", name)(*arrays, causal=True, lengths=gp.asarray(lengths, "int32"))
        for name in ("wgmma", "tensor cores")
    )
    np.testing.assert_array_equal(bits(got), bits(want))
    assert not np.isnan(got.to_numpy().astype(np.float32)).any()
    assert not got.to_numpy()[2].astype(np.float32).any()


@pytest.mark.parametrize(("page_tokens", "dim"), [(16, 128), (8, 64)])
def test_paged_keys(
    page_tokens: int, dim: int, sm90: gp.Device, by: Callable[[str, str], Callable[..., gp.GPUArray]]
) -> None:
    lengths, takes = [150, 3, 260], [100, 3, 1]
    pages = sum(-(-n // page_tokens) for n in lengths)
    cache = normal(pages + 2, 3, 2, page_tokens, 2, dim)
    order = np.random.default_rng(1).permutation(pages + 2)
    table, at = np.full((3, -(-max(lengths) // page_tokens)), -1, np.int32), 0
    for s, n in enumerate(lengths):
        count = -(-n // page_tokens)
        table[s, :count] = order[at : at + count]
        at += count
        # Places behind a sequence's end.
        cache[order[at - 1], :, :, n - (count - 1) * page_tokens :] = np.nan
    starts = np.concatenate([[0], np.cumsum(takes)]).astype(np.int32)
    q = gp.from_numpy(normal(int(starts[-1]) + 5, 4, dim))
    given = (gp.from_numpy(cache)[:, 1], *map(gp.from_numpy, (table, np.asarray(lengths, np.int32), starts)))
    assert gp.explain(gp.sdpa_paged, q, *given).variant == "wgmma"
    got, want = (by("sdpa_paged", name)(q, *given, window=200) for name in ("wgmma", "tensor cores"))
    np.testing.assert_array_equal(bits(got), bits(want))
    assert not np.isnan(got.to_numpy().astype(np.float32)).any()


@pytest.mark.parametrize("page_tokens", [0, 16])
def test_compilers_do_not_serialise_the_products(page_tokens: int) -> None:
    """ptxas says in its log where it waits for wgmma by itself, or ignores setmaxnreg; a spoiled kernel shows that."""
    unit = sm90_kernels.unit(gp.bfloat16, 128, page_tokens)

    def log_of(source: str, name: str) -> str:
        return compile_image(source, name=name, arch="90a", options=["-Xptxas=-v"], headers=headers()).log

    log = log_of(unit.source, unit.name)
    assert "C75" not in log, log
    assert "0 bytes spill stores, 0 bytes spill loads" in log, log
    if page_tokens == 0:
        early = unit.source.replace("multiply_keys(stage);", "multiply_keys(stage); score[0] += 1.0f;")
        assert "C75" in log_of(early, "spoiled")
