"""Kinds of message fields: what an annotation allows, how values are checked, and how they become bytes."""

from __future__ import annotations

import collections.abc
import math
import operator
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, FixedArray, MessageBase
from pygpukit.dtypes import bool_, dtype, float64, int64, to_numpy_dtype

__all__ = ["Kind", "brief", "kind_of"]

# Letters of a message that an error shows.
_SHOWN = 200

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SCALARS = ("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64")


def brief(value: object) -> str:
    """What an error shows of a message, which may be large: its beginning and its end.

    Examples
    --------
    >>> brief("short"), len(brief("long" * 1000)) < 250
    ("'short'", True)
    """
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    end = _SHOWN // 4
    return f"{text[: _SHOWN - end]} ... [{len(text)} letters] ... {text[-end:]}"


@dataclass(frozen=True)
class Kind:
    """How one annotation is treated.

    `test` is an expression over ``{v}`` that is true of values kept as they are (``{k}`` is this kind); others go
    through `convert`, which returns what is kept or raises. `encode` and `decode` are for msgpack, None where nothing
    is to do.
    """

    text: str
    test: str
    convert: Callable[[Any], Any]
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    dtype: DataType | None = None
    shape: tuple[int, ...] = ()
    cls: Any = None

    @property
    def is_fixed(self) -> bool:
        """Is its size known?"""
        return self.dtype is not None


def _refuse(value: object) -> Any:
    raise TypeError


def _int_kind(of: DataType) -> Kind:
    bits = of.itemsize * 8
    low, high = (0, (1 << bits) - 1) if of.kind == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)

    def convert(value: Any) -> int:
        number = operator.index(value) if not isinstance(value, bool | np.bool_) else _refuse(value)
        if not low <= number <= high:
            raise ValueError(f"from {low} to {high}")
        return int(number)

    return Kind(of.name, f"type({{v}}) is int and {low} <= {{v}} <= {high}", convert, dtype=of)


def _convert_float(value: Any) -> float:
    if isinstance(value, str | bytes | bool | np.bool_):
        raise TypeError
    return float(value)


# Bits of the fraction and largest exponent.
_FLOATS = {"float16": (10, 15), "bfloat16": (7, 127), "float32": (23, 127)}


def _float_kind(of: DataType) -> Kind:
    if of.name not in _FLOATS:
        return Kind(of.name, "type({v}) is float", _convert_float, dtype=of)
    fraction, exponent = _FLOATS[of.name]
    largest = (2.0 - 2.0**-fraction) * 2.0**exponent
    # From here on they are rounded to infinity.
    limit = (2.0 - 2.0 ** -(fraction + 1)) * 2.0**exponent

    def convert(value: Any) -> float:
        number = _convert_float(value)
        if limit <= abs(number) < math.inf:
            raise ValueError(f"from {-largest} to {largest}, inf or nan")
        return number

    return Kind(of.name, f"type({{v}}) is float and {-limit} < {{v}} < {limit}", convert, dtype=of)


def _convert_bool(value: Any) -> bool:
    return bool(value) if isinstance(value, bool | np.bool_) else bool(_refuse(value))


def _scalar(of: DataType) -> Kind:
    if of.kind == "b":
        return Kind(of.name, "type({v}) is bool", _convert_bool, dtype=of)
    if of.kind == "f":
        return _float_kind(of)
    return _int_kind(of)


