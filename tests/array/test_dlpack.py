"""DLPack both ways: types, layouts, flags, lifetimes, streams, and capsules that lie."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.units import ALL_TYPES

NUMPY_TYPES = [name for name in ALL_TYPES if not hasattr(ml_dtypes, name)]
KEYS: list[Any] = [
    ...,
    (slice(None, None, -1), 1),
    (slice(None), None, slice(1, 4, 2)),
    (2, 3, 4),
    (slice(0, 0),),
    (slice(None), slice(None, None, -2), slice(3, None)),
]


@pytest.fixture(params=["cpu", "deferred", pytest.param("emulated", marks=pytest.mark.nvrtc)])
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    which = native.open_cpu(1 << 28, 5, True) if request.param == "deferred" else request.param
    with gp.device(which) as device:
        yield device


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class Legacy(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = (ctypes.py_object,)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
NAME = b"dltensor_versioned"
# PyCapsule_SetName keeps the pointer.
USED = b"used_dltensor_versioned"


def tensor_of(capsule: Any) -> Versioned:
    return Versioned.from_address(_api.PyCapsule_GetPointer(capsule, NAME))


def consumed(capsule: Any) -> Versioned:
    """Take the tensor of a capsule, as a consumer does."""
    tensor = tensor_of(capsule)
    _api.PyCapsule_SetName(capsule, USED)
    return tensor


def end(managed: Versioned) -> None:
    managed.deleter(ctypes.addressof(managed))


class Producer:
    """A library of its own: a tensor over the memory of a NumPy array, and a count of the deleter's calls."""

    def __init__(self, host: np.ndarray[Any, Any], *, legacy: bool = False, **changed: Any) -> None:
        self.host, self.legacy, self.ended, self.given = host, legacy, 0, {}
        self.capsule: Any = None
        item = host.itemsize
        numbers = ctypes.c_int64 * max(host.ndim, 1)
        self.shape, self.strides = numbers(*host.shape), numbers(*(s // item for s in host.strides))
        code = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}.get(host.dtype.kind, 4)
        tensor = Tensor(
            host.ctypes.data, 1, 0, host.ndim, code, item * 8, 1,
            ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64)), 0,
        )  # fmt: skip
        self.deleter = DELETER(self._end)
        self.managed = Legacy(tensor, None, self.deleter) if legacy else Versioned(1, 0, None, self.deleter, 0, tensor)
        for name, value in changed.items():
            owner = self.managed if hasattr(self.managed, name) else self.managed.tensor
            setattr(owner, name, value)

    def _end(self, _managed: Any) -> None:
        self.ended += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.managed.tensor.device_type, self.managed.tensor.device_id

    def __dlpack__(self, **given: Any) -> Any:
        if self.legacy and given:
            raise TypeError("no such arguments")
        self.given = given
        self.capsule = _api.PyCapsule_New(ctypes.addressof(self.managed), b"dltensor" if self.legacy else NAME, None)
        return self.capsule


def host(name: str = "float32", shape: tuple[int, ...] = (3, 4, 5)) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(gp.to_numpy_dtype(name))


# -- to other libraries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_numpy_takes_arrays_without_a_copy(device: gp.Device, name: str) -> None:
    a = host(name)
    x = gp.from_numpy(a)
    for key in KEYS:
        view = np.from_dlpack(x[key])
        assert view.dtype == a.dtype
        assert view.shape == a[key].shape
        np.testing.assert_array_equal(view, a[key])
        if view.size > 1:
            assert view.strides == a[key].strides
    view = np.from_dlpack(x)
    view[...] = 1
    assert (x.to_numpy() == 1).all()


@pytest.mark.parametrize("name", ALL_TYPES)
def test_every_type_has_its_code(name: str) -> None:
    x = gp.from_numpy(host(name))
    codes = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12, "bool": 6}
    tensor = tensor_of(x.__dlpack__(max_version=(1, 0))).tensor
    assert tensor.code == codes.get(name, {"i": 0, "u": 1, "f": 2, "c": 5}.get(x.dtype.kind))
    assert (tensor.bits, tensor.lanes) == (x.itemsize * 8, 1)
    assert [tensor.strides[i] for i in range(3)] == [20, 5, 1]
    # And back, in the same memory.
    y = gp.from_dlpack(Relay(x))
    assert y.dtype is x.dtype
    assert y.to_numpy().tobytes() == x.to_numpy().tobytes()
    assert tensor_of(y.__dlpack__(max_version=(1, 0))).tensor.data == tensor.data


