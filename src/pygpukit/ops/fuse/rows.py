"""The public function of fusion."""

from __future__ import annotations

from pygpukit.ops.fuse.function import fuse
from pygpukit.ops.registry import export

export(fuse)
