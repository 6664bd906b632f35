"""Speculation: guesses make steps fewer, and change neither tokens nor the bits of their probabilities."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.errors import ModelLoadError
from pygpukit.llm import LLM, RequestOutput, SamplingParams, plugins
from pygpukit.llm.draft_models import DraftModelDrafter, EarlyExitDrafter
from pygpukit.llm.drafters import Drafter, NgramDrafter, NgramIndex, accepted
from pygpukit.llm.scheduler import Branch
from pygpukit.llm.speculation import Speculation, read_method
from pygpukit.llm.testing import tiny_model

from .engines import Stepped, few_pages, stepped
from .test_engine_batches import alone, bits, request

PROMPT = [5, 6, 7, 3, 8, 5, 6, 7]
METHODS: list[Any] = ["ngram", "jacobi", "lookahead", {"early_exit": 1}, {"draft": "itself", "k": 3}]


def name(method: Any) -> str:
    return method if isinstance(method, str) else next(iter(method))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that begins to repeat itself, so that guesses can be right: a small vocabulary."""
    return tiny_model("llama", tmp_path_factory.mktemp("small") / "tiny", seed=3, vocab_size=9)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer's vocabulary."""
    return tiny_model("llama", tmp_path_factory.mktemp("wide") / "tiny")


@pytest.fixture
def plugin() -> Iterator[None]:
    yield
    plugins._forget()


def of_model(method: Any, path: Path) -> Any:
    """A draft model needs a path."""
    return {**method, "draft": path} if "draft" in method else method


def never_pauses(engine: Stepped) -> Speculation:
    """Let an engine guess whatever becomes of it."""
    speculation = engine.loop.speculation
    assert speculation is not None
    speculation.least_share, speculation.replies = -1.0, 1000
    return speculation


