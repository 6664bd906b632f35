"""The functions of the module's own generator."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.random.default import SHARED

random = gp.random


def test_a_seed_fixes_what_follows(device: str) -> None:
    random.seed(3)
    first = [random.rand(2, 3), random.randn(4), random.randint(0, 10, size=5), random.choice(5, 3, replace=False),
             random.normal(1.0, 2.0, (2, 2)), random.permutation(6)]  # fmt: skip
    rng = random.default_rng(3)
    again = [rng.random((2, 3)), rng.standard_normal(4), rng.integers(0, 10, 5), rng.choice(5, 3, replace=False),
             rng.normal(1.0, 2.0, (2, 2)), rng.permutation(6)]  # fmt: skip
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.to_numpy(), b.to_numpy())


def test_names_are_numpys() -> None:
    for name in SHARED:
        assert hasattr(np.random, name), name
        assert (getattr(random, name).__doc__ or "").startswith(f"`Generator.{name}`")
    assert {"seed", "rand", "randn", "randint", *SHARED} <= {*random.__all__}
    assert random.ranf is random.sample is random.random_sample
    assert random.rand().shape == ()
    assert random.randint(5, size=(2, 2)).dtype == "int64"
    with pytest.raises(ValueError, match="low"):
        random.randint(5, 5, size=1)


def test_shuffle_writes_in_place() -> None:
    x = gp.arange(10)
    random.shuffle(x)
    assert sorted(x.tolist()) == list(range(10))


def test_threads_share_the_generator() -> None:
    random.seed(1)
    drawn: list[list[float]] = []
    threads = [threading.Thread(target=lambda: drawn.append(random.rand(100).tolist())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(x) for x in drawn}) == 4
