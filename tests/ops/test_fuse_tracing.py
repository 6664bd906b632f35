"""What fused functions accept and refuse, when they are traced again, and where their results go."""

from __future__ import annotations

import gc
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.fuse.function import MOST_TRACES

DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Counted:
    """A function that counts how often Python runs it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0
        self.function = function

    def __call__(self, x: Any, y: Any = 1.0, z: Any = None) -> Any:
        self.calls += 1
        return self.function(x, y) if z is None else self.function(x, y, z)


@pytest.mark.parametrize("device", DEVICES)
def test_a_new_shape_or_number_is_not_traced_again(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pygpukit.ops import planner

    counted = Counted(lambda x, y: x * y + 1)
    fused = gp.fuse(counted)
    with gp.device(device):
        fused(gp.ones((3, 4)), 2.0)
        classes = native.plan_classes()
        monkeypatch.setattr(planner, "OPERATORS", {})  # a further plan would need its operator
        for n in range(2, 20):
            x = gp.full((n, n + 1), 2.0, dtype="float32")
            assert fused(x, n + 0.5).to_numpy()[1, 1] == np.float32(2 * (n + 0.5) + 1)
        assert native.plan_classes() == classes
    assert counted.calls == 1


def test_other_types_and_options_are_traced_again() -> None:
    counted = Counted(lambda x, y: x + y)
    fused = gp.fuse(counted)
    x = gp.ones(3)
    for args, calls in [((x, 1.0), 1), ((x, 2.0), 1), ((x, 1), 2), ((x, True), 3), ((x.astype("float64"), 1.0), 4),
                        ((gp.ones((3, 3)), 1.0), 5), ((x, x), 6), ((x, np.float32(1)), 7), ((x, 5), 7)]:  # fmt: skip
        want = counted.function(*args)
        got = fused(*args)
        assert counted.calls == calls
        assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())


def test_numbers_may_decide_and_be_computed_with() -> None:
    counted = Counted(lambda x, n: x * (n**2 + 1) if n > 0 else x / (1 - n))
    fused = gp.fuse(counted)
    x = gp.asarray([1.0, 2.0], "float32")
    for n, calls in [(2, 1), (3, 1), (-2, 2), (7, 2), (-1, 2)]:
        assert fused(x, n).tolist() == counted.function(x, n).tolist()
        assert counted.calls == calls, n
    powers = gp.fuse(lambda x, n: x * 2**n)
    for n in (3, -1, 4):
        assert powers(x.astype("int32"), n).dtype is powers.function(x.astype("int32"), n).dtype
    for function in (
        lambda x, n: x * math.sqrt(n),
        lambda x, n: x * sum(range(int(n))),
        lambda x, n: x * f"{n}".count("1"),
        lambda x, n: x * round(n) - abs(-n),
        lambda x, n: x * n.real,
    ):
        for n in (11.0, 4.0):
            assert gp.fuse(function)(x, n).tolist() == function(x, n).tolist()
    mean = gp.fuse(lambda x, y: (x + y) / (x + y).size)
    for shape in ((2, 1), (5, 1)):
        assert mean(gp.ones(shape), gp.ones(3)).tolist() == mean.function(gp.ones(shape), gp.ones(3)).tolist()
    typed = gp.fuse(lambda x, n: x * n if isinstance(n, float) and isinstance(x, gp.GPUArray) else x + (n + 1))
    assert [typed(x, n).tolist() for n in (2.0, 2)] == [[2.0, 4.0], [4.0, 5.0]]
    with pytest.raises(ZeroDivisionError):
        gp.fuse(lambda x, n: x * (1 / n))(x, 0)


scale = 2.0
weights = gp.zeros(0)


def test_what_a_function_uses_from_outside_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gp.asarray([1.0, 2.0], "float32")
    local, mode = gp.asarray([10.0, 20.0], "float32"), "add"

    def function(x: Any) -> Any:
        made = x * weights * scale
        return made + local if mode == "add" else made - local

    fused = gp.fuse(function)
    monkeypatch.setitem(globals(), "weights", gp.asarray([1.0, 1.0], "float32"))
    assert fused(x).tolist() == [12.0, 24.0]
    monkeypatch.setitem(globals(), "scale", 4.0)
    assert fused(x).tolist() == [14.0, 28.0]
    monkeypatch.setitem(globals(), "weights", gp.asarray([2.0, 3.0], "float32"))
    local = gp.asarray([0.0, 1.0], "float32")
    assert fused(x).tolist() == [8.0, 25.0]
    mode = "sub"
    assert fused(x).tolist() == [8.0, 23.0]
    inside = {"w": local}
    with pytest.raises(TypeError, match="pass it as an argument"):
        gp.fuse(lambda x: x * inside["w"])(x)


def test_arguments_are_bound_as_pythons() -> None:
    x = gp.asarray([1.0, 2.0], "float32")

    def function(x: Any, /, y: Any, factor: Any = 2.0, *more: Any, mode: str = "add", **rest: Any) -> Any:
        total = x * factor + y
        for one in (*more, *rest.values()):
            total = total + one
        return total if mode == "add" else -total

    fused = gp.fuse(function)
    for args, kwargs in [((x, x), {}), ((x,), {"y": x}), ((x, 1, 3, x, 4.0), {"mode": "no"}), ((x, x), {"z": x}),
                         ((1.0, x), {"factor": x})]:  # fmt: skip
        assert fused(*args, **kwargs).tolist() == function(*args, **kwargs).tolist()
    with pytest.raises(TypeError, match="missing a required argument: 'y'"):
        fused(x)
    for bad in ([x], (x,), {"x": x}, object()):
        with pytest.raises(TypeError, match="as arguments"):
            fused(x, bad)
    with pytest.raises(TypeError, match="from_numpy"):
        fused(x, x.to_numpy())

    class Model:
        factor = 2.0

        @gp.fuse
        def run(self, x: Any) -> Any:
            return x * self.factor

    with pytest.raises(TypeError, match="not Model"):
        Model().run(x)
    for name in ("out", "stream"):
        with pytest.raises(TypeError, match=f"'{name}' is an argument of the fused function"):
            gp.fuse(eval(f"lambda {name}: {name}"))
    for bad in (3, gp.add):
        with pytest.raises(TypeError, match=r"fuse\(\) takes a function"):
            gp.fuse(bad)


LEAKED: list[Any] = []


def _generator(x: Any) -> Iterator[Any]:
    yield x + 1


def _in_place(x: Any) -> Any:
    x += 1
    return x


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda x: x if x > 0 else -x, "gp.where"),
    (lambda x: x and x, "gp.where"),
    (lambda x: max(x, x), "gp.where"),
    (lambda x: gp.matmul(x, x), r"matmul\(\) is not elementwise: gp.fuse covers chains of elementwise operators"),
    (lambda x: x @ x, r"matmul\(\) is not elementwise"),
    (lambda x: gp.softmax(x), r"softmax\(\) is not elementwise"),
    (lambda x: gp.sort(x), r"sort\(\) is not elementwise"),
    (lambda x: x.argmax(), r"argmax\(\) is not elementwise"),
    (lambda x: x - gp.max(x), r"sub\(\) follows max\(\)"),
    (lambda x: (gp.sum(x), x), "one result"),
    (lambda x: (gp.sum(x), gp.max(x)), "one reduction"),
    (lambda x: gp.sum(x, initial=2), "initial="),
    (lambda x: x[0], "indexing is not elementwise"),
    (lambda x: x.T + 1, "'T' of an array is not elementwise"),
    (lambda x: x.reshape(3, 1), "'reshape' of an array"),
    (lambda x: x * float(x), "cannot read the values"),
    (lambda x: x * len(x), "cannot read the values"),
    (lambda x: [y for y in x], "cannot read the values"),
    (lambda x: x.to_numpy(), "cannot read the values"),
    (lambda x: gp.add(x, 1, out=x), "out="),
    (lambda x: gp.add(x, "a"), "not str"),
    (lambda x: gp.add(x), "takes 2 operands"),
    (lambda x: x + np.ones(3), "ndarray"),
    (lambda x: None, "must return an array"),
    (lambda x: (), "must return an array"),
    (lambda x: 3.0, "must return an array"),
    (lambda x: gp.ones(3) + 1, "does not compute from its arguments"),
    (lambda: gp.ones(3), "does not compute from its arguments"),
    (_generator, "not generator"),
    (_in_place, "would change an argument"),
]


@pytest.mark.parametrize(("function", "text"), REFUSED)
def test_what_is_refused(function: Callable[..., Any], text: str) -> None:
    fused = gp.fuse(function)
    args = (gp.asarray([1.0, 2.0, 3.0]),) if function.__code__.co_argcount else ()
    for _ in range(2):
        with pytest.raises(TypeError, match=text):
            fused(*args)


def test_errors_are_those_of_the_operators() -> None:
    x = gp.ones(3)
    with pytest.raises(gp.ShapeError, match=r"\(3,\), \(4,\) cannot be broadcast"):
        gp.fuse(lambda x, y: x + y)(x, gp.ones(4))
    with pytest.raises(gp.ShapeError, match="results of one shape"):
        gp.fuse(lambda x, y: (x + 1, x + y))(x, gp.ones((2, 3)))
    with pytest.raises(gp.DTypeError):
        gp.fuse(lambda x: gp.bitwise_and(x, 1))(x)
    with pytest.raises(OverflowError):
        gp.fuse(lambda x: x + 300)(gp.ones(2, "uint8"))
    with pytest.raises(np.exceptions.AxisError):
        gp.fuse(lambda x: gp.sum(x, axis=2))(x)
    with pytest.raises(ZeroDivisionError):
        gp.fuse(lambda x: 1 / 0)(x)
    with pytest.raises(AttributeError, match="no attribute 'foo'"):
        gp.fuse(lambda x: x.foo)(x)
    leak = gp.fuse(lambda x: LEAKED.append(x) or x + 1)
    leak(x)
    for function in (lambda: LEAKED[0] + 1, lambda: gp.exp(LEAKED[0]), lambda: gp.fuse(lambda y: y + LEAKED[0])(x)):
        with pytest.raises(RuntimeError, match="exist only while it is traced"):
            function()
    LEAKED.clear()


def test_in_place_operators_on_results() -> None:
    def function(x: Any, y: Any) -> Any:
        made = x * 2
        same = made
        made += y
        made -= 1.5
        return same

    x = gp.asarray([1.0, 2.0], "float32")
    assert gp.fuse(function)(x, x).tolist() == function(x, x).tolist()
    assert gp.fuse(function)(x, x.astype("float64")).dtype is gp.float32
    with pytest.raises(gp.ShapeError):
        gp.fuse(function)(x, gp.ones((2, 2)))
    with pytest.raises(gp.DTypeError):
        gp.fuse(function)(x.astype("int32"), x)


@pytest.mark.parametrize("device", DEVICES)
def test_results_go_to_out(device: str) -> None:
    with gp.device(device):
        x, y = gp.arange(7, dtype="float32"), gp.full(7, 2.0)
        fused = gp.fuse(lambda x, y: x * y + 1)
        want = (x * y + 1).tolist()
        out = gp.zeros(7)
        assert fused(x, y, out=out) is out
        assert out.tolist() == want
        strided, wide = gp.zeros((7, 2)), gp.zeros(7, "float64")
        fused(x, y, out=strided[:, 1])
        fused(x, y, out=wide)
        assert strided[:, 1].tolist() == wide.tolist() == want
        assert strided[:, 0].tolist() == [0.0] * 7
        both = gp.fuse(lambda x, y: (x + y, x - y, x))
        outs = (gp.zeros(7), gp.zeros((7, 2))[:, 0], gp.zeros(7))
        assert all(a is b for a, b in zip(both(x, y, out=outs), outs, strict=True))
        assert [o.tolist() for o in outs] == [(x + y).tolist(), (x - y).tolist(), x.tolist()]
        overlapping = gp.arange(8, dtype="float32")
        fused(overlapping[:-1], y, out=overlapping[1:])
        assert overlapping[1:].tolist() == want
        fused(x, y, out=x)
        assert x.tolist() == want
        with pytest.raises(gp.ShapeError):
            fused(x, y, out=gp.zeros(6))
        with pytest.raises(gp.DTypeError):
            fused(x, y, out=gp.zeros(7, "int32"))
        with pytest.raises(TypeError):
            both(x, y, out=outs[:2])
        x.setflags(write=False)
        with pytest.raises(ValueError, match="read-only"):
            fused(x, y, out=x)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_an_operand_of_the_same_layout_is_written_in_place(device: str) -> None:
    with gp.device(device):
        x, y, square = gp.arange(1000, dtype="float32"), gp.full(1000, 2.0), gp.ones((20, 20))
        fused = gp.fuse(lambda x, y: (x + y, x * y))
        want = [(x + y).tolist(), (x * y).tolist()]
        fused(x, y)
        before = gp.memory.stats()["allocations"]
        fused(x, y, out=(x, y))
        assert gp.memory.stats()["allocations"] == before
        assert [x.tolist(), y.tolist()] == want
        # Another layout of the same memory: the result is made beside it.
        square[0] = 3.0
        want = (square + square.T).tolist()
        assert gp.fuse(lambda x, y: x + y)(square, square.T, out=square).tolist() == want
        total = gp.fuse(lambda x: gp.sum(x * 2, axis=0, keepdims=True))
        assert total(x[:1], out=x[:1]).tolist() == [4.0]


@pytest.mark.parametrize("device", DEVICES)
def test_streams_graphs_and_no_reads(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pygpukit.array import bridge

    with gp.device(device):
        x, out, total = gp.ones((40, 50)), gp.zeros((40, 50)), gp.zeros(40)
        fused, reduced = gp.fuse(lambda x, s: x * s + 1), gp.fuse(lambda x: gp.sum(x * x, axis=1))
        fused(x, 2.0, out=out), reduced(x, out=total)
        stream, graph = gp.Stream(), gp.CudaGraph()
        with monkeypatch.context() as patch:
            patch.setattr(bridge, "to_numpy", None)
            with graph.capture(stream):
                fused(x, 3.0, out=out)
                reduced(out, out=total)
            fused(x, 1.0, out=out, stream=stream)
        stream.synchronize()
        assert out.to_numpy()[0, 0] == 2.0
        graph.replay()
        graph.synchronize()
        assert out.to_numpy()[39, 49] == 4.0
        assert total.tolist() == [800.0] * 40


def test_fused_functions_call_each_other() -> None:
    inner = gp.fuse(lambda x, s: gp.exp(x) * s)
    outer = gp.fuse(lambda x, s: inner(x, s=s) + inner(x, 2.0))
    x = gp.asarray([0.0, 1.0], "float32")
    assert outer(x, 3.0).tolist() == outer.function(x, 3.0).tolist()
    assert outer.trace(x, 3.0).count("exp") == 1
    assert gp.fuse(inner)(x, 1.0).tolist() == inner(x, 1.0).tolist()


def test_what_a_function_tells_of_itself() -> None:
    @gp.fuse
    def normalised(x: Any, y: Any, eps: float = 1e-5) -> Any:
        """Quotient."""
        return x / (gp.abs(y) + eps)

    x = gp.ones((3, 4))
    assert repr(normalised).startswith("<fused normalised(x")
    assert (normalised.__name__, normalised.__doc__) == ("normalised", "Quotient.")
    assert normalised.trace(x, x).splitlines()[-1] == "return v2"
    source = normalised.source(x, x)
    assert source == normalised.source(gp.ones((7, 8)), x, 2.0)
    assert 'extern "C" __global__' in source
    assert "pgk_fused_abs_add_div_" in source
    walk = normalised.explain(x, x)
    assert "3 operators in one" in walk
    assert f"moves {3 * 48} bytes" in walk
    assert f"the operators apart move {7 * 48} bytes" in walk
    reduced = gp.fuse(lambda x: gp.mean(x * x, axis=0))
    assert reduced.trace(x).endswith("return mean(v0, axis=0)")
    assert "fused_rows" in reduced.source(x)


def test_traces_are_bounded_and_threads_share_them() -> None:
    fused = gp.fuse(lambda x, y, mode="": x + y)
    x = gp.ones(3)
    for i in range(2 * MOST_TRACES):
        fused(x, 1.0, mode=str(i))
    assert len(fused._traces) == MOST_TRACES
    decided = gp.fuse(lambda x, n: x * int(n))
    for n in range(2 * MOST_TRACES):
        decided(x, n)
    assert [len(kept) for kept in decided._traces.values()] == [MOST_TRACES]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(60):
            if (
                fused(x, float(i), mode=str(i % 7)).tolist() != [1.0 + i] * 3
                or decided(x, i).tolist() != [float(i)] * 3
            ):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_traces_keep_no_arrays() -> None:
    def fails(x: Any) -> Any:
        raise ZeroDivisionError

    used = gp.memory.stats()["used"]
    x = gp.ones(1_000_000)
    gp.fuse(lambda x: x.sum() if x.size > 3 else x)(x)
    with pytest.raises(ZeroDivisionError):
        gp.fuse(fails)(x)
    del x
    gc.collect()
    assert gp.memory.stats()["used"] <= used


def test_devices() -> None:
    fused = gp.fuse(lambda x, y: x + y)
    here = gp.ones(3)
    with gp.device("emulated"):
        there = gp.ones(3)
    with pytest.raises(gp.DeviceError):
        fused(here, there)
    assert fused(here, 1).device.kind == "cpu"
