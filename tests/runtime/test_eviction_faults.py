"""Eviction on the fake driver when one of its calls fails: nothing is lost, and everything is given back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the fake driver is a Unix library"),
    pytest.mark.skipif("PYGPUKIT_STREAMS" in os.environ, reason="the fake driver has streams of its own"),
]

Run = Callable[..., str]

# How many calls of each kind fail, evenly spread; EVICTION_FAULTS=1000 makes every one of them fail.
FAULTS = os.environ.get("EVICTION_FAULTS", "8")

# Arrays of 2 MiB in room for three: every use moves others away. What an array holds is one number; when a call failed
# inside a write, it may be the one before or the one after.
SCENARIO = """
import gc, os

MIB = 1 << 20
errors = []

def attempt(call):
    try:
        return call(), True
    except (gp.GPUKitError, ValueError, MemoryError) as error:
        assert str(error), repr(error)
        errors.append(str(error))
        return None, False

def scenario(quota, prepare=lambda: None):
    pool = gp.memory.MemoryPool(quota=quota, enable_eviction=True, name="moving")
    streams = [gp.Stream() for _ in range(2)]
    arrays, allowed = [], []
    errors.clear()
    prepare()
    with pool:
        for i in range(5):
            array, worked = attempt(lambda: gp.full(MIB // 2, i, "float32"))
            if worked:
                arrays.append(array)
                allowed.append({float(i)})
        small, worked = attempt(lambda: gp.full(1000, 77, "float32"))
        if worked:
            arrays.append(small)
            allowed.append({77.0})
        for turn in range(2):
            for i, array in enumerate(arrays):
                value = float(100 * turn + 10 + i)
                with streams[0]:
                    _, worked = attempt(lambda: array.fill(value))
                allowed[i] = {value} if worked else allowed[i] | {value}
            attempt(gp.synchronize)
            for i, array in enumerate(arrays[:2]):
                attempt(array.evict)
                attempt(array.prefetch)
            if quota is not None:
                assert pool.used <= quota, (pool.used, quota)
    configure("FAIL", "")
    assert len(errors) <= 1, errors
    gp.synchronize()
    for i, array in enumerate(arrays):
        found = array.to_numpy()
        assert (found == found[0]).all() and found[0] in allowed[i], (i, found, allowed[i])
    addresses = [array.ptr for array in arrays[:2]]
    assert len(set(addresses)) == len(addresses)
    arrays.clear()
    array = small = _ = None
    gc.collect()
    gp.synchronize()
    pool.trim()
    stats = pool.stats()
    left = {key: stats[key] for key in ("used", "live", "evicted", "reserved", "cached", "host_pageable")}
    assert not any(left.values()), left
    pool.close()

def give_back():
    gp.memory.trim()
    gp.memory.trim_pinned()
    gc.collect()

def failing(quota, *calls):
    scenario(quota)
    give_back()
    start = gp.current_device().memory_info()
    before = {call: count(call) for call in calls}
    scenario(quota)
    give_back()
    made = {call: count(call) - before[call] for call in calls}
    assert gp.current_device().memory_info() == start, "without a failure everything is given back"
    for call in calls:
        times = made[call]
        for at, nth in enumerate(range(1, times + 1, max(1, times // int(os.environ["EVICTION_FAULTS"])))):
            # No memory and an invalid value in turn; both where every call fails.
            for code in (2, 1) if os.environ["EVICTION_FAULTS"] == "1000" else ((2, 1)[at % 2],):
                try:
                    scenario(quota, lambda: configure("FAIL", f"{call}:{nth}:{code}"))
                    give_back()
                    assert gp.current_device().memory_info() == start, (start, gp.current_device().memory_info())
                except BaseException as error:
                    error.add_note(f"with {call}:{nth}:{code} (of {times}), quota {quota}")
                    raise
    assert all(made.values()), made
"""


CALLS = {
    "memory": ["cuMemCreate", "cuMemMap", "cuMemSetAccess"],
    "taking": ["cuMemUnmap", "cuMemRelease"],
    "host": ["cuMemHostAlloc"],
    "copies": ["cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemsetD32Async"],
    "order": ["cuEventRecord", "cuStreamWaitEvent"],
    "questions": ["cuEventQuery"],
}


@pytest.mark.parametrize("lazy", [0, 3])
@pytest.mark.parametrize("calls", CALLS)
def test_any_driver_call_may_fail_while_memory_moves(run_fake: Run, calls: str, lazy: int) -> None:
    run_fake(SCENARIO + f"failing(7 * MIB, *{CALLS[calls]})", lazy=lazy, EVICTION_FAULTS=FAULTS)


@pytest.mark.parametrize("calls", ["memory", "taking", "copies"])
def test_any_driver_call_may_fail_while_the_device_is_full(run_fake: Run, calls: str) -> None:
    run_fake(SCENARIO + f"failing(None, *{CALLS[calls]})", memory=8 << 20, EVICTION_FAULTS=FAULTS)
