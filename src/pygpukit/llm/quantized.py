"""Quantised checkpoints of Hugging Face: what ``quantization_config`` says, the tensors of a module, their numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pygpukit.errors import ModelLoadError
from pygpukit.quant import checkpoints
from pygpukit.quant.decode import decode_rows
from pygpukit.quant.functions import concatenate
from pygpukit.quant.stored import check
from pygpukit.quant.tensor import QuantTensor

__all__ = ["Part", "Scheme", "joined", "read_scheme"]

# Of NumPy.
Array = Any

_METHODS = "awq and gptq of 4 bits, fp8, fbgemm_fp8, and compressed-tensors of float8, int8 or packed 4 and 8 bits"
_SCALES = ("F32", "BF16", "F16")
_HALVES = ("F16", "BF16")
# Tensors beside 8-bit weights that products with 16-bit activations have no use for.
_UNUSED = (
    ".input_scale",
    ".input_zero_point",
    ".activation_scale",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".prob_scale",
)
_BLOCK = 128
# A pattern is matched against every module: with few repetitions and none of groups that takes little time.
_LONGEST_PATTERN = 500
_REPETITIONS = 5
_MOST_PATTERNS = 1000


class Part(NamedTuple):
    """A tensor of a quantised module: the end of its name, shapes and types it may have, and whether it must be."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    needed: bool = True


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How the linear layers of a checkpoint are stored.

    Attributes
    ----------
    method
        As config.json names it.
    layout
        Of `QuantTensor.from_checkpoint`.
    group
        Values of a row that share a scale, of layouts of 4 bits; 0 for a whole row.
    sorted
        Columns may be in an order of their own, so ``g_idx`` must be there.
    is_plain
        Whether the module of a name is not quantised.
    bits
        Of a code.
    has_zeros
        Groups of compressed-tensors have zero points.
    """

    method: str
    layout: str
    group: int
    sorted: bool
    is_plain: Callable[[str], bool]
    bits: int = 4
    has_zeros: bool = False

    @property
    def sign(self) -> tuple[str, ...]:
        """Ends of names that only quantised modules have: one of them is there."""
        signs = {"fp8": ("weight_scale", "weight_scale_inv"), "int8": ("weight_scale",)}
        return signs.get(self.layout, ("weight_packed",) if self.layout == "pack_quantized" else ("qweight",))

    def __str__(self) -> str:
        if self.layout in ("fp8", "int8"):
            return f"{self.method}, 8-bit {'floats' if self.layout == 'fp8' else 'integers'}"
        columns = ", columns sorted by group" if self.sorted else ""
        return f"{self.method}, {self.bits} bits in groups of {self.group or 'whole rows'}{columns}"

    def parts(self, n: int, k: int, names: Sequence[str]) -> tuple[Part, ...]:
        """Return the tensors of a module of n outputs and k inputs; ``names`` are the ends of those it has."""
        if self.layout == "fp8":
            scale = next((name for name in self.sign if name in names), self.sign[0])
            shapes = (1,), (), (1, 1), (n, 1), (n,), (-(-n // _BLOCK), -(-k // _BLOCK))
            return Part("weight", ((n, k),), ("F8_E4M3",)), Part(scale, shapes, _SCALES)
        if self.layout == "int8":
            return Part("weight", ((n, k),), ("I8",)), Part("weight_scale", ((1,), (), (1, 1), (n, 1), (n,)), _SCALES)
        groups, words = -(-k // (self.group or k)), -(-n // 8)
        if self.layout == "pack_quantized":
            return (
                Part("weight_packed", ((n, -(-k * self.bits // 32)),), ("I32",)),
                Part("weight_scale", ((n, groups),), _HALVES if self.bits == 4 else _SCALES),
                *([Part("weight_zero_point", ((words, groups),), ("I32",))] if self.has_zeros else []),
                Part("weight_shape", ((2,),), ("I64", "I32"), False),
                Part("weight_g_idx", ((k,),), ("I32", "I64"), self.sorted),
            )
        codes = (k, words) if self.layout == "awq" else (-(-k // 8), n)
        return (
            Part("qweight", (codes,), ("I32",)),
            Part("qzeros", ((groups, words),), ("I32",)),
            Part("scales", ((groups, n),), _HALVES),
            *([] if self.layout == "awq" else [Part("g_idx", ((k,),), ("I32", "I64"), self.sorted)]),
        )

    def is_unused(self, name: str, view: Callable[[], Array]) -> bool:
        """Whether a tensor beside those of the model says nothing that is needed."""
        if self.layout in ("fp8", "int8", "pack_quantized"):
            return name.endswith(_UNUSED)
        # Quantisers write a bias for every module, zeros where the model has none.
        return self.layout.startswith("gptq") and name.endswith(".bias") and not np.any(view())


class Weight:
    """A quantised matrix of a checkpoint, (outputs, inputs): its tensors by the ends of their names."""

    def __init__(self, scheme: Scheme, name: str, tensors: Mapping[str, Array], shape: tuple[int, int]) -> None:
        self._scheme, self._name, self._tensors, self._shape = scheme, name, tensors, shape
        self._read: checkpoints.Read | None = None

    def rows(self, start: int, stop: int) -> Array:
        """Return some rows in float32."""
        if self._read is None:
            self._read = self._checked(lambda: checkpoints.read(self._scheme.layout, self._tensors, self._shape))
            self._checked(lambda: check(*self._parts()))
            if self._read[3] is not None:
                self._read = (*self._read[:3], np.argsort(self._read[3]))
        _, rule, parts, places = self._read
        values = decode_rows(rule, parts, start, stop)
        return values if places is None else values[:, places]

    def tensor(self) -> QuantTensor:
        """Return it on the current device in its codes."""
        layout, tensors = self._scheme.layout, self._tensors
        return self._checked(lambda: QuantTensor.from_checkpoint(layout, tensors, shape=self._shape))  # type: ignore[no-any-return]

    def _parts(self) -> tuple[Any, Any, Any]:
        assert self._read is not None
        return self._read[:3]

    def _checked(self, made: Callable[[], Any]) -> Any:
        try:
            return made()
        except (ValueError, TypeError) as error:
            raise ModelLoadError(f"{self._name}: {error}") from error


def joined(weights: Sequence[Weight]) -> QuantTensor | None:
    """Return matrices under each other as one; None where they are coded so differently that none can hold them."""
    made = [weight.tensor() for weight in weights]
    if len(made) == 1:
        return made[0]
    try:
        return concatenate(made)
    except ValueError:
        return None


def read_scheme(values: Mapping[str, Any], source: str = "config.json") -> Scheme | None:
    """Return what ``quantization_config`` in a config.json says; None where it is not there.

    Raises
    ------
    ModelLoadError
        If the method or one of its settings is unknown.

    Examples
    --------
    >>> entry = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    >>> read_scheme({"quantization_config": entry}).layout
    'awq'
    """
    found = values.get("quantization_config", values.get("compression_config"))
    if found is None:
        return None
    reader = _Entry(found, f"{source}: quantization_config")
    method = reader.get("quant_method")
    readers = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "fbgemm_fp8": _fp8, "compressed-tensors": _compressed}
    if not isinstance(method, str) or method not in readers:
        raise reader.fail("quant_method", f"one of {', '.join(readers)}")
    made = readers[method](reader, method)
    # Asked for every module several times, and patterns may be many.
    return dataclasses.replace(made, is_plain=cache(made.is_plain))


class _Entry:
    """The entry of a config.json, and where it is."""

    def __init__(self, found: Any, place: str) -> None:
        if not isinstance(found, dict):
            raise ModelLoadError(f"{place} is {found!r:.80}, and must be an object")
        self.found, self.place = found, place

    def get(self, key: str, default: Any = None) -> Any:
        value = self.found.get(key)
        return default if value is None else value

    def fail(self, key: str, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.place}.{key} is {self.found.get(key)!r:.200}, and must be {what}")

    def only(self, key: str, *allowed: Any) -> Any:
        """Return a value that may be missing, and else is one of a few."""
        value = self.get(key, allowed[0])
        if value not in allowed:
            raise self.fail(key, " or ".join(map(repr, allowed)) + f"; what is read: {_METHODS}")
        return value

    def inner(self, key: str) -> _Entry:
        return _Entry(self.get(key, {}), f"{self.place}.{key}")

    def texts(self, *keys: str) -> list[str]:
        """Return the texts that lists under any of these keys hold."""
        found: list[str] = []
        for key in keys:
            value = self.get(key, [])
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise self.fail(key, "a list of names")
            found += value
        return found

    def group(self) -> int:
        value = self.get("group_size", 128)
        if value == -1:
            return 0
        if type(value) is not int or value not in (32, 64, 128):
            raise self.fail("group_size", "32, 64, 128 or -1, for whole rows")
        return value


def _awq(entry: _Entry, method: str) -> Scheme:
    entry.only("bits", 4)
    entry.only("version", "gemm", "GEMM")
    return Scheme(method, "awq", entry.group(), False, _contains(entry.texts("modules_to_not_convert")))


def _gptq(entry: _Entry, method: str) -> Scheme:
    entry.only("bits", 4)
    version = entry.only("checkpoint_format", "gptq", "gptq_v2")
    sorted_ = entry.get("desc_act", False)
    if type(sorted_) is not bool:
        raise entry.fail("desc_act", "true or false")
    skipped = []
    for key in entry.inner("dynamic").found:
        if not key.startswith("-:"):
            raise ModelLoadError(
                f"{entry.place}.dynamic has {key!r:.80}: settings per module are not read, only '-:' and a pattern for "
                "modules that are not quantised"
            )
        skipped.append("re:" + key.removeprefix("-:"))
    inside = entry.get("modules_in_block_to_quantize", [])
    lists: list[Any] = inside if isinstance(inside, list) else [None]
    flat: list[Any] = [name for names in lists for name in (names if isinstance(names, list) else [names])]
    if not all(isinstance(name, str) for name in flat):
        raise entry.fail("modules_in_block_to_quantize", "a list of names")
    plain = _either(_contains(entry.texts("modules_to_not_convert")), _matches(skipped, entry.place))
    if flat:
        chosen = _contains(flat)
        plain = _either(plain, lambda name: not chosen(name))
    return Scheme(method, version, entry.group(), sorted_, plain)


def _fp8(entry: _Entry, method: str) -> Scheme:
    entry.only("fmt", "e4m3", "float8_e4m3fn")
    if entry.get("weight_block_size", [_BLOCK, _BLOCK]) != [_BLOCK, _BLOCK]:
        raise entry.fail("weight_block_size", f"[{_BLOCK}, {_BLOCK}]")
    return Scheme(method, "fp8", 0, False, _contains(entry.texts("modules_to_not_convert", "ignored_layers")))


def _compressed(entry: _Entry, method: str) -> Scheme:
    groups = entry.inner("config_groups").found
    found: list[tuple[str, int, int, bool, bool]] = []
    targets: list[str] = []
    for name in groups:
        group = _Entry(groups[name], f"{entry.place}.config_groups.{name}")
        found.append(_compressed_weights(entry, group))
        targets += group.texts("targets")
    if len(set(found)) != 1:
        raise ModelLoadError(
            f"{entry.place}.config_groups has {len(set(found))} ways to store weights, and must have one; what is "
            f"read: {_METHODS}"
        )
    plain = _listed(entry.texts("ignore"), entry.place)
    if targets and "Linear" not in targets:
        chosen = _listed(targets, entry.place)
        plain = _either(plain, lambda name: not chosen(name))
    layout, bits, size, has_zeros, is_sorted = found[0]
    return Scheme(method, layout, size, is_sorted, plain, bits, has_zeros)


def _compressed_weights(entry: _Entry, group: _Entry) -> tuple[str, int, int, bool, bool]:
    """Layout, bits, group, whether there are zero points and sorted columns, of one entry of config_groups."""
    holder = group if group.get("format") is not None else entry
    kind = holder.only("format", "float-quantized", "naive-quantized", "int-quantized", "pack-quantized")
    weights = group.inner("weights")
    what = weights.get("type"), weights.get("num_bits")
    known = {
        "float-quantized": {("float", 8): "fp8"},
        "naive-quantized": {("float", 8): "fp8", ("int", 8): "int8"},
        "int-quantized": {("int", 8): "int8"},
        "pack-quantized": {("int", 4): "pack_quantized", ("int", 8): "pack_quantized"},
    }[kind]
    layout = next((layout for key, layout in known.items() if key == what), None)
    if layout is None:
        raise ModelLoadError(
            f"{weights.place} are {what[1]!r:.20} bits of {what[0]!r:.20} in format {kind!r}; what is read: {_METHODS}"
        )
    strategies = {"fp8": ("tensor", "channel", "block"), "int8": ("channel", "tensor")}
    strategy = weights.only("strategy", *strategies.get(layout, ("group", "channel")))
    if strategy == "block" and weights.get("block_structure") not in ([_BLOCK] * 2, f"{_BLOCK}x{_BLOCK}", None):
        raise weights.fail("block_structure", f"[{_BLOCK}, {_BLOCK}]")
    four = layout == "pack_quantized" and what[1] == 4
    symmetric = weights.only("symmetric", True, False) if four else weights.only("symmetric", True)
    # What earlier versions wrote; "weight" and "static" leave the columns where they are.
    is_sorted = four and weights.get("actorder") in ("group", "dynamic", True)
    return layout, 4 if four else 8, weights.group() if strategy == "group" else 0, not symmetric, is_sorted


def _listed(texts: Sequence[str], place: str) -> Callable[[str], bool]:
    """Whether a name is one of these, or a pattern among them matches it."""
    return _either(frozenset(texts).__contains__, _matches(texts, place))


def _either(*tests: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: any(test(name) for test in tests)


def _contains(listed: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name, cut at its dots, has one of these in it."""
    found = [f".{text}." for text in listed if text]
    return lambda name: any(text in f".{name}." for text in found)


def _matches(listed: Sequence[str], place: str) -> Callable[[str], bool]:
    """Whether one of the patterns, those after ``re:``, matches the beginning of a name."""
    texts = [text.removeprefix("re:") for text in listed if text.startswith("re:")]
    if len(texts) > _MOST_PATTERNS:
        raise ModelLoadError(f"{place} has {len(texts)} patterns, and at most {_MOST_PATTERNS} are read")
    compiled = []
    for text in texts:
        repeated = len(re.findall(r"[*+{]", text))
        if len(text) > _LONGEST_PATTERN or repeated > _REPETITIONS or re.search(r"\)[*+{]", text):
            raise ModelLoadError(
                f"{place} has the pattern {text!r:.80}, which may take too long: at most {_LONGEST_PATTERN} characters "
                f"and {_REPETITIONS} repetitions are read, none of a group"
            )
        try:
            compiled.append(re.compile(text))
        except (re.error, OverflowError, RecursionError) as error:
            raise ModelLoadError(f"{place} has the pattern {text!r:.80}, which is none: {error}") from error
    return lambda name: any(pattern.match(name) for pattern in compiled)
