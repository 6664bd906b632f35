"""Streams: whatever the cut of the input, the joined output has the bits of the function that gets all of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import speech

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.errors import ParameterError

SOS = [[0.2, 0.1, 0.3, 1.0, -1.2, 0.5], [1.0, -0.4, 0.1, 1.0, 0.3, 0.2]]


def pieces(n: int, cuts: list[int]) -> list[slice]:
    """Slices of n elements between cuts, some of them empty."""
    edges = sorted({0, n, *(c % (n + 1) for c in cuts)})
    found = [slice(a, b) for a, b in pairwise(edges)]
    return [*found[:1], slice(edges[1], edges[1]), *found[1:]]


def same_bits(stream: Any, x: Any, cuts: list[int], want: Any) -> None:
    parts = [stream.push(x[..., s]) for s in pieces(x.shape[-1], cuts)]
    parts.append(stream.flush())
    got = np.concatenate([p.to_numpy() for p in parts], axis=-1)
    assert got.shape == want.shape
    assert got.tobytes() == np.ascontiguousarray(want.to_numpy()).tobytes()


def values(n: int, rows: int, wide: bool) -> Any:
    made = np.random.default_rng(n).standard_normal((rows, n) if rows else n)
    return gp.asarray(made.astype(np.float64 if wide else np.float32))


CUTS = st.lists(st.integers(0, 5000), max_size=6)
ROWS = st.integers(0, 2)


@pytest.mark.filterwarnings("ignore:n_fft")
@settings(max_examples=60)
@given(
    n=st.integers(1, 300), n_fft=st.integers(2, 40), hop=st.integers(1, 50), rows=ROWS, wide=st.booleans(), cuts=CUTS,
    mode=st.sampled_from(["constant", "edge", "reflect"]), center=st.booleans(),
)  # fmt: skip
def test_stft(n: int, n_fft: int, hop: int, rows: int, wide: bool, cuts: list[int], mode: str, center: bool) -> None:
    if not center and n < n_fft:
        return
    y = values(n, rows, wide)
    options: dict[str, Any] = {"n_fft": n_fft, "hop_length": hop, "center": center, "pad_mode": mode}
    stream = A.STFTStream(**options)
    same_bits(stream, y, cuts, A.stft(y, **options))
    assert stream.latency == (n_fft - n_fft // 2 if center else n_fft)


@settings(max_examples=60)
@given(
    frames=st.integers(1, 40), n_fft=st.integers(2, 40), hop=st.integers(1, 50), rows=ROWS, wide=st.booleans(),
    cuts=CUTS, center=st.booleans(),
)  # fmt: skip
def test_istft(frames: int, n_fft: int, hop: int, rows: int, wide: bool, cuts: list[int], center: bool) -> None:
    bins = n_fft // 2 + 1
    D = values(frames, (rows or 1) * bins * 2, wide).reshape(((rows or 1), 2, bins, frames))
    D = (D[:, 0] + 1j * D[:, 1])[slice(None) if rows else 0]
    options: dict[str, Any] = {"n_fft": n_fft, "hop_length": hop, "center": center}
    same_bits(A.ISTFTStream(**options), D, cuts, A.istft(D, **options))


@pytest.mark.filterwarnings("ignore:n_fft")
@settings(max_examples=25)
@given(n=st.integers(1, 400), hop=st.integers(5, 40), rows=ROWS, wide=st.booleans(), cuts=CUTS)
def test_mel(n: int, hop: int, rows: int, wide: bool, cuts: list[int]) -> None:
    y = values(n, rows, wide)
    options: dict[str, Any] = {"sr": 8000, "n_fft": 64, "hop_length": hop, "n_mels": 10, "power": 1.0 + wide}
    same_bits(A.MelStream(**options), y, cuts, A.melspectrogram(y=y, **options))


@settings(max_examples=40)
@given(n=st.integers(1, 400), rows=ROWS, wide=st.booleans(), cuts=CUTS)
def test_filter(n: int, rows: int, wide: bool, cuts: list[int]) -> None:
    y = values(n, rows, wide)
    same_bits(A.FilterStream(SOS), y, cuts, A.sosfilt(SOS, y))


@settings(max_examples=30)
@given(n=st.integers(1, 5000), taps=st.integers(1, 700), rows=ROWS, wide=st.booleans(), cuts=CUTS)
def test_convolve(n: int, taps: int, rows: int, wide: bool, cuts: list[int]) -> None:
    y, h = values(n, rows, wide), values(taps, 0, wide)
    same_bits(A.ConvolveStream(h), y, cuts, A.fftconvolve(y, h))


RATES = [(2, 1), (1, 2), (3, 2), (22050, 16000), (16000, 22050), (7, 7), (1.3, 1.0)]


@settings(max_examples=40)
@given(n=st.integers(1, 900), rates=st.sampled_from(RATES), rows=ROWS, wide=st.booleans(), cuts=CUTS)
def test_resample(n: int, rates: tuple[float, float], rows: int, wide: bool, cuts: list[int]) -> None:
    y = values(n, rows, wide)
    kind = "polyphase" if wide else "soxr_lq"
    same_bits(A.ResampleStream(*rates, res_type=kind), y, cuts,
              A.resample(y, orig_sr=rates[0], target_sr=rates[1], res_type=kind))  # fmt: skip


STREAMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "stft": (lambda: A.STFTStream(n_fft=64, pad_mode="reflect"), lambda y: A.stft(y, n_fft=64, pad_mode="reflect")),
    "mel": (lambda: A.MelStream(n_fft=256, n_mels=10), lambda y: A.melspectrogram(y=y, n_fft=256, n_mels=10)),
    "filter": (lambda: A.FilterStream(SOS), lambda y: A.sosfilt(SOS, y)),
    "convolve": (lambda: A.ConvolveStream(gp.ones(40, "float32")), lambda y: A.fftconvolve(y, gp.ones(40, "float32"))),
    "resample": (lambda: A.ResampleStream(3, 2), lambda y: A.resample(y, orig_sr=3, target_sr=2)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_state_is_gone_back_to(name: str) -> None:
    make, whole = STREAMS[name]
    y = gp.asarray(speech()[:3000])
    stream, other = make(), make()
    first = stream.push(y[:1111]).to_numpy()
    state = stream.state()
    stream.push(-y)
    other.restore(state)
    for one in (other, stream):
        one.restore(state)
        rest = [one.push(y[1111:]).to_numpy(), one.flush().to_numpy()]
        got = np.concatenate([first, *rest], axis=-1)
        assert got.tobytes() == np.ascontiguousarray(whole(y).to_numpy()).tobytes()
    with pytest.raises(ParameterError, match="no state of"):
        other.restore({"_total": 1})


@pytest.mark.parametrize("name", STREAMS)
def test_wrong_blocks_are_refused(name: str) -> None:
    make, _ = STREAMS[name]
    with pytest.raises(ParameterError, match="there is no rest"):
        make().flush()
    stream = make()
    stream.push(gp.ones((2, 50), "float32"))
    with pytest.raises(ParameterError, match="leading axes"):
        stream.push(gp.ones(50, "float32"))
    with pytest.raises(ParameterError, match="float64"):
        stream.push(gp.ones((2, 50), "float64"))
    stream.flush()
    with pytest.raises(ParameterError, match="has ended"):
        stream.flush()
    with pytest.raises(ParameterError, match="has ended"):
        stream.push(gp.ones((2, 50), "float32"))


def test_wrong_parameters() -> None:
    with pytest.raises(ParameterError, match="pad_mode is 'symmetric'"):
        A.STFTStream(pad_mode="symmetric")
    with pytest.raises(ParameterError, match="power is 3"):
        A.MelStream(power=3)
    with pytest.raises(ParameterError, match="n_fft=64 makes 33"):
        A.ISTFTStream(n_fft=64).push(gp.ones((32, 3), "complex64"))
    with pytest.raises(ParameterError, match="complex GPUArray"):
        A.ISTFTStream(n_fft=64).push(gp.ones((33, 3), "float32"))
    with pytest.raises(ParameterError, match="use one type"):
        A.ConvolveStream(gp.ones(3, "float64")).push(gp.ones(3, "float32"))


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_kernels_have_the_same_bits_for_any_cut(device: str) -> None:
    with gp.device(device):
        y = gp.asarray(speech()[9000:9700])
        same_bits(A.STFTStream(n_fft=64), y, [333], A.stft(y, n_fft=64))
        same_bits(A.MelStream(n_fft=64, hop_length=32, n_mels=5), y, [401],
                  A.melspectrogram(y=y, n_fft=64, hop_length=32, n_mels=5))  # fmt: skip
        same_bits(A.FilterStream(SOS), y, [64, 333], A.sosfilt(SOS, y))
        same_bits(A.ResampleStream(3, 2, res_type="polyphase"), y, [50, 333],
                  A.resample(y, orig_sr=3, target_sr=2, res_type="polyphase"))  # fmt: skip
        D = A.stft(y, n_fft=32)
        same_bits(A.ISTFTStream(n_fft=32), D, [20], A.istft(D, n_fft=32))


@pytest.mark.parametrize(
    "stream", [A.ResampleStream(2, 1), A.ResampleStream(1, 1), A.FilterStream([[1.0, 0, 0, 1, -0.5, 0]])]
)
def test_of_empty_blocks_the_rest_is_empty(stream: Any) -> None:
    for _ in range(2):
        assert stream.push(gp.zeros((2, 0), "float32")).shape == (2, 0)
    rest = stream.flush()
    assert (rest.shape, rest.dtype.name) == ((2, 0), "float32")
    with pytest.raises(ParameterError, match="the stream has ended"):
        stream.flush()
