"""Chains: each effect by its definition, streams with the bits of the whole, kernels against NumPy, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import clicks, speech

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.errors import ParameterError

RATE = 8000
KERNELS = [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]
RESPONSE = np.random.default_rng(1).standard_normal(150) * np.exp(-np.arange(150) / 30)


def sound(n: int = 2000, channels: int = 1, seed: int = 0) -> Any:
    """Noise whose level jumps every 100 samples."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(10 ** rng.uniform(-3, 0.2, n // 100 + 1), 100)[:n]
    return (rng.standard_normal((channels, n)) * levels * 0.5).astype(np.float32)


def everything(channels: int = 2, block: int = 32) -> A.Chain:
    return (
        A.Chain(RATE, channels=channels, block=block)
        | A.Highpass(60, order=4)
        | A.Gate(-30, release=0.005)
        | A.Compressor(-18, ratio=3)
        | A.Convolve(RESPONSE, wet=0.3, dry=0.7)
        | A.SpectralGate(-40, n_fft=64)
        | A.Equalizer([(200, -3), (2000, 6)], n_fft=32)
        | A.Limiter(-1.0, lookahead=0.002)
    )


def run(chain: A.Chain, y: Any) -> Any:
    return chain(gp.asarray(y)).to_numpy()


def one(effect: A.Effect, channels: int = 1, block: int = 128, rate: float = RATE) -> A.Chain:
    return A.Chain(rate, channels=channels, block=block, effects=[effect])


def late(y: Any, by: int) -> Any:
    return np.concatenate([np.zeros((*y.shape[:-1], by)), y], axis=-1)[..., : y.shape[-1]]


@pytest.mark.parametrize("order", [2, 4, 8])
def test_a_high_pass_has_the_response_of_butterworths(order: int) -> None:
    x = np.zeros(1 << 15, np.float32)
    x[0] = 1.0
    got = np.abs(np.fft.rfft(run(one(A.Highpass(500, order=order)), x).astype(np.float64)))[1:-1]
    w = np.pi * np.arange(1, 1 << 14) / (1 << 14)
    want = 1 / np.sqrt(1 + (np.tan(np.pi * 500 / RATE) / np.tan(w / 2)) ** (2 * order))
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("block", [100, 128])
def test_dynamics_are_those_of_whole_arrays(block: int) -> None:
    for y in (sound(4000)[0], speech()[:6000], clicks()[:5000] * 5):
        whole = gp.asarray(y.astype(np.float64))
        pairs: list[tuple[A.Effect, Any]] = [
            (A.Gate(-35, attack=0.002, release=0.05, range=-50),
             A.gate(whole, sr=RATE, threshold=-35, attack=0.002, release=0.05, range=-50)),
            (A.Compressor(-25, ratio=5, attack=0.003, release=0.2, knee=8, makeup=3),
             A.compressor(whole, sr=RATE, threshold=-25, ratio=5, attack=0.003, release=0.2, knee=8, makeup=3)),
            (A.Compressor(-25, ratio=5, knee=0), A.compressor(whole, sr=RATE, threshold=-25, ratio=5, knee=0)),
            (A.Limiter(-6, lookahead=0.003, release=0.02),
             A.limiter(whole, sr=RATE, ceiling=-6, lookahead=0.003, release=0.02)),
            (A.Limiter(-6, lookahead=0), A.limiter(whole, sr=RATE, ceiling=-6, lookahead=0)),
        ]  # fmt: skip
        for effect, want in pairs:
            got, by = run(one(effect, block=block), y), effect.latency(RATE)
            np.testing.assert_allclose(got, late(want.to_numpy(), by), atol=1e-6 * np.abs(y).max())


@pytest.mark.parametrize("block", [16, 100, 256])
def test_convolution_is_the_sum_of_delayed_samples(block: int) -> None:
    y, ir = sound(1500, 2), np.stack([RESPONSE, RESPONSE[::-1]])
    for response in (ir, RESPONSE, RESPONSE[:1]):
        got = run(one(A.Convolve(response, wet=0.5, dry=0.25), 2, block), y)
        rows = np.broadcast_to(response, (2, response.shape[-1]))
        want = [0.25 * x + 0.5 * np.convolve(x.astype(np.float64), h)[:1500] for x, h in zip(y, rows, strict=True)]
        np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max())


