"""A request to an engine: what its caller holds while the reply comes about."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import queue
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from pygpukit.llm import callbacks
from pygpukit.llm.outputs import Piece, RequestOutput
from pygpukit.llm.tenants import Tenant

if TYPE_CHECKING:
    from pygpukit.llm.engine import LLM

__all__ = ["ChatOptions", "Request", "RequestOptions"]

# How often a thread that waits sees whether Ctrl-C was pressed: the signal may have come to another thread, or just
# before the wait began, and does not end it then.
_POLL_SECONDS = 0.1


class RequestOptions(TypedDict, total=False):
    """What all requests take beside a prompt and parameters; `LLM.submit` says what it means."""

    tenant: str | None
    priority: int
    cache_salt: str | None


class ChatOptions(RequestOptions, total=False):
    """What requests for the reply to a conversation take; `LLM.chat` says what it means."""

    tools: Any
    template_kwargs: Mapping[str, Any] | None
    continue_final: bool


class Request:
    """A request that `LLM.submit` made; ``await request`` is `result` in a coroutine.

    Attributes
    ----------
    prompt_token_ids : list of int
    tenant : Tenant
    priority : int
        Higher ones go first among requests of one policy.
    """

    def __init__(
        self, prompt: list[int], count: int, tenant: Tenant, priority: int, wake: Callable[[Any], None]
    ) -> None:
        self.prompt_token_ids, self.tenant, self.priority = prompt, tenant, priority
        self._wake = wake
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._pieces: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        self._callbacks: list[Callable[[], None]] = []
        self._outputs: dict[int, RequestOutput] = {}
        self._count = count
        # Whose thread computes it: kept while it runs, so that an engine without another name is not ended.
        self.engine: LLM | None = None
        self._error: BaseException | None = None
        self._cancelled = self._taken = False
        self._state, self._reason = "waiting", "it has just come"

    @property
    def state(self) -> str:
        """``"waiting"``, ``"running"``, ``"finished"``, ``"cancelled"`` or ``"failed"``."""
        return self._state

    @property
    def reason(self) -> str:
        """Why it waits, or how it ended."""
        return self._reason

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether it was asked to end."""
        return self._cancelled

    def cancel(self) -> None:
        """End the reply; its pages are free within a step. What there is of it remains the result."""
        if self.done:
            return
        self._cancelled = True
        self._wake(self)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the end and return the reply.

        Raises
        ------
        TimeoutError
            If it takes longer than `timeout` seconds; the request goes on.
        Exception
            What made the request fail.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"the request has not ended in {timeout} seconds: it is {self._state} ({self._reason})")
        if self._error is not None:
            raise self._error
        return self.output()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; False if it takes longer than `timeout` seconds."""
        if timeout is None and (engine := self.engine) is not None:
            engine._check_thread()
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._done.wait(max(0.0, min(_POLL_SECONDS, end - time.monotonic()))):
            if time.monotonic() >= end:
                return self.done
        return True

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have a function called now, and in the engine's thread whenever there is a piece or the end.

        All replies of the engine wait for it, so it should do little: note the time, or wake another thread. One that
        raises there is not called again.
        """
        with self._lock:
            self._callbacks.append(callback)
        callback()

    async def ended(self) -> None:
        """Wait for the end in a coroutine."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if self.done:
                _soon(loop, lambda: None if ended.done() else ended.set_result(None))

        self.on_change(end)
        await ended

    def output(self) -> RequestOutput:
        """Return the reply of a request that has ended, a failed one with the reason ``"error"``."""
        if not self.done:
            raise ValueError(f"the request has not ended: it is {self._state} ({self._reason})")
        every = [self._outputs[index] for index in sorted(self._outputs)]
        return dataclasses.replace(every[0], outputs=every)

    def pieces(self) -> Iterator[Piece]:
        """Return an iterator of the pieces of the first reply as they appear; it can be used once."""
        self._take()
        while (piece := self._next()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    async def apieces(self) -> AsyncGenerator[Piece, None]:
        """Return an asynchronous iterator of the pieces of the first reply as they appear; it can be used once."""
        self._take()
        more, loop = asyncio.Event(), asyncio.get_running_loop()
        self.on_change(lambda: _soon(loop, more.set))
        while True:
            more.clear()
            while not self._pieces.empty():
                piece = self._pieces.get_nowait()
                if piece is None:
                    return
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
            await more.wait()

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        yield from self.ended().__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Request of {len(self.prompt_token_ids)} tokens, {self._state}: {self._reason}>"

    def _next(self) -> Piece | BaseException | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._pieces.get(timeout=_POLL_SECONDS)

    def _take(self) -> None:
        """Pieces are passed on once: a second reader would wait for ever."""
        with self._lock:
            if self._taken:
                raise ValueError("the pieces of a request can be read once; output() has all of its reply")
            self._taken = True

    # What follows is called by the engine.

    def waits(self, reason: str) -> None:
        """Note why it waits."""
        if not self.done:
            self._state, self._reason = "waiting", reason

    def runs(self) -> None:
        """Note that it runs."""
        if not self.done:
            self._state, self._reason = "running", "its tokens are computed"

    def put(self, index: int, piece: Piece) -> None:
        """Pass on a piece of one of its replies."""
        if self.done:
            # It was abandoned.
            return
        if index == 0:
            self._pieces.put(piece)
        if piece.output is not None:
            self._outputs[index] = piece.output
            if len(self._outputs) == self._count:
                self._end()
                return
        self._tell()

    def fail(self, error: BaseException, outputs: Mapping[int, RequestOutput | None]) -> None:
        """End it with an error, and what there is of its replies."""
        if not self.done:
            self._error = error
            self._outputs |= {index: output for index, output in outputs.items() if output is not None}
            self._pieces.put(error)
        self._end()

    def abandon(self, error: BaseException, outputs: Mapping[int, RequestOutput | None]) -> None:
        """End it with an error from another thread, while the engine's does not come back from a function."""
        # That function may be one of these.
        given, self._callbacks = self._callbacks, []
        self.fail(error, outputs)
        for callback in given:
            threading.Thread(target=callback, name="pygpukit-llm-end", daemon=True).start()

    def _end(self) -> None:
        if self.done:
            return
        reasons = {output.finish_reason for output in self._outputs.values()}
        if self._error is not None:
            self._state, self._reason = "failed", f"{type(self._error).__name__}: {self._error}"
        elif "cancelled" in reasons:
            self._state, self._reason = "cancelled", "it was cancelled"
        else:
            self._state, self._reason = "finished", ", ".join(sorted(reasons))
        self._pieces.put(None)
        # Who keeps a finished request keeps no engine.
        self.engine, self._wake = None, _nothing
        self._done.set()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            given = list(self._callbacks)
        for callback in given:
            try:
                callbacks.call("function of on_change", callback)
            except BaseException as error:
                # The thread is that of all replies.
                with self._lock:
                    self._callbacks = [other for other in self._callbacks if other is not callback]
                warnings.warn(
                    f"a function of on_change raised {error!r:.200}, and is not called again",
                    RuntimeWarning, stacklevel=2,
                )  # fmt: skip


def _nothing(request: Request) -> None:
    pass


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    """Call in the thread of an event loop, unless that is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
