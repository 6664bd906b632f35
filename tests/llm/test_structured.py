"""Replies of a given form: every text that random scores draw has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.errors import MissingPackageError
from pygpukit.llm import LLM, SamplingParams, ThinkingParser, Tokenizer, schemas, structured
from pygpukit.llm.sequence import Sequence
from pygpukit.llm.testing import tiny_model

ENDS = (0, 2)
SIZE = 259
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"},
        "size": {"type": "integer", "minimum": -5, "maximum": 120},
        "kinds": {"type": "array", "items": {"enum": ["a", "b c", None]}, "maxItems": 2},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    pytest.importorskip("tokenizers")
    pytest.importorskip("llguidance")
    return Tokenizer(tiny_model("llama", tmp_path_factory.mktemp("model")))


def params(**form: Any) -> SamplingParams:
    return SamplingParams(**form)


def made(tokenizer: Tokenizer, **form: Any) -> structured.Constraint:
    found = structured.compile(tokenizer, params(**form), size=SIZE, ends=ENDS)
    assert found is not None
    return found


def allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:SIZE]).tolist()


def draw(tokenizer: Tokenizer, state: structured.Constraint, seed: int, longest: int = 400) -> str:
    """A text of random scores, drawn by the operator that engines draw with."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    while not state.done and len(ids) < longest:
        mask = gp.from_numpy(np.ascontiguousarray(state.mask()))
        scores = gp.from_numpy(rng.standard_normal(SIZE).astype(np.float32))
        token = int(gp.sample(scores, 1.0, penalties=gp.Penalties(allowed=mask), seed=seed, counter=len(ids)))
        state.accept(token)
        if token in ENDS:
            assert state.done
            break
        ids.append(token)
    assert state.done
    return tokenizer.decode(ids)


def fits(value: Any) -> None:
    assert set(value) <= {"name", "size", "kinds"}
    assert re.fullmatch("[a-z]{0,6}", value["name"])
    assert type(value["size"]) is int
    assert -5 <= value["size"] <= 120
    assert len(value.get("kinds", [])) <= 2
    assert all(kind in ("a", "b c", None) for kind in value.get("kinds", []))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_text_has_the_schema(tokenizer: Tokenizer, seed: int) -> None:
    # Spaces may come between any two parts without end: they are left out here so that texts end soon.
    schema = SCHEMA | {"x-guidance": {"whitespace_flexible": False}}
    fits(json.loads(draw(tokenizer, made(tokenizer, schema=schema), seed)))


