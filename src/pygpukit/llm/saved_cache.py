"""Pages with the tokens of beginnings in a file, so that another engine with the same model finds them.

The file is a SafeTensors file: what the pages hold (of codes the scales too), per entry the tokens and the pages they
are in, and in its metadata the salts, a digest of the model and one of the arrays. What it says is checked before it is
used: a bit that flipped on the disk would give other replies, and nobody would see why.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import PageCache
from pygpukit.errors import CacheError
from pygpukit.llm.decoder import CausalTransformerModel
from pygpukit.llm.pages import PAGE_TOKENS, PageMemory
from pygpukit.llm.safetensors import SafeTensorsFile

__all__ = ["Prefixes", "load", "model_digest", "save"]

# Of NumPy.
Array = Any

_FORMAT = "pygpukit-llm-cache-1"
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int8": "I8",
          "float8_e4m3fn": "F8_E4M3"}  # fmt: skip
_LISTS = ("counts", "tokens", "places")
_MOST_ENTRIES = 1 << 20


class Prefixes:
    """Beginnings whose pages may be in the cache, the last used ones.

    Parameters
    ----------
    most : int
        Tokens that are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most, self._tokens = most, 0
        self._kept: OrderedDict[tuple[str, tuple[int, ...]], None] = OrderedDict()

    def add(self, salt: str, tokens: Sequence[int]) -> None:
        """Remember the full pages of a sequence."""
        whole = tuple(tokens[: len(tokens) // PAGE_TOKENS * PAGE_TOKENS])
        if not whole:
            return
        if (salt, whole) in self._kept:
            self._kept.move_to_end((salt, whole))
            return
        self._kept[salt, whole] = None
        self._tokens += len(whole)
        while self._tokens > self._most:
            self._tokens -= len(self._kept.popitem(last=False)[0][1])

    def __iter__(self) -> Any:
        """The last used first."""
        return reversed(self._kept)


def model_digest(model: CausalTransformerModel, settings: str) -> str:
    """Return what tells keys and values from those of other models: configuration, settings, norms, some embeddings."""
    digest = hashlib.sha256(repr((model.config, model.max_positions, model.dtype.name, settings)).encode())
    arrays = [model.embed_tokens[:64], model.final_norm.weight]
    for block in model.blocks:
        arrays += [block.attn_norm.weight, block.mlp_norm.weight]
    for array in arrays:
        digest.update(np.ascontiguousarray(array.to_numpy()).view(np.uint8).data)
    return digest.hexdigest()


def save(path: str | os.PathLike[str], cache: PageCache, memory: PageMemory, prefixes: Prefixes, digest: str) -> int:
    """Write the pages of remembered beginnings that are in the cache; return how many.

    The engine's thread calls it between two steps.
    """
    places: dict[int, int] = {}
    contents: list[list[Array]] = []
    salts: list[str] = []
    tokens: list[int] = []
    pages: list[int] = []
    counts: list[int] = []
    for salt, known in prefixes:
        # One token more, because the last one of a sequence is never found.
        sequence = cache.begin([*known, known[0]], salt)
        state = cache.sequence(sequence)
        found = state["found"] // PAGE_TOKENS
        for page in state["pages"][:found]:
            if page not in places:
                places[page] = len(contents)
                contents.append(memory.read(page))
            pages.append(places[page])
        cache.release(sequence)
        if found:
            salts.append(salt)
            counts.append(found)
            tokens += known[: found * PAGE_TOKENS]
    lists = (counts, tokens, pages)
    tensors: dict[str, Array] = {name: np.array(found, np.int32) for name, found in zip(_LISTS, lists, strict=True)}
    for i, (shape, dtype) in enumerate(memory.forms):
        every = [content[i] for content in contents]
        tensors[f"pages.{i}"] = np.stack(every) if every else np.zeros((0, *shape), dtype)
    listed = json.dumps(salts)
    metadata = {"format": _FORMAT, "model": digest, "salts": listed, "sha256": _checksum(tensors, listed)}
    _write(Path(path), tensors, metadata)
    return len(contents)


def _checksum(tensors: Mapping[str, Array], salts: str) -> str:
    digest = hashlib.sha256(salts.encode())
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _write(path: Path, tensors: dict[str, Array], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, array in tensors.items():
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}  # fmt: skip
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # A reader sees the whole file or none.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(struct.pack("<Q", len(text)) + text)
            for array in tensors.values():
                file.write(array.tobytes())
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def load(
    path: str | os.PathLike[str],
    cache: PageCache,
    memory: PageMemory,
    prefixes: Prefixes,
    digest: str,
    vocab_size: int,
) -> int:
    """Bring pages of a file to the cache as far as there is room; return how many are new.

    The engine's thread calls it between two steps.

    Raises
    ------
    CacheError
        If the file is of another model, does not say what such files say, or is damaged.
    ModelFileError
        If it is cut off or no SafeTensors file.
    """
    with SafeTensorsFile(path) as file:
        contents, entries = _entries(path, file, memory, digest, vocab_size)
        loaded = 0
        for salt, tokens, places in entries:
            sequence = cache.begin([*tokens, tokens[0]], salt)
            try:
                found = cache.sequence(sequence)["computed"] // PAGE_TOKENS
                # Pages that came first are not given up for later ones.
                stats = cache.stats()
                room = min(len(places) - found, stats["available"] - stats["kept"])
                if room <= 0 or not cache.reserve(sequence, room * PAGE_TOKENS):
                    continue
                pages = cache.sequence(sequence)["pages"]
                for i in range(found, found + room):
                    memory.write(pages[i], [every[places[i]] for every in contents])
                cache.advance(sequence, room * PAGE_TOKENS)
                loaded += room
            finally:
                cache.release(sequence)
            prefixes.add(salt, tokens[: (found + room) * PAGE_TOKENS])
        return loaded


def _entries(
    path: Any, file: SafeTensorsFile, memory: PageMemory, digest: str, vocab_size: int
) -> tuple[list[Array], list[tuple[str, list[int], list[int]]]]:
    """The pages of a file, and per entry salt, tokens and pages; all of it checked."""

    def wrong(what: str) -> CacheError:
        return CacheError(f"{path}: {what}")

    if file.metadata.get("format") != _FORMAT:
        raise wrong(f"this is no saved cache: its format is {file.metadata.get('format', 'unknown')!r:.60}")
    if file.metadata.get("model") != digest:
        raise wrong("this cache is of another model, device or setting: its keys and values mean nothing here")
    names = {*_LISTS, *(f"pages.{i}" for i in range(len(memory.forms)))}
    if set(file.tensor_names) != names:
        raise wrong(f"it must have {', '.join(sorted(names))}, and has {', '.join(sorted(file.tensor_names)):.200}")
    views = {name: file.tensor_view(name) for name in file.tensor_names}
    every = dict(views)
    contents = [views.pop(f"pages.{i}") for i in range(len(memory.forms))]
    for found, (shape, dtype) in zip(contents, memory.forms, strict=True):
        if found.shape[1:] != shape or found.dtype != dtype or len(found) != len(contents[0]):
            raise wrong(f"its pages are {found.shape} of {found.dtype}, not {shape} of {dtype} each")
    if any(view.ndim != 1 or view.dtype != np.int32 for view in views.values()):
        raise wrong("counts, tokens and places must be int32 in one dimension")
    try:
        salts = json.loads(file.metadata.get("salts", "[]"))
    except (ValueError, RecursionError) as error:
        raise wrong(f"its salts are not JSON: {error}") from error
    counts, tokens, places = views["counts"].tolist(), views["tokens"].tolist(), views["places"].tolist()
    if not isinstance(salts, list) or not all(isinstance(salt, str) for salt in salts) or len(salts) > _MOST_ENTRIES:
        raise wrong("its salts are not a list of texts")
    if len(salts) != len(counts) or any(n < 1 for n in counts) or sum(counts) != len(places):
        raise wrong(f"{len(counts)} entries with {len(salts)} salts do not fit {len(places)} places")
    if len(tokens) != PAGE_TOKENS * len(places):
        raise wrong(f"{len(tokens)} tokens do not fill {len(places)} pages of {PAGE_TOKENS}")
    if any(not 0 <= token < vocab_size for token in tokens):
        raise wrong(f"it has tokens outside of the vocabulary of {vocab_size}")
    if any(not 0 <= place < len(contents[0]) for place in places):
        raise wrong(f"it names pages that are not among its {len(contents[0])}")
    if file.metadata.get("sha256") != _checksum(every, file.metadata.get("salts", "[]")):
        raise wrong("it is damaged: its arrays are not those that were saved")
    entries, at = [], 0
    for salt, count in zip(salts, counts, strict=True):
        entries.append((salt, tokens[at * PAGE_TOKENS : (at + count) * PAGE_TOKENS], places[at : at + count]))
        at += count
    return contents, entries
