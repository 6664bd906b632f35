"""Stand-ins for torch and CuPy: what the package uses of them, and nothing of what they do."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

HERE, ELSEWHERE, ON_CPU = 0, 1, -1


class Tensor:
    def __init__(self, device: int = HERE, shape: tuple[int, ...] = (2, 3), dtype: str = "float32") -> None:
        self.device, self.shape, self.dtype = device, shape, dtype

    def get_device(self) -> int:
        return self.device


class Stream:
    def __init__(self, handle: int, device: int | None = None) -> None:
        self.handle, self.device = handle, device


class Memory:
    """An allocator of torch's in a shared library."""

    def __init__(self, path: str, allocate: str, free: str) -> None:
        library = ctypes.CDLL(path)
        self.allocate, self.free = getattr(library, allocate), getattr(library, free)
        self.allocate.restype = ctypes.c_void_p
        self.allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def allocator(self) -> Memory:
        return self


class Pool:
    """A pool of torch's, which must not go while any is used."""

    def __init__(self, cuda: Cuda, allocator: Memory) -> None:
        self.cuda, self.allocator = cuda, allocator
        cuda.made += 1
        self.id = (0, cuda.made)

    def __del__(self) -> None:
        self.cuda.gone.append(self.id)
        if self.cuda.used:
            self.cuda.gone.append("while one is used")


class Cuda:
    """torch.cuda, for one thread."""

    ExternalStream = Stream

    def __init__(self) -> None:
        self.stream, self.number = Stream(0), 3
        self.made = 0
        self.used: list[tuple[int, int]] = []
        self.gone: list[object] = []
        self.memory = SimpleNamespace(CUDAPluggableAllocator=Memory)

    def is_initialized(self) -> bool:
        return True

    def current_stream(self, _device: int) -> Stream:
        return self.stream

    def set_stream(self, stream: Stream) -> None:
        self.stream = stream
        self.number = HERE

    def current_device(self) -> int:
        return self.number

    def set_device(self, number: int) -> None:
        self.number = number

    def MemPool(self, allocator: Memory) -> Pool:  # noqa: N802 (torch's name)
        self.allocator = allocator
        return Pool(self, allocator)

    @contextmanager
    def device(self, number: int) -> Iterator[None]:
        assert number == HERE
        yield


class Modes:
    """torch's stack of dispatch modes."""

    TorchDispatchMode = object

    def __init__(self) -> None:
        self.stack: list[Any] = []

    def _push_mode(self, mode: Any) -> None:
        self.stack.append(mode)

    def _pop_mode(self) -> Any:
        return self.stack.pop()

    def _get_current_dispatch_mode(self) -> Any:
        return self.stack[-1] if self.stack else None

    def _get_current_dispatch_mode_stack(self) -> list[Any]:
        return list(self.stack)


def torch_module() -> Any:
    """torch."""
    torch: Any = ModuleType("torch")
    torch.version = SimpleNamespace(cuda="13.0")
    torch.Tensor = Tensor
    torch.device = lambda name: SimpleNamespace(type=name, index=None)
    torch.cuda = Cuda()
    torch.autograd = SimpleNamespace(grad_mode=SimpleNamespace(set_multithreading_enabled=nullcontext))
    torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
    torch._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda _index: torch.cuda.stream.handle,
        _cuda_beginAllocateCurrentThreadToPool=lambda _index, number: torch.cuda.used.append(number),
        _cuda_endAllocateToPool=lambda _index, number: torch.cuda.used.remove(number),
        _cuda_releasePool=lambda _index, _number: None,
    )
    return torch


class CupyStream:
    current: CupyStream

    def __init__(self, handle: int, device: int = HERE) -> None:
        self.handle, self.device = handle, device

    def use(self) -> None:
        CupyStream.current = self


CupyStream.current = CupyStream(0)


def cupy_module() -> Any:
    """CuPy."""
    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(
        Device=nullcontext,
        Stream=SimpleNamespace(from_external=lambda source: CupyStream(source.__cuda_stream__()[1])),
        get_current_stream=lambda: CupyStream.current,
    )
    return cupy


def load(*names: str) -> Any:
    """Have them loaded, as far as the package can see; returns torch."""
    torch, cupy = torch_module(), cupy_module()
    if "torch" in names:
        sys.modules.update({"torch": torch, "torch.utils._python_dispatch": Modes()})  # type: ignore[dict-item]
    if "cupy" in names:
        sys.modules["cupy"] = cupy
    return torch