class Relay:
    """An array of another library over one of ours: passes capsules on."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()

    def __dlpack__(self, **given: Any) -> Any:
        return self.x.__dlpack__(**given)


def test_capsules_are_versioned_when_the_consumer_knows_that(device: gp.Device) -> None:
    x = gp.arange(6)
    for version in (None, (0, 8)):
        assert _api.PyCapsule_GetName(x.__dlpack__(max_version=version)) == b"dltensor"
    for version in ((1, 0), (1, 1), (2, 0)):
        capsule = x.__dlpack__(max_version=version)
        assert _api.PyCapsule_GetName(capsule) == NAME
        assert tensor_of(capsule).major == 1
    assert x.__dlpack_device__() == (1, 0)


def test_flags_say_read_only_and_copied(device: gp.Device) -> None:
    x = gp.arange(6)
    assert tensor_of(x.__dlpack__(max_version=(1, 0))).flags == 0
    copy = x.__dlpack__(max_version=(1, 0), copy=True)
    assert tensor_of(copy).flags == 2
    x.setflags(write=False)
    assert tensor_of(x.__dlpack__(max_version=(1, 0), copy=False)).flags == 1
    assert not np.from_dlpack(x).flags.writeable
    with pytest.raises(BufferError, match=r"x\.copy\(\)"):
        x.__dlpack__()
    spread = gp.zeros(1)._broadcast_to([4])
    assert tensor_of(spread.__dlpack__(max_version=(1, 0))).flags == 1


def test_a_copy_has_memory_of_its_own(device: gp.Device) -> None:
    x = gp.zeros(5)
    view = np.from_dlpack(x, copy=True)
    view[...] = 1
    assert x.tolist() == [0.0] * 5


def test_streams_and_devices_that_make_no_sense_are_refused() -> None:
    with gp.device("cpu"):
        x = gp.zeros(3)
    x.__dlpack__(stream=-1)
    with pytest.raises(ValueError, match="stream=3"):
        x.__dlpack__(stream=3)
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    assert not hasattr(x, "__cuda_array_interface__")


def test_an_export_waits_for_deferred_work() -> None:
    with gp.device(native.open_cpu(1 << 28, 11, True)):
        x = gp.zeros(1000)
        for _ in range(20):
            gp.add(x, 1.0, out=x)
        stream = gp.Stream()
        stream.wait(gp.current_stream())
        with stream:
            gp.add(x, 1.0, out=x)
        assert (np.from_dlpack(x) == 21.0).all()


def test_an_export_inside_a_capture_is_refused() -> None:
    x = gp.zeros(3)
    graph = gp.CudaGraph()
    with graph.capture(), pytest.raises(gp.GraphError, match="capture"):
        x.__dlpack__()


def test_the_memory_stays_until_the_consumer_gives_it_back(device: gp.Device) -> None:
    pool = gp.memory.MemoryPool()
    with pool:
        x = gp.full(1000, 3.0, "float32")
        view = np.from_dlpack(x)
        gp.synchronize()
        used, gone = pool.used, weakref.ref(x)
        del x
        assert gone() is None
        others = [gp.zeros(1000) for _ in range(4)]
        gp.synchronize()
        assert (view == 3.0).all()
        del others
        assert pool.used == used
        del view
        assert pool.used == 0


def test_a_capsule_that_is_not_consumed_gives_the_memory_back() -> None:
    pool = gp.memory.MemoryPool()
    with pool:
        for version in (None, (1, 0)):
            x = gp.zeros(1000)
            capsule = x.__dlpack__(max_version=version)
            del x
            assert pool.used > 0
            del capsule
            assert pool.used == 0


def test_an_exported_array_is_not_evicted() -> None:
    with gp.memory.MemoryPool(enable_eviction=True):
        x = gp.full(1 << 20, 2.0, "float32")
        gp.synchronize()
        assert x.evict()
        capsule = x.__dlpack__(max_version=(1, 0))
        assert x.is_resident
        assert not x.evict()
        managed = consumed(capsule)
        del capsule
        assert not x.evict()
        end(managed)
        assert x.evict()
        assert (x.to_numpy() == 2.0).all()


@pytest.mark.skipif("sys.platform == 'win32'", reason="threads are made by pthread_create")
def test_a_deleter_runs_on_any_thread_without_the_interpreter() -> None:
    # Called through a library that lets go of the interpreter, from a thread that Python did not start.
    pool = gp.memory.MemoryPool()
    with pool:
        managed = consumed(gp.zeros(5000).__dlpack__(max_version=(1, 0)))
        assert pool.used > 0
        libc = ctypes.CDLL(None)
        start = ctypes.cast(managed.deleter, ctypes.c_void_p)
        thread = ctypes.c_ulong()
        assert libc.pthread_create(ctypes.byref(thread), None, start, ctypes.c_void_p(ctypes.addressof(managed))) == 0
        assert libc.pthread_join(thread, None) == 0
        assert pool.used == 0


def test_many_threads_export_and_end() -> None:
    x = gp.arange(1000)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                managed = consumed(x[::2].__dlpack__(max_version=(1, 0)))
                assert np.from_dlpack(x)[999] == 999
                end(managed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# -- from other libraries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_numpy_arrays_are_taken_without_a_copy(device: gp.Device, name: str) -> None:
    a = host(name)
    for key in KEYS:
        view = a[key] if isinstance(a[key], np.ndarray) else a[2:3, 3:4, 4]
        x = gp.from_dlpack(view)
        assert x.device._number == device._number
        assert x.dtype is gp.dtype(name)
        assert x.shape == view.shape
        if view.size > 1:
            assert x.strides == view.strides
        np.testing.assert_array_equal(x.to_numpy(), view)
    x = gp.from_dlpack(a)
    x.fill(1)
    gp.synchronize()
    assert (a == 1).all()


def test_kernels_work_on_imported_memory(device: gp.Device) -> None:
    a = np.arange(1000, dtype=np.float32)
    x = gp.from_dlpack(a[10:900:3])
    np.testing.assert_array_equal((x * 2 + 1).to_numpy(), a[10:900:3] * 2 + 1)
    np.testing.assert_array_equal(gp.sort(x, descending=True).to_numpy(), a[10:900:3][::-1])
    gp.add(x, 1.0, out=x)
    gp.synchronize()
    assert a[10] == 11.0
    assert a[11] == 11.0
    assert a[12] == 12.0


def faults(kernel: gp.Kernel, *args: Any) -> bool:
    try:
        kernel(*args, grid=(1,), block=(1,))
        gp.synchronize()
    except gp.KernelFaultError:
        return True
    return False


@pytest.mark.nvrtc
def test_the_emulator_knows_where_imported_memory_ends() -> None:
    source = 'extern "C" __global__ void put(float* x, int i) { x[i] = 1.0f; }'
    with gp.device(native.open_cpu(emulated=True)):
        a = np.zeros(8, np.float32)
        x = gp.from_dlpack(a[:4])
        put = gp.jit(source)
        put(x, 3, grid=(1,), block=(1,))
        gp.synchronize()
        assert a.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
        assert faults(put, x, 1 << 20)
    with gp.device("emulated"):
        checked = gp.jit(source, check=True)
        x = gp.from_dlpack(a[:4])
        assert faults(checked, x, 4)


def test_the_deleter_is_called_once_when_the_last_array_is_gone(device: gp.Device) -> None:
    for legacy in (False, True):
        producer = Producer(host(), legacy=legacy)
        x = gp.from_dlpack(producer)
        assert _api.PyCapsule_GetName(producer.capsule) == b"used_dltensor" + (b"" if legacy else b"_versioned")
        y = x[1:, ::2]
        del x
        gc.collect()
        assert producer.ended == 0
        np.testing.assert_array_equal(y.to_numpy(), producer.host[1:, ::2])
        del y
        gp.synchronize()
        assert producer.ended == 1


def test_the_memory_is_kept_until_deferred_work_has_read_it() -> None:
    with gp.device(native.open_cpu(1 << 28, 3, True)):
        producer = Producer(host())
        x = gp.from_dlpack(producer)
        y = x + 1.0
        del x
        gc.collect()
        assert producer.ended == 0
        gp.synchronize()
        assert producer.ended == 1
        np.testing.assert_array_equal(y.to_numpy(), producer.host + 1)


def test_many_imports_that_wait_all_end() -> None:
    with gp.device(native.open_cpu(1 << 28, 3, True)):
        producers = [Producer(host(shape=(2, 3))) for _ in range(500)]
        total = gp.zeros((2, 3))
        streams = [gp.current_stream(), gp.Stream()]
        for index, producer in enumerate(producers):
            with streams[index % 2]:
                total = total + gp.from_dlpack(producer)
            streams[1 - index % 2].wait(streams[index % 2])
        gc.collect()
        gp.synchronize()
        gp.synchronize()
        assert [producer.ended for producer in producers] == [1] * 500
        np.testing.assert_array_equal(total.to_numpy(), 500 * producers[0].host)


def test_what_the_producer_is_asked() -> None:
    producer = Producer(host())
    gp.from_dlpack(producer)
    assert producer.given == {"max_version": (1, 1), "copy": None}
    gp.from_dlpack(producer, copy=False)
    assert producer.given["copy"] is False


def test_flags_of_the_producer(device: gp.Device) -> None:
    x = gp.from_dlpack(Producer(host(), flags=1))
    assert not x.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        x.fill(1)
    with pytest.raises(ValueError, match="read-only"):
        x.setflags(write=True)
    a = host()
    a.flags.writeable = False
    assert not gp.from_dlpack(a).flags.writeable
    assert gp.from_dlpack(a, copy=True).flags.writeable
    assert gp.from_dlpack(Producer(host(), legacy=True)).flags.writeable
    producer = Producer(host())
    x = gp.from_dlpack(producer, copy=True)
    gp.synchronize()
    assert producer.ended == 1
    x.fill(9)
    gp.synchronize()
    assert producer.host[0, 0, 0] == 0


def test_offsets_and_missing_strides(device: gp.Device) -> None:
    a = np.arange(24, dtype=np.int32)
    x = gp.from_dlpack(Producer(a, byte_offset=16, ndim=1, shape=(ctypes.c_int64 * 1)(20)))
    assert x.tolist() == list(range(4, 24))
    two = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert gp.from_dlpack(Producer(two, strides=None)).tolist() == two.tolist()
    assert gp.from_dlpack(Producer(np.array(3.5))).item() == 3.5
    assert gp.from_dlpack(Producer(np.zeros((0, 3)), data=None)).shape == (0, 3)


def test_misaligned_elements_are_copied(device: gp.Device) -> None:
    raw = np.zeros(64, np.uint8)
    raw[1:41].view(np.float32)[...] = np.arange(10)
    odd = raw[1:41].view(np.float32)[::-1]
    producer = Producer(odd)
    with pytest.raises(BufferError, match="multiples of 4 bytes"):
        gp.from_dlpack(producer, copy=False)
    assert producer.ended == 0
    assert _api.PyCapsule_GetName(producer.capsule) == NAME
    x = gp.from_dlpack(producer)
    assert x.tolist() == odd.tolist()
    assert x.dtype is gp.float32
    assert x.flags.writeable
    gp.synchronize()
    assert producer.ended == 1


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"code": 3}, "opaque handle"),
        ({"bits": 128}, "float .code 2. of 128 bits"),
        ({"lanes": 4}, "4 lanes"),
        ({"code": 17, "bits": 4}, "float4"),
        ({"device_type": 8}, "type 8"),
        ({"device_type": 2, "device_id": 77}, "GPU 77"),
        ({"ndim": 9}, "9 dimensions"),
        ({"ndim": -1}, "-1 dimensions"),
        ({"shape": None}, "no shape"),
        ({"data": None}, "fits no memory"),
        ({"shape": (ctypes.c_int64 * 3)(3, -4, 5)}, "negative"),
        ({"shape": (ctypes.c_int64 * 3)(1 << 40, 1 << 40, 5)}, "too many"),
        ({"strides": (ctypes.c_int64 * 3)(1 << 62, 1, 1)}, "fit no memory"),
        ({"strides": (ctypes.c_int64 * 3)(-(1 << 58), 1, 1)}, "fits no memory"),
        ({"byte_offset": (1 << 64) - 1}, "fit no memory"),
        ({"major": 2}, r"DLPack 2\.0"),
    ],
)
def test_what_cannot_be_taken_is_refused_and_stays_the_producers(changed: dict[str, Any], part: str) -> None:
    producer = Producer(host(), **changed)
    with pytest.raises(BufferError, match=part):
        gp.from_dlpack(producer)
    assert producer.ended == 0
    if producer.capsule is not None:
        assert _api.PyCapsule_GetName(producer.capsule) == NAME


def test_a_capsule_is_consumed_once() -> None:
    producer = Producer(host())
    x = gp.from_dlpack(producer)
    with pytest.raises(ValueError, match="consumed already"):
        native.import_dlpack(producer.capsule, x.device, True)
    with pytest.raises(TypeError, match="no capsule"):
        native.import_dlpack(object(), x.device, True)
    with pytest.raises(TypeError, match="no DLPack tensor"):
        native.import_dlpack(_api.PyCapsule_New(1, b"other", None), x.device, True)
    with pytest.raises(TypeError, match="__dlpack__"):
        gp.from_dlpack([1, 2])


def test_arrays_of_our_own(device: gp.Device) -> None:
    x = gp.arange(5)
    assert gp.from_dlpack(x)._shares_memory(x)
    assert not gp.from_dlpack(x, copy=True)._shares_memory(x)
    other = native.open_cpu(1 << 28)
    assert gp.from_dlpack(x, device=other).device._number == other._number
    with pytest.raises(BufferError, match="copy=False"):
        gp.from_dlpack(x, device=other, copy=False)
    # By way of NumPy: the same memory, twice.
    y = gp.from_dlpack(np.from_dlpack(x))
    gp.add(y, 1, out=y)
    gp.synchronize()
    assert x.tolist() == [1, 2, 3, 4, 5]
    del y
    gp.synchronize()
    assert (x + x).tolist() == [2, 4, 6, 8, 10]


def test_graphs_replay_with_imported_memory(device: gp.Device) -> None:
    a = np.zeros(4)
    x = gp.from_dlpack(a)
    graph = gp.CudaGraph()
    with graph.capture():
        gp.add(x, 1.0, out=x)
    del x
    gc.collect()
    for _ in range(3):
        graph.replay()
    gp.synchronize()
    assert a.tolist() == [3.0] * 4


def test_an_exception_on_its_way_survives_the_end_of_an_import() -> None:
    def fail() -> None:
        x = gp.from_dlpack(np.zeros(3))
        raise KeyError(x.shape)

    with pytest.raises(KeyError):
        fail()


def test_memory_whose_end_runs_python_code() -> None:
    ended: list[Any] = []

    class Owner:
        def __del__(self) -> None:
            ended.append((gp.zeros(3) + 1).tolist())

    a = np.zeros(3)
    owner = Owner()
    x = native.import_memory(a.ctypes.data, [3], None, gp.float64, False, owner, gp.current_device(), True)
    del owner
    assert not ended
    del x
    gp.synchronize()
    assert ended == [[1.0] * 3]


# -- asarray --------------------------------------------------------------------------------------------------------


def test_asarray_takes_what_another_library_has() -> None:
    producer = Producer(host())
    x = gp.asarray(producer)
    np.testing.assert_array_equal(x.to_numpy(), producer.host)
    x.fill(5)
    gp.synchronize()
    assert producer.host[0, 0, 0] == 0, "memory of the host is copied"
    assert producer.ended == 1
    assert gp.asarray(producer, "float64").dtype is gp.float64
    assert gp.asarray(memoryview(b"abc")).tolist() == [97, 98, 99]
    bf16 = Producer(host("bfloat16"))
    assert gp.asarray(bf16).dtype is gp.bfloat16


def test_to_device() -> None:
    x = gp.arange(6).reshape(2, 3).T
    other = native.open_cpu(1 << 28)
    y = x.to_device(other)
    assert y.device._number == other._number
    assert y.tolist() == x.tolist()
    assert x.to_device(x.device) is x
    assert x.to_device(x.device.kind) is x or x.device.kind == "cpu"
