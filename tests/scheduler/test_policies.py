"""Every policy keeps its meaning on the CPU device: lanes, shares, priorities, limits, deadlines, partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]

# Tenants that want all they can get, and the device time they get while all of them want it. A lane that is idle for
# the moment is lent to whoever wants it, so a thread that is slow to come back loses some of its due: other programs on
# the same processors blur a window of time, but hardly each of many.
TENANTS = """
def tenant(scheduler, name, **asked):
    return scheduler.submit(work, name=name, **asked)

def work(size=20_000):
    x = gp.ones(size)
    while not stop.is_set():
        gp.tanh(x)

stop = threading.Event()

def await_wish(task):
    # A tenant that is always passed over submits nothing, and asks all the same.
    pause = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        figures = task.stats()
        if figures.get("submissions", 0) >= 3 or figures.get("throttled", 0):
            return
        pause.wait(0.001)
    raise AssertionError(f"{task!r} has asked for nothing in {PATIENCE} seconds: {task.stats()}")

def await_shares(hold, *tasks, limited=False):
    global stop
    pause, seen = threading.Event(), []
    for task in tasks:
        await_wish(task)
    while not seen or not hold(*seen[-1]):
        assert len(seen) < 60, seen
        began = time.monotonic()
        before = [task.stats()["device_seconds"] for task in tasks]
        pause.wait(0.3)
        passed = time.monotonic() - began
        used = [task.stats()["device_seconds"] - seconds for task, seconds in zip(tasks, before)]
        seen.append([*used, passed] if limited else used)
    stop.set()
    for task in tasks:
        task.result(PATIENCE)
    stop = threading.Event()

scheduler = Scheduler(total_memory="64MiB")
"""


def test_guaranteed_tasks_have_lanes_of_their_own(on_eight_sms: Run) -> None:
    program = """
first = tenant(scheduler, "first", policy="guaranteed", bandwidth=0.5)
second = tenant(scheduler, "second", policy="guaranteed", bandwidth=0.25, isolation="sm")
rest = tenant(scheduler, "rest")
for task in (first, second, rest):
    await_submissions(task, 3)
figures = [scheduler.stats(task.id) for task in (first, second, rest)]
assert [row["mode"] for row in figures] == ["own lane", "own lane", "time share"], figures
assert [row["sm_count"] for row in figures] == [4, 2, 2], figures
assert len({row["lane"] for row in figures}) == 3
device = scheduler.status()["partitions"][0]
assert (device["lanes"], device["lane_sms"]) == (2, 6)

third = scheduler.submit(use_device, policy="guaranteed", bandwidth=0.25)
assert third.decision == "queued"
assert third.reason == "SMs: 2 asked + 6 in lanes + 1 kept for the common lane > 8 of partition 'default'", third.reason
refused = scheduler.submit(use_device, policy="guaranteed", bandwidth=0.25, on_full="reject")
assert (refused.decision, refused.reason) == ("rejected", third.reason)
never = scheduler.submit(use_device, policy="guaranteed", bandwidth=1.0, isolation="sm")
assert never.decision == "rejected"
assert never.reason == "SMs: 8 asked + 1 kept for the common lane > 8 of partition 'default'", never.reason
late = scheduler.submit(use_device, bandwidth=0.3)
assert late.reason.startswith("time: 30% asked > 25%"), late.reason

# A lane needs nobody's turn, and its tenant is throttled by nobody.
await_shares(lambda *used: all(seconds > 0 for seconds in used), first, second, rest)
assert first.stats()["throttled"] == second.stats()["throttled"] == 0
assert third.result(PATIENCE) == late.result(PATIENCE) == 1000
assert third.stats()["sm_count"] == 2
device = scheduler.status()["partitions"][0]
assert (device["lanes"], device["lane_sms"]) == (0, 0)
assert scheduler.submit(lambda: current_task().stats()["sm_count"]).result(PATIENCE) == 8
"""
    on_eight_sms(TENANTS + program)


def test_requests_come_first_and_the_rest_is_by_class(on_eight_sms: Run) -> None:
    program = """
