"""Runtimes with a worker process, and what tests do to that process."""

from __future__ import annotations

import os
import signal
from typing import Any

from pygpukit.ring import RingKernelRuntime

# Writes where nothing is, with number 13. A GPU notices that a moment later, and would let the answer go out before.
WILD = """
    if (in.value == 13) {
        *(volatile int*)16 = 1;
        unsigned long long began = ctx.time();
        while (ctx.time() - began < 200000000);
    }
    if (ctx.lane == 0) { out = in; state.count += 1; }
    ctx.send(out);
"""


def isolated(**options: Any) -> RingKernelRuntime:
    return RingKernelRuntime(isolation="process", **options)


def pid_of(runtime: RingKernelRuntime) -> int:
    pid = runtime._tier.ring.pid  # type: ignore[union-attr]
    assert pid is not None
    return pid


def kill(runtime: RingKernelRuntime) -> None:
    os.kill(pid_of(runtime), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
