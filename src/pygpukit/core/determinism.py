"""What operators must promise about the bits of their results, and a digest to compare results by."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DeterminismScope, GPUArray

if TYPE_CHECKING:
    from typing import Any

__all__ = ["deterministic", "fingerprint", "get_deterministic", "set_deterministic"]


def deterministic(level: str = "batch_invariant") -> DeterminismScope:
    """Say what operators must promise about the bits of their results, inside a ``with`` block.

    The level is one of this thread's context, as the stream and the pool are: coroutines keep theirs, a graph keeps the
    kernels that were chosen while it was captured. Operators choose by it among several ways to compute the same; one
    that has no way as strong as asked takes its strongest, and `explain` says so.

    Parameters
    ----------
    level : str
        ``"batch_invariant"``: the bits are the same in every run and whatever the shape around an element.
        ``"run_to_run"``: the bits are the same in every run with the same shapes.
        ``"not_guaranteed"``: the bits may differ from run to run.

    Returns
    -------
    DeterminismScope
        To be entered by ``with``.

    Raises
    ------
    ValueError
        If there is no such level.

    Examples
    --------
    >>> import pygpukit as gp
    >>> with gp.deterministic("run_to_run"):
    ...     gp.get_deterministic()
    'run_to_run'
    >>> gp.get_deterministic()
    'batch_invariant'
    """
    return DeterminismScope(level)


def set_deterministic(level: str) -> None:
    """Say what operators must promise wherever no `deterministic` block says otherwise, in all threads.

    Parameters
    ----------
    level : str
        As for `deterministic`; ``"batch_invariant"`` at first.

    Raises
    ------
    ValueError
        If there is no such level.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.set_deterministic("not_guaranteed")
    >>> gp.get_deterministic()
    'not_guaranteed'
    >>> gp.set_deterministic("batch_invariant")
    """
    _native.set_default_determinism(level)


def get_deterministic() -> str:
    """Return the level in force in this thread.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.get_deterministic()
    'batch_invariant'
    """
    return _native.current_determinism()


def fingerprint(x: Any) -> str:
    """Return a digest of an array's element type, shape and bits.

    Arrays have the same digest exactly if they have the same type, the same shape and the same bits in every element:
    0.0 and -0.0 differ, and so do NaNs of different bits. Layout, device, process and machine do not matter. The array
    is copied to the host, where the digest is computed.

    Parameters
    ----------
    x : GPUArray or array_like
        What to digest. NumPy's arrays and anything `numpy.asarray` takes have the digest of the GPUArray of their bits.

    Returns
    -------
    str
        32 hexadecimal digits.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.arange(6, dtype=gp.float32).reshape(2, 3)
    >>> gp.fingerprint(x) == gp.fingerprint(x.T.contiguous().T)
    True
    >>> gp.fingerprint(x) == gp.fingerprint(x.reshape(3, 2))
    False
    """
    host = x.to_numpy() if isinstance(x, GPUArray) else np.asarray(x)
    if host.dtype.hasobject:
        raise TypeError(f"fingerprint() takes arrays of numbers, not of {host.dtype}")
    if host.dtype.byteorder == ">":
        # Devices are little-endian.
        host = host.astype(host.dtype.newbyteorder("<"))
    head = f"{host.dtype.name} {','.join(map(str, host.shape))}\n".encode()
    digest = hashlib.blake2b(head, digest_size=16)
    digest.update(np.ascontiguousarray(host).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
