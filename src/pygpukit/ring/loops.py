"""Event loops of our own: made with uvloop where it is installed, and run in a thread."""

from __future__ import annotations

import asyncio
import threading

__all__ = ["new_loop", "start_loop"]


# How long a task that is cancelled at the end may take.
_CANCEL_SECONDS = 5.0


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop that nobody runs yet."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def start_loop(loop: asyncio.AbstractEventLoop) -> threading.Thread:
    """Run a loop in a thread until it is stopped; it is closed then."""
    thread = threading.Thread(target=_run, args=(loop,), name="pygpukit-ring", daemon=True)
    thread.start()
    return thread


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        # Whoever waits for one of these elsewhere is told that it has ended.
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_CANCEL_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