some, more = tenant(scheduler, "some", bandwidth=0.3), tenant(scheduler, "more", bandwidth=0.7)
await_shares(lambda some, more: 0.2 < some / (some + more) < 0.4, some, more)

# What nobody asked for is divided by weight: a half and a quarter, and a quarter.
asks, takes = tenant(scheduler, "asks", bandwidth=0.5), tenant(scheduler, "takes", bandwidth=0.01)
await_shares(lambda asks, takes: 0.6 < asks / (asks + takes) < 0.95, asks, takes)

# Besteffort tasks have what burstable ones leave.
below = tenant(scheduler, "below")
await_submissions(below, 3)
above = tenant(scheduler, "above", bandwidth=0.01)
await_shares(lambda above, below: above > 2 * below, above, below)

strict, free = tenant(scheduler, "strict", bandwidth=0.1, bandwidth_limit=0.2), tenant(scheduler, "free")
await_shares(lambda strict, free, passed: 0.02 * passed < strict < 0.3 * passed, strict, free, limited=True)
"""
    on_eight_sms(TENANTS + program)


def test_weights_and_priorities(on_eight_sms: Run) -> None:
    program = """
fair = [tenant(scheduler, str(weight), policy="fair", weight=weight) for weight in (1, 3)]
await_shares(lambda one, three: 1.8 * one < three < 5 * one, *fair)

equal = [tenant(scheduler, "one"), tenant(scheduler, "two")]
await_shares(lambda one, two: 0.6 * one < two < 1.7 * one, *equal)

low = tenant(scheduler, "low", policy="priority", priority=1)
await_submissions(low, 3)
await_shares(lambda low, high: high > 2 * low, low, tenant(scheduler, "high", policy="priority", priority=5))
"""
    on_eight_sms(TENANTS + program)


def test_a_limit_holds_without_neighbours(on_eight_sms: Run) -> None:
    program = """
task = tenant(scheduler, "capped", bandwidth=0.2, bandwidth_limit=0.2)
await_submissions(task, 3)
await_shares(lambda used, passed: 0 < used < 0.27 * passed, task, limited=True)
log = task.stats()["throttle_log"]
assert any(why == "limit" for _, _, why in log), log
assert task.stats()["throttled_seconds"] > 0
"""
    on_eight_sms(TENANTS + program)


@pytest.mark.parametrize("streams", ["inline", "deferred:1"])
def test_deadlines(on_eight_sms: Run, streams: str) -> None:
    program = """
hog = tenant(scheduler, "hog")
task = scheduler.submit(use_device, args=[3], deadline=0.1, period=0.1, cost=0.01, jobs=5)
assert task.policy == "burstable"
assert task.result(PATIENCE) == 1000
jobs = task.stats()["jobs"]
assert (jobs["released"], jobs["met"] + jobs["missed"]) == (5, 5), jobs
assert 0 < jobs["worst_seconds"]
assert jobs["deadline_seconds"] == 0.1
frames = scheduler.submit(use_device, args=[3], deadline=0.1, period=0.1, cost=0.01)
while frames.stats().get("jobs", {}).get("met", 0) < 3:
    assert frames.stats().get("jobs", {}).get("released", 0) < 300, frames.stats()
    time.sleep(0.01)
frames.cancel()

once = scheduler.submit(use_device, args=[3], deadline=30.0, cost=1.0)
once.result(PATIENCE)
assert once.stats()["jobs"]["met"] == 1

late = scheduler.submit(lambda: time.sleep(0.05), period=0.01, cost=0.005, jobs=3)
late.result(PATIENCE)
jobs = late.stats()["jobs"]
assert (jobs["released"], jobs["met"], jobs["missed"]) == (3, 0, 3), jobs
assert jobs["skipped"] > 0
assert jobs["worst_seconds"] >= 0.05

first = scheduler.submit(time.sleep, args=[0], period=0.1, cost=0.06)
more = scheduler.submit(use_device, period=0.1, cost=0.06)
assert more.decision == "queued", more.decision
assert "time" in more.reason or "deadline" in more.reason, more.reason
tight = scheduler.submit(use_device, deadline=0.001, period=0.1, cost=0.0009)
assert tight.decision == "rejected", tight.decision
assert tight.reason.startswith("deadlines: 90% asked + 50% for deadlines and blocking > 95%"), tight.reason
more.cancel(), first.cancel()

