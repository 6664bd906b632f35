"""What goes wrong in one request stays there: scores that are NaN, functions that never return, too little memory."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.errors import OutOfMemoryError
from pygpukit.llm import (
    LLM,
    CausalTransformerModel,
    SamplingParams,
    budget,
    callbacks,
    load_model_from_safetensors,
    load_safetensors,
    sample_token,
)
from pygpukit.llm.sampling import Line, draw
from pygpukit.llm.step_graphs import StepGraphs
from pygpukit.llm.testing import tiny_model, write_safetensors

from .engines import Stepped, few_pages, stepped

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
PROMPT = [5, 60, 7, 200, 33]
# Its embedding is NaN in the models of this file.
POISON = 77


def poisoned(path: Path, **config: Any) -> Path:
    """A tiny model whose scores are NaN for every text with one token."""
    made = tiny_model("llama", path, **config)
    with load_safetensors(made / "model.safetensors") as file:
        tensors = {name: np.array(file.tensor_view(name)) for name in file}
    tensors["model.embed_tokens.weight"][POISON] = np.nan
    write_safetensors(made / "model.safetensors", tensors)
    return made


@pytest.fixture(scope="module")
def nan_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return poisoned(tmp_path_factory.mktemp("nan") / "tiny")


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy with logprobs": {"temperature": 0, "logprobs": 2},
    "greedy with a bias": {"temperature": 0, "logit_bias": {9: 1.0}},
    "drawn": {"temperature": 1.0, "seed": 3},
}


def test_scores_that_are_nan_fail_their_request_alone(nan_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of failed requests are used again by others, which find nothing of them."""
    with LLM(nan_model) as llm:
        alone = llm.generate(PROMPT, GREEDY).token_ids
    few_pages(monkeypatch, 6, 0)
    with stepped(nan_model, prefix_cache=False) as engine:
        for kind in KINDS.values():
            params = SamplingParams(max_tokens=8, ignore_eos=True, **kind)
            bad, good = engine.llm.submit([5, POISON, 9] * 8, params), engine.llm.submit(PROMPT, GREEDY)
            engine.run()
            assert good.result(0).token_ids == alone
            with pytest.raises(ValueError, match="no token may come: "):
                bad.result(0)
            assert "are NaN or -inf for every token" in bad.reason or kind.get("logit_bias")
            assert (bad.output().token_ids, engine.pages()) == ([], 0)


@pytest.mark.parametrize("more", [{"speculative": "ngram"}, {"speculative": {"early_exit": 1}}, {"kv_dtype": "int8"}])
def test_scores_that_are_nan_beside_guesses_and_codes(nan_model: Path, more: dict[str, Any]) -> None:
    with LLM(nan_model, **more) as llm:
        alone = llm.generate(PROMPT, GREEDY).token_ids
        bad, good = llm.generate([[5, POISON, 9, 5], PROMPT], GREEDY)
        assert (bad.finish_reason, good.token_ids) == ("error", alone)
        assert "the model's scores are NaN or -inf" in str(bad.stop_reason)
        assert llm.stats()["pages_used"] == 0


@pytest.mark.parametrize(
    "device",
    [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)],
)
def test_scores_that_are_nan_by_the_kernels(device: str, tmp_path: Path) -> None:
    path = poisoned(tmp_path / "tiny", num_hidden_layers=1, head_dim=16)
    short = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with gp.device(device), LLM(path, dtype="float32", max_model_len=32, max_num_seqs=2, prefix_cache=False) as llm:
        llm._loop.ahead = True
        alone = llm.generate(PROMPT, short).token_ids
        bad, good = llm.generate([[5, POISON, 9], PROMPT], short)
        assert (bad.finish_reason, good.token_ids) == ("error", alone)
        assert llm.generate(PROMPT, short).token_ids == alone


