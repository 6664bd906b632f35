"""``python -m pygpukit.benchmark``."""

from __future__ import annotations

import sys

from pygpukit.benchmark.command import main

if __name__ == "__main__":
    sys.exit(main())