@settings(max_examples=15, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_text_has_the_expression(tokenizer: Tokenizer, seed: int) -> None:
    # \d would be digits of every script, of which Python knows fewer than llguidance.
    expression = r"([0-9]{3}-[0-9]{4}|[A-F]{2,5}!)"
    assert re.fullmatch(expression, draw(tokenizer, made(tokenizer, regex=expression), seed))


@settings(max_examples=15, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_text_has_the_grammar(tokenizer: Tokenizer, seed: int) -> None:
    grammar = 'start: sum\nsum: number (("+" | "*") number)~0..3\nnumber: /[1-9][0-9]?/'
    text = draw(tokenizer, made(tokenizer, grammar=grammar), seed)
    assert re.fullmatch(r"[1-9]\d?([+*][1-9]\d?){0,3}", text)


def test_schemas_of_several_kinds(tokenizer: Tokenizer) -> None:
    class Model:
        """As pydantic's classes."""

        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"enum": ["yes", "no"]}

    forms = [{"enum": ["yes", "no"]}, '{"enum": ["yes", "no"]}', Model]
    for form in forms:
        state = made(tokenizer, schema=form)
        assert allowed(state.mask()) == tokenizer.encode('"')
        assert draw(tokenizer, state, 3) in ('"yes"', '"no"')
    assert structured.compile(tokenizer, params(), size=SIZE) is None


def test_what_must_come_are_drafts(tokenizer: Tokenizer) -> None:
    state = made(tokenizer, regex='\\{"answer": (true|false)\\}')
    forced = state.forced()
    assert tokenizer.decode(forced) == '{"answer": '
    assert state.valid(forced) == len(forced)
    wrong = [*forced[:3], 5, *forced[4:]]
    assert state.valid(wrong) == 3
    rows = state.masks(forced)
    assert [allowed(row) for row in rows[:-1]] == [[token] for token in forced]
    assert allowed(rows[-1]) == sorted(tokenizer.encode("tf"))
    rows = state.masks(wrong)
    assert allowed(rows[3]) == [forced[3]]
    assert not rows[4:].any()
    # Nothing was taken.
    assert state.forced() == forced
    for token in forced:
        state.accept(token)
    assert state.forced() == []
    state.accept(tokenizer.encode("t")[0])
    assert tokenizer.decode(state.forced()) == "rue}"


def test_drafts_up_to_the_end(tokenizer: Tokenizer) -> None:
    state = made(tokenizer, regex="abc")
    forced = state.forced()
    rows = state.masks(forced)
    assert [allowed(row) for row in rows] == [[token] for token in forced] + [[]]
    assert (state.forced(), state.done) == (forced, False)


def test_the_end(tokenizer: Tokenizer) -> None:
    state = made(tokenizer, regex="ab+")
    assert (state.done, state.complete) == (False, False)
    for token in tokenizer.encode("ab"):
        state.accept(token)
    assert (state.done, state.complete) == (False, True)
    assert allowed(state.mask()) == sorted([*ENDS, *tokenizer.encode("b")])
    other = state.copy()
    state.accept(2)
    assert state.done
    assert not other.done
    other.accept(tokenizer.encode("b")[0])
    exact = made(tokenizer, regex="ab")
    for token in tokenizer.encode("ab"):
        exact.accept(token)
    assert exact.done
    assert exact.masks([5]).tolist()[1] == [0] * exact.words


def test_a_wrong_token_changes_nothing(tokenizer: Tokenizer) -> None:
    state = made(tokenizer, regex="ab")
    before = state.mask().tolist()
    with pytest.raises(ValueError, match="token 7 does not fit the form of the reply"):
        state.accept(7)
    assert state.mask().tolist() == before


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"schema": {"type": "nope"}}, "schema cannot be used: .*nope"),
        ({"schema": {"$ref": "#/nothing"}}, "schema cannot be used"),
        ({"schema": {"$ref": "#"}}, "schema cannot be used: it refers to itself without end, so no value fits it: .*#"),
        ({"schema": {"not": {}}}, "schema cannot be used: Unimplemented keys: .*not"),
        ({"grammar": "start: start"}, r"grammar cannot be used: no text of that form can begin \(NoExtension\w*\)$"),
        ({"schema": "{"}, "schema is no JSON"),
        ({"schema": {"enum": {1, 2}}}, "schema is no JSON"),
        ({"regex": "a(b"}, "regex cannot be used: .*unclosed group"),
        ({"regex": ""}, "must be a text"),
        ({"grammar": "start: nothing"}, "grammar cannot be used: .*unknown name"),
        ({"grammar": 3}, "must be a text"),
        ({"regex": "a", "schema": {}}, "schema and regex are given: a reply has one form"),
    ],
)
def test_forms_that_cannot_be(tokenizer: Tokenizer, form: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){reason}"):
        structured.compile(tokenizer, params(**form), size=SIZE, ends=ENDS)


A = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("schema", "finite"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, True),
        ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 1}, True),
        ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 2}, False),
        ({"$defs": {"a": {"anyOf": [A, {"type": "null"}]}}, **A}, True),
        ({"$defs": {"a": {"oneOf": [A, {"allOf": [A]}]}}, **A}, False),
        ({"$defs": {"a": {"$ref": "#/$defs/b~1c%25"}, "b/c%": A}, **A}, False),
        ({"$defs": {"a": {"enum": [1], "type": "array", "minItems": 1, "items": A}}, **A}, True),
        ({"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, True),
        ({"$ref": "https://example.org/other"}, True),
        ({"$ref": "#anchor"}, True),
        ({"allOf": 5, "anyOf": {}, "required": [[]], "properties": [], "type": "object", "minItems": "x"}, True),
    ],
)
def test_schemas_without_a_finite_value(schema: dict[str, Any], finite: bool) -> None:
    assert schemas.has_finite_value(schema) is finite


