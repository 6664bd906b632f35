"""Actors on the host: coroutines in the runtime's event loop, and threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import MessageBase, RingQueue
from pygpukit.errors import MessageError, RingError
from pygpukit.ring.actor import Actor
from pygpukit.ring.context import ActorExit, CoroutineContext, KernelContext, ThreadContext
from pygpukit.ring.delivery import check_outcome, ended_error
from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.kinds import brief
from pygpukit.ring.limits import end_of, left_of
from pygpukit.ring.message import require_fixed
from pygpukit.ring.post import Post
from pygpukit.ring.states import KernelState
from pygpukit.ring.telemetry import KernelTelemetry, Latency
from pygpukit.ring.topics import Topics
from pygpukit.ring.waiting import ACCEPTED, UNBOUNDED, called, in_turn, woken

__all__ = ["CoroutineActor", "HostActor", "ThreadActor"]

_log = logging.getLogger("pygpukit.ring")


class HostActor:
    """What coroutines and threads have in common: mailboxes, states, supervision, figures.

    Parameters
    ----------
    kernel : RingKernel
        What it runs.
    post : Post
        The runtime's calls and dead letters.
    topics : Topics
        The runtime's topics.
    find : callable
        Gives the actor of an id, or None.
    escalate : callable
        Told when an actor that escalates has failed.
    """

    def __init__(
        self,
        kernel: RingKernel,
        post: Post,
        topics: Topics,
        find: Callable[[str], Actor | None],
        escalate: Callable[[str, BaseException], None],
    ) -> None:
        self.kernel = kernel
        self.post = post
        self.topics = topics
        self.find = find
        self._escalate = escalate
        # A bound method of this object would keep it alive through the native mailbox.
        dead = functools.partial(post.dead, kernel.kernel_id)
        policy = kernel.backpressure.value
        self.inbox = RingQueue(kernel.input_queue_size, policy, dead, measured=True)
        self.outbox = RingQueue(kernel.output_queue_size, policy, dead)
        self.state = KernelState.CREATED
        self.error: BaseException | None = None
        self.restarts = 0
        self.idle_restarts = 0
        self.answered = 0
        self.forwarded = 0
        self._crashes: deque[float] = deque()
        self._lock = threading.Lock()
        # Held while it is activated or deactivated: one that gives up must not resume what another one paused.
        self._orders = asyncio.Lock()
        self._launched_at = self._ended_at = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Future[None]

    async def launch(self) -> None:
        """Start the function; its messages are held back."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._launched_at = time.monotonic()
        self.inbox.pause()
        self.state = KernelState.LAUNCHED
        self._start()

    async def activate(self) -> None:
        """Deliver its messages."""
        async with self._orders:
            if self._move(KernelState.ACTIVE):
                self.inbox.resume()

    async def deactivate(self, timeout: float | None, wait: bool = True) -> None:
        """Hold its messages back, and wait until it comes for one."""
        until = end_of(timeout)
        if not wait:
            async with self._orders:
                if self._move(KernelState.DEACTIVATED):
                    self.inbox.pause()
            return
        is_still = False
        if await in_turn(self._orders, until):
            try:
                # Whoever had the turn before may have done it.
                is_still = self.state is KernelState.DEACTIVATED or await self._stand_still(until)
            finally:
                self._orders.release()
        if not is_still:
            raise TimeoutError(
                f"{self.kernel.kernel_id!r} did not come to ctx.receive() or ctx.wait_active() within {timeout} s; "
                "it is active as before"
            )

    async def _stand_still(self, until: float | None) -> bool:
        is_still = False
        self.inbox.pause()
        try:
            is_still = await woken(self.inbox, self.inbox.await_parked, until)
        finally:
            # Also when whoever waits is cancelled.
            if not is_still:
                self.inbox.resume()
        if is_still and not self._move(KernelState.DEACTIVATED):
            raise RingError(f"{self.kernel.kernel_id!r} became {self.state.name} while it was to be deactivated")
        return is_still

    async def terminate(self, drain: bool, timeout: float | None) -> None:
        """Accept nothing more, let it finish, and wait for its end."""
        if self._move(KernelState.TERMINATING):
            self.unbind_output()
            self.inbox.close()
        elif self.state is not KernelState.TERMINATING:
            return
        if not drain:
            self._discard("terminated")
        done, _ = await asyncio.wait([self._ended], timeout=timeout)
        if not done:
            await self._stop(timeout)

    def unbind_output(self) -> None:
        """Let the output mailbox grow: whoever would make room there may be who waits for the end."""
        self.outbox.set_capacity(UNBOUNDED)
        self.post.unbind(self.kernel.kernel_id)

    def call(self, message: Any, timeout: float | None) -> Any:
        """Send a message and wait for its answer, in this thread."""
        kernel_id = self.kernel.kernel_id
        until = end_of(timeout)
        message = called(message)
        number = message.message_id
        slot = self.post.expect_here(kernel_id, number)
        try:
            outcome = self.inbox.put(message, timeout)
            if outcome != ACCEPTED:
                check_outcome(self, outcome, timeout)
            answer = slot.get(left_of(until))
        finally:
            self.post.forget(number)
        if answer is None:
            # It may have come in the moment of giving up.
            answer = slot.try_get()
        if answer is None:
            raise TimeoutError(f"{kernel_id!r} did not answer within {timeout} s")
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def try_call(self, message: Any) -> Any:
        """A host actor does not answer before it runs."""
        return None

    def expect(self, calls: int) -> None:
        """Answers of host actors come by themselves."""

    def took(self, replies: int) -> None:
        """Whoever sends replies sees for itself that there is room."""

    def send_array(self, array: np.ndarray[Any, Any], timeout: float | None) -> int:
        """Send the messages of a structured array."""
        if self.kernel.input_type is None:
            raise MessageError(f"{self.kernel.kernel_id!r} has no input_type, so an array says nothing; send messages")
        return self.inbox.put_many(self.kernel.input_type.from_array(array), timeout)[0]

    def receive_array(self, n: int, timeout: float | None) -> np.ndarray[Any, Any]:
        """Messages of the output mailbox as a structured array."""
        output_type = self.kernel.output_type
        require_fixed(output_type, f"an array of what {self.kernel.kernel_id!r} sends")
        assert output_type is not None
        taken = self.outbox.get_many(n, timeout)
        try:
            return output_type.to_array(taken)
        except MessageError:
            # One that does not fit would come again and again.
            raise
        except BaseException:
            self.outbox.give_back(taken)
            raise

    def check_output(self, message: Any) -> None:
        """Refuse what is not of the output type."""
        expected = self.kernel.output_type
        if not isinstance(message, expected or MessageBase):
            name = expected.__name__ if expected else "a message"
            raise MessageError(
                f"{self.kernel.kernel_id!r} sends {name}, not {brief(message)} ({type(message).__name__})"
            )

    def answer(self, message: Any) -> bool:
        """Give an answer to who called."""
        self.answered += 1
        return self.post.answer(self.kernel.kernel_id, message)

    def telemetry(self) -> KernelTelemetry:
        """What happened so far."""
        before, after, measured = self.inbox.counts(), self.outbox.counts(), self.inbox.measured()
        until = self._ended_at or time.monotonic()
        return KernelTelemetry(
            kernel_id=self.kernel.kernel_id,
            state=self.state,
            received=before["accepted"],
            processed=before["done"],
            failed=before["failed"],
            in_progress=before["delivered"] - before["done"] - before["failed"],
            displaced=before["displaced"],
            expired=before["expired"],
            discarded=before["discarded"],
            rejected=before["rejected"],
            dropped=before["dropped"],
            sent=after["accepted"] + self.answered + self.forwarded,
            answered=self.answered,
            input_depth=before["depth"],
            output_depth=after["depth"],
            max_input_depth=before["max_depth"],
            max_output_depth=after["max_depth"],
            wait=Latency(**measured["wait"]),
            latency=Latency(**measured["latency"]),
            busy=measured["busy"],
            uptime=until - self._launched_at if self._launched_at else 0.0,
            restarts=self.restarts,
            last_error=None if self.error is None else f"{type(self.error).__name__}: {self.error}",
            idle_restarts=self.idle_restarts,
        )

    def abandon(self, error: BaseException) -> None:
        """It runs in the process that this one was forked from."""
        # Without the lock, which a thread that is not here may have.
        self.state, self.error = KernelState.FAILED, error
        for mailbox in (self.inbox, self.outbox):
            mailbox.close()
            mailbox.discard()

    def _start(self) -> None:
        raise RingError("a host actor is a coroutine or a thread")

    async def _stop(self, timeout: float | None) -> None:
        raise RingError("a host actor is a coroutine or a thread")

    def _move(self, state: KernelState) -> bool:
        """Change the state, unless the actor has ended or ends; whether it was changed."""
        with self._lock:
            if not self.state.is_open:
                return False
            self.state = state
            return True

    def _discard(self, reason: str) -> None:
        for message in self.inbox.discard():
            self.post.dead(self.kernel.kernel_id, message, reason)

    def _was_idle(self, error: BaseException, context: KernelContext) -> bool:
        """Whether the function ended because `receive` found no message in time: it is to be called again then."""
        if error is not context.timed_out:
            return False
        self.idle_restarts += 1
        if self.idle_restarts == 1:
            _log.warning(
                "ring kernel %r: the TimeoutError of ctx.receive(timeout) left its function, which is called again; "
                "its variables start anew. Catch TimeoutError in its loop",
                self.kernel.kernel_id,
            )
        return True

    def _crashed(self, error: BaseException, context: KernelContext) -> bool:
        """Note a failure; whether the function is to be started again."""
        kernel = self.kernel
        self.error = error
        text = f"{type(error).__name__}: {error}"
        _log.error("ring kernel %r failed: %s", kernel.kernel_id, text, exc_info=error)
        if self.inbox.fail() and context.current is not None:
            self.post.dead(kernel.kernel_id, context.current, "failed", text)
        now = time.monotonic()
        while self._crashes and self._crashes[0] < now - kernel.restart_window:
            self._crashes.popleft()
        if kernel.restart == "never" or len(self._crashes) >= kernel.max_restarts:
            return False
        self._crashes.append(now)
        self.restarts += 1
        return True

    def _end(self, state: KernelState) -> None:
        """The function is over, on whichever thread it ran."""
        kernel_id = self.kernel.kernel_id
        self.inbox.finish()
        with self._lock:
            self.state = state
            self._ended_at = time.monotonic()
        self.inbox.close()
        self._discard("failed" if state is KernelState.FAILED else "terminated")
        self.outbox.close()
        self.post.fail_calls(kernel_id, ended_error(self))
        if state is KernelState.FAILED and self.kernel.escalate and self.error is not None:
            self._escalate(kernel_id, self.error)
        try:
            self._loop.call_soon_threadsafe(self._note_end)
        except RuntimeError:
            # The loop is closed, and nobody waits there.
            return

    def _note_end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class CoroutineActor(HostActor):
    """A coroutine function, run as a task of the runtime's event loop."""

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"ring-{self.kernel.kernel_id}")

    async def _run(self) -> None:
        state = KernelState.TERMINATED
        again = True
        while again:
            context = CoroutineContext(self)
            again = False
            try:
                if self.idle_restarts:
                    # With a timeout of 0 other tasks would never run.
                    await asyncio.sleep(0)
                await self.kernel.function(context)
            except (ActorExit, asyncio.CancelledError):
                break
            except (Exception, SystemExit) as error:
                if again := self._was_idle(error, context):
                    continue
                # The end of an actor is not that of its program, which a loop would make of SystemExit.
                again = self._crashed(error, context)
                state = KernelState.TERMINATED if again else KernelState.FAILED
            except BaseException as error:
                # Ctrl-C: the actor is over, and the loop is told as always.
                self._crashed(error, context)
                self._end(KernelState.FAILED)
                raise
        self._end(state)

    async def _stop(self, timeout: float | None) -> None:
        self._discard("terminated")
        self._task.cancel()
        await self._ended


class ThreadActor(HostActor):
    """A plain function in a thread of its own."""

    def _start(self) -> None:
        name = f"ring-{self.kernel.kernel_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        state = KernelState.TERMINATED
        again = True
        while again:
            context = ThreadContext(self)
            again = False
            try:
                made = self.kernel.function(context)
                if inspect.isawaitable(made) or inspect.isgenerator(made) or inspect.isasyncgen(made):
                    if inspect.iscoroutine(made):
                        made.close()
                    raise TypeError(
                        f"the function of {self.kernel.kernel_id!r} returned a {type(made).__name__}, which nobody "
                        "runs; give @ring_kernel the coroutine function itself"
                    )
            except ActorExit:
                break
            except BaseException as error:
                if again := self._was_idle(error, context):
                    continue
                again = self._crashed(error, context) and isinstance(error, Exception | SystemExit)
                state = KernelState.TERMINATED if again else KernelState.FAILED
        self._end(state)

    async def _stop(self, timeout: float | None) -> None:
        raise TimeoutError(
            f"{self.kernel.kernel_id!r} has not finished within {timeout} s, and a thread cannot be stopped; it stays "
            f"TERMINATING with {self.inbox.depth} messages left"
        )
