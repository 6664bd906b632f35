"""Linear algebra with NumPy's names and meaning.

Examples
--------
>>> import pygpukit as gp
>>> gp.linalg.solve(gp.asarray([[2.0, 1.0], [1.0, 3.0]]), gp.asarray([3.0, 4.0])).tolist()
[1.0, 1.0]
"""

from numpy.linalg import LinAlgError

from pygpukit.linalg.norms import matrix_norm, norm, vector_norm
from pygpukit.linalg.products import (
    cross,
    diagonal,
    matrix_power,
    matrix_transpose,
    multi_dot,
    outer,
    tensordot,
    trace,
    vecdot,
)
from pygpukit.linalg.solving import cholesky, det, inv, lstsq, pinv, qr, slogdet, solve, tensorinv, tensorsolve
from pygpukit.linalg.spectra import cond, eig, eigh, eigvals, eigvalsh, matrix_rank, svd, svdvals
from pygpukit.ops.gemm.rows import matmul

__all__ = [
    "LinAlgError",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]
