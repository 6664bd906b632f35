"""Figures of running schedulers for monitoring systems: a Prometheus exporter, and what NVML measures."""

from __future__ import annotations

from pygpukit.core.nvml import read_nvml
from pygpukit.monitor.engine_metrics import EngineCollector
from pygpukit.monitor.exporter import Exporter, SchedulerCollector, start_exporter

__all__ = ["EngineCollector", "Exporter", "SchedulerCollector", "read_nvml", "start_exporter"]
