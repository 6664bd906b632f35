"""The small real model, where it is installed: its replies are those of transformers, its text is sense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pygpukit.llm import LLM, SamplingParams, fetch

GOLDEN = json.loads((Path(__file__).parent / "smollm2_greedy.json").read_text(encoding="utf-8"))
TOKENS = json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.skipif(fetch.installed("smollm2") is None, reason="pygpukit model fetch smollm2")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2") as made:
        yield made


@pytest.mark.slow
def test_greedy_tokens_are_those_of_transformers(llm: LLM) -> None:
    pytest.importorskip("tokenizers")
    prompts = GOLDEN["prompts"]
    assert llm.tokenizer is not None
    for prompt in prompts:
        special = not prompt["text"].startswith("<|im_start|>")
        assert llm.tokenizer.encode(prompt["text"], add_special_tokens=special) == prompt["prompt"]
    # Together they take half of the time; a reply has the bits of its request alone (test_engine_batches.py).
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    for prompt, out in zip(prompts, llm.generate([prompt["prompt"] for prompt in prompts], params), strict=True):
        assert out.token_ids == prompt["greedy"], ascii(prompt["text"][:20])


def test_perplexity_is_that_of_transformers(llm: LLM) -> None:
    pytest.importorskip("tokenizers")
    text = (Path(__file__).parent / "perplexity.txt").read_text(encoding="utf-8")
    assert llm.tokenizer is not None
    assert llm.tokenizer.encode(text) == GOLDEN["perplexity"]["ids"]
    assert llm.perplexity(text) == pytest.approx(GOLDEN["perplexity"]["value"], rel=1e-3)


def test_tokens_are_those_of_llama_cpp(llm: LLM) -> None:
    pytest.importorskip("tokenizers")
    assert llm.tokenizer is not None
    for entry in TOKENS["texts"]:
        assert llm.tokenizer.encode(entry["text"]) == entry["ids"], ascii(entry["text"])


def test_it_answers(llm: LLM) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    out = llm.chat([{"role": "user", "content": "What is the capital of France?"}], SamplingParams(temperature=0))
    assert out.text == "The capital of France is Paris."
    assert out.finish_reason == "stop"
