"""`@kernel`, `@gpu_kernel`, `@cuda_source` and the registry of kernels."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar, overload

from pygpukit import ring
from pygpukit.compat.pydotcompute.core.accelerator import is_on_gpu
from pygpukit.compat.pydotcompute.exceptions import BackendNotAvailableError, CUDAError, KernelCompilationError
from pygpukit.errors import GPUKitError, KernelCompileError, MissingPackageError

__all__ = ["DecoratedKernel", "KernelRegistry", "cuda_source", "get_kernel_registry", "gpu_kernel", "kernel"]

F = TypeVar("F", bound=Callable[..., Any])

_IS_CUDA = re.compile(r"\b__global__\b")


class DecoratedKernel:
    """A function that may be launched on the device too.

    Called, it is the Python function. ``k[grid, block](...)`` launches it: CUDA C++ source on any device, a Python
    function where there are a GPU and numba-cuda. The orchestrator launches it where it can be, and calls it else.
    """

    def __init__(self, function: Callable[..., Any], source: str | None, meta: dict[str, Any] | None) -> None:
        functools.update_wrapper(self, function)
        self._original_func = function
        if source is not None:
            self.__cuda_source__ = source
        if meta is not None:
            self._kernel_meta = meta
        text = source if source is not None else function.__doc__ or ""
        is_fast = bool((meta or {}).get("fastmath"))
        options = ["--use_fast_math"] * is_fast
        self._source = text if _IS_CUDA.search(text) else None
        self._launchable = ring.LaunchableKernel(function, self._source, (meta or {}).get("name"), options)

    def device_kernel(self) -> ring.LaunchableKernel | None:
        """What is launched on the device; None where the Python function is called."""
        if (getattr(self, "_kernel_meta", None) or {}).get("device") == "cpu":
            return None
        is_python = self._source is None
        return None if is_python and not (is_on_gpu() and find_spec("numba")) else self._launchable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original_func(*args, **kwargs)

    def __getitem__(self, launch: Any) -> Callable[..., None]:
        if not isinstance(launch, tuple):
            launch = (launch, 256)
        run = self._launchable[launch]

        def launch_it(*args: Any) -> None:
            try:
                run(*args)
            except MissingPackageError as error:
                raise BackendNotAvailableError("cuda", str(error)) from error
            except KernelCompileError as error:
                raise KernelCompilationError(self._launchable.name, error) from error
            except GPUKitError as error:
                raise CUDAError(str(error)) from error

        return launch_it


@overload
def kernel(func: F) -> F: ...
@overload
def kernel(
    func: None = None, *, name: str | None = None, device: str = "auto", fastmath: bool = True, cache: bool = True
) -> Callable[[F], F]: ...
def kernel(
    func: Any = None, *, name: str | None = None, device: str = "auto", fastmath: bool = True, cache: bool = True
) -> Any:
    """Make a function a kernel: a Python function, or one whose docstring is CUDA C++ source.

    Parameters
    ----------
    func : callable, optional
        The function, where the decorator is written without parentheses.
    name : str, optional
        Its name; the function's by default.
    device : {"auto", "cpu", "cuda"}
        Where it is launched; with ``"cpu"`` it is always called.
    fastmath : bool
        Compile with ``--use_fast_math``.
    cache : bool
        Noted; what is compiled is always kept.
    """

    def decorate(function: Any) -> Any:
        meta = {"name": name or function.__name__, "device": device, "fastmath": fastmath, "cache": cache}
        return DecoratedKernel(function, None, {**meta, "compiled": None})

    return decorate if func is None else decorate(func)


@overload
def gpu_kernel(func: F) -> F: ...
@overload
def gpu_kernel(
    func: None = None,
    *,
    name: str | None = None,
    signature: str | None = None,
    fastmath: bool = True,
    debug: bool = False,
    cache: bool = True,
) -> Callable[[F], F]: ...
def gpu_kernel(
    func: Any = None,
    *,
    name: str | None = None,
    signature: str | None = None,
    fastmath: bool = True,
    debug: bool = False,
    cache: bool = True,
) -> Any:
    """Make a function a kernel for the GPU, as `kernel` does; the types come from the arguments of a launch."""

    def decorate(function: Any) -> Any:
        meta = {"name": name or function.__name__, "device": "cuda", "signature": signature, "fastmath": fastmath}
        return DecoratedKernel(function, None, {**meta, "debug": debug, "cache": cache, "compiled": None})

    return decorate if func is None else decorate(func)


def cuda_source(source: str) -> Callable[[F], F]:
    """Note CUDA C++ source at a function, as ``__cuda_source__``. The kernel in it has the function's name."""

    def decorate(function: Any) -> Any:
        return DecoratedKernel(function, source, None)

    return decorate


class KernelRegistry:
    """Kernels by name. There is one object of it.

    Examples
    --------
    >>> KernelRegistry() is get_kernel_registry()
    True
    """

    _instance: KernelRegistry | None = None
    _kernels: dict[str, Callable[..., Any]]

    def __new__(cls) -> KernelRegistry:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._kernels = {}
        return cls._instance

    def register(self, name: str, kernel: Callable[..., Any], *, overwrite: bool = False) -> None:
        """Give a kernel a name; `ValueError` if it is taken and `overwrite` is not said."""
        if name in self._kernels and not overwrite:
            raise ValueError(f"a kernel {name!r} is registered; give overwrite=True to replace it")
        self._kernels[name] = kernel

    def get(self, name: str) -> Callable[..., Any] | None:
        """The kernel of a name, or None."""
        return self._kernels.get(name)

    def list(self) -> list[str]:
        """The names."""
        return [*self._kernels]

    def clear(self) -> None:
        """Forget all of them."""
        self._kernels.clear()


def get_kernel_registry() -> KernelRegistry:
    """The one `KernelRegistry`."""
    return KernelRegistry()
