"""Operators of Fourier transforms along one axis: types, launches, and what other layouts and lengths are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.fft import compose, long, plan
from pygpukit.fft.layout import ALIGNED, CONJUGATE, INVERSE, MIRROR, PLAIN, Batch, batch_of, frames_of, launch
from pygpukit.ops.launch import KernelLaunch, Launch, Number, Unit, blocks_for, constant, i32, i64, read, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance

__all__ = ["chirp_pair", "complex_of", "complex_rows", "hermitian_rows", "real_of", "real_rows"]

_CACHED_ELEMENTS = 1 << 17
_COMPLEX = {"float32": "complex64", "float64": "complex128"}
_REAL = {value: key for key, value in _COMPLEX.items()}


def real_of(kind: DataType) -> DataType:
    """Return the type of the parts of a complex type; a real type as it is."""
    return dtype(_REAL.get(kind.name, kind.name))


def complex_of(kind: DataType) -> DataType:
    """Return the complex type whose parts have a real type."""
    return dtype(_COMPLEX[kind.name])


def _axis(p: Problem) -> int:
    ndim, axis = p["x"].ndim, p.options["axis"]
    return int(axis) % ndim


def _points(p: Problem) -> int:
    """Length of the transform; a plan is for one."""
    n = p.options["n"]
    if n is None:
        size = p["x"].shape[_axis(p)]
        n = 2 * (size - 1) if p.name == "fft_hermitian" else size
    return int(n)


def _input(p: Problem) -> Tensor:
    """The array whose rows are transformed: frames of ``x`` where a hop is given."""
    hop = p.options.get("hop")
    return p["x"] if hop is None else frames_of(p["x"], _points(p), int(hop))


def _row_axis(p: Problem) -> int:
    return p["x"].ndim if p.options.get("hop") is not None else _axis(p)


def _infer(p: Problem) -> list[Result]:
    x, hop = p["x"], p.options.get("hop")
    accepted = _COMPLEX if p.name == "fft_real" else _REAL
    if x.dtype.name not in accepted:
        raise DTypeError(f"{p.name} takes {' or '.join(accepted)}, not {x.dtype.name}: convert with astype")
    if x.ndim == 0:
        raise ShapeError("a Fourier transform needs an array of at least one dimension")
    n = _points(p)
    if n < 1:
        raise ShapeError(f"invalid number of FFT data points ({n}): it must be at least 1")
    if hop is not None and (hop < 1 or x.shape[-1] < n):
        raise ShapeError(f"no frame of {n} points, {hop} apart, in {hint(x.shape[-1])} elements")
    window = p.arrays.get("window")
    if window is not None:
        if window.dtype is not real_of(x.dtype):
            raise DTypeError(f"the window of {x.dtype.name} is {real_of(x.dtype).name}, not {window.dtype.name}")
        if window.ndim != 1 or window.shape[0] != n:
            raise ShapeError(f"the window of a transform of {n} points has the shape ({n},), not {window}")
    if p.name == "fft_complex":
        count, kind = n, x.dtype
    elif p.name == "fft_real":
        count, kind = n if p.options["full"] else n // 2 + 1, complex_of(x.dtype)
    else:
        count, kind = n, real_of(x.dtype)
    if p.requested and p.requested[0] is not kind:
        raise DTypeError(f"the transform gives {kind.name}, which is not written to {p.requested[0].name}")
    shape = list(_input(p).shape)
    shape[_row_axis(p)] = count
    return [Result(tuple(shape), kind)]


def _given(p: Problem, n: int) -> Any:
    """Elements of a row that are read; more are not needed."""
    size = _input(p).shape[_row_axis(p)]
    needed = n // 2 + 1 if p.name == "fft_hermitian" else n
    return needed if size >= needed else size


def _rows(p: Problem) -> Batch | None:
    x, out = _input(p), p.out
    return batch_of(x.shape, x.strides, out.strides, _row_axis(p))


def _whole(x: Tensor) -> str | None:
    if x.dtype.kind == "c" and not x.is_aligned(x.dtype.itemsize):
        return "an array begins between complex numbers"
    return None


def _refused(p: Problem) -> str | None:
    """Why no kernel takes the arrays as they lie."""
    if _rows(p) is None:
        return "the axes beside the transformed one are more than three in memory"
    if _given(p, _points(p)) < 1:
        return "there are no elements to transform"
    window = p.arrays.get("window")
    if window is not None and not (window.is_contiguous() and window.is_aligned(2 * window.dtype.itemsize)):
        return "the window is not contiguous"
    return _whole(_input(p)) or _whole(p.out)


def _flags(p: Problem) -> int:
    options = p.options
    return (
        INVERSE * bool(options.get("inverse")) | CONJUGATE * bool(options.get("conjugate"))
        | MIRROR * bool(options.get("full"))
    )  # fmt: skip


def _scale(p: Problem) -> Number:
    return Number("scale", real_of(p.out.dtype))


def _pairs(x: Tensor, strides: Sequence[Any]) -> bool:
    """Are two neighbouring reals of every row one aligned pair?"""
    return bool(strides[3] == 1 and x.is_aligned(2 * x.dtype.itemsize) and all(bool(s % 2 == 0) for s in strides[:3]))


def _kinds(p: Problem, n: int) -> tuple[plan.Source, plan.Sink]:
    even = n % 2 == 0 and plan.is_smooth(n)
    if p.name == "fft_complex":
        return "COMPLEX", "COMPLEX"
    if p.name == "fft_real":
        return ("PACKED", "HALF") if even else ("REAL", "HALF_ODD")
    return ("HERMITIAN", "PACKED") if even else ("HERMITIAN_ODD", "REAL")


def _block(p: Problem, batch: Batch) -> tuple[Unit, plan.Shape]:
    n = _points(p)
    return plan.unit(n, real_of(p["x"].dtype), *_kinds(p, n), batch.columns)


def _core(p: Problem, n: int) -> int:
    """Complex points of the transform in a block."""
    if not plan.is_smooth(n):
        return plan.convolution_length(n)
    return n // 2 if n % 2 == 0 and p.name != "fft_complex" else n


def _accepts_block(p: Problem) -> str | None:
    n, most = _points(p), plan.limit(real_of(p["x"].dtype))
    if _core(p, n) > most:
        return f"a row of {n} points is over the {most} complex points of a block"
    reason = _refused(p)
    if reason is None:
        batch = _rows(p)
        assert batch is not None
        reason = p.missing(_block(p, batch)[0])
    return reason


def _launch_block(p: Problem) -> Launch:
    n, batch, window = _points(p), _rows(p), p.arrays.get("window")
    assert batch is not None
    x, flags, given = _input(p), _flags(p), _given(p, n)
    whole = p.name == "fft_hermitian" or bool(given == n)
    real = (x, batch.x) if p.name == "fft_real" else (p.out, batch.out)
    aligned = p.name != "fft_complex" and n % 2 == 0 and whole and _pairs(*real)
    if aligned:
        flags |= ALIGNED
    if whole and window is None and (aligned or p.name == "fft_complex"):
        flags |= PLAIN
    made = _block(p, batch)
    step = launch(made, batch, write(p.out), read(x), None if window is None else constant(window), given, _scale(p),
                  flags)  # fmt: skip
    return Launch((step,))


def _accepts_steps(p: Problem) -> str | None:
    n, x = _points(p), _input(p)
    wide, packed = x.dtype.itemsize >= (16 if x.dtype.kind == "c" else 8), p.name != "fft_complex"
    if _core(p, n) <= plan.limit(real_of(x.dtype)):
        return "a block holds the row"
    if packed and n % 2:
        return "the row has an odd number of reals"
    if plan.steps(n // 2 if packed else n, wide) is None:
        return f"{n} points are no product of two or three lengths of which a block holds many columns"
    reason = _refused(p)
    if reason is not None:
        return reason
    if p.arrays.get("window") is not None or _given(p, n) != (n // 2 + 1 if p.name == "fft_hermitian" else n):
        return "a window or padding needs another pass"
    batch = _rows(p)
    assert batch is not None
    lengths = plan.steps(n // 2 if packed else n, wide)
    assert lengths is not None
    if batch.sizes[0] != 1 or (len(lengths) == 3 and batch.sizes[1] != 1):
        return "the axes beside the transformed one are too many in memory"
    if packed and not (_pairs(x, batch.x) if p.name == "fft_real" else _pairs(p.out, batch.out)):
        return "reals are not aligned pairs"
    return None


def _launch_steps(p: Problem) -> Launch:
    n, batch = _points(p), _rows(p)
    assert batch is not None
    if p.name == "fft_complex":
        return long.complex_launch(p["x"], p.out, batch, n, _scale(p), _flags(p))
    if p.name == "fft_real":
        return long.real_launch(_input(p), p.out, batch, n, _scale(p), _flags(p))
    return long.hermitian_launch(p["x"], p.out, batch, n, _scale(p), _flags(p))


def _host(p: Problem) -> Callable[..., None]:
    from pygpukit.fft import reference

    n, axis, hop = _points(p), _row_axis(p), p.options.get("hop")
    functions: dict[str, Callable[..., Any]] = {
        "fft_complex": reference.complex_rows,
        "fft_real": reference.real_rows,
        "fft_hermitian": reference.hermitian_rows,
    }
    function = functions[p.name]
    options = {k: p.options[k] for k in ("inverse", "full", "conjugate") if k in p.options}

    def run(x: Any, *rest: Any) -> None:
        window, scale, out = rest if len(rest) == 3 else (None, *rest)
        if hop is not None:
            # Frames are rows of their own: a few at a time stay in cache once the window is on them.
            x = reference.frames(x, n, int(hop))
            batch = max(1, x.size // max(1, x.shape[-2] * n))
            step = max(1, _CACHED_ELEMENTS // (n * batch))
            for first in range(0, x.shape[-2], step):
                part = np.s_[..., first : first + step, :]
                function(x[part], window, n, axis, float(scale), out[part], **options)
            return
        function(x, window, n, axis, float(scale), out, **options)

    return run


def _flops(p: Problem) -> int:
    n = _points(p)
    rows = hint(_input(p).size) // max(1, hint(_input(p).shape[_row_axis(p)]))
    return rows * plan.operations(n) // (1 if p.name == "fft_complex" else 2)


def _units(name: str) -> Callable[[Sequence[str]], Iterator[Unit]]:
    def units(types: Sequence[str]) -> Iterator[Unit]:
        for real in (dtype(x) for x in types if x in _COMPLEX):
            for n in plan.BUNDLED[real.itemsize]:
                if name == "fft_complex":
                    yield plan.unit(n, real, "COMPLEX", "COMPLEX")[0]
                elif name == "fft_real":
                    yield plan.unit(n, real, "PACKED", "HALF")[0]
                else:
                    yield plan.unit(n, real, "HERMITIAN", "PACKED")[0]

    return units


def _takes_transforms(p: Problem) -> str | None:
    n, real = _points(p), real_of(p["x"].dtype)
    if n > 1 << 30 and p.name == "fft_complex" and plan.steps(n, real.itemsize == 8) is None:
        return f"{n} points are too many for a convolution"
    if _core(p, n) > plan.limit(real) or _refused(p) is not None:
        return None
    batch = _rows(p)
    assert batch is not None
    reason = p.missing(_block(p, batch)[0])
    # Plain rows of a bundled length end the search for what is there.
    plain = p.name == "fft_complex" and batch.columns == (False, False) and n in plan.BUNDLED[real.itemsize]
    return reason if plain or plan.bundled_convolution(n, real) is None else None


def _takes_copies(p: Problem) -> str | None:
    return None if _refused(p) is not None else "the arrays can be read and written as they are"


def _variants(name: str) -> tuple[Variant, ...]:
    return (
        Variant("a row per block", "batch_invariant", _accepts_block, launch=_launch_block, units=_units(name)),
        Variant("steps through workspace", "batch_invariant", _accepts_steps, launch=_launch_steps),
        Variant("NumPy", "run_to_run", lambda p: None, host=_host),
        Variant("copies first", "batch_invariant", _takes_copies, compose=compose.by_copies),
        Variant("other transforms", "batch_invariant", _takes_transforms, compose=compose.by_transforms),
    )


def _reference(name: str) -> Callable[..., Any]:
    def reference(x: Any, *args: Any, **kwargs: Any) -> Any:
        from pygpukit.fft import reference as r

        return r.by_name(name, x, *args, **kwargs)

    return reference


_N = Parameter("n", "choice", None, keyword_only=True, doc="Points of the transform; those of the axis by default.")
_AXIS = Parameter("axis", "choice", -1, keyword_only=True, doc="Axis that is transformed.")
_WINDOW = Parameter("window", "optional", None, doc="Factors of the input, one per point.")
_SCALE = Parameter("scale", "number", 1.0, doc="Factor of the result.")
_HOP = Parameter("hop", "choice", None, keyword_only=True, doc="Transform frames of the last axis, this many apart.")

complex_rows = register(
    Operator(
        name="fft_complex",
        parameters=(
            Parameter("x"), _WINDOW, _SCALE, _N, _AXIS,
            Parameter("inverse", "choice", False, keyword_only=True, doc="Turn the other way round."),
        ),
        infer=_infer,
        reference=_reference("fft_complex"),
        variants=_variants("fft_complex"),
        doc="Discrete Fourier transform of complex rows, not normalised but by ``scale``.",
        tolerance={"complex64": 1e-6, "complex128": 1e-14},
        flops=_flops,
        public=False,
    )
)  # fmt: skip

real_rows = register(
    Operator(
        name="fft_real",
        parameters=(
            Parameter("x"), _WINDOW, _SCALE, _N, _AXIS,
            Parameter("full", "choice", False, keyword_only=True, doc="Write all points, not only half of them."),
            Parameter("conjugate", "choice", False, keyword_only=True, doc="Turn the other way round."),
            _HOP,
        ),
        infer=_infer,
        reference=_reference("fft_real"),
        variants=_variants("fft_real"),
        doc="Discrete Fourier transform of real rows, not normalised but by ``scale``.",
        tolerance={"complex64": 1e-6, "complex128": 1e-14},
        flops=_flops,
        public=False,
    )
)  # fmt: skip

hermitian_rows = register(
    Operator(
        name="fft_hermitian",
        parameters=(
            Parameter("x"), _SCALE, _N, _AXIS,
            Parameter("conjugate", "choice", False, keyword_only=True, doc="Turn the other way round."),
        ),
        infer=_infer,
        reference=_reference("fft_hermitian"),
        variants=_variants("fft_hermitian"),
        doc="Inverse of ``fft_real``: real rows from half their points, not normalised but by ``scale``.",
        tolerance={"float32": 1e-6, "float64": 1e-14},
        flops=_flops,
        public=False,
    )
)  # fmt: skip


def _infer_chirp(p: Problem) -> list[Result]:
    return [Result((int(p.options["n"]),), p["x"].dtype), Result((int(p.options["m"]),), p["x"].dtype)]


def _chirp_unit(real: DataType) -> Unit:
    entry = f"pgk_fft_chirp_{real.tag}"
    return instance("fft/chirp.cu", [f"PGK_CHIRP({entry}, {real.tag})"], (entry,))


def _launch_chirp(p: Problem) -> Launch:
    unit, n, m = _chirp_unit(real_of(p["x"].dtype)), int(p.options["n"]), int(p.options["m"])
    arguments = (write(p.outputs[0]), write(p.outputs[1]), i64(n), i64(m), i32(-1 if p.options["inverse"] else 1))
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks_for(m, 256, "a chirp"),), (256,), arguments),))


def _units_chirp(types: Sequence[str]) -> Iterator[Unit]:
    for name in types:
        if name in _COMPLEX:
            yield _chirp_unit(dtype(name))


def _reference_chirp(x: Any, *, n: int, m: int, inverse: bool = False) -> Any:
    from pygpukit.fft import reference

    return reference.chirp_pair(x, n, m, inverse)


def _host_chirp(p: Problem) -> Callable[..., None]:
    options = {name: p.options[name] for name in ("n", "m", "inverse")}

    def run(x: Any, *results: Any) -> None:
        for out, made in zip(results, _reference_chirp(x, **options), strict=True):
            out[...] = made

    return run


chirp_pair = register(
    Operator(
        name="fft_chirp",
        parameters=(
            Parameter("x"),
            Parameter("n", "choice", keyword_only=True, doc="Points of the transform."),
            Parameter("m", "choice", keyword_only=True, doc="Points of the convolution."),
            Parameter("inverse", "choice", False, keyword_only=True, doc="Turn the other way round."),
        ),
        infer=_infer_chirp,
        reference=_reference_chirp,
        variants=(
            Variant("a thread each", "batch_invariant", lambda p: None, launch=_launch_chirp, units=_units_chirp),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host_chirp),
        ),
        doc="The factors and the kernel that make a transform of ``n`` points a convolution; of the type of ``x``.",
        tolerance={"complex64": 1e-6, "complex128": 1e-14},
        public=False,
    )
)
