"""The native module under its published top-level name: the same module object as ``pygpukit._pygpukit_rust``."""

import sys

import pygpukit._pygpukit_rust as _native
from pygpukit._pygpukit_rust import *  # noqa: F403  (for type checkers; at run time the next line replaces this module)

sys.modules[__name__] = _native
