"""Messages: construction, checks, layouts, and the way to bytes and back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import pickle
import re
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp
from pygpukit.errors import MessageError, ShapeError
from pygpukit.ring import Message, message
from pygpukit.ring.message import require_fixed

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool_": st.booleans(),
    **{f"int{bits}": st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "float16": st.floats(width=16, allow_nan=False),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "bfloat16": st.integers(-128, 128).map(float),
}


@message
class Sample:
    id: gp.int64
    x: gp.float32[64]


@message
class Request:
    values: list[float]
    name: str = "none"


def offsets_in(source: str) -> dict[str, int]:
    return {name: int(offset) for name, offset in re.findall(r"offsetof\(\w+, (\w+)\) == (\d+)", source)}


@st.composite
def fixed_messages(draw: st.DrawFn) -> Any:
    """An instance of a class with fields of random kinds."""
    names = draw(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=6))
    annotations: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for at, name in enumerate(names):
        shape = draw(st.one_of(st.just(()), hnp.array_shapes(max_dims=3, max_side=5)))
        of = getattr(gp, name)
        annotations[f"f{at}"] = of[shape] if shape else of
        if shape:
            element = gp.to_numpy_dtype(of)
            plain = draw(hnp.arrays(np.int8, shape)) if name == "bfloat16" else draw(hnp.arrays(element, shape))
            values[f"f{at}"] = (
                np.nan_to_num(plain.astype(element)) if plain.dtype.kind == "f" else plain.astype(element)
            )
        else:
            values[f"f{at}"] = draw(SCALARS[name])
    cls = message(type("Drawn", (), {"__annotations__": annotations}))
    return cls(**values)


@given(fixed_messages())
def test_fixed_messages_survive_the_way_to_bytes(one: Any) -> None:
    cls = type(one)
    assert cls.is_fixed
    data = one.to_bytes()
    assert len(data) == cls.dtype.itemsize
    assert len(data) % 16 == 0
    assert cls.from_bytes(data) == one
    # NumPy reads the same values at the same places.
    record = np.frombuffer(data, cls.dtype)[0]
    for name in cls.dtype.names:
        assert np.array_equal(record[name], np.asarray(getattr(one, name)).astype(record[name].dtype))
    array = cls.to_array([one, one])
    assert array.tobytes() == data * 2
    assert cls.from_array(array) == [one, one]


@given(fixed_messages())
def test_the_struct_has_the_offsets_of_the_dtype(one: Any) -> None:
    cls = type(one)
    source = cls.c_struct()
    assert offsets_in(source) == {name: cls.dtype.fields[name][1] for name in cls.dtype.names}
    assert f"static_assert(sizeof(Drawn) == {cls.dtype.itemsize}," in source
    for name in cls.dtype.names:
        element, offset = cls.dtype.fields[name][:2]
        assert offset % element.base.itemsize == 0, "every field is aligned"


@message
class Inner:
    label: str
    weights: np.ndarray


@message
class Everything:
    text: str
    data: bytes
    flag: bool
    count: int
    ratio: float
    small: gp.uint8
    fixed: gp.float32[3]
    numbers: list[float]
    pairs: list[tuple[int, str]]
    several: tuple[int, ...]
    table: dict[str, list[int]]
    inner: Inner
    more: list[Inner]
    maybe: Inner | None
    either: int | str | None = None
    array: np.ndarray | None = None


arrays = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in ("f4", "f8", "i2", "u8", "bool", "c8", ml_dtypes.bfloat16)]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    elements=st.just(1),
)
texts = st.text(max_size=12)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
inners = st.builds(Inner, label=texts, weights=arrays)


@given(
    st.builds(
        Everything,
        text=texts,
        data=st.binary(max_size=20),
        flag=st.booleans(),
        count=longs,
        ratio=st.floats(allow_nan=False),
        small=st.integers(0, 255),
        fixed=hnp.arrays(np.float32, 3, elements=st.floats(width=32, allow_nan=False)),
        numbers=st.lists(st.floats(allow_nan=False)),
        pairs=st.lists(st.tuples(longs, texts)),
        several=st.lists(longs).map(tuple),
        table=st.dictionaries(texts, st.lists(longs)),
        inner=inners,
        more=st.lists(inners, max_size=3),
        maybe=st.none() | inners,
        either=st.none() | longs | texts,
        array=st.none() | arrays,
    )
)
def test_variable_messages_survive_the_way_to_bytes(one: Any) -> None:
    assert not Everything.is_fixed
    back = Everything.from_bytes(one.to_bytes())
    assert back == one
    assert type(back.several) is tuple
    if one.array is not None:
        assert (back.array.dtype, back.array.shape) == (one.array.dtype, one.array.shape)


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused_and_nothing_worse(data: bytes) -> None:
    for cls in (Everything, Inner, Request):
        with contextlib.suppress(MessageError):
            cls.from_bytes(data)


def test_arrays_of_a_fixed_message_are_views() -> None:
    array = np.zeros(3, Sample.dtype)
    array["id"] = [5, 6, 7]
    second = Sample.from_bytes(array[1:2].view(np.uint8))
    assert second.id == 6
    array["x"][1, 2] = 9.0
    assert second.x[2] == 9.0
    assert np.shares_memory(Sample.from_array(array)[0].x, array)


def test_construction_is_that_of_a_dataclass() -> None:
    one = Request([1.0, 2.0], name="a")
    assert one == Request(values=[1.0, 2.0], name="a")
    assert one != Request([1.0, 2.0])
    assert repr(Request([1.0])) == "Request(values=[1.0], name='none')"
    assert Request.__match_args__ == ("values", "name")
    with pytest.raises(TypeError, match="values"):
        Request()
    with pytest.raises(AttributeError):
        one.other = 1


def test_defaults_are_not_shared() -> None:
    @message
    class Bag:
        items: list[int] = []  # noqa: RUF012
        tags: dict[str, int] = dataclasses.field(default_factory=dict)
        size: gp.int32 = 4

    first, second = Bag(), Bag()
    first.items.append(1)
    first.tags["a"] = 1
    assert (second.items, second.tags, second.size) == ([], {}, 4)
    with pytest.raises(MessageError, match=r"'late' of Wrong has no default"):
        message(type("Wrong", (), {"__annotations__": {"early": int, "late": int}, "early": 1}))


def test_a_message_extends_another() -> None:
    @message
    class Base:
        a: int

        def twice(self) -> int:
            return 2 * self.a

    @message
    class More(Base):
        b: float = 0.5

    one = More(3)
    assert (one.a, one.b, one.twice()) == (3, 0.5, 6)
    assert More.from_bytes(one.to_bytes()) == one
    assert [field for field in More.dtype.names] == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Sample("1", np.zeros(64)), r"'id' of Sample is int64, and '1' \(str\) is not"),
        (lambda: Sample(True, np.zeros(64)), r"'id' of Sample is int64, and True \(bool\) is not"),
        (lambda: Sample(1 << 63, np.zeros(64)), r"'id' .* it must be from -9223372036854775808 to"),
        (lambda: Sample(1, np.zeros(63)), r"'x' of Sample is float32\[64\].*of shape \(64,\), not \(63,\)"),
        (lambda: Sample(1, ["a"] * 64), "'x' of Sample"),
        (lambda: Sample(1, np.zeros(64, complex)), "'x' of Sample"),
        (lambda: Request((1.0,)), r"'values' of Request is list\[float64\], and \(1.0,\) \(tuple\) is not"),
        (lambda: Request([], 5), r"'name' of Request is str, and 5 \(int\) is not"),
        (lambda: Request([], priority=256), "priority must be an int from 0 to 255"),
    ],
)
def test_wrong_values_are_named(make: Any, text: str) -> None:
    with pytest.raises((MessageError, ValueError), match=text):
        make()


@pytest.mark.parametrize(
    ("of", "largest", "beyond"),
    [
        (gp.float16, 65504.0, 65520.0),
        (gp.float32, float(np.finfo("f4").max), 3.4028235677973366e38),
        (gp.bfloat16, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), 3.397e38),
    ],
    ids=str,
)
def test_ranges_of_floats(of: Any, largest: float, beyond: float) -> None:
    """What would become infinite is refused where the message is made; what is infinite is not."""
    made = message(type("Made", (), {"__annotations__": {"x": of}}))

    def sent(value: Any) -> float:
        return float(made.from_bytes(made(value).to_bytes()).x)

    below = math.nextafter((largest + beyond) / 2, 0.0)
    for value in (largest, -largest, below, math.inf, -math.inf):
        assert sent(value) == (value if math.isinf(value) else math.copysign(largest, value))
    assert math.isnan(sent(math.nan))
    assert sent(np.float64(2.5)) == sent(2.5) == 2.5
    for value in (beyond, -beyond, np.float64(beyond), 10**300):
        with pytest.raises(MessageError, match=rf"is {of.name}, and .* must be from -\S+ to {re.escape(str(largest))}"):
            made(value)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies(again: Any) -> None:
    one = Request([1.0, 2.0], "x", priority=3, deadline=1e9, correlation_id=7)
    one._call()
    two = again(one)
    assert two == one
    assert (two.priority, two.deadline, two.correlation_id) == (3, 1e9, 7)
    assert two.message_id != one.message_id
    assert not two._is_call
    assert (two.values is one.values) == (again is copy.copy)
    array = Sample(7, np.arange(64, dtype="f4"))
    loaded = again(Sample.from_bytes(array.to_bytes()))
    assert loaded == array
    assert again([array, array])[0] == array


def test_numbers_are_taken_as_the_fields_type() -> None:
    one = Sample(np.int32(4), list(range(64)))
    assert type(one.id) is int
    assert one.x.dtype == np.float32
    with pytest.raises(MessageError, match="from 0 to 255"):
        message(type("Bytes", (), {"__annotations__": {"b": gp.uint8[2]}}))([1, 256])


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (complex, "complex cannot be sent"),
        (gp.complex64, "complex64 is not for messages"),
        (set, "set cannot be sent"),
        (gp.float8_e5m2[4], "float8_e5m2 is not for messages"),
    ],
)
def test_types_that_cannot_be_sent_are_refused_by_the_fields_name(annotation: Any, text: str) -> None:
    with pytest.raises(MessageError, match=f"field 'odd' of Odd.*{text}"):
        message(type("Odd", (), {"__annotations__": {"odd": annotation}}))


@pytest.mark.parametrize("name", ["priority", "reply", "dtype", "_own"])
def test_names_of_the_header_are_refused(name: str) -> None:
    with pytest.raises(MessageError, match=name):
        message(type("Odd", (), {"__annotations__": {name: int}}))


@pytest.mark.parametrize("shape", [0, -1, (), (2, 0), "4", 1.5, 1 << 40, True, (2, True)])
def test_shapes_of_fixed_arrays(shape: Any) -> None:
    with pytest.raises(ShapeError, match="is not a fixed array"):
        gp.float32[shape]


def test_fixed_arrays_are_values() -> None:
    spec = gp.float32[8, 8]
    assert (spec.dtype, spec.shape, spec.size, spec.nbytes) == (gp.float32, (8, 8), 64, 256)
    assert spec == gp.float32[8, 8]
    assert spec != gp.float32[64]
    assert repr(spec) == "pygpukit.float32[8, 8]"


def test_a_fixed_layout_is_required_by_the_fields_name() -> None:
    assert require_fixed(Sample, "device actor 'gain'").itemsize == 272
    with pytest.raises(
        MessageError, match=r"device actor 'gain' needs .* 'values' of Request is list\[float64\].*gp\."
    ):
        require_fixed(Request, "device actor 'gain'")
    with pytest.raises(MessageError, match="needs a class made by @message"):
        require_fixed(int, "device actor 'gain'")


def test_changed_fields_are_checked_when_they_are_packed() -> None:
    one = Sample(1, np.zeros(64))
    one.x = np.zeros(3, np.float32)
    with pytest.raises(MessageError, match="does not fit the layout of Sample"):
        one.to_bytes()
    one.x, one.id = np.zeros(64), "a"
    with pytest.raises(MessageError, match="does not fit"):
        one.to_bytes()
    with pytest.raises(MessageError, match="272 bytes, and 3 were given"):
        Sample.from_bytes(b"abc")


def test_the_header() -> None:
    first, second = Request([1.0], priority=7), Request([2.0])
    assert second.message_id == first.message_id + 1
    assert (first.priority, first.correlation_id, first.deadline) == (7, 0, None)
    answer = Sample(1, np.zeros(64))
    assert first.reply(answer) is answer
    assert answer.correlation_id == first.message_id
    assert (first._flags, answer._flags) == (0, 0)
    assert second._call() == second.message_id
    assert (second._flags, second.reply(Request([]))._flags) == (1, 2)
    late = time.monotonic() + 5
    first.deadline = late
    assert first.deadline == pytest.approx(late, abs=1e-6)
    first.deadline = -1
    assert first.deadline == pytest.approx(0, abs=1e-6)
    with pytest.raises(TypeError, match="deadline"):
        first.deadline = "soon"
    with pytest.raises(ValueError, match="priority"):
        first.priority = -1
    for number in (-1, 1 << 64, "7"):
        with pytest.raises(ValueError, match=f"correlation_id must be the message_id of another .* not {number!r}"):
            Request([], correlation_id=number)


def test_type_ids_follow_name_and_fields() -> None:
    def make(name: str, **fields: Any) -> type[Message]:
        return message(type(name, (), {"__annotations__": fields}))

    assert make("A", x=int).type_id == make("A", x=int).type_id
    assert len({make(n, **{f: t}).type_id for n in "AB" for f in "xy" for t in (int, float, gp.int64[2])}) == 12


@pytest.mark.nvrtc
def test_the_compiler_agrees_with_the_layout() -> None:
    class Mixed:
        a: gp.bool_
        b: gp.float64
        c: gp.int8[3]
        d: gp.uint16
        e: gp.float32[2, 3]
        f: gp.int64
        g: gp.float16
        h: gp.bfloat16[3]

    mixed = message(Mixed)
    source = mixed.c_struct()
    source += """
