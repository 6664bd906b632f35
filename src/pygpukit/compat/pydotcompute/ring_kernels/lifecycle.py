"""`RingKernel`: one actor of the ring with PyDotCompute's states."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from pygpukit import ring
from pygpukit.compat.pydotcompute.exceptions import InvalidConfigurationError, KernelStateError, QueueTimeoutError
from pygpukit.compat.pydotcompute.ring_kernels.context import KernelContext, LaunchedContext
from pygpukit.compat.pydotcompute.ring_kernels.envelope import Envelope
from pygpukit.compat.pydotcompute.ring_kernels.fast_queue import FastMessageQueue
from pygpukit.compat.pydotcompute.ring_kernels.queue import BackpressureStrategy, MessageQueue, RingMailbox
from pygpukit.compat.pydotcompute.ring_kernels.telemetry import RingKernelTelemetry
from pygpukit.errors import RingError
from pygpukit.ring.delivery import ended_error
from pygpukit.ring.limits import check_timeout

__all__ = ["KernelContext", "KernelState", "RingKernel", "RingKernelConfig", "managed_kernel"]

TIn = TypeVar("TIn")
TOut = TypeVar("TOut")

Function = Callable[[KernelContext[Any, Any]], Any]


class KernelState(Enum):
    """Where a ring kernel is in its life."""

    CREATED = 1
    LAUNCHED = 2
    ACTIVE = 3
    DEACTIVATED = 4
    TERMINATING = 5
    TERMINATED = 6


@dataclass
class RingKernelConfig:
    """Options of a ring kernel."""

    kernel_id: str
    grid_size: int = 1
    block_size: int = 256
    input_queue_size: int = 4096
    output_queue_size: int = 4096
    backpressure_strategy: str = "block"
    use_fast_queue: bool = True

    def __post_init__(self) -> None:
        for name in ("grid_size", "block_size", "input_queue_size", "output_queue_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of {self.kernel_id!r} must be at least 1, not {getattr(self, name)!r}")


_FROM = {
    "launch": (KernelState.CREATED,),
    "activate": (KernelState.LAUNCHED,),
    "deactivate": (KernelState.ACTIVE,),
    "reactivate": (KernelState.DEACTIVATED,),
    "send message": (KernelState.ACTIVE, KernelState.DEACTIVATED),
    "receive message": (KernelState.ACTIVE, KernelState.DEACTIVATED),
}


class RingKernel(Generic[TIn, TOut]):
    """An actor. One that no `RingKernelRuntime` launches has a runtime of the ring for itself.

    Parameters
    ----------
    kernel_id : str
        Its id.
    kernel_func : callable
        The actor's function, which is given a `KernelContext`.
    config : RingKernelConfig, optional
        Sizes of its queues and what happens when they are full.
    input_type, output_type : type, optional
        For the reader; they are not checked, as PyDotCompute does not check them.

    Raises
    ------
    InvalidConfigurationError
        If the function cannot be called.
    """

    def __init__(
        self,
        kernel_id: str,
        kernel_func: Callable[[KernelContext[TIn, TOut]], Any],
        *,
        config: RingKernelConfig | None = None,
        input_type: type[TIn] | None = None,
        output_type: type[TOut] | None = None,
    ) -> None:
        if not callable(kernel_func):
            reason = "it is called with a KernelContext; give a function"
            raise InvalidConfigurationError("kernel_func", kernel_func, reason)
        self.kernel_id = kernel_id
        self.input_type = input_type
        self.output_type = output_type
        self.telemetry = RingKernelTelemetry(kernel_id)
        self._function: Function = kernel_func
        self._config = config or RingKernelConfig(kernel_id)
        self._state = KernelState.CREATED
        self._runtime: Any = None
        self._is_own = False
        self._actor: Any = None
        self._context: LaunchedContext | None = None
        self._ending = asyncio.Event()
        self._is_parked = False
        policy = self._config.backpressure_strategy
        self._policy = policy if policy in ("block", "reject", "drop_oldest") else "block"
        self.input_queue = self._queue(self._config.input_queue_size)
        self.output_queue = self._queue(self._config.output_queue_size)

    @property
    def state(self) -> KernelState:
        """Where it is in its life. An actor that raised has ended."""
        if self._actor is not None and self._actor.state.is_over:
            return KernelState.TERMINATED
        return self._state

    @property
    def config(self) -> RingKernelConfig:
        """Its options."""
        return self._config

    async def launch(self) -> None:
        """Start the function; no message is delivered yet."""
        self._check("launch")
        try:
            spec = ring.RingKernel(
                function=self._run,
                kernel_id=self.kernel_id,
                input_type=Envelope,
                output_type=Envelope,
                input_queue_size=self._config.input_queue_size,
                output_queue_size=self._config.output_queue_size,
                backpressure=ring.Backpressure(self._policy),
            )
        except RingError as error:
            raise InvalidConfigurationError("config", self._config, str(error)) from error
        self._state = KernelState.LAUNCHED
        if self._runtime is None:
            self._runtime = ring.RingKernelRuntime()
            self._is_own = True
            await self._runtime.start()
        await self._runtime.launch(spec)
        self._actor = self._runtime._launched(self.kernel_id)
        self.input_queue._join(self._actor.inbox)
        self.output_queue._join(self._actor.outbox)

    async def activate(self) -> None:
        """Deliver messages."""
        self._check("activate")
        await self._runtime.activate(self.kernel_id)
        self._state = KernelState.ACTIVE

    async def deactivate(self) -> None:
        """Deliver no more messages; what the actor works on is finished meanwhile."""
        self._check("deactivate")
        await self._runtime.deactivate(self.kernel_id, wait=False)
        self._state = KernelState.DEACTIVATED

    async def reactivate(self) -> None:
        """Deliver messages again."""
        self._check("reactivate")
        await self._runtime.reactivate(self.kernel_id)
        self._state = KernelState.ACTIVE

    async def terminate(self, timeout: float = 5.0) -> None:
        """End the actor when it has worked on what was accepted, or after `timeout` seconds."""
        if self._state is KernelState.TERMINATED:
            return
        if self._actor is not None:
            self._state = KernelState.TERMINATING
            self._ending.set()
            if self._actor.state.is_open:
                await self._runtime.terminate(self.kernel_id, drain=not self._is_parked, timeout=timeout)
            if self._is_own:
                await self._runtime.shutdown(timeout=timeout)
        self._state = KernelState.TERMINATED

    async def send(self, message: TIn, timeout: float | None = None) -> None:
        """Put a message into the input queue; `QueueFullError` and `QueueTimeoutError` as for queues."""
        self._check("send message")
        await self.input_queue.put(message, timeout=timeout)

    async def receive(self, timeout: float | None = None) -> TOut:
        """The next message of the output queue; `QueueTimeoutError` when none came within `timeout` seconds."""
        # What an actor sent before it failed can be received.
        if self.output_queue.empty or self._state not in _FROM["receive message"]:
            self._check("receive message")
        message: TOut = await self.output_queue.get(timeout=timeout)
        return message

    async def ask(self, message: TIn, timeout: float | None = None) -> TOut:
        """Send a message and wait for the answer to it, however many others wait for theirs."""
        self._check("send message")
        try:
            envelope = self.input_queue._sealed(message)
            self.input_queue._entered(envelope)
            answer = await self._runtime.send_and_receive(self.kernel_id, envelope, check_timeout(timeout))
        except TimeoutError as error:
            raise QueueTimeoutError(self.kernel_id, timeout or 0.0, "receive") from error
        except RingError as error:
            raise KernelStateError(self.kernel_id, self.state.name, "receive message") from error
        body: TOut = answer.body
        return body

    def refresh(self) -> RingKernelTelemetry:
        """The telemetry, with what only the mailboxes know."""
        figures = self.telemetry
        if self._actor is not None:
            known = self._actor.telemetry()
            figures.queue_depth = known.input_depth
            figures.messages_dropped = known.dropped + known.displaced
            figures.uptime_seconds = known.uptime
        return figures

    def share(self, runtime: ring.RingKernelRuntime) -> None:
        """Run in this runtime, which ends by itself."""
        self._runtime = runtime

    async def _run(self, inner: Any) -> None:
        """The function of the ring's actor: the given one, and after it nothing until the end."""
        queues = (self.input_queue, self.output_queue)
        context = LaunchedContext(self.kernel_id, queues, inner, self.telemetry, self._ending.is_set)
        try:
            made = self._function(context)
            if inspect.isawaitable(made):
                await made
        except QueueTimeoutError as error:
            if error is context.told:
                return
            if context.timed_out is not None and error is context.timed_out[0]:
                raise context.timed_out[1] from None
            self.telemetry.record_error(f"{type(error).__name__}: {error}")
            raise
        except Exception as error:
            self.telemetry.record_error(f"{type(error).__name__}: {error}")
            raise
        context.finished()
        self._is_parked = True
        await self._ending.wait()

    def _queue(self, size: int) -> Any:
        """A queue that stands for a mailbox of the actor once it is launched."""
        if self._config.use_fast_queue and self._policy != "drop_oldest":
            queue: RingMailbox[Any] = FastMessageQueue(size, kernel_id=self.kernel_id)
        else:
            queue = MessageQueue(
                size, backpressure=BackpressureStrategy[self._policy.upper()], kernel_id=self.kernel_id
            )
        return queue

    def _check(self, operation: str) -> None:
        state = self.state
        if state not in _FROM[operation]:
            raise KernelStateError(self.kernel_id, state.name, operation) from self._failure()

    def _failure(self) -> Exception | None:
        """What the actor raised, as the ring says it."""
        return ended_error(self._actor) if self._actor is not None and self._actor.error is not None else None

    def __repr__(self) -> str:
        return f"RingKernel(id={self.kernel_id!r}, state={self.state.name})"


@asynccontextmanager
async def managed_kernel(
    kernel_id: str, kernel_func: Callable[[KernelContext[TIn, TOut]], Any], **kwargs: Any
) -> AsyncIterator[RingKernel[TIn, TOut]]:
    """A `RingKernel` that is active inside of an ``async with`` block, and terminated at its end."""
    kernel: RingKernel[TIn, TOut] = RingKernel(kernel_id, kernel_func, **kwargs)
    await kernel.launch()
    await kernel.activate()
    try:
        yield kernel
    finally:
        await kernel.terminate()
