"""Language models: files, tokenizers, architectures and replies.

    >>> from pygpukit.llm import LLM, SamplingParams
    >>> llm = LLM("smollm2")  # doctest: +SKIP
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=3)).text  # doctest: +SKIP
    ' Paris.'

Names are imported when they are used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
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
    from pygpukit.llm.decoder import MLP as LlamaMLP  # noqa: N811
    from pygpukit.llm.decoder import Attention as CausalSelfAttention
    from pygpukit.llm.decoder import Attention as LlamaAttention
    from pygpukit.llm.decoder import CausalTransformerModel as GPT2Model
    from pygpukit.llm.decoder import CausalTransformerModel as LlamaModel
    from pygpukit.llm.decoder import CausalTransformerModel as QwenModel
    from pygpukit.llm.decoder import TransformerBlock as LlamaBlock
    from pygpukit.llm.engine import LLM
    from pygpukit.llm.experts import MoELayer, load_mixtral_from_safetensors
    from pygpukit.llm.family_config import GPT2Config, LlamaConfig, Qwen3Config
    from pygpukit.llm.gguf import GGUFFile
    from pygpukit.llm.layers import Linear, LinearBF16, LinearFP8, Norm
    from pygpukit.llm.layers import Norm as LayerNorm
    from pygpukit.llm.layers import Norm as RMSNorm
    from pygpukit.llm.loading import (
        load_gpt2_from_safetensors,
        load_llama_from_safetensors,
        load_model_from_safetensors,
        load_qwen3_from_safetensors,
    )
    from pygpukit.llm.optimization import (
        FP8QuantConfig,
        ModelOptimizationInfo,
        PruningConfig,
        QATQuantConfig,
        SparsityConfig,
    )
    from pygpukit.llm.outputs import Piece, RequestOutput, Timing, Usage
    from pygpukit.llm.plugins import register
    from pygpukit.llm.quantizing import QuantizationReport, quantization_report
    from pygpukit.llm.repack import repack_linear, repack_model_weights, repack_norm, repack_weight
    from pygpukit.llm.rope import apply_rotary_pos_emb_numpy, precompute_freqs_cis
    from pygpukit.llm.safetensors import Dtype, SafeTensorsFile, ShardedSafeTensorsFile, TensorInfo, load_safetensors
    from pygpukit.llm.sampling import SamplingParams, sample_token
    from pygpukit.llm.streaming import (
        AutoLRU,
        LayerStreamingContext,
        LazyModelLoader,
        LoadingStrategy,
        PoolStats,
        SimpleStreaming,
        SlidingWindow,
        StreamingStrategy,
        TensorState,
        create_streaming_context,
    )
    from pygpukit.llm.templates import (
        ChatMessage,
        ThinkingParser,
        apply_chat_template,
        create_chat_prompt,
        format_chat_messages,
    )
    from pygpukit.llm.tokenizer import Tokenizer

    GPT2_SPEC: ModelSpec
    LLAMA_SPEC: ModelSpec
    QWEN2_SPEC: ModelSpec
    QWEN3_SPEC: ModelSpec
    MODEL_SPECS: Mapping[str, ModelSpec]

_HOMES = {
    "architecture": (
        "ModelSpec",
        "detect_model_spec",
    ),
    "buffers": (
        "DecodeBuffers",
        "PrefillBuffers",
    ),
    "config": ("TransformerConfig",),
    "decode": (
        "DecodeBatch",
        "DecodeJacobi",
        "DecodeM1",
        "DecodeM1Graph",
        "DecodeSpeculative",
        "DecodeStrategy",
    ),
    "decoder": (
        "MLP",
        "Attention",
        "CausalTransformerModel",
        "KVCache",
        "TransformerBlock",
    ),
    "engine": ("LLM",),
    "experts": (
        "MoELayer",
        "load_mixtral_from_safetensors",
    ),
    "family_config": (
        "GPT2Config",
        "LlamaConfig",
        "Qwen3Config",
    ),
    "gguf": ("GGUFFile",),
    "layers": (
        "Linear",
        "LinearBF16",
        "LinearFP8",
        "Norm",
    ),
    "loading": (
        "load_gpt2_from_safetensors",
        "load_llama_from_safetensors",
        "load_model_from_safetensors",
        "load_qwen3_from_safetensors",
    ),
    "optimization": (
        "FP8QuantConfig",
        "ModelOptimizationInfo",
        "PruningConfig",
        "QATQuantConfig",
        "SparsityConfig",
    ),
    "outputs": (
        "Piece",
        "RequestOutput",
        "Timing",
        "Usage",
    ),
    "plugins": ("register",),
    "quantizing": (
        "QuantizationReport",
        "quantization_report",
    ),
    "repack": (
        "repack_linear",
        "repack_model_weights",
        "repack_norm",
        "repack_weight",
    ),
    "rope": (
        "apply_rotary_pos_emb_numpy",
        "precompute_freqs_cis",
    ),
    "safetensors": (
        "Dtype",
        "SafeTensorsFile",
        "ShardedSafeTensorsFile",
        "TensorInfo",
        "load_safetensors",
    ),
    "sampling": (
        "SamplingParams",
        "sample_token",
    ),
    "streaming": (
        "AutoLRU",
        "LayerStreamingContext",
        "LazyModelLoader",
        "LoadingStrategy",
        "PoolStats",
        "SimpleStreaming",
        "SlidingWindow",
        "StreamingStrategy",
        "TensorState",
        "create_streaming_context",
    ),
    "templates": (
        "ChatMessage",
        "ThinkingParser",
        "apply_chat_template",
        "create_chat_prompt",
        "format_chat_messages",
    ),
    "tokenizer": ("Tokenizer",),
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}
# Published names of one class.
_SAME = {
    **dict.fromkeys(("GPT2Model", "LlamaModel", "QwenModel"), "CausalTransformerModel"),
    **dict.fromkeys(("CausalSelfAttention", "LlamaAttention"), "Attention"),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), "Norm"),
    "LlamaBlock": "TransformerBlock",
    "LlamaMLP": "MLP",
}
_SPECS = ("GPT2_SPEC", "LLAMA_SPEC", "QWEN2_SPEC", "QWEN3_SPEC")

__all__ = [
    "GPT2_SPEC",
    "LLAMA_SPEC",
    "LLM",
    "MLP",
    "MODEL_SPECS",
    "QWEN2_SPEC",
    "QWEN3_SPEC",
    "Attention",
    "AutoLRU",
    "CausalSelfAttention",
    "CausalTransformerModel",
    "ChatMessage",
    "DecodeBatch",
    "DecodeBuffers",
    "DecodeJacobi",
    "DecodeM1",
    "DecodeM1Graph",
    "DecodeSpeculative",
    "DecodeStrategy",
    "Dtype",
    "FP8QuantConfig",
    "GGUFFile",
    "GPT2Config",
    "GPT2Model",
    "KVCache",
    "LayerNorm",
    "LayerStreamingContext",
    "LazyModelLoader",
    "Linear",
    "LinearBF16",
    "LinearFP8",
    "LlamaAttention",
    "LlamaBlock",
    "LlamaConfig",
    "LlamaMLP",
    "LlamaModel",
    "LoadingStrategy",
    "MoELayer",
    "ModelOptimizationInfo",
    "ModelSpec",
    "Norm",
    "Piece",
    "PoolStats",
    "PrefillBuffers",
    "PruningConfig",
    "QATQuantConfig",
    "QuantizationReport",
    "Qwen3Config",
    "QwenModel",
    "RMSNorm",
    "RequestOutput",
    "SafeTensorsFile",
    "SamplingParams",
    "ShardedSafeTensorsFile",
    "SimpleStreaming",
    "SlidingWindow",
    "SparsityConfig",
    "StreamingStrategy",
    "TensorInfo",
    "TensorState",
    "ThinkingParser",
    "Timing",
    "Tokenizer",
    "TransformerBlock",
    "TransformerConfig",
    "Usage",
    "apply_chat_template",
    "apply_rotary_pos_emb_numpy",
    "create_chat_prompt",
    "create_streaming_context",
    "detect_model_spec",
    "format_chat_messages",
    "load_gpt2_from_safetensors",
    "load_llama_from_safetensors",
    "load_mixtral_from_safetensors",
    "load_model_from_safetensors",
    "load_qwen3_from_safetensors",
    "load_safetensors",
    "precompute_freqs_cis",
    "quantization_report",
    "register",
    "repack_linear",
    "repack_model_weights",
    "repack_norm",
    "repack_weight",
    "sample_token",
]


def __getattr__(name: str) -> Any:
    name = _SAME.get(name, name)
    if name in _NAMES:
        return getattr(importlib.import_module(f"pygpukit.llm.{_NAMES[name]}"), name)
    if name in _SPECS or name == "MODEL_SPECS":
        known = importlib.import_module("pygpukit.llm.architecture").specs()
        return known if name == "MODEL_SPECS" else known[name.removesuffix("_SPEC").lower()]
    if name in ("MIXTRAL_SPEC", "QWEN3_MOE_SPEC"):
        importlib.import_module("pygpukit.llm.experts").refuse(name)
    raise AttributeError(f"module 'pygpukit.llm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
