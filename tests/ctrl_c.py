"""Ctrl-C for programs of tests that wait in the native module."""

import os
import signal
import sys
import threading

__all__ = ["press_ctrl_c"]


def press_ctrl_c() -> None:
    """Send this process SIGINT when the main thread next gives up the GIL, as it does to wait in the native module."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Only then does another thread run.
    sys.setswitchinterval(1e6)
    ready = threading.Event()
    threading.Thread(target=lambda: (ready.wait(), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
    ready.set()
