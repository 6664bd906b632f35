"""torch inside a task: its operators take the task's turns, on its lane's stream.

Nothing here imports torch: whoever has imported it gets it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from pygpukit.scheduler.torch_memory import TorchMemory

if TYPE_CHECKING:
    from types import ModuleType

    from pygpukit import _pygpukit_rust as _native

__all__ = ["OperatorTurns", "Torch", "loaded_torch", "memory_of", "operators_in_turns"]

# Of torch's default stream.
_DEFAULT = 0

# A number for each operator, 0 for those without work on the device.
_seeds: dict[Any, int] = {}


def loaded_torch() -> ModuleType | None:
    """The torch module, if it is loaded and made for CUDA."""
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    return torch if cuda is not None and hasattr(torch, "cuda") else None


class Torch:
    """torch's current stream in this thread, for a device.

    Parameters
    ----------
    torch : module
        torch.
    index : int
        Number of the device.
    """

    def __init__(self, torch: Any, index: int) -> None:
        self.module = torch
        self.index = index
        self._streams: dict[int, Any] = {}

    @property
    def is_ready(self) -> bool:
        """Does torch use the GPU already?"""
        return bool(self.module.cuda.is_initialized())

    def current(self) -> int:
        """Handle of the current stream."""
        return int(self.module._C._cuda_getCurrentRawStream(self.index))

    def set(self, handle: int) -> None:
        """Make the stream with this handle the current one."""
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = self.module.cuda.ExternalStream(handle, device=self.index)
        self.module.cuda.set_stream(stream)

    def prepare(self) -> bool:
        """Have torch use the GPU; False where it cannot."""
        cuda = self.module.cuda
        if not self.is_ready and cuda.is_available():
            cuda.init()
        return self.is_ready

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put stream and device back at the end."""
        cuda = self.module.cuda
        before = (cuda.current_stream(self.index), cuda.current_device()) if self.is_ready else None
        try:
            yield
        finally:
            if self.is_ready:
                stream, device = before or (cuda.default_stream(self.index), cuda.current_device())
                cuda.set_stream(stream)
                cuda.set_device(device)


class OperatorTurns:
    """Gives each operator on the device its turn; a dispatch mode when mixed with torch's.

    Work on a stream that the task's own code has chosen is left there.

    Parameters
    ----------
    lease : TaskLease
        The task's.
    torch : Torch
        Its current stream.
    memory : TorchMemory, optional
        Where the operators' memory comes from; from torch's own by default.
    """

    def __init__(self, lease: _native.TaskLease, torch: Torch, memory: TorchMemory | None) -> None:
        super().__init__()
        self.memory = memory
        self.has_strayed = False
        self.is_paused = False
        self._lease = lease
        self._torch = torch
        self._tensor = torch.module.Tensor
        # Streams that are not the choice of the task's code.
        self._ours = {_DEFAULT, torch.current()} if torch.is_ready else {_DEFAULT}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether compiled code is compiled as if this were not there; what it calls comes here all the same."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = None if self.is_paused else self._kind(func, args, kwargs)
        if kind is None:
            return func(*args, **kwargs)
        current = self._torch.current()
        if current not in self._ours:
            self.has_strayed = True
            return func(*args, **kwargs)
        handle = self._lease.begin_external(kind)
        try:
            if handle != current:
                self.adopt(handle)
            return func(*args, **kwargs) if self.memory is None else self.memory.run(func, args, kwargs)
        finally:
            self._lease.end_external(False)

    def _kind(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Which operators cost the same as this; None for one without work on the device."""
        seed = _seeds.get(func)
        if seed is None:
            seed = _seeds[func] = 0 if _is_view(func) else hash(func) or 1
        if seed == 0:
            return None
        words: list[Any] = [seed]
        here = self._look(args, words)
        if kwargs:
            here = self._look(kwargs.values(), words) or here or self._is_named(kwargs.get("device"))
        if not here:
            return None
        try:
            return hash(tuple(words))
        except TypeError:
            # Of symbols, where torch only pretends to compute.
            return seed

    def _look(self, values: Iterable[Any], words: list[Any]) -> bool:
        """Note what the cost depends on; is a tensor among it that is on the device?"""
        here = False
        for value in values:
            if isinstance(value, self._tensor):
                here = here or value.get_device() == self._torch.index
                words += (value.shape, value.dtype)
            elif isinstance(value, (list, tuple)):
                if value and isinstance(value[0], int):
                    # A shape. A number alone is rather a value, of which there are many.
                    words.append(tuple(value))
                else:
                    here = self._look(value, words) or here
        return here

    def _is_named(self, device: Any) -> bool:
        if device is None:
            return False
        named = self._torch.module.device(device)
        return bool(named.type == "cuda" and named.index in (None, self._torch.index))

    def adopt(self, handle: int) -> None:
        """Begin on this stream, which is the lane's."""
        self._torch.set(handle)
        self._ours.add(handle)

    def push(self) -> None:
        """Be the mode of this thread."""
        # Not by `with`: that keeps a flag for all threads, which tasks that end in any order would leave set.
        _modes()._push_mode(self)

    def pop(self) -> None:
        """Be it no more, nor whatever was put on top and left there."""
        modes = _modes()
        if any(mode is self for mode in modes._get_current_dispatch_mode_stack()):
            while modes._pop_mode() is not self:
                pass

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let operators of this thread through: a block, or a task inside of this one, has the turn."""
        modes = _modes()
        if not any(mode is self for mode in modes._get_current_dispatch_mode_stack()):
            yield
            return
        on_top = modes._get_current_dispatch_mode() is self
        if on_top:
            modes._pop_mode()
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before
            if on_top:
                modes._push_mode(self)


def _modes() -> Any:
    return sys.modules["torch.utils._python_dispatch"]


def _is_view(func: Any) -> bool:
    """Does an operator return its arguments' memory, without writing to it?"""
    returns = getattr(getattr(func, "_schema", None), "returns", ())
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returns)


@functools.cache
def _mode_class(base: type) -> Callable[..., OperatorTurns]:
    return type("TaskTurns", (OperatorTurns, base), {})


def memory_of(lease: _native.TaskLease, torch: Torch) -> TorchMemory | None:
    """The task's memory for torch, if anything limits it or is kept for it."""
    if lease.bounds_memory and TorchMemory.is_possible(torch.module):
        return TorchMemory(torch.module, torch.index)
    return None


@contextmanager
def operators_in_turns(lease: _native.TaskLease, torch: Torch) -> Iterator[OperatorTurns]:
    """Let torch's operators in this thread take turns.

    Parameters
    ----------
    lease : TaskLease
        The task's.
    torch : Torch
        What to set.

    Yields
    ------
    OperatorTurns
        The mode.
    """
    with ExitStack() as stack:
        memory = memory_of(lease, torch)
        if memory is not None:
            stack.callback(memory.drop)
        stack.enter_context(torch.kept())
        # Backward passes stay in this thread, where its mode, stream and memory are.
        stack.enter_context(torch.module.autograd.grad_mode.set_multithreading_enabled(False))
        turns = _mode_class(_modes().TorchDispatchMode)(lease, torch, memory)
        turns.push()
        stack.callback(turns.pop)
        yield turns
