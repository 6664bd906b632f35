"""`@message`: annotated classes that actors send each other."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import hashlib
import inspect
import keyword
import re
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import msgpack  # type: ignore[import-untyped]
import numpy as np

from pygpukit._pygpukit_rust import MessageBase
from pygpukit.errors import MessageError
from pygpukit.ring.kinds import Kind, brief, kind_of
from pygpukit.ring.layout import FixedField, Layout, bfloat16_bits, from_bfloat16_bits

__all__ = ["Message", "message", "require_fixed"]

T = TypeVar("T")

_MISSING: Any = object()
_MUTABLE = (list, dict, set, bytearray, np.ndarray)


class Message(MessageBase):
    """What every message has; `message` makes subclasses of it.

    Attributes
    ----------
    message_id : int
        Number of this message, unique in the process; of one that a device actor sent, the number it has there.
    correlation_id : int
        Number of the message this one answers, or 0. ``request.reply(answer)`` sets it.
    priority : int
        0 to 255; the larger is delivered first.
    deadline : float or None
        Seconds of ``time.monotonic()`` after which the message is not delivered any more.
    """

    __slots__ = ("_raw",)

    type_id: ClassVar[int] = 0
    """Number of the class: the same wherever name and fields are."""
    is_fixed: ClassVar[bool] = False
    """Do all fields have a fixed size? Then the bytes of a message are a C struct."""
    dtype: ClassVar[np.dtype[Any] | None] = None
    """The NumPy structured dtype of a fixed message."""

    _kinds: ClassVar[dict[str, Kind]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    _layout: ClassVar[Layout | None] = None
    _lazy: ClassVar[dict[str, Callable[[Any, int], Any]]] = {}
    _load: ClassVar[Callable[..., Any]]
    _fill: ClassVar[Callable[..., None]]
    _is_raw: ClassVar[bool] = False
    _dump: ClassVar[Callable[..., None]]
    _packed: ClassVar[Callable[..., bytes]]

    def __getattr__(self, name: str) -> Any:
        # Arrays of a message that came as bytes are made when they are first looked at.
        make = type(self)._lazy.get(name)
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        try:
            raw = self._raw
        except AttributeError:
            raise AttributeError(f"field {name!r} of this {type(self).__name__} has no value") from None
        value = make(*raw)
        setattr(self, name, value)
        return value

    @classmethod
    def c_struct(cls) -> str:
        """The message as a struct of CUDA C++, with assertions on its size and offsets."""
        return require_fixed(cls, "a C struct").source()

    def to_bytes(self) -> bytes:
        """The fields as bytes: those of the struct for a fixed message, msgpack for others."""
        if self._layout is not None:
            packed = bytearray(self._layout.itemsize)
            self.pack_into(packed)
            return bytes(packed)
        try:
            return bytes(msgpack.packb(self._encode(), use_bin_type=True))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise MessageError(f"{brief(self)} cannot be made bytes: {error}") from error

    @classmethod
    def from_bytes(cls: type[T], data: Any) -> T:
        """A message from its bytes. Arrays of a fixed message are views of `data`, which is not copied.

        Parameters
        ----------
        data : bytes-like
            What `to_bytes` gave, or a part of an array of the message's dtype.

        Raises
        ------
        MessageError
            If these are not the bytes of such a message.
        """
        own: Any = cls
        if own._layout is not None:
            view = memoryview(data)
            if view.nbytes != own._layout.itemsize:
                raise MessageError(f"{own.__name__} has {own._layout.itemsize} bytes, and {view.nbytes} were given")
            return own._load(own, data, 0)  # type: ignore[no-any-return]
        try:
            return own._decode(msgpack.unpackb(data, strict_map_key=False))  # type: ignore[no-any-return]
        except Exception as error:
            raise MessageError(f"these {len(data)} bytes are no {own.__name__}: {error}") from error

    def pack_into(self, buffer: Any, offset: int = 0) -> None:
        """Write a fixed message into a buffer."""
        layout = require_fixed(type(self), "packing into a buffer")
        try:
            self._dump(buffer, offset)
        except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise MessageError(f"{brief(self)} does not fit the layout of {layout.name}: {error}") from error

    @classmethod
    def to_array(cls, messages: list[Any]) -> np.ndarray[Any, Any]:
        """Fixed messages as a structured array."""
        layout = require_fixed(cls, "a structured array")
        array = np.empty(len(messages), layout.dtype)
        buffer = array.view(np.uint8).data
        for at, one in enumerate(messages):
            one.pack_into(buffer, at * layout.itemsize)
        return array

    @classmethod
    def from_array(cls: type[T], array: np.ndarray[Any, Any]) -> list[T]:
        """The messages of a structured array; their arrays are views of it."""
        own: Any = cls
        layout = require_fixed(own, "a structured array")
        if array.dtype != layout.dtype:
            raise MessageError(f"the array has dtype {array.dtype}, and {own.__name__} has {layout.dtype}")
        flat = np.ascontiguousarray(array).reshape(-1)
        buffer = flat.view(np.uint8).data
        return [own._load(own, buffer, at * layout.itemsize) for at in range(len(flat))]

    def _encode(self) -> list[Any]:
        values = ((getattr(self, name), kind.encode) for name, kind in self._kinds.items())
        return [value if encode is None else encode(value) for value, encode in values]

    @classmethod
    def _decode(cls, values: Any) -> Any:
        if not isinstance(values, list) or len(values) != len(cls._kinds):
            raise ValueError(f"expected {len(cls._kinds)} fields")
        kinds = cls._kinds.values()
        return cls(*[kind.decode(v) if kind.decode else v for kind, v in zip(kinds, values, strict=True)])

    def _copy(self) -> Any:
        """The same fields with a header of its own: a number, and nobody who waits for an answer."""
        one = type(self).__new__(type(self))
        for name in self._kinds:
            setattr(one, name, getattr(self, name))
        one.priority, one.correlation_id, one._deadline_ns = self.priority, self.correlation_id, self._deadline_ns
        return one

    __copy__ = _copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        one = memo[id(self)] = self._copy()
        for name in self._kinds:
            setattr(one, name, copy.deepcopy(getattr(self, name), memo))
        return one

    def __reduce__(self) -> Any:
        header = {name: getattr(self, name) for name in ("priority", "correlation_id", "_deadline_ns")}
        return _made, (type(self), {name: getattr(self, name) for name in self._kinds} | header)

    def __repr__(self) -> str:
        values = ((name, getattr(self, name, _MISSING)) for name in self._kinds)
        shown = (f"{name}={'<none>' if value is _MISSING else repr(value)}" for name, value in values)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, name), getattr(other, name)) for name in self._kinds)

    __hash__ = None  # type: ignore[assignment]


def _made(cls: Any, values: dict[str, Any]) -> Any:
    """A message that was pickled."""
    one = cls.__new__(cls)
    for name, value in values.items():
        setattr(one, name, value)
    return one


_RESERVED = {name for name in dir(Message) if not name.startswith("__")}


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return bool(np.array_equal(left, right))
    if isinstance(left, list | tuple) and type(left) is type(right):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(value, right[key]) for key, value in left.items())
    return bool(left == right)


def require_fixed(cls: Any, why: str) -> Layout:
    """The layout of a message class, or an error that names the field without one.

    Parameters
    ----------
    cls : type
        A class made by `message`.
    why : str
        What needs a fixed layout: ``"device actor 'gain'"``.

    Raises
    ------
    MessageError
        If the class is no message, or not all of its fields have a fixed size.
    """
    if not (isinstance(cls, type) and issubclass(cls, Message)):
        raise MessageError(f"{why} needs a class made by @message, not {cls!r}")
    if cls._layout is not None:
        return cls._layout
    for name, kind in cls._kinds.items():
        if not kind.is_fixed:
            raise MessageError(
                f"{why} needs messages of a fixed size, and field {name!r} of {cls.__name__} is {kind.text}; use a "
                "number type (gp.int64, gp.float32, bool, ...) or an array of a fixed shape such as gp.float32[64]"
            )
    raise MessageError(f"{why} needs a message with fields, and {cls.__name__} has none")


@dataclass_transform()
def message(cls: type[T]) -> type[T]:
    """Make an annotated class a message.

    Fields are numbers (``gp.int8`` to ``gp.uint64``, ``gp.float16``, ``gp.bfloat16``, ``gp.float32``, ``gp.float64``,
    ``bool``, ``int``, ``float``) and arrays of a fixed shape (``gp.float32[64]``); then the message has a fixed layout
    and can go to device actors. Messages between host actors may also have ``str``, ``bytes``, ``list[...]``,
    ``dict[...]``, ``tuple[...]``, ``np.ndarray``, other messages, and optional fields.

    Instances are made like those of a dataclass, with type checks that do not look inside of containers. The header can
    be given by keyword: ``priority``, ``deadline``, ``correlation_id``.

    Parameters
    ----------
    cls : type
        The class; its methods are kept.

    Returns
    -------
    type
        A slotted subclass of `Message` of the same name.

    Raises
    ------
    MessageError
        If a field has a type that cannot be sent, or a name that the header has.

    Examples
    --------
    >>> @message
    ... class Sample:
    ...     id: gp.int64
    ...     x: gp.float32[4]
    >>> Sample(7, [1, 2, 3, 4]).x.sum()
    np.float32(10.0)
    >>> Sample.dtype.itemsize, Sample.from_bytes(Sample(7, np.zeros(4, "f4")).to_bytes()).id
    (32, 7)
    """
    own = _annotations(cls, sys._getframe(1).f_locals)
    kinds: dict[str, Kind] = {}
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        if issubclass(base, Message):
            kinds |= base._kinds
            defaults |= base._defaults
    namespace = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__", *own)}
    for name, annotation in own.items():
        kinds[name] = _checked_kind(cls, name, annotation)
        if name in vars(cls):
            defaults[name] = vars(cls)[name]
    defaults = {name: _plain_default(value) for name, value in defaults.items()}
    defaults = {name: value for name, value in defaults.items() if value is not _MISSING}
    new_fields = [name for name in own if not any(name in getattr(base, "_kinds", ()) for base in cls.__mro__[1:])]
    is_fixed = bool(kinds) and all(kind.is_fixed for kind in kinds.values())
    layout = Layout(cls.__name__, kinds) if is_fixed else None
    identity = f"{cls.__name__}|" + ";".join(f"{name}:{kind.text}" for name, kind in kinds.items())
    namespace |= {
        "__slots__": tuple(new_fields),
        "__match_args__": tuple(kinds),
        "type_id": int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=4).digest(), "little"),
        "is_fixed": is_fixed,
        "dtype": layout.dtype if layout else None,
        "_kinds": kinds,
        "_defaults": defaults,
        "_layout": layout,
    }
    namespace.setdefault("__init__", _make_init(cls.__name__, kinds, defaults))
    if layout is not None:
        namespace["_load"] = staticmethod(_make_load(layout, made=False))
        namespace["_fill"] = _make_load(layout, made=True)
        namespace["_is_raw"] = all(field.kind.shape for field in layout.fields)
        namespace["_lazy"] = {field.name: _make_array(field) for field in layout.fields if field.kind.shape}
        namespace["_dump"] = _make_dump(layout, into=True)
        namespace["_packed"] = _make_dump(layout, into=False)
    bases = tuple(Message if base is object else base for base in cls.__bases__)
    metaclass: Any = type(cls)
    return metaclass(cls.__name__, bases, namespace)  # type: ignore[no-any-return]


def _annotations(cls: type, local: Mapping[str, Any]) -> dict[str, Any]:
    """The class's own annotations; those that are text are evaluated where the class was written."""
    found: dict[str, Any] = {}
    module = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    for name, annotation in inspect.get_annotations(cls).items():
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, dict(module), dict(local))
            except Exception as error:
                raise MessageError(f"the type of field {name!r} of {cls.__name__} is unknown: {error}") from error
        found[name] = annotation
    return found


