"""Tiny random models in real files, for tests and examples: they load, run and say nothing of sense."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pygpukit.llm.architecture import GGUF_NAMES, Wanted, find_spec, wanted
from pygpukit.llm.config import Settings, TransformerConfig

__all__ = ["random_model", "tiny_gguf", "tiny_model", "write_gguf", "write_safetensors"]

# Of NumPy.
Array = Any

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "int32": "I32",
          "int64": "I64", "int8": "I8", "uint8": "U8"}  # fmt: skip
# Sizes that nothing is a multiple of, with a head that is not the hidden size by the heads.
_SIZES: Mapping[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 70,
    "max_position_embeddings": 512,
}
# Elements that matrices of a large model are apart at most, in the block that they are cut out of.
_APART = 1 << 20
_GPT2: Mapping[str, Any] = {"vocab_size": 259, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 512}


def byte_vocabulary() -> dict[str, int]:
    """Return special tokens and one token per byte, written as byte-level tokenizers do."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in letters)}
    return {token: n for n, token in enumerate([*_SPECIAL, *(letters[byte] for byte in range(256))])}


def tiny_model(arch: str, path: str | os.PathLike[str], seed: int = 0, **config: Any) -> Path:
    """Write a random model of an architecture as Hugging Face does; return the folder.

    Parameters
    ----------
    arch : str
        ``model_type``, such as ``"llama"``.
    path : str or path-like
        The folder; made where it is not there.
    seed : int
        Of the weights.
    **config
        Entries of config.json; ``dtype`` is the type of the weights, float32 by default.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(file.name for file in tiny_model("llama", folder).iterdir())
    ['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    spec = find_spec(arch)
    base = _GPT2 if spec.name == "gpt2" else _SIZES
    values = {"model_type": arch, "eos_token_id": 2, "bos_token_id": 0, "dtype": "float32", **base, **config}
    made = spec.read_config(Settings(values))
    rng = np.random.default_rng(seed)
    element = np.dtype(_element(values["dtype"]))
    tensors = {}
    for want in wanted(made, spec):
        if want.role == "head" and made.tied:
            continue
        array = _random(rng, want, made.norm_offset)
        if spec.transposed and len(want.shape) == 2 and want.layer >= 0:
            array = array.T
        tensors[want.name(spec.names)] = np.ascontiguousarray(array, element)
    write_safetensors(folder / "model.safetensors", tensors)
    _write_settings(folder, values, byte_vocabulary())
    return folder


def random_model(
    arch: str, path: str | os.PathLike[str], seed: int = 0, quantization: str | None = None, **config: Any
) -> Path:
    """Write a model of any size, for measurements; return the folder.

    All matrices are cut out of one block of random numbers, so that a large model is written as fast as the disk takes
    it, and its tokenizer has a token for every row of the embedding.

    Parameters
    ----------
    arch : str
        ``model_type``, such as ``"qwen2"``.
    path : str or path-like
        The folder; made where it is not there.
    seed : int
        Of the numbers.
    quantization : str, optional
        ``"fp8"`` or ``"int4"``: matrices of layers are 8-bit floats with a scale per row, or AWQ's codes.
    **config
        Entries of config.json; ``dtype`` is the type of the weights, float32 by default.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (random_model("qwen2", folder, vocab_size=500) / "model.safetensors").stat().st_size > 100_000
    True
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    spec = find_spec(arch)
    values = {"model_type": arch, "eos_token_id": 2, "bos_token_id": 0, "dtype": "float32", **_SIZES, **config}
    made = spec.read_config(Settings(values))
    every = [want for want in wanted(made, spec) if want.role != "head" or not made.tied]
    if quantization is not None:
        if quantization not in ("fp8", "int4"):
            raise ValueError(f"quantization is {quantization!r}, and must be 'fp8' or 'int4'")
        awq = {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": _group(made.hidden_size)}
        values["quantization_config"] = awq if quantization == "int4" else {"quant_method": "fp8"}
    rng = np.random.default_rng(seed)
    size = max(math.prod(want.shape) for want in every) + _APART
    # The size that weights begin a training with.
    numbers = (0.02 * rng.standard_normal(min(size, 1 << 24), np.float32)).astype(_element(values["dtype"]))
    eights = (50 * numbers.astype(np.float32)).astype(ml_dtypes.float8_e4m3fn)
    words = rng.integers(-(1 << 31), 1 << 31, len(numbers) // 8, np.int64).astype(np.int32)
    plain, codes = np.resize(numbers, size), np.resize(words if quantization == "int4" else eights, size)
    tensors: dict[str, Array] = {}
    for at, want in enumerate(every):
        name, start = want.name(spec.names), at * 4099 % _APART
        is_norm = want.role.endswith("norm") and want.suffix == "weight"
        if quantization is not None and want.layer >= 0 and len(want.shape) == 2:
            tensors |= _coded(name.removesuffix("weight"), want.shape, codes[start:])
            continue
        array = plain[start : start + math.prod(want.shape)].reshape(want.shape)
        if is_norm:
            array = np.full(want.shape, 1 - made.norm_offset, plain.dtype)
        elif spec.transposed and len(want.shape) == 2 and want.layer >= 0:
            array = np.ascontiguousarray(array.T)
        tensors[name] = array
    write_safetensors(folder / "model.safetensors", tensors)
    vocabulary = byte_vocabulary()
    vocabulary |= {f"x{n}": n for n in range(len(vocabulary), made.vocab_size)}
    _write_settings(folder, values, vocabulary)
    return folder


def _group(inputs: int) -> int:
    return 128 if inputs % 128 == 0 else 32


def _coded(name: str, shape: tuple[int, ...], codes: Array) -> dict[str, Array]:
    """The tensors of a quantised matrix, by its name's beginning: 8-bit floats, or words of eight codes."""
    n, k = shape
    if codes.dtype.itemsize == 1:
        scale = np.full((n, 1), 0.02, np.float32)
        return {f"{name}weight": codes[: n * k].reshape(n, k), f"{name}weight_scale": scale}
    groups = k // _group(k)
    return {
        f"{name}qweight": codes[: n * k // 8].reshape(k, n // 8),
        f"{name}qzeros": np.full((groups, n // 8), -0x77777778, np.int32),
        f"{name}scales": np.full((groups, n), 0.0043, np.float16),
    }


def _element(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else name


def _write_settings(folder: Path, values: Mapping[str, Any], vocabulary: Mapping[str, int]) -> None:
    """The files beside the weights."""
    special = [
        {"id": n, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for n, token in enumerate(_SPECIAL)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer: dict[str, Any] = {
                 "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "ignore_merges": False, "vocab": dict(vocabulary), "merges": []}}  # fmt: skip
    files = {
        "config.json": values,
        "generation_config.json": {"eos_token_id": [0, 2], "temperature": 0.8, "top_p": 0.95},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"bos_token": _SPECIAL[0], "eos_token": _SPECIAL[2], "chat_template": _TEMPLATE},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def tiny_gguf(
    path: str | os.PathLike[str], arch: str = "llama", seed: int = 0, kind: str = "F32", **sizes: Any
) -> Path:
    """Write a random model as a GGUF file with a tokenizer in it; return the file.

    Parameters
    ----------
    path : str or path-like
    arch : str
        ``general.architecture``.
    seed : int
    kind : str
        Type of matrices: ``"F32"``, ``"F16"`` or ``"Q8_0"``.
    **sizes
        ``hidden_size``, ``num_layers`` and others of `TransformerConfig`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tiny_gguf(f"{folder}/tiny.gguf").stat().st_size > 10_000
    True
    """
    spec = find_spec(arch, gguf=True)
    given = {"vocab_size": 259, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
             "intermediate_size": 96, "max_position_embeddings": 512, **sizes}  # fmt: skip
    config = TransformerConfig(**given, qkv_bias=arch == "qwen2", qk_norm=arch == "qwen3")
    vocabulary = byte_vocabulary()
    metadata: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        f"{arch}.block_count": np.uint32(config.num_layers),
        f"{arch}.context_length": np.uint32(config.max_position_embeddings),
        f"{arch}.embedding_length": np.uint32(config.hidden_size),
        f"{arch}.feed_forward_length": np.uint32(config.intermediate_size),
        f"{arch}.attention.head_count": np.uint32(config.num_heads),
        f"{arch}.attention.head_count_kv": np.uint32(config.num_kv_heads),
        f"{arch}.attention.layer_norm_rms_epsilon": np.float32(config.norm_eps),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(vocabulary),
        "tokenizer.ggml.token_type": np.array([3] * len(_SPECIAL) + [1] * 256, np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": np.uint32(0),
        "tokenizer.ggml.eos_token_id": np.uint32(2),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _TEMPLATE,
    }
    rng = np.random.default_rng(seed)
    tensors = {
        want.name(GGUF_NAMES): (_random(rng, want, 0.0), kind if len(want.shape) == 2 else "F32")
        for want in wanted(config, spec)
    }
    write_gguf(path, metadata, tensors)
    return Path(path)


def _random(rng: np.random.Generator, want: Wanted, offset: float) -> Array:
    """Weights that keep the size of what passes; biases and norms that are not all zero or one."""
    if want.role.endswith("norm") and want.suffix == "weight":
        return (1 - offset + 0.2 * rng.standard_normal(want.shape)).astype(np.float32)
    scale = 0.2 if len(want.shape) == 1 else want.shape[1] ** -0.5
    scale *= {"embed": want.shape[-1] ** 0.5, "positions": 4.0, "head": 3.0}.get(want.role, 1.0)
    return (scale * rng.standard_normal(want.shape)).astype(np.float32)


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Array]) -> None:
    """Write arrays of floats, int32 or 8 bits as a SafeTensors file."""
    header, at = {}, 0
    for name, array in tensors.items():
        kind = _TYPES[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())


def write_gguf(
    path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Mapping[str, tuple[Array, str]]
) -> None:
    """Write a GGUF file: metadata by key, and float32 arrays each with the type it is stored in."""
    infos, data = b"", b""
    for name, (array, kind) in tensors.items():
        number, stored = _stored(array, kind)
        sizes = array.shape[::-1]
        infos += _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number, len(data))
        data += stored + bytes(-len(stored) % 32)
    keys = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + keys + infos
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> bytes:
    kinds = {"uint32": 4, "int32": 5, "float32": 6}
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", 9, kinds[value.dtype.name], value.size) + value.tobytes()
    return struct.pack("<I", kinds[value.dtype.name]) + bytes(value.tobytes())


def _stored(array: Array, kind: str) -> tuple[int, bytes]:
    if kind == "F32":
        return 0, bytes(array.astype("<f4").data)
    if kind == "F16":
        return 1, array.astype("<f2").tobytes()
    if kind != "Q8_0":
        raise ValueError(f"{kind!r} cannot be written; F32, F16 and Q8_0 can")
    rows = array.reshape(-1, 32)
    scale = (np.abs(rows).max(axis=1, keepdims=True) / 127).astype("<f2")
    codes = np.rint(rows / np.maximum(scale.astype(np.float32), 1e-12)).clip(-127, 127).astype(np.int8)
    return 8, np.concatenate((scale.view(np.uint8), codes.view(np.uint8)), axis=1).tobytes()
