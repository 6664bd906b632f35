"""Devices: which exist, which one is used, and what they can do."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device
from pygpukit.config import read_settings
from pygpukit.errors import DeviceError, DriverError, FallbackWarning

__all__ = [
    "Device",
    "current_device",
    "device",
    "device_count",
    "get_device_capabilities",
    "get_device_info",
    "is_cuda_available",
    "synchronize",
]

_lock = threading.RLock()
_open: dict[str, Device] = {}


def _equal(self: Device, other: object) -> bool:
    return self._number == other._number if isinstance(other, Device) else NotImplemented


def _hash(self: Device) -> int:
    return hash(self._number)


# Each `x.device` is a new object for the same device.
Device.__eq__ = _equal  # type: ignore[method-assign, assignment]
Device.__hash__ = _hash  # type: ignore[method-assign, assignment]


def _get(name: str) -> Device:
    """Open a device by name (``"cpu"``, ``"emulated"`` or ``"cuda:N"``), once."""
    with _lock:
        found = _open.get(name)
        if found is None:
            settings = read_settings()
            _native.set_sync_every_submission(settings.sync)
            pooled = settings.pool != "none"
            if name in ("cpu", "emulated"):
                found = _native.open_cpu(
                    settings.cpu_memory,
                    settings.deferred,
                    pooled,
                    name == "emulated",
                    settings.emulated_capability,
                    settings.check,
                    settings.kernel_timeout,
                    settings.eviction,
                    settings.cpu_sms,
                )
            else:
                found = _native.open_cuda(int(name.partition(":")[2]), pooled, settings.eviction)
            if settings.pinned_limit is not None:
                found._set_pinned_limit(settings.pinned_limit)
            if settings.spill_limit is not None:
                found._set_spill_limit(settings.spill_limit)
            if settings.leaks:
                from pygpukit.core.leaks import watch

                watch(found)
            _open[name] = found
        return found


def open_default() -> Device:
    """Open the device that work without a choice of its own runs on, and make it the process's default.

    `PYGPUKIT_DEVICE` decides; without it CUDA is taken when it is there, and otherwise the CPU device with one
    `FallbackWarning`.

    Returns
    -------
    Device
        The device now in use.
    """
    wanted = read_settings().device
    with _lock:
        if wanted is None:
            try:
                chosen = _get("cuda:0")
            except (DriverError, DeviceError) as error:
                reason = str(error).splitlines()[0].removesuffix(" Searched:")
                warnings.warn(f"Falling back to CPU simulation backend: {reason}", FallbackWarning, stacklevel=2)
                chosen = _get("cpu")
        else:
            chosen = _get("cuda:0" if wanted == "cuda" else wanted)
        chosen._set_default()
        return chosen


def is_cuda_available() -> bool:
    """Whether a usable CUDA GPU is there; never raises.

    Returns
    -------
    bool
        True when the driver can be opened and the first GPU is supported.

    Examples
    --------
    >>> is_cuda_available() in (True, False)
    True
    """
    try:
        # Asked of the driver, because a fault or a fork may have ended CUDA since the device was opened.
        _get("cuda:0").memory_info()
    except (DriverError, DeviceError):
        return False
    return True


def device_count() -> int:
    """Number of CUDA GPUs; 0 without a driver.

    Returns
    -------
    int
        GPUs the driver shows.

    Examples
    --------
    >>> device_count() >= 0
    True
    """
    try:
        return _native.cuda_device_count()
    except (DriverError, DeviceError):
        return 0


def current_device() -> Device:
    """The device this thread works on; opens the default one at the first call.

    Returns
    -------
    Device
        With `kind`, `index`, `name` and `capability`.

    Examples
    --------
    >>> current_device().kind in ("cpu", "emulated", "cuda")
    True
    """
    return _native.current_device()


def device_in_use() -> Device | None:
    """The device this thread works on, or None where the process has opened none yet: asking opens nothing."""
    return current_device() if _open else None


def resolve_device(which: int | str | Device | None) -> Device:
    """The device that an argument means; None is the current one."""
    if isinstance(which, Device):
        return which
    if which is None:
        return current_device()
    if isinstance(which, str):
        name = "cuda:0" if which == "cuda" else which
        if name not in ("cpu", "emulated") and not (name.startswith("cuda:") and name[5:].isdecimal()):
            raise DeviceError(f"{which!r} is not a device: use 'cpu', 'emulated', 'cuda', 'cuda:N' or a number")
        return _get(name)
    if current_device().kind != "cuda" and which == 0 and not is_cuda_available():
        return current_device()
    return _get(f"cuda:{int(which)}")


@contextmanager
def device(which: int | str | Device) -> Iterator[Device]:
    """Make a device the one this thread works on, inside a ``with`` block.

    Parameters
    ----------
    which : int, str or Device
        A GPU's number, ``"cuda:N"``, ``"cpu"``, or ``"emulated"`` for the CPU device that runs operators by their
        kernels.

    Yields
    ------
    Device
        The device.

    Examples
    --------
    >>> with device("cpu") as d:
    ...     d.kind
    'cpu'
    """
    chosen = resolve_device(which)
    chosen._enter()
    try:
        yield chosen
    finally:
        chosen._leave()


def get_device_info(i: int | str | Device | None = None) -> dict[str, Any]:
    """What a device is: name, memory, SMs, clocks, limits and the mechanisms in force.

    Parameters
    ----------
    i : int, str or Device, optional
        Which one; the current device by default.

    Returns
    -------
    dict
        Plain values, ready for a report.

    Examples
    --------
    >>> get_device_info()["sm_count"] > 0
    True
    """
    chosen = resolve_device(i)
    free, total = chosen.memory_info()
    return {**chosen.properties(), "free_memory": free, "total_memory": total}


def get_device_capabilities(i: int | str | Device | None = None) -> dict[str, Any]:
    """What a device can do, as yes or no by name.

    Parameters
    ----------
    i : int, str or Device, optional
        Which one; the current device by default.

    Returns
    -------
    dict
        ``compute_capability`` and one entry per mechanism.

    Examples
    --------
    >>> "tensor_cores" in get_device_capabilities()
    True
    """
    chosen = resolve_device(i)
    info = chosen.properties()
    capability: tuple[int, int] = info["capability"]
    features = set(info["features"])
    return {
        "compute_capability": capability,
        "launches_cuda_kernels": chosen.kind == "cuda",
        "tensor_cores": capability >= (8, 0),
        "fp8_tensor_cores": capability >= (8, 9),
        "thread_block_clusters": capability >= (9, 0),
        **{name: name in features for name in sorted(features | {"vmm", "green_contexts", "cooperative"})},
    }


def synchronize() -> None:
    """Wait until all streams of the current device have finished.

    Examples
    --------
    >>> synchronize()
    """
    current_device().synchronize()
