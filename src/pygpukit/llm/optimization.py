"""What a config.json says about quantised, pruned and sparse weights, as published programs ask for it.

These describe a checkpoint; loading reads its own settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["FP8QuantConfig", "ModelOptimizationInfo", "PruningConfig", "QATQuantConfig", "SparsityConfig"]

Config = Mapping[str, Any]

# Methods whose weights come from a tool that rounded them with data, or while training.
_ROUNDED = ("qat", "awq", "gptq", "bnb", "modelopt")


def _section(config: Config, name: str) -> Config | None:
    found = config.get(name)
    return found if isinstance(found, Mapping) else None


def _pick(section: Config, *names: str, default: Any = None) -> Any:
    """The first of several names that is there."""
    return next((section[name] for name in names if section.get(name) is not None), default)


@dataclasses.dataclass
class FP8QuantConfig:
    """Weights of 8-bit floats with a scale per block.

    Examples
    --------
    >>> FP8QuantConfig.from_config({"quantization_config": {"quant_method": "fp8"}}).weight_block_size
    (128, 128)
    """

    quant_method: str = "fp8"
    fmt: str = "e4m3"
    weight_block_size: tuple[int, int] = (128, 128)
    modules_to_not_convert: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def from_config(cls, config: Config) -> FP8QuantConfig | None:
        """Return what a config.json says; None where it is not fp8."""
        section = _section(config, "quantization_config")
        if section is None or section.get("quant_method") != "fp8":
            return None
        rows, columns = _pick(section, "weight_block_size", default=(128, 128))
        left_out = list(_pick(section, "modules_to_not_convert", default=()))
        return cls("fp8", _pick(section, "fmt", default="e4m3"), (rows, columns), left_out)


@dataclasses.dataclass
class QATQuantConfig:
    """Weights that a tool rounded: Model Optimizer's ``hf_quant_config.json``, or AWQ, GPTQ and others.

    Examples
    --------
    >>> QATQuantConfig.from_config({"quantization_config": {"quant_method": "awq", "bits": 4}}).group_size
    128
    """

    quant_method: str
    quant_algo: Any
    group_size: int = 128
    kv_cache_quant_algo: str | None = None
    exclude_modules: list[str] = dataclasses.field(default_factory=list)
    producer: str | None = None
    producer_version: str | None = None

    @classmethod
    def from_config(cls, config: Config) -> QATQuantConfig | None:
        """Return what a config.json or hf_quant_config.json says; None where it is of no such tool."""
        maker, section = _section(config, "producer"), _section(config, "quantization")
        if maker is not None and section is not None:
            method, left_out = "modelopt", "exclude_modules"
        else:
            maker, section = {}, _section(config, "quantization_config")
            if section is None or section.get("quant_method") not in _ROUNDED:
                return None
            method, left_out = section["quant_method"], "modules_to_not_convert"
        return cls(
            quant_method=method,
            quant_algo=_pick(section, "quant_algo", "bits", default="unknown"),
            group_size=_pick(section, "group_size", "block_size", default=128),
            kv_cache_quant_algo=section.get("kv_cache_quant_algo"),
            exclude_modules=list(_pick(section, left_out, default=())),
            producer=maker.get("name"),
            producer_version=maker.get("version"),
        )


@dataclasses.dataclass
class PruningConfig:
    """Heads or weights that were taken out.

    Examples
    --------
    >>> PruningConfig.from_config({"pruned_heads": {"1": [0, 2]}}).pruned_heads
    {1: [0, 2]}
    """

    pruning_method: str
    sparsity: float = 0.0
    pruned_heads: dict[int, list[int]] | None = None
    is_structured: bool = False

    @classmethod
    def from_config(cls, config: Config) -> PruningConfig | None:
        """Return what a config.json says; None where nothing was taken out."""
        heads = config.get("pruned_heads")
        if heads:
            return cls("structured", 0.0, {int(layer): list(which) for layer, which in heads.items()}, True)
        section = _section(config, "pruning_config")
        if section is None:
            return None
        return cls(
            _pick(section, "pruning_type", "method", default="unknown"),
            _pick(section, "target_sparsity", "sparsity", default=0.0),
            section.get("pruned_heads"),
            _pick(section, "is_structured", "structured", default=False),
        )


@dataclasses.dataclass
class SparsityConfig:
    """A pattern of zeros.

    Examples
    --------
    >>> SparsityConfig.from_config({"sparsity_config": {"pattern": "2:4", "sparsity": 0.5}}).is_2_4_sparse()
    True
    """

    pattern: str
    block_size: tuple[int, ...] | None = None
    density: float = 1.0

    @classmethod
    def from_config(cls, config: Config) -> SparsityConfig | None:
        """Return what a config.json says; None where it has no pattern."""
        section, share = _section(config, "sparsity_config"), 0.0
        if section is None:
            section, share = _section(config, "quantization_config"), 0.5
            if section is None or not section.get("sparsity_pattern"):
                return None
        block = section.get("block_size")
        density = _pick(section, "density", default=1.0 - _pick(section, "sparsity", default=share))
        pattern = _pick(section, "pattern", "sparsity_pattern", default="unknown")
        return cls(pattern, tuple(block) if isinstance(block, list | tuple) and share == 0.0 else None, density)

    def is_2_4_sparse(self) -> bool:
        """Whether of four neighbours two are zero, which tensor cores have products for."""
        return self.pattern == "2:4"


@dataclasses.dataclass
class ModelOptimizationInfo:
    """All of these together.

    Examples
    --------
    >>> ModelOptimizationInfo.from_config({"pruned_heads": {"0": [1]}}).summary()
    'Pruned(structured)'
    """

    fp8_config: FP8QuantConfig | None = None
    qat_config: QATQuantConfig | None = None
    pruning_config: PruningConfig | None = None
    sparsity_config: SparsityConfig | None = None

    @classmethod
    def from_config(cls, config: Config) -> ModelOptimizationInfo:
        """Return what a config.json says."""
        return cls(
            FP8QuantConfig.from_config(config),
            QATQuantConfig.from_config(config),
            PruningConfig.from_config(config),
            SparsityConfig.from_config(config),
        )

    def has_any_optimization(self) -> bool:
        """Whether there is any."""
        return any(getattr(self, field.name) is not None for field in dataclasses.fields(self))

    def summary(self) -> str:
        """Return them in a line, ``"None"`` for none."""
        parts = []
        if self.fp8_config is not None:
            parts.append(f"FP8({self.fp8_config.fmt})")
        if self.qat_config is not None:
            parts.append(f"QAT({self.qat_config.quant_algo})")
        if self.pruning_config is not None:
            parts.append(f"Pruned({self.pruning_config.pruning_method})")
        if self.sparsity_config is not None:
            parts.append(f"Sparse({self.sparsity_config.pattern})")
        return ", ".join(parts) or "None"
