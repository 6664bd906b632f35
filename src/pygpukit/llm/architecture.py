"""What an architecture is: how its settings are read and which tensors it has, under which names.

A file of `models` describes one. Tensors have roles here, such as ``q`` of a layer, so that checkpoints of Hugging Face
and GGUF files differ in a table of names only.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import NamedTuple

from pygpukit.errors import ModelLoadError
from pygpukit.llm import models, plugins
from pygpukit.llm.config import Settings, TransformerConfig

__all__ = ["GGUF_NAMES", "LLAMA_NAMES", "ModelSpec", "Wanted", "detect_model_spec", "find_spec", "specs", "wanted"]

_LAYER = "model.layers.{i}."
LLAMA_NAMES: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "attn_norm": _LAYER + "input_layernorm",
    "q": _LAYER + "self_attn.q_proj",
    "k": _LAYER + "self_attn.k_proj",
    "v": _LAYER + "self_attn.v_proj",
    "o": _LAYER + "self_attn.o_proj",
    "q_norm": _LAYER + "self_attn.q_norm",
    "k_norm": _LAYER + "self_attn.k_norm",
    "mlp_norm": _LAYER + "post_attention_layernorm",
    "gate": _LAYER + "mlp.gate_proj",
    "up": _LAYER + "mlp.up_proj",
    "down": _LAYER + "mlp.down_proj",
}

GGUF_NAMES: Mapping[str, str] = {
    "embed": "token_embd",
    "positions": "position_embd",
    "final_norm": "output_norm",
    "head": "output",
    "attn_norm": "blk.{i}.attn_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "qkv": "blk.{i}.attn_qkv",
    "o": "blk.{i}.attn_output",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "attn_post_norm": "blk.{i}.post_attention_norm",
    "mlp_norm": "blk.{i}.ffn_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "gate_up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
    "mlp_post_norm": "blk.{i}.post_ffw_norm",
}


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """An architecture.

    Attributes
    ----------
    name
        The ``model_type`` of its config.json.
    read_config
        Makes a configuration of a config.json.
    read_gguf
        Makes one of the metadata of a GGUF file, and the size of the vocabulary.
    names
        Names of tensors by role, without ``.weight``.
    model_types
        Other values of ``model_type`` that mean the same.
    gguf_name
        The ``general.architecture`` of its GGUF files.
    prefixes
        What names may begin with.
    ignored
        Endings of tensors that are no weights.
    transposed
        Its checkpoints store the weights of linear layers as [in, out]; GGUF files never do.
    permuted
        Its GGUF files have the rows of queries and keys in pairs.
    fused_qkv, fused_gate_up
        Queries, keys and values are one tensor, gate and what passes are one.
    """

    name: str
    read_config: Callable[[Settings], TransformerConfig]
    read_gguf: Callable[[Settings, int], TransformerConfig]
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: LLAMA_NAMES)
    model_types: tuple[str, ...] = ()
    gguf_name: str = ""
    prefixes: tuple[str, ...] = ("",)
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)
    transposed: bool = False
    permuted: bool = False
    fused_qkv: bool = False
    fused_gate_up: bool = False

    @cached_property
    def _typical(self) -> TransformerConfig:
        """The settings of a model that says nothing but its sizes."""
        sizes = {"vocab_size": 4, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 4,
                 "num_key_value_heads": 1, "intermediate_size": 4}  # fmt: skip
        return self.read_config(Settings({"model_type": self.name, **sizes}))

    @property
    def norm_type(self) -> str:
        """``"rmsnorm"`` or ``"layernorm"``."""
        return self._typical.norm_type

    @property
    def activation(self) -> str:
        """``"silu"`` or ``"gelu"``."""
        return self._typical.activation

    @property
    def use_rope(self) -> bool:
        """Whether queries and keys turn by their position."""
        return self._typical.use_rope

    @property
    def use_qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return self._typical.qk_norm

    @property
    def use_position_embed(self) -> bool:
        """Whether positions are rows of a table."""
        return self._typical.learned_positions


class Wanted(NamedTuple):
    """A tensor of a model: its role, the layer or -1, its shape."""

    role: str
    layer: int
    suffix: str
    shape: tuple[int, ...]

    @property
    def is_linear(self) -> bool:
        """Whether it is the matrix of a layer's product; the embedding and the head are none."""
        return len(self.shape) == 2 and self.layer >= 0

    def name(self, names: Mapping[str, str]) -> str:
        """Return its name by a table."""
        return f"{names[self.role].format(i=self.layer)}.{self.suffix}"


