"""What every distribution needs: sizes, element types, parameters, and vectors of numbers in a shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, Device, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import Shape, dimensions
from pygpukit.core.device import current_device
from pygpukit.dtypes import DTypeLike, dtype, float32, float64, int64, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.random import rows
from pygpukit.random.bits import Philox4x32

Size: TypeAlias = Shape | None
"""Of a result: None for one number, which is an array without dimensions."""

Rule: TypeAlias = Literal["", "< 0", "<= 0"]
"""What a parameter must not be."""

Value: TypeAlias = float | GPUArray
Formula: TypeAlias = Callable[..., GPUArray]

_dtype = dtype
_MOST = 2**62


def size_of(size: Size) -> tuple[int, ...]:
    """Return a size as a shape.

    Raises
    ------
    ShapeError
        If a dimension is negative.
    """
    if size is None:
        return ()
    if type(size) is int and 0 <= size < _MOST:
        return (size,)
    shape = tuple(dimensions(size))
    if any(n < 0 for n in shape):
        raise ShapeError(f"negative dimensions are not allowed: {shape}")
    if math.prod(shape) >= _MOST:
        raise ShapeError(f"an array of shape {shape} is too large")
    return shape


def float_type(kind: DTypeLike, what: str) -> DataType:
    """Return the element type of a continuous distribution.

    Raises
    ------
    DTypeError
        If it is none of float64, float32, float16 and bfloat16.
    """
    if kind is float64:
        return kind
    found = dtype(kind)
    if found.name not in rows.FLOATS:
        raise DTypeError(f"Unsupported dtype {found.name} for {what}: it gives {', '.join(rows.FLOATS)}")
    return found


def wide_enough(kind: DataType) -> DataType:
    """Return the type that formulas compute in."""
    return float32 if kind.itemsize == 2 else kind


def _violated(value: Any, rule: Rule) -> Any:
    # NaN passes, as in NumPy, and gives NaN.
    return value <= 0 if rule == "<= 0" else value < 0 if rule else False


def _single(x: float) -> float:
    """Return a number that float32 holds: one that is too large is infinite, as in NumPy."""
    if -3.4e38 < x < 3.4e38:
        return x
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def parameter(value: Any, name: str, rule: Rule, kind: DataType, device: Device) -> Value:
    """Return a parameter of a distribution as a number, or as an array on the device; those there are not looked at.

    Raises
    ------
    ValueError
        If the rule refuses it.
    """
    if isinstance(value, GPUArray):
        if value.dtype.kind == "c":
            raise DTypeError(f"{name} must be real, not {value.dtype.name}")
        return value.astype(kind, copy=False)
    if not isinstance(value, int | float):
        host = np.asarray(value)
        if host.ndim:
            if host.dtype.kind == "c":
                raise DTypeError(f"{name} must be real, not {host.dtype}")
            host = host.astype(np.float64)
            if np.any(_violated(host, rule)):
                raise ValueError(f"{name} {rule}")
            return from_numpy(host.astype(to_numpy_dtype(kind)), device=device)
    number = float(value)
    if _violated(number, rule):
        raise ValueError(f"{name} {rule}")
    return number


def common_shape(size: Size, values: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of a result: the given one, else the one that the parameters broadcast to.

    Raises
    ------
    ShapeError
        If they do not broadcast to it.
    """
    shapes = [v.shape for v in values if isinstance(v, GPUArray)]
    given = size_of(size)
    try:
        common = np.broadcast_shapes(*shapes)
        fits = size is None or np.broadcast_shapes(common, given) == given
    except ValueError as error:
        raise ShapeError(str(error)) from None
    if not fits:
        raise ShapeError(f"Output size {given} is not compatible with broadcast dimensions of inputs {tuple(common)}")
    return given if size is not None else tuple(common)


def placed(x: GPUArray, loc: Value, scale: Value) -> GPUArray:
    """Return ``loc + scale * x``, in the memory of `x`."""
    if isinstance(scale, GPUArray) or scale != 1:
        e.mul(x, scale, out=x)
    if isinstance(loc, GPUArray) or loc != 0:
        e.add(x, loc, out=x)
    return x


def assign(target: GPUArray, value: GPUArray) -> GPUArray:
    """Write elements to an array of the same shape, and return it."""
    _native.apply("copy", (value,), target)
    return target


class Source:
    """Draws arrays of one shape and type for a formula."""

    def __init__(self, draws: Draws, shape: tuple[int, ...], kind: DataType, device: Device) -> None:
        self.draws, self.shape, self.kind, self.device = draws, shape, kind, device

    def __call__(self, distribution: str) -> GPUArray:
        return self.draws._fill(distribution, self.shape, self.kind, self.device)

    def gamma(self, shape: Value, name: str = "gamma") -> GPUArray:
        """Gamma numbers; with ``"log_gamma"`` their logarithms."""
        return self.draws._reject(name, self.shape, self.kind, self.device, shape)

    def poisson(self, mean: Value) -> GPUArray:
        """Counts."""
        return self.draws._reject("poisson", self.shape, int64, self.device, mean)