def given(path: Path, speculative: Any, wanted: list[tuple[list[int], SamplingParams]], **options: Any) -> Any:
    """Replies with guesses that never pause, and the engine's counts."""
    with stepped(path, speculative=speculative, **options) as engine:
        never_pauses(engine)
        made = [engine.llm.submit(*one) for one in wanted]
        engine.run()
        assert engine.pages() == 0
        return [one.result(0) for one in made], engine.llm.stats()


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: method if isinstance(method, str) else next(iter(method))
)
@pytest.mark.parametrize("temperature", [0, 0.5])
def test_a_reply_is_the_same_in_fewer_steps(method: Any, temperature: float, small: Path) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=40, ignore_eos=True, logprobs=2, seed=3)
    expected = alone(small, [(PROMPT, params)])
    (out,), stats = given(small, of_model(method, small), [(PROMPT, params)])
    assert bits(out) == expected[0]
    usage = out.usage
    assert 0 < usage.accepted <= usage.drafted
    assert stats["steps"] == 40 - usage.accepted
    assert (stats["speculation"]["drafted"], stats["speculation"]["accepted"]) == (usage.drafted, usage.accepted)


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: method if isinstance(method, str) else next(iter(method))
)
@pytest.mark.parametrize("ahead", [False, True])
def test_any_batch_with_guesses_gives_the_bits_of_a_request_alone(
    method: Any, ahead: bool, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside requests of other kinds, with preemptions, pages found again, and steps that overlap."""
    rng = random.Random(METHODS.index(method) + 10 * ahead)
    wanted = [request(rng) for _ in range(8)]
    kinds = {"max_tokens": 50, "ignore_eos": True, "logprobs": 1}
    wanted += [([9, 8, 7, 6 + i] * 6, SamplingParams(temperature=i, seed=i, **kinds)) for i in range(2)]
    expected = alone(wide, wanted)
    few_pages(monkeypatch, 7, 6)
    with stepped(wide, ahead, speculative=of_model(method, wide), max_batched_tokens=40) as engine:
        never_pauses(engine)
        requests = []
        for prompt, params in wanted:
            requests.append(engine.llm.submit(prompt, params))
            for _ in range(rng.randrange(2)):
                engine.step()
        engine.run()
        assert engine.pages() == 0
        assert [bits(made.result(0)) for made in requests] == expected
        usages = [made.result(0).usage for made in requests]
        assert sum(usage.drafted for usage in usages) > 0
        assert all(usage.accepted <= usage.drafted for usage in usages)
        assert engine.llm.stats()["preemptions"] > 0


@pytest.mark.parametrize("batched", [512, 7])
def test_a_draft_model_that_is_the_model_is_always_right(batched: int, small: Path) -> None:
    """Its pages follow the reply: after prompts in parts, replies that end, and drawn tokens."""
    wanted = [
        (PROMPT * (i + 1), SamplingParams(temperature=0.8 * (i % 2), max_tokens=9 + 5 * i, ignore_eos=True, seed=i))
        for i in range(4)
    ]
    with stepped(small, speculative={"draft": small, "k": 3}, max_batched_tokens=batched) as engine:
        drafter = never_pauses(engine).drafter
        assert isinstance(drafter, DraftModelDrafter)
        made = [engine.llm.submit(*one) for one in wanted]
        engine.run()
        usages = [one.result(0).usage for one in made]
        assert [bits(one.result(0)) for one in made] == alone(small, wanted)
        assert all(0 < usage.accepted == usage.drafted for usage in usages)
        assert "at most 3 guesses for a reply in a step, by a draft model: llama, 2 layers" in engine.llm.explain()
        engine.llm.submit(*wanted[0])
        engine.run()
        # Only the last reply has pages there still.
        assert len(drafter._shadows) == 1
        assert drafter._runner.cache.stats()["used"] <= 2


def test_a_draft_model_without_room_guesses_for_some(small: Path) -> None:
    with stepped(small, speculative={"draft": small, "k": 2}) as engine:
        drafter = never_pauses(engine).drafter
        assert isinstance(drafter, DraftModelDrafter)
        cache, held = drafter._runner.cache, []
        while cache.available > 2:
            held.append(cache.begin([1] * 16))
            assert cache.reserve(held[-1], 16)
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        wanted = [(PROMPT, params), (PROMPT[::-1], params), (PROMPT[1:], params)]
        made = [engine.llm.submit(*one) for one in wanted]
        engine.run()
        assert [bits(one.result(0)) for one in made] == alone(small, wanted)
        assert sum(one.result(0).usage.drafted for one in made) > 10


def test_all_layers_are_always_right(small: Path) -> None:
    with stepped(small, speculative={"early_exit": 1}) as engine:
        drafter = never_pauses(engine).drafter
        assert isinstance(drafter, EarlyExitDrafter)
        drafter.layers = 2
        params = [SamplingParams(temperature=0.9 * i, max_tokens=20, ignore_eos=True, seed=i) for i in range(2)]
        made = [engine.llm.submit(PROMPT, one) for one in params]
        engine.run()
        for one in made:
            assert one.result(0).usage.drafted == one.result(0).usage.accepted > 10


def test_models_that_cannot_guess_are_refused(small: Path, wide: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"the draft model .* has 259 tokens, and the model 9: .* vocabulary"):
        LLM(small, speculative={"draft": wide})
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        LLM(small, speculative={"draft": "nowhere"})
    with pytest.raises(ValueError, match="early_exit of speculative= is 2, and the model has 2 layers: give fewer"):
        LLM(small, speculative={"early_exit": 2})
    other = tiny_model("llama", tmp_path / "other")
    values = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    known = values["model"]["vocab"]
    known["a"], known["b"] = known["b"], known["a"]
    (other / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"token \d+ is 'b' for the draft model .*, and 'a' for the model"):
        LLM(wide, speculative={"draft": other})


class Known(Drafter):
    """The reply itself, which `reply` has, with wrong tokens where `wrong` says so."""

    reply: Sequence[int] = ()
    wrong: Sequence[int] = ()
    most, adapts = 5, False

    def propose(self, sequence: Any, most: int) -> list[int]:
        at = len(sequence.reply)
        return [self.reply[i] + (i in self.wrong) for i in range(at, min(at + most, len(self.reply)))]


def with_known(path: Path, params: SamplingParams, reply: Sequence[int], wrong: Sequence[int] = ()) -> RequestOutput:
    made = type("Made", (Known,), {"reply": reply, "wrong": wrong})
    plugins._forget()
    plugins.register("decode", "known", made)
    outputs, _ = given(path, "known", [(PROMPT, params)])
    found: RequestOutput = outputs[0]
    return found


def test_guesses_are_counted_and_verified_one_by_one(small: Path, plugin: None) -> None:
    params = SamplingParams(temperature=0, max_tokens=13, ignore_eos=True, logprobs=0)
    with LLM(small) as llm:
        plain = llm.generate(PROMPT, params)
    # The prompt gives a token; then two steps with five guesses each that are right, and the last without.
    out = with_known(small, params, plain.token_ids)
    assert bits(out) == bits(plain)
    assert (out.usage.drafted, out.usage.accepted) == (10, 10)
    out = with_known(small, params, plain.token_ids, wrong=[3])
    assert bits(out) == bits(plain)
    # 1 2 | 3: wrong, 4..8 | 9..12: the last place has no guess behind it.
    assert (out.usage.drafted, out.usage.accepted) == (5 + 5 + 2, 2 + 5 + 2)


@pytest.mark.parametrize(
    "more",
    [{"stop_token_ids": "7"}, {"stop": "7"}, {"min_tokens": 9, "stop_token_ids": "7"}, {"bad_words": "78"},
     {"repetition_penalty": 1.5, "frequency_penalty": 0.5}, {"logit_bias": "7"}, {"allowed_token_ids": range(60, 99)},
     {"processors": "places"}, {"logprobs": 2}],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_what_ends_or_changes_a_reply_does_so_within_a_run_of_guesses(more: Any, wide: Path, plugin: None) -> None:
    """Every guess of the reply is right, so that ends lie inside of what one step gives."""
    free = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(wide) as llm:
        usual = llm.generate(PROMPT, free)
        assert llm.tokenizer is not None
        token = usual.token_ids[6]
        text = llm.tokenizer.decode([token])
        calls: list[int] = []

        def places(ids: list[int], scores: Any) -> Any:
            calls.append(len(ids))
            scores[len(ids) + 60] += 100
            return scores

        values = {"stop_token_ids": [token], "stop": text, "bad_words": [text], "logit_bias": {token: -100.0},
                  "processors": [places]}  # fmt: skip
        changed = {key: values.get(key, value) if isinstance(value, str) else value for key, value in more.items()}
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, **changed)
        plain = llm.generate(PROMPT, params)
    out = with_known(wide, params, [*plain.token_ids, 5, 5, 5])
    assert bits(out) == bits(plain)
    assert (out.text, out.finish_reason, out.stop_reason) == (plain.text, plain.finish_reason, plain.stop_reason)
    assert out.usage.accepted > 3
    if "processors" in more:
        assert set(calls) == set(range(len(PROMPT), len(PROMPT) + 12))


def test_drawn_tokens_keep_their_distribution(small: Path, plugin: None) -> None:
    """The third token of replies to one prompt, by the probabilities of all ways to it; guesses are right and wrong."""
    drawn = 400
    with LLM(small) as llm:
        best = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)).token_ids
    plugins.register("decode", "known", type("Made", (Known,), {"reply": best}))
    with stepped(small, speculative="known", max_num_seqs=500) as engine:
        never_pauses(engine)
        params = [SamplingParams(temperature=0.7, max_tokens=4, ignore_eos=True, seed=1000 + i) for i in range(drawn)]
        made = [engine.llm.submit(PROMPT, one) for one in params]
        engine.run()
        outs = [one.result(0) for one in made]

        def after(*tokens: int) -> Any:
            model = engine.llm.model
            hidden = model.step([*PROMPT, *tokens], model.new_cache(64))[-1:]
            scores = model.get_logits(hidden).to_numpy()[0].astype(np.float64) / 0.7
            return np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()

        first = after()
        second = sum(first[i] * after(i) for i in range(9))
        third = sum(first[i] * after(i)[j] * after(i, j) for i in range(9) for j in range(9))
    accepted_ones = sum(out.usage.accepted for out in outs)
    assert 50 < accepted_ones < sum(out.usage.drafted for out in outs) - 50
    for place, expected in enumerate((first, second, third)):
        counts = np.bincount([out.token_ids[place] for out in outs], minlength=9)
        likely = expected * drawn > 5
        kept = np.append(expected[likely], expected[~likely].sum()) * drawn
        found = np.append(counts[likely], counts[~likely].sum())
        chi = ((found - kept) ** 2 / np.maximum(kept, 1e-9)).sum()
        # Far beyond the 99.9 % point of as many degrees of freedom: 26.1 for 8.
        assert chi < 30, (place, chi, found, kept)


def test_a_reply_pauses_while_its_guesses_are_wrong(small: Path, plugin: None) -> None:
    plugins.register("decode", "wrong", type("Wrong", (Known,), {"propose": lambda self, sequence, most: [8] * most}))
    params = SamplingParams(temperature=0, max_tokens=55, ignore_eos=True, logit_bias={8: -100.0})
    with stepped(small, speculative="wrong") as engine:
        made = engine.llm.submit(PROMPT, params)
        paused = 0
        while engine.busy:
            engine.step()
            paused += engine.llm.stats()["speculation"]["paused_replies"]
        usage = made.result(0).usage
    # Three steps with five guesses each, a pause of 16 tokens, three steps, a pause of 32.
    assert (usage.drafted, usage.accepted) == (30, 0)
    assert paused >= 48


def test_all_pause_beside_too_many(small: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with stepped(small, speculative="ngram") as engine:
        assert engine.loop.speculation is not None
        most = engine.loop.speculation.replies
        made = [engine.llm.submit(PROMPT, params) for _ in range(most + 1)]
        for _ in range(5):
            engine.step()
        assert engine.llm.stats()["speculation"]["paused"] == f"{most + 1} replies are running, more than {most}"
        assert engine.llm.stats()["speculation"]["drafted"] == 0
        made[0].cancel()
        engine.run()
        assert engine.llm.stats()["speculation"]["paused"] == ""
        assert made[1].result(0).usage.accepted > 0


def test_steps_overlap_while_nothing_is_guessed(small: Path, plugin: None) -> None:
    """Where steps overlap, a reply for which there are no guesses does not hold them up."""
    plugins.register("decode", "none", type("None_", (Known,), {}))
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with stepped(small, ahead=True, speculative="none") as engine:
        speculation = engine.loop.speculation
        assert speculation is not None
        speculation.ahead = True
        made = engine.llm.submit(PROMPT, params)
        overlapped = []
        while engine.busy:
            engine.step()
            overlapped += [branch.pending for branch in engine.loop.scheduler.running]
        assert bits(made.result(0)) == alone(small, [(PROMPT, params)])[0]
    # Eight steps are tried, then 16 tokens go by, eight steps are tried.
    assert overlapped.count(2) == 0
    assert engine.loop.counts["steps"] == 30


def test_a_drafter_that_fails_pauses_for_good(small: Path, plugin: None) -> None:
    def fails(self: Any, sequence: Any, most: int) -> list[int]:
        raise KeyError("no table")

    plugins.register("decode", "fails", type("Fails", (Known,), {"propose": fails}))
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    with stepped(small, speculative="fails") as engine:
        made = engine.llm.submit(PROMPT, params)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine.run()
        assert bits(made.result(0)) == alone(small, [(PROMPT, params)])[0]
        assert engine.llm.stats()["speculation"]["paused"] == "fails failed: KeyError: 'no table'"
        assert sum("speculation pauses for good" in str(one.message) for one in caught) == 1


def test_guesses_that_are_no_tokens_are_left_out(small: Path, plugin: None) -> None:
    plugins.register("decode", "odd", type("Odd", (Known,), {"propose": lambda self, s, most: [0, 9, -1] * most}))
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    (out,), _ = given(small, "odd", [(PROMPT, params)])
    assert bits(out) == alone(small, [(PROMPT, params)])[0]
    assert 0 < out.usage.drafted < 9


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        (3, "speculative is 3, and must be one of: 'ngram', 'jacobi', 'lookahead'"),
        ("", "there is no speculative='': 'ngram'"),
        ("x", "there is no speculative='x': 'ngram'"),
        ({}, r"speculative has \[\], and must be one of"),
        ({"k": 4}, r"speculative has \[\'k\'\], and must be one of"),
        ({"draft": "a", "early_exit": 1}, r"speculative has \['draft', 'early_exit'\]"),
        ({"early_exit": 0}, "early_exit of speculative= is 0, and must be a number of layers, at least 1"),
        ({"early_exit": 1, "k": 0}, "k of speculative= is 0, and must be a whole number from 1 to 64"),
        ({"draft": ""}, "the draft model of speculative= is '', and must be a path or a name"),
    ],
)
def test_bad_values_are_refused(speculative: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_method(speculative)


def test_a_strategy_over_fixed_caches_is_no_drafter(small: Path, plugin: None) -> None:
    from pygpukit.llm import DecodeM1, DecodeStrategy

    plugins.register("decode", "old", DecodeM1)
    with pytest.raises(ValueError, match="'old' decodes over caches of a fixed size, and is no Drafter"):
        LLM(small, speculative="old")
    plugins.register("decode", "new", NgramDrafter)
    with pytest.raises(ValueError, match="there is no decode strategy 'new'"):
        DecodeStrategy.named("new")


@pytest.mark.parametrize("seed", range(4))
def test_ngrams_are_those_of_a_search(seed: int) -> None:
    """The index against a search of the whole text, as the text grows."""
    rng = random.Random(seed)
    text = [rng.randrange(4) for _ in range(60)]
    index = NgramIndex()
    for end in range(1, len(text)):
        index.extend([text[end - 1]])
        known = text[:end]
        expected: list[int] = []
        for length in (5, 4, 3, 2):
            found = [at for at in range(length, end) if known[at - length : at] == known[-length:] and end >= length]
            if found and not expected:
                more = [*known]
                for i in range(6):
                    more.append(more[found[-1] + i])
                expected = more[end:]
        assert index.following(6) == expected, known


def test_what_is_accepted() -> None:
    assert [accepted(guesses, [1, 2, 3, 4]) for guesses in ([], [2], [1, 2, 9], [1, 2, 3])] == [0, 0, 2, 3]


def test_pages_of_guesses_do_not_take_those_of_others(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses get pages that are free, and none else: nobody is preempted for them."""
    few_pages(monkeypatch, 4, 0)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = [PROMPT, PROMPT[::-1]]
    outs, stats = given(small, "ngram", [(prompt, params) for prompt in prompts], prefix_cache=False)
    assert [bits(out) for out in outs] == alone(small, [(prompt, params) for prompt in prompts])
    assert stats["preemptions"] == 0


def test_only_replies_that_need_one_token_get_guesses(small: Path) -> None:
    with stepped(small, speculative="ngram", max_batched_tokens=3) as engine:
        never_pauses(engine)
        made = engine.llm.submit(PROMPT, SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
        seen: list[tuple[int, int]] = []
        plan = engine.loop.scheduler.plan

        def planned(draining: bool) -> Any:
            rows = plan(draining)
            seen.extend((row.tokens, len(row.drafts)) for row in rows or ())
            return rows

        engine.loop.scheduler.plan = planned  # type: ignore[method-assign]
        engine.run()
    assert made.done
    assert seen[:3] == [(3, 0), (3, 0), (2, 0)]
    # A step has three tokens at most, guesses among them.
    assert max(tokens + drafts for tokens, drafts in seen) == 3
    assert any(drafts == 2 for _, drafts in seen)


def test_branches_are_asked_together(small: Path, plugin: None) -> None:
    """A drafter may guess for a batch at once."""
    asked: list[int] = []

    class Together(Drafter):
        def propose(self, sequence: Any, most: int) -> list[int]:
            raise AssertionError("it is asked for all")

        def propose_all(self, branches: Sequence[tuple[Branch, int]]) -> list[Sequence[int]]:
            asked.append(len(branches))
            return [[5] * most for _, most in branches]

    plugins.register("decode", "together", Together)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    given(small, "together", [(PROMPT, params)] * 3)
    assert max(asked) == 3


@pytest.mark.parametrize("method", ["ngram", {"early_exit": 1}], ids=name)
def test_replies_of_a_form_get_guesses_that_fit(method: Any, wide: Path) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "object", "properties": {"name": {"enum": ["aa", "bb"]}, "same": {"enum": ["aa", "bb"]}},
            "required": ["name", "same"], "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False}}  # fmt: skip
    wanted = [
        ([*PROMPT, i], SamplingParams(temperature=i, max_tokens=60, schema=form, seed=i, logprobs=1)) for i in range(2)
    ]
    expected = alone(wide, wanted)
    outs, _ = given(wide, method, wanted)
    assert [bits(out) for out in outs] == expected
    for out in outs:
        assert set(json.loads(out.text)) == {"name", "same"}
        # What must come is guessed.
        assert out.usage.accepted > 10


def test_thoughts_of_a_bounded_length_get_no_guesses(small: Path) -> None:
    from pygpukit.llm.sequence import Sequence as Reply
    from pygpukit.llm.templates import ThinkingParser

    def takes(**more: Any) -> bool:
        return Reply(PROMPT, SamplingParams(**more), 9, set(), None, 9, ThinkingParser()).takes_drafts

    assert takes()
    assert not takes(max_thinking_tokens=3)


@pytest.mark.parametrize(
    "device", [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]
)
def test_kernels_give_guesses_and_single_tokens_the_same_bits(device: str, tmp_path: Path) -> None:
    """Steps with guesses are launched, those of one token replayed from a graph."""
    path = tiny_model("llama", tmp_path, seed=3, vocab_size=9)
    kinds: dict[str, Any] = {"max_tokens": 14, "ignore_eos": True, "logprobs": 1}
    every = [SamplingParams(temperature=0.8 * i, seed=2, **kinds) for i in range(2)]
    found = []
    with gp.device(device):
        for method in (None, "ngram", {"early_exit": 1}, {"draft": path, "k": 2}):
            options: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 4, "speculative": method}
            with LLM(path, **options) as llm:
                llm._loop.ahead = True
                found.append([llm.generate(PROMPT, one) for one in every])
    assert all([bits(out) for out in outs] == [bits(out) for out in found[0]] for outs in found)
    assert all(sum(out.usage.accepted for out in outs) > 0 for outs in found[1:])
