"""The table of reductions: one row per operator, its kernel struct beside its NumPy function and its types.

Kernels, the CPU device, bundles and tests walk ``TABLE``. A row's ``kernel`` is a struct of
``kernels/common/reduce.cuh``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.registry import Parameter

_WIDEST = {"f": "float32", "i": "int64", "b": "int64", "u": "uint64"}


def sum_type(x: DataType) -> DataType:
    """Return the type of a sum: the widest integer of the kind for integers and bool, else ``x``."""
    return dtype(_WIDEST[x.kind]) if x.kind in "biu" else x


def accumulator(x: DataType, kind: DataType | None = None) -> DataType:
    """Return the type that sums of ``x`` with results of ``kind`` are accumulated in.

    Examples
    --------
    >>> [accumulator(dtype(x)).name for x in ("bfloat16", "int8", "float64")]
    ['float32', 'int64', 'float64']
    """
    pair = (sum_type(x), kind or sum_type(x))
    # Half of a complex number is a float; integers of 64 bits need a double.
    double = any(t.itemsize == (16 if t.kind == "c" else 8) for t in pair)
    if any(t.kind == "c" for t in pair):
        return dtype("complex128" if double else "complex64")
    if any(t.kind == "f" for t in pair):
        return dtype("float64" if double else "float32")
    return sum_type(pair[1])


def real_type(x: DataType) -> DataType:
    """Return the type of the parts of a complex type; any other type as it is."""
    return dtype({"complex64": "float32", "complex128": "float64"}.get(x.name, x.name))


def mean_type(x: DataType) -> DataType:
    """Return the type of a mean: float64 for integers and bool, else ``x``."""
    return dtype("float64") if x.kind in "biu" else x


def value_type(x: DataType) -> DataType:
    """Return the type in which elements are compared: float32 for smaller floats, uint8 for bool, else ``x``."""
    if x.kind == "b":
        return dtype("uint8")
    return dtype("float32") if x.kind == "f" and x.itemsize < 4 else x


def _exact(x: DataType, kind: DataType) -> DataType:
    return value_type(x)


def _bool(x: DataType) -> DataType:
    return dtype("bool")


def _index(x: DataType) -> DataType:
    return dtype("int64")


def _same(x: DataType) -> DataType:
    return x


def _itemsize(a: DataType) -> int:
    return a.itemsize


def _with_index(a: DataType) -> int:
    return 16 if a.itemsize <= 8 else 24


def _moments(a: DataType) -> int:
    return 3 * a.itemsize


_X = Parameter("x")
_AXIS = Parameter("axis", "choice", None, doc="Axis or axes that are reduced; all by default.")
_ONE_AXIS = Parameter("axis", "choice", None, doc="Axis that is reduced; by default all are, in row-major order.")
_DTYPE = Parameter("dtype", "choice", None, doc="Type of the result; as in NumPy by default.")
_KEEPDIMS = Parameter("keepdims", "choice", False, doc="Keep the reduced axes with one element.")
_INITIAL = Parameter("initial", "choice", None, keyword_only=True, doc="Number that takes part as one element more.")
_WHERE = Parameter("where", "optional", None, keyword_only=True, doc="Bool array: the elements that take part.")
_DDOF = Parameter("ddof", "choice", 0, doc="The sum of squared distances is divided by n - ddof.")
_CORRECTION = Parameter("correction", "choice", None, keyword_only=True, doc="The array API's name of ddof.")

_FOLD = (_X, _AXIS, _KEEPDIMS, _INITIAL, _WHERE)
_TOTAL = (_X, _AXIS, _DTYPE, _KEEPDIMS, _INITIAL, _WHERE)
_LOGIC = (_X, _AXIS, _KEEPDIMS, dataclasses.replace(_WHERE, keyword_only=True))
_SPREAD = (_X, _AXIS, _DTYPE, _DDOF, _KEEPDIMS, _CORRECTION, _WHERE)
_PLACE = (_X, _ONE_AXIS, _KEEPDIMS)
_PLAIN = (_X, _AXIS, _KEEPDIMS)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One reduction.

    Attributes
    ----------
    name
        Public name, also part of the kernels' symbols.
    kernel
        Struct of the kernels.
    numpy
        A ufunc whose ``reduce`` it is, or a NumPy function of array and axis.
    parameters
        Of the public function.
    result
        Type of the result for a type of elements.
    accumulator
        Type the kernels compute in, for types of elements and result.
    state
        Bytes of a partial result for that type.
    kinds, kernel_kinds
        Kinds (``b i u f c``) of elements it is defined for, and those that kernels take.
    empty
        What no elements give; None if that is an error.
    skipped
        What stands for elements that ``where`` leaves out, if that is a number that does not depend on the others.
    joins
        Elementwise operator that joins ``initial`` to the result.
    tolerance
        Relative distance from the reference that tests allow, by type of the result.
    doc
        Summary, numerics and an example.
    """

    name: str
    kernel: str
    numpy: Any
    parameters: tuple[Parameter, ...]
    result: Callable[[DataType], DataType]
    accumulator: Callable[[DataType, DataType], DataType]
    doc: str
    state: Callable[[DataType], int] = _itemsize
    kinds: str = "biufc"
    kernel_kinds: str = "biufc"
    empty: Any = 0
    skipped: Any = None
    joins: str = ""
    tolerance: Mapping[str, float] = dataclasses.field(default_factory=dict)
    public: bool = True
    flops: int = 1

    def takes(self, parameter: str) -> bool:
        """Has the operator this parameter?"""
        return any(p.name == parameter for p in self.parameters)


