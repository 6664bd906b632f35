"""Execution contexts across await: a coroutine keeps its stream, pool and task whichever thread state it meets."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

from pygpukit import _pygpukit_rust as _native

__all__ = ["drive", "with_context"]

_T = TypeVar("_T")


class _Driven(Awaitable[_T]):
    """Steps an awaitable with its own context installed around each step."""

    def __init__(self, inner: Awaitable[_T], context: _native.ExecContext) -> None:
        self._inner = inner
        self._context = context

    def __await__(self) -> Generator[Any, Any, _T]:
        own: _native.ExecContext | None = self._context
        steps = self._inner.__await__()
        send: Any = None
        failure: BaseException | None = None
        while True:
            outside = _native.swap_context(own)
            try:
                waiting = next(steps) if send is None and failure is None else _resume(steps, send, failure)
            except StopIteration as done:
                result: _T = done.value
                return result
            finally:
                own = _native.swap_context(outside)
            send, failure = None, None
            try:
                send = yield waiting
            except BaseException as error:
                failure = error


def _resume(steps: Generator[Any, Any, Any], send: Any, failure: BaseException | None) -> Any:
    if failure is not None:
        return steps.throw(failure)
    return steps.send(send)


async def drive(awaitable: Awaitable[_T], context: _native.ExecContext) -> _T:
    """Await something with a context of its own around each step."""
    return await _Driven(awaitable, context)


async def with_context(awaitable: Awaitable[_T]) -> _T:
    """Await something so that ``with stream`` and ``with pool`` inside it stay inside it.

    The current stream, pool and capture belong to the thread. A coroutine that awaits inside ``with stream:`` would
    leave the stream set for whatever the event loop runs next; driven through this function it does not.

    Parameters
    ----------
    awaitable : awaitable
        Usually a coroutine.

    Returns
    -------
    object
        What the awaitable gives.

    Examples
    --------
    >>> import asyncio
    >>> async def work():
    ...     return 1
    >>> async def main():
    ...     return await with_context(work())
    >>> asyncio.run(main())
    1
    """
    return await _Driven(awaitable, _native.current_context())
