"""`GET /metrics`: the figures of the service in the text format that Prometheus reads.

Owns: names, help texts and labels of the metrics.  Must never know: where a figure comes from.

Each answer is made from one reading of the service, so its figures belong together; nothing is kept between two.  The registry is the
daemon's own: the library's global one would add whatever some other module registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_daemon import __version__
from scheduler_daemon.api.service import Check, Figures, Histogram, Single

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Source(Protocol):
    """What has figures."""

    def figures(self) -> Figures: ...
    def checks(self) -> Sequence[Check]: ...


class Page:
    """The metrics page.  `connections` and `calls` are set by the face before each reading."""

    def __init__(self, source: Source) -> None:
        self.connections = 0
        self.calls = 0
        self.responses: dict[tuple[str, int], int] = {}
        self._source = source
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Reading(self))

    def answered(self, route: str, status: int) -> None:
        """Count one HTTP response."""
        self.responses[route, status] = self.responses.get((route, status), 0) + 1

    def render(self) -> bytes:
        """The page, now."""
        return generate_latest(self._registry)

    def families(self) -> Iterator[Metric]:
        """Every metric with its present value."""
        yield _info()
        figures = self._source.figures()
        yield from _of_schedules(figures)
        yield from _of_single(figures.single)
        yield _gauge(
            "scheduler_schedules_unlisted", "Schedules beyond those with series of their own.", figures.unlisted
        )
        checks = GaugeMetricFamily("scheduler_check", "Whether a check of /readyz holds.", labels=["name"])
        for check in self._source.checks():
            checks.add_metric([check.name], float(check.ok))
        yield checks
        yield _gauge("scheduler_http_connections", "Open HTTP connections.", self.connections)
        yield _gauge("scheduler_http_calls", "JSON-RPC bodies being carried out now.", self.calls)
        responses = CounterMetricFamily(
            "scheduler_http_responses", "HTTP responses since the start.", labels=["route", "status"]
        )
        for (route, status), count in sorted(self.responses.items()):
            responses.add_metric([route, str(status)], count)
        yield responses


class _Reading(Collector):
    def __init__(self, page: Page) -> None:
        self._page = page

    def collect(self) -> Iterator[Metric]:
        return self._page.families()


def _of_schedules(figures: Figures) -> Iterator[Metric]:
    yield _by("scheduler_schedules", "Schedules by state.", "state", dict(figures.schedules))
    yield _by("scheduler_runs", "Unfinished runs by phase.", "phase", dict(figures.runs))
    yield _by("scheduler_candidates", "Held candidates by what they wait for.", "waiting", dict(figures.candidates))
    decisions = CounterMetricFamily(
        "scheduler_decisions", "History rows written since the start.", labels=["status", "reason"]
    )
    for (status, reason), count in sorted(figures.decisions.items()):
        decisions.add_metric([status, reason], count)
    yield decisions
    yield _gauge("scheduler_slots_used", "Dispatched runs that execute now.", figures.slots_used)
    yield _gauge("scheduler_slots_max", "The most that may execute at once.", figures.slots_max)
    yield _gauge("scheduler_overdue_seconds", "How long the most overdue instant has been due.", figures.overdue_s)
    yield _gauge("scheduler_tick_age_seconds", "Time since the last decision.", figures.tick_age_s)
    yield _gauge("scheduler_server_up", "1 when the workflow server answers.", figures.server_up)
    yield _gauge("scheduler_draining", "1 when admission has stopped for a shutdown.", figures.draining)
    yield _gauge("scheduler_storage_full", "1 when the disk of the store is full.", figures.storage_full)
    yield _histogram(
        "scheduler_dispatch_lateness_seconds", "From the instant to the dispatch of its run.", figures.dispatch_lateness
    )
    yield _histogram("scheduler_commit_seconds", "What it takes to make one batch durable.", figures.commit)


def _of_single(single: Mapping[str, Single]) -> Iterator[Metric]:
    """Series of single schedules; how many schedules have some is bounded by the source."""
    state = GaugeMetricFamily(
        "scheduler_schedule_state", "Always 1; the label says which.", labels=["schedule_id", "state"]
    )
    runs = GaugeMetricFamily("scheduler_schedule_runs", "Unfinished runs of one schedule.", labels=["schedule_id"])
    ends = CounterMetricFamily(
        "scheduler_schedule_ends", "How occurrences of one schedule ended.", labels=["schedule_id", "status"]
    )
    for schedule_id, one in single.items():
        state.add_metric([schedule_id, one.state], 1)
        runs.add_metric([schedule_id], one.runs)
        for status, count in sorted(one.ends.items()):
            ends.add_metric([schedule_id, status], count)
    yield from (state, runs, ends)


def _info() -> Metric:
    family = GaugeMetricFamily("scheduler_build_info", "Always 1; the label says which version.", labels=["version"])
    family.add_metric([__version__], 1)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _by(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets = [(f"{bound:g}", float(count)) for bound, count in sorted(histogram.buckets.items())]
    return HistogramMetricFamily(
        name, text, buckets=[*buckets, ("+Inf", float(histogram.count))], sum_value=histogram.sum_s
    )