def _encode_array(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TypeError(f"arrays of {array.dtype} cannot be sent")
    # NumPy's codes do not tell ml_dtypes' types apart; their names do.
    name = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
    return [name, list(array.shape), array.tobytes()]


def _decode_array(parts: Any) -> np.ndarray[Any, Any]:
    name, shape, data = parts
    try:
        element: np.dtype[Any] = np.dtype(name)
    except TypeError:
        element = to_numpy_dtype(name)
    if element.hasobject or not isinstance(data, bytes):
        raise TypeError("not an array")
    if math.prod(shape) * element.itemsize != len(data) or any(size < 0 for size in shape):
        raise ValueError(f"{len(data)} bytes are not {shape} elements of {element}")
    return np.frombuffer(data, element).reshape(shape)


def _fixed_array(spec: FixedArray) -> Kind:
    element, shape = to_numpy_dtype(spec.dtype), spec.shape

    def convert(value: Any) -> np.ndarray[Any, Any]:
        given = np.asarray(value)
        array = given if given.dtype == element else given.astype(element, casting="same_kind", copy=False)
        if array.shape != shape:
            raise ValueError(f"of shape {shape}, not {array.shape}")
        return np.ascontiguousarray(array)

    # A list of ints or of Python floats means numbers of the field's type.
    def lenient(value: Any) -> np.ndarray[Any, Any]:
        return convert(value if isinstance(value, np.ndarray | np.generic) else _numbers(value, element))

    return Kind(repr(spec).removeprefix("pygpukit."), "False", lenient, _encode_array, _decode_array, spec.dtype, shape)


def _numbers(value: Any, element: np.dtype[Any]) -> np.ndarray[Any, Any]:
    plain = np.asarray(value)
    if plain.dtype.kind in "bui" and element.kind in "ui" and plain.size:
        limits = np.iinfo(element)
        if int(plain.min()) < limits.min or int(plain.max()) > limits.max:
            raise ValueError(f"of values from {limits.min} to {limits.max}")
        return plain.astype(element)
    is_float = element.kind in "fV"
    return plain.astype(element) if plain.dtype.kind in ("bui" + "f" * is_float) or not plain.size else plain


def _plain(cls: type) -> Kind:
    def convert(value: Any) -> Any:
        return value if isinstance(value, cls) else _refuse(value)

    return Kind(cls.__name__, f"type({{v}}) is {cls.__name__}", convert)


_PLAIN = {cls: _plain(cls) for cls in (str, bytes, list, dict)}
_TUPLE = Kind("tuple", "type({v}) is tuple", _plain(tuple).convert, list, tuple)
_ARRAY = Kind(
    "ndarray", "type({v}) is {k}.cls", _plain(np.ndarray).convert, _encode_array, _decode_array, cls=np.ndarray
)
_ANYTHING = Kind("any", "True", lambda value: value)
_NONE = Kind("none", "{v} is None", lambda value: None if value is None else _refuse(value))


def _nested(cls: Any) -> Kind:
    return Kind(
        f"{cls.__name__}#{cls.type_id:08x}",
        "type({v}) is {k}.cls",
        lambda value: value if isinstance(value, cls) else _refuse(value),
        lambda value: value._encode(),
        cls._decode,
        cls=cls,
    )


def _mapped(inner: Kind, way: str, into: type) -> Callable[[Any], Any] | None:
    step = inner.encode if way == "encode" else inner.decode
    if step is None:
        return None if into is list else into
    return lambda values: into([step(value) for value in values])


def _list(inner: Kind) -> Kind:
    plain = _PLAIN[list]
    return Kind(
        f"list[{inner.text}]", plain.test, plain.convert, _mapped(inner, "encode", list), _mapped(inner, "decode", list)
    )


def _tuple(inner: tuple[Kind, ...]) -> Kind:
    def convert(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(inner):
            raise TypeError
        return value

    def each(values: Any, steps: list[Callable[[Any], Any] | None]) -> list[Any]:
        return [step(value) if step else value for step, value in zip(steps, values, strict=True)]

    encoders, decoders = [kind.encode for kind in inner], [kind.decode for kind in inner]
    return Kind(
        f"tuple[{','.join(kind.text for kind in inner)}]",
        f"type({{v}}) is tuple and len({{v}}) == {len(inner)}",
        convert,
        lambda values: each(values, encoders),
        lambda values: tuple(each(values, decoders)),
    )


def _dict(key: Kind, inner: Kind) -> Kind:
    def both(way: str) -> Callable[[Any], Any] | None:
        of_key, of_value = getattr(key, way), getattr(inner, way)
        if of_key is None and of_value is None:
            return None
        return lambda values: {
            (of_key(k) if of_key else k): (of_value(v) if of_value else v) for k, v in values.items()
        }

    if key.encode is not None:
        raise TypeError("keys must be numbers, strings or bytes")
    plain = _PLAIN[dict]
    return Kind(f"dict[{key.text},{inner.text}]", plain.test, plain.convert, both("encode"), both("decode"))


def _optional(inner: Kind) -> Kind:
    encode, decode = inner.encode, inner.decode
    return Kind(
        f"{inner.text}?",
        f"{{v}} is None or ({inner.test})",
        lambda value: None if value is None else inner.convert(value),
        encode and (lambda value: None if value is None else encode(value)),
        decode and (lambda value: None if value is None else decode(value)),
        cls=inner.cls,
    )


def _union(kinds: list[Kind]) -> Kind:
    if any(kind.encode is not None for kind in kinds):
        raise TypeError("alternatives must be numbers, strings, bytes, lists or dicts")

    def convert(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.convert(value)
            except (TypeError, ValueError, OverflowError):
                continue
        raise TypeError

    return Kind("|".join(kind.text for kind in kinds), " or ".join(f"({kind.test})" for kind in kinds), convert)


def kind_of(annotation: Any) -> Kind:
    """The kind that an annotation means.

    Parameters
    ----------
    annotation : DataType, FixedArray or type
        What stands behind the colon.

    Returns
    -------
    Kind
        How its values are treated.

    Raises
    ------
    TypeError
        If messages cannot carry such values; the text says what to use.
    """
    if isinstance(annotation, FixedArray):
        _refuse_type(annotation.dtype)
        return _fixed_array(annotation)
    if isinstance(annotation, DataType):
        return _scalar(_refuse_type(annotation))
    if annotation in (bool, int, float):
        return _scalar({bool: bool_, int: int64, float: float64}[annotation])
    if annotation is None or annotation is type(None):
        return _NONE
    if annotation in (Any, object):
        return _ANYTHING
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation is tuple:
        return _TUPLE
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return _of_class(annotation)
    return _of_generic(annotation)


def _refuse_type(of: DataType) -> DataType:
    if of.name not in _SCALARS:
        raise TypeError(f"{of!r} is not for messages; use one of {', '.join(_SCALARS)}")
    return of


def _of_class(annotation: type) -> Kind:
    if issubclass(annotation, np.ndarray):
        return _ARRAY
    if issubclass(annotation, MessageBase) and hasattr(annotation, "type_id"):
        return _nested(annotation)
    if issubclass(annotation, np.generic):
        return _scalar(_refuse_type(dtype(annotation)))
    raise TypeError(
        f"{annotation.__name__} cannot be sent; use numbers, bool, str, bytes, list, dict, tuple, numpy.ndarray, "
        "a pygpukit type such as gp.float32 or gp.float32[64], or another message"
    )


def _of_generic(annotation: Any) -> Kind:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is np.ndarray:
        return _ARRAY
    if origin is typing.Annotated:
        return kind_of(args[0])
    if origin in (list, collections.abc.Sequence):
        return _list(kind_of(args[0]))
    if origin is dict:
        return _dict(kind_of(args[0]), kind_of(args[1]))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        inner = kind_of(args[0])
        return Kind(
            f"tuple[{inner.text},...]",
            _TUPLE.test,
            _TUPLE.convert,
            _mapped(inner, "encode", list) or list,
            _mapped(inner, "decode", tuple),
        )
    if origin is tuple:
        return _tuple(tuple(kind_of(arg) for arg in args))
    if origin in (typing.Union, types.UnionType):
        kinds = [kind_of(arg) for arg in args if arg is not type(None)]
        inner = kinds[0] if len(kinds) == 1 else _union(kinds)
        return _optional(inner) if len(kinds) < len(args) else inner
    raise TypeError(f"{annotation!r} is not a type of a message field")
