"""`QuantTensor`: a matrix whose numbers are kept as codes and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, Device, GPUArray, Stream
from pygpukit.array.bridge import from_numpy
from pygpukit.dtypes import DTypeLike, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.quant import products
from pygpukit.quant.formats import FORMATS, Rule
from pygpukit.quant.planes import Array, shapes, unpack
from pygpukit.quant.stored import Stored, store

if TYPE_CHECKING:
    from pygpukit.ops.explain import Explanation

__all__ = ["QuantTensor"]


class QuantTensor:
    """A quantised weight: a matrix that takes part in products and cannot be changed.

    `pygpukit.quant.quantize` and `QuantTensor.from_checkpoint` make one. ``x @ q`` and `pygpukit.matmul` multiply with
    it; ``q.T`` is the transposed matrix over the same memory.

    Attributes
    ----------
    format : str
        Such as ``"int4"`` or ``"q4_k"``.
    group : int
        Values that share a scale; 0 for a whole row.
    layout : str
        What it was made from: ``"quantize"``, ``"awq"``, ``"gptq"``, ``"gguf"`` and others.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q = gp.quant.quantize(gp.ones((128, 8)), "int8")
    >>> (gp.ones((2, 128)) @ q).tolist()[0][:2]
    [128.0, 128.0]
    """

    __slots__ = ("__weakref__", "_stored", "_turned")
    __array_ufunc__ = None

    _stored: Stored
    _turned: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("a QuantTensor is made by pygpukit.quant.quantize() or QuantTensor.from_checkpoint()")

    @classmethod
    def _make(cls, stored: Stored, turned: bool) -> QuantTensor:
        self = object.__new__(cls)
        object.__setattr__(self, "_stored", stored)
        object.__setattr__(self, "_turned", turned)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a QuantTensor cannot be changed: '{name}' is fixed; quantise again for another")

    __delattr__ = __setattr__  # type: ignore[assignment]

    @classmethod
    def from_checkpoint(
        cls, layout: str, tensors: Mapping[str, Any], *, shape: tuple[int, int] | None = None,
        device: Device | None = None,
    ) -> QuantTensor:  # fmt: skip
        """Read a weight as a checkpoint stores it.

        Parameters
        ----------
        layout : str
            ``"awq"``, ``"gptq"``, ``"gptq_v2"``, ``"pack_quantized"``, ``"int8"``, ``"fp8"``, or a GGUF type:
            ``"q4_0"``, ``"q4_1"``, ``"q5_0"``, ``"q5_1"``, ``"q8_0"``, ``"q4_k"``, ``"q5_k"``, ``"q6_k"``.
        tensors : Mapping
            Arrays by the names of the checkpoint, without the layer's prefix: ``qweight``, ``qzeros``, ``scales`` and
            ``g_idx``; ``weight_packed``, ``weight_scale``, ``weight_zero_point`` and ``weight_shape``; ``weight`` and
            ``weight_scale_inv`` or ``weight_scale``; ``data`` for GGUF, an array or any buffer.
        shape : tuple of int, optional
            (outputs, inputs); needed where ``data`` is a plain buffer, checked where given.
        device : Device, optional
            Where its arrays go; the current one by default.

        Returns
        -------
        QuantTensor
            Of shape (outputs, inputs), whatever the layout: ``x @ q.T`` is the layer.

        Raises
        ------
        ValueError
            If arrays are missing or do not fit each other, or scales are not finite.

        Examples
        --------
        >>> import pygpukit as gp
        >>> block = np.zeros(18, np.uint8)
        >>> block[:2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
        >>> q = gp.quant.QuantTensor.from_checkpoint("q4_0", {"data": block}, shape=(1, 32))
        >>> q.dequantize("float32")[0, :2].tolist()
        [-4.0, -4.0]
        """
        from pygpukit.quant.checkpoints import read

        form, rule, parts, order = read(layout, tensors, shape)
        return cls._make(store(form, rule, parts, layout.lower(), device=device, order=order), False)

    def to_checkpoint(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays that `from_checkpoint` was given, by name, as NumPy arrays.

        Raises
        ------
        ValueError
            If it does not come from a checkpoint.
        """
        from pygpukit.quant.checkpoints import write

        stored = self._stored
        return write(stored.source, stored.rule, stored.parts(), stored.host()[1])

    @property
    def format(self) -> str:
        """Name of the format."""
        return self._stored.form.name

    @property
    def group(self) -> int:
        """Values that share a scale; 0 for a whole row."""
        return self._stored.rule.group

    @property
    def layout(self) -> str:
        """What it was made from."""
        return self._stored.source

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self._stored.form.bits

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return (self._stored.k, self._stored.n) if self._turned else (self._stored.n, self._stored.k)

    @property
    def ndim(self) -> int:
        """Number of dimensions: 2."""
        return 2

    @property
    def size(self) -> int:
        """Number of values."""
        return self._stored.n * self._stored.k

    @property
    def axis(self) -> int:
        """Axis along which groups lie: the one that a product should sum over."""
        return 0 if self._turned else 1

    @property
    def symmetric(self) -> bool:
        """Is a code's zero the same for all groups?"""
        return self._stored.rule.kind in ("scale", "superscale")

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""
        return self._stored.nbytes

    @property
    def device(self) -> Device:
        """Where its arrays are."""
        return self._stored.device

    @property
    def T(self) -> QuantTensor:  # noqa: N802
        """The transposed matrix, over the same memory."""
        return self._make(self._stored, not self._turned)

    def dequantize(self, dtype_: DTypeLike = "float32") -> GPUArray:
        """Return the matrix as numbers.

        Every number is computed in float32 and rounded once to the type.

        Parameters
        ----------
        dtype_ : DTypeLike, optional
            ``"float32"``, ``"bfloat16"`` or ``"float16"``.

        Returns
        -------
        GPUArray
        """
        w = products.decoded(self._stored, _decodable(dtype_))
        if self._stored.order is not None:
            w = w[:, self._columns()]
        return w.T if self._turned else w

    def rows(
        self,
        ids: GPUArray,
        dtype_: DTypeLike = "bfloat16",
        *,
        out: GPUArray | None = None,
        stream: Stream | None = None,
    ) -> GPUArray:
        """Return some rows of the matrix as numbers, such as those of tokens in a table of embeddings.

        Parameters
        ----------
        ids : GPUArray
            int32 or int64, of any shape. One outside of the matrix is an error on the CPU device; on a GPU, where ids
            are not read back, its row is zeros.
        dtype_ : DTypeLike, optional
            ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        out, stream
            As for operators.

        Returns
        -------
        GPUArray
            ``[*ids.shape, columns]``.

        Examples
        --------
        >>> import pygpukit as gp
        >>> q = gp.quant.quantize(gp.arange(64, dtype="float32").reshape(2, 32), "q8_0", axis=1)
        >>> q.rows(gp.asarray([1, 0, 1]), "float32").shape
        (3, 32)
        """
        kind = _decodable(dtype_)
        if self._turned:
            raise ValueError(
                "rows() decodes rows along which groups lie, and here those are columns: use q.T.rows(ids)"
            )
        if self._stored.order is None:
            return products.decoded_rows(self._stored, ids, kind, out, stream)
        sorted_rows = products.decoded_rows(self._stored, ids, kind, None, stream)
        made = sorted_rows[..., self._columns()]
        return made if out is None else _native.apply("copy", (made,), out)

    def error(self, w: Any) -> float:
        """Return how far it is from the matrix it was made of: the norm of the difference over that of the matrix.

        Parameters
        ----------
        w : GPUArray or ndarray
            Of the same shape; compared in float64 on the host.

        Returns
        -------
        float
        """
        wide = np.asarray(w.to_numpy() if isinstance(w, GPUArray) else w).astype(np.float64)
        if wide.shape != self.shape:
            raise ShapeError(f"error() compares with a matrix of {self.shape}, not of {wide.shape}")
        apart = float(np.linalg.norm(self.dequantize("float32").to_numpy() - wide))
        size = float(np.linalg.norm(wide))
        return apart / size if size else apart

    def to_device(self, device: Device | str) -> QuantTensor:
        """Return it with its arrays on another device; itself where they are there."""
        return self if self.device == device else self._make(self._stored.on(device), self._turned)

    def _columns(self) -> GPUArray:
        """Where each column is among those sorted by group."""
        assert self._stored.order is not None
        return from_numpy(np.argsort(self._stored.order.to_numpy()), device=self.device)

    def __matmul__(self, other: Any) -> Any:
        return products.matmul(self, other) if isinstance(other, GPUArray) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return products.matmul(other, self) if isinstance(other, GPUArray) else NotImplemented

    def __gp_operator__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name != "matmul":
            raise TypeError(f"{name}() takes GPUArrays, not a QuantTensor: call dequantize() first")
        return products.matmul(*args, **kwargs)

    def __gp_explain__(self, operator: Callable[..., Any], args: Any, kwargs: Any) -> Explanation:
        return products.explain(operator, args, kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a QuantTensor is no array: dequantize() gives its numbers, .to_numpy() of that a NumPy array")

    def __repr__(self) -> str:
        group = f", group={self.group}" if self.group else ""
        made = "" if self.layout == "quantize" else f", layout='{self.layout}'"
        return (
            f"QuantTensor({self.shape}, '{self.format}'{group}{made}, nbytes={self.nbytes}, "
            f"device='{self.device.kind}')"
        )

    def __copy__(self) -> QuantTensor:
        return self

    def __deepcopy__(self, memo: Any) -> QuantTensor:
        return self

    def __reduce__(self) -> Any:
        stored = self._stored
        fixed = (stored.form.name, tuple(stored.rule), stored.n, stored.k, stored.owners, stored.source, self._turned)
        return _restore, (fixed, *stored.host())


def _decodable(to: DTypeLike) -> DataType:
    kind = dtype(to)
    if kind.name not in ("float32", "bfloat16", "float16"):
        raise DTypeError(f"a quantised weight is decoded to float32, bfloat16 or float16, not {kind.name}")
    return kind


def _restore(fixed: tuple[Any, ...], planes: Mapping[str, Array], order: Array | None) -> QuantTensor:
    """Make a weight of what a pickle holds on the current device, checked as a checkpoint's is."""
    name, rule_fields, n, k, owners, source, turned = fixed
    rule = Rule(*rule_fields)
    if {key: (x.shape, x.dtype) for key, x in planes.items()} != shapes(rule, n, k, owners):
        raise ValueError(f"the pickle of a {name} weight of ({n}, {k}) holds arrays that do not belong to it")
    return QuantTensor._make(store(FORMATS[name], rule, unpack(rule, planes, n, k), source, order=order), turned)
