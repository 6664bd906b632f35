"""Makes the shared actors importable; Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Call a function that waits, and press Ctrl-C in a moment."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    me = threading.get_ident()

    def press(waits: Callable[[], object]) -> None:
        threading.Timer(0.05, signal.pthread_kill, (me, signal.SIGINT)).start()
        waits()

    yield press
    signal.signal(signal.SIGINT, before)
