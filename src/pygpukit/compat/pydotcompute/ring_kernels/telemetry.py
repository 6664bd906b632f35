"""Figures of ring kernels and GPUs under PyDotCompute's names."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from pygpukit import ring
from pygpukit.core.device import resolve_device

__all__ = ["GPUInfo", "GPUMonitor", "RingKernelTelemetry", "TelemetryCollector"]


# What `RingKernelTelemetry.to_dict` has.
_SHOWN = (
    *("kernel_id", "messages_processed", "messages_dropped", "queue_depth"),
    *("avg_latency_ms", "max_latency_ns", "min_latency_ns", "throughput"),
    *("error_count", "last_error", "uptime_seconds"),
)


@dataclass
class RingKernelTelemetry:
    """What happened to the messages of a ring kernel. The object of a running kernel goes on counting."""

    kernel_id: str = ""
    messages_processed: int = 0
    messages_dropped: int = 0
    queue_depth: int = 0
    total_latency_ns: int = 0
    max_latency_ns: int = 0
    min_latency_ns: int = 0
    error_count: int = 0
    last_error: str | None = None
    uptime_seconds: float = 0.0

    @property
    def avg_latency_ns(self) -> float:
        """Mean latency in nanoseconds."""
        return self.total_latency_ns / self.messages_processed if self.messages_processed else 0.0

    @property
    def avg_latency_ms(self) -> float:
        """Mean latency in milliseconds."""
        return self.avg_latency_ns / 1e6

    @property
    def throughput(self) -> float:
        """Messages per second of uptime."""
        return self.messages_processed / self.uptime_seconds if self.uptime_seconds > 0 else 0.0

    def record_message(self, latency_ns: int) -> None:
        """Count a message that took so long."""
        is_first = self.messages_processed == 0
        self.messages_processed += 1
        self.total_latency_ns += latency_ns
        self.max_latency_ns = max(self.max_latency_ns, latency_ns)
        self.min_latency_ns = latency_ns if is_first else min(self.min_latency_ns, latency_ns)

    def record_drop(self) -> None:
        """Count a message that was dropped."""
        self.messages_dropped += 1

    def record_error(self, error: str) -> None:
        """Count an error."""
        self.error_count += 1
        self.last_error = error

    def reset(self) -> None:
        """Begin anew, under the same id."""
        self.__init__(self.kernel_id)  # type: ignore[misc]

    def to_dict(self) -> dict[str, object]:
        """The figures by name."""
        return {name: getattr(self, name) for name in _SHOWN}


@dataclass
class GPUInfo:
    """What a GPU is busy with; 0 for what it does not tell."""

    index: int
    name: str
    uuid: str
    memory_total: int
    memory_used: int
    memory_free: int
    utilization_gpu: float
    utilization_memory: float
    temperature: float
    power_usage: float
    power_limit: float

    @property
    def memory_utilization(self) -> float:
        """Used part of the memory."""
        return self.memory_used / self.memory_total if self.memory_total else 0.0


class GPUMonitor:
    """The ring's `pygpukit.ring.GPUMonitor` with 0 and ``"N/A"`` where there is no GPU."""

    def __init__(self) -> None:
        self._monitor = ring.GPUMonitor()

    # CUDA is opened when a figure is asked for, and not by every runtime that is made.
    @cached_property
    def _nvml_available(self) -> bool:
        return self._monitor.is_available

    @cached_property
    def _device_count(self) -> int:
        return self._monitor.device_count

    @property
    def is_available(self) -> bool:
        """Is there a GPU, and was the monitor not shut down?"""
        return self._nvml_available and self._device_count > 0

    @property
    def device_count(self) -> int:
        """Number of GPUs."""
        return self._device_count

    def get_gpu_info(self, device_index: int = 0) -> GPUInfo:
        """The figures of one GPU, now."""
        if not self.is_available or not 0 <= device_index < self._device_count:
            return GPUInfo(device_index, "N/A", "", 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
        found = self._monitor.get_gpu_info(device_index)
        return GPUInfo(
            index=device_index,
            name=found.name,
            uuid=str(resolve_device(device_index).properties().get("uuid", "")),
            memory_total=found.memory_total,
            memory_used=found.memory_used,
            memory_free=found.memory_free,
            utilization_gpu=found.utilization_gpu or 0.0,
            utilization_memory=found.utilization_memory or 0.0,
            temperature=found.temperature or 0.0,
            power_usage=found.power_usage or 0.0,
            power_limit=found.power_limit or 0.0,
        )

    def get_all_gpu_info(self) -> list[GPUInfo]:
        """The figures of all GPUs."""
        return [self.get_gpu_info(index) for index in range(self._device_count)]

    def get_utilization(self, device_index: int = 0) -> float:
        """Part of the time that a GPU is busy."""
        return self.get_gpu_info(device_index).utilization_gpu

    def get_memory_info(self, device_index: int = 0) -> dict[str, int]:
        """Bytes of a GPU: ``used``, ``free`` and ``total``."""
        found = self.get_gpu_info(device_index)
        return {"used": found.memory_used, "free": found.memory_free, "total": found.memory_total}

    def shutdown(self) -> None:
        """Read no more figures."""
        self._nvml_available = False

    def __repr__(self) -> str:
        return f"GPUMonitor(available={self.is_available}, devices={self._device_count})"


@dataclass
class TelemetryCollector:
    """Telemetry of several ring kernels by id."""

    _kernel_telemetry: dict[str, RingKernelTelemetry] = field(default_factory=dict)
    _gpu_monitor: GPUMonitor = field(default_factory=GPUMonitor)
    _start_times: dict[str, float] = field(default_factory=dict)
    _start_time: float = field(default_factory=time.monotonic)

    def register_kernel(self, kernel_id: str) -> RingKernelTelemetry:
        """The telemetry of an id, made if there is none."""
        if kernel_id not in self._kernel_telemetry:
            self._kernel_telemetry[kernel_id] = RingKernelTelemetry(kernel_id)
            self._start_times[kernel_id] = time.monotonic()
        return self._kernel_telemetry[kernel_id]

    def unregister_kernel(self, kernel_id: str) -> None:
        """Forget an id, known or not."""
        self._kernel_telemetry.pop(kernel_id, None)
        self._start_times.pop(kernel_id, None)

    def get_kernel_telemetry(self, kernel_id: str) -> RingKernelTelemetry | None:
        """The telemetry of an id, or None."""
        found = self._kernel_telemetry.get(kernel_id)
        if found is not None:
            found.uptime_seconds = time.monotonic() - self._start_times[kernel_id]
        return found

    def get_all_telemetry(self) -> dict[str, RingKernelTelemetry]:
        """The telemetry of all ids."""
        for kernel_id in self._kernel_telemetry:
            self.get_kernel_telemetry(kernel_id)
        return dict(self._kernel_telemetry)

    def get_summary(self) -> dict[str, object]:
        """Sums over all ids, and the utilization of the first GPU, None without one."""
        found = self._kernel_telemetry.values()
        has_gpu = self._gpu_monitor.is_available
        return {
            "kernel_count": len(found),
            "total_messages_processed": sum(one.messages_processed for one in found),
            "total_messages_dropped": sum(one.messages_dropped for one in found),
            "total_errors": sum(one.error_count for one in found),
            "uptime_seconds": time.monotonic() - self._start_time,
            "gpu_utilization": self._gpu_monitor.get_utilization() if has_gpu else None,
        }

    def reset_all(self) -> None:
        """Begin anew with all of them."""
        for kernel_id, one in self._kernel_telemetry.items():
            one.reset()
            self._start_times[kernel_id] = time.monotonic()
        self._start_time = time.monotonic()
