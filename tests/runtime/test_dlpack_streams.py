"""DLPack and the CUDA array interface on the fake driver: who waits for whom, and how long memory stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="there is no fake CUDA driver")
Run = Callable[..., str]

PRELUDE = """
import gc
u64 = ctypes.c_uint64

class Relay:
    # An array of another library over one of ours, which puts work of its own on a stream first.
    def __init__(self, x, before=lambda stream: None):
        self.x, self.before = x, before
    def __dlpack_device__(self):
        return self.x.__dlpack_device__()
    def __dlpack__(self, *, stream=None, **given):
        self.stream = stream
        self.before(stream)
        return self.x.__dlpack__(stream=stream, **given)

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
NAME, USED = b"dltensor_versioned", b"used_dltensor_versioned"

def data(capsule):
    # version, context, deleter, flags, data
    return u64.from_address(_api.PyCapsule_GetPointer(capsule, NAME) + 32).value

def consume(capsule):
    managed = _api.PyCapsule_GetPointer(capsule, NAME)
    _api.PyCapsule_SetName(capsule, USED)
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(u64.from_address(managed + 16).value)
    return lambda: deleter(managed)
"""


@pytest.fixture
def run(run_fake: Run) -> Run:
    return lambda program, **settings: run_fake(PRELUDE + program + "\nprint('ok')", **settings)


def test_the_consumers_stream_waits_for_work_on_the_array(run: Run) -> None:
    program = """
other = gp.Stream()
for stream, handle in ((None, 1), (1, 1), (2, 2), (other.handle, other.handle)):
    x = gp.empty(100, dtype="int32")
    configure("LAZY", 0)
    x.fill(1)
    gp.synchronize()
    configure("LAZY", 1000)
    x.fill(7)
    before = count("cuStreamWaitEvent"), count("cuStreamQuery")
    capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    assert count("cuStreamWaitEvent") == before[0] + 1, stream
    assert data(capsule) == x.ptr
    configure("LAZY", 0)
# Nothing waits, and nothing has to.
before = count("cuStreamWaitEvent")
x.__dlpack__(stream=-1)
gp.synchronize()
x.__dlpack__(stream=1)
assert count("cuStreamWaitEvent") == before
for stream, part in ((0, "not allowed"), (-2, "no stream")):
    assert part in refused(lambda: x.__dlpack__(stream=stream), ValueError)
assert x.__dlpack_device__() == (2, 0)
"""
    assert run(program) == "ok\n"


def test_work_of_all_streams_is_waited_for(run: Run) -> None:
    program = """
x = gp.empty(100, dtype="int32")
gp.synchronize()
configure("LAZY", 1000)
one, two = gp.Stream(), gp.Stream()
for stream in (one, two):
    with stream:
        x.fill(3)
before = count("cuStreamWaitEvent")
x.__dlpack__(stream=1)
assert count("cuStreamWaitEvent") >= before + 2
"""
    assert run(program) == "ok\n"


def test_an_import_makes_the_current_stream_wait(run: Run) -> None:
    program = """
x = gp.zeros(100, dtype="int32")
side = gp.Stream()
relay = Relay(x)
sequence = side.sequence
with side:
    y = gp.from_dlpack(relay)
assert relay.stream == side.handle
assert side.sequence > sequence
# Work of other streams waits for the stream that the import waited on.
configure("LAZY", 1000)
with side:
    y.fill(1)
before = count("cuStreamWaitEvent")
third = gp.Stream()
with third:
    gp.copy_to_host(y)
assert gp.from_dlpack(relay).ptr == x.ptr
assert gp.asarray(relay).ptr == x.ptr, "an array on a GPU is not copied"
"""
    assert run(program) == "ok\n"


def test_memory_given_back_stays_until_the_legacy_stream_has_passed(run: Run) -> None:
    program = """
pool = gp.memory.MemoryPool()
with pool:
    x = gp.empty(100_000, dtype="int32")
gp.synchronize()
end = consume(x.__dlpack__(stream=1, max_version=(1, 0)))
del x
configure("LAZY", 40)
before = count("cuEventRecord")
end()
assert count("cuEventRecord") == before + 1
assert pool.used > 0
configure("LAZY", 0)
gp.synchronize()
gp.synchronize()
assert pool.used == 0
"""
    assert run(program) == "ok\n"


def test_exports_do_not_pile_up(run: Run) -> None:
    program = """
