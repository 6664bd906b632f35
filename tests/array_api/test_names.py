"""Every name of the array API standard 2024.12 is there, and can be called as the standard writes it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from inspect import Parameter
from typing import Any

import pytest

import pygpukit as gp
from pygpukit import array_api as xp

FUNCTIONS = """
__array_namespace_info__()
abs(x, /)
acos(x, /)
acosh(x, /)
add(x1, x2, /)
all(x, /, *, axis=None, keepdims=False)
any(x, /, *, axis=None, keepdims=False)
arange(start, /, stop=None, step=1, *, dtype=None, device=None)
argmax(x, /, *, axis=None, keepdims=False)
argmin(x, /, *, axis=None, keepdims=False)
argsort(x, /, *, axis=-1, descending=False, stable=True)
asarray(obj, /, *, dtype=None, device=None, copy=None)
asin(x, /)
asinh(x, /)
astype(x, dtype, /, *, copy=True, device=None)
atan(x, /)
atan2(x1, x2, /)
atanh(x, /)
bitwise_and(x1, x2, /)
bitwise_invert(x, /)
bitwise_left_shift(x1, x2, /)
bitwise_or(x1, x2, /)
bitwise_right_shift(x1, x2, /)
bitwise_xor(x1, x2, /)
broadcast_arrays(*arrays)
broadcast_to(x, /, shape)
can_cast(from_, to, /)
ceil(x, /)
clip(x, /, min=None, max=None)
concat(arrays, /, *, axis=0)
conj(x, /)
copysign(x1, x2, /)
cos(x, /)
cosh(x, /)
count_nonzero(x, /, *, axis=None, keepdims=False)
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
divide(x1, x2, /)
empty(shape, *, dtype=None, device=None)
empty_like(x, /, *, dtype=None, device=None)
equal(x1, x2, /)
exp(x, /)
expand_dims(x, /, *, axis=0)
expm1(x, /)
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
finfo(type, /)
flip(x, /, *, axis=None)
floor(x, /)
floor_divide(x1, x2, /)
from_dlpack(x, /, *, device=None, copy=None)
full(shape, fill_value, *, dtype=None, device=None)
full_like(x, /, fill_value, *, dtype=None, device=None)
greater(x1, x2, /)
greater_equal(x1, x2, /)
hypot(x1, x2, /)
iinfo(type, /)
imag(x, /)
isdtype(dtype, kind)
isfinite(x, /)
isinf(x, /)
isnan(x, /)
less(x1, x2, /)
less_equal(x1, x2, /)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
log(x, /)
log10(x, /)
log1p(x, /)
log2(x, /)
logaddexp(x1, x2, /)
logical_and(x1, x2, /)
logical_not(x, /)
logical_or(x1, x2, /)
logical_xor(x1, x2, /)
matmul(x1, x2, /)
matrix_transpose(x, /)
max(x, /, *, axis=None, keepdims=False)
maximum(x1, x2, /)
mean(x, /, *, axis=None, keepdims=False)
meshgrid(*arrays, indexing='xy')
min(x, /, *, axis=None, keepdims=False)
minimum(x1, x2, /)
moveaxis(x, source, destination, /)
multiply(x1, x2, /)
negative(x, /)
nextafter(x1, x2, /)
nonzero(x, /)
not_equal(x1, x2, /)
ones(shape, *, dtype=None, device=None)
ones_like(x, /, *, dtype=None, device=None)
permute_dims(x, /, axes)
positive(x, /)
pow(x1, x2, /)
prod(x, /, *, axis=None, dtype=None, keepdims=False)
real(x, /)
reciprocal(x, /)
remainder(x1, x2, /)
repeat(x, repeats, /, *, axis=None)
reshape(x, /, shape, *, copy=None)
result_type(*arrays_and_dtypes)
roll(x, /, shift, *, axis=None)
round(x, /)
searchsorted(x1, x2, /, *, side='left', sorter=None)
sign(x, /)
signbit(x, /)
sin(x, /)
sinh(x, /)
sort(x, /, *, axis=-1, descending=False, stable=True)
sqrt(x, /)
square(x, /)
squeeze(x, /, axis)
stack(arrays, /, *, axis=0)
std(x, /, *, axis=None, correction=0.0, keepdims=False)
subtract(x1, x2, /)
sum(x, /, *, axis=None, dtype=None, keepdims=False)
take(x, indices, /, *, axis=None)
take_along_axis(x, indices, /, *, axis=-1)
tan(x, /)
tanh(x, /)
tensordot(x1, x2, /, *, axes=2)
tile(x, repetitions, /)
tril(x, /, *, k=0)
triu(x, /, *, k=0)
trunc(x, /)
unique_all(x, /)
unique_counts(x, /)
unique_inverse(x, /)
unique_values(x, /)
unstack(x, /, *, axis=0)
var(x, /, *, axis=None, correction=0.0, keepdims=False)
vecdot(x1, x2, /, *, axis=-1)
where(condition, x1, x2, /)
zeros(shape, *, dtype=None, device=None)
zeros_like(x, /, *, dtype=None, device=None)
linalg.cholesky(x, /, *, upper=False)
linalg.cross(x1, x2, /, *, axis=-1)
linalg.det(x, /)
linalg.diagonal(x, /, *, offset=0)
linalg.eigh(x, /)
linalg.eigvalsh(x, /)
linalg.inv(x, /)
linalg.matmul(x1, x2, /)
linalg.matrix_norm(x, /, *, keepdims=False, ord='fro')
linalg.matrix_power(x, n, /)
linalg.matrix_rank(x, /, *, rtol=None)
linalg.matrix_transpose(x, /)
linalg.outer(x1, x2, /)
linalg.pinv(x, /, *, rtol=None)
linalg.qr(x, /, *, mode='reduced')
linalg.slogdet(x, /)
linalg.solve(x1, x2, /)
linalg.svd(x, /, *, full_matrices=True)
linalg.svdvals(x, /)
linalg.tensordot(x1, x2, /, *, axes=2)
linalg.trace(x, /, *, offset=0, dtype=None)
linalg.vecdot(x1, x2, /, *, axis=-1)
linalg.vector_norm(x, /, *, axis=None, keepdims=False, ord=2)
fft.fft(x, /, *, n=None, axis=-1, norm='backward')
fft.ifft(x, /, *, n=None, axis=-1, norm='backward')
fft.fftn(x, /, *, s=None, axes=None, norm='backward')
fft.ifftn(x, /, *, s=None, axes=None, norm='backward')
fft.rfft(x, /, *, n=None, axis=-1, norm='backward')
fft.irfft(x, /, *, n=None, axis=-1, norm='backward')
fft.rfftn(x, /, *, s=None, axes=None, norm='backward')
fft.irfftn(x, /, *, s=None, axes=None, norm='backward')
fft.hfft(x, /, *, n=None, axis=-1, norm='backward')
fft.ihfft(x, /, *, n=None, axis=-1, norm='backward')
fft.fftfreq(n, /, *, d=1.0, dtype=None, device=None)
fft.rfftfreq(n, /, *, d=1.0, dtype=None, device=None)
fft.fftshift(x, /, *, axes=None)
fft.ifftshift(x, /, *, axes=None)
"""
INFO = """
capabilities()
default_device()
default_dtypes(*, device=None)
devices()
dtypes(*, device=None, kind=None)
"""
METHODS = """
__array_namespace__(*, api_version=None)
__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)
__dlpack_device__()
to_device(device, /, *, stream=None)
"""
DUNDERS = """
abs add and bool complex eq float floordiv ge getitem gt index int invert le lshift lt matmul mod mul ne neg or pos pow
rshift setitem sub truediv xor iadd isub imul itruediv ifloordiv ipow imatmul imod iand ior ixor ilshift irshift radd
rsub rmul rtruediv rfloordiv rpow rmatmul rmod rand ror rxor rlshift rrshift
"""
DTYPES = """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
"""
BY_NAME = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def rows(table: str) -> list[Any]:
    split = (line.partition("(") for line in table.split("\n") if line)
    return [pytest.param(name, bracket + rest, id=name) for name, bracket, rest in split]


def parameters(text: str) -> list[Parameter]:
    scope: dict[str, Any] = {}
    exec(f"def f{text}: ...", scope)
    return list(inspect.signature(scope["f"]).parameters.values())


def differences(ours: list[Parameter], standard: list[Parameter]) -> Iterator[str]:
    """Calls that the standard allows and `ours` does not; more parameters and more ways to give them are allowed."""
    named = {p.name: p for p in ours}
    for i, wanted in enumerate(standard):
        if wanted.kind is Parameter.VAR_POSITIONAL:
            if not any(p.kind is wanted.kind for p in ours[: i + 1]):
                yield f"does not take *{wanted.name}"
            continue
        if wanted.kind in BY_PLACE and (len(ours) <= i or ours[i].kind not in BY_PLACE):
            yield f"does not take {wanted.name} at place {i}"
        if wanted.kind in BY_NAME and (wanted.name not in named or named[wanted.name].kind not in BY_NAME):
            yield f"does not take {wanted.name}="
        found = ours[i] if wanted.kind in BY_PLACE and i < len(ours) else named.get(wanted.name)
        if found is not None and wanted.default is not Parameter.empty and found.default is Parameter.empty:
            yield f"{wanted.name} has no default"
    allowed = {p.name for p in standard} | {p.name for p in ours[: sum(p.kind in BY_PLACE for p in standard)]}
    for p in ours:
        variadic = p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if not variadic and p.default is Parameter.empty and p.name not in allowed:
            yield f"demands {p.name}"


def check(thing: Any, text: str) -> None:
    ours = list(inspect.signature(thing).parameters.values())
    assert list(differences(ours, parameters(text))) == []


def find(name: str) -> Any:
    thing: Any = xp
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize(("name", "text"), rows(FUNCTIONS))
def test_functions(name: str, text: str) -> None:
    function = find(name)
    assert callable(function)
    check(function, text)
    space, _, last = name.rpartition(".")
    assert last in (find(space) if space else xp).__all__


def test_the_comparison_of_signatures() -> None:
    def wrong(ours: str, standard: str) -> list[str]:
        return list(differences(parameters(ours), parameters(standard)))

    assert wrong("(a, b=1, *, out=None)", "(x, /, *, b=2)") == []
    assert wrong("(x, /, k)", "(x, /, *, k=0)") == ["k has no default"]
    assert wrong("(x, *, k=0)", "(x, /, k)") == ["does not take k at place 1"]
    assert wrong("(x, axes)", "(x, /, axis)") == ["does not take axis="]
    assert wrong("(x, y)", "(x, /)") == ["demands y"]
    assert wrong("(arrays)", "(*arrays)") == ["does not take *arrays"]


def test_nothing_else_is_public() -> None:
    extra = {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
    known = {row.id.split(".")[0] for row in rows(FUNCTIONS)} | set(DTYPES.split())
    assert set(xp.__all__) == known | extra | {"__array_api_version__", "e", "inf", "nan", "newaxis", "pi"}
    assert len(set(xp.__all__)) == len(xp.__all__)


def test_constants() -> None:
    assert (xp.e, xp.pi, xp.inf) == (math.e, math.pi, math.inf)
    assert math.isnan(xp.nan)
    assert xp.newaxis is None
    assert xp.__array_api_version__ == "2024.12"


def test_dtypes_are_distinct_and_comparable() -> None:
    found = [getattr(xp, name) for name in DTYPES.split()]
    for i, a in enumerate(found):
        assert [a == b for b in found] == [i == j for j in range(len(found))]
        assert xp.empty(1, dtype=a).dtype == a


@pytest.mark.parametrize(("name", "text"), rows(METHODS))
def test_methods(name: str, text: str) -> None:
    check(getattr(xp.ones(1), name), text)


def test_attributes_and_operators() -> None:
    x = xp.ones((2, 3))
    missing = [name for name in DUNDERS.split() if not hasattr(type(x), f"__{name}__")]
    missing += [name for name in ("dtype", "device", "mT", "ndim", "shape", "size", "T") if not hasattr(x, name)]
    assert not missing
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError, match="1999"):
        x.__array_namespace__(api_version="1999.12")


class TestInfo:
    info = xp.__array_namespace_info__()

    @pytest.mark.parametrize(("name", "text"), rows(INFO))
    def test_functions(self, name: str, text: str) -> None:
        check(getattr(self.info, name), text)

    def test_capabilities(self) -> None:
        found = self.info.capabilities()
        assert found["boolean indexing"] is True
        assert found["data-dependent shapes"] is True
        limit = found["max dimensions"]
        assert xp.ones((1,) * limit).ndim == limit
        with pytest.raises(ValueError, match="dimensions"):
            xp.ones((1,) * (limit + 1))

    def test_devices(self) -> None:
        devices = self.info.devices()
        assert self.info.default_device() in devices
        assert xp.ones(1).device == self.info.default_device()
        for device in devices:
            x = xp.zeros(2, device=device)
            assert x.device == device
            assert (x + 1).device == device
            assert xp.asarray([1, 2], device=device).device == device
            assert xp.arange(3, device=device).device == device
            assert xp.zeros_like(x).device == device
            assert len({device, x.device}) == 1

    def test_the_default_device_is_the_threads_current_one(self) -> None:
        with gp.device("cpu") as cpu:
            assert self.info.default_device() == cpu

    def test_default_dtypes_are_those_of_arrays(self) -> None:
        found = self.info.default_dtypes(device=self.info.default_device())
        assert set(found) == {"real floating", "complex floating", "integral", "indexing"}
        real = found["real floating"]
        made = [xp.asarray(1.0), xp.asarray([1, 2.0]), xp.zeros(1), xp.ones(1), xp.empty(1), xp.eye(1), xp.full(1, 2.0),
                xp.linspace(0, 1, 2), xp.arange(2.0), xp.arange(0, 1, 0.5), xp.fft.fftfreq(3), xp.fft.rfftfreq(3),
                xp.asarray([1, 2]) / 2, xp.mean(xp.asarray([1, 2]))]  # fmt: skip
        assert [x.dtype for x in made] == [real] * len(made)
        whole = [xp.asarray(1), xp.asarray([1, 2]), xp.full(1, 2), xp.arange(3), xp.sum(xp.ones(2, dtype=xp.int8))]
        assert [x.dtype for x in whole] == [found["integral"]] * len(whole)
        both = [xp.asarray(1j), xp.full(1, 1j), xp.linspace(0j, 1, 2)]
        assert [x.dtype for x in both] == [found["complex floating"]] * len(both)
        places = [xp.argmax(xp.ones(3)), xp.argsort(xp.ones(3)), *xp.nonzero(xp.ones(3)),
                  xp.unique_inverse(xp.ones(3)).inverse_indices, xp.searchsorted(xp.ones(3), xp.ones(3)),
                  xp.count_nonzero(xp.ones(2))]  # fmt: skip
        assert [x.dtype for x in places] == [found["indexing"]] * len(places)

    @pytest.mark.parametrize(
        ("kind", "names"),
        [
            (None, DTYPES),
            ("bool", "bool"),
            ("signed integer", "int8 int16 int32 int64"),
            ("unsigned integer", "uint8 uint16 uint32 uint64"),
            ("integral", "int8 int16 int32 int64 uint8 uint16 uint32 uint64"),
            ("real floating", "float32 float64"),
            ("complex floating", "complex64 complex128"),
            ("numeric", DTYPES.replace("bool", "")),
            (("bool", "real floating"), "bool float32 float64"),
            ((), ""),
        ],
    )
    def test_dtypes(self, kind: Any, names: str) -> None:
        found = self.info.dtypes(kind=kind)
        assert found == {name: getattr(xp, name) for name in names.split()}
        assert self.info.dtypes(kind=kind, device=self.info.default_device()) == found
        with pytest.raises(ValueError, match="whole"):
            self.info.dtypes(kind="whole")