@pytest.mark.parametrize("kind", [{"temperature": 0}, {"temperature": 0.5, "seed": 1}])
def test_a_choice_from_scores_that_are_nan(kind: dict[str, Any]) -> None:
    nan, inf = np.nan, np.inf

    def drawn(rows: Sequence[Sequence[float]]) -> list[int]:
        scores = gp.asarray(rows, "float32")
        return [int(token) for token in draw(scores, [Line(SamplingParams(**kind))] * len(rows)).tolist()]

    assert drawn([[nan] * 3, [-inf] * 3, [nan, -inf, nan], [nan, 1.0, -inf], [0.0, inf, 0.0]]) == [-1, -1, -1, 1, 1]
    with pytest.raises(ValueError, match="the model's scores are NaN or -inf for every token"):
        sample_token(np.full(4, nan, np.float32), temperature=kind["temperature"])


def test_the_published_interface_says_so_too(nan_model: Path) -> None:
    model = load_model_from_safetensors(nan_model)
    with pytest.raises(ValueError, match="the model's scores are NaN"):
        model.generate([5, POISON], 4, temperature=0)
    model.init_jacobi_decode(2, max_seq_len=16)
    with pytest.raises(ValueError, match="the model's scores are NaN"):
        model.jacobi_decode_step([POISON], 0)


class Stuck:
    """A function that does not return before it is let go."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def processor(self, tokens: list[int], scores: Any) -> Any:
        self.callback()
        return scores

    def callback(self) -> None:
        if threading.current_thread() is threading.main_thread():
            # on_change calls it at once.
            return
        self.entered.set()
        self.released.wait(60)


@pytest.mark.parametrize("kind", ["processor", "callback", "drafter"])
@pytest.mark.parametrize("policy", [None, "burstable"])
def test_closing_does_not_wait_for_a_function_that_never_returns(
    gguf_file: Path, kind: str, policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "CALLBACK_SECONDS", 0.15)
    stuck, before = Stuck(), gp.memory.stats()["used"]
    llm = LLM(gguf_file, policy=policy, speculative="ngram" if kind == "drafter" else None)
    if kind == "drafter":
        assert llm._loop.speculation is not None
        llm._loop.speculation.drafter.propose_all = lambda asked: stuck.processor([], [[] for _ in asked])
    params = dataclasses.replace(LONG, processors=[stuck.processor] if kind == "processor" else [])
    request, other = llm.submit(PROMPT, params), llm.submit(PROMPT, LONG)
    if kind == "callback":
        request.on_change(stuck.callback)
    assert stuck.entered.wait(60)
    with pytest.raises(TimeoutError, match=rf"its thread is in the .*{kind}.* for 0\.\d s\. Memory"):
        llm.close()
    with pytest.raises(TimeoutError, match=r"a step|test_faults\.py"):
        llm.close(timeout=0.01)
    for one in (request, other):
        with pytest.raises(TimeoutError, match=kind):
            one.result(10)
        assert one.output().finish_reason == "error"
    with pytest.raises(ValueError, match="the model is closed"):
        llm.submit(PROMPT)
    stuck.released.set()
    llm.close(timeout=60)
    gc.collect()
    assert (llm.stats()["running"], llm.stats()["pages_used"], gp.memory.stats()["used"]) == (0, 0, before)


def test_coroutines_end_with_an_engine_that_cannot(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "CALLBACK_SECONDS", 0.1)
    stuck = Stuck()

    async def main() -> None:
        llm = LLM(gguf_file)
        params = SamplingParams(max_tokens=4, processors=[stuck.processor])
        waiting = asyncio.create_task(llm.agenerate(PROMPT, params))
        await asyncio.to_thread(stuck.entered.wait, 60)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(llm.close)
        with pytest.raises(TimeoutError, match="processor"):
            await waiting
        stuck.released.set()
        llm.close(60)

    asyncio.run(main())


def test_a_long_step_is_waited_for(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no function of a user gets its time."""
    monkeypatch.setattr(callbacks, "CALLBACK_SECONDS", 0.0)
    llm, slow = LLM(gguf_file), Stuck()
    run = llm._loop.runner.run

    def step(*arguments: Any) -> Any:
        slow.callback()
        return run(*arguments)

    monkeypatch.setattr(llm._loop.runner, "run", step)
    llm.submit(PROMPT, GREEDY)
    assert slow.entered.wait(60)
    threading.Timer(0.3, slow.released.set).start()
    with pytest.raises(TimeoutError, match="its thread is in a step for 0"):
        llm.close(timeout=0.05)
    llm.close()


