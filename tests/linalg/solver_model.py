"""What cuSOLVER's functions do to column-major matrices, computed with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ITEMS = {"potrf": 1, "getrf": 2, "getrs": 3, "geqrf": 2, "orgqr": 2, "syevd": 2, "gesvd": 4, "geev": 3}


def compute(name: str, sizes: tuple[int, int, int], flags: str, arrays: list[Array]) -> int:
    """Change the arrays, each of them column-major and given as its rows in memory; return the info."""
    m, n, k = sizes
    a = arrays[0]
    if name == "potrf":
        return _potrf(a, flags)
    if name == "getrf":
        return _getrf(a, arrays[1])
    if name == "getrs":
        x = a.T.copy()
        lower, upper = np.tril(x, -1) + np.eye(m, dtype=x.dtype), np.triu(x)
        order = np.arange(m)
        for i, other in enumerate(arrays[1] - 1):
            order[[i, other]] = order[[other, i]]
        whole = np.zeros_like(x)
        whole[order] = lower @ upper
        with np.errstate(all="ignore"):
            # A singular factor divides by zero.
            inverse = np.linalg.inv(whole) if np.diag(upper).all() else np.full_like(whole, np.inf)
            arrays[2][...] = arrays[2] @ (inverse if flags == "T" else inverse.T)
        return 0
    if name == "geqrf":
        h, tau = np.linalg.qr(a.T, "raw")
        a[...], arrays[1][...] = h, tau
        return 0
    if name == "orgqr":
        q = np.eye(m, n, dtype=a.dtype)
        for i in reversed(range(k)):
            v = np.concatenate([np.zeros(i), [1], a[i, i + 1 :]]).astype(a.dtype)
            q = q - arrays[1][i] * np.outer(v, v.conj() @ q)
        a[...] = q.T
        return 0
    if name == "syevd":
        if not np.isfinite(a).all():
            return 1
        w, v = np.linalg.eigh(a.T, flags[1])
        arrays[1][...] = w
        if flags[0] == "V":
            a[...] = v.T
        return 0
    if name == "gesvd":
        assert m >= n, "the library takes no wide matrices"
        if flags == "NN":
            arrays[1][...] = np.linalg.svdvals(a.T)
            return 0
        u, s, vh = np.linalg.svd(a.T, full_matrices=flags[0] == "A")
        arrays[1][...], arrays[2][...], arrays[3][...] = s, u.T, vh.T
        return 0
    assert name == "geev"
    return _geev(a, flags, arrays)


def _potrf(a: Array, flags: str) -> int:
    try:
        made = np.linalg.cholesky(a.T, upper=flags == "U")
    except np.linalg.LinAlgError:
        return 1
    # The other triangle keeps what it had.
    other = np.tril(a.T, -1) if flags == "U" else np.triu(a.T, 1)
    a[...] = (made + other).T
    return 0


def _getrf(a: Array, pivots: Array) -> int:
    x, info = a.T.copy(), 0
    for i in range(len(x)):
        best = i + int(np.argmax(np.abs(x[i:, i])))
        pivots[i] = best + 1
        x[[i, best]] = x[[best, i]]
        if x[i, i] == 0:
            info = info or i + 1
            continue
        x[i + 1 :, i] /= x[i, i]
        x[i + 1 :, i + 1 :] -= np.outer(x[i + 1 :, i], x[i, i + 1 :])
    a[...] = x.T
    return info


def _geev(a: Array, flags: str, arrays: list[Array]) -> int:
    w, v = np.linalg.eig(a.T)
    arrays[1][...] = w
    if flags[1] == "V":
        if a.dtype.kind == "c":
            arrays[2][...] = v.T
        else:
            # Of a pair the real part, then the imaginary part of its first vector.
            for i in range(len(w)):
                arrays[2][i] = -v[:, i].imag if np.imag(w[i]) < 0 else v[:, i].real
    return 0
