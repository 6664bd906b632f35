"""The device of a test; makes the helper module of this folder importable, since tests are imported by path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
