"""Requests beside others: whatever comes, goes and is preempted, each has the tokens and the bits it has alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pygpukit.errors import OutOfMemoryError
from pygpukit.llm import LLM, RequestOutput, SamplingParams, scheduler
from pygpukit.llm.scheduler import Branch
from pygpukit.llm.testing import tiny_model

from .engines import Stepped, few_pages, stepped

Found = list[tuple[list[int], Any, Any]]

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 7},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"head_dim": 12, "tie_word_embeddings": True},
    "phi3": {
        "partial_rotary_factor": 0.8, "max_position_embeddings": 256, "original_max_position_embeddings": 60,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0, 1.5, 2.0, 2.5],
                            "long_factor": [1.0, 3.0, 6.0, 9.0]},
    },
    "gemma2": {"query_pre_attn_scalar": 13, "sliding_window": 6, "attn_logit_softcapping": 50.0},
    "gemma3_text": {"query_pre_attn_scalar": 13, "sliding_window": 6, "num_hidden_layers": 7},
    "gpt2": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def model(arch: str) -> Path:
        if arch not in made:
            made[arch] = tiny_model(arch, tmp_path_factory.mktemp(arch) / "tiny", **ARCHITECTURES[arch])
        return made[arch]

    return model


def bits(output: RequestOutput) -> Found:
    """Tokens and all probabilities of the replies, to be compared exactly."""
    return [(one.token_ids, one.logprobs, one.prompt_logprobs) for one in output.outputs]


# Replies of a given form, where the packages for it are installed.
FORMS: list[dict[str, Any]] = [
    {"temperature": 1.0, "logprobs": 1, "regex": "(ab|c)[0-9]{2,30} and so on"},
    {"temperature": 0, "logprobs": 1, "schema": {"type": "array", "items": {"enum": ["yes", "no"]}}},
    {"temperature": 0.8, "n": 2, "logprobs": 0, "regex": "[a-z]+"},
]


def request(rng: random.Random, forms: Sequence[dict[str, Any]] = ()) -> tuple[list[int], SamplingParams]:
    """A prompt, often with the beginning of others, and parameters of any kind."""
    common = [(7 * i) % 250 + 5 for i in range(64)]
    prompt = common[: rng.choice([0, 16, 20, 35, 64])] + [rng.randrange(5, 255) for _ in range(rng.randrange(1, 14))]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 3},
        {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "logprobs": 0},
        {"temperature": 1.0, "min_p": 0.02, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 1},
        {"temperature": 1.2, "n": 3, "logprobs": 2},
        {"temperature": 0, "prompt_logprobs": 1, "logprobs": 1},
        {"temperature": 0, "logit_bias": {9: 3.0}, "min_tokens": 4, "logprobs": 1},
        {"temperature": 0.7, "allowed_token_ids": range(20, 90), "stop_token_ids": [33], "logprobs": 1},
    ]
    params = SamplingParams(**rng.choice([*kinds, *forms]), max_tokens=rng.randrange(4, 14), seed=rng.randrange(99))
    return prompt, params


def alone(
    path: Path, wanted: list[tuple[list[int], SamplingParams]], level: str = "batch_invariant", kv_dtype: str = "auto"
) -> list[Found]:
    """Each by itself, in one piece, with nothing in the cache."""
    with LLM(path, prefix_cache=False, deterministic=level, kv_dtype=kv_dtype) as llm:
        return [bits(llm.generate(prompt, params)) for prompt, params in wanted]


def short_of_memory(engine: Stepped, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some steps fail for want of memory, and some moves to the host and back."""

    def sometimes(function: Callable[..., Any], share: float) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if rng.random() < share:
                raise OutOfMemoryError("a test has taken it")
            return function(*arguments)

        return call

    loop = engine.loop
    monkeypatch.setattr(scheduler, "_PATIENCE", 2)

    def run(rows: Any, before: Any) -> Any:
        # A step of one token would end its request.
        tokens = sum(row.tokens + len(row.drafts) for row in rows)
        return sometimes(step, 0.05 if tokens > 1 else 0.0)(rows, before)

    step, memory = loop.runner.run, loop.scheduler.memory
    monkeypatch.setattr(loop.runner, "run", run)
    monkeypatch.setattr(memory, "to_host", sometimes(memory.to_host, 0.2))
    monkeypatch.setattr(memory, "from_host", sometimes(memory.from_host, 0.2))


