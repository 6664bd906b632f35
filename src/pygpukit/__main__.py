"""`python -m pygpukit`: the command line without the installed script."""

from __future__ import annotations

import sys

from pygpukit.cli import main

sys.exit(main())
