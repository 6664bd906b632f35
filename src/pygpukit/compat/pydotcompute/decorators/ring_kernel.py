"""`@ring_kernel`: notes what an actor is on its function, and registers it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from pygpukit.compat.pydotcompute.ring_kernels.runtime import register_ring_kernel

__all__ = ["RingKernelBuilder", "get_ring_kernel_meta", "is_ring_kernel", "ring_kernel"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def ring_kernel(func: F) -> F: ...
@overload
def ring_kernel(
    func: None = None,
    *,
    kernel_id: str | None = None,
    input_type: type | None = None,
    output_type: type | None = None,
    queue_size: int = 4096,
    input_queue_size: int | None = None,
    output_queue_size: int | None = None,
    grid_size: int = 1,
    block_size: int = 256,
    backpressure: str = "block",
    auto_register: bool = True,
) -> Callable[[F], F]: ...
def ring_kernel(
    func: Any = None,
    *,
    kernel_id: str | None = None,
    input_type: type | None = None,
    output_type: type | None = None,
    queue_size: int = 4096,
    input_queue_size: int | None = None,
    output_queue_size: int | None = None,
    grid_size: int = 1,
    block_size: int = 256,
    backpressure: str = "block",
    auto_register: bool = True,
) -> Any:
    """Make a function an actor of `RingKernelRuntime`.

    Parameters
    ----------
    func : callable, optional
        The function, where the decorator is written without parentheses.
    kernel_id : str, optional
        Its id; the function's name by default.
    input_type, output_type : type, optional
        For the reader.
    queue_size, input_queue_size, output_queue_size : int
        Most messages in its queues.
    grid_size, block_size : int
        Kept in the configuration; an actor on the host has neither.
    backpressure : {"block", "reject", "drop_oldest"}
        What happens to a message for a full queue.
    auto_register : bool
        Let `RingKernelRuntime.launch` find it by its id.
    """

    def decorate(function: F) -> F:
        actor = _copied(function)
        config = {
            "input_queue_size": queue_size if input_queue_size is None else input_queue_size,
            "output_queue_size": queue_size if output_queue_size is None else output_queue_size,
            "grid_size": grid_size,
            "block_size": block_size,
            "backpressure_strategy": backpressure,
        }
        name = str(kernel_id or getattr(function, "__name__", "ring_kernel"))
        actor._ring_kernel_meta = {
            "kernel_id": name,
            "input_type": input_type,
            "output_type": output_type,
            "config": config,
        }
        if auto_register:
            register_ring_kernel(name, actor, input_type, output_type, **config)
        return actor  # type: ignore[no-any-return]

    return decorate if func is None else decorate(func)


def get_ring_kernel_meta(func: Callable[..., Any]) -> dict[str, Any] | None:
    """``kernel_id``, ``input_type``, ``output_type`` and ``config`` of a decorated function, or None."""
    return getattr(func, "_ring_kernel_meta", None)


def is_ring_kernel(func: Callable[..., Any]) -> bool:
    """Was it decorated?"""
    return get_ring_kernel_meta(func) is not None


def _copied(function: Any) -> Any:
    """A function that calls the given one, so that one function can be several actors."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def actor(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return actor

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return plain


class RingKernelBuilder:
    """An actor said step by step.

    Parameters
    ----------
    kernel_id : str
        Its id.
    """

    def __init__(self, kernel_id: str) -> None:
        self._kernel_id = kernel_id
        self._input_type: type | None = None
        self._output_type: type | None = None
        self._input_queue_size = 4096
        self._output_queue_size = 4096
        self._grid_size = 1
        self._block_size = 256
        self._backpressure = "block"
        self._handler: Callable[..., Any] | None = None

    def with_input_type(self, input_type: type) -> RingKernelBuilder:
        """The class of what it receives."""
        self._input_type = input_type
        return self

    def with_output_type(self, output_type: type) -> RingKernelBuilder:
        """The class of what it sends."""
        self._output_type = output_type
        return self

    def with_queue_size(self, size: int) -> RingKernelBuilder:
        """Most messages in each of its queues."""
        self._input_queue_size = self._output_queue_size = size
        return self

    def with_input_queue_size(self, size: int) -> RingKernelBuilder:
        """Most messages in its input queue."""
        self._input_queue_size = size
        return self

    def with_output_queue_size(self, size: int) -> RingKernelBuilder:
        """Most messages in its output queue."""
        self._output_queue_size = size
        return self

    def with_grid_size(self, size: int) -> RingKernelBuilder:
        """Blocks, which are kept in the configuration."""
        self._grid_size = size
        return self

    def with_block_size(self, size: int) -> RingKernelBuilder:
        """Threads of a block, which are kept in the configuration."""
        self._block_size = size
        return self

    def with_backpressure(self, strategy: str) -> RingKernelBuilder:
        """What happens to a message for a full queue."""
        self._backpressure = strategy
        return self

    def with_handler(self, handler: Callable[..., Any]) -> RingKernelBuilder:
        """The actor's function."""
        self._handler = handler
        return self

    def build(self) -> Callable[..., Any]:
        """The decorated function, registered under its id.

        Raises
        ------
        ValueError
            If no handler was given.
        """
        if self._handler is None:
            raise ValueError(f"ring kernel {self._kernel_id!r} has no function; call with_handler(function) first")
        made: Callable[..., Any] = ring_kernel(
            kernel_id=self._kernel_id,
            input_type=self._input_type,
            output_type=self._output_type,
            input_queue_size=self._input_queue_size,
            output_queue_size=self._output_queue_size,
            grid_size=self._grid_size,
            block_size=self._block_size,
            backpressure=self._backpressure,
        )(self._handler)
        return made

    def __repr__(self) -> str:
        return f"RingKernelBuilder(id={self._kernel_id!r})"
