"""A tokenizer out of the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pygpukit.errors import ModelLoadError
from pygpukit.llm.tokenizer import Tokenizer, library

__all__ = ["gguf_tokenizer"]

_CONTROL, _USER, _BYTE = 3, 4, 6

# How text is cut into words before pairs are merged, by the names that files have for it. Numbers are cut before words.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _WORDS.format(digits="{1,3}"), _WORDS.format(digits="")
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpt-2 gpt2 phi-2 mpt olmo jais trillion roberta-bpe", (_GPT2,)),
    ("smollm starcoder refact command-r codeshell exaone", (r"\p{N}", _GPT2)),
    ("llama-bpe llama3 llama-v3 falcon3 dbrx smaug-bpe chatglm-bpe glm4", (_LLAMA3,)),
    ("qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan", (_QWEN2,)),
)
_PATTERNS = {name: patterns for names, patterns in _GROUPS for name in names.split()}
_IGNORE_MERGES = frozenset(("llama-bpe", "llama3", "llama-v3", "falcon3"))
_SPACE = "\u2581"


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer in the metadata of a GGUF file.

    Raises
    ------
    ModelLoadError
        If there is none, or one of a kind that is unknown: the text would be cut in other places than in training.
    """
    kind = _get(metadata, "model", str, "")
    tokens = _get(metadata, "tokens", list, [])
    if not kind or not tokens:
        raise ModelLoadError("the GGUF file has no tokenizer in it: give one with tokenizer=path")
    types = np.asarray(metadata.get("tokenizer.ggml.token_type", ()), np.int64)
    if types.size and types.shape != (len(tokens),):
        raise ModelLoadError(f"tokenizer.ggml.token_type has {types.size} entries for {len(tokens)} tokens")
    vocabulary = {token: index for index, token in reversed(list(enumerate(tokens)))}
    if kind == "gpt2":
        made, default_bos = _byte_level(metadata, vocabulary)
    elif kind == "llama":
        made, default_bos = _sentence_pieces(metadata, tokens, vocabulary, types)
    else:
        raise ModelLoadError(f"the tokenizer {kind!r} is unknown; known are 'gpt2' (byte-level BPE) and 'llama' (SPM)")
    lib = library()
    for add, kind_of, is_special in ((made.add_special_tokens, _CONTROL, True), (made.add_tokens, _USER, False)):
        named = [tokens[i] for i in np.flatnonzero(types == kind_of).tolist()]
        add([lib.AddedToken(name, normalized=False, special=is_special) for name in named])
    bos, eos = _id(metadata, "bos", len(tokens)), _id(metadata, "eos", len(tokens))
    adds_bos = _get(metadata, "add_bos_token", bool, default_bos)
    adds_eos = _get(metadata, "add_eos_token", bool, False)
    before = [tokens[bos]] if adds_bos and bos is not None else []
    after = [tokens[eos]] if adds_eos and eos is not None else []
    if before or after:
        made.post_processor = lib.processors.TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=[(name, vocabulary[name]) for name in {*before, *after}]
        )
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        made, bos_token_id=bos, eos_token_id=eos, chat_template=template if isinstance(template, str) else None
    )


def _get(metadata: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, kind):
        raise ModelLoadError(f"tokenizer.ggml.{key} is {type(value).__name__}, and must be {kind.__name__}")
    return value


def _id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return found if type(found) is int and 0 <= found < count else None


def _byte_level(metadata: Mapping[str, Any], vocabulary: dict[str, int]) -> tuple[Any, bool]:
    lib = library()
    name = _get(metadata, "pre", str, "gpt-2")
    patterns = _PATTERNS.get(name)
    if patterns is None:
        raise ModelLoadError(
            f"the tokenizer cuts words by the rule {name!r}, which is unknown; known are "
            f"{', '.join(sorted(_PATTERNS))}. Give a tokenizer.json with tokenizer=path"
        )
    merges = []
    for line in _get(metadata, "merges", list, []):
        left, gap, right = line.partition(" ") if not line.startswith(" ") else ("", "", "")
        if gap and left in vocabulary and right in vocabulary and left + right in vocabulary:
            merges.append((left, right))
        else:
            raise ModelLoadError(f"tokenizer.ggml.merges has {line!r:.80}, which joins no two tokens to a third")
    ignore = name in _IGNORE_MERGES
    made = lib.Tokenizer(lib.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore))
    splits = [lib.pre_tokenizers.Split(lib.Regex(pattern), "isolated") for pattern in patterns]
    made.pre_tokenizer = lib.pre_tokenizers.Sequence(
        [*splits, lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = lib.decoders.ByteLevel()
    return made, name in _IGNORE_MERGES


def _sentence_pieces(
    metadata: Mapping[str, Any], tokens: list[str], vocabulary: dict[str, int], types: Any
) -> tuple[Any, bool]:
    lib = library()
    scores = np.asarray(metadata.get("tokenizer.ggml.scores", ()), np.float64)
    if scores.shape != (len(tokens),):
        raise ModelLoadError(f"tokenizer.ggml.scores has {scores.size} entries for {len(tokens)} tokens")
    # Of all ways to make a token of two others, the token with the best score comes first.
    merges = []
    for index in np.argsort(-scores, kind="stable").tolist():
        token = tokens[index]
        if types.size and types[index] != 1:
            continue
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in vocabulary and pair[1] in vocabulary]
        merges += sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    unknown = _id(metadata, "unknown", len(tokens))
    made = lib.Tokenizer(
        lib.models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=bool(np.any(types == _BYTE)),
        )
    )
    prefix = _get(metadata, "add_space_prefix", bool, True)
    steps = [lib.normalizers.Prepend(_SPACE)] if prefix else []
    made.normalizer = lib.normalizers.Sequence([*steps, lib.normalizers.Replace(" ", _SPACE)])
    decoders = [lib.decoders.Replace(_SPACE, " "), lib.decoders.ByteFallback(), lib.decoders.Fuse()]
    if prefix:
        decoders.append(lib.decoders.Strip(" ", 1, 0))
    made.decoder = lib.decoders.Sequence(decoders)
    return made, True
