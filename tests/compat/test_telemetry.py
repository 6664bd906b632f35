"""Figures of kernels and GPUs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pygpukit.compat.pydotcompute.ring_kernels.telemetry import (
    GPUInfo,
    GPUMonitor,
    RingKernelTelemetry,
    TelemetryCollector,
)


def test_defaults() -> None:
    found = {one.name: getattr(RingKernelTelemetry(), one.name) for one in fields(RingKernelTelemetry)}
    assert found == {
        "kernel_id": "",
        "messages_processed": 0,
        "messages_dropped": 0,
        "queue_depth": 0,
        "total_latency_ns": 0,
        "max_latency_ns": 0,
        "min_latency_ns": 0,
        "error_count": 0,
        "last_error": None,
        "uptime_seconds": 0.0,
    }


def test_means() -> None:
    figures = RingKernelTelemetry(messages_processed=4, total_latency_ns=4_000_000, uptime_seconds=2.0)
    assert (figures.avg_latency_ns, figures.avg_latency_ms, figures.throughput) == (1_000_000, 1.0, 2.0)
    figures = RingKernelTelemetry()
    assert (figures.avg_latency_ns, figures.avg_latency_ms, figures.throughput) == (0.0, 0.0, 0.0)


def test_counting_and_beginning_anew() -> None:
    figures = RingKernelTelemetry("k")
    for latency in (1000, 2000, 500):
        figures.record_message(latency)
    figures.record_drop()
    for text in ("first", "second"):
        figures.record_error(text)
    assert (figures.messages_processed, figures.total_latency_ns) == (3, 3500)
    assert (figures.min_latency_ns, figures.max_latency_ns) == (500, 2000)
    assert (figures.messages_dropped, figures.error_count, figures.last_error) == (1, 2, "second")
    figures.uptime_seconds = 9.0
    figures.reset()
    assert figures == RingKernelTelemetry("k")
    figures.record_message(0)
    figures.record_message(5)
    assert (figures.min_latency_ns, figures.max_latency_ns) == (0, 5)


def test_figures_by_name() -> None:
    figures = RingKernelTelemetry("k", messages_processed=50, messages_dropped=2, uptime_seconds=10.0)
    found = figures.to_dict()
    assert (found["kernel_id"], found["throughput"], found["messages_dropped"]) == ("k", 5.0, 2)
    assert {"avg_latency_ms", "max_latency_ns", "min_latency_ns", "error_count", "last_error"} <= set(found)


def test_memory_of_a_gpu() -> None:
    info = GPUInfo(0, "G", "U", 1000, 250, 750, 0.5, 0.3, 60.0, 100.0, 300.0)
    assert (info.memory_utilization, info.name, info.power_limit) == (0.25, "G", 300.0)
    assert GPUInfo(0, "", "", 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0).memory_utilization == 0.0


def test_a_monitor_answers_on_any_machine() -> None:
    monitor = GPUMonitor()
    assert len(monitor.get_all_gpu_info()) == monitor.device_count
    assert monitor.is_available == (monitor.device_count > 0)
    info = monitor.get_gpu_info()
    assert info.index == 0
    assert 0.0 <= monitor.get_utilization(0) <= 1.0
    assert set(monitor.get_memory_info(0)) == {"used", "free", "total"}
    monitor.shutdown()
    assert not monitor.is_available
    assert (monitor.get_gpu_info(3).index, monitor.get_gpu_info(3).name) == (3, "N/A")
    assert "available=False" in repr(monitor)


def test_a_collector() -> None:
    collector = TelemetryCollector()
    first, second = collector.register_kernel("a"), collector.register_kernel("b")
    assert collector.register_kernel("a") is first is collector.get_kernel_telemetry("a")
    assert collector.get_kernel_telemetry("missing") is None
    first.record_message(1000)
    first.record_drop()
    second.record_message(3000)
    second.record_error("e")
    found = collector.get_summary()
    assert found.pop("uptime_seconds") > 0
    assert found.pop("gpu_utilization") is None or GPUMonitor().is_available
    assert found == {
        "kernel_count": 2,
        "total_messages_processed": 2,
        "total_messages_dropped": 1,
        "total_errors": 1,
    }
    assert list(collector.get_all_telemetry()) == ["a", "b"]
    assert first.uptime_seconds > 0
    collector.reset_all()
    assert (first.messages_processed, second.error_count) == (0, 0)
    collector.unregister_kernel("a")
    collector.unregister_kernel("missing")
    assert list(collector.get_all_telemetry()) == ["b"]


@pytest.mark.cuda
def test_figures_of_a_gpu() -> None:
    info = GPUMonitor().get_gpu_info(0)
    assert info.memory_total >= info.memory_used > 0
    assert info.uuid
    assert info.name != "N/A"