METHODS: list[Any] = [None, "ngram", "jacobi", "lookahead", {"early_exit": 1, "k": 3}, {"draft": None, "k": 3}]


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_gives_the_bits_of_a_request_alone(
    seed: int, models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd seeds have replies of given forms, keys and values as codes, guesses, and steps without memory as well."""
    rng = random.Random(seed)
    path = models(list(ARCHITECTURES)[(seed + seed // 8) % len(ARCHITECTURES)])
    more = bool(seed % 2) and all(find_spec(name) for name in ("tokenizers", "llguidance"))
    wanted = [request(rng, FORMS * 2 if more else ()) for _ in range(12)]
    if more:
        # Long enough for guesses and preemptions.
        repeats = {"max_tokens": 50, "ignore_eos": True, "logprobs": 1}
        wanted[3:3] = [([9, 8, 7, 6 + i] * 6, SamplingParams(temperature=i, seed=i, **repeats)) for i in range(2)]
    kv_dtype = rng.choice(["auto", "fp8", "int8"]) if more else "auto"
    method = METHODS[seed // 2 % len(METHODS)] if more else None
    if isinstance(method, dict) and "draft" in method:
        method = {**method, "draft": str(path)}
    expected = alone(path, wanted, kv_dtype=kv_dtype)
    few_pages(monkeypatch, rng.choice([7, 12, 30]), rng.choice([0, 5, 30]))
    options = {"max_batched_tokens": rng.choice([3, 17, 50]), "max_num_seqs": rng.choice([3, 16]),
               "prefix_cache": rng.random() < 0.7, "offload": rng.random() < 0.8}  # fmt: skip
    options |= {"kv_dtype": kv_dtype, "speculative": method}
    with stepped(path, ahead=rng.random() < 0.5, **options) as engine:
        llm, requests, cancelled = engine.llm, [], set()
        if more:
            short_of_memory(engine, rng, monkeypatch)
        if llm._loop.speculation is not None:
            llm._loop.speculation.least_share, llm._loop.speculation.replies = -1.0, 1000
        llm.tenant("high", "guaranteed")
        llm.tenant("low", "besteffort")
        for index, (prompt, params) in enumerate(wanted):
            tenant = rng.choice([None, None, "high", "low"])
            requests.append(llm.submit(prompt, params, tenant=tenant, priority=rng.randrange(2)))
            for _ in range(rng.randrange(5)):
                engine.step()
            if rng.random() < 0.15:
                cancelled.add(index)
                requests[index].cancel()
        engine.run()
        assert engine.pages() == 0
        assert engine.loop.scheduler.running == engine.loop.scheduler.waiting == []
        for index, made in enumerate(requests):
            found = bits(made.result(0))
            if index not in cancelled or made.state == "finished":
                assert found == expected[index], (index, wanted[index])
            else:
                for one, whole in zip(found, expected[index], strict=True):
                    assert one[0] == whole[0][: len(one[0])]
        if method is not None:
            assert sum(made.result(0).usage.drafted for made in requests) > 0
        print(f"seed {seed}: {path.parent.name} {kv_dtype} {method}", engine.llm.stats())


@pytest.mark.parametrize("seed", range(3))
def test_guesses_change_no_bit(seed: int, models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that a drafter guesses are computed in one step, and the reply is the one without, drawn ones too."""
    rng = random.Random(seed)
    path = models(["llama", "gemma2", "gpt2"][seed])
    wanted = [request(rng) for _ in range(8)]
    expected = alone(path, wanted)
    replies = {tuple(prompt): found[0][0] for (prompt, _), found in zip(wanted, expected, strict=True)}

    def drafter(branch: Branch, most: int) -> list[int]:
        """The reply itself, with a wrong token now and then."""
        sequence = branch.sequence
        known = replies[tuple(sequence.prompt)][len(sequence.reply) :][: rng.randrange(5)]
        return [token if rng.random() < 0.8 else 7 for token in known]

    few_pages(monkeypatch, 12, 12)
    with stepped(path, prefix_cache=rng.random() < 0.5) as engine:
        engine.loop.scheduler.drafter = drafter
        requests = [engine.llm.submit(prompt, params) for prompt, params in wanted]
        engine.run()
        assert engine.pages() == 0
        assert [bits(made.result(0)) for made in requests] == expected
        usages = [made.result(0).usage for made in requests]
        assert 0 < sum(usage.accepted for usage in usages) < sum(usage.drafted for usage in usages)
        assert engine.llm.stats()["steps"] < sum(usage.completion for usage in usages)


def test_preemptions_swaps_forks_and_hits_do_happen(
    models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the property test means to try is tried: a comparison of nothing proves nothing."""
    path = models("llama")
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=1)
    prompts = [[5 + i] * 20 for i in range(4)]
    expected = alone(path, [(prompt, params) for prompt in prompts])
    for host_pages, counted in ((20, "swapped_in"), (0, "recomputed")):
        few_pages(monkeypatch, 8, host_pages)
        with stepped(path) as engine:
            made = [engine.llm.submit(prompt, params) for prompt in prompts]
            engine.run()
            stats = engine.llm.stats()
            assert stats["preemptions"] > 0
            assert stats[counted] > 0
            assert [bits(one.result(0)) for one in made] == expected
            again = engine.llm.submit(prompts[-1], params)
            engine.run()
            assert again.result(0).usage.cached == 16
            assert bits(again.result(0)) == expected[-1]


def test_the_comparison_can_fail(models: Callable[[str], Path]) -> None:
    """Without batch invariance NumPy's products follow the number of rows, and the same comparison sees it."""
    path = models("llama")
    rng = np.random.default_rng(3)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1, prompt_logprobs=0)
    wanted = [(rng.integers(5, 255, 30 + i).tolist(), params) for i in range(8)]
    differ = {}
    for level in ("batch_invariant", "run_to_run"):
        with LLM(path, prefix_cache=False, deterministic=level) as llm:
            together = llm.generate([prompt for prompt, _ in wanted], params)
        differ[level] = [bits(one) for one in together] != alone(path, wanted, level)
    assert differ == {"batch_invariant": False, "run_to_run": True}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_greedy_is_the_best_token_of_the_whole_text_each_time(arch: str, models: Callable[[str], Path]) -> None:
    """The model over a cache of its own says so too."""
    prompt = [(11 * i) % 250 + 5 for i in range(23)]
    with LLM(models(arch), max_batched_tokens=9) as llm:
        out = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=0))
        ids = [*prompt, *out.token_ids]
        # A limit of this kind chooses the frequencies of longrope.
        cache = llm.model.new_cache(len(prompt) + 5)
        scores = llm.model.get_logits(llm.model.step(ids, cache)).to_numpy()[len(prompt) - 1 : -1]
    assert out.token_ids == scores.argmax(axis=1).tolist()
    assert out.logprobs is not None
    own = [row[token] for token, row in zip(out.token_ids, out.logprobs, strict=True)]
    wide = scores.astype(np.float64)
    np.testing.assert_allclose(own, wide.max(axis=1) - np.log(np.exp(wide).sum(axis=1)), atol=2e-4)
