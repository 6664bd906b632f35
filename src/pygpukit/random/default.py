"""NumPy's functions of a generator that the module keeps: ``seed``, ``rand``, ``randn``, ``randint``, ``normal``, ...

New programs make a generator of their own with `default_rng`: its numbers do not depend on what else draws.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import DTypeLike
from pygpukit.random.generator import Generator, default_rng

# Methods of Generator that NumPy has as functions too.
SHARED = (
    "beta", "binomial", "bytes", "chisquare", "choice", "dirichlet", "exponential", "f", "gamma", "geometric", "gumbel",
    "laplace", "logistic", "lognormal", "multinomial", "multivariate_normal", "negative_binomial",
    "noncentral_chisquare", "noncentral_f", "normal", "pareto", "permutation", "poisson", "power", "random", "rayleigh",
    "shuffle", "standard_cauchy", "standard_exponential", "standard_gamma", "standard_normal", "standard_t",
    "triangular", "uniform", "wald", "weibull",
)  # fmt: skip

__all__ = ["rand", "randint", "randn", "random_sample", "ranf", "sample", "seed"]

_lock = threading.Lock()
_kept: list[Generator] = []


def _generator() -> Generator:
    with _lock:
        if not _kept:
            _kept.append(default_rng())
        return _kept[0]


def seed(seed: Any = None) -> None:
    """Start the module's generator anew: what its functions draw is the same on every device, and not NumPy's.

    Examples
    --------
    >>> gp.random.seed(1)
    >>> first = gp.random.rand(3).tolist()
    >>> gp.random.seed(1)
    >>> gp.random.rand(3).tolist() == first
    True
    """
    made = default_rng(seed)
    with _lock:
        _kept[:] = [made]


def rand(*shape: int) -> GPUArray:
    """Uniform numbers from 0 to 1, as ``random(shape)``.

    Examples
    --------
    >>> gp.random.rand(2, 3).shape
    (2, 3)
    """
    return _generator().random(shape)


def randn(*shape: int) -> GPUArray:
    """Standard normal numbers, as ``standard_normal(shape)``.

    Examples
    --------
    >>> gp.random.randn(2, 3).shape
    (2, 3)
    """
    return _generator().standard_normal(shape)


def randint(low: Any, high: Any = None, size: Any = None, dtype: DTypeLike = int) -> GPUArray:
    """Integers from `low` up to `high`, which is left out; from 0 up to `low` without it.

    Examples
    --------
    >>> gp.random.randint(10, size=4).shape
    (4,)
    """
    return _generator().integers(low, high, size, dtype)


def random_sample(size: Any = None) -> GPUArray:
    """Uniform numbers from 0 to 1, as ``random(size)``.

    Examples
    --------
    >>> gp.random.random_sample(3).shape
    (3,)
    """
    return _generator().random(size)


ranf = sample = random_sample


def _shared(name: str) -> Callable[..., Any]:
    method = getattr(Generator, name)

    def draw(*args: Any, **options: Any) -> Any:
        return getattr(_generator(), name)(*args, **options)

    draw.__name__ = draw.__qualname__ = name
    draw.__doc__ = f"`Generator.{name}` of the module's generator.\n\n{inspect.cleandoc(method.__doc__ or '')}"
    draw.__wrapped__ = method.__get__(object())  # type: ignore[attr-defined]
    return draw


FUNCTIONS: dict[str, Callable[..., Any]] = {name: _shared(name) for name in SHARED}
"""The functions that are methods of a generator, by name."""
