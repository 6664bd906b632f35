"""What the programs of the memory tests begin with."""

from __future__ import annotations

PROLOGUE = """
import gc, os, signal, sys, threading, time
import numpy as np
import pygpukit as gp
from pygpukit import _pygpukit_rust as native

MIB = 1 << 20
N = MIB // 2  # 2 MiB of float32

def make(quota=6 * MIB, **more):
    return gp.memory.MemoryPool(quota=quota, enable_eviction=True, name="moving", **more)

def full(value, count=N):
    return gp.full(count, value, "float32")

def filled(pool, count):
    with pool:
        return [full(i) for i in range(count)]

def check(arrays, first=0):
    for i, array in enumerate(arrays):
        assert (array.to_numpy() == first + i).all(), i

def refused(call, kind=gp.OutOfMemoryError):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it was not refused")

def check_empty(pool):
    gc.collect()
    # Transfers that nobody waits for keep their arrays until they are over.
    for _ in range(2000):
        gp.synchronize()
        if not pool.stats()["live"]:
            break
        time.sleep(0.005)
    pool.trim()
    stats = pool.stats()
    left = {key: stats[key] for key in ("used", "live", "evicted", "reserved", "host_pageable")}
    assert not any(left.values()), left
"""