pool = gp.memory.MemoryPool()
with pool:
    for _ in range(100):
        x = gp.empty(100_000, dtype="int32")
        consume(x.__dlpack__(stream=None, max_version=(1, 0)))()
        del x
    assert pool.stats()["used"] <= 3 * 400_000, pool.stats()["used"]
"""
    assert run(program) == "ok\n"


def test_an_imported_array_is_kept_until_work_has_passed(run: Run) -> None:
    program = """
ended = []
class Owner:
    def __init__(self, x):
        self.x = x
    def __del__(self):
        ended.append(1)
x = gp.zeros(1000, dtype="int32")
gp.synchronize()
y = native.import_memory(x.ptr, [1000], None, gp.int32, False, Owner(x), gp.current_device(), True)
configure("LAZY", 1000)
y.fill(2)
del y
gc.collect()
assert not ended
configure("LAZY", 0)
gp.synchronize()
gp.synchronize()
assert ended == [1]
assert x.tolist() == [2] * 1000
"""
    assert run(program) == "ok\n"


def test_the_cuda_array_interface(run: Run) -> None:
    program = """
x = gp.from_numpy(np.arange(24, dtype="float32")).reshape(4, 6)
given = x.__cuda_array_interface__
assert given["shape"] == (4, 6) and given["typestr"] == "<f4" and given["version"] == 3
assert given["data"] == (x.ptr, False) and given["strides"] is None and given["mask"] is None
assert given["stream"] == gp.current_stream().handle
assert x.T.__cuda_array_interface__["strides"] == (4, 24)
assert gp.zeros(0).__cuda_array_interface__["data"][0] == 0
x.setflags(write=False)
assert x.__cuda_array_interface__["data"][1]
assert "DLPack" in refused(lambda: gp.zeros(2, dtype="bfloat16").__cuda_array_interface__, TypeError)

class Other:
    def __init__(self, **changed):
        self.__cuda_array_interface__ = x.__cuda_array_interface__ | {"data": (x.ptr, False)} | changed

before = count("cuStreamWaitEvent")
for stream in (None, 1, 2, gp.Stream().handle):
    y = gp.from_dlpack(Other(stream=stream, strides=(4, 24), shape=(6, 4)))
    assert y.shape == (6, 4) and y.T.tolist() == x.tolist()
assert y.ptr == x.ptr and y.flags.writeable
assert gp.asarray(Other()).ptr == x.ptr
assert not gp.from_dlpack(Other(data=(x.ptr, True))).flags.writeable
assert "stream 0" in refused(lambda: gp.from_dlpack(Other(stream=0)), ValueError)
assert "masked" in refused(lambda: gp.from_dlpack(Other(mask=x)), BufferError)
assert "<M8" in refused(lambda: gp.from_dlpack(Other(typestr="<M8[s]")), BufferError)
assert "fits no memory" in refused(lambda: gp.from_dlpack(Other(data=(0, False))), BufferError)
assert gp.from_dlpack(Other(shape=(0, 6), data=(0, False), strides=None)).shape == (0, 6)
"""
    assert run(program) == "ok\n"


def test_the_host_is_a_copy_that_is_asked_for(run: Run) -> None:
    program = """
x = gp.from_numpy(np.arange(5))
assert "CPU" not in x.device.name
# NumPy asks for the host only when told to.
for call in (lambda: np.from_dlpack(x), lambda: x.__dlpack__(dl_device=(1, 0), copy=False),
             lambda: x.__dlpack__(dl_device=(2, 1))):
    refused(call, (BufferError, RuntimeError))
assert np.from_dlpack(x, device="cpu").tolist() == [0, 1, 2, 3, 4]
assert x.to_device("cpu").device.kind == "cpu"
assert x.to_device("cpu").tolist() == x.tolist()
# Memory of the host is an array of the CPU device, until it is asked for elsewhere.
host = np.arange(3)
assert gp.from_dlpack(host).device.kind == "cpu"
assert gp.from_dlpack(host, device="cuda:0").device.kind == "cuda"
assert gp.asarray(Relay(gp.from_dlpack(host))).device.kind == "cuda"
assert "copy=False" in refused(lambda: gp.from_dlpack(host, device="cuda:0", copy=False), BufferError)
"""
    assert run(program) == "ok\n"
