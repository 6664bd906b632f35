"""Beamforming: the direction is kept, others are turned down, and an item is itself in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from signals import music, speech

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.errors import ParameterError

RATE, SPEED = 16_000, 343.0
PLACES = np.array([[0.0, 0.0], [0.08, 0.0], [0.16, 0.0], [0.24, 0.0]])


def heard(sound: Any, direction: Any) -> Any:
    """What the microphones get of a sound from far away: delays by phases, exact but for the ends."""
    late = -(PLACES @ np.asarray(direction)) / np.linalg.norm(direction) / SPEED
    padded = np.pad(sound, (2048, 2048))
    spectrum = np.fft.rfft(padded) * np.exp(-2j * np.pi * np.outer(late, np.fft.rfftfreq(padded.size, 1 / RATE)))
    return np.fft.irfft(spectrum, padded.size)[:, 2048:-2048]


def error(got: Any, want: Any) -> float:
    inner = slice(2048, -2048)
    return float(np.linalg.norm((got.to_numpy() - want)[inner]) / np.linalg.norm(want[inner]))


def scene() -> tuple[Any, Any, Any]:
    wanted, other = speech()[:16000].astype(np.float64), music()[:16000].astype(np.float64)
    other *= np.linalg.norm(wanted) / np.linalg.norm(other)
    return wanted, heard(wanted, [1.0, 1.0]), heard(other, [-1.0, 0.3])


def test_a_sound_from_the_direction_is_kept_and_others_are_turned_down() -> None:
    wanted, target, other = scene()
    options: dict[str, Any] = {"sr": RATE, "positions": PLACES, "direction": [1.0, 1.0]}
    assert error(A.beamform(gp.asarray(target), **options), wanted) < 0.02
    mixed = gp.asarray(target + other)
    alone = error(mixed[0], wanted)
    summed = error(A.beamform(mixed, **options), wanted)
    least = error(A.beamform(mixed, **options, method="mvdr", noise=gp.asarray(other)), wanted)
    assert summed < 0.8 * alone
    assert least < 0.3 * summed


def test_without_delays_it_is_the_mean() -> None:
    _, target, _ = scene()
    y = gp.asarray(target.astype(np.float32))
    made = A.beamform(y, sr=RATE, delays=np.zeros(4))
    np.testing.assert_allclose(made.to_numpy(), target.mean(0), atol=1e-5)
    silent = A.beamform(gp.zeros((4, 9000), "float32"), sr=RATE, delays=np.zeros(4), method="mvdr")
    assert not silent.to_numpy().any()


@pytest.mark.parametrize("method", ["delay_and_sum", "mvdr"])
def test_an_item_of_a_batch_has_the_bits_of_the_item_alone(method: str) -> None:
    _, target, other = scene()
    batch = np.stack([target, other, target + other])[:, :, :6000].astype(np.float32)
    options: dict[str, Any] = {"sr": RATE, "positions": PLACES, "direction": [1.0, 1.0], "method": method}
    made = A.beamform(gp.asarray(batch), **options)
    assert made.shape == (3, 6000)
    for i, item in enumerate(batch):
        assert made[i].to_numpy().tobytes() == A.beamform(gp.asarray(item), **options).to_numpy().tobytes()
    if method == "mvdr":
        noise = gp.asarray(batch[::-1].copy())
        pair = A.beamform(gp.asarray(batch), noise=noise, **options)
        assert pair[2].to_numpy().tobytes() == (
            A.beamform(gp.asarray(batch[2]), noise=noise[2], **options).to_numpy().tobytes()
        )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda y: A.beamform(y[0], delays=[0.0]), "of several microphones"),
        (lambda y: A.beamform(y), "give delays, or positions and a direction"),
        (lambda y: A.beamform(y, delays=[0.0, 0.0]), r"delays has shape \(2,\); y has 4 microphones"),
        (lambda y: A.beamform(y, delays=[0.0, 0.0, 0.0, float("nan")]), "finite numbers"),
        (lambda y: A.beamform(y, delays=[0.0, 0.0, 0.0, 1.0]), "over a quarter of a frame of 1024 samples"),
        (lambda y: A.beamform(y, positions=PLACES, direction=[0.0, 0.0]), "not all 0"),
        (lambda y: A.beamform(y, positions=PLACES), "direction is None"),
        (lambda y: A.beamform(y, delays=np.zeros(4), method="music"), "method is 'music'"),
        (lambda y: A.beamform(y, delays=np.zeros(4), noise=y), "noise goes with method='mvdr'"),
        (lambda y: A.beamform(y, delays=np.zeros(4), loading=-1), "loading is -1"),
    ],
)
def test_wrong_parameters_are_named(call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        call(gp.ones((4, 4096), "float32"))