def test_without_the_package(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    other = Tokenizer(tiny_model("llama", tmp_path))
    with pytest.raises(MissingPackageError, match=r"pip install 'pygpukit\[structured\]'"):
        structured.compile(other, params(regex="a"), size=SIZE)


EXACT = SCHEMA | {"x-guidance": {"whitespace_flexible": False}}


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(tiny_model("llama", tmp_path_factory.mktemp("engine"))) as made:
        yield made


def test_replies_of_an_engine_have_their_forms(engine: LLM) -> None:
    every = [
        SamplingParams(seed=1, max_tokens=300, schema=EXACT),
        SamplingParams(seed=2, max_tokens=20, ignore_eos=True),
        SamplingParams(seed=3, max_tokens=300, regex="[a-f]{3,9}!"),
        SamplingParams(temperature=0, max_tokens=300, schema=EXACT, repetition_penalty=1.3),
        SamplingParams(seed=4, max_tokens=300, schema=EXACT, n=3),
    ]
    alone = [engine.generate("Hello", params) for params in every]
    requests = [engine.submit("Hello", params) for params in every]
    for expected, request in zip(alone, requests, strict=True):
        out = request.result(60)
        assert [reply.token_ids for reply in out.outputs] == [reply.token_ids for reply in expected.outputs]
    for index in (0, 3, 4):
        for reply in alone[index].outputs:
            fits(json.loads(reply.text))
            assert (reply.finish_reason, reply.stop_reason) == ("stop", None)
    assert re.fullmatch("[a-f]{3,9}!", alone[2].text)
    assert len({reply.text for reply in alone[4].outputs}) > 1
    pieces = "".join(piece.text for piece in engine.stream("Hello", every[0]))
    assert pieces == alone[0].text
    fits(json.loads(engine.chat([{"role": "user", "content": "Hi"}], every[0]).text))


def test_what_must_come_is_computed_at_once(engine: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"type": "object", "properties": {"a long name": {"enum": ["first", "fifth"]}, "b": {"type": "boolean"}},
            "required": ["a long name", "b"], "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False}}  # fmt: skip
    every = [SamplingParams(seed=seed, max_tokens=100, schema=form, logprobs=1) for seed in range(4)]
    before = engine.stats()["steps"]
    with_drafts = [engine.generate("Hello", params) for params in every]
    steps = engine.stats()["steps"] - before
    # Behind the last token nothing is drawn that would tell.
    assert all(out.usage.drafted - 1 <= out.usage.accepted > 15 for out in with_drafts)
    monkeypatch.setattr(Sequence, "forced", lambda self: [])
    without = [engine.generate("Hello", params) for params in every]
    assert engine.stats()["steps"] - before - steps > 3 * steps
    for found, expected in zip(with_drafts, without, strict=True):
        assert (found.token_ids, found.text, found.logprobs) == (expected.token_ids, expected.text, expected.logprobs)
        assert expected.usage.drafted == 0
    assert len({out.text for out in without}) > 1


def test_guesses_of_others_within_a_form(engine: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=300, schema=EXACT)
    expected = engine.generate("Hello", params).token_ids
    scheduler = engine._loop.scheduler
    rng = np.random.default_rng(0)

    def drafter(branch: Any, most: int) -> list[int]:
        """Right at first, then anything."""
        at = len(branch.sequence.reply)
        return [*expected[at : at + 2], *rng.integers(3, SIZE, 2).tolist()][:most]

    scheduler.drafter = drafter
    try:
        out = engine.generate("Hello", params)
    finally:
        scheduler.drafter = None
    assert out.token_ids == expected
    assert 0 < out.usage.accepted < out.usage.drafted


def test_what_bounds_a_form(engine: LLM) -> None:
    out = engine.generate("Hello", SamplingParams(seed=1, max_tokens=5, schema=EXACT))
    assert (len(out.token_ids), out.finish_reason) == (5, "length")
    out = engine.generate("Hello", SamplingParams(seed=1, regex="ab*", ignore_eos=True, max_tokens=9, bad_words=["b"]))
    # With nothing else left the end comes, whatever else was asked for.
    assert (out.text, out.finish_reason) == ("a", "stop")
    with pytest.raises(ValueError, match="no token may come"):
        engine.generate("Hello", SamplingParams(regex="xyz", allowed_token_ids=[70]))
    assert len(engine.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True)).token_ids) == 3


