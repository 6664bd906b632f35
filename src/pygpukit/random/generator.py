"""Generator: all distributions of a bit generator, under NumPy's names."""

from __future__ import annotations

from typing import Any

from pygpukit.random.bits import Philox4x32
from pygpukit.random.continuous import Continuous
from pygpukit.random.discrete import Discrete
from pygpukit.random.gammas import Gammas
from pygpukit.random.order import Order


class Generator(Continuous, Gammas, Discrete, Order):
    """Random arrays on the current device; `default_rng` makes one.

    Parameters
    ----------
    bit_generator : Philox4x32
        Where the random words come from.

    Examples
    --------
    >>> Generator(Philox4x32(1)).random(2).shape
    (2,)
    """

    def spawn(self, n_children: int) -> list[Generator]:
        """Make generators that are independent of this one and of each other.

        Examples
        --------
        >>> len(gp.random.default_rng(1).spawn(2))
        2
        """
        return [type(self)(child) for child in self.bit_generator.spawn(n_children)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bit_generator,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bit_generator!r})"


def default_rng(seed: Any = None) -> Generator:
    """Make a generator.

    Parameters
    ----------
    seed : int, sequence of int, numpy.random.SeedSequence, Philox4x32 or Generator, optional
        The same seed gives the same numbers on every device. Without one the system's entropy is used. A `Generator` is
        returned as it is.

    Returns
    -------
    Generator

    Examples
    --------
    >>> rng = default_rng(42)
    >>> rng.integers(10, size=5).tolist() == default_rng(42).integers(10, size=5).tolist()
    True
    """
    if isinstance(seed, Generator):
        return seed
    return Generator(seed if isinstance(seed, Philox4x32) else Philox4x32(seed))
