"""`quantize`: from a matrix of numbers to a quantised weight; `concatenate`: several of them as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.shape import joining
from pygpukit.quant.encode import encode
from pygpukit.quant.formats import CODES, FORMATS, TILE, Format, Kind, Rule
from pygpukit.quant.kept import Kept
from pygpukit.quant.planes import Array, Parts
from pygpukit.quant.stored import Stored, store
from pygpukit.quant.tensor import QuantTensor

__all__ = ["concatenate", "formats", "quantize"]


def formats() -> tuple[str, ...]:
    """Return the names of all formats.

    Examples
    --------
    >>> import pygpukit as gp
    >>> "int4" in gp.quant.formats()
    True
    """
    return tuple(FORMATS)


def quantize(
    w: Any, format: str, *, group: int | str | None = None, axis: int = -2, symmetric: bool = True,
    scale_dtype: Any = None, device: Any = None,
) -> QuantTensor:  # fmt: skip
    """Quantise a matrix.

    The work is done on the host by NumPy: a matrix on a GPU is copied there, and its codes and scales back.

    Parameters
    ----------
    w : GPUArray or ndarray
        A matrix of floats.
    format : str
        ``"fp8_e4m3"``, ``"int8"``, ``"int4"``, or one of GGUF's ``"q4_0"``, ``"q4_1"``, ``"q5_0"``, ``"q5_1"``,
        ``"q8_0"``.
    group : int or str, optional
        Values that share a scale along the axis. fp8_e4m3: ``"tensor"``, ``"row"`` (the default) or 128, for blocks of
        128 x 128. int8: ``"row"`` (the default), 32, 64 or 128. int4: 128 (the default), 64, 32 or ``"row"``.
    axis : int, optional
        The axis along which groups lie, which products sum over: by default the one ``x @ w`` sums over. A weight
        stored as (outputs, inputs) has it at 1 and multiplies as ``x @ q.T``.
    symmetric : bool, optional
        False gives groups of int4 a zero point each.
    scale_dtype : DTypeLike, optional
        Of the scales of int8 and int4. float32 for int8 with a scale per row; else the type of w if it has 16 bits, and
        bfloat16 if not.
    device : Device, optional
        Where the result goes; by default where ``w`` is.

    Returns
    -------
    QuantTensor

    Raises
    ------
    ValueError
        If the format or group is unknown, or ``w`` holds NaN or infinity.
    ShapeError
        If ``w`` is no matrix, or its rows are no whole number of groups.

    Examples
    --------
    >>> import pygpukit as gp
    >>> w = gp.random.default_rng(0).normal(size=(256, 64), dtype="float32")
    >>> q = gp.quant.quantize(w, "int4", group=32)
    >>> q
    QuantTensor((256, 64), 'int4', group=32, nbytes=9216, device='cpu')
    >>> q.error(w) < 0.1
    True
    """
    form = FORMATS.get(format)
    if form is None:
        raise ValueError(f"unknown format '{format}'; use one of {', '.join(FORMATS)}")
    if not form.makes:
        raise ValueError(f"{format} blocks are searched for by llama.cpp's tools; read them with from_checkpoint()")
    if not isinstance(w, GPUArray | np.ndarray):
        raise TypeError(f"quantize() takes a GPUArray or a NumPy array, not {type(w).__name__}")
    if w.ndim != 2:
        raise ShapeError(f"quantize() takes a matrix, not an array of shape {tuple(w.shape)}: reshape it")
    if axis not in (-2, -1, 0, 1):
        raise ValueError(f"axis {axis} is out of bounds for a matrix; use 0 or 1")
    kind = dtype(w.dtype)
    if kind.kind != "f" or kind.itemsize < 2:
        raise DTypeError(f"quantize() takes float16, bfloat16, float32 or float64, not {kind.name}")
    turned = axis in (-2, 0)
    host = np.asarray(w.to_numpy() if isinstance(w, GPUArray) else w)
    host = np.ascontiguousarray(host.T if turned else host)
    rule, shared = _rule(form, group, symmetric, scale_dtype, kind)
    n, k = host.shape
    if n == 0 or k == 0:
        raise ShapeError(f"quantize() needs at least one value; the matrix has shape {tuple(w.shape)}")
    if rule.group and k % rule.group and shared != "block":
        fit = [str(g) if g else "row" for g in form.groups if g == 0 or k % g == 0]
        hint = f"give group= one of {', '.join(fit)}" if fit else "pad it with zeros"
        raise ShapeError(f"{format} has groups of {rule.group} along axis {axis}, which has {k} values: {hint}")
    if not np.isfinite(host).all():
        at = np.argwhere(~np.isfinite(w.to_numpy() if isinstance(w, GPUArray) else w))[0].tolist()
        raise ValueError(f"quantize(): the matrix holds NaN or infinity at {at}")
    if device is None and isinstance(w, GPUArray):
        device = w.device
    return QuantTensor._make(store(form, rule, encode(rule, host, shared), "quantize", device=device), turned)


def concatenate(weights: Sequence[QuantTensor]) -> QuantTensor:
    """Join weights along their outputs, such as those of q, k and v, so that one product computes all.

    Where every weight but the last has a multiple of 16 outputs, memory is copied on the device as it is; otherwise
    the weights are packed anew on the host. So they are where some groups of 4 bits have zero points and others none.

    Parameters
    ----------
    weights : sequence of QuantTensor
        Of one format, group and type of scales, on one device, with the same inputs; all transposed or none. Columns
        that are sorted by group are so in the same order.

    Returns
    -------
    QuantTensor

    Raises
    ------
    ShapeError
        If the weights have other numbers of inputs.
    ValueError
        If they do not belong together otherwise.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q, k = (gp.quant.quantize(gp.ones((64, n)), "int8") for n in (32, 16))
    >>> gp.quant.concatenate([q, k]).shape
    (64, 48)
    """
    if not weights or not all(isinstance(w, QuantTensor) for w in weights):
        raise TypeError("concatenate() takes a sequence of QuantTensors, at least one")
    stored = [w._stored for w in weights]
    first = stored[0]
    for w, s in zip(weights[1:], stored[1:], strict=True):
        if s.k != first.k:
            raise ShapeError(f"concatenate(): weights of {first.k} and of {s.k} inputs have no product with the same x")
        if (_alike(s.rule), s.form, s.owners) != (_alike(first.rule), first.form, first.owners):
            raise ValueError(f"concatenate(): {weights[0]!r} and {w!r} are coded differently")
        if w._turned != weights[0]._turned or s.device != first.device:
            raise ValueError("concatenate(): all weights have to be transposed, or none, and on one device")
    order = _common_order(stored)
    if any(s.n % TILE for s in stored[:-1]) or any(s.rule != first.rule for s in stored):
        rule, pieces = _matching(stored)
        joined = [None if x[0] is None else np.concatenate(x) for x in zip(*pieces, strict=True)]
        made = store(first.form, rule, Parts(*joined), "concatenate", device=first.device, order=order)  # type: ignore[arg-type]
        return QuantTensor._make(made, weights[0]._turned)
    planes = {}
    for name in first.planes:
        planes[name] = joining.concatenate([s.planes[name] for s in stored])
        planes[name].setflags(write=False)
    total = sum(s.n for s in stored)
    kept = Stored(first.form, first.rule, total, first.k, planes, first.owners, first.order, "concatenate", Kept())
    return QuantTensor._make(kept, weights[0]._turned)


def _alike(rule: Rule) -> Rule:
    """The rule, with zero points where groups of 4 bits may have them."""
    return rule._replace(kind="zero") if rule.code == "i4" and rule.kind == "scale" else rule


def _common_order(stored: Sequence[Stored]) -> Array | None:
    """The order that the columns of all weights have, None for that of the matrix."""
    orders = [None if s.order is None else s.order.to_numpy() for s in stored]
    first = orders[0]
    listed = [None if order is None else order.tolist() for order in orders]
    if any(order != listed[0] for order in listed):
        raise ValueError("concatenate(): the columns of a weight are sorted by group, each in its own order")
    return first


def _matching(stored: Sequence[Stored]) -> tuple[Rule, list[Parts]]:
    """One rule for weights that may be joined, and their parts by it."""
    pieces = [s.parts() for s in stored]
    if stored[0].owners == 1:
        # Tiles that share scales begin elsewhere in the joined weight.
        pieces = [p._replace(scales=np.repeat(p.scales, TILE, axis=0)[: len(p.codes), :, None]) for p in pieces]
    if all(s.rule == stored[0].rule for s in stored):
        return stored[0].rule, pieces
    offset = np.uint8(CODES[stored[0].rule.code].offset)
    full = [p.extra if p.extra is not None else np.full(p.scales.shape[:2], offset) for p in pieces]
    return _alike(stored[0].rule), [p._replace(extra=z) for p, z in zip(pieces, full, strict=True)]


def _rule(form: Format, group: int | str | None, symmetric: bool, scale: Any, kind: Any) -> tuple[Rule, str]:
    """Return the rule for what was asked for, and which values share a scale."""
    shared = "row"
    if form.name == "fp8_e4m3" and group == "tensor":
        shared, group = "tensor", "row"
    size = form.groups[0] if group is None else 0 if group == "row" else group
    if isinstance(size, bool) or size not in form.groups:
        names = ["tensor"] * (form.name == "fp8_e4m3") + [str(g) if g else "row" for g in form.groups]
        raise ValueError(f"{form.name} has no groups of {group!r}; use one of {', '.join(names)}")
    if form.name == "fp8_e4m3" and size:
        shared = "block"
    how: Kind = form.kind
    if not symmetric:
        if form.name != "int4":
            raise ValueError(f"symmetric=False is for int4, not {form.name}")
        how = "zero"
    if scale is not None:
        wanted = dtype(scale).name
        if wanted not in form.scales:
            raise DTypeError(f"{form.name} has scales of {' or '.join(form.scales)}, not {wanted}")
    elif len(form.scales) == 1 or (form.name == "int8" and size == 0):
        wanted = form.scales[0]
    else:
        wanted = kind.name if kind.name in form.scales and kind.itemsize == 2 else "bfloat16"
    return Rule(form.code, how, dtype(wanted).tag, int(size)), shared
