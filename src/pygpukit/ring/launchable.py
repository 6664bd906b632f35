"""`@kernel`, `@gpu_kernel` and `@cuda_source`: functions that stand for a kernel on the device."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import KernelCompileError
from pygpukit.jit import jit
from pygpukit.ring.buffer import UnifiedBuffer
from pygpukit.ring.python_kernel import PythonKernel

__all__ = ["LaunchableKernel", "cuda_source", "gpu_kernel", "kernel"]

_LOOKS_LIKE_CUDA = re.compile(r"\b__global__\b")


class LaunchableKernel:
    """A kernel, compiled for a device when it is first launched there.

    ``k(x, n)`` infers the grid as `pygpukit.Kernel` does; ``k(x, n, grid=..., block=...)`` and ``k[grid, block](x, n)``
    say it. Buffers among the arguments are brought to the device, and those that the kernel may write are marked.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        source: str | None,
        name: str | None = None,
        options: Sequence[str] = (),
        defines: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name or function.__name__
        self.source = source
        self.function = function
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self._options = tuple(options)
        self._defines = dict(defines or {})
        self._python = PythonKernel(function, "--use_fast_math" in self._options) if source is None else None

    def compile(self) -> _native.Kernel:
        """The kernel for the current device. A Python function has one per types of arguments: launch it."""
        if self.source is None:
            raise KernelCompileError(
                f"{self.name} is a Python function, and is compiled for the types of its arguments when it is launched"
            )
        entry = self.name if re.search(rf"\b{re.escape(self.name)}\s*\(", self.source) else None
        return jit(self.source, entry, options=self._options, defines=self._defines)

    def __call__(
        self,
        *args: Any,
        grid: int | Sequence[int] | None = None,
        block: int | Sequence[int] | None = None,
        shared: int = 0,
        stream: _native.Stream | None = None,
    ) -> None:
        on_device = [arg._for_kernel() if isinstance(arg, UnifiedBuffer) else arg for arg in args]
        launch = {"grid": grid, "block": block, "shared": shared, "stream": stream}
        if self._python is not None:
            self._python(on_device, **launch)
            written = [True] * len(args)
        else:
            kernel = self.compile()
            kernel(*on_device, **launch)  # type: ignore[arg-type]
            written = ["const" not in type_text for _, type_text in kernel.params]
        for arg, may_be in zip(args, written, strict=False):
            if may_be and isinstance(arg, UnifiedBuffer):
                arg._written_by_kernel()

    def __getitem__(self, launch: Any) -> Callable[..., None]:
        if not isinstance(launch, tuple) or not 2 <= len(launch) <= 4:
            raise TypeError(f"launch {self.name} as [grid, block] or [grid, block, stream, shared], not {launch!r}")
        grid, block = launch[:2]
        stream = launch[2] or None if len(launch) > 2 else None
        shared = launch[3] if len(launch) > 3 else 0
        return lambda *args: self(*args, grid=grid, block=block, stream=stream, shared=shared)

    def __repr__(self) -> str:
        return f"<LaunchableKernel {self.name}, {'Python' if self.source is None else 'CUDA C++'}>"


@overload
def kernel(function: Callable[..., Any], /) -> LaunchableKernel: ...
@overload
def kernel(
    *, name: str | None = None, fastmath: bool = False, options: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], LaunchableKernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    fastmath: bool = False,
    options: Sequence[str] = (),
) -> LaunchableKernel | Callable[[Callable[..., Any]], LaunchableKernel]:
    """Make a function a kernel: one whose docstring is CUDA C++ source, or a Python function where numba-cuda is there.

    Parameters
    ----------
    function : callable
        The function. Its body does not run when its docstring has a ``__global__`` function.
    name : str, optional
        Name of the kernel; the function's by default.
    fastmath : bool
        Compile with ``--use_fast_math``.
    options : sequence of str
        More options for NVRTC.

    Returns
    -------
    LaunchableKernel
        To be called with arrays, buffers and numbers.

    Examples
    --------
    >>> @kernel
    ... def scale():
    ...     '''__global__ void scale(float* x, float by, int n) {
    ...         int i = blockIdx.x * blockDim.x + threadIdx.x;
    ...         if (i < n) x[i] *= by;
    ...     }'''
    >>> buffer = UnifiedBuffer(4).fill(2.0)
    >>> scale[1, 32](buffer, 3.0, 4)                              # doctest: +SKIP
    """

    def decorate(function: Callable[..., Any]) -> LaunchableKernel:
        text = function.__doc__ or ""
        source = text if _LOOKS_LIKE_CUDA.search(text) else None
        return LaunchableKernel(function, source, name, [*options, *["--use_fast_math"] * fastmath])

    return decorate if function is None else decorate(function)


gpu_kernel = kernel
"""The same as `kernel`."""


def cuda_source(
    source: str,
    name: str | None = None,
    *,
    options: Sequence[str] = (),
    defines: Mapping[str, object] | None = None,
) -> Callable[[Callable[..., Any]], LaunchableKernel]:
    """Make a function stand for a kernel of CUDA C++ source.

    Parameters
    ----------
    source : str
        The text.
    name : str, optional
        The kernel in it; the decorated function's name by default.
    options : sequence of str
        Options for NVRTC.
    defines : mapping of str to object, optional
        Macros.

    Returns
    -------
    callable
        The decorator. The function's body does not run.
    """

    def decorate(function: Callable[..., Any]) -> LaunchableKernel:
        return LaunchableKernel(function, source, name, options, defines)

    return decorate
