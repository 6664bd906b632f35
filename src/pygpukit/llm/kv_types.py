"""How keys and values are stored in pages: as numbers of the model's type, or as codes of 8 bits."""

from __future__ import annotations

import dataclasses

from pygpukit.dtypes import DataType, dtype
from pygpukit.llm.arguments import one_of
from pygpukit.llm.config import TransformerConfig

__all__ = ["KVType", "check_kv_dtype", "kv_type"]

_NUMBERS = {"bf16": "bfloat16", "f16": "float16"}
_CODES = {"fp8": "float8_e4m3fn", "int8": "int8"}
NAMES = ("auto", *_NUMBERS, *_CODES)


@dataclasses.dataclass(frozen=True, slots=True)
class KVType:
    """What pages hold.

    Attributes
    ----------
    stored
        Element type of keys and values.
    is_coded
        They are codes: written and read through `sdpa_paged` and `kv_cache_write_paged` as those.
    is_scaled
        Every token has a scale per head of keys, and one of values.
    """

    stored: DataType
    is_coded: bool = False
    is_scaled: bool = False

    def bytes_of_token(self, config: TransformerConfig) -> tuple[int, ...]:
        """Return the bytes of keys and values of one token, in each of the arrays that they are in."""
        numbers = config.kv_bytes(self.stored.itemsize)
        return (numbers, 4 * 2 * config.num_layers * config.num_kv_heads) if self.is_scaled else (numbers,)


def check_kv_dtype(name: str) -> None:
    """Refuse an unknown ``kv_dtype``.

    Raises
    ------
    ValueError
        With the known ones.
    """
    one_of("kv_dtype", name, NAMES)


def kv_type(name: str, model: DataType) -> KVType:
    """Return what a ``kv_dtype`` means beside weights of a type.

    Raises
    ------
    ValueError
        If it is unknown, or another 16-bit type than that of the weights.

    Examples
    --------
    >>> kv_type("int8", dtype("bfloat16")).stored.name
    'int8'
    """
    check_kv_dtype(name)
    if name in _CODES:
        return KVType(dtype(_CODES[name]), True, name == "int8")
    if name in _NUMBERS and _NUMBERS[name] != model.name:
        raise ValueError(
            f"kv_dtype={name!r} beside weights of {model.name}: attention takes queries and keys of one type; give "
            f"dtype={_NUMBERS[name]!r} as well, or kv_dtype='auto', 'fp8' or 'int8'"
        )
    return KVType(model)
