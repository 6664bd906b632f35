"""Admission as Python programs see it: answers, reasons, partitions and bad input."""

from __future__ import annotations

import doctest
import math
import random
import re
from typing import Any

import pytest

import _pygpukit_rust as rust
from pygpukit import errors

GIB = 1 << 30


def task(name: str, **asked: Any) -> rust.QosTaskMeta:
    return rust.QosTaskMeta(name, name, **asked)


def test_published_example() -> None:
    evaluator = rust.QosPolicyEvaluator(total_memory=8 * 1024**3, total_bandwidth=1.0)
    critical = rust.QosTaskMeta.guaranteed("task-1", "Critical Task", 256 * 1024 * 1024)
    result = evaluator.evaluate(critical)
    assert result.admitted
    assert (result.decision, result.reason) == ("admitted", "")
    manager = rust.PartitionManager(rust.PartitionConfig(total_memory=8 * 1024**3))
    half = rust.PartitionLimits().memory(4 * 1024**3).compute(0.5)
    manager.create_partition("inference", "Inference", half)
    manager.create_partition("training", "Training", half)
    assert manager.list_partitions() == ["default", "inference", "training"]
    assert manager.usage("inference")["memory_capacity"] == 4 * 1024**3
    assert manager.usage()["memory_capacity"] == 0


@pytest.mark.parametrize(
    "view",
    [
        rust.QosTaskMeta,
        rust.QosEvaluation,
        rust.QosPolicyEvaluator,
        rust.PartitionLimits,
        rust.PartitionConfig,
        rust.PartitionManager,
    ],
)
def test_docstrings(view: type) -> None:
    assert view.__doc__
    bare = [name for name, member in vars(view).items() if not name.startswith("_") and not member.__doc__]
    assert sorted(set(bare) - {"id", "name"}) == []
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(recurse=False).find(view, view.__name__, globs=vars(rust)):
        runner.run(example)
    assert runner.failures == 0


def test_admitted_queued_rejected() -> None:
    evaluator = rust.QosPolicyEvaluator("10GiB")
    assert evaluator.reserve(task("a", memory="8GiB")).admitted
    waits = evaluator.reserve(task("b", memory="4GiB"))
    assert waits.queued
    assert not waits.admitted
    assert not waits.rejected
    assert waits.reason == "memory: 4.0 GiB asked + 8.0 GiB reserved > 10.0 GiB of partition 'default'"
    never = evaluator.reserve(task("c", memory="11GiB"))
    assert never.rejected
    assert never.reason == "memory: 11.0 GiB asked > 10.0 GiB of partition 'default'"
    impatient = evaluator.evaluate(task("d", memory="4GiB", on_full="reject"))
    assert impatient.rejected
    behind = evaluator.reserve(task("e", memory="1GiB"))
    assert behind.reason == "memory: task 'b' came first and waits for it in partition 'default'"
    assert evaluator.stats()["waiting"] == 2
    assert evaluator.release("a") == ["b", "e"]
    assert evaluator.stats()["memory_reserved"] == 5 * GIB
    with pytest.raises(ValueError, match="'a' is not known"):
        evaluator.release("a")
    with pytest.raises(ValueError, match="'b' was admitted or waits already"):
        evaluator.reserve(task("b", memory=1))


def test_evaluate_changes_nothing() -> None:
    evaluator = rust.QosPolicyEvaluator("1GiB")
    before = evaluator.stats()
    for _ in range(3):
        assert evaluator.evaluate(task("a", memory="1GiB")).admitted
    assert evaluator.stats() == before


def test_class_follows_from_what_is_asked() -> None:
    assert task("a").qos_class == "besteffort"
    assert task("a", memory=1).qos_class == "burstable"
    assert task("a", bandwidth=0.2).qos_class == "burstable"
    assert task("a", deadline=0.01, cost=0.001).qos_class == "burstable"
    assert task("a", policy="deadline", period=0.01, cost=0.001).qos_class == "burstable"
    assert task("a", policy="priority", priority=3).qos_class == "besteffort"
    assert task("a", policy="fair", weight=3).qos_class == "besteffort"
    assert rust.QosTaskMeta.burstable("a", "a", 5, 0.1, 0.5).qos_class == "burstable"
    assert rust.QosTaskMeta.best_effort("a", "a").memory == 0