def fail():
    raise KeyError("job")
failing = scheduler.submit(fail, period=0.01, cost=0.001)
assert isinstance(failing.exception(PATIENCE), KeyError)
stop.set()
hog.result(PATIENCE)
"""
    on_eight_sms(TENANTS + program, PYGPUKIT_STREAMS=streams)


def test_partitions_with_their_own_sms(on_eight_sms: Run) -> None:
    program = """
part = scheduler.create_partition("inference", memory="16MiB", compute=0.5, isolation="sm", priority_band=(0, 5))
assert part.usage()["sms"] == 4
assert scheduler.submit(lambda: current_task().stats()["sm_count"]).result(PATIENCE) == 4
inside, outside = part.submit(work, name="inside"), tenant(scheduler, "outside")
await_submissions(inside, 3), await_submissions(outside, 3)
assert (inside.partition, inside.stats()["sm_count"], outside.stats()["sm_count"]) == ("inference", 4, 4)
assert inside.stats()["lane"] != outside.stats()["lane"]

# It is a small device: lanes are cut from it, and its memory and SMs are all it has.
lane = part.submit(use_device, policy="guaranteed", bandwidth=0.25, memory="4MiB")
assert lane.result(PATIENCE) == 1000
assert (lane.stats()["mode"], lane.stats()["sm_count"]) == ("own lane", 2)
wide = part.submit(use_device, policy="guaranteed", bandwidth=0.75, isolation="sm")
assert (wide.decision, "of partition 'inference'" in wide.reason) == ("rejected", True), wide.reason
large = part.submit(use_device, memory="17MiB")
assert large.reason == "memory: 17.0 MiB asked > 16.0 MiB of partition 'inference'"
outer = scheduler.submit(use_device, memory="49MiB")
assert outer.reason == "memory: 49.0 MiB asked > 48.0 MiB of partition 'default'", outer.reason

eager = part.submit(use_device, priority=6)
assert eager.reason == "priority: 6 is outside the band 0 to 5 of partition 'inference'"
assert part.submit(use_device, priority=5).result(PATIENCE) == 1000

stop.set()
inside.result(PATIENCE), outside.result(PATIENCE)
part.remove()
assert scheduler.submit(lambda: current_task().stats()["sm_count"]).result(PATIENCE) == 8
"""
    on_eight_sms(TENANTS + program)


def test_partitions_that_share_the_common_lane(on_eight_sms: Run) -> None:
    program = """
part = scheduler.create_partition(
    "training", memory="8MiB", compute=0.25, compute_limit=0.25, classes=["burstable", "besteffort"], queue_limit=1
)
usage = part.usage()
assert (usage["sms"], usage["time_capacity"], usage["memory_capacity"]) == (0, 0.25, 8 << 20), usage
refused = part.submit(use_device, policy="guaranteed", memory="1MiB")
assert refused.reason == "class: guaranteed is not taken by partition 'training'"
assert part.submit(use_device, bandwidth=0.3).reason.startswith("time: 30% asked > 25%")
crowd = scheduler.submit(use_device, bandwidth=0.8)
assert crowd.decision == "queued", crowd.decision
assert crowd.reason.startswith("time: 80% asked > 75%"), crowd.reason
assert crowd.cancel()

# The limit holds for each of its tasks, whatever they ask for.
inside, outside = part.submit(work, name="inside"), tenant(scheduler, "outside")
await_shares(lambda inside, outside, passed: 0 < inside < 0.35 * passed, inside, outside, limited=True)

go_on = threading.Event()
with part.task(memory="8MiB"):
    first = part.submit(go_on.wait, name="first", memory="1MiB")
    assert first.decision == "queued"
    second = part.submit(go_on.wait, name="second", memory="1MiB")
    assert second.decision == "rejected", second.decision
    assert "1" in second.reason, second.reason
    assert part.usage()["waiting"] == 1
go_on.set()
assert first.result(PATIENCE)

