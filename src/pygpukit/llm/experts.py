"""Mixtures of experts: the published names, which refuse until there are operators for them."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from pygpukit.errors import ModelLoadError

__all__ = ["MoELayer", "load_mixtral_from_safetensors", "refuse"]


def refuse(what: str) -> NoReturn:
    """Raise the error that says what is missing."""
    raise ModelLoadError(
        f"{what} is not available yet: mixtures of experts (Mixtral, Qwen 3 MoE) follow with the MoE operators"
    )


class MoELayer:
    """The feed-forward part of a layer with several experts. Not available yet: making one raises ModelLoadError."""

    def __init__(self, config: Any, gate_weight: Any, expert_weights: Any) -> None:
        refuse("MoELayer")


def load_mixtral_from_safetensors(model_path: str | os.PathLike[str], dtype: str = "bfloat16") -> NoReturn:
    """Not available yet: raises ModelLoadError."""
    refuse(f"{os.fspath(model_path)}: load_mixtral_from_safetensors")
