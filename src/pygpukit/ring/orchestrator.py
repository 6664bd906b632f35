"""`ComputeOrchestrator`: named kernels, launched from coroutines, with a history of what they took."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pygpukit._pygpukit_rust import Event, Kernel, Stream, current_context, current_stream, swap_context
from pygpukit.core.device import synchronize
from pygpukit.errors import RingError
from pygpukit.ring.accelerator import Accelerator
from pygpukit.ring.launchable import LaunchableKernel

__all__ = ["ComputeOrchestrator", "KernelExecution", "KernelLaunchConfig"]

Size = int | tuple[int, ...]

_HISTORY = 10_000


@dataclass(frozen=True)
class KernelLaunchConfig:
    """How a kernel is launched. A grid of None is inferred from the arguments."""

    grid_size: Size | None = None
    block_size: Size | None = None
    shared_memory_bytes: int = 0
    stream: Stream | None = None

    def __post_init__(self) -> None:
        for name in ("grid_size", "block_size"):
            given = getattr(self, name)
            sizes = given if isinstance(given, tuple | list) else (given,)
            if given is not None and (not 1 <= len(sizes) <= 3 or any(type(s) is not int or s < 1 for s in sizes)):
                raise RingError(f"{name} must be one to three ints from 1, not {given!r}")
        if type(self.shared_memory_bytes) is not int or self.shared_memory_bytes < 0:
            raise RingError(f"shared_memory_bytes must be an int from 0, not {self.shared_memory_bytes!r}")
        if not isinstance(self.stream, Stream | None):
            raise RingError(f"stream must be a Stream or None, not {self.stream!r}")


@dataclass(frozen=True)
class KernelExecution:
    """One launch and what came of it."""

    kernel_name: str
    config: KernelLaunchConfig
    duration_ms: float
    """On the device, from events around the launch; on the host for a function that is no kernel."""
    success: bool
    error: BaseException | None = field(default=None, repr=False)
    start_time: float = 0.0
    """Seconds of ``time.monotonic()``."""


class ComputeOrchestrator:
    """Launches kernels from coroutines and waits for them without holding up the event loop.

    Examples
    --------
    >>> import asyncio
    >>> async def main():
    ...     async with ComputeOrchestrator() as orchestrator:
    ...         orchestrator.register_kernel("nothing", lambda: None)
    ...         return await orchestrator.launch_kernel("nothing", KernelLaunchConfig())
    >>> asyncio.run(main()).success
    True
    """

    def __init__(self) -> None:
        self.accelerator = Accelerator()
        self._kernels: dict[str, Callable[..., Any]] = {}
        self._history: deque[KernelExecution] = deque(maxlen=_HISTORY)
        self._streams: list[Stream] = []
        self._is_open = False

    async def __aenter__(self) -> ComputeOrchestrator:
        self._is_open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.synchronize()
        self._is_open = False
        self._streams.clear()

    @property
    def is_active(self) -> bool:
        """Is it inside of its ``async with`` block?"""
        return self._is_open

    def register_kernel(self, name: str, fn: Callable[..., Any]) -> None:
        """Give a kernel a name."""
        if not name or type(name) is not str:
            raise RingError(f"the name of a kernel must be a str, not {name!r}")
        if not callable(fn):
            raise RingError(f"{name!r} must be a kernel or a function, not {fn!r}")
        self._kernels[name] = fn

    def get_kernel(self, name: str) -> Callable[..., Any]:
        """The kernel of a name."""
        found = self._kernels.get(name)
        if found is None:
            raise RingError(
                f"there is no kernel {name!r}; registered are: {', '.join(sorted(self._kernels)) or 'none'}"
            )
        return found

    def create_stream(self, priority: str | int | None = None) -> Stream:
        """A stream that `synchronize` waits for."""
        stream = Stream(priority)
        self._streams.append(stream)
        return stream

    async def launch_kernel(
        self, kernel: Callable[..., Any] | str, config: KernelLaunchConfig | None = None, *args: Any
    ) -> KernelExecution:
        """Launch a kernel and wait for it.

        Parameters
        ----------
        kernel : kernel, callable or str
            What to launch, or its registered name. A function that is no kernel is called with the arguments in a
            thread, on the stream and with the current pool.
        config : KernelLaunchConfig, optional
            Grid, block, shared memory and stream.
        *args
            For the kernel.

        Returns
        -------
        KernelExecution
            With `success`; a failure is in `error` and is not raised. A coroutine function is one.
        """
        if not self._is_open:
            raise RingError("the orchestrator is not open: use 'async with ComputeOrchestrator() as orchestrator'")
        config = config or KernelLaunchConfig()
        fn = self.get_kernel(kernel) if isinstance(kernel, str) else kernel
        name = kernel if isinstance(kernel, str) else str(getattr(fn, "name", "") or getattr(fn, "__name__", fn))
        start = time.monotonic()
        error: BaseException | None = None
        milliseconds = 0.0
        try:
            milliseconds = await self._timed(fn, config, args)
        except Exception as raised:
            error = raised
        done = KernelExecution(name, config, milliseconds, error is None, error, start)
        self._history.append(done)
        return done

    async def synchronize(self) -> None:
        """Wait for everything the device was given."""
        await _in_thread(synchronize)

    def get_execution_history(self, limit: int | None = None, kernel_name: str | None = None) -> list[KernelExecution]:
        """The last launches, oldest first."""
        found = [one for one in self._history if kernel_name in (None, one.kernel_name)]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def clear_execution_history(self) -> None:
        """Forget the launches."""
        self._history.clear()

    async def _timed(self, fn: Callable[..., Any], config: KernelLaunchConfig, args: tuple[Any, ...]) -> float:
        """Milliseconds that a launch took."""
        stream = config.stream or current_stream()
        if isinstance(fn, Kernel | LaunchableKernel):
            # Here, so that those that are launched one after another come to the stream in that order.
            with stream:
                begin = stream.record(Event())
                fn(*args, grid=config.grid_size, block=config.block_size, shared=config.shared_memory_bytes)
                end = stream.record(Event())
            await asyncio.to_thread(end.synchronize)
            return begin.elapsed_ms(end)

        def call() -> None:
            with stream:
                made = fn(*args)
                if inspect.iscoroutine(made):
                    made.close()
                    raise TypeError(f"{fn!r} is a coroutine function, and cannot be launched: await it instead")
                stream.record(Event()).synchronize()

        start = time.perf_counter()
        await _in_thread(call)
        return (time.perf_counter() - start) * 1e3


async def _in_thread(call: Callable[[], None]) -> None:
    """Call something in a thread, with the device, stream and pool of this one."""
    context = current_context()

    def there() -> None:
        outside = swap_context(context)
        try:
            call()
        finally:
            swap_context(outside)

    await asyncio.to_thread(there)
