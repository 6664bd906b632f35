"""Decorators for kernels, actors and checks."""

from __future__ import annotations

from pygpukit.compat.pydotcompute.decorators.kernel import gpu_kernel, kernel
from pygpukit.compat.pydotcompute.decorators.ring_kernel import ring_kernel
from pygpukit.compat.pydotcompute.decorators.validators import validate_config, validate_message

__all__ = ["gpu_kernel", "kernel", "ring_kernel", "validate_config", "validate_message"]