def wanted(config: TransformerConfig, spec: ModelSpec) -> Iterator[Wanted]:
    """Return the tensors of a model, in the order they are loaded; the head comes last."""
    hidden, mlp, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * dim, config.kv_size

    def norm(role: str, layer: int, size: int = hidden) -> Iterator[Wanted]:
        yield Wanted(role, layer, "weight", (size,))
        if config.norm_type == "layernorm":
            yield Wanted(role, layer, "bias", (size,))

    def linear(role: str, layer: int, rows: int, columns: int, bias: bool) -> Iterator[Wanted]:
        yield Wanted(role, layer, "weight", (rows, columns))
        if bias:
            yield Wanted(role, layer, "bias", (rows,))

    yield Wanted("embed", -1, "weight", (config.vocab_size, hidden))
    if config.learned_positions:
        yield Wanted("positions", -1, "weight", (config.max_position_embeddings, hidden))
    for i in range(config.num_layers):
        yield from norm("attn_norm", i)
        parts = {"qkv": q + 2 * kv} if spec.fused_qkv else {"q": q, "k": kv, "v": kv}
        for role, rows in parts.items():
            yield from linear(role, i, rows, hidden, config.qkv_bias)
        yield from linear("o", i, hidden, q, config.o_bias)
        if config.qk_norm:
            yield from norm("q_norm", i, dim)
            yield from norm("k_norm", i, dim)
        if config.post_norms:
            yield from norm("attn_post_norm", i)
        yield from norm("mlp_norm", i)
        parts = {"up": mlp}
        if config.gated:
            parts = {"gate_up": 2 * mlp} if spec.fused_gate_up else {"gate": mlp, "up": mlp}
        for role, rows in parts.items():
            yield from linear(role, i, rows, hidden, config.mlp_bias)
        yield from linear("down", i, hidden, mlp, config.mlp_bias)
        if config.post_norms:
            yield from norm("mlp_post_norm", i)
    yield from norm("final_norm", -1)
    yield Wanted("head", -1, "weight", (config.vocab_size, hidden))


@cache
def specs() -> Mapping[str, ModelSpec]:
    """Return the architectures by name: one per file of `models`."""
    found = {}
    for info in pkgutil.iter_modules(models.__path__):
        spec: ModelSpec = importlib.import_module(f"{models.__name__}.{info.name}").SPEC
        found[spec.name] = spec
    return found


def find_spec(name: str, gguf: bool = False) -> ModelSpec:
    """Return the architecture that a file names.

    Raises
    ------
    ModelLoadError
        If it is unknown; the text lists the known ones.
    """
    for spec in specs().values():
        if name == spec.gguf_name if gguf else name in (spec.name, *spec.model_types):
            return spec
    more = plugins.names("architecture")
    for other in more if gguf else [other for other in more if other == name]:
        found: ModelSpec | None = plugins.find("architecture", other)
        if found is not None and (not gguf or found.gguf_name == name):
            return found
    known = ", ".join(sorted({spec.gguf_name if gguf else spec.name for spec in specs().values()} | set(more)))
    raise ModelLoadError(
        f"the architecture {name!r} is unknown; known are {known}; pygpukit.llm.register('architecture', name, spec) "
        "adds one"
    )


def detect_model_spec(tensor_names: Iterable[str]) -> ModelSpec:
    """Return the architecture that tensors of these names belong to.

    Raises
    ------
    ValueError
        If none does.

    Examples
    --------
    >>> detect_model_spec(["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]).name
    'llama'
    """
    names = set(tensor_names)

    def has(*parts: str) -> bool:
        return any(all(part in name for part in parts) for name in names)

    known = specs()
    if has("block_sparse_moe.") or has("mlp.experts."):
        raise ValueError(
            "Cannot detect model type: the tensors are those of a mixture of experts (Mixtral, Qwen 3 MoE), which "
            "follow with the MoE operators"
        )
    if has("wte.weight") and has("wpe.weight"):
        return known["gpt2"]
    if has("embed_tokens.weight"):
        if has("self_attn.qkv_proj"):
            return known["phi3"]
        if has("pre_feedforward_layernorm"):
            return known["gemma3_text" if has("q_norm") else "gemma2"]
        if has("self_attn.q_norm"):
            return known["qwen3"]
        return known["qwen2" if has("self_attn.q_proj.bias") else "llama"]
    raise ValueError("Cannot detect model type: the tensors' names are those of no known architecture")
