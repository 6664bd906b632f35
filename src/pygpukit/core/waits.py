"""Waits on locks of Python that a signal ends, whenever it arrives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["wait_in_slices"]

# A signal that arrives between the interpreter's last check and the system call that blocks does not end that call.
_SLICE_SECONDS = 0.1


def wait_in_slices(wait: Callable[[float | None], bool], timeout: float | None = None) -> bool:
    """Wait, and let the main thread run signal handlers between slices of a tenth of a second.

    Parameters
    ----------
    wait : callable
        Takes seconds, or None for no limit, and says whether the wait is over.
    timeout : float, optional
        Seconds to wait at most.

    Returns
    -------
    bool
        What `wait` answered last.

    Examples
    --------
    >>> import threading
    >>> event = threading.Event()
    >>> wait_in_slices(event.wait, 0.001)
    False
    """
    if threading.current_thread() is not threading.main_thread():
        # Other threads run no signal handlers.
        return wait(timeout)
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_SECONDS if end is None else max(0.0, end - time.monotonic())
        if wait(min(left, _SLICE_SECONDS)):
            return True
        if end is not None and left <= _SLICE_SECONDS:
            return False