extern "C" __global__ void fill(Mixed* out) {
    out->a = true; out->b = 0.5; out->d = 40000; out->f = -5;
    out->g = pgk::Narrow<pgk::f16>::from(1.5f);
    for (int i = 0; i < 3; ++i) { out->c[i] = i - 1; out->h[i] = pgk::Narrow<pgk::bf16>::from(-2.0f * i); }
    for (int i = 0; i < 2; ++i) for (int j = 0; j < 3; ++j) out->e[i][j] = 10.0f * i + j;
}
"""
    out = gp.zeros(mixed.dtype.itemsize, gp.uint8)
    gp.jit(source, "fill")(out, grid=1, block=1)
    one = mixed.from_bytes(out.to_numpy())
    assert one == mixed(True, 0.5, [-1, 0, 1], 40000, [[0, 1, 2], [10, 11, 12]], -5, 1.5, [0, -2, -4])


def test_fields_may_have_the_names_that_python_has() -> None:
    @message
    class Odd:
        type: int
        self: gp.int32
        len: float
        buffer: gp.float32[3]
        offset: gp.int64[2]
        float: bool

    odd = Odd(1, 2, 3.0, np.arange(3, dtype=np.float32), np.arange(2), True)
    same = Odd.from_bytes(odd.to_bytes())
    assert (same.type, same.self, same.len, same.float) == (1, 2, 3.0, True)
    assert (same.buffer.tolist(), same.offset.tolist()) == ([0.0, 1.0, 2.0], [0, 1])
    assert Odd.from_array(Odd.to_array([odd, odd]))[1] == odd
    with pytest.raises(MessageError, match="field 'type'"):
        Odd("x", 2, 3.0, odd.buffer, odd.offset, True)
