"""`RingKernelRuntime`: launches actors, carries messages to and from them, and says what happened."""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from typing import Any, TypeVar

from pygpukit.core.device import Device
from pygpukit.errors import ActorFailedError, ForkError, RingError
from pygpukit.ring import ends
from pygpukit.ring.actor import SENT, Actor
from pygpukit.ring.client import RingClient, check_wait
from pygpukit.ring.closing import end_all
from pygpukit.ring.delivery import check_input, check_outcome, ended_error
from pygpukit.ring.device import RingOptions
from pygpukit.ring.device_actor import DeviceActor
from pygpukit.ring.device_tier import DeviceTier
from pygpukit.ring.host import CoroutineActor, ThreadActor
from pygpukit.ring.kernel import RingKernel, find_kernel
from pygpukit.ring.limits import check_timeout
from pygpukit.ring.loops import new_loop, start_loop
from pygpukit.ring.post import DeadLetter, Post
from pygpukit.ring.replies import replies_of
from pygpukit.ring.starts import Starts
from pygpukit.ring.states import KernelState, check_transition
from pygpukit.ring.telemetry import KernelTelemetry, summed_up
from pygpukit.ring.topics import Topics
from pygpukit.ring.waiting import ACCEPTED, BURST, FULL, called, next_message, put_message

__all__ = ["RingKernelRuntime"]

T = TypeVar("T")

_LAST_OF_BURST = BURST - 1


