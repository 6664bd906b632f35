"""Language models: files, tokenizers, architectures and replies.

    >>> from pygpukit.llm import LLM, SamplingParams
    >>> llm = LLM("smollm2")  # doctest: +SKIP
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=3)).text  # doctest: +SKIP
    ' Paris.'

Names are imported when they are used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pygpukit.llm.architecture import ModelSpec, detect_model_spec
    from pygpukit.llm.buffers import DecodeBuffers, PrefillBuffers
    from pygpukit.llm.config import TransformerConfig
    from pygpukit.llm.decode import (
        DecodeBatch,
        DecodeJacobi,
        DecodeM1,
        DecodeM1Graph,
        DecodeSpeculative,
        DecodeStrategy,
    )
    from pygpukit.llm.decoder import MLP, Attention, CausalTransformerModel, KVCache, TransformerBlock
    from pygpukit.llm.decoder import CausalTransformerModel as GPT2Model
    from pygpukit.llm.decoder import CausalTransformerModel as LlamaModel
    from pygpukit.llm.decoder import CausalTransformerModel as QwenModel
    from pygpukit.llm.engine import LLM
    from pygpukit.llm.gguf import GGUFFile
    from pygpukit.llm.layers import Linear, Norm
    from pygpukit.llm.loading import (
        load_gpt2_from_safetensors,
        load_llama_from_safetensors,
        load_model_from_safetensors,
        load_qwen3_from_safetensors,
    )
    from pygpukit.llm.outputs import Piece, RequestOutput, Timing, Usage
    from pygpukit.llm.quantizing import QuantizationReport, quantization_report
    from pygpukit.llm.safetensors import SafeTensorsFile, ShardedSafeTensorsFile, TensorInfo, load_safetensors
    from pygpukit.llm.sampling import SamplingParams, sample_token
    from pygpukit.llm.templates import (
        ChatMessage,
        ThinkingParser,
        apply_chat_template,
        create_chat_prompt,
        format_chat_messages,
    )
    from pygpukit.llm.tokenizer import Tokenizer

_HOMES = {
    "architecture": ("ModelSpec", "detect_model_spec"),
    "buffers": ("DecodeBuffers", "PrefillBuffers"),
    "config": ("TransformerConfig",),
    "decode": ("DecodeBatch", "DecodeJacobi", "DecodeM1", "DecodeM1Graph", "DecodeSpeculative", "DecodeStrategy"),
    "decoder": ("MLP", "Attention", "CausalTransformerModel", "KVCache", "TransformerBlock"),
    "engine": ("LLM",),
    "gguf": ("GGUFFile",),
    "layers": ("Linear", "Norm"),
    "loading": (
        "load_gpt2_from_safetensors",
        "load_llama_from_safetensors",
        "load_model_from_safetensors",
        "load_qwen3_from_safetensors",
    ),
    "outputs": ("Piece", "RequestOutput", "Timing", "Usage"),
    "quantizing": ("QuantizationReport", "quantization_report"),
    "safetensors": ("SafeTensorsFile", "ShardedSafeTensorsFile", "TensorInfo", "load_safetensors"),
    "sampling": ("SamplingParams", "sample_token"),
    "templates": (
        "ChatMessage",
        "ThinkingParser",
        "apply_chat_template",
        "create_chat_prompt",
        "format_chat_messages",
    ),
    "tokenizer": ("Tokenizer",),
}
# Published names of one class.
_SAME = dict.fromkeys(("GPT2Model", "LlamaModel", "QwenModel"), "CausalTransformerModel")
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LLM",
    "MLP",
    "Attention",
    "CausalTransformerModel",
    "ChatMessage",
    "DecodeBatch",
    "DecodeBuffers",
    "DecodeJacobi",
    "DecodeM1",
    "DecodeM1Graph",
    "DecodeSpeculative",
    "DecodeStrategy",
    "GGUFFile",
    "GPT2Model",
    "KVCache",
    "Linear",
    "LlamaModel",
    "ModelSpec",
    "Norm",
    "Piece",
    "PrefillBuffers",
    "QuantizationReport",
    "QwenModel",
    "RequestOutput",
    "SafeTensorsFile",
    "SamplingParams",
    "ShardedSafeTensorsFile",
    "TensorInfo",
    "ThinkingParser",
    "Timing",
    "Tokenizer",
    "TransformerBlock",
    "TransformerConfig",
    "Usage",
    "apply_chat_template",
    "create_chat_prompt",
    "detect_model_spec",
    "format_chat_messages",
    "load_gpt2_from_safetensors",
    "load_llama_from_safetensors",
    "load_model_from_safetensors",
    "load_qwen3_from_safetensors",
    "load_safetensors",
    "quantization_report",
    "sample_token",
]


def __getattr__(name: str) -> Any:
    name = _SAME.get(name, name)
    if name in _NAMES:
        return getattr(importlib.import_module(f"pygpukit.llm.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'pygpukit.llm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
