"""Transfers: copies that go on meanwhile, page-locked memory, and what can go wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    """Chunks small enough that megabytes are many of them."""
    before = native.transfer_options()
    native.set_transfer_options(3, 64 << 10, 4, False)
    yield
    native.set_transfer_options(*before)


def noise(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@settings(max_examples=25)
@given(
    nbytes=st.integers(0, 3 * MIB),
    dtype=st.sampled_from(["uint8", "int16", "float32", "complex128"]),
    pinned=st.booleans(),
)
def test_values_survive_the_way_there_and_back(nbytes: int, dtype: str, pinned: bool) -> None:
    count = nbytes // np.dtype(dtype).itemsize
    source = gp.empty_pinned(count, dtype) if pinned else np.empty(count, dtype)
    source.view(np.uint8)[:] = noise(source.nbytes, nbytes)
    wanted = source.copy()
    array = gp.from_numpy(source)
    source[:] = 0
    assert array.to_numpy().tobytes() == wanted.tobytes()
    there = gp.copy_to_device(wanted)
    assert there.wait()
    target = gp.empty_pinned(count, dtype) if pinned else np.empty(count, dtype)
    back = gp.copy_to_host(there.array, target)
    assert back.wait()
    assert back.host is target
    assert target.tobytes() == wanted.tobytes()


def test_what_a_transfer_tells() -> None:
    host = noise(2 * MIB)
    transfer = gp.copy_to_device(host, priority="high")
    assert transfer.wait() is True
    assert transfer.wait(0) is True
    assert transfer.done
    assert (transfer.bytes, transfer.bytes_done, transfer.priority) == (2 * MIB, 2 * MIB, "high")
    seconds = transfer.seconds
    assert seconds == transfer.seconds > 0
    assert transfer.bandwidth == pytest.approx(2 * MIB / seconds / 1e9)
    assert transfer.host is host
    assert repr(transfer) == "<Transfer 2097152 of 2097152 bytes, priority=high>"
    assert not transfer.cancel()


def test_a_transfer_into_an_array_and_a_view() -> None:
    array = gp.zeros((4, 300_000), "uint8")
    rows = noise(600_000).reshape(2, 300_000)
    gp.copy_to_device(rows, array[1:3]).wait()
    got = array.to_numpy()
    np.testing.assert_array_equal(got[1:3], rows)
    assert not got[0].any()
    assert not got[3].any()
    columns = gp.copy_to_host(array.T)
    columns.wait()
    np.testing.assert_array_equal(columns.host, got.T)


def test_zero_dimensions_and_no_elements() -> None:
    one = gp.copy_to_device(np.float32(5))
    one.wait()
    assert (one.array.shape, one.array.item()) == ((), 5.0)
    none = gp.copy_to_device(np.empty((3, 0)))
    assert none.wait()
    assert gp.copy_to_host(none.array).wait()
    assert gp.empty_pinned((0, 3)).shape == (0, 3)
    assert gp.empty_pinned((), "int8").shape == ()


def test_bfloat16_is_pinned_and_copied() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    host = gp.empty_pinned((2, 70_000), "bfloat16")
    assert host.dtype == ml_dtypes.bfloat16
    host[:] = 1.5
    assert gp.from_numpy(host)[1, 5].item() == 1.5


def test_wrong_arguments() -> None:
    array = gp.zeros(4, "int32")
    with pytest.raises(gp.ShapeError, match=r"\(4,\).*\(5,\)"):
        gp.copy_to_device(np.zeros(5, "int32"), array)
    with pytest.raises(gp.DTypeError, match=r"int32.*int64"):
        gp.copy_to_host(array, np.zeros(4, "int64"))
    with pytest.raises(TypeError, match="NumPy"):
        gp.copy_to_device([1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="GPUArray"):
        gp.copy_to_host(np.zeros(4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="GPUArray"):
        gp.copy_many([(np.zeros(4), np.zeros(4))])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="'high' or 'normal', not 'low'"):
        gp.copy_to_device(np.zeros(4), priority="low")
    with pytest.raises(ValueError, match="contiguous"):
        gp.copy_to_host(array, np.zeros(8, "int32")[::2])
    with pytest.raises(TypeError, match="NumPy array, not list"):
        gp.copy_to_host(array, [0, 0, 0, 0])  # type: ignore[arg-type]
    frozen = np.zeros(4, "int32")
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="written"):
        gp.copy_to_host(array, frozen)
    with pytest.raises(ValueError, match="nan"):
        gp.copy_to_host(array).wait(float("nan"))
    with pytest.raises(ValueError, match="negative"):
        gp.empty_pinned(-1)
    with pytest.raises(TypeError):
        gp.empty_pinned("ab")
    with pytest.raises(gp.OutOfMemoryError, match="PYGPUKIT_PINNED_LIMIT"):
        gp.empty_pinned((1 << 40, 1 << 40))


def test_copies_are_ordered_on_the_stream_they_name() -> None:
    for _ in range(5):
        stream = gp.Stream()
        with stream:
            x = gp.zeros(MIB, "uint8")
            for value in range(1, 4):
                x.fill(value)
        back = gp.copy_to_host(x, stream=stream)
        back.wait()
        assert (back.host == 3).all()


def test_a_wait_covers_what_the_other_stream_waits_for() -> None:
    first, second, third = gp.Stream(), gp.Stream(), gp.Stream()
    for value in range(20):
        x = gp.zeros(1000, "int32")
        with first:
            for i in range(5):
                x.fill(value * i)
        event = first.record()
        second.wait(event)
        third.wait(second)
        assert x.to_numpy(stream=third)[0] == value * 4


def test_cancelled() -> None:
    host = np.tile(noise(MIB), 64)
    transfer = gp.copy_to_device(host)
    cancelled = transfer.cancel()
    if cancelled:
        with pytest.raises(gp.TransferCancelledError, match=f"transfer of {host.nbytes} bytes was cancelled"):
            transfer.wait()
        with pytest.raises(RuntimeError):
            transfer.wait()
    else:
        assert transfer.wait()
    assert transfer.done
    np.testing.assert_array_equal(gp.from_numpy(host[:MIB]).to_numpy(), host[:MIB])


def test_the_array_and_the_transfer_may_be_dropped_meanwhile() -> None:
    host = noise(4 * MIB)
    for _ in range(5):
        transfer = gp.copy_to_device(host)
        del transfer
        others = [gp.full(4 * MIB, 7, "uint8") for _ in range(3)]
        assert all((other.to_numpy() == 7).all() for other in others)
    gp.synchronize()


def test_the_host_array_lives_as_long_as_it_is_needed_and_no_longer() -> None:
    host = noise(2 * MIB)
    watch = weakref.ref(host)
    transfer = gp.copy_to_device(host)
    del host
    assert watch() is not None
    transfer.wait()
    del transfer
    for _ in range(1000):
        gc.collect()
        gp.zeros(1).to_numpy()
        if watch() is None:
            break
    assert watch() is None


def test_pinned_memory_goes_back() -> None:
    gp.synchronize()
    before = gp.memory.pinned_stats()
    a = gp.empty_pinned((3, MIB), "float32")
    row = a[1, ::2]
    used = gp.memory.pinned_stats()["used"]
    assert used - before["used"] == 12 * MIB
    del a
    assert gp.memory.pinned_stats()["used"] == used, "a view keeps it"
    del row
    assert gp.memory.pinned_stats()["used"] == before["used"]
    hits = gp.memory.pinned_stats()["hits"]
    address = gp.empty_pinned(3 * MIB, "float32").ctypes.data
    assert gp.memory.pinned_stats()["hits"] == hits + 1
    assert gp.empty_pinned(3 * MIB, "float32").ctypes.data == address
    assert gp.memory.trim_pinned() >= 12 * MIB
    with pytest.raises(gp.OutOfMemoryError, match="PYGPUKIT_PINNED_LIMIT"):
        gp.empty_pinned(1 << 50, "uint8")


def test_many_small_arrays_at_once() -> None:
    whole = gp.zeros((50, 64))
    scattered = [gp.zeros(i, "int16") for i in range(1, 60)]
    large = gp.zeros(MIB, "uint8")
    rows = [np.full(64, i, "float32") for i in range(50)]
    pieces = [np.full(i, -i, "int16") for i in range(1, 60)]
    bulk = noise(MIB)
    pairs = [
        *zip(rows, (whole[i] for i in range(50)), strict=True),
        (bulk, large),
        *zip(pieces, scattered, strict=True),
    ]
    gp.copy_many(iter(pairs))
    for row in rows:
        row[:] = -1
    np.testing.assert_array_equal(whole.to_numpy(), np.arange(50.0)[:, None] * np.ones(64))
    np.testing.assert_array_equal(large.to_numpy(), bulk)
    assert all((array.to_numpy() == -i).all() for i, array in enumerate(scattered, 1))
    gp.copy_many([])


def test_awaited() -> None:
    async def work() -> list[Any]:
        transfers = [gp.copy_to_device(noise(MIB, i)) for i in range(4)]
        done = await asyncio.gather(*(_finished(transfer) for transfer in transfers))
        cancelled = gp.copy_to_device(np.tile(noise(MIB), 64))
        if cancelled.cancel():
            with pytest.raises(gp.TransferCancelledError):
                await cancelled
        return done

    async def _finished(transfer: gp.Transfer) -> np.ndarray[Any, Any]:
        assert await transfer is transfer
        return transfer.array.to_numpy()

    for i, got in enumerate(asyncio.run(work())):
        np.testing.assert_array_equal(got, noise(MIB, i))


def test_many_threads() -> None:
    wrong: list[str] = []

    def copy(seed: int) -> None:
        try:
            with gp.Stream():
                for i in range(6):
                    host = noise([100, 300_000, MIB][(seed + i) % 3], seed)
                    transfer = gp.copy_to_device(host, priority=("high", "normal")[i % 2])
                    same = gp.from_numpy(host).to_numpy()
                    transfer.wait()
                    if not (same == host).all() or not (transfer.array.to_numpy() == host).all():
                        wrong.append(f"thread {seed}, copy {i}")
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=copy, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_capture_records_uploads_and_refuses_the_rest() -> None:
    host, graph, x = noise(MIB), gp.CudaGraph(), gp.zeros(MIB, "uint8")
    with graph.capture():
        y = gp.from_numpy(host)
        gp.copy_many([(host, x), (host[:5], x[:5])])
        for refused in (
            lambda: gp.copy_to_device(host),
            lambda: gp.copy_to_host(x),
            lambda: gp.load_raw(__file__, 0, 1, "uint8"),
        ):
            with pytest.raises(gp.GraphError, match="while a graph is being captured"):
                refused()
    wanted = host.copy()
    host[:] = 0
    graph.replay()
    gp.synchronize()
    np.testing.assert_array_equal(x.to_numpy(), wanted)
    np.testing.assert_array_equal(y.to_numpy(), wanted)


def test_without_page_locked_memory(run_python: Callable[..., str]) -> None:
    program = """