def _example(call: str, result: str) -> str:
    return f"\n\nExamples\n--------\n>>> import pygpukit as gp\n>>> {call}\n{result}\n"


_ORDER = (
    "The order is fixed by the length of the reduced axes and the type alone: the bits depend neither on the\n"
    "run nor on the number of SMs."
)
_ROUNDED = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 2**-7, "float16": 2**-10, "complex64": 4e-6}

_ROWS = (
    Row("sum", "Sum", np.add, _TOTAL, sum_type, accumulator,
        "Sum of the elements over some or all axes.\n\nSmall floats are summed in float32, integers in 64 bits, and "
        "rounded once to the type of the result;\na wider ``dtype`` is what is summed in. " + _ORDER
        + _example("gp.sum(gp.ones((2, 3)), axis=0).tolist()", "[2.0, 2.0, 2.0]"),
        skipped=0, joins="add", tolerance=_ROUNDED),
    Row("prod", "Prod", np.multiply, _TOTAL, sum_type, accumulator,
        "Product of the elements over some or all axes, in the types and the order of `sum`."
        + _example("gp.prod(gp.full((2, 3), 2.0), axis=1).tolist()", "[8.0, 8.0]"),
        empty=1, skipped=1, joins="mul", tolerance={k: 4 * v for k, v in _ROUNDED.items()}),
    Row("max", "Max", np.maximum, _FOLD, _same, _exact,
        "Largest element over some or all axes; NaN if there is one."
        + _example("gp.max(gp.asarray([[1.0, 5.0], [7.0, 3.0]]), axis=1).tolist()", "[5.0, 7.0]"),
        empty=None, joins="maximum"),
    Row("min", "Min", np.minimum, _FOLD, _same, _exact,
        "Smallest element over some or all axes; NaN if there is one."
        + _example("gp.min(gp.asarray([[1.0, 5.0], [7.0, 3.0]]), axis=1).tolist()", "[1.0, 3.0]"),
        empty=None, joins="minimum"),
    Row("argmax", "ArgMax", np.argmax, _PLACE, _index, _exact,
        "Index of the first largest element, in int64; of the first NaN if there is one."
        + _example("gp.argmax(gp.asarray([[1.0, 5.0], [7.0, 3.0]]), axis=1).tolist()", "[1, 0]"),
        state=_with_index, empty=None),
    Row("argmin", "ArgMin", np.argmin, _PLACE, _index, _exact,
        "Index of the first smallest element, in int64; of the first NaN if there is one."
        + _example("gp.argmin(gp.asarray([[1.0, 5.0], [7.0, 3.0]]), axis=1).tolist()", "[0, 1]"),
        state=_with_index, empty=None),
    Row("any", "Any", np.logical_or, _LOGIC, _bool, _exact,
        "Is any element nonzero? NaN is."
        + _example("gp.any(gp.asarray([[0, 0], [0, 3]]), axis=1).tolist()", "[False, True]"),
        state=lambda a: 4, skipped=False),
    Row("all", "All", np.logical_and, _LOGIC, _bool, _exact,
        "Are all elements nonzero? NaN is."
        + _example("gp.all(gp.asarray([[1, 0], [2, 3]]), axis=1).tolist()", "[False, True]"),
        state=lambda a: 4, empty=1, skipped=True),
    Row("count_nonzero", "CountNonzero", np.count_nonzero, _PLAIN, _index, _exact,
        "Number of elements that are not zero, in int64."
        + _example("gp.count_nonzero(gp.asarray([[1, 0], [2, 3]]), axis=1).tolist()", "[1, 2]"),
        state=lambda a: 8),
    Row("mean", "Mean", np.mean, (_X, _AXIS, _DTYPE, _KEEPDIMS, _WHERE), mean_type, accumulator,
        "Arithmetic mean over some or all axes; float64 for integers.\n\nThe sum in the order of `sum`, divided by the "
        "number of elements and rounded once."
        + _example("gp.mean(gp.arange(6).reshape(2, 3), axis=1).tolist()", "[1.0, 4.0]"),
        tolerance=_ROUNDED),
    Row("var", "Var", np.var, _SPREAD, lambda x: real_type(mean_type(x)), accumulator,
        "Variance over some or all axes: the mean squared distance from the mean.\n\nOne pass over the elements by "
        "pairs of means and sums of squared distances, without the\ncancellation of a difference of squares. "
        + _ORDER + _example("gp.var(gp.arange(6).reshape(2, 3), axis=1, ddof=1).tolist()", "[1.0, 1.0]"),
        state=_moments, kernel_kinds="biuf", tolerance={k: 4 * v for k, v in _ROUNDED.items()}, flops=4),
    Row("std", "Std", np.std, _SPREAD, lambda x: real_type(mean_type(x)), accumulator,
        "Standard deviation over some or all axes: the root of `var`."
        + _example("gp.std(gp.asarray([1.0, 3.0])).item()", "1.0"),
        state=_moments, kernel_kinds="biuf", tolerance={k: 4 * v for k, v in _ROUNDED.items()}, flops=4),
    Row("abs_sum", "SumAbs", None, _PLAIN, lambda x: real_type(mean_type(x)), lambda x, kind: accumulator(kind),
        "Sum of the magnitudes of floats: the norm of order 1.", kinds="fc", tolerance=_ROUNDED, public=False),
    Row("root_square_sum", "RootSumSquares", None, _PLAIN, lambda x: real_type(mean_type(x)),
        lambda x, kind: accumulator(kind), "Root of the sum of squares of floats: the norm of order 2.", kinds="fc",
        tolerance=_ROUNDED, public=False, flops=2),
)  # fmt: skip