def test_a_wrong_form_is_refused_before_anything_runs(engine: LLM) -> None:
    before = engine.stats()["steps"]
    with pytest.raises(ValueError, match="schema cannot be used"):
        engine.submit("Hello", SamplingParams(schema={"type": "nope"}))
    assert engine.stats()["steps"] == before


def test_thoughts_are_free(tokenizer: Tokenizer) -> None:
    state = made(tokenizer, regex="ok")
    sequence = Sequence([5], SamplingParams(regex="ok"), 50, {0, 2}, tokenizer, SIZE, ThinkingParser(start=True),
                        constraint=state)  # fmt: skip
    for token in tokenizer.encode("hm</think>"):
        assert sequence.line().mask is None
        sequence.add(token)
    assert allowed(sequence.line().mask) == tokenizer.encode("o")
    for token in tokenizer.encode("ok"):
        piece = sequence.add(token)
    assert piece.output is not None
    assert (piece.output.text, piece.output.thinking, piece.output.finish_reason) == ("ok", "hm", "stop")


def test_a_form_that_cannot_be_followed_fails_alone(tokenizer: Tokenizer) -> None:
    class Broken(structured.Constraint):
        def mask(self) -> np.ndarray:
            raise ValueError("too complex")

    state = made(tokenizer, regex="ok")
    sequence = Sequence([5], SamplingParams(regex="ok"), 50, set(), tokenizer, SIZE,
                        constraint=Broken(state._matcher, SIZE))  # fmt: skip
    mask = sequence.line().mask
    assert mask is not None
    assert not mask.any()
    assert str(sequence.problem) == "too complex"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model that begins every reply with a thought."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    folder = tiny_model("llama", tmp_path_factory.mktemp("thinker"), vocab_size=261)
    made = Tokenizer(folder)
    made._tokenizer.add_tokens(["<think>", "</think>"])
    with LLM(folder, tokenizer=made, chat_template="{{ messages[0].content }}<think>") as engine:
        yield engine


@pytest.mark.parametrize("most", [0, 1, 7])
def test_thoughts_of_a_bounded_length(thinker: LLM, most: int) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert thinker.tokenizer is not None
    end = thinker.tokenizer.token_id("</think>")
    free = thinker.chat(messages, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    assert end not in free.token_ids, "it would think without end"
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, max_thinking_tokens=most)
    out = thinker.chat(messages, params)
    assert out.token_ids.index(end) == most
    assert out.token_ids[:most] == free.token_ids[:most]
    assert len(out.token_ids) == 20
    assert out.text != ""
    assert bool(out.thinking) == bool(most)
    # Prompts that are no conversation have no thoughts.
    assert end not in thinker.generate("Hi", params).token_ids


@pytest.mark.parametrize("thought", ["", "hm</think>"])
def test_tags_of_thoughts_in_an_answer_are_text(tokenizer: Tokenizer, thought: str) -> None:
    form = SamplingParams(regex="<think>[0-9]{3}")
    sequence = Sequence([5], form, 50, {0, 2}, tokenizer, SIZE, ThinkingParser(start=bool(thought)),
                        constraint=made(tokenizer, regex=form.regex))  # fmt: skip
    for token in tokenizer.encode(thought):
        assert sequence.forced() == []
        assert not sequence.takes_drafts
        sequence.add(token)
    for token in tokenizer.encode("<think>123"):
        assert token in allowed(sequence.line().mask)
        assert sequence.takes_drafts
        piece = sequence.add(token)
    assert piece.output is not None
    assert (piece.output.text, piece.output.thinking) == ("<think>123", thought[:2])


def test_a_bounded_thought_and_a_form(thinker: LLM) -> None:
    pytest.importorskip("llguidance")
    params = SamplingParams(seed=1, max_thinking_tokens=4, regex="[0-9]{5}")
    out = thinker.chat([{"role": "user", "content": "Hi"}], params)
    assert re.fullmatch("[0-9]{5}", out.text)
    assert (len(out.token_ids), out.finish_reason) == (10, "stop")
