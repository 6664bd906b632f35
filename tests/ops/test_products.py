"""dot, inner, tensordot, einsum and the other products against NumPy: values, types, shapes, layouts, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.array import bridge
from pygpukit.ops.products.subscripts import parse
from pygpukit.ops.units import ALL_TYPES

DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"]
TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "complex64": 1e-4}
PLAIN = [name for name in ALL_TYPES if name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]


def values(name: str, shape: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng([seed, len(name)])
    x = rng.integers(-4, 5, shape)
    if name.startswith("complex"):
        return (x + 1j * rng.integers(-4, 5, shape)).astype(name)
    return (x > 0 if name == "bool" else x).astype(gp.to_numpy_dtype(name))


def same(got: Any, want: Any, context: str = "") -> None:
    want = np.asarray(want)
    assert isinstance(got, gp.GPUArray)
    host = got.to_numpy()
    assert (host.dtype, host.shape) == (want.dtype, want.shape), context
    if want.dtype.kind in "fc":
        tolerance = TOLERANCE.get(want.dtype.name, 1e-12)
        np.testing.assert_allclose(host, want, rtol=tolerance, atol=tolerance, err_msg=context)
    else:
        np.testing.assert_array_equal(host, want, err_msg=context)


def both(name: str, *arrays: np.ndarray[Any, Any], **options: Any) -> None:
    """Compare a function, or what it raises, for these arrays."""
    context = f"{name} of {[(x.dtype.name, x.shape) for x in arrays]} {options}"
    ours = [gp.from_numpy(x) for x in arrays]
    try:
        want = getattr(np, name)(*arrays, **options)
    except Exception as error:
        with pytest.raises(type(error)):
            getattr(gp, name)(*ours, **options)
        return
    same(getattr(gp, name)(*ours, **options), want, context)


SHAPES = [(), (1,), (3,), (4,), (2, 3), (3, 4), (4, 3), (2, 3, 4), (2, 4, 3), (0,), (0, 3), (3, 0)]


@pytest.mark.parametrize(
    "function", ["dot", "inner", "outer", "vdot", "vecdot", "matvec", "vecmat", "kron", "tensordot"]
)
def test_pairs_of_shapes(function: str) -> None:
    for a in SHAPES:
        for b in SHAPES:
            both(function, values("complex128", a, 1), values("complex128", b, 2))


def test_all_types(device: str) -> None:
    types = PLAIN if device == "cpu" else ["float32", "complex64", "int8", "bool"]
    for name in types:
        x, y = values(name, (3, 5)), values(name, (5, 4), 1)
        both("dot", x, y)
        both("dot", x, y[:, 0])
        both("vdot", x, x[::-1])
        both("vecdot", x, x[0])
        both("inner", x, y.T)
        same(gp.einsum("ij,jk->ki", gp.from_numpy(x), gp.from_numpy(y)), np.einsum("ij,jk->ki", x, y), name)
        same(gp.einsum("ij->j", gp.from_numpy(x)), np.einsum("ij->j", x), name)
        both("trace", x)
        both("kron", x, y)
    for a, b in (("int8", "float32"), ("uint8", "int8"), ("bool", "int32"), ("float32", "complex64")):
        if device == "cpu":
            both("dot", values(a, (2, 3)), values(b, (3, 2)))
            both("vecdot", values(a, (2, 3)), values(b, (2, 3)))
            both("outer", values(a, 3), values(b, 2))


def test_small_floats() -> None:
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        x = gp.from_numpy(values(name, (3, 4)))
        want = np.einsum("ij,kj->ik", *(x.to_numpy().astype(np.float32),) * 2)
        for got in (gp.inner(x, x), gp.einsum("ij,kj", x, x), gp.tensordot(x, x.T, 1)):
            assert got.dtype is x.dtype
            np.testing.assert_array_equal(got.to_numpy(), want.astype(gp.to_numpy_dtype(name)))
        assert gp.vecdot(x, x).dtype is x.dtype


def test_layouts(device: str) -> None:
    x, y = values("float32", (4, 6)), values("float32", (6, 4), 1)
    a, b = gp.from_numpy(x), gp.from_numpy(y)
    for ours, theirs in ((a.T, x.T), (a[::-1, ::-2].T, x[::-1, ::-2].T), (b[::2], y[::2]), (b[1:2, :3], y[1:2, :3])):
        for function in ("dot", "inner", "vecdot", "matvec"):
            other, known = (ours[..., 0], theirs[..., 0]) if ours.shape[-1] == ours.shape[0] else (ours[0], theirs[0])
            if function == "dot" and known.size != theirs.shape[-1]:
                continue
            same(getattr(gp, function)(ours, other), getattr(np, function)(theirs, known), function)
        same(gp.vdot(ours, ours), np.vdot(theirs, theirs))
        same(gp.trace(ours, 1), np.trace(theirs, 1))
    spread = gp.from_numpy(x[0])._broadcast_to((3, 6))
    same(gp.inner(spread, a), np.inner(np.broadcast_to(x[0], (3, 6)), x))
    out = gp.zeros((4, 6)).T
    assert gp.dot(b, a[:, :4], out=out) is out
    same(out, y @ x[:, :4])


def test_long_vectors_are_summed_in_chunks(device: str) -> None:
    for name, n in (("float32", 4097), ("complex64", 2049), ("int8", 16385)):
        x, y = values(name, (2, n)), values(name, (n,), 1)
        for a, b in ((x, y), (x[:, ::-1], y[::-1]), (x[:, 1:], y[:-1])):
            ours = gp.from_numpy(x), gp.from_numpy(y)
            views = {0: ours, -1: (ours[0][:, ::-1], ours[1][::-1]), 1: (ours[0][:, 1:], ours[1][:-1])}
            turned = -1 if b.strides[0] < 0 else 1 if b.size < n else 0
            same(gp.vecdot(*views[turned]), np.vecdot(a, b), f"{name} {turned}")
        same(gp.vdot(ours[1], ours[1]), np.vdot(y, y))
    if device != "cpu":
        out = gp.zeros((2, 2))[:, 0]
        gp.vecdot(gp.ones((2, 5000)), gp.ones(5000), out=out)
        assert out.tolist() == [5000.0, 5000.0]


@pytest.mark.nvrtc
def test_bits_do_not_depend_on_layout_or_other_rows() -> None:
    with gp.device("emulated"):
        x = np.random.default_rng(0).standard_normal((5, 333)).astype(np.float32)
        a = gp.from_numpy(x)
        turned = gp.from_numpy(np.ascontiguousarray(x.T)).T
        whole = gp.vecdot(a, a).to_numpy()
        np.testing.assert_array_equal(gp.vecdot(turned, a).to_numpy(), whole)
        np.testing.assert_array_equal(gp.vecdot(a[3], a[3]).to_numpy(), whole[3])


def test_numbers_and_out() -> None:
    x = gp.from_numpy(values("float32", (2, 3)))
    same(gp.dot(x, 2), np.dot(x.to_numpy(), 2))
    same(gp.dot(2.0, x), np.dot(2.0, x.to_numpy()))
    out = gp.zeros((2, 2))
    assert gp.dot(x, x.T, out) is out
    assert gp.einsum("ij,kj", x, x, out=out) is out
    same(out, np.inner(x.to_numpy(), x.to_numpy()))
    with pytest.raises(TypeError, match="asarray"):
        gp.dot(x, "a")
    with pytest.raises(TypeError, match=r"not ndarray.*from_numpy"):
        gp.einsum("i->", np.ones(3))


@pytest.mark.parametrize(
    "axes",
    [0, 1, 2, 3, 4, -1, ([1, 2], [0, 1]), ([2], [1]), (2, 1), ([0, 0], [1, 1]), ([0], [0]), ([9], [0]), ([0, 1], [0]),
     (1,)],
)  # fmt: skip
def test_axes_of_tensordot(axes: Any) -> None:
    both("tensordot", values("float64", (2, 3, 4)), values("float64", (3, 4, 2)), axes=axes)


def test_trace_arguments() -> None:
    x = values("int32", (3, 4, 5))
    for offset in (-5, -1, 0, 2, 9):
        both("trace", x, offset=offset)
        both("trace", x, offset=offset, axis1=-1, axis2=1)
    for axes in ((0, 0), (0, 3), (-4, 1), (1, -2)):
        both("trace", x, axis1=axes[0], axis2=axes[1])
    both("trace", values("int8", (2, 2)), dtype=np.int64)
    same(gp.from_numpy(x).trace(1), x.trace(1))
    same(gp.from_numpy(x[0]).dot(gp.from_numpy(x[0].T)), x[0].dot(x[0].T))


EXPRESSIONS = [
    ("ij->ji", "23"), ("ii", "33"), ("ii->i", "33"), ("iij->ji", "334"), ("iijj->ij", "3322"), ("iiji->j", "3323"),
    ("ij->", "23"), ("ij->j", "23"), ("...->...", "234"), ("...i->i...", "234"), ("i...j->...", "234"),
    ("ij,jk", "23 34"), ("ij,jk->ki", "23 34"), ("ij,kj", "23 43"), ("ji,jk->ik", "32 34"), ("ba,cb", "23 42"),
    ("i,i", "3 3"), ("i,j", "2 3"), ("i,j->ji", "2 3"), ("ij,ij->", "23 23"), ("ij,ij->i", "23 23"),
    ("ij,ij->ji", "23 23"), ("ij,j", "23 3"), ("i,ij->j", "2 23"), ("bij,bjk->bik", "423 434"),
    ("bij,bkj->kbi", "423 453"), ("bij,jk->kib", "423 35"), ("ijk,jil->kl", "234 325"), ("ijkl,klm->mij", "2345 453"),
    ("ijk,ljk->il", "234 534"), ("ikj,lkj->il", "234 534"), ("...ij,...jk->...ik", "2134 345"),
    ("...ij,...jk", "134 7245"), ("i...,i...->...", "323 3213"), ("...,...", "23 3"), ("i,ij,j", "2 23 3"),
    ("ij,jk,kl->il", "23 34 45"), ("ab,bc,cd,de->ea", "23 34 45 52"), ("ia,jb,kc,abc->ijk", "23 24 25 345"),
    ("a,b,c->cab", "2 3 4"), ("abc,bcd,a,d->", "234 345 2 5"), ("ii,ij,jj->ij", "22 23 33"), ("i,i,i->i", "3 3 3"),
    ("ij,jk", "21 34"), ("i,i->i", "1 3"), ("i,i->", "3 1"), ("ij,ij->j", "13 21"), (",i->i", " 3"), ("->", ""),
    ("i->i", "0"), ("ij,jk", "20 03"), ("ij->i", "20"), ("Ab,bA->bA", "23 32"), (" i j , j k -> i k ", "23 34"),
    ("z,a", "2 3"), ("zA,Ab", "23 32"),
    # Refused by both.
    ("ij", "2"), ("i", "23"), ("...i->i", "23"), ("ij,jk", "23 24"), ("ij,jk", "23"), ("i", "2 3"), ("i1", "22"),
    ("i..", "23"), ("ij->iij", "23"), ("ij->ik", "23"), ("i-j", "22"), ("ij->i->j", "22"), ("ii", "13"),
    ("ii->i", "31"), ("...i...", "23"), ("...i,...i", "23 43"), ("i->...j", "2"), ("i->.i", "2"),
]  # fmt: skip


def shapes_of(text: str) -> list[tuple[int, ...]]:
    return [tuple(int(c) for c in word) for word in text.split(" ")]


@pytest.mark.parametrize(
    ("subscripts", "shapes"), EXPRESSIONS, ids=[f"{e}_{s}".replace(" ", "_") for e, s in EXPRESSIONS]
)
def test_einsum_expressions(subscripts: str, shapes: str) -> None:
    arrays = [values("float64", shape, i) for i, shape in enumerate(shapes_of(shapes))]
    ours = [gp.from_numpy(x) for x in arrays]
    for optimize in (False, True, "greedy", "optimal"):
        try:
            want = np.einsum(subscripts, *arrays)
        except Exception as error:
            with pytest.raises(type(error)):
                gp.einsum(subscripts, *ours, optimize=optimize)
        else:
            same(gp.einsum(subscripts, *ours, optimize=optimize), want, subscripts)


@pytest.mark.parametrize("device", DEVICES[1:2])
def test_einsum_on_kernels(device: str) -> None:
    with gp.device(device):
        for subscripts, shapes in EXPRESSIONS[::4]:
            arrays = [values("float32", shape, i) for i, shape in enumerate(shapes_of(shapes))]
            try:
                want = np.einsum(subscripts, *arrays)
            except ValueError:
                continue
            same(gp.einsum(subscripts, *(gp.from_numpy(x) for x in arrays)), want, subscripts)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {c: draw(st.integers(0 if c == "e" else 1, 4)) for c in "abcde"}
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    labels = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(labels)))[: draw(st.integers(0, len(labels)))]
    spread = draw(st.booleans())
    shapes = [tuple(sizes[c] for c in term) for term in terms]
    if spread:
        shapes = [(draw(st.sampled_from([1, 2])), *shape) for shape in shapes]
        terms = ["..." + term for term in terms]
        output = "..." + output
    return ",".join(terms) + ("->" + output if draw(st.booleans()) else ""), shapes


@settings(derandomize=True, max_examples=150)
@given(expressions(), st.integers(0, 9))
def test_random_expressions(case: tuple[str, list[tuple[int, ...]]], seed: int) -> None:
    subscripts, shapes = case
    arrays = [values("float64", shape, seed + i) for i, shape in enumerate(shapes)]
    ours = [gp.from_numpy(x.T.copy()).T if seed % 2 else gp.from_numpy(x) for x in arrays]
    same(
        gp.einsum(subscripts, *ours, optimize=bool(seed % 3)), np.einsum(subscripts, *arrays), f"{subscripts} {shapes}"
    )


def test_lists_of_integers() -> None:
    x, y = values("float64", (2, 3)), values("float64", (3, 4))
    a, b = gp.from_numpy(x), gp.from_numpy(y)
    same(gp.einsum(a, [0, 1], b, [1, 2]), np.einsum(x, [0, 1], y, [1, 2]))
    same(gp.einsum(a, [27, 1], b, [1, 2], [2, 27]), np.einsum(x, [27, 1], y, [1, 2], [2, 27]))
    same(gp.einsum(a, [Ellipsis, 1], [1, Ellipsis]), np.einsum(x, [Ellipsis, 1], [1, Ellipsis]))
    with pytest.raises(TypeError):
        gp.einsum(a, [0, "a"])
    with pytest.raises(ValueError, match="valid range"):
        gp.einsum(a, [0, 52])
    for operands in ((), ("i",), (3,), (a,)):
        with pytest.raises(ValueError, match="einsum"):
            gp.einsum(*operands)


def test_one_operand_without_a_sum_is_a_view() -> None:
    x = gp.zeros((3, 3))
    gp.einsum("ii->i", x)[...] = 1
    assert x.tolist() == np.eye(3).tolist()
    assert gp.einsum("ij->ji", x)._shares_memory(x)
    assert gp.einsum("ij->ji", x, order="C").is_contiguous
    assert gp.einsum("ij,jk->ik", x, x, order="F").T.is_contiguous


def test_types_casts_and_out_of_einsum() -> None:
    x = values("int8", (2, 3))
    a = gp.from_numpy(x)
    same(gp.einsum("ij->i", a, dtype="float32"), np.einsum("ij->i", x, dtype=np.float32))
    same(gp.einsum("ij,ij->i", a, a.astype("float32")), np.einsum("ij,ij->i", x, x.astype(np.float32)))
    wide = gp.from_numpy(x.astype(float))
    with pytest.raises(TypeError):
        gp.einsum("ij->", wide, dtype="float32")
    assert gp.einsum("ij->", wide, dtype="float32", casting="same_kind").dtype is gp.float32
    with pytest.raises(TypeError):
        gp.einsum("ij->ij", wide, out=gp.zeros((2, 3)))
    with pytest.raises(ValueError, match="out has"):
        gp.einsum("ij->ij", wide, out=gp.zeros((2, 4), "float64"))
    for key, value in (("order", "Q"), ("casting", "sometimes")):
        with pytest.raises(ValueError, match=key):
            gp.einsum("ij", a, **{key: value})  # type: ignore[arg-type]
    out = gp.zeros((3, 2), "float64").T
    assert gp.einsum("ij->ij", wide, out=out) is out
    same(out, x.astype(float))


def test_results_may_be_operands(device: str) -> None:
    x = values("float32", (20, 20))
    for subscripts in ("ij->ji", "ij,jk->ki", "ij,ji->ij", "ij,jk,kl->li"):
        out = gp.from_numpy(x)
        operands = subscripts.partition("->")[0].count(",") + 1
        assert gp.einsum(subscripts, *[out] * operands, out=out) is out
        same(out, np.einsum(subscripts, *[x] * operands), subscripts)
    out = gp.from_numpy(x)
    gp.vecdot(out, out.T, out=out[:, 3])
    same(out[:, 3], np.vecdot(x, x.T))


def test_paths() -> None:
    arrays = [values("float64", shape) for shape in ((2, 9), (9, 3), (3, 7))]
    ours = [gp.from_numpy(x) for x in arrays]
    want = np.einsum("ij,jk,kl->il", *arrays)
    found, report = gp.einsum_path("ij,jk,kl->il", *ours)
    assert found == np.einsum_path("ij,jk,kl->il", *arrays)[0]
    assert "FLOP" in report
    for path in (found, ["einsum_path", (1, 2), (0, 1)], [(0, 1, 2)], ("greedy", 100)):
        same(gp.einsum("ij,jk,kl->il", *ours, optimize=path), want)
    for wrong in ([(0, 1)], [(0, 3), (0, 1)], [(0, 0), (0, 1)], "fast"):
        with pytest.raises((ValueError, TypeError, KeyError)):
            gp.einsum("ij,jk,kl->il", *ours, optimize=wrong)


def test_more_labels_than_axes_of_an_array() -> None:
    terms = ["abcd", "cdef", "efgh"]
    arrays = [values("float64", (2, 2, 2, 2), i) for i in range(3)]
    subscripts = ",".join(terms) + "->abgh"
    same(gp.einsum(subscripts, *(gp.from_numpy(x) for x in arrays)), np.einsum(subscripts, *arrays))


def test_expressions_are_checked_once() -> None:
    x = gp.ones((2, 3))
    gp.einsum("xy->yx", x)
    before = parse.cache_info()
    gp.einsum("xy->yx", x)
    assert parse.cache_info() == before
    # With another order nothing is known but the expression.
    gp.einsum("xy->yx", x, order="F")
    assert parse.cache_info().hits == before.hits + 1


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("ij,j->i", [(3, 4), (4,)]),
        ("i,ji->j", [(3,), (4, 3)]),
        ("bij,bj->bi", [(2, 3, 4), (2, 4)]),
        ("bj,bij->bi", [(2, 4), (2, 3, 4)]),
        ("ijk,jk->i", [(2, 3, 4), (3, 4)]),
        ("abi,i->ab", [(2, 3, 4), (4,)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("iij,j->i", [(3, 3, 4), (4,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij->i", [(3, 4)]),
        ("i,i->", [(4,), (4,)]),
        ("ij,ij->ij", [(3, 1), (3, 4)]),
    ],
)
def test_a_known_expression_is_computed_with_the_arrays_of_the_call(text: str, shapes: list[tuple[int, ...]]) -> None:
    for seed in range(3):
        for kind in ("float64", "float32", "int32"):
            host = [values(kind, shape, 7 * seed + i) for i, shape in enumerate(shapes)]
            ours = [gp.from_numpy(x) for x in host]
            result = gp.einsum(text, *ours)
            wanted = np.einsum(text, *host)
            assert result.dtype.name == wanted.dtype.name
            np.testing.assert_allclose(result.to_numpy(), wanted, rtol=1e-5 if kind == "float32" else 1e-12)
            # The same arrays in another order of memory are another computation.
            turned = [gp.from_numpy(np.ascontiguousarray(x.T)).T for x in host]
            np.testing.assert_allclose(gp.einsum(text, *turned).to_numpy(), wanted, rtol=1e-5)


def test_nothing_is_read_by_the_host(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an operator read an array")

    x = gp.from_numpy(values("float32", (3, 3)))
    monkeypatch.setattr(bridge, "to_numpy", refuse)
    monkeypatch.setattr(gp.GPUArray, "to_numpy", refuse)
    gp.einsum("ii,ij,jk->ki", x, x, x)
    gp.dot(x, x[0])
    gp.kron(x, x)
    gp.trace(gp.tensordot(x, x, 1))
    gp.convolve(x[0], x[1])
