"""Memory of tenants: promises are kept beside a hog, limits hold, and what a task had comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]

# A device of 64 MiB, and room for as much beside it.
SMALL = {"PYGPUKIT_CPU_MEMORY": "64MiB", "PYGPUKIT_PINNED_LIMIT": "32MiB", "PYGPUKIT_SPILL_LIMIT": "32MiB"}

TENANTS = """
MIB = 1 << 20

def array(mib, value=1.0):
    return gp.full(mib * MIB // 4, value, "float32")

def refused(call, *args):
    try:
        call(*args)
    except OutOfMemoryError as error:
        return str(error)
    raise AssertionError("it was not refused")

def hog():
    kept = []
    while not stop.is_set():
        try:
            kept.append(array(2))
        except OutOfMemoryError:
            refusals.append(1)
            del kept[::2]
            yield_()

def fill():
    kept = []
    while gp.memory.snapshot().free > 4 * MIB:
        kept.append(array(2))
    filled.set()
    stop.wait(PATIENCE)

filled = threading.Event()
stop, refusals = threading.Event(), []
scheduler = Scheduler(total_memory="60MiB")
"""


@pytest.mark.parametrize("hogs", ["besteffort", "burstable"])
def test_guaranteed_memory_beside_a_hog(on_eight_sms: Run, hogs: str) -> None:
    program = f"""
def critical():
    while len(refusals) < 3:
        time.sleep(0.001)
    for turn in range(1000):
        arrays = [gp.empty(2 * MIB, "uint8") for _ in range(7)]
        del arrays
    with_values = array(14, 3.0)
    assert (with_values.to_numpy() == 3.0).all()
    del with_values
    small = [gp.empty(1000, "float32") for _ in range(1000)]
    return turn

task = scheduler.submit(critical, policy="guaranteed", memory="16MiB")
assert task.decision == "admitted"
await_state(task, "running")
neighbour = scheduler.submit(hog, policy="{hogs}", name="hog")
assert task.result(PATIENCE) == 999
assert task.stats()["memory_peak"] == 14 * MIB
assert task.stats()["evictions"] == 0
assert neighbour.state == "running"
stop.set()
neighbour.result(PATIENCE)
assert neighbour.stats()["evictions"] > 0
"""
    on_eight_sms(TENANTS + program, **SMALL)


def test_who_was_there_first_gives_way_to_a_guarantee(on_eight_sms: Run) -> None:
    program = """
neighbour = scheduler.submit(fill, name="fill")
assert filled.wait(PATIENCE)

def critical():
    large = array(40)
    del large
    return len([gp.empty(1000, "float32") for _ in range(1000)])

for _ in range(5):
    task = scheduler.submit(critical, policy="guaranteed", memory="42MiB")
    assert task.decision == "admitted"
    assert task.result(PATIENCE) == 1000
stop.set()
neighbour.result(PATIENCE)
"""
    on_eight_sms(TENANTS + program, **SMALL)


def test_a_promise_waits_for_what_cannot_be_moved(on_eight_sms: Run) -> None:
    program = """
def fill_both():
    kept = []
    refused(lambda: [kept.append(array(2)) for _ in range(1000)])
    filled.set()
    go_on.wait(PATIENCE)
    # Others take no more while a promise waits.
    for step in range(4):
        refusals.append(refused(array, 2))
        del kept[: len(kept) // 4]
    stop.wait(PATIENCE)
    return len(kept)

def critical():
    return array(24, 3.0)

go_on = threading.Event()
neighbour = scheduler.submit(fill_both, name="fill")
assert filled.wait(PATIENCE)
first = scheduler.submit(critical, policy="guaranteed", memory="42MiB", name="first")
second = scheduler.submit(critical, policy="guaranteed", memory="16MiB", name="second")
assert (first.decision, second.decision) == ("admitted", "admitted")
for task in (first, second):
    while task.reason is None:
        assert not task.done(), task.exception()
        time.sleep(0.001)
    assert (task.state, task.position) == ("starting", None)
    assert "PYGPUKIT_SPILL_LIMIT" in task.reason, task.reason

# Whoever waits so can be cancelled, and claims nothing any more.
assert second.cancel()
assert isinstance(second.exception(PATIENCE), TaskCancelledError)
assert second.reason is None

async def wait_in_a_loop():
    async def critical():
        return array(1)
    tasks = [scheduler.submit(critical, policy="guaranteed", memory="1MiB") for _ in range(12)]
    for task in tasks:
        while task.reason is None:
            await asyncio.sleep(0.001)
        assert task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)
assert {type(error) for error in asyncio.run(wait_in_a_loop())} == {TaskCancelledError}

go_on.set()
result = first.result(PATIENCE)
assert "was promised memory" in refusals[0], refusals
stop.set()
assert neighbour.result(PATIENCE) > 0
# The promise is over with its task: its result gives way like that of others.
assert scheduler.submit(critical, policy="guaranteed", memory="42MiB").result(PATIENCE) is not None
assert (result.to_numpy() == 3.0).all()
assert scheduler.submit(use_device).result(PATIENCE) == 1000
"""
    on_eight_sms(TENANTS + program, **SMALL)


def test_more_than_the_limit_is_refused(on_eight_sms: Run) -> None:
    program = """
quota = "requested 9.0 MiB, but pool 'refused' uses 0 B of its quota of 8.0 MiB"
assert quota in scheduler.submit(refused, args=[array, 9], policy="guaranteed", memory="8MiB").result(PATIENCE)
assert quota in scheduler.submit(refused, args=[array, 9], memory="2MiB", memory_limit="8MiB").result(PATIENCE)

def step_by_step():
    kept = []
    text = refused(lambda: [kept.append(array(1)) for _ in range(20)])
    assert len(kept) == 8, len(kept)
    kept.pop()
    kept.append(array(1))
    return text
assert "quota of 8.0 MiB" in scheduler.submit(step_by_step, policy="guaranteed", memory="8MiB").result(PATIENCE)

# Whoever is not guaranteed may have more than was reserved, while there is some.
assert scheduler.submit(array, args=[20], memory="2MiB").result(PATIENCE).size == 5 * MIB
too_much = scheduler.submit(array, args=[100])
assert isinstance(too_much.exception(PATIENCE), OutOfMemoryError)
assert scheduler.submit(use_device).result(PATIENCE) == 1000
"""
    on_eight_sms(TENANTS + program, **SMALL)


def test_a_task_that_allocates_without_end_harms_nobody(on_eight_sms: Run) -> None:
    program = """
def endless(kept):
    while True:
        kept.append(array(2, float(len(kept))))

go_on = threading.Event()
def neighbour():
    mine = array(8, 7.0)
    go_on.wait(PATIENCE)
    return bool((mine.to_numpy() == 7.0).all())
beside = scheduler.submit(neighbour, memory="8MiB")

for asked in ({"policy": "guaranteed", "memory": "8MiB"}, {"memory": "4MiB", "memory_limit": "8MiB"}, {}):
    kept = []
    greedy = scheduler.submit(endless, args=[kept], **asked)
    assert isinstance(greedy.exception(PATIENCE), OutOfMemoryError), greedy.exception()
    assert greedy.stats()["memory_peak"] <= 60 * MIB
    # What it had is intact, on the device or on the host; some room is needed to bring it back.
    del kept[len(kept) // 2:]
    for number, x in enumerate(kept):
        assert (x.to_numpy() == number).all()
    del kept, x, greedy
    gc.collect()
    assert scheduler.submit(array, args=[8], policy="guaranteed", memory="8MiB").result(PATIENCE).size == 2 * MIB
go_on.set()
assert beside.result(PATIENCE) is True
"""
    on_eight_sms(TENANTS + program, **SMALL)


def test_memory_comes_back_though_results_are_kept(on_eight_sms: Run) -> None:
    program = """
for asked in ({"policy": "guaranteed", "memory": "32MiB"}, {"memory": "32MiB"}, {"memory_soft": "32MiB"}, {}):
    kept = scheduler.submit(array, args=[30, 5.0], **asked).result(PATIENCE)
    assert scheduler.status()["partitions"][0]["memory_reserved"] == 0
    # There is not room for both: what is left of an ended task goes to the host.
    large = scheduler.submit(lambda: array(48) is not None, policy="guaranteed", memory="50MiB")
    assert large.result(PATIENCE)
    assert not kept.is_resident
    assert (kept.to_numpy() == 5.0).all()
    del kept

# What was made outside of tasks cannot move, and who is in the way of a promise is named.
kept = array(30)
large = scheduler.submit(array, args=[48], policy="guaranteed", memory="50MiB")
assert "pool 'default'" in str(large.exception(PATIENCE)), large.exception()
del kept
gc.collect()
assert scheduler.submit(array, args=[48], policy="guaranteed", memory="50MiB").result(PATIENCE).size == 12 * MIB
gc.collect()
assert scheduler.status()["partitions"][0]["memory_reserved"] == 0
assert pools() == {"default"}, pools()
"""
    on_eight_sms(TENANTS + program, **SMALL)


def test_lower_classes_lose_their_memory_first(on_eight_sms: Run) -> None:
    program = """
held, go_on = [], threading.Event()

def hold(value):
    mine = [array(2, value) for _ in range(8)]
    held.append(value)
    assert go_on.wait(PATIENCE)
    where = [x.is_resident for x in mine]
    assert all((x.to_numpy() == value).all() for x in mine)
    return where

besteffort = scheduler.submit(hold, args=[1.0], name="besteffort")
burstable = scheduler.submit(hold, args=[2.0], name="burstable", policy="burstable", memory_soft="8MiB")
guaranteed = scheduler.submit(hold, args=[3.0], name="guaranteed", policy="guaranteed", memory="16MiB")
while len(held) < 3:
    time.sleep(0.001)

def press(mib):
    task = scheduler.submit(lambda: array(mib) is not None, policy="guaranteed", memory=mib * MIB)
    assert task.result(PATIENCE)
    return besteffort.stats()["evictions"], burstable.stats()["evictions"]

assert press(8) == (0, 0)
evicted, above_floor = press(20)
assert evicted > 0
assert above_floor == 0 or besteffort.stats()["memory"] == 0, "a besteffort task had memory left"
evicted, above_floor = press(36)
assert above_floor > 0
assert besteffort.stats()["memory"] == 0
assert burstable.stats()["memory"] >= 8 * MIB
assert guaranteed.stats()["evictions"] == 0
go_on.set()
assert not any(besteffort.result(PATIENCE))
# What it asked not to lose it has not lost.
assert sum(burstable.result(PATIENCE)) >= 4
assert all(guaranteed.result(PATIENCE))
"""
    on_eight_sms(TENANTS + program, **SMALL)


def test_arrays_go_from_task_to_task(on_eight_sms: Run) -> None:
    program = """
x = gp.ones(1000)
y = scheduler.submit(lambda: x + 1, policy="guaranteed", memory="2MiB", bandwidth=0.25).result(PATIENCE)
z = scheduler.submit(lambda: y + x, memory="2MiB").result(PATIENCE)
assert (z.to_numpy() == 3).all()
w = gp.add(z, y)
assert (w.to_numpy() == 5).all()
"""
    for streams in ("inline", "deferred:3"):
        on_eight_sms(TENANTS + program, PYGPUKIT_STREAMS=streams, **SMALL)
