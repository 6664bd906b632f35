"""What a quantised weight and its transpose share: arrays on a device, and what they mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from pygpukit._pygpukit_rust import Device, GPUArray, current_stream
from pygpukit.array.bridge import from_numpy
from pygpukit.errors import ShapeError
from pygpukit.quant.formats import TILE, Format, Rule
from pygpukit.quant.kept import Kept
from pygpukit.quant.planes import Array, Parts, pack, shapes, unpack

LARGEST_SCALE = 2.0**100
"""Above it a weight of float8 is no 16-bit float, and its scale cannot take the exponent's correction."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A weight of n rows and k columns in its planes.

    Attributes
    ----------
    owners
        Rows of a tile with scales of their own: 16, or 1 where they share one.
    order
        The columns as they are stored, where they are sorted by group.
    source
        Layout it was read from, or ``"quantize"``.
    kept
        Decoded copies on the CPU device.
    """

    form: Format
    rule: Rule
    n: int
    k: int
    planes: Mapping[str, GPUArray]
    owners: int
    order: GPUArray | None
    source: str
    kept: Kept

    @property
    def device(self) -> Device:
        """Where the arrays are."""
        return self.planes["codes"].device

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(x.nbytes) for x in (*self.planes.values(), *([] if self.order is None else [self.order])))

    def host(self) -> tuple[dict[str, Array], Array | None]:
        """Return planes and order as NumPy arrays."""
        planes = {name: x.to_numpy() for name, x in self.planes.items()}
        return planes, None if self.order is None else self.order.to_numpy()

    def parts(self) -> Parts:
        """Return codes and scales in the order of a matrix."""
        return unpack(self.rule, self.host()[0], self.n, self.k)

    def on(self, device: Device | str) -> Stored:
        """Return it with its arrays on another device."""
        planes = {name: _fixed(x.to_device(device)) for name, x in self.planes.items()}
        order = None if self.order is None else _fixed(self.order.to_device(device))
        return dataclasses.replace(self, planes=planes, order=order, kept=Kept())


def store(
    form: Format, rule: Rule, parts: Parts, source: str, *, device: Device | None = None, order: Array | None = None
) -> Stored:
    """Check a weight, pack it, and copy it to a device.

    Raises
    ------
    ValueError
        If a number in it is not finite.
    """
    n, k = parts.codes.shape
    check(form, rule, parts)
    owners = 1 if parts.scales.ndim == 2 else TILE
    packed = pack(rule, parts)
    assert {name: (x.shape, x.dtype) for name, x in packed.items()} == shapes(rule, n, k, owners)
    planes = {name: _fixed(from_numpy(plane, device=device)) for name, plane in packed.items()}
    moved = None if order is None else _fixed(from_numpy(order, device=device))
    if planes["codes"].device.kind == "cpu":
        # Products decode a weight on a stream of their own, which does not wait for this one.
        current_stream().synchronize()
    return Stored(form, rule, n, k, planes, owners, moved, source, Kept())


def check(form: Format, rule: Rule, parts: Parts) -> None:
    """Refuse what kernels do not decode: nothing, NaN, infinity.

    Raises
    ------
    ValueError
        If a number is not finite, or there is none.
    """
    n, k = parts.codes.shape
    if n == 0 or k == 0:
        raise ShapeError(f"a quantised weight has at least one value; this has shape ({n}, {k})")
    for x in (parts.scales, parts.extra):
        if x is not None and x.dtype.kind not in "iu":
            bad = np.argwhere(~np.isfinite(x.astype(np.float32)))
            if len(bad):
                raise ValueError(f"a scale of the {form.name} weight is not finite, at {bad[0].tolist()}: it is broken")
    if rule.code == "e4m3":
        if float(np.abs(parts.scales).max()) >= LARGEST_SCALE:
            raise ValueError(f"a scale of the {form.name} weight is 2**100 or more: its numbers are no 16-bit floats")
        nans = np.argwhere((parts.codes & 0x7F) == 0x7F)
        if len(nans):
            raise ValueError(f"the {form.name} weight is NaN at {nans[0].tolist()}: it is broken")


def _fixed(x: GPUArray) -> GPUArray:
    x.setflags(write=False)
    return x
