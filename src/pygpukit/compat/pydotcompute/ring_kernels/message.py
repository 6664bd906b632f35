"""Messages as dataclasses with UUIDs in their header, and their bytes: a msgpack map that names the class."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload
from uuid import UUID, uuid4

import msgpack  # type: ignore[import-untyped]
import numpy as np

from pygpukit.compat.pydotcompute.exceptions import MessageDeserializationError, MessageSerializationError

__all__ = ["RingKernelMessage", "deserialize_message", "get_message_type", "message"]

T = TypeVar("T")

_types: dict[str, type[Any]] = {}


class _Bytes:
    """What the base class and every class of `message` can do."""

    def serialize(self) -> bytes:
        """The fields and the name of the class as a msgpack map."""
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        content = {one.name: getattr(self, one.name) for one in fields}
        try:
            return bytes(msgpack.packb({**content, "__type__": type(self).__name__}, default=_pack, use_bin_type=True))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise MessageSerializationError(type(self), error) from error

    @classmethod
    def deserialize(cls: type[T], data: bytes) -> T:
        """A message of this class. Keys that it has no field for are left out, fields without a key get their default.

        Raises
        ------
        MessageDeserializationError
            If the bytes are no msgpack map, or the fields cannot be made of it.
        """
        try:
            made: T = _made(cls, _unpacked(data))
            return made
        except Exception as error:
            raise MessageDeserializationError(cls, error) from error

    def with_correlation(self: T, correlation_id: UUID) -> T:
        """The same message, with another `correlation_id`; this one stays as it is."""
        other = copy.copy(self)
        object.__setattr__(other, "correlation_id", correlation_id)
        return other

    def reply(self: Any, **kwargs: Any) -> Any:
        """A message of the same class with these fields that answers this one."""
        return type(self)(**{"correlation_id": self.message_id, **kwargs})


@dataclass
class RingKernelMessage(_Bytes, metaclass=ABCMeta):
    """A message that is only a header. Classes of `message` are instances of it for ``isinstance``."""

    message_id: UUID = field(default_factory=uuid4)
    priority: int = 128
    correlation_id: UUID | None = None

    def __post_init__(self) -> None:
        _check_priority(self.priority)


# What @dataclass writes into a class.
_WRITTEN = (
    *("__init__", "__repr__", "__eq__", "__hash__", "__match_args__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__"),
)
_HEADER = {one.name: one for one in dataclasses.fields(RingKernelMessage)}


@overload
def message(cls: type[T]) -> type[T]: ...
@overload
def message(cls: None = None) -> Callable[[type[T]], type[T]]: ...
def message(cls: type[T] | None = None) -> Any:
    """Make a class a message: a dataclass with a header, bytes, and a name by which it is found again.

    The class may be a dataclass already, and may declare header fields itself; those it does not declare come last.
    """

    def decorate(given: type[Any]) -> Any:
        made = _with_header(given)
        made.__init__ = _checked(made.__init__)
        for name, method in vars(_Bytes).items():
            if not name.startswith("__") and not hasattr(made, name):
                setattr(made, name, method)
        if not issubclass(made, RingKernelMessage):
            RingKernelMessage.register(made)
        _types[made.__name__] = made
        return made

    return decorate if cls is None else decorate(cls)


def get_message_type(name: str) -> type[RingKernelMessage] | None:
    """The class that `message` made last under a name, or None."""
    return _types.get(name)


def deserialize_message(data: bytes) -> RingKernelMessage:
    """A message of the class that its bytes name; one of `RingKernelMessage` where that class is not known."""
    try:
        content = _unpacked(data)
        cls: type[Any] = _types.get(content.get("__type__", ""), RingKernelMessage)
        made: RingKernelMessage = _made(cls, content)
        return made
    except Exception as error:
        raise MessageDeserializationError(RingKernelMessage, error) from error


def _with_header(cls: type[Any]) -> Any:
    """The class as a dataclass that has all fields of the header."""
    annotations = inspect.get_annotations(cls)
    known = {one.name for one in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set(annotations)
    missing = [one for name, one in _HEADER.items() if name not in known]
    is_done = "__dataclass_fields__" in cls.__dict__
    if is_done and not missing:
        return cls
    options: dict[str, Any] = {}
    if is_done:
        # What @dataclass wrote would stay, as if the class had written it itself.
        params = cls.__dict__["__dataclass_params__"]
        options = {name: getattr(params, name) for name in ("repr", "eq", "order", "unsafe_hash", "frozen")}
        for name in _WRITTEN:
            if name in cls.__dict__:
                delattr(cls, name)
        for one in dataclasses.fields(cls):
            if one.name in annotations:
                setattr(cls, one.name, _again(one))
    cls.__annotations__ = {**annotations, **{one.name: one.type for one in missing}}
    for one in missing:
        setattr(cls, one.name, _again(one))
    return dataclass(**options)(cls)


def _again(one: Any) -> Any:
    """A field like one that a dataclass has made its own."""
    names = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
    return field(**{name: getattr(one, name) for name in names})


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        _check_priority(self.priority)

    return __init__


def _check_priority(priority: Any) -> None:
    if not isinstance(priority, int) or not 0 <= priority <= 255:
        raise ValueError(f"priority must be an int from 0 to 255, not {priority!r}")


def _pack(value: Any) -> Any:
    if isinstance(value, UUID):
        return {"__uuid_bin__": value.bytes}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError(f"an array of {array.dtype} has no bytes")
        return {"__ndarray__": array.tobytes(), "dtype": str(array.dtype), "shape": list(array.shape)}
    raise TypeError(f"a {type(value).__name__} cannot be packed")


def _unpack(found: dict[Any, Any]) -> Any:
    if "__uuid_bin__" in found:
        return UUID(bytes=found["__uuid_bin__"])
    if "__uuid__" in found:
        return UUID(found["__uuid__"])
    if "__ndarray__" in found:
        kind = np.dtype(found["dtype"])
        if kind.hasobject:
            raise ValueError(f"an array of {kind} cannot come as bytes")
        return np.frombuffer(found["__ndarray__"], kind).reshape(found["shape"]).copy()
    return found


def _unpacked(data: bytes) -> dict[str, Any]:
    content = msgpack.unpackb(data, object_hook=_unpack, strict_map_key=False)
    if not isinstance(content, dict):
        raise TypeError(f"expected a map, not {type(content).__name__}")
    return content


def _made(cls: Any, content: dict[str, Any]) -> Any:
    names = {one.name for one in dataclasses.fields(cls) if one.init}
    return cls(**{name: value for name, value in content.items() if name in names})