def _checked_kind(cls: type, name: str, annotation: Any) -> Kind:
    if name in _RESERVED or name.startswith("_") or keyword.iskeyword(name):
        raise MessageError(f"field {name!r} of {cls.__name__} has a name that messages use themselves; take another")
    try:
        return kind_of(annotation)
    except TypeError as error:
        raise MessageError(f"field {name!r} of {cls.__name__}: {error}") from error


def _plain_default(value: Any) -> Any:
    """A default, or a function that makes one, wrapped so that it is called for each instance."""
    if isinstance(value, dataclasses.Field):
        if value.default_factory is not dataclasses.MISSING:
            return _Factory(value.default_factory)
        value = _MISSING if value.default is dataclasses.MISSING else value.default
    return _Factory(lambda: copy.copy(value)) if isinstance(value, _MUTABLE) else value


@dataclasses.dataclass(frozen=True)
class _Factory:
    make: Callable[[], Any]


def _compile(name: str, lines: list[str], names: dict[str, Any], where: str) -> Any:
    scope = dict(names)
    exec(compile("\n".join(lines), f"<message {where}>", "exec"), scope)
    return scope[name]


_CALLED = ("type", "len", "bool", "int", "float", "str", "bytes", "list", "dict", "tuple")
_CALLED_IN = re.compile(rf"\b({'|'.join(_CALLED)})\b")