class Draws:
    """A bit generator and the numbers drawn of it."""

    def __init__(self, bit_generator: Philox4x32) -> None:
        if not isinstance(bit_generator, Philox4x32):
            raise TypeError(
                f"Generator() takes a Philox4x32, not {type(bit_generator).__name__}; default_rng(seed) makes one"
            )
        self._bit_generator = bit_generator

    @property
    def bit_generator(self) -> Philox4x32:
        """The generator of random words, which has the state."""
        return self._bit_generator

    def _device(self, out: GPUArray | None, values: Sequence[Any] = ()) -> Device:
        if out is not None:
            return out.device
        for one in values:
            if isinstance(one, GPUArray):
                return one.device
        return current_device()

    def _fill(
        self,
        distribution: str,
        shape: tuple[int, ...],
        kind: DataType,
        device: Device,
        out: GPUArray | None = None,
        a: float = 0.0,
        b: float = 1.0,
    ) -> GPUArray:
        """Return ``a + b * x`` for numbers of a distribution with a kernel of its own."""
        if kind is not float64:
            a, b = _single(a), _single(b)
        flat = out.reshape(-1) if out is not None and out.is_contiguous else None
        made: GPUArray = self._bit_generator.draw(
            rows.fill, device, math.prod(shape), 2 if kind is float64 else 4, a, b, distribution, kind, out=flat
        )
        if flat is not None:
            assert out is not None
            return out
        if len(shape) != 1:
            made = made.reshape(shape)
        return made if out is None else assign(out, made)

    def _integers(
        self, low: int, last: int, shape: tuple[int, ...], kind: DataType, device: Device, out: GPUArray | None = None
    ) -> GPUArray:
        """Return integers in ``low .. low + last``."""
        wide = last >= 2**32
        reject = (2**64 if wide else 2**32) % (last + 1)
        flat = None if out is None else out.reshape(-1)
        made: GPUArray = self._bit_generator.draw(
            rows.integers, device, math.prod(shape), rows.per_block(kind, wide), low % 2**64, last, reject, wide, kind,
            out=flat,
        )  # fmt: skip
        return made if len(shape) == 1 else made.reshape(shape)

    def _reject(
        self,
        distribution: str,
        shape: tuple[int, ...],
        kind: DataType,
        device: Device,
        a: Value | int,
        b: Value | int = 0,
    ) -> GPUArray:
        """Return numbers of a distribution with parameters for all or, in arrays, for each element."""
        arrays: list[GPUArray | None] = []
        numbers: list[float] = []
        for value in (a, b):
            if isinstance(value, GPUArray):
                wide = value if distribution == "ranges" else value.astype("float64", copy=False)
                arrays.append(wide._broadcast_to(shape).contiguous().reshape(-1))
                numbers.append(0)
            else:
                arrays.append(None)
                numbers.append(value)

        def operator(counter: GPUArray, *args: Any, out: GPUArray | None = None) -> Any:
            return rows.reject(counter, *arrays, *args, out=out)

        made: GPUArray = self._bit_generator.draw(operator, device, math.prod(shape), 1, *numbers, distribution, kind)
        return made if len(shape) == 1 else made.reshape(shape)

    def _target(self, out: Any, size: Size, kind: DataType) -> Size:
        """Check where a result goes, and return its size."""
        if out is None:
            return size
        if not isinstance(out, GPUArray):
            raise TypeError(f"out must be a GPUArray, not {type(out).__name__}")
        if out.dtype is not kind:
            raise DTypeError(f"Supplied output array has the wrong type. Expected {kind.name}, got {out.dtype.name}")
        if size is not None and size_of(size) != out.shape:
            raise ShapeError("size must match out.shape when used together")
        return out.shape

    def _located(
        self,
        distribution: str,
        loc: Value,
        scale: Value,
        size: Size,
        kind: DataType,
        device: Device,
        out: GPUArray | None,
    ) -> GPUArray:
        """Return ``loc + scale * x``; by the kernel alone where both are numbers."""
        if not isinstance(loc, GPUArray) and not isinstance(scale, GPUArray):
            return self._fill(distribution, size_of(size), kind, device, out, loc, scale)
        shape = common_shape(size, (loc, scale))
        made = placed(self._fill(distribution, shape, wide_enough(kind), device), loc, scale)
        return made.astype(kind, copy=False) if out is None else assign(out, made)

    def _formula(
        self,
        what: str,
        formula: Formula,
        parameters: Sequence[tuple[Any, str, Rule]],
        size: Size,
        dtype: DTypeLike,
        out: GPUArray | None,
        real: DataType | None = None,
    ) -> GPUArray:
        """Return what a formula makes, of a source of numbers and the parameters, in type `real`."""
        kind = float_type(dtype, what)
        size = self._target(out, size, kind)
        device, real = self._device(out, [p[0] for p in parameters]), real or wide_enough(kind)
        values = [parameter(value, name, rule, real, device) for value, name, rule in parameters]
        shape = common_shape(size, values)
        with self._bit_generator.lock:
            made = formula(Source(self, shape, real, device), *values)
        return made.astype(kind, copy=False) if out is None else assign(out, made)
