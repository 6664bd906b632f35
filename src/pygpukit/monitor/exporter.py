"""Prometheus metrics of the schedulers of this process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pygpukit.monitor.engine_metrics import EngineCollector
from pygpukit.monitor.package import prometheus
from pygpukit.scheduler.publish import live_schedulers

if TYPE_CHECKING:
    from pygpukit.scheduler import Scheduler

__all__ = ["Exporter", "SchedulerCollector", "start_exporter"]

_TASK = ("device", "partition", "policy", "task")
_PARTITION = ("device", "partition")
_DEVICE = ("device",)

# Key in the figures of a task, name of the metric, what it says.
_TASK_TOTALS = (
    ("gpu_seconds", "pygpukit_task_gpu_seconds", "Device time used, on the task's lane."),
    ("throttled_seconds", "pygpukit_task_throttled_seconds", "Time that submissions had to wait."),
    ("throttled", "pygpukit_task_throttled", "Submissions that had to wait."),
    ("submissions", "pygpukit_task_submissions", "Kernels, copies and graphs submitted."),
    ("evictions", "pygpukit_task_evictions", "Arrays moved to the host."),
    ("restores", "pygpukit_task_restores", "Arrays moved back to the device."),
    ("jobs_met", "pygpukit_task_jobs_met", "Jobs that ended before their deadline."),
    ("jobs_missed", "pygpukit_task_jobs_missed", "Jobs that ended after their deadline."),
)
_TASK_GAUGES = (
    ("share", "pygpukit_task_share_ratio", "Part of the device used in the last second."),
    ("memory", "pygpukit_task_memory_bytes", "Memory in use."),
    ("memory_peak", "pygpukit_task_memory_peak_bytes", "Most memory in use so far."),
)
_PARTITION_GAUGES = (
    ("memory_in_use", "pygpukit_partition_memory_used_bytes", "Memory that the partition's tasks use."),
    ("memory_reserved", "pygpukit_partition_memory_promised_bytes", "Memory promised to its tasks."),
    ("memory_capacity", "pygpukit_partition_memory_guaranteed_bytes", "Memory kept for the partition."),
    ("memory_limit", "pygpukit_partition_memory_limit_bytes", "Most memory its tasks may use."),
    ("compute_used", "pygpukit_partition_compute_used_ratio", "Part of the device its tasks used in the last second."),
    ("compute_promised", "pygpukit_partition_compute_promised_ratio", "Part of the device promised to its tasks."),
    ("compute", "pygpukit_partition_compute_guaranteed_ratio", "Part of the device kept for the partition."),
    ("compute_limit", "pygpukit_partition_compute_limit_ratio", "Largest part of the device its tasks may use."),
    ("tasks", "pygpukit_partition_tasks", "Tasks that were admitted and have not ended."),
    ("waiting", "pygpukit_partition_waiting_tasks", "Tasks that wait to be admitted."),
)
_DEVICE_GAUGES = (
    ("memory", "pygpukit_device_memory_bytes", "Memory the scheduler gives out."),
    ("sms", "pygpukit_device_sms", "SMs the scheduler gives out."),
    ("queue_length", "pygpukit_queue_length", "Tasks that wait to be admitted."),
    ("queue_limit", "pygpukit_queue_limit", "Most tasks that may wait."),
)
_NVML_GAUGES = (
    ("gpu_utilization", "pygpukit_nvml_gpu_utilization_ratio", "Part of the time in which the GPU was busy."),
    ("memory_utilization", "pygpukit_nvml_memory_utilization_ratio", "Part of the time in which memory was busy."),
    ("memory_used", "pygpukit_nvml_memory_used_bytes", "Memory of the GPU that all processes use."),
    ("sm_clock", "pygpukit_nvml_sm_clock_hertz", "Clock of the SMs."),
    ("memory_clock", "pygpukit_nvml_memory_clock_hertz", "Clock of the memory."),
    ("power", "pygpukit_nvml_power_watts", "Power drawn."),
    ("temperature", "pygpukit_nvml_temperature_celsius", "Temperature of the GPU."),
)

_Labels = tuple[str, ...]


class SchedulerCollector:
    """A collector for the registries of prometheus-client.

    Tasks of one name, partition and policy are one series. Its counters go on when a task ends: they cover every task
    whose figures the scheduler still has, the last thousand that ended among them.

    Parameters
    ----------
    schedulers : sequence of Scheduler, optional
        Which ones; all of this process by default, those made later too.

    Examples
    --------
    >>> import prometheus_client  # doctest: +SKIP
    >>> prometheus_client.REGISTRY.register(SchedulerCollector())  # doctest: +SKIP
    """

    def __init__(self, schedulers: Sequence[Scheduler] | None = None) -> None:
        self._schedulers = schedulers
        self._lock = threading.Lock()
        self._tallies: weakref.WeakKeyDictionary[Scheduler, _Tally] = weakref.WeakKeyDictionary()

    def collect(self) -> Iterator[Any]:
        """The metrics now, as prometheus-client asks for them.

        Raises
        ------
        MissingPackageError
            If prometheus-client is not installed.
        """
        core = prometheus().core
        schedulers = live_schedulers() if self._schedulers is None else self._schedulers
        # Two scrapes at once must not count anything twice.
        with self._lock:
            totals, gauges = self._figures(schedulers)
        for key, name, says in _TASK_TOTALS:
            yield _filled(core.CounterMetricFamily(name, says, labels=_TASK), key, totals)
        for rows, labels, table in zip(
            gauges,
            (_TASK, _PARTITION, _DEVICE, _DEVICE),
            (_TASK_GAUGES, _PARTITION_GAUGES, _DEVICE_GAUGES, _NVML_GAUGES),
            strict=True,
        ):
            for key, name, says in table:
                yield _filled(core.GaugeMetricFamily(name, says, labels=labels), key, rows)

    def describe(self) -> list[Any]:
        """Nothing: a registry need not ask what there will be."""
        return []

    def _figures(self, schedulers: Sequence[Scheduler]) -> tuple[_Rows, tuple[_Rows, _Rows, _Rows, _Rows]]:
        totals, tasks, partitions, devices, measured = _Rows(), _Rows(), _Rows(), _Rows(), _Rows()
        for scheduler in schedulers:
            status = scheduler.status()
            device = _device_label(scheduler)
            self._tallies.setdefault(scheduler, _Tally()).add_to(totals, scheduler, device)
            for task in status["tasks"]:
                if task["state"] == "running":
                    tasks.add((device, task["partition"], task["policy"], task["name"]), task)
            for row in status["partitions"]:
                partitions.add((device, row["name"]), row)
            waiting = sum(task["state"] == "queued" for task in status["tasks"])
            devices.add((device,), {**status["capacity"], "queue_length": waiting})
            if status["nvml"] is not None and (device,) not in measured:
                measured.add((device,), status["nvml"])
        return totals, (tasks, partitions, devices, measured)


class _Rows(dict[_Labels, dict[str, float]]):
    """Figures by labels; those with equal labels are added up, so that no series appears twice."""

    def add(self, labels: _Labels, figures: dict[str, Any]) -> None:
        row = self.setdefault(labels, {})
        for key, value in figures.items():
            if isinstance(value, (int, float)):
                row[key] = row.get(key, 0.0) + value


class _Tally:
    """What the tasks of one scheduler used, ended ones included: sums that never get less while their series lasts."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[_Labels, dict[str, float]]] = {}
        self._sums: _Rows = _Rows()

    def add_to(self, totals: _Rows, scheduler: Scheduler, device: str) -> None:
        keys = [key for key, _, _ in _TASK_TOTALS]
        seen: dict[int, tuple[_Labels, dict[str, float]]] = {}
        for stats in scheduler._roster.rows():
            number = stats["id"]
            labels: _Labels = (device, stats["partition"], stats["policy"], stats["name"])
            jobs = stats.get("jobs", {})
            stats |= {"jobs_met": jobs.get("met"), "jobs_missed": jobs.get("missed")}
            now = {key: float(stats[key]) for key in keys if stats.get(key) is not None}
            before = self._seen.get(number, (labels, {}))[1]
            self._sums.add(labels, {key: max(0.0, value - before.get(key, 0.0)) for key, value in now.items()})
            seen[number] = (labels, now)
        self._seen = seen
        # A series ends when the scheduler has forgotten the last task of its name.
        alive = {labels for labels, _ in seen.values()}
        for gone in self._sums.keys() - alive:
            del self._sums[gone]
        for known, sums in self._sums.items():
            totals.add(known, sums)