def _make_init(where: str, kinds: dict[str, Kind], defaults: dict[str, Any]) -> Any:
    names: dict[str, Any] = {"_MISSING": _MISSING} | {f"_b_{name}": getattr(builtins, name) for name in _CALLED}
    parameters = ["_self"]
    body = []
    for name, kind in kinds.items():
        names[f"_k_{name}"] = kind
        names[f"_c_{name}"] = _converter(where, name, kind)
        default = defaults.get(name, _MISSING)
        if default is _MISSING:
            if parameters[-1].endswith(")") or "=" in parameters[-1]:
                raise MessageError(f"field {name!r} of {where} has no default and follows one that has")
            parameters.append(name)
        elif isinstance(default, _Factory):
            names[f"_d_{name}"] = default.make
            parameters.append(f"{name}=_MISSING")
            body.append(f"    if {name} is _MISSING: {name} = _d_{name}()")
        else:
            names[f"_d_{name}"] = default
            parameters.append(f"{name}=_d_{name}")
        # Fields may have the names of what the tests use.
        test = _CALLED_IN.sub(r"_b_\1", kind.test).format(v=name, k=f"_k_{name}")
        body.append(f"    _self.{name} = {name} if {test} else _c_{name}({name})")
    lines = [
        f"def __init__({', '.join([*parameters, '*', 'priority=0', 'deadline=None', 'correlation_id=0'])}):",
        *body,
        "    if priority: _self.priority = priority",
        "    if deadline is not None: _self.deadline = deadline",
        "    if correlation_id: _self.correlation_id = correlation_id",
    ]
    return _compile("__init__", lines, names, where)


