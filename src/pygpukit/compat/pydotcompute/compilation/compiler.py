"""`KernelCompiler`: kernels of functions by their source; what is compiled on disk is kept by `pygpukit.jit`."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pygpukit.compat.pydotcompute.decorators.kernel import gpu_kernel
from pygpukit.compat.pydotcompute.exceptions import KernelCompilationError
from pygpukit.core.device import is_cuda_available

__all__ = ["CompilationOptions", "CompiledKernel", "KernelCompiler", "compile_kernel", "get_compiler"]


@dataclass
class CompilationOptions:
    """How a function is compiled. Levels and line numbers are noted; NVRTC has its own."""

    device: str = "cuda"
    fastmath: bool = True
    debug: bool = False
    lineinfo: bool = False
    opt_level: int = 3
    cache: bool = True


@dataclass
class CompiledKernel:
    """A kernel and what it was made of."""

    kernel: Callable[..., Any]
    name: str
    source_hash: str
    signature: str | None
    options: CompilationOptions
    compile_time_ms: float = 0.0
    ptx: str | None = None


class KernelCompiler:
    """Makes kernels of functions, and keeps them by a hash of source, signature and options.

    Parameters
    ----------
    options : CompilationOptions, optional
        For kernels that are given none.
    """

    def __init__(self, options: CompilationOptions | None = None) -> None:
        self._options = options or CompilationOptions()
        self._compiled_cache: dict[str, CompiledKernel] = {}

    @property
    def cuda_available(self) -> bool:
        """Is there a usable GPU?"""
        return is_cuda_available()

    @property
    def numba_available(self) -> bool:
        """Is Numba installed?"""
        return find_spec("numba") is not None

    def compile(
        self,
        func: Callable[..., Any],
        *,
        signature: str | None = None,
        name: str | None = None,
        options: CompilationOptions | None = None,
    ) -> CompiledKernel:
        """A kernel of a function; the function itself for the CPU, or where nothing can compile it."""
        options = options or self._options
        key = self._get_source_hash(func, signature, options)
        if options.cache and (found := self._compiled_cache.get(key)) is not None:
            return found
        title = str(name or getattr(func, "__name__", "kernel"))
        start = time.perf_counter()
        made = func
        if options.device != "cpu":
            try:
                decorated: Any = gpu_kernel(name=name, fastmath=options.fastmath)(func)
                made = func if decorated.device_kernel() is None else decorated
            except Exception as error:
                raise KernelCompilationError(title, error) from error
        milliseconds = (time.perf_counter() - start) * 1e3
        compiled = CompiledKernel(made, title, key, signature, options, milliseconds)
        if options.cache:
            self._compiled_cache[key] = compiled
        return compiled

    def get_cached_kernel(self, source_hash: str) -> CompiledKernel | None:
        """The kernel of a hash, or None."""
        return self._compiled_cache.get(source_hash)

    def clear_cache(self) -> int:
        """Forget the kernels; how many there were."""
        count = len(self._compiled_cache)
        self._compiled_cache.clear()
        return count

    def get_cache_stats(self) -> dict[str, int]:
        """``cached_kernels``: how many are kept."""
        return {"cached_kernels": len(self._compiled_cache)}

    def _get_source_hash(self, func: Any, signature: str | None, options: CompilationOptions) -> str:
        try:
            source = inspect.getsource(func)
        except (OSError, TypeError):
            source = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', func)}"
        text = repr((source, signature, dataclasses.astuple(options)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        known = f"cuda={self.cuda_available}, numba={self.numba_available}, cached={len(self._compiled_cache)}"
        return f"KernelCompiler({known})"


_global_compiler: KernelCompiler | None = None


def get_compiler() -> KernelCompiler:
    """The one compiler, made at the first call."""
    global _global_compiler
    if _global_compiler is None:
        _global_compiler = KernelCompiler()
    return _global_compiler


def compile_kernel(func: Callable[..., Any], *, signature: str | None = None, **options: Any) -> CompiledKernel:
    """A kernel of a function, by the one compiler; the other arguments are those of `CompilationOptions`."""
    return get_compiler().compile(func, signature=signature, options=CompilationOptions(**options))
