"""Prometheus metrics of the language models of this process, by the names that vLLM has given them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pygpukit.monitor.package import prometheus

if TYPE_CHECKING:
    from pygpukit.llm.telemetry import Figures, Histogram, Telemetry

__all__ = ["EngineCollector"]

_PREFIX = "pygpukit_llm_"
_LABELS = ("model_name", "engine", "tenant")

# Name, what it says, and the number.
_TOTALS: tuple[tuple[str, str, Callable[[Figures], float]], ...] = (
    ("prompt_tokens", "Tokens of prompts.", lambda f: f.prompt_tokens),
    ("generation_tokens", "Tokens of replies.", lambda f: f.generation_tokens),
    ("prefix_cache_queries", "Tokens of prompts looked up in the prefix cache.", lambda f: f.prefix_queries),
    ("prefix_cache_hits", "Tokens of prompts found in the prefix cache.", lambda f: f.prefix_hits),
    ("num_preemptions", "Replies that lost their pages to others.", lambda f: f.tenant.preemptions),
    ("spec_decode_num_drafts", "Guesses of speculation.", lambda f: f.drafts),
    ("spec_decode_num_draft_tokens", "Tokens of those guesses.", lambda f: f.draft_tokens),
    ("spec_decode_num_accepted_tokens", "Guessed tokens that were right.", lambda f: f.accepted_tokens),
)
_LATENCIES: tuple[tuple[str, str, Callable[[Figures], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From a request to its first token.", lambda f: f.first_token),
    ("inter_token_latency_seconds", "Between two tokens of a reply.", lambda f: f.inter_token),
    ("request_queue_time_seconds", "From a request to its first step.", lambda f: f.queue),
    ("e2e_request_latency_seconds", "From a request to the end of a reply.", lambda f: f.total),
)
_GAUGES = (
    ("num_requests_running", "Replies that have pages."),
    ("num_requests_waiting", "Replies that wait for them."),
    ("kv_cache_usage_perc", "Part of the pages that running replies have; shared ones count for each."),
)


class EngineCollector:
    """A collector for the registries of prometheus-client: the engines of this process, by tenant.

    Requests that name no tenant have an empty one. The series of an engine end when it is closed.

    Examples
    --------
    >>> import prometheus_client  # doctest: +SKIP
    >>> prometheus_client.REGISTRY.register(EngineCollector())  # doctest: +SKIP
    """

    def collect(self) -> Iterator[Any]:
        """The metrics now, as prometheus-client asks for them.

        Raises
        ------
        MissingPackageError
            If prometheus-client is not installed.
        """
        core = prometheus().core
        # Without an engine nothing has imported it, and nothing needs to.
        module = sys.modules.get("pygpukit.llm.telemetry")
        engines: list[Telemetry] = module.live_engines() if module is not None else []
        rows = [(_labels(e, name), figures) for e in engines for name, figures in e.tenants().items()]
        for name, says, value in _TOTALS:
            family = core.CounterMetricFamily(_PREFIX + name, says, labels=_LABELS)
            for labels, figures in rows:
                family.add_metric(labels, value(figures))
            yield family
        family = core.CounterMetricFamily(
            _PREFIX + "request_success", "Replies by the reason for their end.", labels=(*_LABELS, "finished_reason")
        )
        for labels, figures in rows:
            for reason, count in sorted(figures.finished.items()):
                family.add_metric((*labels, reason), count)
        yield family
        for name, says, latencies in _LATENCIES:
            family = core.HistogramMetricFamily(_PREFIX + name, says, labels=_LABELS)
            for labels, figures in rows:
                found = latencies(figures)
                counted = [(f"{bound:g}" if bound < float("inf") else "+Inf", n) for bound, n in found.cumulative()]
                family.add_metric(labels, counted, found.sum)
            yield family
        now = [(_labels(e, name), values) for e in engines for name, *values in e.now()]
        for i, (name, says) in enumerate(_GAUGES):
            family = core.GaugeMetricFamily(_PREFIX + name, says, labels=_LABELS)
            for labels, values in now:
                family.add_metric(labels, values[i])
            yield family

    def describe(self) -> list[Any]:
        """Nothing: a registry need not ask what there will be."""
        return []


def _labels(engine: Telemetry, tenant: str) -> tuple[str, ...]:
    return engine.name, str(engine.number), tenant
