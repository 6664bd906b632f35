"""`@ring_kernel`: what an actor is, before it runs."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, overload

from pygpukit.errors import RingError
from pygpukit.ring.limits import MOST_SECONDS, is_number
from pygpukit.ring.message import Message
from pygpukit.ring.states import Backpressure

__all__ = ["RingKernel", "find_kernel", "find_subscribers", "ring_kernel"]

_lock = threading.Lock()
_kernels: dict[str, RingKernel] = {}

_LARGEST_QUEUE = 1 << 24

# Seconds between the ticks of a timer, at least.
_SHORTEST = 1e-6

# Ids that an error names.
_LISTED = 20


@dataclass(frozen=True, eq=False)
class RingKernel:
    """An actor's function and options; `ring_kernel` makes it. Calling it calls the function.

    `kind` says what runs it: ``"coroutine"`` (a coroutine function, in the runtime's event loop), ``"thread"`` (a plain
    function, in a thread of its own) or ``"device"``.
    """

    function: Callable[..., Any]
    kernel_id: str
    input_type: type[Message] | None = None
    output_type: type[Message] | None = None
    input_queue_size: int = 4096
    output_queue_size: int = 4096
    grid_size: int = 1
    block_size: int = 128
    backpressure: Backpressure = Backpressure.BLOCK
    device: str = "host"
    state: dict[str, Any] = field(default_factory=dict)
    dedicated: bool | None = None
    restart: str = "never"
    max_restarts: int = 3
    restart_window: float = 60.0
    escalate: bool = False
    topics: tuple[str, ...] = ()
    every: float | None = None

    def __post_init__(self) -> None:
        if not self.kernel_id or type(self.kernel_id) is not str:
            raise RingError(f"kernel_id must be a name, not {self.kernel_id!r}")
        self._check_function()
        for name, most in (("input_queue_size", _LARGEST_QUEUE), ("output_queue_size", _LARGEST_QUEUE)):
            self._check_range(name, 1, most)
        self._check_range("grid_size", 1, (1 << 31) - 1)
        self._check_range("block_size", 1, 1024)
        self._check_range("max_restarts", 0, 1 << 31)
        if self.restart not in ("never", "on_failure"):
            raise RingError(f"restart of {self.kernel_id!r} must be 'never' or 'on_failure', not {self.restart!r}")
        if not is_number(self.restart_window) or not 0 < self.restart_window <= MOST_SECONDS:
            raise RingError(
                f"restart_window of {self.kernel_id!r} must be seconds above 0 and at most {MOST_SECONDS:g}, not "
                f"{self.restart_window!r}"
            )
        for name, allowed in (("dedicated", (None, True, False)), ("escalate", (True, False))):
            if not any(getattr(self, name) is one for one in allowed):
                named = ", ".join(map(str, allowed))
                raise RingError(f"{name} of {self.kernel_id!r} must be one of {named}, not {getattr(self, name)!r}")
        for name in ("input_type", "output_type"):
            given = getattr(self, name)
            if given is not None and not (isinstance(given, type) and issubclass(given, Message)):
                raise RingError(f"{name} of {self.kernel_id!r} must be a class made by @message, not {given!r}")
        if self.device not in ("host", "gpu"):
            raise RingError(f"device of {self.kernel_id!r} must be 'host' or 'gpu', not {self.device!r}")
        if self.device == "gpu" and inspect.iscoroutinefunction(_called(self.function)):
            raise RingError(
                f"{self.kernel_id!r} is a coroutine, and those run on the host; for device='gpu' write a plain "
                "function whose docstring is the CUDA C++ source of the handler"
            )
        for topic in self.topics:
            if not topic or type(topic) is not str:
                raise RingError(f"topics of {self.kernel_id!r} must be names, not {topic!r}")
        if self.every is not None:
            self._check_timer()

    def _check_function(self) -> None:
        called = _called(self.function)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(
                f"{self.kernel_id!r} has 'yield': calling it makes a generator and runs nothing. An actor is a "
                "function or a coroutine function that sends by ctx.send(message)"
            )

    def _check_timer(self) -> None:
        every = self.every
        if self.device != "gpu":
            raise RingError(
                f"{self.kernel_id!r} is a host actor and has no timer: leave out every={every!r}, and let "
                "ctx.receive(timeout) raise TimeoutError when it is time"
            )
        if not is_number(every) or not _SHORTEST <= every <= MOST_SECONDS:  # type: ignore[operator]
            raise RingError(f"every of {self.kernel_id!r} must be seconds from 1e-6 to 1e9, not {every!r}")

    def _check_range(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or not low <= value <= high:
            raise RingError(f"{name} of {self.kernel_id!r} must be an int from {low} to {high}, not {value!r}")

    @property
    def kind(self) -> str:
        """What runs it."""
        if self.device == "gpu":
            return "device"
        return "coroutine" if inspect.iscoroutinefunction(_called(self.function)) else "thread"

    def takes(self, message: Any) -> bool:
        """May it be sent this? Host actors take instances of subclasses too; handlers on the device know one layout."""
        if self.device == "gpu":
            return type(message) is self.input_type
        return isinstance(message, self.input_type or Message)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _called(function: Callable[..., Any]) -> Any:
    """What runs when it is called: of an object that is no function, its method."""
    is_function = inspect.isroutine(function) or isinstance(function, functools.partial | type)
    return function if is_function else inspect.getattr_static(type(function), "__call__", function)


@overload
def ring_kernel(function: Callable[..., Any], /) -> RingKernel: ...
@overload
def ring_kernel(
    kernel_id: str | None = None,
    *,
    input_type: type[Any] | None = None,
    output_type: type[Any] | None = None,
    queue_size: int = 4096,
    input_queue_size: int | None = None,
    output_queue_size: int | None = None,
    grid_size: int = 1,
    block_size: int = 128,
    backpressure: Backpressure | str = Backpressure.BLOCK,
    device: str | None = None,
    state: dict[str, Any] | None = None,
    dedicated: bool | None = None,
    restart: str = "never",
    max_restarts: int = 3,
    restart_window: float = 60.0,
    escalate: bool = False,
    topics: Sequence[str] = (),
    every: float | None = None,
) -> Callable[[Callable[..., Any]], RingKernel]: ...
def ring_kernel(
    kernel_id: Any = None,
    *,
    input_type: type[Any] | None = None,
    output_type: type[Any] | None = None,
    queue_size: int = 4096,
    input_queue_size: int | None = None,
    output_queue_size: int | None = None,
    grid_size: int = 1,
    block_size: int = 128,
    backpressure: Backpressure | str = Backpressure.BLOCK,
    device: str | None = None,
    state: dict[str, Any] | None = None,
    dedicated: bool | None = None,
    restart: str = "never",
    max_restarts: int = 3,
    restart_window: float = 60.0,
    escalate: bool = False,
    topics: Sequence[str] = (),
    every: float | None = None,
) -> RingKernel | Callable[[Callable[..., Any]], RingKernel]:
    """Make a function a ring kernel: an actor with a typed mailbox.

    A coroutine function runs in the runtime's event loop, a plain function in a thread of its own; both are given a
    `KernelContext`. The kernel is known by its id to every `RingKernelRuntime` of the process. The same function
    defined again replaces it for kernels launched from then on: one of a module that is reloaded or of a notebook's
    cell, and any function inside of another one. Another function with the id is an error.

    Parameters
    ----------
    kernel_id : str, optional
        The name; the function's by default.
    input_type, output_type : type, optional
        Classes made by `message` that it takes and gives; None for any.
    queue_size, input_queue_size, output_queue_size : int
        Most messages in its mailboxes.
    grid_size, block_size : int
        Blocks of a device actor, all of which work on each message, and threads of a block.
    backpressure : {"block", "reject", "drop_oldest", "drop_new"} or Backpressure
        What happens to a message for a full mailbox.
    device : {"host", "gpu"}, optional
        Where it runs; the host by default.
    state : dict, optional
        Names and types of a device actor's state, or NumPy values that it begins with; else it begins with zeros.
    dedicated : bool, optional
        Give a device actor a block of its own, or let it share blocks with others. By default it has its own while
        there are free ones.
    restart : {"never", "on_failure"}
        What to do when it raises. The message it had goes to the dead letters.
    max_restarts : int
        In `restart_window` seconds; at one more it is FAILED.
    restart_window : float
        Seconds.
    escalate : bool
        When it is FAILED, end the runtime and raise there.
    topics : sequence of str
        Topics it subscribes to: it gets what others publish there, if it is of its input type.
    every : float, optional
        Of a device actor: seconds between two calls of the handler without a message, see ``ctx.is_tick()``.

    Returns
    -------
    callable
        The decorator; it returns a `RingKernel`.

    Examples
    --------
    >>> @ring_kernel(kernel_id="echo", queue_size=16)
    ... async def echo(ctx):
    ...     while not ctx.should_terminate:
    ...         await ctx.send(await ctx.receive())
    >>> echo.kind, echo.input_queue_size
    ('coroutine', 16)
    """
    if callable(kernel_id):
        return ring_kernel()(kernel_id)
    try:
        policy = Backpressure(backpressure)
    except ValueError:
        names = ", ".join(repr(one.value) for one in Backpressure)
        raise RingError(f"backpressure must be one of {names}, not {backpressure!r}") from None
    if isinstance(topics, str):
        raise RingError(f"topics must be a list of names, not one name; write topics=[{topics!r}]")

    def decorate(function: Callable[..., Any]) -> RingKernel:
        if not callable(function):
            raise RingError(f"@ring_kernel(...) decorates a function, not {function!r}")
        kernel = RingKernel(
            function=function,
            kernel_id=getattr(function, "__name__", None) if kernel_id is None else kernel_id,  # type: ignore[arg-type]
            input_type=input_type,
            output_type=output_type,
            input_queue_size=queue_size if input_queue_size is None else input_queue_size,
            output_queue_size=queue_size if output_queue_size is None else output_queue_size,
            grid_size=grid_size,
            block_size=block_size,
            backpressure=policy,
            device="host" if device is None else device,
            state=dict(state or {}),
            dedicated=dedicated,
            restart=restart,
            max_restarts=max_restarts,
            restart_window=restart_window,
            escalate=escalate,
            topics=tuple(dict.fromkeys(topics)),
            every=every,
        )
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            object.__setattr__(kernel, name, getattr(function, name, None))
        object.__setattr__(kernel, "__wrapped__", function)
        with _lock:
            before = _kernels.get(kernel.kernel_id)
            if before is not None and not _is_redefinition(before.function, function):
                raise RingError(
                    f"there is a ring kernel {kernel.kernel_id!r} already, defined at {_place(before.function)}; "
                    f"the one at {_place(function)} needs another kernel_id"
                )
            _kernels[kernel.kernel_id] = kernel
        return kernel

    return decorate


def _is_redefinition(before: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Is it the same function again: of a module that is loaded again, of a notebook's cell that runs again?

    Functions inside of others may be defined in each of their calls, so they replace each other.
    """
    names = [(getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (before, function)]
    is_inner = any("<locals>" in str(qualname) for _, qualname in names)
    return names[0] == names[1] or is_inner or None in names[0] or None in names[1]


def _place(function: Callable[..., Any]) -> str:
    """File and line of a function, with its name."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{code.co_filename}:{code.co_firstlineno} ({name})"


def find_kernel(kernel_id: str | RingKernel) -> RingKernel:
    """The kernel of an id; a kernel is its own.

    Raises
    ------
    RingError
        If there is none; the text lists those there are, the first ones of many.
    """
    if isinstance(kernel_id, RingKernel):
        return kernel_id
    if not isinstance(kernel_id, str):
        raise TypeError(
            f"a ring kernel is named by its id or by what @ring_kernel returned, not by {kernel_id!r} "
            f"({type(kernel_id).__name__})"
        )
    with _lock:
        found = _kernels.get(kernel_id)
        if found is not None:
            return found
        # There may be very many of them.
        known, count = list(islice(_kernels, _LISTED)), len(_kernels)
    listed = ", ".join(sorted(known)) or "none"
    others = f" and {count - len(known)} others" if count > len(known) else ""
    raise RingError(f"there is no ring kernel {kernel_id!r}; those defined by @ring_kernel are: {listed}{others}")


def find_subscribers(topic: str) -> list[RingKernel]:
    """The kernels defined so far that subscribe to a topic."""
    with _lock:
        return [kernel for kernel in _kernels.values() if topic in kernel.topics]
