"""Quantising a model: the format of each matrix where it is asked for on load, and a report of what that costs."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import numpy as np

from pygpukit.core.device import device
from pygpukit.errors import ModelLoadError
from pygpukit.llm import plugins
from pygpukit.quant.functions import quantize
from pygpukit.quant.tensor import QuantTensor

__all__ = [
    "QUANTIZATIONS",
    "QuantizationReport",
    "TensorError",
    "check_quantization",
    "quantization_report",
    "quantized",
]

# Of NumPy.
Array = Any

QUANTIZATIONS = ("fp8", "int8", "int4")
"""What matrices may become when a model is loaded."""

_FORMATS = {"fp8": "fp8_e4m3", "int8": "int8", "int4": "int4"}
_GROUPS = (128, 64, 32)


def check_quantization(name: str | None) -> None:
    """Refuse what matrices cannot become.

    Raises
    ------
    ValueError
        With those they can.
    """
    given: Any = name
    if given is None or (isinstance(given, str) and given in QUANTIZATIONS):
        return
    if isinstance(given, str) and name and plugins.find("quantization", name) is not None:
        return
    known = ", ".join([*QUANTIZATIONS, *plugins.names("quantization")])
    if name == "nvf4":
        raise ValueError(f"quantization='nvf4' is not available: no product reads that format yet; use one of {known}")
    raise ValueError(f"quantization is {name!r}, and must be None, for weights as they are stored, or one of {known}")


def quantized(name: str, matrix: Array, quantization: str) -> QuantTensor:
    """Return a matrix of outputs by inputs in a format, on the current device.

    Raises
    ------
    ModelLoadError
        If it holds NaN or infinity.
    """
    if quantization not in QUANTIZATIONS:
        made = plugins.find("quantization", quantization)(matrix)
        if not isinstance(made, QuantTensor) or made.shape != matrix.shape:
            raise ModelLoadError(
                f"{name}: the plugin {quantization!r} returned {type(made).__name__}, and must return a QuantTensor of "
                f"shape {matrix.shape}"
            )
        return made
    options: dict[str, Any] = {}
    if quantization == "int4":
        options["group"] = next((group for group in _GROUPS if matrix.shape[1] % group == 0), "row")
    try:
        return quantize(matrix, _FORMATS[quantization], axis=1, **options)
    except ValueError as error:
        raise ModelLoadError(f"{name}: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class TensorError:
    """How far a quantised matrix is from the one of the file.

    Attributes
    ----------
    name
        In the file.
    shape
        Outputs and inputs.
    group
        Inputs that share a scale; 0 for all.
    error
        Norm of the difference over that of the matrix.
    norm
        Of the matrix.
    nbytes
        Of codes and scales.
    """

    name: str
    shape: tuple[int, int]
    group: int
    error: float
    norm: float
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizationReport:
    """What quantising a model on load costs; `str` of it is a table.

    Attributes
    ----------
    model, quantization
        What was asked for.
    tensors
        Every matrix that is quantised.
    tokens
        Of the text that are predicted; 0 without a text.
    perplexity, quantized_perplexity
        Of the model as stored and quantised; None without a text.
    """

    model: str
    quantization: str
    tensors: tuple[TensorError, ...]
    tokens: int = 0
    perplexity: float | None = None
    quantized_perplexity: float | None = None

    @property
    def error(self) -> float:
        """The relative error of all matrices together."""
        apart = sum((tensor.error * tensor.norm) ** 2 for tensor in self.tensors)
        return math.sqrt(apart / (sum(tensor.norm**2 for tensor in self.tensors) or 1.0))

    @property
    def nbytes(self) -> int:
        """Bytes of all quantised matrices."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bits(self) -> float:
        """Bits of a weight, with its share of scales."""
        return 8 * self.nbytes / (sum(math.prod(tensor.shape) for tensor in self.tensors) or 1)

    def __str__(self) -> str:
        width = max([len(tensor.name) for tensor in self.tensors], default=0)
        lines = [
            f"{tensor.name:<{width}}  {tensor.shape[0]:>6} x {tensor.shape[1]:<6} "
            f"{'rows' if tensor.group == 0 else tensor.group:>5}  {100 * tensor.error:6.2f} %"
            for tensor in self.tensors
        ]
        lines.append(
            f"{self.quantization}: {len(self.tensors)} matrices, {self.nbytes} bytes, {self.bits:.2f} bits a weight, "
            f"relative error {100 * self.error:.2f} %"
        )
        if self.perplexity is not None and self.quantized_perplexity is not None:
            more = 100 * (self.quantized_perplexity / self.perplexity - 1)
            lines.append(
                f"perplexity of {self.tokens} tokens: {self.perplexity:.4f} as stored, "
                f"{self.quantized_perplexity:.4f} quantised ({more:+.2f} %)"
            )
        return "\n".join(lines)


def quantization_report(
    model: str | os.PathLike[str], quantization: str, text: str | None = None, *, dtype: str = "auto"
) -> QuantizationReport:
    """Measure what quantising a model on load costs: the error of every matrix, and the perplexity of a text.

    Parameters
    ----------
    model : str or path-like
        As for `LLM`.
    quantization : str
        ``"fp8"``, ``"int8"`` or ``"int4"``.
    text : str, optional
        Scored by the model as it is stored and by the quantised one, which are loaded one after the other.
    dtype : str
        As for `LLM`.

    Returns
    -------
    QuantizationReport

    Raises
    ------
    ValueError
        If the format is unknown, or the text has fewer than two tokens.

    Examples
    --------
    >>> import tempfile
    >>> from pygpukit.llm.testing import tiny_gguf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = quantization_report(tiny_gguf(f"{folder}/tiny.gguf"), "int8")
    >>> len(report.tensors), 0.001 < report.error < 0.01
    (14, True)
    """
    from pygpukit.llm import fetch
    from pygpukit.llm.engine import LLM
    from pygpukit.llm.loading import open_checkpoint

    check_quantization(quantization)
    if quantization is None:
        raise ValueError(f"quantization is None: name the format to report on, one of {', '.join(QUANTIZATIONS)}")
    checkpoint = open_checkpoint(fetch.find(str(model)) if str(model) in fetch.MODELS else model)
    try:
        checkpoint.check()
        errors = []
        for want in checkpoint.present():
            if not want.is_linear:
                continue
            matrix = np.asarray(checkpoint.stored(want).rows(0, want.shape[0]), np.float32)
            name = checkpoint.name(want)
            with device("cpu"):
                made = quantized(f"{checkpoint.path}: {name}", matrix, quantization)
            shape = int(matrix.shape[0]), int(matrix.shape[1])
            norm = float(np.linalg.norm(matrix.astype(np.float64)))
            errors.append(TensorError(name, shape, made.group, made.error(matrix), norm, made.nbytes))
    finally:
        checkpoint.close()
    if text is None:
        return QuantizationReport(str(model), quantization, tuple(errors))
    scores = []
    for chosen in (None, quantization):
        with LLM(model, dtype=dtype, quantization=chosen) as llm:
            scores.append(llm.score(text))
    if not scores[0]:
        raise ValueError("perplexity needs a text of at least two tokens")
    before, after = (math.exp(-sum(row) / len(row)) for row in scores)
    return QuantizationReport(str(model), quantization, tuple(errors), len(scores[0]), before, after)
