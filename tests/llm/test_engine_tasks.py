"""Engines as tasks of a scheduler: admission, memory that moves and comes back, several in one process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pygpukit as gp
from pygpukit.errors import AdmissionError, OutOfMemoryError, TaskCancelledError
from pygpukit.llm import LLM, SamplingParams
from pygpukit.llm.testing import tiny_gguf
from pygpukit.scheduler import Scheduler, current_task

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
PROMPT = [5, 60, 7, 200, 33]


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with Scheduler(total_memory="64MiB") as made:
        yield made
        assert made.status()["tasks"] == []


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose matrices are large enough to move one by one."""
    sizes = {"hidden_size": 256, "num_layers": 3, "num_heads": 4, "num_kv_heads": 4, "intermediate_size": 1536}
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "large.gguf", **sizes)


def bits(out: Any) -> tuple[Any, Any]:
    return out.token_ids, out.logprobs


def test_an_engine_is_a_task_with_its_promise(scheduler: Scheduler, gguf_file: Path) -> None:
    with LLM(gguf_file) as alone:
        want = bits(alone.generate(PROMPT, GREEDY))
    with LLM(gguf_file, policy="guaranteed", memory="16MiB", bandwidth=0.3, scheduler=scheduler) as llm:
        assert bits(llm.generate(PROMPT, GREEDY)) == want
        row = llm.stats()["task"]
        assert (row["policy"], row["state"], row["name"]) == ("guaranteed", "running", "tiny")
        assert row["gpu_seconds"] > 0
        assert 8 << 20 < row["memory"] <= row["memory_peak"] <= 16 << 20
        assert scheduler.status()["partitions"][0]["memory_reserved"] == 16 << 20
        assert "guaranteed, 0.3 of the compute, 16.0 MiB reserved, own lane of" in llm.explain()
    assert scheduler.status()["partitions"][0]["memory_reserved"] == 0
    assert scheduler.stats(row["id"])["state"] == "done"


def test_a_partition_bounds_its_engine(scheduler: Scheduler, gguf_file: Path) -> None:
    with scheduler.create_context("chat", max_vram="12MiB", compute=0.5) as context:
        with LLM(gguf_file, scheduler=context) as llm:
            assert llm.generate(PROMPT, GREEDY).finish_reason == "length"
            assert llm.stats()["task"]["partition"] == "chat"
            assert 4 << 20 < llm.stats()["task"]["memory_peak"] <= 12 << 20
            assert "'chat', besteffort, no memory reserved" in llm.explain()
        with pytest.raises(AdmissionError, match=r"'tiny' was not admitted: memory: 16.0 MiB asked > 12.0 MiB"):
            LLM(gguf_file, scheduler=context, memory="16MiB")
        assert context.usage()["tasks"] == 0


