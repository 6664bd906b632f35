"""`ComputeOrchestrator` under PyDotCompute's names; kernels go through the ring's."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from pygpukit import ring
from pygpukit._pygpukit_rust import Kernel
from pygpukit.compat.pydotcompute.core.accelerator import Accelerator, get_accelerator, is_on_gpu
from pygpukit.compat.pydotcompute.core.memory_pool import MemoryPool, get_memory_pool
from pygpukit.compat.pydotcompute.exceptions import CUDAError, KernelCompilationError
from pygpukit.core.device import synchronize
from pygpukit.errors import GPUKitError, KernelCompileError

__all__ = ["ComputeOrchestrator", "KernelExecution", "KernelLaunchConfig"]


@dataclass
class KernelLaunchConfig:
    """How a kernel is launched; ints become tuples."""

    grid_size: tuple[int, ...] = (1,)
    block_size: tuple[int, ...] = (256,)
    shared_memory_bytes: int = 0
    stream: object | None = None

    def __post_init__(self) -> None:
        for name in ("grid_size", "block_size"):
            given = getattr(self, name)
            if isinstance(given, int):
                setattr(self, name, (given,))


@dataclass
class KernelExecution:
    """One launch and what came of it; times are seconds of ``time.perf_counter()``."""

    execution_id: UUID = field(default_factory=uuid4)
    kernel_name: str = ""
    config: KernelLaunchConfig = field(default_factory=KernelLaunchConfig)
    start_time: float = 0.0
    end_time: float = 0.0
    success: bool = False
    error: Exception | None = None

    @property
    def duration_ms(self) -> float:
        """Milliseconds from start to end."""
        return (self.end_time - self.start_time) * 1e3


class ComputeOrchestrator:
    """Launches kernels by name, and keeps what came of them.

    Examples
    --------
    >>> import asyncio
    >>> async def main():
    ...     async with ComputeOrchestrator() as orchestrator:
    ...         orchestrator.register_kernel("add", lambda x, y: x + y)
    ...         return await orchestrator.launch_kernel("add", KernelLaunchConfig(), 1, y=2)
    >>> asyncio.run(main()).success
    True
    """

    def __init__(self) -> None:
        self._active = False
        self._accelerator: Accelerator | None = None
        self._memory_pool: MemoryPool | None = None
        self._registered_kernels: dict[str, Callable[..., Any]] = {}
        self._execution_history: list[KernelExecution] = []
        self._ring = ring.ComputeOrchestrator()

    @property
    def is_active(self) -> bool:
        """Was it initialized, and not shut down?"""
        return self._active

    @property
    def accelerator(self) -> Accelerator | None:
        """The machine's devices; None before it was initialized."""
        return self._accelerator

    @property
    def memory_pool(self) -> MemoryPool | None:
        """The memory pool; None before it was initialized."""
        return self._memory_pool

    async def initialize(self) -> None:
        """Begin; once is enough."""
        if self._active:
            return
        self._accelerator = get_accelerator()
        self._memory_pool = get_memory_pool()
        self._memory_pool.enable()
        self._active = True

    async def shutdown(self) -> None:
        """Wait for the device, and end; once is enough."""
        if self._active:
            self.synchronize()
            self._active = False

    def register_kernel(self, name: str, kernel_func: Callable[..., Any]) -> None:
        """Give a kernel or a function a name; the last one of a name counts."""
        self._registered_kernels[name] = kernel_func

    def get_kernel(self, name: str) -> Callable[..., Any] | None:
        """The kernel of a name, or None."""
        return self._registered_kernels.get(name)

    async def launch_kernel(
        self, kernel: Callable[..., Any] | str, config: KernelLaunchConfig, *args: Any, **kwargs: Any
    ) -> KernelExecution:
        """Launch a kernel and wait for it. A function is called here, and a coroutine function awaited.

        Raises
        ------
        ValueError
            If no kernel of this name is registered. What a kernel raises is raised too, after it was noted.
        """
        name = kernel if isinstance(kernel, str) else str(getattr(kernel, "__name__", kernel))
        function = self._registered_kernels.get(kernel) if isinstance(kernel, str) else kernel
        if function is None:
            known = ", ".join(sorted(self._registered_kernels)) or "none"
            raise ValueError(f"kernel {name!r} is not registered; registered are: {known}")
        execution = KernelExecution(kernel_name=name, config=config, start_time=time.perf_counter())
        self._execution_history.append(execution)
        try:
            await self._call(function, config, args, kwargs)
            execution.success = True
        except Exception as error:
            execution.error = error
            raise
        finally:
            execution.end_time = time.perf_counter()
        return execution

    def create_stream(self) -> Any:
        """A stream; None without a GPU."""
        return self._ring.create_stream() if is_on_gpu() else None

    def synchronize(self) -> None:
        """Wait for everything the device was given."""
        synchronize()

    def get_execution_history(self, limit: int | None = None, kernel_name: str | None = None) -> list[KernelExecution]:
        """The launches, oldest first: those of a name, and the last `limit` of them."""
        found = [one for one in self._execution_history if kernel_name in (None, one.kernel_name)]
        return found[-limit:] if limit else found

    def clear_execution_history(self) -> None:
        """Forget the launches."""
        self._execution_history.clear()

    @asynccontextmanager
    async def stream_context(self) -> AsyncIterator[Any]:
        """A stream that is waited for at the end of the block; None without a GPU."""
        stream = self.create_stream()
        try:
            yield stream
        finally:
            if stream is not None:
                stream.synchronize()

    async def _call(
        self, function: Any, config: KernelLaunchConfig, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        device_kernel = getattr(function, "device_kernel", None)
        target = device_kernel() if callable(device_kernel) else function
        if not isinstance(target, Kernel | ring.LaunchableKernel):
            made = function(*args, **kwargs)
            if inspect.isawaitable(made):
                await made
            return
        options: Any = ring.KernelLaunchConfig(
            tuple(config.grid_size),
            tuple(config.block_size),
            config.shared_memory_bytes,
            config.stream,  # type: ignore[arg-type]
        )
        await self._ring.__aenter__()
        done = await self._ring.launch_kernel(target, options, *args)
        if isinstance(done.error, KernelCompileError):
            raise KernelCompilationError(target.name, done.error) from done.error
        if isinstance(done.error, GPUKitError):
            raise CUDAError(str(done.error)) from done.error
        if done.error is not None:
            raise done.error

    async def __aenter__(self) -> ComputeOrchestrator:
        await self.initialize()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    def __repr__(self) -> str:
        counts = f"kernels={len(self._registered_kernels)}, executions={len(self._execution_history)}"
        return f"ComputeOrchestrator(active={self._active}, {counts})"
