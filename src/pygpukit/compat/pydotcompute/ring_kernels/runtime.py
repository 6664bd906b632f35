"""`RingKernelRuntime`: PyDotCompute's runtime over the ring's."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from pygpukit import ring
from pygpukit.compat.pydotcompute.exceptions import KernelAlreadyExistsError, KernelNotFoundError
from pygpukit.compat.pydotcompute.ring_kernels.lifecycle import (
    KernelContext,
    KernelState,
    RingKernel,
    RingKernelConfig,
)
from pygpukit.compat.pydotcompute.ring_kernels.telemetry import RingKernelTelemetry, TelemetryCollector

__all__ = ["RingKernelRuntime", "get_registered_kernel", "register_ring_kernel"]

TIn = TypeVar("TIn")
TOut = TypeVar("TOut")

_registered: dict[str, dict[str, Any]] = {}


def register_ring_kernel(
    kernel_id: str,
    func: Callable[..., Any],
    input_type: type | None = None,
    output_type: type | None = None,
    **config: Any,
) -> None:
    """Let `RingKernelRuntime.launch` find a function by an id; the last one of an id counts."""
    _registered[kernel_id] = {"func": func, "input_type": input_type, "output_type": output_type, "config": config}


def get_registered_kernel(kernel_id: str) -> dict[str, Any] | None:
    """``func``, ``input_type``, ``output_type`` and ``config`` of an id, or None."""
    return _registered.get(kernel_id)


class RingKernelRuntime:
    """Launches actors and carries messages to and from them.

    Parameters
    ----------
    enable_telemetry : bool
        Give telemetry; the ring counts in any case.
    use_uvloop, use_eager_tasks : bool
        Accepted. The event loop is the program's, and stays as it is.

    Examples
    --------
    >>> import asyncio
    >>> from pygpukit.compat.pydotcompute.ring_kernels.message import message
    >>> @message
    ... class Number:
    ...     value: float
    >>> async def double(ctx):
    ...     while not ctx.should_terminate:
    ...         await ctx.send(Number(2 * (await ctx.receive()).value))
    >>> async def main():
    ...     async with RingKernelRuntime() as runtime, runtime.kernel_scope("double", double):
    ...         return (await runtime.send_and_receive("double", Number(21.0))).value
    >>> asyncio.run(main())
    42.0
    """

    def __init__(self, *, enable_telemetry: bool = True, use_uvloop: bool = True, use_eager_tasks: bool = True) -> None:
        self._ring = ring.RingKernelRuntime()
        self._kernels: dict[str, RingKernel[Any, Any]] = {}
        self._telemetry = TelemetryCollector()
        self._has_telemetry = enable_telemetry
        self._is_active = False

    @property
    def is_active(self) -> bool:
        """Was it started, and not shut down?"""
        return self._is_active

    @property
    def kernel_ids(self) -> list[str]:
        """Ids of the kernels that were launched and not terminated."""
        return list(self._kernels)

    async def start(self) -> None:
        """Begin in the event loop that runs; once is enough."""
        if not self._is_active:
            await self._ring.start()
            self._is_active = True

    async def shutdown(self, timeout: float = 10.0) -> None:
        """Terminate all kernels; each has `timeout` seconds for what was accepted."""
        if not self._is_active:
            return
        self._is_active = False
        await asyncio.gather(*(self.terminate(kernel_id, timeout) for kernel_id in self.kernel_ids))
        await self._ring.shutdown(timeout=timeout)

    async def launch(
        self,
        kernel_id: str,
        kernel_func: Callable[[KernelContext[TIn, TOut]], Any] | None = None,
        *,
        config: RingKernelConfig | None = None,
        input_type: type[TIn] | None = None,
        output_type: type[TOut] | None = None,
    ) -> RingKernel[TIn, TOut]:
        """Start a function, or the one registered under the id. A runtime that was not started is.

        Raises
        ------
        KernelAlreadyExistsError
            If a kernel of this id was launched and not terminated.
        KernelNotFoundError
            If no function is given and none is registered.
        """
        if kernel_id in self._kernels:
            raise KernelAlreadyExistsError(kernel_id)
        function: Any = kernel_func
        meta = getattr(kernel_func, "_ring_kernel_meta", None) or {}
        known = _registered.get(kernel_id)
        if function is None:
            if known is None:
                raise KernelNotFoundError(kernel_id, sorted({*_registered, *self._kernels}))
            function, meta = known["func"], known
        if config is None:
            names = set(RingKernelConfig.__dataclass_fields__) - {"kernel_id"}
            options = {name: value for name, value in meta.get("config", {}).items() if name in names}
            config = RingKernelConfig(kernel_id, **options)
        kernel: RingKernel[TIn, TOut] = RingKernel(
            kernel_id,
            function,
            config=config,
            input_type=input_type or meta.get("input_type"),
            output_type=output_type or meta.get("output_type"),
        )
        kernel.share(self._ring)
        # The id is taken before anything is awaited.
        self._kernels[kernel_id] = kernel
        kernel.telemetry = self._telemetry.register_kernel(kernel_id)
        try:
            await self.start()
            await kernel.launch()
        except BaseException:
            self._forget(kernel_id)
            raise
        return kernel

    async def activate(self, kernel_id: str) -> None:
        """Deliver messages to a launched kernel."""
        await self._find(kernel_id).activate()

    async def deactivate(self, kernel_id: str) -> None:
        """Deliver no more messages to a kernel."""
        await self._find(kernel_id).deactivate()

    async def reactivate(self, kernel_id: str) -> None:
        """Deliver messages to a deactivated kernel again."""
        await self._find(kernel_id).reactivate()

    async def terminate(self, kernel_id: str, timeout: float = 5.0) -> None:
        """End a kernel, which has `timeout` seconds for what was accepted, and forget its id."""
        await self._find(kernel_id).terminate(timeout)
        self._forget(kernel_id)

    async def send(self, kernel_id: str, message: Any, *, timeout: float | None = None) -> None:
        """Send a message to a kernel; `QueueFullError` or `QueueTimeoutError` when there is no room."""
        await self._find(kernel_id).send(message, timeout)

    async def receive(self, kernel_id: str, *, timeout: float | None = None) -> Any:
        """The next message that a kernel sent; `QueueTimeoutError` when none came in time."""
        return await self._find(kernel_id).receive(timeout)

    async def send_and_receive(self, kernel_id: str, message: Any, *, timeout: float | None = None) -> Any:
        """Send a message and wait for the answer to it; `QueueTimeoutError` when none came in time."""
        return await self._find(kernel_id).ask(message, timeout)

    def get_kernel_state(self, kernel_id: str) -> KernelState:
        """Where a kernel is in its life."""
        return self._find(kernel_id).state

    def get_telemetry(self, kernel_id: str) -> RingKernelTelemetry | None:
        """What happened to a kernel's messages; None without telemetry, or if there is no such kernel."""
        if not self._has_telemetry or kernel_id not in self._kernels:
            return None
        return self._kernels[kernel_id].refresh()

    def get_all_telemetry(self) -> dict[str, RingKernelTelemetry]:
        """The telemetry of all kernels by id."""
        return {kernel_id: kernel.refresh() for kernel_id, kernel in self._kernels.items() if self._has_telemetry}

    def get_summary(self) -> dict[str, object]:
        """Sums over all kernels."""
        for kernel in self._kernels.values():
            kernel.refresh()
        return self._telemetry.get_summary()

    @asynccontextmanager
    async def kernel_scope(
        self, kernel_id: str, kernel_func: Callable[[KernelContext[TIn, TOut]], Any] | None = None, **kwargs: Any
    ) -> AsyncIterator[RingKernel[TIn, TOut]]:
        """A kernel that is active inside of an ``async with`` block, and terminated at its end."""
        kernel: RingKernel[TIn, TOut] = await self.launch(kernel_id, kernel_func, **kwargs)
        try:
            await self.activate(kernel_id)
            yield kernel
        finally:
            if self._kernels.get(kernel_id) is kernel:
                await self.terminate(kernel_id)

    def get_loop_info(self) -> dict[str, str | bool]:
        """Which event loop runs. Nothing is installed into it, whatever was asked for."""
        try:
            loop: Any = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        kind = type(loop)
        is_uvloop = kind.__module__.split(".")[0] == "uvloop"
        return {
            "loop_class": "none" if loop is None else kind.__name__,
            "uvloop_available": find_spec("uvloop") is not None,
            "uvloop_installed": is_uvloop,
            "eager_tasks_available": sys.version_info >= (3, 12),
            "eager_tasks_installed": False,
            "platform": sys.platform,
            "python_version": platform.python_version(),
            "runtime_uvloop_installed": False,
            "runtime_eager_tasks_installed": False,
        }

    def _forget(self, kernel_id: str) -> None:
        self._kernels.pop(kernel_id, None)
        self._telemetry.unregister_kernel(kernel_id)

    def _find(self, kernel_id: str) -> RingKernel[Any, Any]:
        found = self._kernels.get(kernel_id)
        if found is None:
            raise KernelNotFoundError(kernel_id, self.kernel_ids)
        return found

    async def __aenter__(self) -> RingKernelRuntime:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    def __repr__(self) -> str:
        known = f"kernels={len(self._kernels)}, telemetry={self._has_telemetry}"
        return f"RingKernelRuntime(active={self._is_active}, {known})"
