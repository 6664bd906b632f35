"""Memory that runs out, is cut off or loses its program half way: nothing lost, nothing locked, a clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from memory_programs import PROLOGUE

Run = Callable[..., str]

both = pytest.mark.parametrize("streams", ["inline", "deferred:1"])


@both
def test_a_capture_that_finds_no_memory(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make()
x, other = filled(pool, 2)
gp.synchronize()
graph = gp.CudaGraph()
with pool:
    # Short of memory a capture evicts; nothing is run.
    with graph.capture():
        a = x + 1.0
        b = a * 2.0
    assert graph.num_nodes == 2
    graph.replay()
    assert (b.to_numpy() == 2).all()
    check([other], 1)
    del a, b
    graph.reset()
    # What is pinned cannot go: the capture ends with an error, and the next one works.
    x.pin(), other.pin()
    y = full(5.0)
    y.pin()
    def capture():
        with graph.capture():
            x + 1.0
    text = refused(capture)
    assert "pinned" in text and "quota of 6.0 MiB" in text, text
    assert not graph.is_ready
    other.unpin()
    graph.reset()
    with graph.capture():
        result = x + 1.0
    graph.replay()
    assert (result.to_numpy() == 1).all()
    x.unpin(), y.unpin()
    graph.replay()
check([x, other])
del x, y, other, graph, result
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_host_memory_that_runs_out(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make()
arrays, text = [], ""
with pool:
    while not text and len(arrays) < 10:
        try:
            arrays.append(full(len(arrays)))
        except MemoryError as error:
            text = str(error)
assert "no host memory" in text and "PYGPUKIT_SPILL_LIMIT" in text, text
count = len(arrays)
assert 4 <= count <= 5 and pool.stats()["live"] == count, pool.stats()
refused(lambda: pool.set_quota(2 * MIB), MemoryError)
pool.set_quota(6 * MIB)
assert pool.used <= 6 * MIB
here = [array.is_resident for array in arrays]
for i in range(count):
    if here[i]:
        assert (arrays[i].to_numpy() == i).all()
# Dropping what is on the host makes room there.
gone = here.index(False)
arrays[gone] = None
gp.synchronize()
with pool:
    arrays[gone] = full(gone)
# Dropping what is on the device makes room for what is not.
here = [array.is_resident for array in arrays]
for i in range(count):
    if here[i]:
        arrays[i] = None
for i in range(count):
    if not here[i]:
        assert (arrays[i].to_numpy() == i).all(), i
arrays.clear()
check_empty(pool)
print("ok")
"""
    )
    for limits in (("0", "4MiB"), ("5MiB", "0")):
        environ = {"PYGPUKIT_PINNED_LIMIT": limits[0], "PYGPUKIT_SPILL_LIMIT": limits[1]}
        assert run_python(program, PYGPUKIT_STREAMS=streams, **environ) == "ok\n", limits