def test_answers_by_their_published_names() -> None:
    evaluator = rust.QosPolicyEvaluator(total_memory=100, total_bandwidth=1.0)

    def names(task: rust.QosTaskMeta) -> list[str]:
        answer = evaluator.evaluate(task)
        return [name for name in ("admitted", "queued", "throttled", "rejected") if getattr(answer, f"is_{name}")()]

    assert evaluator.reserve(rust.QosTaskMeta.guaranteed("a", "a", 60)).is_admitted()
    assert names(rust.QosTaskMeta.guaranteed("b", "b", 40)) == ["admitted"]
    assert names(rust.QosTaskMeta.guaranteed("b", "b", 41)) == ["queued"]
    assert names(rust.QosTaskMeta.guaranteed("b", "b", 101)) == ["rejected"]
    assert names(rust.QosTaskMeta.burstable("b", "b", 5, 0.1, 0.5)) == ["admitted", "throttled"]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"bandwidth": -0.1}, "bandwidth=-0.1 is not a share"),
        ({"bandwidth": 1.5}, "bandwidth=1.5 is not a share"),
        ({"bandwidth": math.nan}, "bandwidth=NaN is not a share"),
        ({"bandwidth": 0.5, "bandwidth_limit": 0.4}, "bandwidth_limit=40% is below bandwidth=50%"),
        ({"memory": "much"}, "'much' is not a memory size"),
        ({"memory": -1}, "-1"),
        ({"memory": 2048, "memory_soft": 1024}, "memory_soft=1.0 KiB is below memory=2.0 KiB"),
        ({"policy": "best"}, "guaranteed, burstable, besteffort, priority, deadline, fair"),
        ({"policy": "priority"}, "needs a priority"),
        ({"policy": "deadline", "cost": 1.0}, "needs deadline="),
        ({"policy": "besteffort", "memory": 1}, "reserves nothing"),
        ({"weight": 0}, "weight=0"),
        ({"weight": -3}, "weight=-3"),
        ({"deadline": 0.0, "cost": 1.0}, "deadline=0 is not a time"),
        ({"deadline": math.inf, "cost": 1.0}, "deadline=inf is not a time"),
        ({"deadline": 0.01}, "deadline=10 ms needs cost="),
        ({"deadline": 0.01, "cost": 0.02}, "cost=20 ms is more than deadline=10 ms"),
        ({"deadline": 0.01, "period": 0.005, "cost": 0.001}, "at most the period"),
        ({"isolation": "gpu"}, "auto, sm, time, process"),
        ({"isolation": "sm", "bandwidth": 0.5}, "policy='guaranteed'"),
        ({"isolation": "sm", "policy": "guaranteed"}, "needs bandwidth"),
        ({"on_full": "wait"}, "queue, reject"),
    ],
)
def test_bad_requests(asked: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        task("a", **asked)


def test_bad_devices_and_limits() -> None:
    with pytest.raises(ValueError, match="total_bandwidth=2"):
        rust.QosPolicyEvaluator(1, 2.0)
    with pytest.raises(ValueError, match="sms=0"):
        rust.QosPolicyEvaluator(1, sms=0)
    with pytest.raises(ValueError, match="granule=0"):
        rust.PartitionConfig(1, sms=4, granule=0)
    manager = rust.PartitionManager(rust.PartitionConfig(100))
    with pytest.raises(ValueError, match="compute=-1"):
        rust.PartitionLimits().compute(-1)
    with pytest.raises(ValueError, match=r"\(3, 1\)"):
        manager.create_partition("p", limits=rust.PartitionLimits().priority_band(3, 1))
    with pytest.raises(ValueError, match="class='fast' is not known"):
        rust.PartitionLimits().classes(["fast"])
    with pytest.raises(ValueError, match="'default' is the device itself"):
        manager.remove_partition("default")
    with pytest.raises(ValueError, match="no partition 'q': there are default"):
        manager.usage("q")
    manager.create_partition("p")
    with pytest.raises(ValueError, match="'p' exists"):
        manager.create_partition("p")
    with pytest.raises(errors.DeviceError, match=r"'q' does not fit: memory: 101 B asked > 100 B"):
        manager.create_partition("q", limits=rust.PartitionLimits().memory(101))


def test_limits_are_values() -> None:
    plain = rust.PartitionLimits()
    large = plain.memory("1GiB")
    assert "memory=0 " in repr(plain)
    assert f"memory={GIB} " in repr(large)


def test_lanes_and_time() -> None:
    evaluator = rust.QosPolicyEvaluator("1GiB", sms=132)
    assert evaluator.reserve(rust.QosTaskMeta.guaranteed("a", "a", bandwidth=0.5)).admitted
    stats = evaluator.stats()
    assert (stats["lane_sms"], stats["lanes"], stats["time_capacity"]) == (72, 1, pytest.approx(60 / 132, abs=1e-6))
    assert evaluator.evaluate(rust.QosTaskMeta.guaranteed("b", "b", bandwidth=0.5)).reason.startswith("SMs: 72 asked")
    assert evaluator.evaluate(task("c", bandwidth=0.5)).reason.startswith("time: 50% asked > 45.45")


def test_partitions_limit_their_tasks() -> None:
    manager = rust.PartitionManager(rust.PartitionConfig(100, sms=132))
    limits = rust.PartitionLimits().memory(40).compute(0.5).priority_band(0, 5).isolation("sm").classes(["guaranteed"])
    manager.create_partition("inference", "Inference", limits)
    usage = manager.usage("inference")
    assert (usage["id"], usage["name"], usage["sms"]) == ("inference", "Inference", 72)
    lane = rust.QosTaskMeta.guaranteed("a", "a", 40, 0.25)
    assert manager.reserve(lane, "inference").admitted
    assert manager.usage("inference")["lane_sms"] == 40
    outside = manager.evaluate(task("b", policy="guaranteed", priority=6), "inference")
    assert outside.reason == "priority: 6 is outside the band 0 to 5 of partition 'inference'"
    assert manager.evaluate(task("b"), "inference").reason == "class: besteffort is not taken by partition 'inference'"
    with pytest.raises(errors.DeviceError, match=r"in use \(tasks: 1, waiting: 0\)"):
        manager.remove_partition("inference")
    assert manager.reserve(task("c", memory=80)).queued
    assert manager.release("a") == []
    assert manager.remove_partition("inference") == ["c"]


def test_random_churn_ends_at_zero() -> None:
    chance = random.Random(5)
    evaluator = rust.QosPolicyEvaluator(1000, sms=132, max_lanes=4, queue_limit=20)
    empty = evaluator.stats()
    known: set[str] = set()
    admitted: set[str] = set()
    for number in range(2000):
        if known and chance.random() < 0.5:
            name = chance.choice(sorted(known))
            known.remove(name)
            admitted.discard(name)
            newly = evaluator.release(name)
            assert set(newly) <= known - admitted
            admitted.update(newly)
        else:
            policy = chance.choice(["guaranteed", "burstable"])
            asked = task(f"t{number}", policy=policy, memory=chance.randrange(600), bandwidth=chance.random() / 2)
            foretold = evaluator.evaluate(asked)
            answer = evaluator.reserve(asked)
            assert (answer.decision, answer.reason) == (foretold.decision, foretold.reason)
            assert answer.admitted == (answer.reason == "")
            if not answer.rejected:
                known.add(asked.id)
            if answer.admitted:
                admitted.add(asked.id)
        stats = evaluator.stats()
        assert stats["memory_reserved"] <= 1000
        assert (stats["tasks"], stats["waiting"]) == (len(admitted), len(known) - len(admitted))
    for name in known:
        evaluator.release(name)
    assert evaluator.stats() == empty
