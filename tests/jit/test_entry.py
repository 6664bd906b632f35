"""Keys and the file format of compiled images."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygpukit.jit.entry import Entry, decode, encode, image_key, is_key, summarize

KEY = "ab" * 32

entries = st.builds(
    Entry,
    key=st.just(KEY),
    name=st.text(max_size=40),
    arch=st.sampled_from(["80", "90a"]),
    kind=st.sampled_from(["cubin", "ptx"]),
    image=st.binary(max_size=300),
    lowered=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3),
    log=st.text(max_size=100),
    created=st.floats(0, 2e9),
)


def key(**changes: object) -> str:
    settings: dict[str, object] = {
        "source": "s",
        "headers": {},
        "options": ["-a"],
        "arch": "80",
        "expressions": [],
        "kind": "cubin",
        "compiler": "nvrtc 13.4",
    }
    settings |= changes
    return image_key(settings.pop("source"), **settings)  # type: ignore[arg-type]


@given(entries)
@settings(max_examples=50)
def test_what_is_written_is_read(entry: Entry) -> None:
    data = encode(entry)
    assert decode(data, KEY) == entry
    summary = summarize(data)
    assert (summary.key, summary.arch, summary.created) == (KEY, entry.arch, entry.created)
    assert summary.name.isprintable()


@given(entries, st.data())
@settings(max_examples=150)
def test_every_damage_is_found(entry: Entry, data: st.DataObject) -> None:
    whole = encode(entry)
    how = data.draw(st.sampled_from(["flip", "cut", "append"]))
    if how == "flip":
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = bytes([*whole[:at], whole[at] ^ data.draw(st.integers(1, 255)), *whole[at + 1 :]])
    elif how == "cut":
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        damaged = whole + data.draw(st.binary(min_size=1, max_size=10))
    with pytest.raises(ValueError, match=r"."):
        decode(damaged, KEY)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for candidate in (data, encode(Entry(KEY, "n", "80", "cubin", b"x"))[:12] + data):
        with pytest.raises(ValueError, match=r"."):
            decode(candidate, KEY)


def test_another_key_is_refused() -> None:
    data = encode(Entry(KEY, "n", "80", "cubin", b"image"))
    with pytest.raises(ValueError, match="it holds key"):
        decode(data, "cd" * 32)


def test_control_characters_do_not_reach_a_terminal() -> None:
    summary = summarize(encode(Entry(KEY, "a\x1b[31mb\n", "80", "cubin", b"")))
    assert summary.name == "a?[31mb?"


def test_everything_that_decides_an_image_is_in_its_key() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"source": "t"},
        {"headers": {"a": "b"}},
        {"headers": {"a": "c"}},
        {"headers": {"ab": ""}},
        {"options": ["-a", "-b"]},
        {"options": ["-a-b"]},
        {"options": []},
        {"arch": "90a"},
        {"expressions": ["k<int>"]},
        {"kind": "ptx"},
        {"compiler": ""},
        {"compiler": "nvrtc 13.3"},
    ]
    keys = [key(**change) for change in changes]
    assert len(set(keys)) == len(changes)
    assert all(is_key(text) for text in keys)
    assert key(headers={"a": "1", "b": "2"}) == key(headers={"b": "2", "a": "1"})
    assert key(options=["-x"], expressions=["k"]) != key(options=["-x", "k"], expressions=[])


@pytest.mark.parametrize("text", ["", "x" * 64, "AB" * 32, "ab" * 31, "../" + "a" * 61, "ab" * 33])
def test_what_is_no_key(text: str) -> None:
    assert not is_key(text)
