"""Tokenizers out of files, text that comes a token at a time, chat templates in their sandbox."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygpukit.errors import ModelFileError, ModelLoadError
from pygpukit.llm import ChatMessage, GGUFFile, ThinkingParser, Tokenizer, apply_chat_template
from pygpukit.llm.gguf_tokenizer import gguf_tokenizer
from pygpukit.llm.templates import render
from pygpukit.llm.tokenizer import Detokenizer

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
MESSAGES = [ChatMessage("user", "Hi")]


@pytest.fixture(scope="module")
def metadata(gguf_file: Path) -> dict[str, Any]:
    return dict(GGUFFile(gguf_file).metadata)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return gguf_tokenizer(metadata)


@pytest.fixture(scope="module")
def from_json(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(text=st.text(max_size=40))
def test_text_comes_back_whole_and_in_pieces(tokenizer: Tokenizer, from_json: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == [byte_token(byte) for byte in text.encode()] == from_json.encode(text)
    assert tokenizer.decode(ids) == text
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join([*pieces, detokenizer.flush()]) == text
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)


def byte_token(byte: int) -> int:
    """Bytes that print are numbered first, then the others; ids begin after three special tokens."""
    order = [*range(256)]
    return 3 + order.index(byte)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=30))
def test_any_tokens_have_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    text = "".join([*(detokenizer.add(token) for token in ids), detokenizer.flush()])
    text.encode("utf-8")
    assert text.replace("\ufffd", "") == tokenizer.decode(ids).replace("\ufffd", "")


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>a")[0] == 1
    assert tokenizer.decode([1, *tokenizer.encode("a"), 2]) == "a"
    assert tokenizer.decode([1], skip_special_tokens=False) == "<|im_start|>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.token(2)) == (0, 2, "<|im_end|>")
    assert tokenizer.end_ids() == {0, 2}
    assert tokenizer.vocab_size == 259


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "don't  2023!", ["don", "'t", " ", " 2023", "!"]),
        ("smollm", "a 2023", ["a", " ", "2", "0", "2", "3"]),
        ("llama-bpe", "a 2023 X'LL\n\nb", ["a", " ", "202", "3", " X", "'LL", "\n\n", "b"]),
        ("qwen2", "a 2023", ["a", " ", "2", "0", "2", "3"]),
    ],
)
def test_words_are_cut_by_the_rule_of_the_file(metadata: dict[str, Any], pre: str, text: str, words: list[str]) -> None:
    made = gguf_tokenizer(metadata | {"tokenizer.ggml.pre": pre})
    cut = made._tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == words


def test_half_characters_have_no_tokens(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"the text has '\\udcff', half of a character"):
        tokenizer.encode("a\udcff")


def test_sentence_pieces_merge_by_score() -> None:
    tokens = ["<unk>", "<s>", "</s>", "<0x41>", "\u2581", "a", "b", "ab", "\u2581a", "abb"]
    scores = [0, 0, 0, 0, -9, -9, -9, -2, -1, -4]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, 6] + 6 * [1], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    made = gguf_tokenizer(metadata)
    # " a" is better than "ab", and then "b" is left; by default such a text begins with the token of a beginning.
    assert [made.token(token) for token in made.encode("ab ab")] == ["<s>", "\u2581a", "b", "\u2581a", "b"]
    assert made.decode(made.encode("ab A")) == "ab A"
    assert made.encode("b", add_special_tokens=False)[0] != 1
    without = gguf_tokenizer(
        metadata | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    )
    assert [without.token(token) for token in without.encode("abb")] == ["abb"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.pre": "new"}, "the rule 'new', which is unknown"),
        ({"tokenizer.ggml.model": "bert"}, "the tokenizer 'bert' is unknown"),
        ({"tokenizer.ggml.tokens": []}, "no tokenizer in it"),
        ({"tokenizer.ggml.merges": ["x yy"]}, "joins no two tokens"),
        ({"tokenizer.ggml.merges": 3}, "is int, and must be list"),
        ({"tokenizer.ggml.token_type": np.zeros(3, np.int32)}, "3 entries for 259 tokens"),
        ({"tokenizer.ggml.model": "llama"}, "0 entries for 259 tokens"),
    ],
)
def test_a_tokenizer_that_cannot_be_is_refused(metadata: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        gguf_tokenizer(metadata | change)


def test_a_damaged_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match="this is no tokenizer"):
        Tokenizer(tmp_path)


def test_templates_see_what_hugging_face_gives() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] ~ ': ' ~ m.content | trim }}\n{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{% generation %}{% endgeneration %}"
        "{% if add_generation_prompt %}A:{% endif %}{{ enable_thinking }}"
    )
    shown = render(template, MESSAGES, tools=[{"name": "<f>"}], bos_token="<s>", enable_thinking=False)
    assert shown == '<s>user: Hi\n[{"name": "<f>"}]A:False'


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 0.2 seconds"),
        ("{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "prints more than 10000 characters"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(3) }}", "unsafe"),
        ("{{ 9 ** 99999999 }}", "powers above 64"),
        ("{{ 'a' * 99999999999 }}", "would be longer"),
        ("{{ [1] * 99999999999 }}", "would be longer"),
        ("{{ 99999999999 * 'a' }}", "would be longer"),
        ("{{ 'a'.center(99999999999) }}", "'center' of texts is not for templates"),
        ("{{ '{:99999999999}'.format(1) }}", "'format' of texts is not for templates"),
        ("{{ '%99999999999d' % 1 }}", "padded to less"),
        ("{{ 'a' | center(99999999999) }}", "No filter named 'center'"),
        ("{{ 'a' | indent(99999999999) }}", "not indented"),
        ("{% set n = namespace(x='ab') %}{% for i in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "is longer"),
        ("{% set n = namespace(x=3) %}{% for i in range(90) %}{% set n.x = n.x * n.x %}{% endfor %}", "is beyond"),
        ("{% set n = 'ab' * 2000000 %}{{ n.replace('a', n) }}", "would be longer"),
        ("{% set n = 'ab' * 2000000 %}{{ n | replace('a', n) }}", "would be longer"),
        ("{% set n = 'ab' * 2000000 %}{{ n.join('ab') }}", "would be longer"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% if", "unexpected"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{% include 'etc/passwd' %}", "no loader"),
        ("x" * (1 << 21), "characters; 1048576 are allowed"),
    ],
)
def test_hostile_templates_end(template: str, reason: str) -> None:
    pytest.importorskip("jinja2")
    with pytest.raises(ModelLoadError) as raised:
        render(template, MESSAGES, limit=10000, seconds=0.2)
    assert reason in str(raised.value)


def test_the_clock_of_a_template_is_the_callers() -> None:
    from datetime import datetime

    assert render("{{ strftime_now('%Y') }}", MESSAGES, now=datetime(1999, 1, 2)) == "1999"


def test_a_conversation_without_a_template_is_chatml(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    del metadata["tokenizer.chat_template"]
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert apply_chat_template(MESSAGES) == expected == apply_chat_template(MESSAGES, tokenizer)
    assert apply_chat_template(MESSAGES, gguf_tokenizer(metadata), False) == expected[: -len("<|im_start|>assistant\n")]


def test_templates_of_a_folder(folder: Path, tmp_path: Path) -> None:
    from pygpukit.llm.tokenizer_files import _from_folder

    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert "im_start" in (_from_folder(tmp_path).chat_template or "")
    named = {"chat_template": [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert _from_folder(tmp_path).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert _from_folder(tmp_path).chat_template == "J"


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "hm", "a<b", "</th", "ink>"]), max_size=8),
    start=st.booleans(),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_thoughts_are_split_wherever_the_text_is_cut(parts: list[str], start: bool, cuts: list[int]) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    results = []
    for ends in ([0, len(text)], places):
        parser = ThinkingParser(start)
        pieces = [parser.add_text(text[a:b]) for a, b in pairwise(ends)]
        pieces.append(parser.flush())
        results.append(("".join(p[0] for p in pieces), "".join(p[1] for p in pieces)))
    assert results[0] == results[1]
