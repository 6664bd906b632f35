"""Memory sizes and environment settings."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pygpukit.config import Settings, format_size, parse_size, read_settings

VARIABLES = [f"PYGPUKIT_{'STREAMS' if field == 'deferred' else field.upper()}" for field in Settings._fields]
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


@given(st.integers(0, 4000), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " ", "  "]), st.booleans())
def test_whole_sizes_are_exact_in_any_case_and_spacing(number: int, unit: str, gap: str, upper: bool) -> None:
    text = f"{number}{gap}{unit.upper() if upper else unit}"
    assert parse_size(text) == number * UNITS[unit]


@given(st.integers(0, 2**63 - 1))
def test_integers_pass_through(number: int) -> None:
    assert parse_size(number) == number
    assert parse_size(np.uint64(number)) == number
    assert parse_size(str(number)) == number


def test_fractions_of_a_unit() -> None:
    assert parse_size("1.5GiB") == 3 * 2**29
    assert parse_size("0.1KB") == 100
    assert parse_size("0.7B") == 0


@pytest.mark.parametrize(
    "text", ["", "MB", "12XB", "1 2MB", "-1MB", "1e9", "1.MB", ".5GB", "1G", "0x10", "1MBB", "nan", "inf", "9" * 50]
)
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="memory size"):
        parse_size(text)


@given(st.text(max_size=20))
def test_any_text_gives_a_size_or_a_value_error(text: str) -> None:
    message = ""
    try:
        assert 0 <= parse_size(text) < 2**63
    except ValueError as error:
        message = str(error)
    assert not message or repr(text) in message


@pytest.mark.parametrize("number", [-1, 2**63, "9223372036854775808", "10000000PiB"])
def test_sizes_out_of_range(number: int | str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_size(number)


@pytest.mark.parametrize("wrong", [1.5, None, True, b"1MB", [1]])
def test_other_types_are_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="must be an int or a str"):
        parse_size(wrong)  # type: ignore[arg-type]


@given(st.integers(0, 2**62))
def test_formatted_sizes_read_back_within_rounding(number: int) -> None:
    assert math.isclose(parse_size(format_size(number)), number, rel_tol=0.06)
    if number < 1024:
        assert format_size(number) == f"{number} B"


def test_formatted_sizes_look_like_the_core_writes_them() -> None:
    assert [format_size(n) for n in (0, 1023, 4096, 3 << 29, 5 << 40)] == [
        "0 B",
        "1023 B",
        "4.0 KiB",
        "1.5 GiB",
        "5.0 TiB",
    ]


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_settings({}) == Settings()
    assert read_settings(dict.fromkeys(VARIABLES, " ")) == Settings()


def test_every_variable_is_read() -> None:
    settings = read_settings(
        {
            "PYGPUKIT_DEVICE": "CUDA:01",
            "PYGPUKIT_POOL": "none",
            "PYGPUKIT_SYNC": "1",
            "PYGPUKIT_CACHE": "off",
            "PYGPUKIT_CACHE_DIR": "~/kernels",
            "PYGPUKIT_CACHE_SIZE": "1GiB",
            "PYGPUKIT_CACHE_TTL": "3600",
            "PYGPUKIT_QUIET": "yes",
            "PYGPUKIT_STREAMS": "deferred:7",
            "PYGPUKIT_NVRTC": "/a/libnvrtc.so.13",
            "PYGPUKIT_CUBLASLT": "/a/libcublasLt.so.13",
            "PYGPUKIT_CUSOLVER": "/a/libcusolver.so.12",
            "PYGPUKIT_LIBCUDA": "/a/libcuda.so.1",
            "PYGPUKIT_BUNDLE": os.pathsep.join(["/a/x.zip", "", "/a/y.zip"]),
            "PYGPUKIT_CPU_MEMORY": "64MB",
            "PYGPUKIT_CPU_SMS": "12",
            "PYGPUKIT_EMULATED_ARCH": "90A",
            "PYGPUKIT_CHECK": "1",
            "PYGPUKIT_KERNEL_TIMEOUT": "30",
            "PYGPUKIT_PINNED_LIMIT": "1MiB",
            "PYGPUKIT_SPILL_LIMIT": "2MiB",
            "PYGPUKIT_EVICTION": "1",
            "PYGPUKIT_LEAKS": "1",
            "PYGPUKIT_STATUS": "0",
            "PYGPUKIT_PLUGINS": "0",
            "PYGPUKIT_ALLOW_TF32": "1",
            "PYGPUKIT_NO_TF32": "1",
            "PYGPUKIT_TF32_V2": "1",
        }
    )
    assert settings == Settings(
        device="cuda:1",
        pool="none",
        sync=True,
        cache=False,
        cache_dir=Path.home() / "kernels",
        cache_size=2**30,
        cache_ttl=3600.0,
        quiet=True,
        deferred=7,
        nvrtc=Path("/a/libnvrtc.so.13"),
        cublaslt=Path("/a/libcublasLt.so.13"),
        cusolver=Path("/a/libcusolver.so.12"),
        libcuda=Path("/a/libcuda.so.1"),
        bundle=(Path("/a/x.zip"), Path("/a/y.zip")),
        cpu_memory=64 * 10**6,
        cpu_sms=12,
        emulated_capability=(9, 0),
        check=True,
        kernel_timeout=30,
        pinned_limit=2**20,
        spill_limit=2**21,
        eviction=True,
        leaks=True,
        status=False,
        plugins=False,
        allow_tf32=True,
        no_tf32=True,
        tf32_v2=True,
    )
    untouched = [f for f in Settings._fields if getattr(settings, f) == getattr(Settings(), f)]
    assert untouched == []


def test_streams() -> None:
    assert [read_settings({"PYGPUKIT_STREAMS": s}).deferred for s in ("inline", "deferred", "Deferred:9")] == [
        None,
        0,
        9,
    ]


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGPUKIT_DEVICE", "emulated")
    assert read_settings().device == "emulated"


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("DEVICE", "gpu", "cuda:N"),
        ("DEVICE", "cuda:-1", "cuda:N"),
        ("DEVICE", "cuda:1x", "cuda:N"),
        ("POOL", "vmm", "arena or none"),
        ("SYNC", "2", "1 or 0"),
        ("CACHE", "maybe", "1 or 0"),
        ("CACHE_SIZE", "big", "512MB"),
        ("CACHE_TTL", "-1", "positive"),
        ("CACHE_TTL", "inf", "positive"),
        ("CACHE_TTL", "soon", "positive"),
        ("QUIET", "y", "1 or 0"),
        ("STREAMS", "eager", "deferred:SEED"),
        ("STREAMS", "deferred:", "deferred:SEED"),
        ("STREAMS", "inline:1", "deferred:SEED"),
        ("CPU_MEMORY", "0", "above 0"),
        ("CPU_SMS", "0", "from 1 to 1024"),
        ("CPU_SMS", "1025", "from 1 to 1024"),
        ("CPU_SMS", "-2", "from 1 to 1024"),
        ("CPU_SMS", "2.5", "from 1 to 1024"),
        ("CPU_SMS", "many", "from 1 to 1024"),
        ("LEAKS", "all", "1 or 0"),
        ("STATUS", "some", "1 or 0"),
        ("PLUGINS", "some", "1 or 0"),
    ],
)
def test_wrong_values_name_the_variable_the_value_and_what_is_accepted(name: str, value: str, accepted: str) -> None:
    with pytest.raises(ValueError, match=f"PYGPUKIT_{name}=") as caught:
        read_settings({f"PYGPUKIT_{name}": value})
    assert repr(value) in str(caught.value)
    assert accepted in str(caught.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().sync = True  # type: ignore[misc]


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text()))
def test_any_environment_gives_settings_or_a_value_error(environ: dict[str, str]) -> None:
    message = ""
    try:
        read_settings(environ)
    except ValueError as error:
        message = str(error)
    assert not message or any(message.startswith(f"{name}=") for name in environ)
