"""Messages: header, decorator, bytes, registry."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import msgpack
import numpy as np
import pytest

from pygpukit.compat.pydotcompute.exceptions import MessageDeserializationError, MessageSerializationError
from pygpukit.compat.pydotcompute.ring_kernels.message import (
    RingKernelMessage,
    deserialize_message,
    get_message_type,
    message,
)


@message
@dataclass
class Declared:
    values: list = field(default_factory=list)
    message_id: UUID = field(default_factory=uuid4)
    priority: int = 128
    correlation_id: UUID | None = None


@message
class Bare:
    value: float
    name: str = "x"
    items: list = field(default_factory=list)


@message
@dataclass(order=True)
class Half:
    value: float
    priority: int = 7


@message
class Anything:
    value: object = None


@message
class Later:
    values: list = None

    def __post_init__(self) -> None:
        self.values = self.values or [9]


def test_defaults_of_the_header() -> None:
    for one in (RingKernelMessage(), Declared(), Bare(1.0), Later()):
        assert isinstance(one.message_id, UUID)
        assert (one.priority, one.correlation_id) == (128, None)
        assert isinstance(one, RingKernelMessage)
    assert RingKernelMessage().message_id != RingKernelMessage().message_id


def test_a_message_is_a_dataclass_with_its_header_last() -> None:
    names = ["value", "name", "items", "message_id", "priority", "correlation_id"]
    assert [one.name for one in dataclasses.fields(Bare)] == names
    one = Bare(1.0, "b")
    assert one == dataclasses.replace(one, value=1.0) != dataclasses.replace(one, value=2.0)
    assert Bare(1.0).items is not Bare(1.0).items
    with pytest.raises(TypeError):
        Bare()


def test_a_dataclass_without_some_of_the_header_gets_it() -> None:
    one = Half(2.0)
    assert (one.value, one.priority, one.correlation_id) == (2.0, 7, None)
    assert Half(1.0) < Half(2.0)
    assert [one.name for one in dataclasses.fields(Half)] == ["value", "priority", "message_id", "correlation_id"]


def test_post_init_is_called_and_the_class_kept() -> None:
    assert Later().values == [9]
    assert Later.__name__ == "Later"
    assert message()(type("Made", (), {"__annotations__": {"x": int}, "x": 3}))().x == 3


@pytest.mark.parametrize("cls", [RingKernelMessage, Declared, Anything, Later])
@pytest.mark.parametrize("priority", [-1, 256, 1000])
def test_priorities_are_checked(cls: Any, priority: int) -> None:
    with pytest.raises(ValueError, match=str(priority)):
        cls(priority=priority)


@pytest.mark.parametrize("priority", [0, 255])
def test_priorities_at_the_ends(priority: int) -> None:
    assert RingKernelMessage(priority=priority).priority == priority


def test_correlation_and_reply() -> None:
    one, number = RingKernelMessage(priority=9), uuid4()
    other = one.with_correlation(number)
    assert (other.message_id, other.priority, other.correlation_id) == (one.message_id, 9, number)
    assert one.correlation_id is None
    answer = one.reply(priority=3)
    assert (answer.correlation_id, answer.priority) == (one.message_id, 3)
    assert answer.message_id != one.message_id
    asked = Declared([1])
    assert asked.reply(values=[2]).correlation_id == asked.message_id
    assert asked.with_correlation(number).values == [1]


@pytest.mark.parametrize("one", [RingKernelMessage(priority=3), Declared([1, 2]), Bare(1.5, "y"), Half(1.0)])
def test_bytes_and_back(one: Any) -> None:
    data = one.serialize()
    assert isinstance(data, bytes)
    assert type(one).deserialize(data) == one
    again = deserialize_message(data)
    assert again == one
    assert type(again) is type(one)


def test_the_format_of_the_bytes() -> None:
    one = Declared([1], correlation_id=uuid4())
    assert msgpack.unpackb(one.serialize()) == {
        "__type__": "Declared",
        "values": [1],
        "message_id": {"__uuid_bin__": one.message_id.bytes},
        "priority": 128,
        "correlation_id": {"__uuid_bin__": one.correlation_id.bytes},
    }
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert msgpack.unpackb(Anything(array).serialize())["value"] == {
        "__ndarray__": array.tobytes(),
        "dtype": "float32",
        "shape": [2, 3],
    }


@pytest.mark.parametrize(
    "value", [None, True, 1, 1.5, "s", b"b", [1, [2]], {"a": {"b": 1}}, uuid4(), [uuid4()], {1: "int key"}]
)
def test_values_that_have_bytes(value: Any) -> None:
    assert Anything.deserialize(Anything(value).serialize()).value == value


@pytest.mark.parametrize("array", [np.arange(4), np.zeros((0, 2)), np.ones((2, 2, 2), ">i2"), np.float32(1.5)])
def test_arrays_have_bytes(array: Any) -> None:
    found = Anything.deserialize(Anything([array]).serialize()).value[0]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert found.flags.writeable


@pytest.mark.parametrize("value", [{1}, 1j, object(), np.array([None]), 1 << 70])
def test_values_that_have_none(value: Any) -> None:
    with pytest.raises(MessageSerializationError) as caught:
        Anything(value).serialize()
    assert caught.value.message_type is Anything
    assert caught.value.__cause__ is caught.value.cause


@pytest.mark.parametrize(
    "data", [b"", b"invalid data", b"\xff\x00", msgpack.packb([1]), msgpack.packb({"priority": 999})]
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(MessageDeserializationError) as caught:
        Declared.deserialize(data)
    assert caught.value.message_type is Declared
    with pytest.raises(MessageDeserializationError):
        deserialize_message(data)


def test_unknown_keys_and_classes() -> None:
    data = msgpack.packb({"__type__": "Unknown", "priority": 3, "other": 1})
    assert type(deserialize_message(data)) is RingKernelMessage
    assert deserialize_message(data).priority == 3
    assert Declared.deserialize(data).values == []


def test_classes_by_name() -> None:
    assert get_message_type("Declared") is Declared
    assert get_message_type("Missing") is None
