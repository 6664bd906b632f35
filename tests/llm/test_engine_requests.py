"""Requests to an engine: waiting, cancelling, failing, coroutines, tenants, memory, the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.errors import AdmissionError, OutOfMemoryError
from pygpukit.llm import LLM, SamplingParams

from .engines import few_pages, stepped

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
PROMPT = [5, 60, 7, 200, 33]


@pytest.fixture(scope="module")
def llm(gguf_file: Path) -> Iterator[LLM]:
    with LLM(gguf_file) as made:
        yield made


def test_a_request_is_a_handle(llm: LLM) -> None:
    request = llm.submit(PROMPT, GREEDY)
    out = request.result(60)
    assert out.token_ids == llm.generate(PROMPT, GREEDY).token_ids
    assert (request.state, request.reason, request.done) == ("finished", "length", True)
    assert repr(request) == "<Request of 5 tokens, finished: length>"
    request.cancel()
    assert request.state == "finished"


def test_waiting_has_a_limit(gguf_file: Path) -> None:
    with stepped(gguf_file) as engine:
        request = engine.llm.submit(PROMPT, GREEDY)
        with pytest.raises(TimeoutError, match=r"has not ended in 0\.01 seconds: it is waiting \(it has just come\)"):
            request.result(0.01)
        with pytest.raises(ValueError, match="has not ended"):
            request.output()
        engine.step()
        assert request.state == "running"
        engine.run()
        assert len(request.result(0).token_ids) == 8


def test_cancelling_frees_the_pages_within_a_step(gguf_file: Path) -> None:
    for ahead in (False, True):
        with stepped(gguf_file, ahead) as engine:
            request, other = engine.llm.submit(PROMPT, LONG), engine.llm.submit([9, 9], LONG)
            for _ in range(20):
                engine.step()
            before = engine.pages()
            request.cancel()
            engine.step()
            assert engine.pages() < before
            out = request.result(0)
            assert (out.finish_reason, request.state, request.reason) == ("cancelled", "cancelled", "it was cancelled")
            assert out.token_ids == engine.llm.model.generate(PROMPT, 40, temperature=0)[5:][: len(out.token_ids)]
            other.cancel()
            engine.run()
            assert engine.pages() == 0


def test_the_host_may_know_tokens_a_step_late(gguf_file: Path) -> None:
    """Steps that are queued before the tokens of the last one are read give the same, and drop what is too much."""
    found = []
    for ahead in (False, True):
        with stepped(gguf_file, ahead) as engine:
            free = engine.llm.submit(PROMPT, LONG)
            params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=1)
            requests = [free, engine.llm.submit([8, 8, 8], params), engine.llm.submit(PROMPT, SamplingParams(seed=4))]
            if ahead:
                engine.step()
                engine.step()
                assert engine.loop._drawn is not None
                assert [branch.pending for branch in engine.loop.scheduler.running] == [1, 1, 1]
            engine.run()
            found.append([(r.result(0).token_ids, r.result(0).logprobs) for r in requests])
            stopped = found[-1][0][0][7]
            stop = SamplingParams(temperature=0, max_tokens=99, ignore_eos=True, stop_token_ids=[stopped])
            request = engine.llm.submit(PROMPT, stop)
            engine.run()
            assert request.result(0).token_ids == free.result(0).token_ids[: found[-1][0][0].index(stopped) + 1]
            assert engine.pages() == 0
    assert found[0] == found[1]


def test_a_failing_request_fails_alone(llm: LLM) -> None:
    def broken(tokens: list[int], scores: Any) -> Any:
        if len(tokens) > 7:
            raise RuntimeError("no more")
        return scores

    bad = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, processors=[broken])
    short = SamplingParams(temperature=0, max_tokens=8, processors=[lambda tokens, scores: scores[:3]])
    nothing = SamplingParams(temperature=0, max_tokens=8, processors=[lambda tokens, scores: scores * np.nan])
    requests = [llm.submit(PROMPT, params) for params in (GREEDY, bad, short, nothing)]
    assert requests[0].result(60).token_ids == llm.generate(PROMPT, GREEDY).token_ids
    with pytest.raises(RuntimeError, match="no more"):
        requests[1].result(60)
    assert (requests[1].state, requests[1].reason) == ("failed", "RuntimeError: no more")
    out = requests[1].output()
    assert (out.finish_reason, out.stop_reason, len(out.token_ids)) == ("error", "RuntimeError: no more", 3)
    with pytest.raises(ValueError, match=r"scores of shape \(3,\), not \(259,\)"):
        requests[2].result(60)
    with pytest.raises(ValueError, match="a processor returned -inf or NaN for every one"):
        requests[3].result(60)
    with pytest.raises(RuntimeError, match="no more"):
        llm.generate(PROMPT, bad)
    listed = llm.generate([PROMPT, PROMPT], bad)
    assert [out.finish_reason for out in listed] == ["error", "error"]
    assert llm.stats()["pages_used"] == 0


def test_a_processor_may_not_wait_for_its_own_engine(llm: LLM) -> None:
    def asks(tokens: list[int], scores: Any) -> Any:
        llm.generate([7], GREEDY)

    def streams(tokens: list[int], scores: Any) -> Any:
        next(llm.stream([7], GREEDY))

    def waits(tokens: list[int], scores: Any) -> Any:
        llm.submit([7], GREEDY).result()

    def saves(tokens: list[int], scores: Any) -> Any:
        llm.save_cache("/nowhere")

    def leaves(tokens: list[int], scores: Any) -> Any:
        raise SystemExit(3)

    beside = llm.submit(PROMPT, GREEDY)
    for processor in (asks, streams, waits, saves):
        request = llm.submit(PROMPT, SamplingParams(max_tokens=2, processors=[processor]))
        with pytest.raises(RuntimeError, match="cannot wait for a reply of its own engine"):
            request.result(60)
    with pytest.raises(RuntimeError, match=r"a processor raised SystemExit\(3\)"):
        llm.submit(PROMPT, SamplingParams(max_tokens=2, processors=[leaves])).result(60)
    assert len(beside.result(60).token_ids) == 8


@pytest.mark.parametrize(
    "prompt", [None, 5, {5}, {"a": 1}, [5.5], b"abc", [5, "x"], ["x", 5], [[[5]]], np.array([5.5]), iter([5])]
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(TypeError, match="is no prompt"):
        llm.generate(prompt, GREEDY)
    with pytest.raises(TypeError, match=r"params is .* and must be SamplingParams"):
        llm.generate([5], {"temperature": 0})  # type: ignore[arg-type]


def test_pieces_are_read_once(llm: LLM) -> None:
    request = llm.submit(PROMPT, GREEDY)
    assert sum(len(piece.token_ids) for piece in request.pieces()) == 8
    with pytest.raises(ValueError, match="can be read once"):
        next(iter(request.pieces()))


@pytest.mark.parametrize(
    "more",
    [{}, {"graphs": False}, {"speculative": "draft"}, {"speculative": {"early_exit": 1}}, {"memory": "24MiB"}],
)
def test_closing_gives_the_memory_back(gguf_file: Path, more: dict[str, Any]) -> None:
    if more.get("speculative") == "draft":
        more = {"speculative": {"draft": gguf_file, "k": 3}}
    gc.collect()
    before = gp.memory.stats()["used"]
    llm = LLM(gguf_file, **more)
    request = llm.submit(PROMPT, GREEDY)
    assert len(request.result(60).token_ids) == 8
    assert gp.memory.stats()["used"] > before
    llm.close()
    gc.collect()
    assert gp.memory.stats()["used"] == before
    assert llm.stats()["completion_tokens"] == 8
    assert "keys and values" in llm.explain()


def test_an_engine_lives_as_long_as_its_requests(gguf_file: Path) -> None:
    gc.collect()
    before = gp.memory.stats()["used"]
    llm = LLM(gguf_file)
    there, request = weakref.ref(llm), llm.submit(PROMPT, GREEDY)
    del llm
    assert len(request.result(60).token_ids) == 8
    for _ in range(6000):
        gc.collect()
        if there() is None and gp.memory.stats()["used"] == before:
            break
        threading.Event().wait(0.01)
    assert there() is None
    # The finished request does not keep its memory.
    assert gp.memory.stats()["used"] == before
    assert request.done


def test_no_token_may_come(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, processors=[lambda tokens, scores: np.full_like(scores, -np.inf)])
    with pytest.raises(ValueError, match="no token may come"):
        llm.generate(PROMPT, params)


def test_ctrl_c_ends_the_requests(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from pygpukit.llm.request import Request

    made: list[Request] = []

    def interrupted(self: Request, timeout: float | None = None) -> bool:
        made.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Request, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT, PROMPT], LONG)
    monkeypatch.undo()
    assert made[0].wait(60)
    for _ in range(6000):
        if not llm.stats()["running"]:
            break
        threading.Event().wait(0.01)
    assert llm.stats()["pages_used"] == 0


def test_coroutines(llm: LLM) -> None:
    async def main() -> None:
        whole = llm.generate(PROMPT, GREEDY)
        one, both = await asyncio.gather(llm.agenerate(PROMPT, GREEDY), llm.agenerate([PROMPT, [9]], GREEDY))
        assert one.token_ids == both[0].token_ids == whole.token_ids
        assert (await llm.submit(PROMPT, GREEDY)).token_ids == whole.token_ids
        tokens = [token async for piece in llm.astream(PROMPT, GREEDY) for token in piece.token_ids]
        assert tokens == whole.token_ids
        task = asyncio.create_task(llm.agenerate(PROMPT, LONG))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pieces = llm.astream(PROMPT, LONG)
        async for _ in pieces:
            break
        await pieces.aclose()

    asyncio.run(main())
    for _ in range(6000):
        if not llm.stats()["pages_used"]:
            break
        threading.Event().wait(0.01)
    assert (llm.stats()["running"], llm.stats()["pages_used"]) == (0, 0)


def test_conversations_in_coroutines(llm: LLM) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    messages = [{"role": "user", "content": "Hi"}]
    out = asyncio.run(llm.achat(messages, GREEDY))
    assert out.token_ids == llm.chat(messages, GREEDY).token_ids


def test_closing_ends_what_is_in_flight(gguf_file: Path) -> None:
    llm = LLM(gguf_file)
    llm.tenant("one", max_running=1)
    requests = [llm.submit(PROMPT, LONG, tenant="one") for _ in range(4)]
    llm.close()
    assert {request.state for request in requests} <= {"cancelled", "finished"}
    assert requests[-1].result(0).finish_reason == "cancelled"
    with pytest.raises(ValueError, match="the model is closed"):
        llm.submit(PROMPT)
    llm.close()


def test_a_thread_begins_with_the_first_request_and_ends_with_the_engine(gguf_file: Path) -> None:
    def threads() -> int:
        return sum(thread.name == "pygpukit-llm" for thread in threading.enumerate())

    before = threads()
    llm = LLM(gguf_file)
    assert threads() == before
    llm.generate(PROMPT, GREEDY)
    assert threads() == before + 1
    there = weakref.ref(llm)
    del llm
    gc.collect()
    assert there() is None
    assert threads() == before


def test_several_replies_share_the_pages_of_a_prompt(gguf_file: Path) -> None:
    params = SamplingParams(n=4, seed=3, max_tokens=6, ignore_eos=True)
    with stepped(gguf_file) as engine:
        request = engine.llm.submit([7] * 40, params)
        engine.step()
        # Two full pages are shared, the third and its copies are not.
        assert engine.pages() == 2 + 4
        assert len(engine.loop.scheduler.running) == 4
        engine.run()
        outputs = request.result(0).outputs
        assert len({tuple(out.token_ids) for out in outputs}) == 4
    with LLM(gguf_file, max_num_seqs=1) as llm:
        assert [out.token_ids for out in llm.generate([7] * 40, params).outputs] == [o.token_ids for o in outputs]
        with pytest.raises(ValueError, match="n is 4: a stream has the pieces of one reply"):
            llm.stream([7], params)


def test_a_prefix_is_found_again_with_the_same_salt(llm: LLM) -> None:
    prompt = list(range(20, 60))
    llm.tenant("other")

    def cached(**more: Any) -> int:
        return int(llm.generate(prompt, GREEDY, **more).usage.cached)

    found = [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a"), cached(tenant="other")]
    assert found == [0, 32, 0, 32, 0]


def test_steps_have_few_tokens_of_prompts_and_all_decodes(gguf_file: Path) -> None:
    with stepped(gguf_file, max_batched_tokens=8) as engine:
        first = engine.llm.submit(PROMPT, LONG)
        engine.step()
        second = engine.llm.submit([9] * 30, LONG)
        for _ in range(5):
            engine.step()
        # Seven tokens of the prompt beside one of the first reply in each step.
        running = {branch.request: branch for branch in engine.loop.scheduler.running}
        assert len(running[first].sequence.reply) == 6
        assert running[second].computed == 30
        for request in (first, second):
            request.cancel()


def test_what_never_fits_is_refused_with_the_numbers(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_pages(monkeypatch, 4, 0)
    with LLM(gguf_file) as llm:
        with pytest.raises(AdmissionError, match=r"needs 7 pages of 16 tokens \(5 of the prompt and 100 of the reply"):
            llm.submit(PROMPT, SamplingParams(max_tokens=100))
        llm.tenant("small", kv_share=0.25)
        with pytest.raises(AdmissionError, match="tenant 'small' may have 1: shorten the prompt"):
            llm.submit([5] * 12, GREEDY, tenant="small")
        assert len(llm.generate([5] * 9, GREEDY, tenant="small").token_ids) == 8


def test_memory_is_a_budget(gguf_file: Path) -> None:
    with LLM(gguf_file, memory="24MiB", max_batched_tokens=64, max_num_seqs=8) as llm:
        plan = llm._budget
        assert plan.weights + plan.workspace + plan.pages * plan.page <= plan.total == 24 << 20
        assert plan.pages == 256
        assert llm.generate(PROMPT, GREEDY).finish_reason == "length"
        assert llm._loop._pool is not None
        assert llm._loop._pool.used <= 24 << 20
    with pytest.raises(OutOfMemoryError, match=r"memory='100KiB' is 102400 bytes, and the weights alone take 313344"):
        LLM(gguf_file, memory="100KiB")
    with pytest.raises(OutOfMemoryError, match="memory='400KiB' cannot be reserved, give more"):
        LLM(gguf_file, memory="400KiB")
    with pytest.raises(OutOfMemoryError, match="a reply of 512 tokens needs 262144 bytes of keys and values"):
        LLM(gguf_file, memory="2MiB", max_batched_tokens=512)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("draft", [False, True])
def test_little_memory_is_divided_by_what_arrays_take(gguf_file: Path, draft: bool, kv_dtype: str) -> None:
    """Large arrays take whole pieces of 2 MiB, those of a draft model too."""
    more: dict[str, Any] = {"speculative": {"draft": gguf_file, "k": 2} if draft else None, "kv_dtype": kv_dtype}
    before = 0
    for memory in ("2MiB", "3MiB", "5MiB", "8MiB"):
        with LLM(gguf_file, memory=memory, max_batched_tokens=64, max_num_seqs=64, **more) as llm:
            outs = llm.generate([[5 + i] * 60 for i in range(4)], GREEDY)
            assert [out.finish_reason for out in outs] == ["length"] * 4
            assert llm._loop._pool is not None
            assert llm._loop._pool.used <= llm._budget.total
            assert llm.stats()["out_of_memory"] == 0
            assert llm._budget.pages >= before
            before = llm._budget.pages
    # Most of it is pages.
    assert before * (llm._budget.page + 8192 * draft) > 3 << 20


def running(engine: Any) -> list[str]:
    return [branch.tenant.name for branch in engine.loop.scheduler.running]


def test_guaranteed_tenants_go_first_and_are_never_preempted(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_pages(monkeypatch, 10, 10)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with stepped(gguf_file, max_num_seqs=8) as engine:
        engine.llm.tenant("high", "guaranteed")
        others = [engine.llm.submit([6 + i] * 20, params) for i in range(3)]
        engine.step()
        assert running(engine) == ["", "", ""]
        high = engine.llm.submit([5] * 20, params, tenant="high")
        preempted = []
        while not high.done:
            engine.step()
            if not high.done:
                assert "high" in running(engine)
            preempted.append(engine.llm.stats()["preemptions"])
        assert preempted[-1] > 0
        engine.run()
        assert [len(request.result(0).token_ids) for request in [*others, high]] == [60] * 4
        assert engine.pages() == 0


def test_besteffort_tenants_yield_their_place(gguf_file: Path) -> None:
    with stepped(gguf_file, max_num_seqs=2) as engine:
        engine.llm.tenant("low", "besteffort")
        low = [engine.llm.submit([9 + i] * 5, LONG, tenant="low") for i in range(2)]
        for _ in range(3):
            engine.step()
        request = engine.llm.submit(PROMPT, GREEDY)
        engine.step()
        assert sorted(running(engine)) == ["", "low"]
        assert (low[1].state, low[1].reason) == ("waiting", "preempted: others needed its pages")
        assert engine.llm.stats()["on_host"] == 1
        engine.run()
        assert request.result(0).finish_reason == "length"
        assert [len(one.result(0).token_ids) for one in low] == [400, 400]


def test_burstable_tenants_share_by_weight(gguf_file: Path) -> None:
    with stepped(gguf_file, max_num_seqs=1) as engine:
        engine.llm.tenant("three", weight=3)
        engine.llm.tenant("one", weight=1)
        requests = [engine.llm.submit(PROMPT, GREEDY, tenant=name) for name in ("one", "three") for _ in range(12)]
        order = []
        while len(order) < 12:
            engine.step()
            order += [request.tenant.name for request in requests if request.done and request not in order]
            requests = [request for request in requests if not request.done]
        assert order.count("three") == 9
        tenants = engine.llm.stats()["tenants"]
        assert tenants["three"]["tokens"] == 3 * tenants["one"]["tokens"]
        for request in requests:
            request.cancel()
        engine.run()


def test_limits_of_a_tenant(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_pages(monkeypatch, 16, 0)
    with stepped(gguf_file) as engine:
        engine.llm.tenant("few", max_running=2)
        engine.llm.tenant("small", kv_share=0.25)
        few = [engine.llm.submit(PROMPT, SamplingParams(max_tokens=90), tenant="few") for _ in range(3)]
        small = [engine.llm.submit([i] * 40, GREEDY, tenant="small") for i in range(5, 7)]
        engine.step()
        assert running(engine) == ["few", "few", "small"]
        engine.step()
        assert few[2].reason == "tenant 'few' has 2 running replies, the most it may have"
        assert small[1].reason == "tenant 'small' has 3 of the 4 pages it may have"
        engine.run()
        assert {request.state for request in [*few, *small]} == {"finished"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"policy": "best"}, "policy is 'best', and must be one of guaranteed, burstable, besteffort"),
        ({"weight": 0}, "weight is 0"),
        ({"max_running": 0}, "max_running is 0"),
        ({"kv_share": 1.5}, "kv_share is 1.5"),
        ({"name": ""}, "must be a text that is not empty"),
    ],
)
def test_tenants_that_cannot_be(llm: LLM, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        llm.tenant(**{"name": "x", **values})


def test_higher_priorities_go_first(gguf_file: Path) -> None:
    with stepped(gguf_file, max_num_seqs=1) as engine:
        first = engine.llm.submit(PROMPT, GREEDY)
        engine.step()
        low, high = (engine.llm.submit(PROMPT, GREEDY, priority=priority) for priority in (0, 5))
        while not high.done:
            engine.step()
        assert first.done
        assert not low.done
        assert "max_num_seqs" in low.reason
        engine.run()
        with pytest.raises(ValueError, match=r"priority is 1\.5"):
            engine.llm.submit(PROMPT, GREEDY, priority=1.5)  # type: ignore[arg-type]


def test_scores_of_a_prompt_without_a_reply(llm: LLM) -> None:
    out = llm.generate(PROMPT, SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert out.prompt_logprobs is not None
    assert (len(out.prompt_logprobs), out.token_ids, out.finish_reason) == (5, [], "length")
    assert len(llm.score([3] * 512)) == 511


def test_threads_may_ask_at_once(llm: LLM) -> None:
    whole = llm.generate(PROMPT, GREEDY).token_ids
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(llm.generate(PROMPT, GREEDY).token_ids)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [whole] * 8