def _device_label(scheduler: Scheduler) -> str:
    device = scheduler.device
    return f"cuda:{device.index}" if device.kind == "cuda" else str(device.kind)


def _filled(family: Any, key: str, rows: _Rows) -> Any:
    for labels, row in sorted(rows.items()):
        if key in row:
            family.add_metric(labels, row[key])
    return family


class Exporter:
    """A server of metrics; made by `start_exporter`, closed by `close` or at the end of a ``with`` block.

    Attributes
    ----------
    port : int
        Where it listens.
    url : str
        What a scraper asks for.
    """

    def __init__(self, server: Any, thread: threading.Thread, addr: str) -> None:
        self.port: int = server.server_port
        self.url = f"http://{f'[{addr}]' if ':' in addr else addr}:{self.port}/metrics"
        self._server = server
        self._thread: threading.Thread | None = thread

    def __repr__(self) -> str:
        return f"<Exporter {self.url}{'' if self._thread else ' closed'}>"

    def close(self) -> None:
        """Stop answering."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def start_exporter(
    port: int = 9464, addr: str = "127.0.0.1", schedulers: Sequence[Scheduler] | None = None
) -> Exporter:
    """Serve the metrics of this process's schedulers and language models to Prometheus.

    Parameters
    ----------
    port : int
        TCP port; 0 takes a free one.
    addr : str
        Address to listen on; only this machine by default.
    schedulers : sequence of Scheduler, optional
        Which ones; all of this process by default.

    Returns
    -------
    Exporter
        With ``url`` and ``close()``.

    Raises
    ------
    MissingPackageError
        If prometheus-client is not installed.
    OSError
        If the port is taken.

    Examples
    --------
    >>> with start_exporter(port=0) as exporter:  # doctest: +SKIP
    ...     print(exporter.url)
    http://127.0.0.1:40321/metrics
    """
    client = prometheus()
    registry = client.CollectorRegistry()
    registry.register(SchedulerCollector(schedulers))
    registry.register(EngineCollector())
    try:
        server, thread = client.start_http_server(port, addr, registry)
    except OSError as error:
        raise OSError(error.errno, f"cannot serve metrics on {addr} port {port}: {error.strerror or error}") from error
    return Exporter(server, thread, addr)