# Nobody takes more of the partition's memory than it has, reserved or not; what is too much moves to the host.
def hog():
    kept = []
    while True:
        kept.append(gp.ones(1 << 18))
assert isinstance(part.submit(hog, policy="burstable").exception(PATIENCE), OutOfMemoryError)
part.remove()
"""
    on_eight_sms(TENANTS + program, PYGPUKIT_PINNED_LIMIT="16MiB", PYGPUKIT_SPILL_LIMIT="16MiB")


def test_the_queue_is_in_order_and_nobody_starves(on_eight_sms: Run) -> None:
    program = """
go_on, order = threading.Event(), []
holder = scheduler.submit(go_on.wait, memory="40MiB")
await_state(holder, "running")

def queued(name, size, **more):
    task = scheduler.submit(order.append, args=[name], name=name, memory=size, **more)
    assert task.decision == "queued", (name, task.decision)
    return task

large = queued("large", "50MiB")
small = queued("small", "50MiB")
assert large.reason == "memory: 50.0 MiB asked + 40.0 MiB reserved > 64.0 MiB of partition 'default'", large.reason
# It would fit, but the large one came first and would wait for ever.
tiny = queued("tiny", "1MiB")
assert tiny.reason.startswith("memory: task "), tiny.reason
assert "came first and waits for it in partition 'default'" in tiny.reason
urgent = queued("urgent", "50MiB", priority=3)
assert [task.position for task in (urgent, large, small, tiny)] == [0, 1, 2, 3]
# Who needs no memory passes.
assert scheduler.submit(lambda: 5).result(PATIENCE) == 5
waiting = [row["name"] for row in scheduler.status()["tasks"] if row["state"] == "queued"]
assert sorted(waiting) == ["large", "small", "tiny", "urgent"]
go_on.set()
for task in (large, small, tiny, urgent):
    task.result(PATIENCE)
assert [name for name in order if name != "tiny"] == ["urgent", "large", "small"], order
"""
    on_eight_sms(TENANTS + program)


def test_windows_of_the_whole_device(on_eight_sms: Run) -> None:
    program = """
window = tenant(scheduler, "window", policy="guaranteed", bandwidth=0.5, isolation="time")
await_submissions(window, 3)
assert (window.stats()["mode"], window.stats()["sm_count"]) == ("time share", 8)
lane = scheduler.submit(use_device, policy="guaranteed", bandwidth=0.25, isolation="sm")
assert lane.decision == "queued"
assert "whole" in lane.reason or "window" in lane.reason, lane.reason
await_shares(lambda window, rest: window > 0.4 * (window + rest), window, tenant(scheduler, "rest"))
assert lane.result(PATIENCE) == 1000
"""
    on_eight_sms(TENANTS + program)


def test_nothing_can_be_divided_on_one_sm(on_eight_sms: Run) -> None:
    program = """
assert scheduler.status()["capacity"]["mechanism"] == "turns"
task = tenant(scheduler, "half", policy="guaranteed", bandwidth=0.5)
await_submissions(task, 3)
assert (task.stats()["mode"], task.stats()["sm_count"]) == ("time share", 1)
await_shares(lambda half, rest: half > 0.4 * (half + rest), task, tenant(scheduler, "rest"))
refused = scheduler.submit(use_device, policy="guaranteed", bandwidth=0.5, isolation="sm")
assert refused.decision == "rejected", refused.decision
assert "SM" in refused.reason, refused.reason
"""
    on_eight_sms(TENANTS + program, PYGPUKIT_CPU_SMS="1")


def test_more_lanes_than_there_are(on_eight_sms: Run) -> None:
    program = """
tasks = [tenant(scheduler, f"lane {n}", policy="guaranteed", bandwidth=0.01) for n in range(10)]
for task in tasks:
    await_submissions(task, 3)
modes = [task.stats()["mode"] for task in tasks]
assert modes.count("own lane") == 7, modes
assert set(modes) == {"own lane", "time share"}
stop.set()
for task in tasks:
    task.result(PATIENCE)
"""
    on_eight_sms(TENANTS + program, PYGPUKIT_CPU_SMS="32")
