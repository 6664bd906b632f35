"""The package's operators under its usual name: this layer does not import the package that gathers all layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pygpukit import fft, random
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty, full, ones, ones_like, zeros, zeros_like
from pygpukit.core.device import current_device, device
from pygpukit.ops.registry import functions

__all__ = ["gp"]

gp: Any = SimpleNamespace(
    **functions(),
    current_device=current_device,
    device=device,
    empty=empty,
    fft=fft,
    from_numpy=from_numpy,
    full=full,
    ones=ones,
    ones_like=ones_like,
    random=random,
    zeros=zeros,
    zeros_like=zeros_like,
)
"""What ``import pygpukit as gp`` gives, as far as audio needs it."""