def spectral_oracle(y: Any, n: int, hop: int, gains: Callable[[Any, Any], Any]) -> Any:
    """Frames that end at multiples of the hop, changed and added up in float64; late by a frame but one."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)
    padded = np.concatenate([np.zeros(n), y, np.zeros(2 * n)]).astype(np.float64)
    total, squares, opened = np.zeros(padded.size), np.zeros(padded.size), np.zeros(n // 2 + 1)
    for start in range(hop, y.size + n, hop):
        spectrum = np.fft.rfft(window * padded[start : start + n])
        factor, opened = gains(spectrum, opened)
        total[start : start + n] += window * np.fft.irfft(spectrum * factor, n)
        squares[start : start + n] += window**2
    return late((total[n:] / np.maximum(squares[n:], 1e-9))[: y.size], n - 1)


@pytest.mark.parametrize(("n", "hop", "block"), [(64, None, 32), (64, 10, 100), (128, 64, 16), (16, 1, 50)])
def test_a_spectral_gate_closes_quiet_bins(n: int, hop: int | None, block: int) -> None:
    y = sound(1200, seed=3)[0]
    step = hop or n // 4

    def gains(spectrum: Any, opened: Any) -> Any:
        level = 20 * np.log10(np.abs(spectrum) / (n / 4) + 1e-30)
        attack, release = (np.exp(-step / (RATE * t)) for t in (0.004, 0.02))
        loud = (level >= -30).astype(float)
        opened = opened + (1 - np.where(loud > opened, attack, release)) * (loud - opened)
        return 10 ** ((1 - opened) * -20 / 20), opened

    effect = A.SpectralGate(-30, -20, 0.004, 0.02, n_fft=n, hop_length=hop)
    np.testing.assert_allclose(run(one(effect, block=block), y), spectral_oracle(y, n, step, gains), atol=3e-6)


def test_an_equalizer_is_its_curve_and_a_delay() -> None:
    y = sound(3000)[0]
    flat = run(one(A.Equalizer([(100, 6.0)], n_fft=64)), y)
    np.testing.assert_allclose(flat, late(y, 63) * 10 ** (6 / 20), atol=3e-6)
    curve = 10 ** (np.interp(np.log(np.maximum(np.arange(33) * RATE / 64, 1e-3)), np.log([500, 2000]), [0, -12]) / 20)
    got = run(one(A.Equalizer([(500, 0), (2000, -12)], n_fft=64)), y)
    np.testing.assert_allclose(got, spectral_oracle(y, 64, 16, lambda s, o: (curve, o)), atol=3e-6)


@settings(max_examples=25)
@given(data=st.data())
def test_a_stream_has_the_bits_of_the_whole_for_any_cut(data: st.DataObject) -> None:
    channels, n = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 500))
    block = data.draw(st.sampled_from([16, 23, 64]))
    chain, y = everything(channels, block), sound(500, channels, data.draw(st.integers(0, 5)))[:, :n]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    stream, parts = chain.stream(), []
    for a, b in zip([0, *cuts], [*cuts, n], strict=True):
        parts.append(stream.push(gp.asarray(np.ascontiguousarray(y[:, a:b]))).to_numpy())
        if data.draw(st.booleans()):
            again = chain.stream()
            again.restore(stream.state())
            stream = again
    parts.append(stream.flush().to_numpy())
    assert np.concatenate(parts, axis=-1).tobytes() == run(chain, y).tobytes()


@pytest.mark.parametrize("device", KERNELS)
def test_kernels_compute_what_numpy_computes(device: str) -> None:
    y = sound(700, 2)
    effects: list[Any] = [*everything().effects, None]
    for effect in effects:
        chain = everything() if effect is None else one(effect, 2, 32)
        with gp.device("cpu"):
            want = run(chain, y)
        with gp.device(device):
            got = run(chain, y)
        np.testing.assert_allclose(got, want, atol=3e-6 * np.abs(want).max(), err_msg=repr(effect))


@pytest.mark.parametrize("device", KERNELS)
def test_kernels_give_streams_and_items_the_bits_of_the_whole(device: str) -> None:
    y = np.stack([sound(300, 2, 1), sound(300, 2, 2)])
    with gp.device(device):
        chain = everything()
        whole = run(chain, y)
        assert run(chain, y[1]).tobytes() == whole[1].tobytes()
        stream, parts = chain.stream(), []
        for a, b in ((0, 7), (7, 7), (7, 100), (100, 300)):
            state = stream.state()
            stream.push(gp.asarray(np.ascontiguousarray(y[..., a : min(b, a + 50)])))
            stream.restore(state)
            parts.append(stream.push(gp.asarray(np.ascontiguousarray(y[..., a:b]))).to_numpy())
        parts.append(stream.flush().to_numpy())
        assert np.concatenate(parts, axis=-1).tobytes() == whole.tobytes()


def test_items_of_a_batch_begin_anew() -> None:
    y = np.stack([sound(300, 2, 1), sound(300, 2, 2)])
    whole = run(everything(), y)
    for item, got in zip(y, whole, strict=True):
        assert run(everything(), item).tobytes() == got.tobytes()
    mono = run(everything(1), y)
    assert mono[1, 0].tobytes() == run(everything(1), y[1, 0]).tobytes()


@pytest.mark.parametrize("device", ["cpu", *KERNELS])
def test_changed_parameters_move_over_a_block(device: str) -> None:
    with gp.device(device):
        quiet = np.full(64, 1e-3, np.float32)
        chain = A.Chain(RATE, block=16) | A.Convolve([1.0], wet=0.0, dry=1.0) | A.Compressor(0, ratio=2, makeup=0)
        stream = chain.stream()
        stream.push(gp.asarray(quiet[:16]))
        stream.change(0, dry=3.0)
        stream.change(-1, makeup=20.0)
        got = stream.push(gp.asarray(quiet[:32])).to_numpy()
        way = np.minimum(np.arange(1, 33) / 16, 1)
        np.testing.assert_allclose(got, 1e-3 * (1 + 2 * way) * 10 ** (way * 20 / 20), rtol=1e-5)
        with pytest.raises(ParameterError, match="ir of Convolve is fixed"):
            stream.change(0, ir=[2.0])
        with pytest.raises(ParameterError, match="volume of Compressor does not exist"):
            stream.change(1, volume=2)
        with pytest.raises(ParameterError, match="index of the effect is 2"):
            stream.change(2, wet=2)
        with pytest.raises(ParameterError, match="makeup is nan"):
            stream.change(1, makeup=float("nan"))


@pytest.mark.parametrize("device", ["cpu", *KERNELS])
def test_a_moving_filter_stays_between_its_ends(device: str) -> None:
    with gp.device(device):
        stream = one(A.Highpass(100), block=64).stream()
        t = np.arange(64 * 8) / RATE
        tone = np.sin(2 * np.pi * 1000 * t).astype(np.float32)
        parts = []
        for k in range(8):
            if k == 4:
                stream.change(0, cutoff=1000.0)
            parts.append(stream.push(gp.asarray(tone[64 * k : 64 * k + 64])).to_numpy())
        got = np.concatenate(parts)
        assert np.abs(got).max() < 1.2
        assert 0.6 < np.abs(got[-64:]).max() < 0.8
        with pytest.raises(ParameterError, match="cutoff is 5000 Hz"):
            stream.change(0, cutoff=5000)


@pytest.mark.parametrize("device", ["cpu", *KERNELS])
def test_samples_that_are_not_finite_are_silence_and_counted(device: str) -> None:
    y = sound(200, 2)
    clean = y.copy()
    for place in ((0, 10), (1, 11), (1, 100)):
        clean[place] = 0
    y[0, 10], y[1, 11], y[1, 100] = np.nan, np.inf, -np.inf
    with gp.device(device):
        stream = everything().stream()
        got = np.concatenate([stream.push(gp.asarray(y)).to_numpy(), stream.flush().to_numpy()], axis=1)
        assert stream.not_finite == 3
        np.testing.assert_array_equal(got, run(everything(), clean))
        # Beyond 120 dB over full scale a sample is what that is.
        huge = np.full(64, 3e38, np.float32)
        compressor = one(A.Compressor(), block=32)
        np.testing.assert_array_equal(run(compressor, huge), run(compressor, huge * 0 + 1e6))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: A.Gate(float("nan")), "threshold is nan"),
        (lambda: A.Gate("loud"), "threshold is 'loud'"),
        (lambda: A.Gate(range=3), "range is 3"),
        (lambda: A.Compressor(ratio=0.5), "ratio is 0.5"),
        (lambda: A.Compressor(attack=-1), "attack is -1"),
        (lambda: A.Compressor(knee=float("inf")), "knee is inf"),
        (lambda: A.Limiter(lookahead=5), "lookahead is 5"),
        (lambda: A.Limiter(ceiling=float("nan")), "ceiling is nan"),
        (lambda: A.Highpass(0), "cutoff is 0"),
        (lambda: A.Highpass(80, order=3), "order is 3"),
        (lambda: A.Chain(RATE) | A.Highpass(4000), "cutoff is 4000 Hz; at 8000 samples per second it is below 4000"),
        (lambda: A.Convolve([]), "ir has shape"),
        (lambda: A.Convolve([1.0, float("nan")]), "not finite"),
        (lambda: A.Convolve(np.ones((1, 1, 2))), "ir has shape"),
        (lambda: A.Chain(RATE, channels=2) | A.Convolve(np.ones((3, 4))), "ir has 3 channels and the chain 2"),
        (lambda: A.SpectralGate(n_fft=100), "n_fft is 100"),
        (lambda: A.SpectralGate(hop_length=0), "hop_length is 0"),
        (lambda: A.SpectralGate(n_fft=64, hop_length=33), "hop_length is 33"),
        (lambda: A.SpectralGate(range=0), "range is 0"),
        (lambda: A.Equalizer([]), "bands is"),
        (lambda: A.Equalizer([(200, 0), (100, 0)]), "frequencies ascend"),
        (lambda: A.Equalizer([(200, float("nan"))]), "level is nan"),
        (lambda: A.Equalizer(3), "bands is 3"),
        (lambda: A.Chain(0), "rate is 0"),
        (lambda: A.Chain(float("inf")), "rate is inf"),
        (lambda: A.Chain(1e12), "rate is 1000000000000.0"),
        (lambda: A.Chain(RATE, channels=0), "channels is 0"),
        (lambda: A.Chain(RATE, channels=2.5), "channels is 2.5"),
        (lambda: A.Chain(RATE, block=15), "block is 15"),
        (lambda: A.Chain(RATE, block=1 << 20), "block is 1048576"),
        (lambda: A.Chain(RATE) | "loud", "'loud' is no effect"),
        (lambda: A.Chain(1_000_000) | A.Limiter(lookahead=0.1), "100000 samples"),
        (lambda: A.Chain(RATE)(gp.ones(10, "float64")), "samples are float64"),
        (lambda: A.Chain(RATE)(gp.ones(10, "int16")), "divide by 32768"),
        (lambda: A.Chain(RATE)(gp.zeros(0)), "no samples"),
        (lambda: A.Chain(RATE, channels=2)(gp.ones((3, 10))), r"takes \(..., 2, n\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        make()


def test_a_stream_refuses_other_blocks_and_keeps_what_it_had() -> None:
    stream = everything().stream()
    y = sound(100, 2)
    first = stream.push(gp.asarray(y[:, :50].copy())).to_numpy()
    for wrong in (gp.ones((2, 10), "float64"), gp.ones((3, 10))):
        with pytest.raises(ParameterError, match="a block of"):
            stream.push(wrong)
    parts = [first, stream.push(gp.asarray(y[:, 50:].copy())).to_numpy(), stream.flush().to_numpy()]
    assert np.concatenate(parts, axis=1).tobytes() == run(everything(), y).tobytes()
    with pytest.raises(ParameterError, match="has ended"):
        stream.push(gp.ones((2, 10)))
    with pytest.raises(ParameterError, match="has ended"):
        stream.flush()