class RingKernelRuntime:
    """Runs ring kernels.

    In ``async with`` its actors run in the event loop that is there; in ``with`` it makes a loop in a thread of its own
    (with uvloop where that is installed). Mailboxes may be used from any thread and any loop.

    Parameters
    ----------
    dead_letters : int
        How many dead letters are kept; all are counted.
    sms : int, optional
        Give the device actors SMs of their own: a lane with at least so many. By default they run beside other work.
    workers : int, optional
        Blocks for device actors that share blocks.
    lease : float
        Seconds after which the kernel of the device actors ends by itself when this process does not run any more.
    time_slice : float, optional
        Seconds after which that kernel leaves the device for a moment, with everything kept: first-time kernels of
        other libraries wait until then. Shorter for GPUs that also drive a display, None to stay.
    isolation : {None, "process"}
        With ``"process"`` the device actors run in a worker process: when that is lost, this one goes on.
    watchdog : float, optional
        Seconds that a device actor's handler may work on one message. One that takes longer is `stuck` in `status` and
        in its telemetry, and is logged. None: nobody looks.

    Examples
    --------
    >>> from pygpukit.ring import message, ring_kernel
    >>> @message
    ... class Number:
    ...     value: float
    >>> @ring_kernel(kernel_id="double", input_type=Number, output_type=Number)
    ... def double(ctx):
    ...     while not ctx.should_terminate:
    ...         ctx.send(Number(2 * ctx.receive().value))
    >>> with RingKernelRuntime() as runtime:
    ...     runtime.client("double").call(Number(21.0))
    Number(value=42.0)
    """

    def __init__(
        self,
        *,
        dead_letters: int = 10_000,
        sms: int | None = None,
        workers: int | None = None,
        lease: float = 10.0,
        time_slice: float | None = 0.5,
        isolation: str | None = None,
        watchdog: float | None = 2.0,
        task: Any = None,
    ) -> None:
        if isolation not in (None, "process"):
            raise RingError(f"isolation must be None or 'process', not {isolation!r}")
        if type(dead_letters) is not int or dead_letters < 0:
            raise RingError(f"dead_letters must be an int of at least 0, not {dead_letters!r}")
        self._post = Post(dead_letters)
        self._topics = Topics(self._post)
        if task is not None and (sms is not None or isolation is not None or getattr(task, "_lease", None) is None):
            raise RingError("task is a running task of a scheduler, without sms and isolation")
        options = RingOptions(sms, workers, lease, time_slice, watchdog, task)
        self._tier = DeviceTier(self._post, options, isolation == "process")
        self._actors: dict[str, Actor] = {}
        self._starts = Starts(lambda kernel_id: self._actors.get(kernel_id), self._launch)
        # What every message needs to know of its kernel, in one look.
        self._senders: dict[str, tuple[type[Any] | None, Callable[[Any], int], Actor]] = {}
        self._receivers: dict[str, tuple[Callable[[], Any], Actor]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started_at = 0.0
        self._turn = 0
        self._is_closing = False
        self._closing = threading.Lock()
        self._beginning = threading.Lock()
        self._failure: tuple[str, BaseException] | None = None
        self._fork: ForkError | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Begin, in the event loop that runs."""
        self._begin(asyncio.get_running_loop())

    async def shutdown(self, drain: bool = True, timeout: float | None = 30.0) -> None:
        """Terminate all kernels. One that was cancelled is finished by the next.

        Parameters
        ----------
        drain : bool
            Let them work on what was accepted; else it goes to the dead letters.
        timeout : float, optional
            Seconds they have for it. What is left then goes to the dead letters, and coroutines are cancelled.

        Raises
        ------
        ActorFailedError
            If a kernel that escalates has failed.
        RingError
            If a handler on the device has not returned ten seconds later; all device actors have failed then.
        """
        limit = check_timeout(timeout)
        if self._loop is None:
            return
        is_over = True
        try:
            await self._in_loop(lambda: self._shutdown(drain, limit))
        except asyncio.CancelledError:
            is_over = False
            raise
        finally:
            if is_over:
                self._leave_loop()
        if self._failure is not None:
            raise self._escalated()

    def close(self, timeout: float | None = 30.0) -> None:
        """Shut down a runtime that has a loop in a thread of its own, and wait for it here; once is enough."""
        if threading.current_thread() is self._thread or (self._thread is None and self._loop is not None):
            raise RingError("close() is for a runtime with a loop of its own, from another thread; await shutdown()")
        timeout = check_timeout(timeout)
        # A second thread that closes it waits for the first one's end.
        with self._closing:
            thread = self._thread
            if thread is None:
                return
            try:
                if self._loop is not None:
                    asyncio.run_coroutine_threadsafe(self.shutdown(timeout=timeout), self._loop).result()
            finally:
                thread.join()

    def launch(self, kernel: str | RingKernel) -> Coroutine[Any, Any, None]:
        """Start a kernel: it runs and accepts messages, and is given none before `activate`.

        A coroutine function. The first device actor decides for all of the runtime on which device they are: the one
        that is current where this is called.

        Parameters
        ----------
        kernel : str or RingKernel
            Its id, or what `ring_kernel` returned. One that has ended may be launched again, with empty mailboxes.
        """
        # Now, and not when it is awaited: that may be in the thread of the runtime's loop.
        return self._launch_on(kernel, self._tier.device_for(kernel))

    async def _launch_on(self, kernel: str | RingKernel, where: Device | None) -> None:
        await self._in_loop(lambda: self._launch(kernel, where))

    async def activate(self, kernel_id: str) -> None:
        """Give a launched kernel its messages."""
        actor = self._checked(kernel_id, "activate")
        await self._in_loop(actor.activate)

    async def deactivate(self, kernel_id: str, timeout: float | None = None, *, wait: bool = True) -> None:
        """Hold a kernel's messages back, and return when it stands still.

        It stands still in ``ctx.receive()`` or ``ctx.wait_active()``: what it works on is finished first. With
        ``wait=False`` a host actor may still work on a message when this returns.

        Raises
        ------
        TimeoutError
            If it did not come there in time; it is active as before, as it is when this is cancelled.
        """
        actor = self._checked(kernel_id, "deactivate")
        limit = check_timeout(timeout)
        await self._in_loop(lambda: actor.deactivate(limit, wait))

    async def reactivate(self, kernel_id: str) -> None:
        """Give a deactivated kernel its messages again."""
        actor = self._checked(kernel_id, "reactivate")
        await self._in_loop(actor.activate)

    async def terminate(self, kernel_id: str, drain: bool = True, timeout: float | None = None) -> None:
        """End a kernel. What was accepted is worked on first, also when it was not active.

        Its output mailbox can be read to the end.

        Parameters
        ----------
        kernel_id : str
            Which.
        drain : bool
            With False, accepted messages go to the dead letters.
        timeout : float, optional
            Seconds it has. A coroutine is cancelled then; a thread cannot be, and the error says so.
        """
        actor = self._checked(kernel_id, "terminate")
        limit = check_timeout(timeout)
        await self._in_loop(lambda: actor.terminate(drain, limit))

    async def send(
        self,
        kernel_id: str,
        message: Any,
        *,
        priority: int | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Send a message to a kernel.

        Parameters
        ----------
        kernel_id : str
            To whom.
        message : message
            Of the kernel's input type.
        priority : int, optional
            0 to 255: the message has it from now on.
        deadline : float, optional
            Seconds of ``time.monotonic()``: the message has it from now on.
        timeout : float, optional
            Seconds to wait for room, where the policy is to wait.

        Returns
        -------
        bool
            True when it was accepted; False when it was dropped, as the policy says.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        # Before it is accepted: a sender that is cancelled here has sent nothing.
        self._turn += 1
        if not self._turn & _LAST_OF_BURST:
            await asyncio.sleep(0)
        input_type, try_put, actor = self._senders.get(kernel_id) or self._sender(kernel_id)
        if type(message) is not input_type:
            check_input(actor, message)
        if message._is_call:
            message = message._copy()
        if priority is not None:
            message.priority = priority
        if deadline is not None:
            message.deadline = deadline
        outcome = try_put(message)
        if outcome == ACCEPTED:
            return True
        if outcome == FULL:
            outcome = await put_message(actor.inbox, message, timeout)
        return outcome == ACCEPTED or check_outcome(actor, outcome, timeout)

    async def publish(self, topic: str, message: Any, *, timeout: float | None = None) -> int:
        """Send a message to all kernels that subscribe to a topic and take its type, on the host and on the device.

        Parameters
        ----------
        topic : str
            One of the ``topics`` of `ring_kernel`.
        message : message
            Each subscriber gets one of its own.
        timeout : float, optional
            Seconds to wait for room, where the policy of a subscriber is to wait.

        Returns
        -------
        int
            How many accepted it. For the others there are dead letters.
        """
        self._running_loop()
        timeout = check_timeout(timeout)
        if self._is_closing:
            raise RingError(f"the runtime is shutting down, and takes no more messages for the topic {topic!r}")
        self._turn += 1
        if not self._turn & _LAST_OF_BURST:
            await asyncio.sleep(0)
        return await self._topics.publish(topic, message, timeout=timeout)

    async def receive(self, kernel_id: str, timeout: float | None = None) -> Any:
        """The next message of a kernel's output mailbox.

        Raises
        ------
        TimeoutError
            If none came in time.
        RingError
            If the kernel has ended and nothing is left; `ActorFailedError` if it failed.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        try_get, actor = self._receivers.get(kernel_id) or self._receiver(kernel_id)
        message = try_get()
        if message is None:
            if timeout is None:
                # The way of every round trip: as `next_message`, without its frame.
                outbox, loop = actor.outbox, asyncio.get_running_loop()
                message = outbox.get_or_wait(loop)
                while type(message) is Future:
                    try:
                        await message
                    except BaseException:
                        outbox.forget_future(message)
                        raise
                    message = outbox.get_or_wait(loop)
            else:
                message = await next_message(actor.outbox, timeout)
            if message is None:
                raise ended_error(actor)
        return message

    async def send_and_receive(self, kernel_id: str, message: Any, timeout: float | None = None) -> Any:
        """Send a message and wait for its answer, whoever else waits for theirs.

        Raises
        ------
        TimeoutError
            If there was no answer in time.
        UndeliveredError
            If the message went to the dead letters.
        ActorFailedError
            If the kernel failed.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        actor = self._actors.get(kernel_id) or self._launched(kernel_id)
        if type(message) is not actor.kernel.input_type:
            check_input(actor, message)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        message = called(message)
        number = message.message_id
        self._post.expect(kernel_id, number, future, loop)
        actor.expect(1)
        try:
            async with asyncio.timeout(timeout) if timeout is not None else nullcontext():
                answer = actor.try_call(message)
                if answer is None:
                    _, try_put, to = self._senders.get(kernel_id) or self._sender(kernel_id)
                    outcome = try_put(message)
                    if outcome == FULL:
                        outcome = await put_message(to.inbox, message)
                    if outcome != ACCEPTED:
                        check_outcome(to, outcome, None)
                if answer is None or answer is SENT:
                    answer = await future
                return answer
        except TimeoutError:
            if future.done() and not future.cancelled():
                # It came in the moment of giving up.
                return future.result()
            raise TimeoutError(f"{kernel_id!r} did not answer within {timeout} s") from None
        finally:
            actor.expect(-1)
            self._post.forget(number)

    def stream(self, kernel_id: str, message: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        """Send a message with the first step, and give its answers as they come, up to the last one.

        Parameters and errors are those of `send_and_receive`, but the time is that for room, and then for each answer.
        Whoever stops before the last one, by ``break`` or ``aclose()``, is sent no more.
        """
        *_, actor = self._sender(kernel_id)
        check_input(actor, message)
        return replies_of(actor, message, check_timeout(timeout))

    @asynccontextmanager
    async def kernel_scope(self, kernel: str | RingKernel) -> AsyncIterator[str]:
        """Launch and activate a kernel, and terminate it at the end of the block.

        Yields
        ------
        str
            The kernel's id.
        """
        kernel_id = find_kernel(kernel).kernel_id
        await self.launch(kernel)
        await self.activate(kernel_id)
        try:
            yield kernel_id
        finally:
            if self.get_kernel_state(kernel_id).is_open:
                await self.terminate(kernel_id)

    def client(self, kernel_id: str, wait: str = "hybrid") -> RingClient:
        """A client for threads. Where no event loop runs, a kernel that was not launched is launched and activated.

        One that was launched stays as it is. That holds for one that has ended, too: what it sent can be received.
        A runtime that was not started gets a loop in a thread of its own; one that was shut down gets none. Threads may
        ask for clients at the same time.

        Parameters
        ----------
        kernel_id : str
            Whose.
        wait : {"hybrid", "spin", "sleep"}
            How its threads wait: awake for a moment and then asleep, always awake, or asleep at once.
        """
        check_wait(wait)
        if not isinstance(kernel_id, str):
            kernel_id = find_kernel(kernel_id).kernel_id
        inside = asyncio._get_running_loop() is not None
        with self._beginning:
            if self._loop is None and self._is_closing:
                raise RingError(f"no client of {kernel_id!r}: the runtime was shut down; make another one")
            if self._loop is None and not inside:
                self._begin_thread()
        known = self._actors.get(kernel_id)
        if not inside and (known is None or known.state in (KernelState.CREATED, KernelState.LAUNCHED)):
            self.run(self._starts.start(kernel_id, self._tier.device_for(kernel_id)))
        actor = self._launched(kernel_id)
        if actor.kernel.kind == "device" and self._tier.is_isolated:
            check_wait(wait, f"{kernel_id!r}, whose messages come through a socket with isolation='process'")
        return RingClient(actor, self._running_loop(), wait)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, such as ``runtime.deactivate(id)``, in the runtime's loop, and wait for it here."""
        loop = self._loop
        if loop is None or asyncio._get_running_loop() is loop:
            coroutine.close()
            self._running_loop()
            raise RingError("run() is for threads; await the coroutine in the runtime's event loop")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    @property
    def kernel_ids(self) -> list[str]:
        """Ids of the kernels that were launched, in that order."""
        self._refuse_in_forks()
        return list(self._actors)

    def get_kernel_state(self, kernel_id: str) -> KernelState:
        """Where a kernel is in its life."""
        actor = self._actors.get(kernel_id)
        if actor is not None:
            return actor.state
        self._refuse_in_forks()
        find_kernel(kernel_id)
        return KernelState.CREATED

    def get_telemetry(self, kernel_id: str) -> KernelTelemetry:
        """What happened to a kernel's messages."""
        return self._launched(kernel_id).telemetry()

    def get_all_telemetry(self) -> dict[str, KernelTelemetry]:
        """The same of all kernels that were launched, by id."""
        self._refuse_in_forks()
        return {kernel_id: actor.telemetry() for kernel_id, actor in list(self._actors.items())}

    def get_summary(self) -> dict[str, Any]:
        """Sums over all kernels: states, messages, restarts, dead letters by reason, uptime."""
        return {
            **summed_up(self.get_all_telemetry().values()),
            "dead_letters": self._post.counts(),
            "uptime": time.monotonic() - self._started_at if self._started_at else 0.0,
        }

    def get_state(self, kernel_id: str) -> dict[str, Any]:
        """The state of a device actor: arrays on the device, by field.

        They are the actor's own memory. Read them when it is at rest or deactivated: while it works the newest values
        may still be in its block. What is written to them counts from the next activation on. With
        ``isolation="process"`` they are copies, as NumPy arrays.
        """
        actor = self._launched(kernel_id)
        if not isinstance(actor, DeviceActor):
            raise RingError(f"{kernel_id!r} is a host actor, whose state is its own; device actors have state=...")
        state: dict[str, Any] = actor.ring.state(actor.place)
        return state

    def get_actor_number(self, kernel_id: str) -> int:
        """The number by which handlers send to a device actor they do not name: ``ctx.send_to(number, message)``."""
        actor = self._launched(kernel_id)
        if not isinstance(actor, DeviceActor):
            raise RingError(f"{kernel_id!r} is a host actor, and handlers on the device cannot send to it")
        return actor.place.index

    def status(self) -> dict[str, Any]:
        """Where the kernel of the device actors is, and what became of it.

        Returns
        -------
        dict
            ``up``: is it on the device; ``launches`` and ``parks``: how often it went there, and was held away;
            ``last_exit``: why it left last (``"asked"``, ``"lease"``, ``"slice"`` or None); ``beats``: signs of life of
            both sides; ``stuck``: does it not leave, or a handler not return; ``stuck_actors``: ids of those whose
            handlers do not (see `watchdog`).
        """
        self._refuse_in_forks()
        return self._tier.status()

    def abort(self) -> None:
        """End the kernel of the device actors at once, with all that is on it, when a handler does not return.

        On a GPU this loses the CUDA context: the process can use the device no more, and has to be started again. With
        ``isolation="process"`` that is the worker process, which is.
        """
        self._refuse_in_forks()
        if self._tier.is_made:
            self._tier.abort(self._loop)

    def dead_letters(self, kernel_id: str | None = None) -> list[DeadLetter]:
        """Messages that reached nobody, or whose receiver failed with them, oldest first."""
        self._refuse_in_forks()
        return self._post.letters(kernel_id)

    async def __aenter__(self) -> RingKernelRuntime:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            await self.shutdown()
        except ActorFailedError:
            if kind is None:
                raise

    def __enter__(self) -> RingKernelRuntime:
        with self._beginning:
            self._begin_thread()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self.close()
        except ActorFailedError:
            if kind is None:
                raise

    def _abandon(self, error: ForkError) -> None:
        """This process was forked from the runtime's: from now on all is refused, and no lock of before is used."""
        self._fork = error
        actors, self._actors = self._actors, {}
        for actor in actors.values():
            actor.abandon(error)
        self._senders.clear()
        self._receivers.clear()
        self._loop = self._thread = None
        self._closing, self._beginning = threading.Lock(), threading.Lock()

    def _refuse_in_forks(self) -> None:
        if self._fork is not None:
            raise self._fork

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._refuse_in_forks()
        if self._loop is not None and not self._loop.is_closed():
            raise RingError("the runtime runs already")
        self._loop = loop
        self._is_closing = self._post.is_closing = False
        self._failure = None
        self._started_at = time.monotonic()
        ends.remember(self)
        # Seen by `pygpukit top`.
        from pygpukit.scheduler.publish import publish_ring

        publish_ring(self)

    def _begin_thread(self) -> None:
        self._refuse_in_forks()
        loop = new_loop()
        try:
            self._begin(loop)
        except RingError:
            loop.close()
            raise
        self._thread = start_loop(loop)

    def _leave_loop(self) -> None:
        # In this order: one that has a loop and no thread is in the loop of somebody else.
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        ends.forget(self)
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self._refuse_in_forks()
        if self._loop is None:
            raise RingError("the runtime does not run: use 'async with RingKernelRuntime()', 'with' or await start()")
        return self._loop

    async def _in_loop(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await something in the runtime's own loop, from whichever loop this is."""
        loop = self._running_loop()
        if asyncio.get_running_loop() is loop:
            return await function()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(), loop))

    def _launched(self, kernel_id: str) -> Actor:
        actor = self._actors.get(kernel_id)
        if actor is None:
            self._refuse_in_forks()
            find_kernel(kernel_id)
            raise RingError(f"{kernel_id!r} is CREATED; launch it first")
        return actor

    def _sender(self, kernel_id: str) -> tuple[type[Any] | None, Callable[[Any], int], Actor]:
        actor = self._launched(kernel_id)
        if self._is_closing and actor.state.is_open:
            raise RingError(f"the runtime is shutting down, and {kernel_id!r} takes no more messages")
        return actor.kernel.input_type, actor.inbox.try_put, actor

    def _receiver(self, kernel_id: str) -> tuple[Callable[[], Any], Actor]:
        actor = self._launched(kernel_id)
        return actor.outbox.try_get, actor

    def _checked(self, kernel_id: str, verb: str) -> Actor:
        self._running_loop()
        if self._failure is not None:
            raise self._escalated()
        check_transition(kernel_id, verb, self.get_kernel_state(kernel_id))
        return self._launched(kernel_id)

    async def _launch(self, kernel: str | RingKernel, where: Device | None) -> None:
        spec = find_kernel(kernel)
        if self._failure is not None:
            raise self._escalated()
        if self._is_closing:
            raise RingError(f"cannot launch {spec.kernel_id!r}: the runtime is shutting down")
        known = self._actors.get(spec.kernel_id)
        if known is not None and known.state is KernelState.CREATED:
            raise RingError(f"cannot launch {spec.kernel_id!r}: it is being launched")
        check_transition(spec.kernel_id, "launch", KernelState.CREATED if known is None else known.state)
        if where is not None:
            self._tier.device = where
        actor = self._make(spec)
        self._senders.pop(spec.kernel_id, None)
        self._receivers.pop(spec.kernel_id, None)
        # The id is taken before anything is awaited, so that a second launch finds it.
        self._actors[spec.kernel_id] = actor
        await actor.launch()
        self._topics.add(actor)
        self._senders[spec.kernel_id] = self._sender(spec.kernel_id)
        self._receivers[spec.kernel_id] = self._receiver(spec.kernel_id)

    def _make(self, spec: RingKernel) -> Actor:
        if spec.kind == "coroutine":
            return CoroutineActor(spec, self._post, self._topics, self._actors.get, self._escalate)
        if spec.kind == "thread":
            return ThreadActor(spec, self._post, self._topics, self._actors.get, self._escalate)
        return DeviceActor(spec, self._post, self._tier, self._escalate)

    def _escalate(self, kernel_id: str, error: BaseException) -> None:
        """A kernel failed for good, and the runtime goes with it."""
        self._failure = (kernel_id, error)
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._give_up)

    def _give_up(self) -> None:
        if self._loop is not None and not self._is_closing:
            task = self._loop.create_task(self._shutdown(drain=True, timeout=30.0))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _escalated(self) -> ActorFailedError:
        kernel_id, cause = self._failure or ("", RuntimeError())
        error = ActorFailedError(f"{kernel_id!r} failed, and the runtime with it: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error

    async def _shutdown(self, drain: bool, timeout: float | None) -> None:
        self._is_closing = self._post.is_closing = True
        self._senders.clear()
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        await asyncio.gather(*others, return_exceptions=True)
        await end_all(self._actors, self._tier, drain, timeout)