EXIT = """
import sys, threading
from pygpukit.llm import LLM, SamplingParams, callbacks
callbacks.CALLBACK_SECONDS = 0.1
entered = threading.Event()
def forever(tokens, scores):
    entered.set()
    threading.Event().wait()
llm = LLM(sys.argv[1], policy=sys.argv[2] or None)
request = llm.submit([5, 6], SamplingParams(processors=[forever]))
entered.wait()
print("the end")
"""


@pytest.mark.parametrize("policy", ["", "burstable"])
def test_the_interpreter_ends_beside_a_function_that_never_returns(gguf_file: Path, policy: str) -> None:
    command = [sys.executable, "-W", "always", "-c", EXIT, str(gguf_file), policy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
    assert "its thread is in the processor forever (<string>:6) for" in done.stderr


def test_a_function_that_raises_is_not_called_again(gguf_file: Path) -> None:
    calls = []

    def breaks() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) > 1:
            raise SystemExit(3)

    with stepped(gguf_file) as engine:
        request, other = engine.llm.submit(PROMPT, GREEDY), engine.llm.submit(PROMPT, GREEDY)
        request.on_change(breaks)
        with pytest.warns(RuntimeWarning, match=r"on_change raised SystemExit\(3\), and is not called again"):
            engine.run()
        assert len(calls) == 2
        assert len(request.result(0).token_ids) == len(other.result(0).token_ids) == 8


