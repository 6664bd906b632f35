"""What a model is, in one form for all architectures and file formats."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from pygpukit.errors import ModelLoadError
from pygpukit.llm.rope import Rope

__all__ = ["Settings", "TransformerConfig", "gguf_common", "hf_common", "hf_tokens", "read_rope"]

_LARGEST = 1 << 31
# More than any model has: a file that says more would take memory for nothing.
_MOST_LAYERS = 4096
# Tables of these kinds are made for all positions at once.
_MOST_POSITIONS = 1 << 22
_SIZES = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
          "max_position_embeddings")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices of a decoder.

    Attributes
    ----------
    intermediate_size, num_kv_heads, head_dim
        By default four times the hidden size, as many as heads, and the hidden size by the heads.
    architecture
        Name of the architecture, such as ``"llama"``.
    max_position_embeddings
        Positions the model may be given.
    norm_type
        ``"rmsnorm"`` or ``"layernorm"``.
    norm_offset
        Added to the weights of norms when they are loaded: Gemma stores them less one.
    activation
        ``"silu"`` or ``"gelu"``, the tanh form; of the gate where there is one.
    gated
        The MLP multiplies what passes by a gate.
    qkv_bias, o_bias, mlp_bias
        Which linear layers have a bias.
    qk_norm
        Queries and keys are normalised per head.
    post_norms
        The outputs of attention and MLP are normalised too.
    rope, local_rope
        Positions of layers that see everything, and of those with a window where that is another one.
    learned_positions
        Positions are rows of a table.
    windows
        Per layer how many positions it sees, 0 for all.
    scale
        Of attention's scores.
    attention_softcap, logit_softcap
        Values are squeezed to below this by tanh; 0 for none.
    embed_scale
        Factor of the embedding.
    tied
        The head is the embedding; None where that depends on the tensors there are.
    eos_token_ids
        End of a reply, by the model's own settings.

    Examples
    --------
    >>> config = TransformerConfig(vocab_size=320, hidden_size=48, num_layers=2, num_heads=6, intermediate_size=80)
    >>> config.head_dim, config.num_kv_heads, config.kv_bytes(2)
    (8, 6, 384)
    """

    vocab_size: int = 32000
    hidden_size: int = 2048
    num_layers: int = 22
    num_heads: int = 32
    intermediate_size: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    max_position_embeddings: int = 2048
    architecture: str = "llama"
    norm_type: str = "rmsnorm"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    rope: Rope | None = None
    local_rope: Rope | None = None
    learned_positions: bool = False
    windows: tuple[int, ...] = ()
    scale: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embed_scale: float = 1.0
    tied: bool | None = None
    dtype: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        def fill(name: str, value: Any) -> None:
            if not getattr(self, name):
                object.__setattr__(self, name, value)

        fill("num_kv_heads", self.num_heads)
        fill("intermediate_size", 4 * self.hidden_size)
        if self.num_heads > 0:
            fill("head_dim", self.hidden_size // self.num_heads)
        for name in _SIZES:
            value = getattr(self, name)
            if type(value) is not int or not 0 < value < _LARGEST:
                raise ModelLoadError(f"{name} is {value!r}, and must be a positive number")
        if self.num_layers > _MOST_LAYERS:
            raise ModelLoadError(f"num_layers is {self.num_layers}, and at most {_MOST_LAYERS} are read")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(f"{self.num_heads} heads cannot share {self.num_kv_heads} heads of keys and values")
        fill("scale", self.head_dim**-0.5)
        fill("windows", (0,) * self.num_layers)
        if len(self.windows) != self.num_layers or min(self.windows) < 0:
            raise ModelLoadError(f"windows are given for {len(self.windows)} of {self.num_layers} layers")
        for rope in (self.rope, self.local_rope):
            if rope is not None and rope.dim > self.head_dim:
                raise ModelLoadError(f"{rope.dim} dimensions turn by position, and a head has {self.head_dim}")
            if rope is not None and rope.by_length and self.max_position_embeddings > _MOST_POSITIONS:
                raise ModelLoadError(
                    f"max_position_embeddings is {self.max_position_embeddings}, and at most {_MOST_POSITIONS} with "
                    f"rope type {rope.kind!r}"
                )
        for name in ("norm_eps", "scale", "embed_scale"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ModelLoadError(f"{name} is {value!r}, and must be a positive number")

    @property
    def use_rope(self) -> bool:
        """Whether queries and keys turn by their position."""
        return self.rope is not None

    @property
    def rope_theta(self) -> float:
        """The base of the positions, where they turn."""
        return 10000.0 if self.rope is None else self.rope.theta

    @property
    def num_kv_groups(self) -> int:
        """Heads of queries that share a head of keys and values."""
        return self.num_heads // self.num_kv_heads

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the settings say that the head is the embedding."""
        return bool(self.tied)

    @property
    def kv_size(self) -> int:
        """Elements of keys, and of values, of one position in one layer."""
        return self.num_kv_heads * self.head_dim

    def kv_bytes(self, itemsize: int) -> int:
        """Return the bytes of keys and values of one position."""
        return 2 * self.num_layers * self.kv_size * itemsize

    def rope_of(self, layer: int) -> Rope | None:
        """Return how positions are embedded in a layer."""
        return self.local_rope if self.local_rope is not None and self.windows[layer] else self.rope


class Settings:
    """A config.json, or a GGUF file's metadata, read by key with the type that is expected.

    Examples
    --------
    >>> Settings({"n": 3, "eps": None}).number("eps", 1e-6)
    1e-06
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "", source: str = "config.json") -> None:
        self._values, self._prefix, self._source = values, prefix, source

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default for none or null."""
        value = self._values.get(self._prefix + key)
        return default if value is None else value

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._values

    def _wrong(self, key: str, value: Any, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._source}: {self._prefix}{key} is {value!r:.80}, and must be {what}")

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number; without a default it must be there."""
        value = self.get(key, default)
        if type(value) is not int or abs(value) >= _LARGEST:
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number; without a default it must be there."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self._wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        value = self.get(key, default)
        if type(value) is not str:
            raise self._wrong(key, value, "a text")
        return value

    def inner(self, key: str) -> Settings:
        """Return the settings under a key, none where it is not there."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return Settings(value, "", f"{self._source}, {key}")

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of numbers, empty where it is not there."""
        value = self.get(key, ())
        if not isinstance(value, list | tuple) or not all(type(v) in (int, float) and math.isfinite(v) for v in value):
            raise self._wrong(key, value, "a list of numbers")
        return tuple(map(float, value))

    def ids(self, key: str) -> tuple[int, ...]:
        """Return one id or a list of them as a tuple."""
        value = self.get(key, ())
        found = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(type(v) is int for v in found):
            raise self._wrong(key, value, "an id, or a list of ids")
        return found


def read_rope(s: Settings, head_dim: int, max_positions: int, theta: float = 10000.0, layers: str = "") -> Rope:
    """Return how positions are embedded by a config.json of transformers 4 or 5.

    Parameters
    ----------
    s : Settings
    head_dim, max_positions : int
    theta : float
        The base where the file has none.
    layers : str
        Kind of layers, where the file has a section for each.
    """
    new = s.inner("rope_parameters")
    if layers and layers in new:
        new = new.inner(layers)
    old = s.inner("rope_scaling")
    given = new if s.get("rope_parameters") is not None else old
    kind = given.get("rope_type", given.get("type", "default"))
    # Names that Phi-3's files have for the same.
    if s.get("model_type") == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"
    share = new.number("partial_rotary_factor", s.number("partial_rotary_factor", 1.0))
    # Phi-3 has it beside the section, and there it counts more.
    original = s.get("original_max_position_embeddings", given.get("original_max_position_embeddings"))
    original = max_positions if original is None or kind == "dynamic" else original
    factor = given.get("factor")
    try:
        return Rope(
            dim=int(head_dim * share),
            theta=new.number("rope_theta", s.number("rope_theta", theta)),
            kind=kind,
            factor=(max_positions / original if kind in ("yarn", "longrope") else 1.0) if factor is None else factor,
            original=original,
            low_freq_factor=given.number("low_freq_factor", 1.0),
            high_freq_factor=given.number("high_freq_factor", 4.0),
            beta_fast=given.number("beta_fast", 32.0) or 32.0,
            beta_slow=given.number("beta_slow", 1.0) or 1.0,
            truncate=given.flag("truncate", True),
            attention_factor=given.get("attention_factor"),
            mscale=given.number("mscale", 0.0),
            mscale_all_dim=given.number("mscale_all_dim", 0.0),
            short_factor=given.numbers("short_factor"),
            long_factor=given.numbers("long_factor"),
        )
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelLoadError(f"config.json: the rope of this model cannot be used: {error}") from error


def hf_common(s: Settings) -> dict[str, Any]:
    """Return what every config.json but GPT-2's says, by the names of `TransformerConfig`."""
    heads = s.whole("num_attention_heads")
    if heads < 1:
        raise ModelLoadError(f"config.json: num_attention_heads is {heads}, and must be a positive number")
    hidden = s.whole("hidden_size")
    return {
        "vocab_size": s.whole("vocab_size"),
        "hidden_size": hidden,
        "num_layers": s.whole("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": s.whole("num_key_value_heads", heads),
        "head_dim": s.whole("head_dim", hidden // heads),
        "intermediate_size": s.whole("intermediate_size"),
        "max_position_embeddings": s.whole("max_position_embeddings", 2048),
        **hf_tokens(s),
    }


def hf_tokens(s: Settings) -> dict[str, Any]:
    """Return special tokens and element type of a config.json."""
    begin = s.ids("bos_token_id")
    # transformers 5 writes dtype, older ones torch_dtype.
    return {
        "bos_token_id": begin[0] if begin else None,
        "eos_token_ids": s.ids("eos_token_id"),
        "dtype": s.get("dtype", s.get("torch_dtype")),
    }


def gguf_common(s: Settings, vocab_size: int) -> dict[str, Any]:
    """Return what the metadata of a GGUF file says, by the names of `TransformerConfig`."""
    heads, hidden = s.whole("attention.head_count"), s.whole("embedding_length")
    if heads < 1:
        raise ModelLoadError(f"attention.head_count is {heads}, and must be a positive number")
    head_dim = s.whole("attention.key_length", hidden // heads)
    if s.whole("attention.value_length", head_dim) != head_dim:
        raise ModelLoadError("attention.key_length and value_length differ, which no known architecture has")
    positions = s.whole("context_length")
    scaling, scale = s.text("rope.scaling.type", "none"), s.number("rope.scaling.factor", 1.0)
    kind = "default" if scaling == "none" else scaling
    attention_factor = s.number("rope.scaling.attn_factor", 0.0)
    factors = s.numbers("rope.factors_short"), s.numbers("rope.factors_long")
    try:
        rope = Rope(
            dim=s.whole("rope.dimension_count", head_dim),
            theta=s.number("rope.freq_base", 10000.0),
            kind="longrope" if factors[0] else kind,
            factor=scale or 1.0,
            original=s.whole("rope.scaling.original_context_length", positions),
            attention_factor=attention_factor or None,
            short_factor=factors[0],
            long_factor=factors[1],
            divisors=s.numbers("rope.divisors"),
        )
    except ValueError as error:
        raise ModelLoadError(f"the rope of this model cannot be used: {error}") from error
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_layers": s.whole("block_count"),
        "num_heads": heads,
        "num_kv_heads": s.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": s.whole("feed_forward_length"),
        "max_position_embeddings": positions,
        "norm_eps": s.number("attention.layer_norm_rms_epsilon", 1e-6),
        "rope": rope,
    }
