"""What monitoring sees of engines: metrics by vLLM's names, with tenants, and spans in the scheduler's trace."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pygpukit.llm import LLM, SamplingParams
from pygpukit.llm.telemetry import BOUNDS, Histogram, live_engines
from pygpukit.llm.testing import tiny_gguf
from pygpukit.monitor import EngineCollector, start_exporter
from pygpukit.scheduler import Scheduler

from .engines import few_pages, stepped

Metrics = Callable[[], dict[str, float]]
PROMPT = list(range(5, 45))


@pytest.fixture
def metrics() -> Metrics:
    """Series of engines by name and labels, as Prometheus reads them."""
    client = pytest.importorskip("prometheus_client")
    parser = pytest.importorskip("prometheus_client.parser")

    def read() -> dict[str, float]:
        registry = client.CollectorRegistry()
        registry.register(EngineCollector())
        found = {}
        for family in parser.text_string_to_metric_families(client.generate_latest(registry).decode()):
            for sample in family.samples:
                labels = {name: value for name, value in sample.labels.items() if name != "engine"}
                key = " ".join((sample.name.removeprefix("pygpukit_llm_"), *(labels[name] for name in sorted(labels))))
                found[key.strip()] = sample.value
        return found

    return read


def greedy(count: int, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **more)  # type: ignore[arg-type]


def test_requests_tokens_and_latencies_by_tenant(tmp_path: Path, metrics: Metrics) -> None:
    with LLM(tiny_gguf(tmp_path / "counted.gguf")) as llm:
        llm.tenant("chat", policy="guaranteed")
        llm.generate(PROMPT, greedy(6), tenant="chat")
        llm.generate(PROMPT, greedy(4), tenant="chat")
        request = llm.submit([5, 6], greedy(400))
        next(request.pieces())
        request.cancel()
        request.wait(60)
        found = metrics()
        assert found["prompt_tokens_total counted chat"] == 2 * len(PROMPT)
        assert found["generation_tokens_total counted chat"] == 10
        assert found["request_success_total length counted chat"] == 2
        assert found["request_success_total cancelled counted"] == 1
        assert found["prefix_cache_queries_total counted chat"] == 2 * len(PROMPT)
        # Two full pages of the prompt are there the second time.
        assert found["prefix_cache_hits_total counted chat"] == 32
        for name, count in (
            ("time_to_first_token", 2), ("inter_token_latency", 8), ("request_queue_time", 2),
            ("e2e_request_latency", 2),
        ):  # fmt: skip
            assert found[f"{name}_seconds_count counted chat"] == count
            assert found[f"{name}_seconds_bucket +Inf counted chat"] == count
        first, whole = (found[f"{n}_seconds_sum counted chat"] for n in ("time_to_first_token", "e2e_request_latency"))
        assert found["request_queue_time_seconds_sum counted chat"] <= first < whole
        assert first + found["inter_token_latency_seconds_sum counted chat"] <= whole
        assert found["num_requests_running counted chat"] == found["kv_cache_usage_perc counted chat"] == 0
    assert "prompt_tokens_total counted chat" not in metrics()


def test_what_runs_waits_and_is_preempted(gguf_file: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    few_pages(monkeypatch, 6, 8)
    with stepped(gguf_file, max_num_seqs=2) as engine:
        engine.llm.tenant("batch", policy="besteffort")
        engine.llm.tenant("chat", policy="guaranteed")
        low = [engine.llm.submit([5, 6, n], greedy(40), tenant="batch") for n in range(3)]
        for _ in range(4):
            engine.step()
        found = metrics()
        assert found["num_requests_running tiny batch"] == 2
        assert found["num_requests_waiting tiny batch"] == 1
        assert found["kv_cache_usage_perc tiny batch"] == pytest.approx(2 / 6)
        high = engine.llm.submit(list(range(5, 60)), greedy(20), tenant="chat")
        engine.run()
        assert all(request.done for request in (*low, high))
        found = metrics()
        assert found["num_preemptions_total tiny batch"] == engine.llm.stats()["preemptions"] > 0
        assert found["num_preemptions_total tiny chat"] == 0
        assert found["num_requests_waiting tiny batch"] == found["num_requests_running tiny batch"] == 0
        assert found["request_queue_time_seconds_count tiny batch"] == 3
        assert found["generation_tokens_total tiny batch"] == 120


def test_replies_to_one_prompt_count_its_tokens_once(tmp_path: Path, metrics: Metrics) -> None:
    with LLM(tiny_gguf(tmp_path / "forks.gguf")) as llm:
        llm.generate(PROMPT, SamplingParams(n=3, max_tokens=5, ignore_eos=True))
        found = metrics()
    assert found["prompt_tokens_total forks"] == len(PROMPT)
    assert found["generation_tokens_total forks"] == 15
    assert found["request_success_total length forks"] == 3


def test_guesses_of_speculation_are_counted(gguf_file: Path, metrics: Metrics) -> None:
    with LLM(gguf_file, speculative="ngram") as llm:
        usage = llm.generate([5, 6, 7] * 20, greedy(40)).usage
        found = metrics()
    assert usage.drafted > 0
    assert found["spec_decode_num_draft_tokens_total tiny"] == usage.drafted
    assert found["spec_decode_num_accepted_tokens_total tiny"] == usage.accepted
    assert 0 < found["spec_decode_num_drafts_total tiny"] <= usage.drafted


def test_the_exporter_serves_them(gguf_file: Path) -> None:
    pytest.importorskip("prometheus_client")
    with LLM(gguf_file) as llm, start_exporter(port=0) as exporter:
        llm.generate([5, 6, 7], greedy(2))
        text = urllib.request.urlopen(exporter.url, timeout=10).read().decode()
        number = next(engine.number for engine in live_engines() if engine is llm._loop.telemetry)
    assert llm._loop.telemetry not in live_engines()
    labels = f'engine="{number}",model_name="tiny",tenant=""'
    assert f"pygpukit_llm_generation_tokens_total{{{labels}}} 2.0" in text


def test_without_engines_there_is_nothing_to_import(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.delitem(sys.modules, "pygpukit.llm.telemetry")
    assert metrics() == {}
    assert "pygpukit.llm.telemetry" not in sys.modules


def test_latencies_are_counted_by_bounds() -> None:
    latencies = Histogram()
    for seconds in (0.0, BOUNDS[0], 0.003, 1e9):
        latencies.observe(seconds)
    counted = dict(latencies.cumulative())
    assert (counted[BOUNDS[0]], counted[0.0025], counted[0.005], counted[float("inf")]) == (2, 2, 3, 4)


def test_steps_are_spans_in_the_trace(gguf_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Scheduler() as scheduler, LLM(gguf_file, policy="besteffort", scheduler=scheduler) as llm:
        llm.generate([5, 6, 7], greedy(3))
        with scheduler.trace(path):
            llm.generate([5, 6, 7], greedy(8))
        llm.generate([5, 6, 7], greedy(3))
    events = json.loads(path.read_text())
    steps = [event for event in events if event.get("cat") == "task"]
    assert len(steps) == 8
    assert sum(step["args"]["tokens"] for step in steps) == 8
    assert {step["args"]["task"] for step in steps} == {"tiny"}
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in pairwise(steps))
    (name,) = [event for event in events if event["name"] == "thread_name" and event["tid"] == steps[0]["tid"]]
    assert name["args"]["name"] == "task tiny"
    # A step lies over the turns that computed it: both have the trace's times.
    turns = [event for event in events if event.get("cat") == "turn"]
    assert steps[0]["ts"] <= turns[-1]["ts"] + turns[-1]["dur"]
    assert steps[-1]["ts"] + steps[-1]["dur"] >= turns[0]["ts"]
    # A request that began and ended while it was traced, and its parts inside of it.
    begun, ended = ({e["name"]: e for e in events if e["ph"] == ph} for ph in ("b", "e"))
    assert list(begun) == list(ended) == ["request", "queued", "prompt", "reply"]
    assert len({e["id"] for e in (*begun.values(), *ended.values())}) == 1
    assert begun["request"]["args"]["tokens"] == 8
    order = [begun["request"]["ts"], *(begun[n]["ts"] for n in ("queued", "prompt", "reply")), ended["reply"]["ts"]]
    assert order == sorted(order)
    assert ended["queued"]["ts"] == begun["prompt"]["ts"]
    assert ended["prompt"]["ts"] == begun["reply"]["ts"]
