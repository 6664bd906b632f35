"""Compiling functions to kernels."""

from __future__ import annotations

from pygpukit.compat.pydotcompute.compilation.compiler import (
    CompilationOptions,
    CompiledKernel,
    KernelCompiler,
    compile_kernel,
    get_compiler,
)

__all__ = ["CompilationOptions", "CompiledKernel", "KernelCompiler", "compile_kernel", "get_compiler"]
