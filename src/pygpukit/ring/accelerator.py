"""`Accelerator` and `GPUMonitor`: the devices of this machine, and what they are busy with."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pygpukit._pygpukit_rust import Device
from pygpukit.core.device import current_device, device_count, is_cuda_available, resolve_device
from pygpukit.core.nvml import read_nvml
from pygpukit.errors import DeviceError

__all__ = ["Accelerator", "GPUInfo", "GPUMonitor"]


class Accelerator:
    """The devices of this machine, by number. Without a GPU there is one device, the CPU's.

    Examples
    --------
    >>> accelerator = Accelerator()
    >>> len(accelerator.devices) == accelerator.device_count
    True
    """

    _chosen = threading.local()

    @property
    def cuda_available(self) -> bool:
        """Is there a usable GPU?"""
        return is_cuda_available()

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return device_count() if self.cuda_available else 1

    @property
    def current_device(self) -> Device:
        """The device this thread works on."""
        return current_device()

    @property
    def devices(self) -> list[Device]:
        """All of them."""
        return [self.get_device(i) for i in range(self.device_count)]

    def get_device(self, i: int) -> Device:
        """The device of a number."""
        if isinstance(i, bool) or not hasattr(i, "__index__"):
            raise TypeError(f"a device's number must be an int, not {i!r} ({type(i).__name__})")
        if not 0 <= i < self.device_count:
            raise DeviceError(f"there is no device {i}: this machine has {self.device_count}")
        return resolve_device(i) if self.cuda_available else current_device()

    def set_device(self, i: int) -> None:
        """Make a device the one this thread works on, until another is set. A ``with gp.device(...)`` block wins."""
        chosen = self.get_device(i)
        before: Device | None = getattr(Accelerator._chosen, "device", None)
        if before is not None:
            before._leave()
        chosen._enter()
        Accelerator._chosen.device = chosen

    def synchronize(self) -> None:
        """Wait for everything the current device was given."""
        current_device().synchronize()

    def get_memory_info(self) -> dict[str, int]:
        """Bytes of the current device: ``free``, ``used`` and ``total``."""
        free, total = current_device().memory_info()
        return {"free": free, "used": total - free, "total": total}


@dataclass(frozen=True)
class GPUInfo:
    """What a GPU is busy with. What it does not tell is None."""

    index: int
    name: str
    memory_total: int
    memory_used: int
    memory_free: int
    utilization_gpu: float | None
    """Part of 1."""
    utilization_memory: float | None
    """Part of 1."""
    temperature: float | None
    """Degrees Celsius."""
    power_usage: float | None
    """Watts."""
    power_limit: float | None
    """Watts."""
    sm_clock: float | None
    """Hz."""


class GPUMonitor:
    """Figures of the machine's GPUs, by NVML where that is installed (extra ``nvml``).

    Examples
    --------
    >>> monitor = GPUMonitor()
    >>> len(monitor.get_all_gpu_info()) == monitor.device_count
    True
    """

    @property
    def is_available(self) -> bool:
        """Is there a GPU to look at?"""
        return self.device_count > 0

    @property
    def device_count(self) -> int:
        """Number of GPUs."""
        return device_count() if is_cuda_available() else 0

    def get_gpu_info(self, i: int = 0) -> GPUInfo:
        """The figures of one GPU, now."""
        if not 0 <= i < self.device_count:
            raise DeviceError(f"there is no GPU {i}: this machine has {self.device_count}")
        device = resolve_device(i)
        measured = read_nvml(device) or {}
        free, total = device.memory_info()
        return GPUInfo(
            index=i,
            name=device.name,
            memory_total=int(measured.get("memory_total", total)),
            memory_used=int(measured.get("memory_used", total - free)),
            memory_free=free,
            utilization_gpu=measured.get("gpu_utilization"),
            utilization_memory=measured.get("memory_utilization"),
            temperature=measured.get("temperature"),
            power_usage=measured.get("power"),
            power_limit=measured.get("power_limit"),
            sm_clock=measured.get("sm_clock"),
        )

    def get_all_gpu_info(self) -> list[GPUInfo]:
        """The figures of all GPUs."""
        return [self.get_gpu_info(i) for i in range(self.device_count)]

    def get_utilization(self, i: int = 0) -> float | None:
        """How much of the time a GPU was busy, as a part of 1."""
        return self.get_gpu_info(i).utilization_gpu

    def get_memory_info(self, i: int = 0) -> dict[str, int]:
        """Bytes of a GPU: ``free``, ``used`` and ``total``."""
        info = self.get_gpu_info(i)
        return {"free": info.memory_free, "used": info.memory_used, "total": info.memory_total}