def _converter(where: str, name: str, kind: Kind) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            return kind.convert(value)
        except (TypeError, ValueError, OverflowError) as error:
            shown = " ".join(repr(value).split())
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            detail = f": it must be {error}" if isinstance(error, ValueError) and str(error) else ""
            raise MessageError(
                f"field {name!r} of {where} is {kind.text}, and {shown} ({type(value).__name__}) is not{detail}"
            ) from None

    return convert


def _make_load(layout: Layout, made: bool) -> Any:
    """A function that makes a message of a buffer, or a method that fills one that was made."""
    names: dict[str, Any] = {
        "_new": MessageBase.__new__,
        "_unpack": layout.scalars.unpack_from,
        "_bf16": from_bfloat16_bits,
    }
    scalars = [field for field in layout.fields if not field.kind.shape]
    lines = ["def _load(cls, buffer, offset):", "    self = _new(cls)"]
    if made:
        lines = ["def _load(self, buffer, offset):"]
    if scalars:
        lines.append(f"    {''.join(f'self.{field.name}, ' for field in scalars)}= _unpack(buffer, offset)")
    lines += [f"    self.{f.name} = _bf16(self.{f.name})" for f in scalars if f.numpy_type.name == "bfloat16"]
    if len(scalars) < len(layout.fields):
        lines.append("    self._raw = buffer, offset")
    return _compile("_load", lines if made else [*lines, "    return self"], names, layout.name)


def _make_array(field: FixedField) -> Callable[[Any, int], Any]:
    """A function that gives an array field of a message in a buffer."""
    shape, kind, begin = field.kind.shape, field.numpy_type, field.offset
    return lambda buffer, offset: np.ndarray(shape, kind, buffer, offset + begin)


def _make_dump(layout: Layout, into: bool) -> Any:
    """A method that writes a message into a buffer, or gives its bytes."""
    names: dict[str, Any] = {"_pack": layout.struct.pack_into if into else layout.struct.pack, "_bf16": bfloat16_bits}
    lines = ["def _dump(_self, _buffer, _offset):" if into else "def _dump(_self):"]
    values = []
    for field in layout.fields:
        value, local = f"_self.{field.name}", f"_v_{field.name}"
        if field.kind.shape:
            names[f"_t_{field.name}"] = field.numpy_type
            names[f"_c_{field.name}"] = field.kind.convert
            lines.append(f"    {local} = {value}")
            lines.append(
                f"    if {local}.dtype is not _t_{field.name} and {local}.dtype != _t_{field.name} "
                f"or {local}.shape != {field.kind.shape}: {local} = _c_{field.name}({local})"
            )
            value = f"{local}.tobytes()"
        elif field.numpy_type.name == "bfloat16":
            value = f"_bf16({value})"
        values.append(value)
    given = ", ".join((["_buffer", "_offset"] if into else []) + values)
    # One array is all there is of many messages.
    is_array = (
        not into and len(values) == 1 and layout.fields[0].kind.shape and layout.itemsize == layout.fields[0].nbytes
    )
    last = f"    return {values[0]}" if is_array else f"    return _pack({given})"
    return _compile("_dump", [*lines, last], names, layout.name)