@both
def test_slabs_give_their_host_memory_back(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make(4 * MIB)
with pool:
    small = [full(float(i), 1000) for i in range(50)]
assert small[0].evict()
del small
gp.synchronize()
# All of it is needed for the next one.
with pool:
    large = [full(i) for i in range(3)]
assert [array.is_resident for array in large] == [False, True, True]
del large[1:]
check(large)
print("ok")
"""
    )
    environ = {"PYGPUKIT_PINNED_LIMIT": "0", "PYGPUKIT_SPILL_LIMIT": "2MiB"}
    assert run_python(program, PYGPUKIT_STREAMS=streams, **environ) == "ok\n"


@both
def test_a_file_cut_short_while_its_array_moves(run_python: Run, tmp_path: Path, streams: str) -> None:
    path = tmp_path / "weights.bin"
    program = (
        PROLOGUE
        + f"""
path = {str(path)!r}
native.set_transfer_options(3, 64 << 10, 4, False)
values = np.random.default_rng(1).integers(0, 256, 4 * MIB, dtype=np.uint8)
values.tofile(path)
pool = make(8 * MIB)
with pool:
    arrays = [full(i) for i in range(3)]
    array = gp.load_raw(path, 0, 4 * MIB, "uint8")
    assert (array.to_numpy() == values).all()
    target = gp.zeros(4 * MIB, "uint8")
said = ""
with open(path, "rb") as file:
    # Threads may be done before the file is short; not every time.
    for turn in range(50):
        target.evict()
        handle = native.start_load(target, file.fileno(), path, 0)
        os.truncate(path, 1000)
        arrays[turn % 3].evict()
        try:
            handle.wait()
        except gp.LoadError as error:
            said = str(error)
            break
        values.tofile(path)
assert path in said and "1000 bytes" in said, said
check(arrays)
assert (array.to_numpy() == values).all()
arrays.clear()
del array, target, handle
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_transfers_cancelled_while_their_arrays_move(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
native.set_transfer_options(3, 64 << 10, 4, False)
pool = make()
arrays = filled(pool, 6)
host = np.full(N, 9, "float32")
for turn in range(20):
    up = gp.copy_to_device(host, arrays[turn % 3])
    down = gp.copy_to_host(arrays[3 + turn % 3])
    # Others push them out, and they come back for each chunk.
    arrays[(turn + 1) % 3].fill((turn + 1) % 3)
    cancelled = [up.cancel(), down.cancel()]
    for transfer, stopped in zip((up, down), cancelled):
        try:
            transfer.wait()
            assert not stopped
        except gp.TransferCancelledError:
            assert stopped
    if not cancelled[1]:
        assert (down.host == 3 + turn % 3).all()
    arrays[turn % 3].fill(turn % 3)
    assert pool.used <= 6 * MIB
# Dropped in the middle, array and all.
for _ in range(5):
    with pool:
        gp.copy_to_device(host)
        gp.copy_to_host(full(1.0))
check(arrays)
arrays.clear()
del up, down, transfer
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_a_quota_lowered_below_what_cannot_move(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make(8 * MIB)
arrays = filled(pool, 4)
arrays[0].pin()
address = arrays[1].ptr
pool.set_quota(1 * MIB)
assert pool.used == 4 * MIB, pool.used
assert [array.is_resident for array in arrays] == [True, True, False, False]
arrays[0] += 1.0
arrays[0] -= 1.0
text = refused(lambda: arrays[2].to_numpy())
assert "2.0 MiB pinned" in text and "2.0 MiB exported" in text, text
with pool:
    refused(lambda: full(1.0, 10))
pool.set_quota(8 * MIB)
check(arrays)
assert arrays[1].ptr == address
arrays[0].unpin()
arrays.clear()
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_a_pool_closed_with_arrays_on_the_host(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
outer = make(8 * MIB)
with outer:
    pool = make()
arrays = filled(pool, 6)
view = arrays[0][10:20]
pool.close()
with pool:
    assert "closed" in refused(lambda: full(1.0), ValueError)
check(arrays)
others = filled(outer, 4)
check(arrays)
check(others)
del pool
check(arrays)
del arrays
gc.collect()
assert view.tolist() == [0.0] * 10
del view
others.clear()
gc.collect()
gp.synchronize()
assert outer.used == 0
check_empty(outer)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_memory_errors_inside_host_functions(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make()
arrays = filled(pool, 4)
def fail():
    raise MemoryError("no more")
for turn in range(4):
    try:
        native.submit_host(fail, [arrays[turn]], [arrays[(turn + 1) % 4]])
        gp.synchronize()
        raise AssertionError("the error is lost")
    except MemoryError as error:
        assert "no more" in str(error)
    arrays[turn].evict()
errors = []
def work():
    try:
        with pool:
            [gp.zeros(N) for _ in range(4)][0].pin()
            gp.zeros(8 * MIB)
    except MemoryError as error:
        errors.append(str(error))
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(errors) == 3 and all("quota of 6.0 MiB" in text for text in errors), errors
check(arrays)
arrays.clear()
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_trimming_gives_back_what_evictions_left(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
start = gp.current_device().memory_info()
pool = make()
arrays = filled(pool, 5)
assert all(array.evict() for array in arrays)
pool.trim()
assert gp.current_device().memory_info() == start
check(arrays)
arrays.clear()
check_empty(pool)
assert gp.current_device().memory_info() == start
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"
