"""copyto: one array's elements written to another's, where a mask says so."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.indexing import elements_for, setitem
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.math.types import can_cast
from pygpukit.ops.operands import as_array
from pygpukit.ops.registry import export

_KINDS = "bifc"


@export
def copyto(dst: GPUArray, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Write the elements of `src`, broadcast, to those of `dst` for which `where` holds.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.zeros(3)
    >>> gp.copyto(x, [1.0, 2.0, 3.0], where=[True, False, True])
    >>> x.tolist()
    [1.0, 0.0, 3.0]
    """
    if not isinstance(dst, GPUArray):
        raise TypeError(f"copyto() writes to a GPUArray, not to {type(dst).__name__}")
    number = isinstance(src, bool | int | float | complex)
    if not number:
        src = as_array(src, "copyto()", dst.device)
    if number:
        # A number has a kind and no size: bool, integer, float, complex.
        below = _KINDS.index(np.asarray(src).dtype.kind) <= _KINDS.index(dst.dtype.kind.replace("u", "i"))
        allowed, kind = below or casting == "unsafe", type(src).__name__
    else:
        allowed, kind = can_cast(src.dtype, dst.dtype, casting), src.dtype.name
    if not allowed:
        raise DTypeError(
            f"copyto(): {kind} does not become {dst.dtype.name} under the rule {casting!r}; use casting='unsafe'"
        )
    if where is True:
        setitem(dst, ..., src)
        return
    mask = as_array(where, "copyto(): where", dst.device)
    if mask.dtype.name != "bool":
        raise DTypeError(f"copyto(): where must be an array of bool, not {mask.dtype.name}")
    setitem(dst, ..., e.where(mask, elements_for(dst, src), dst))