import numpy as np
import pygpukit as gp
for n in (10, 200_000, 5_000_000):
    a = np.arange(n)
    t = gp.copy_to_device(a)
    t.wait()
    assert (gp.from_numpy(a).to_numpy() == a).all() and (t.array.to_numpy() == a).all()
try:
    gp.empty_pinned(10)
except MemoryError as error:
    print(error)
print(gp.memory.pinned_stats()["limit"])
"""
    for streams in ("inline", "deferred:1"):
        out = run_python(program, PYGPUKIT_STREAMS=streams, PYGPUKIT_PINNED_LIMIT="0")
        assert "pinned host memory" in out
        assert out.endswith("\n0\n")


def test_a_forked_child_copies_on_the_cpu(run_python: Callable[..., str]) -> None:
    program = """
import os
import numpy as np
import pygpukit as gp
a = np.arange(2_000_000)
assert (gp.from_numpy(a).to_numpy() == a).all()
pid = os.fork()
if pid == 0:
    ok = (gp.from_numpy(a).to_numpy() == a).all()
    t = gp.copy_to_device(a)
    t.wait()
    os._exit(0 if ok and (t.array.to_numpy() == a).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    for streams in ("inline", "deferred:1"):
        assert run_python(program, PYGPUKIT_STREAMS=streams) == "0\n"


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "del gp; import gc; gc.collect()"])
def test_the_interpreter_ends_with_transfers_on_their_way(run_python: Callable[..., str], ending: str) -> None:
    program = f"""
import sys
import numpy as np
import pygpukit as gp
a = np.ones(8_000_000)
transfers = [gp.copy_to_device(a) for _ in range(3)]
p = gp.empty_pinned(1 << 20)
transfers.append(gp.copy_to_device(p))
print("end")
{ending}
"""
    for streams in ("inline", "deferred:1"):
        assert run_python(program, PYGPUKIT_STREAMS=streams) == "end\n"


def test_the_benchmark_runs_without_a_gpu(repository: Path, tmp_path: Path) -> None:
    result = tmp_path / "rows.json"
    script = repository / "benchmarks/memory/transfer.py"
    sizes = ["--size", "1MiB", "--file-size", "2MiB", "--rounds", "1", "--folder", str(tmp_path)]
    command = [sys.executable, str(script), *sizes, "--sweep", "workers=1,2", "--json", str(result)]
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "PYGPUKIT_DEVICE": "cpu"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=100)
    rows = json.loads(result.read_text())["rows"]
    assert len(rows) == 22
    assert {row["options"]["workers"] for row in rows} == {1, 2}
    assert all(row["ours"] > 0 for row in rows)