class Short:
    """Lets steps fail for want of memory: those with more tokens than there is room for, and all with one reply."""

    def __init__(self, engine: Stepped, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room, self.tried, self.never = room, list[int](), set[Any]()
        self._run = engine.loop.runner.run
        monkeypatch.setattr(engine.loop.runner, "run", self.run)

    def run(self, rows: Any, before: Any) -> Any:
        tokens = sum(row.tokens + len(row.drafts) for row in rows)
        self.tried.append(tokens)
        if tokens > self.room or self.never & {row.branch.request for row in rows}:
            raise OutOfMemoryError("no room")
        return self._run(rows, before)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("speculative", [None, "ngram"])
def test_a_step_without_memory_is_tried_with_fewer_tokens(
    gguf_file: Path, ahead: bool, speculative: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=1)
    prompts = [[5 + i, 60, 5 + i, 60] * 10 for i in range(8)]

    def bits(made: Any) -> Any:
        return made.result(0).token_ids, made.result(0).logprobs

    with LLM(gguf_file, prefix_cache=False) as llm:
        want = [(out.token_ids, out.logprobs) for out in llm.generate(prompts, params)]
    few_pages(monkeypatch, 40, 10)
    with stepped(gguf_file, ahead, speculative=speculative) as engine:
        short = Short(engine, monkeypatch, room=5)
        requests = [engine.llm.submit(prompt, params) for prompt in prompts]
        engine.run()
        assert [bits(request) for request in requests] == want
        assert 0 < engine.llm.stats()["out_of_memory"] <= sum(tokens > 5 for tokens in short.tried)
        # Now and then larger steps are tried, and they grow when there is memory.
        assert sum(tokens > 5 for tokens in short.tried) < len(short.tried) / 8
        short.room, before = 1000, len(short.tried)
        again = [engine.llm.submit(prompt, params) for prompt in prompts * 4]
        engine.run()
        assert [bits(request) for request in again] == want * 4
        assert max(short.tried[before:]) > 15
        assert (engine.pages(), engine.loop.scheduler.running, engine.loop.scheduler.waiting) == (0, [], [])


@pytest.mark.parametrize("ahead", [False, True])
def test_a_reply_that_has_no_memory_alone_fails_alone(
    gguf_file: Path, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stepped(gguf_file, ahead) as engine:
        short = Short(engine, monkeypatch, room=1000)
        requests = [engine.llm.submit([5 + i] * 20, GREEDY) for i in range(9)]
        for _ in range(3):
            engine.step()
        short.never = {requests[2], requests[8]}
        engine.run()
        for request in requests:
            if request in short.never:
                with pytest.raises(OutOfMemoryError, match="no room"):
                    request.result(0)
                assert request.output().finish_reason == "error"
            else:
                assert len(request.result(0).token_ids) == 8
        assert engine.pages() == 0


def test_memory_that_really_runs_out(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt whose step does not fit the engine's quota is read in pieces that do."""
    prompt = [(7 * i) % 250 + 5 for i in range(400)]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1)
    with LLM(gguf_file) as llm:
        want = llm.generate(prompt, params)
        plan = dataclasses.replace(llm._budget, pages=32, host_pages=0)
    monkeypatch.setattr(budget, "plan_pages", lambda *args: plan)
    with LLM(gguf_file, memory="6MiB") as llm:
        kept = gp.zeros(1)
        with llm._loop._pool or nullcontext():
            # All but a part of what the step needs.
            while (there := gp.memory.stats())["quota"] - there["used"] > 600_000:
                kept = (kept, gp.zeros(200_000, "uint8"))
        found, other = llm.generate([prompt, PROMPT], params)
        assert (found.token_ids, found.logprobs) == (want.token_ids, want.logprobs)
        assert len(other.token_ids) == 4
        assert llm.stats()["out_of_memory"] > 0
        assert llm.stats()["pages_used"] == 0


def test_a_host_without_memory_computes_again(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [[5 + i] * 20 for i in range(4)]
    with LLM(gguf_file) as llm:
        want = [out.token_ids for out in llm.generate(prompts, params)]
    for name in ("to_host", "from_host"):
        few_pages(monkeypatch, 8, 20)
        with stepped(gguf_file) as engine:

            def fails(moves: Any) -> None:
                raise OutOfMemoryError("no memory on the host")

            monkeypatch.setattr(engine.loop.scheduler.memory, name, fails)
            requests = [engine.llm.submit(prompt, params) for prompt in prompts]
            engine.run()
            assert [request.result(0).token_ids for request in requests] == want
            assert engine.llm.stats()["recomputed"] > 0
            assert engine.pages() == 0


def test_no_memory_for_longer_positions_fails_one_request(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stepped(gguf_file) as engine:
        runner = engine.loop.runner
        good = engine.llm.submit(PROMPT, GREEDY)
        engine.step()
        table = runner._table
        monkeypatch.setattr(runner, "_table", lambda rope: (_ for _ in ()).throw(OutOfMemoryError("no room")))
        bad = engine.llm.submit(PROMPT, LONG)
        engine.run()
        assert len(good.result(0).token_ids) == 8
        with pytest.raises(OutOfMemoryError, match="no room"):
            bad.result(0)
        monkeypatch.setattr(runner, "_table", table)
        again = engine.llm.submit(PROMPT, LONG)
        engine.run()
        assert len(again.result(0).token_ids) == 400
        assert engine.pages() == 0


def test_a_graph_without_memory_is_captured_later() -> None:
    short = [False, True, False, False, False]
    # Eager, a capture that fails, eager twice, a capture, and its replay.
    calls = []

    def forward(words: gp.GPUArray, replies: int, pages: int) -> gp.GPUArray:
        calls.append(replies)
        if short.pop(0):
            raise OutOfMemoryError("no room for a graph")
        return words + 1

    graphs = StepGraphs(forward)
    words = np.arange(4, dtype=np.int32)
    for made in (0, 0, 0, 1, 1):
        assert graphs.run(words, None, 4, 1).tolist() == [1, 2, 3, 4]
        assert len(graphs) == made
    assert (len(calls), graphs.refused) == (5, "")


@pytest.mark.parametrize("kind", ["draft", "early_exit"])
def test_guesses_without_memory_pause(gguf_file: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=1)
    with LLM(gguf_file) as llm:
        want = llm.generate(PROMPT, params)
    method: dict[str, Any] = {"draft": gguf_file, "k": 3} if kind == "draft" else {"early_exit": 1, "k": 3}
    with stepped(gguf_file, speculative=method) as engine:
        assert engine.loop.speculation is not None
        runner: Any = engine.loop.speculation.drafter._runner  # type: ignore[attr-defined]
        guess, calls, reasons = runner.guess, [], set()

        def short(*arguments: Any) -> Any:
            calls.append(len(calls))
            if len(calls) in (1, 4):
                raise OutOfMemoryError("no room")
            return guess(*arguments)

        monkeypatch.setattr(runner, "guess", short)
        request = engine.llm.submit(PROMPT, params)
        while not request.done:
            engine.step()
            reasons.add(engine.llm.stats()["speculation"]["paused"])
        found = request.result(0)
        assert (found.token_ids, found.logprobs) == (want.token_ids, want.logprobs)
        assert reasons == {"", "there was no memory for guesses"}
        assert found.usage.drafted > 0
        assert engine.pages() == 0


FORMS: list[dict[str, Any]] = [{"grammar": 'start: "a" start'}, {"regex": "(a{1000}){1000}"}]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_becomes_too_complex_fails_alone(gguf_file: Path, form: dict[str, Any]) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("llguidance")
    with stepped(gguf_file) as engine:
        good = engine.llm.submit(PROMPT, LONG)
        engine.step()
        bad = engine.llm.submit(PROMPT, SamplingParams(max_tokens=20, seed=1, **form))
        engine.run()
        assert len(good.result(0).token_ids) == 400
        with pytest.raises(ValueError, match=r"the form of the reply became too complex to follow: [^<]*$"):
            bad.result(0)
        assert engine.pages() == 0


def test_parsers_and_tokenizers_that_break_fail_one_request(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the libraries raise, and wherever."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("llguidance")
    from pygpukit.llm.structured import Constraint

    class Panic(BaseException):
        """As PyO3 raises when Rust code panics."""

    def breaks(*arguments: Any) -> Any:
        raise Panic("a bug")

    for name in ("mask", "masks", "forced", "accept"):
        with stepped(gguf_file, speculative="ngram") as engine:
            good = engine.llm.submit(PROMPT, GREEDY)
            bad = engine.llm.submit([7, 8] * 6, SamplingParams(max_tokens=30, temperature=0, regex="(ab){20}c[ab]*"))
            with monkeypatch.context() as patched:
                patched.setattr(Constraint, name, breaks)
                engine.run()
            assert len(good.result(0).token_ids) == 8, name
            assert (bad.state, "a bug" in bad.reason, engine.pages()) == ("failed", True, 0), name
    with stepped(gguf_file) as engine:
        good, bad = (engine.llm.submit(PROMPT, GREEDY) for _ in range(2))
        engine.step()
        branch = next(branch for branch in engine.loop.scheduler.running if branch.request is bad)
        monkeypatch.setattr(branch.sequence._detokenizer, "add", breaks)
        engine.run()
        assert len(good.result(0).token_ids) == 8
        assert (bad.state, "a bug" in bad.reason, engine.pages()) == ("failed", True, 0)


def test_large_values_are_those_of_their_limit(gguf_file: Path) -> None:
    with LLM(gguf_file) as llm:
        one, other = (llm.generate(PROMPT, SamplingParams(top_k=k, seed=1, max_tokens=6)) for k in (0, 10**30))
        assert one.token_ids == other.token_ids


def test_errors_keep_no_arrays_and_say_where_they_are_from(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def divides(tokens: list[int], scores: Any) -> Any:
        return scores / (1 // (len(tokens) - len(PROMPT) - 1))

    gc.collect()
    before = gp.memory.stats()["used"]
    llm = LLM(gguf_file)
    for _ in range(2):
        bad = llm.submit(PROMPT, dataclasses.replace(GREEDY, processors=[divides]))
        assert bad.wait(60)
    monkeypatch.setattr(CausalTransformerModel, "get_logits", lambda model, hidden, **more: hidden.nothing)
    broken = llm.submit(PROMPT, GREEDY)
    assert broken.wait(60)
    llm.close()
    gc.collect()
    assert gp.memory.stats()["used"] == before
    for request, error, line in ((bad, ZeroDivisionError, "in divides\n"), (broken, AttributeError, "hidden.nothing")):
        with pytest.raises(error) as found:
            request.result(0)
        (note,) = found.value.__notes__
        assert note.startswith("In the engine's thread:\n  File ")
        assert line in note
        assert "in process" not in note