def test_admission_refuses_with_the_numbers(scheduler: Scheduler, gguf_file: Path) -> None:
    with LLM(gguf_file, policy="guaranteed", memory="40MiB", scheduler=scheduler):
        with pytest.raises(AdmissionError, match=r"30.0 MiB asked \+ 40.0 MiB reserved > 64.0 MiB"):
            LLM(gguf_file, memory="30MiB", scheduler=scheduler)
        with LLM(gguf_file, policy="besteffort", memory="30MiB", scheduler=scheduler) as beside:
            assert "at most 30.0 MiB, nothing reserved" in beside.explain()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"policy": "fair"}, "policy is 'fair', and must be one of guaranteed, burstable, besteffort"),
        ({"policy": "guaranteed"}, "needs memory="),
        ({"policy": "guaranteed", "memory": "16MiB", "bandwidth": 1.5}, r"bandwidth=1.5 is not a share"),
        ({"policy": "besteffort", "bandwidth": 0.1}, "besteffort reserves nothing"),
        ({"bandwidth": 0.1, "offload": False}, "offload=False keeps the engine's memory on the device"),
        ({"policy": "besteffort", "memory": "16MiB", "offload": False}, "only reserved memory stays there"),
    ],
)
def test_contradictory_values_are_refused(
    scheduler: Scheduler, gguf_file: Path, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        LLM(gguf_file, scheduler=scheduler, **options)


def test_a_scheduler_of_something_else_is_refused(gguf_file: Path) -> None:
    with pytest.raises(TypeError, match="must be a Scheduler, or what create_partition"):
        LLM(gguf_file, scheduler="mine")
    with gp.device("emulated"):
        other = Scheduler()
    with pytest.raises(ValueError, match="the engine is made for"):
        LLM(gguf_file, scheduler=other)
    with Scheduler() as mine:
        part = mine.create_partition("apart", isolation="process")
        with pytest.raises(ValueError, match="processes of their own"):
            LLM(gguf_file, scheduler=part)


def test_what_does_not_fit_gives_its_place_back(scheduler: Scheduler, large_file: Path) -> None:
    for memory, match in (("12MiB", "the weights alone take"), ("22MiB", "bytes of keys and values")):
        with pytest.raises(OutOfMemoryError, match=match):
            LLM(large_file, policy="guaranteed", memory=memory, scheduler=scheduler)
        assert scheduler.status()["partitions"][0]["memory_reserved"] == 0


def test_a_cancelled_task_ends_its_requests(scheduler: Scheduler, gguf_file: Path) -> None:
    with LLM(gguf_file, scheduler=scheduler) as llm:
        request = llm.submit(PROMPT, LONG)
        next(request.pieces())
        assert scheduler.cancel(llm.stats()["task"]["id"])
        with pytest.raises(TaskCancelledError):
            request.result(60)
        with pytest.raises(TaskCancelledError, match="the engine has ended with it"):
            llm.generate(PROMPT, GREEDY)
    idle = LLM(gguf_file, scheduler=scheduler)
    scheduler.cancel(idle.stats()["task"]["id"])
    with pytest.raises(TaskCancelledError, match="the engine has ended with it"):
        idle.generate(PROMPT, GREEDY)
    idle.close()


def test_an_engine_that_is_dropped_ends_its_task(scheduler: Scheduler, gguf_file: Path) -> None:
    llm = LLM(gguf_file, scheduler=scheduler)
    llm.generate(PROMPT, GREEDY)
    request = llm.submit(PROMPT, LONG)
    llm.close()
    assert request.result(60).finish_reason == "cancelled"
    llm = LLM(gguf_file, scheduler=scheduler)
    del llm
    assert scheduler.status()["tasks"] == []


def test_a_fork_gives_up_the_engine_at_once(run_python: Callable[..., str], gguf_file: Path) -> None:
    program = f"""
import os
from pygpukit.llm import LLM, SamplingParams

llm = LLM({str(gguf_file)!r}, policy="besteffort", memory="16MiB")
params = SamplingParams(max_tokens=4, ignore_eos=True)
llm.generate([5, 6], params)
child = os.fork()
if child == 0:
    try:
        llm.generate([5, 6], params)
    except RuntimeError as error:
        llm.close()
        os._exit(3 if "in the process that made it" in str(error) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), llm.generate([5, 6], params).finish_reason)
"""
    assert run_python(program) == "3 length\n"


def test_steps_are_work_of_the_task(scheduler: Scheduler, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    with LLM(gguf_file, policy="guaranteed", memory="16MiB", scheduler=scheduler) as llm:
        run = llm._loop.runner.run
        monkeypatch.setattr(
            llm._loop.runner, "run", lambda *rows: (seen.append((current_task(), threading.get_ident())), run(*rows))[1]
        )
        llm.generate(PROMPT, GREEDY)
        assert {task.id for task, _ in seen if task is not None} == {llm.stats()["task"]["id"]}
        assert None not in {task for task, _ in seen}
        assert {thread for _, thread in seen} != {threading.get_ident()}


def test_two_engines_answer_at_once(scheduler: Scheduler, gguf_file: Path, tmp_path: Path) -> None:
    other = tiny_gguf(tmp_path / "other.gguf", seed=1)
    prompts = [[5, 6, n] for n in range(7, 11)]
    want = []
    for path in (gguf_file, other):
        with LLM(path) as alone:
            want.append([bits(out) for out in alone.generate(prompts, GREEDY)])
    with (
        LLM(gguf_file, policy="guaranteed", memory="16MiB", bandwidth=0.5, scheduler=scheduler) as chat,
        LLM(other, policy="besteffort", memory="16MiB", scheduler=scheduler) as batch,
    ):

        async def both() -> list[Any]:
            return await asyncio.gather(chat.agenerate(prompts, GREEDY), batch.agenerate(prompts, GREEDY))

        for outs, expected in zip(asyncio.run(both()), want, strict=True):
            assert [bits(out) for out in outs] == expected
        used = [llm.stats()["task"]["gpu_seconds"] for llm in (chat, batch)]
        assert min(used) > 0
        with pytest.raises(ValueError, match="empty"):
            asyncio.run(batch.agenerate([]))
        chat.close()
        assert bits(batch.generate(prompts, GREEDY)[3]) == want[1][3]


def test_an_idle_engine_moves_to_the_host_and_comes_back(scheduler: Scheduler, large_file: Path) -> None:
    weights = 3 * 4 * (256 * 3 * 256 + 256 * 256 + 3 * 256 * 1536)
    assert weights > 17_000_000
    with LLM(large_file) as alone:
        want = bits(alone.generate(PROMPT, GREEDY))
    moved = []

    def note() -> None:
        now = gp.memory.stats()
        moved.append([now[key] for key in ("evicted_bytes", "copied_out_bytes", "restored_bytes")])

    with scheduler.create_context("both", max_vram="44MiB") as context:
        more: dict[str, Any] = {"max_model_len": 64, "max_batched_tokens": 64}
        with (
            LLM(large_file, policy="besteffort", memory="28MiB", scheduler=context, **more) as first,
            LLM(large_file, policy="besteffort", memory="28MiB", scheduler=context, **more) as second,
        ):
            note()
            # They have 56 MiB together, and 44 are there.
            for _ in range(3):
                for llm in (first, second):
                    assert bits(llm.generate(PROMPT, GREEDY)) == want
                note()

            async def both() -> list[Any]:
                return await asyncio.gather(*(llm.agenerate(PROMPT, GREEDY) for llm in (first, second)))

            assert [bits(out) for out in asyncio.run(both())] == [want, want]
            for llm in (first, second):
                row = llm.stats()["task"]
                assert row["evictions"] > 0
                assert row["restores"] > 0
    evicted, copied, restored = ([b - a for a, b in pairwise(part)] for part in zip(*moved, strict=True))
    assert min(evicted) > 0
    assert min(restored) > 0
    # Weights were copied to the host once: from then on what moves there without having been written is only dropped.
    assert copied[2] < evicted[2] // 2


def test_the_example_prints_both_latencies(run_python: Callable[..., str], repository: Path) -> None:
    script = repository / "examples" / "llm" / "two_engines.py"
    arguments = ["two_engines.py", "--tokens", "8", "--replies", "2", "--size", "2", "--prompt", "40"]
    said = run_python(
        f"import runpy, sys; sys.argv = {arguments}; runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    rows = {line[:33].strip(): line for line in said.splitlines() if " p50 " in line}
    assert list(rows) == [
        "chat, alone", "chat, beside a batch that decodes", "chat, beside a batch of prompts", "batch, alone",
        "batch, beside the chat",
    ]  # fmt: skip
    assert all(float(line.split("p50")[1].split()[0]) > 0 for line in rows.values())
    # A token may come before its time is asked for.
    assert 2 <= int(rows["chat, alone"].split("ms")[2].split()[0]) <= 14
    assert "promise no latency" in said
    assert "chat   guaranteed  own lane" in said
