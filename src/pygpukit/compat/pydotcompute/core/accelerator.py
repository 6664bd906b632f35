"""`Accelerator` and properties of devices under PyDotCompute's names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pygpukit import ring
from pygpukit.core.device import current_device, is_cuda_available

__all__ = [
    "Accelerator",
    "DeviceProperties",
    "DeviceType",
    "cuda_available",
    "get_accelerator",
    "is_on_gpu",
    "metal_available",
]


class DeviceType(Enum):
    """Kinds of devices."""

    CPU = 1
    CUDA = 2
    METAL = 3


@dataclass
class DeviceProperties:
    """What a device has. The CPU has no compute capability, and blocks of one thread."""

    device_id: int
    device_type: DeviceType
    name: str
    compute_capability: tuple[int, int] | None
    total_memory: int
    multiprocessor_count: int
    max_threads_per_block: int
    max_block_dims: tuple[int, int, int]
    max_grid_dims: tuple[int, int, int]
    warp_size: int
    is_available: bool

    @property
    def compute_capability_str(self) -> str:
        """As ``"9.0"``; ``"N/A"`` where there is none."""
        capability = self.compute_capability
        return "N/A" if capability is None else f"{capability[0]}.{capability[1]}"

    @property
    def total_memory_gb(self) -> float:
        """Memory in units of 2**30 bytes."""
        return self.total_memory / 2**30


class Accelerator:
    """The devices of this machine. There is one object of it.

    Examples
    --------
    >>> Accelerator() is Accelerator(), Accelerator().device_count >= 1
    (True, True)
    """

    _instance: Accelerator | None = None
    _initialized = False

    def __new__(cls) -> Accelerator:
        if cls._instance is None:
            made = cls._instance = super().__new__(cls)
            made._ring = ring.Accelerator()  # type: ignore[attr-defined]
            cls._initialized = True
        return cls._instance

    @property
    def cuda_available(self) -> bool:
        """Is there a usable GPU?"""
        return is_cuda_available()

    @property
    def metal_available(self) -> bool:
        """There is no Metal here."""
        return False

    @property
    def device_count(self) -> int:
        """Number of devices; without a GPU one, the CPU."""
        return int(self._inner.device_count)

    @property
    def current_device(self) -> DeviceProperties:
        """The device this thread works on."""
        return _properties(self._inner.current_device)

    @property
    def devices(self) -> list[DeviceProperties]:
        """All of them."""
        return [_properties(device) for device in self._inner.devices]

    def get_device(self, device_id: int) -> DeviceProperties:
        """The device of a number; `ValueError` if there is none."""
        self._check(device_id)
        return _properties(self._inner.get_device(device_id))

    def set_device(self, device_id: int) -> None:
        """Make a device the one this thread works on; `ValueError` if there is none."""
        self._check(device_id)
        self._inner.set_device(device_id)

    def synchronize(self) -> None:
        """Wait for everything the current device was given."""
        self._inner.synchronize()

    def get_memory_info(self) -> dict[str, int]:
        """Bytes of the current device: ``free``, ``total`` and ``used``."""
        return dict(self._inner.get_memory_info())

    @property
    def _inner(self) -> Any:
        return self._ring  # type: ignore[attr-defined]

    def _check(self, device_id: int) -> None:
        if not 0 <= device_id < self.device_count:
            raise ValueError(f"there is no device {device_id}: this machine has {self.device_count}")

    def __repr__(self) -> str:
        known = f"devices={self.device_count}, cuda_available={self.cuda_available}, metal_available=False"
        return f"Accelerator({known}, current_device={self.current_device.name})"


def get_accelerator() -> Accelerator:
    """The one `Accelerator`."""
    return Accelerator()


def cuda_available() -> bool:
    """Is there a usable GPU?"""
    return get_accelerator().cuda_available


def metal_available() -> bool:
    """There is no Metal here."""
    return get_accelerator().metal_available


def is_on_gpu() -> bool:
    """Is there a GPU, and does this thread work on one?"""
    return is_cuda_available() and current_device().kind == "cuda"


def _properties(device: Any) -> DeviceProperties:
    total = int(device.memory_info()[1])
    if device.kind != "cuda":
        ones = (1, 1, 1)
        return DeviceProperties(device.index, DeviceType.CPU, "CPU", None, total, 1, 1, ones, ones, 1, True)
    known = device.properties()
    return DeviceProperties(
        device_id=device.index,
        device_type=DeviceType.CUDA,
        name=device.name,
        compute_capability=tuple(device.capability),
        total_memory=total,
        multiprocessor_count=int(known["sm_count"]),
        max_threads_per_block=int(known["max_threads_per_block"]),
        max_block_dims=tuple(known["max_block"]),
        max_grid_dims=tuple(known["max_grid"]),
        warp_size=32,
        is_available=True,
    )
