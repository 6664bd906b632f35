"""Random arrays with NumPy's names and meaning, made on the device from a seed: the same on every device.

Examples
--------
>>> import pygpukit as gp
>>> rng = gp.random.default_rng(42)
>>> rng.normal(size=(2, 3), dtype="float32").shape
(2, 3)
"""

from pygpukit.random.bits import Philox4x32
from pygpukit.random.default import FUNCTIONS as _FUNCTIONS
from pygpukit.random.default import rand, randint, randn, random_sample, ranf, sample, seed
from pygpukit.random.generator import Generator, default_rng

globals().update(_FUNCTIONS)

__all__ = [
    "Generator",
    "Philox4x32",
    "default_rng",
    "rand",
    "randint",
    "randn",
    "random_sample",
    "ranf",
    "sample",
    "seed",
    *_FUNCTIONS,
]
