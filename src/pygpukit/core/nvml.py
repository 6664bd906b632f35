"""What the driver's management library measures of a GPU: utilisation, memory, clocks, power, temperature."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pygpukit.core.device import Device

__all__ = ["read_nvml"]

_lock = threading.Lock()
# The module and the GPU's handle by process and bus, None where it cannot be asked. A forked child asks anew.
_handles: dict[tuple[int, str], tuple[Any, Any] | None] = {}


def read_nvml(device: Device) -> dict[str, float] | None:
    """Ask NVML about a device; the package is nvidia-ml-py, of the extra ``nvml``.

    Parameters
    ----------
    device : Device
        A CUDA device.

    Returns
    -------
    dict or None
        ``gpu_utilization`` and ``memory_utilization`` (parts of 1), ``memory_used`` and ``memory_total`` (bytes, of all
        processes), ``sm_clock`` and ``memory_clock`` (Hz), ``power`` and ``power_limit`` (W), ``temperature`` (degrees
        Celsius). What this GPU does not tell is left out. None without the package, the library or the GPU.

    Examples
    --------
    >>> read_nvml(gp.current_device()) is None
    True
    """
    if device.kind != "cuda":
        return None
    key = (os.getpid(), str(device.properties()["pci_bus_id"]))
    with _lock:
        if key not in _handles:
            _handles[key] = _open(key[1])
        opened = _handles[key]
        return None if opened is None else _figures(*opened)


def _open(bus: str) -> tuple[Any, Any] | None:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
    except Exception:
        # Missing, of another driver, or out of order: figures beside the point must not cost the caller anything.
        return None


def _figures(nvml: Any, handle: Any) -> dict[str, float]:
    questions: list[Callable[[], dict[str, float]]] = [
        lambda: _utilization(nvml.nvmlDeviceGetUtilizationRates(handle)),
        lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)),
        lambda: {"sm_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6},
        lambda: {"memory_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6},
        lambda: {"power": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3},
        lambda: {"power_limit": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3},
        lambda: {"temperature": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))},
    ]
    found: dict[str, float] = {}
    for question in questions:
        try:
            found |= question()
        except nvml.NVMLError:
            # Not every GPU has every sensor, and virtual ones have few.
            continue
    return found


def _utilization(rates: Any) -> dict[str, float]:
    return {"gpu_utilization": rates.gpu / 100, "memory_utilization": rates.memory / 100}


def _memory(memory: Any) -> dict[str, float]:
    return {"memory_used": memory.used, "memory_total": memory.total}