TABLE: Mapping[str, Row] = MappingProxyType({row.name: row for row in _ROWS})

_LINE = Parameter("axis", "choice", None, doc="Axis to scan along; by default all elements in row-major order.")
_SCANNED = "\n\nThe order is fixed by the length of the axis and the type alone. "

_SCAN_ROWS = (
    Row("cumsum", "Sum", np.add, (_X, _LINE, _DTYPE), sum_type, accumulator,
        "Sums of the elements up to each one along an axis." + _SCANNED + "Small floats are summed in float32, "
        "integers in 64 bits." + _example("gp.cumsum(gp.asarray([1, 2, 3])).tolist()", "[1, 3, 6]"),
        tolerance=_ROUNDED),
    Row("cumprod", "Prod", np.multiply, (_X, _LINE, _DTYPE), sum_type, accumulator,
        "Products of the elements up to each one along an axis, in the types of `cumsum`."
        + _example("gp.cumprod(gp.asarray([1, 2, 3])).tolist()", "[1, 2, 6]"), tolerance=_ROUNDED),
    Row("cummax", "Max", np.maximum, (_X, _LINE), _same, _exact,
        "Largest of the elements up to each one along an axis; NaN from the first NaN on."
        + _example("gp.cummax(gp.asarray([1, 3, 2])).tolist()", "[1, 3, 3]")),
    Row("cummin", "Min", np.minimum, (_X, _LINE), _same, _exact,
        "Smallest of the elements up to each one along an axis; NaN from the first NaN on."
        + _example("gp.cummin(gp.asarray([2, 1, 3])).tolist()", "[2, 1, 1]")),
)  # fmt: skip

SCANS: Mapping[str, Row] = MappingProxyType({row.name: row for row in _SCAN_ROWS})
"""The scans, whose ``numpy`` is a ufunc whose ``accumulate`` they are."""
