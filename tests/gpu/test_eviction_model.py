"""Random programs over evictable arrays agree with NumPy, on every device.

EVICTION_SEEDS=N runs the programs of the first N seeds instead of a few; a failure says how to repeat it alone.
"""

from __future__ import annotations

import os

import pytest
from eviction_model import run
from eviction_stress import in_threads

import pygpukit as gp

SEEDS = range(int(os.environ.get("EVICTION_SEEDS", "5")))

pytestmark = pytest.mark.pool


@pytest.mark.parametrize("seed", SEEDS)
def test_programs_agree_with_numpy(device: gp.Device, seed: int) -> None:
    run(seed, 120)


@pytest.mark.parametrize("seed", SEEDS[: max(1, len(SEEDS) // 5)])
def test_programs_in_threads_share_their_pools(device: gp.Device, seed: int) -> None:
    for error in in_threads(seed, 60, 3):
        raise error
