"""What the daemon counts about itself, for `GET /metrics`.

Owns: counters that begin at the start of the process, two histograms, and the one reading of all figures.
Must never know: the metrics format.

A reading walks the schedules; it is made when somebody asks, never in the engine's turn.

Figures of single schedules are bounded: the first SINGLE_MAX by id that are not deleted have some, the others are counted in
`unlisted`.  Whoever watches a time series for each schedule pays for each; ten thousand of them are a database, not a page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Final, get_args

import msgspec

from scheduler_daemon.core.commands import Effect, StartCall
from scheduler_daemon.core.events import Event, OccurrenceClosed, RangeClosed, RunAdmitted, RunInterrupted, RunSettled
from scheduler_daemon.core.model import Now, Phase, ScheduleStatus
from scheduler_daemon.core.queries import state_of
from scheduler_daemon.core.state import State

_LATENESS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 3600.0)
_COMMIT_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

SINGLE_MAX: Final = 200
"""How many schedules have figures of their own."""


class Histogram:
    """Durations in seconds, counted by upper bound; `buckets` is cumulative."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration; a negative one (the clock was set) counts as none."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self._counts)

    @property
    def buckets(self) -> Mapping[float, int]:
        """Each upper bound with how many were at most that."""
        so_far, buckets = 0, dict[float, int]()
        for bound, count in zip(self._bounds, self._counts, strict=False):
            so_far += count
            buckets[bound] = so_far
        return buckets


class Single(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule: its state, its unfinished runs, and how its occurrences ended since the start of the process, by status."""

    state: ScheduleStatus
    runs: int
    ends: Mapping[str, int]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One reading; each member is described in `api/service.py`."""

    schedules: Mapping[str, int]
    runs: Mapping[str, int]
    candidates: Mapping[str, int]
    decisions: Mapping[tuple[str, str], int]
    slots_used: int
    slots_max: int
    overdue_s: float
    tick_age_s: float
    server_up: bool
    draining: bool
    storage_full: bool
    dispatch_lateness: Histogram
    commit: Histogram
    single: Mapping[str, Single] = {}
    unlisted: int = 0


class Counters:
    """What is counted as it happens."""

    def __init__(self) -> None:
        self.decisions: Counter[tuple[str, str]] = Counter()
        self._ends: dict[str, dict[str, int]] = {}
        self.dispatch_lateness = Histogram(_LATENESS_S)
        self.commit = Histogram(_COMMIT_S)

    def committed(self, events: Iterable[Event], seconds: float) -> None:
        """One batch is durable, and took so long."""
        self.commit.add(seconds)
        for event in events:
            if isinstance(event, RunAdmitted):
                self.decisions["admitted", ""] += 1
            elif isinstance(event, RunSettled | OccurrenceClosed | RangeClosed):
                self.decisions[event.status, event.reason or ""] += 1
                ends = self._ends.setdefault(event.schedule_id, {})
                ends[event.status] = ends.get(event.status, 0) + 1
            elif isinstance(event, RunInterrupted):
                self.decisions["interrupted", ""] += 1

    def left(self, effect: Effect, now: Now) -> None:
        """An effect is on its way; the first start of a run is late by so much."""
        if isinstance(effect, StartCall) and not effect.repeat:
            self.dispatch_lateness.add((now.at - effect.instant).total_seconds())

    def read(self, state: State, now: Now, decided_mono: float) -> Figures:
        """Everything, now."""
        schedules = Counter[str](dict.fromkeys(get_args(ScheduleStatus), 0))
        runs = Counter[str](dict.fromkeys(get_args(Phase), 0))
        candidates: Counter[str] = Counter()
        for schedule in state.schedules.values():
            schedules[state_of(schedule, state.watermark_of(schedule))] += 1
            runs.update(run.phase for run in schedule.runs)
            if schedule.candidate is not None:
                candidates[schedule.candidate.waiting] += 1
        overdue = state.agenda.overdue()
        single = self._single(state)
        return Figures(
            schedules=schedules,
            runs=runs,
            candidates=candidates,
            decisions=dict(self.decisions),
            slots_used=state.globals.slots_used,
            slots_max=state.settings.max_concurrent_runs,
            overdue_s=max(0.0, (now.at - overdue).total_seconds()) if overdue is not None else 0.0,
            tick_age_s=now.mono - decided_mono,
            server_up=state.globals.server.up,
            draining=state.globals.draining,
            storage_full=state.globals.full,
            dispatch_lateness=self.dispatch_lateness,
            commit=self.commit,
            single=single,
            unlisted=sum(schedules.values()) - schedules["deleted"] - len(single),
        )

    def _single(self, state: State) -> dict[str, Single]:
        listed = nsmallest(SINGLE_MAX, (one.schedule_id for one in state.schedules.values() if not one.deleted))
        for schedule_id in self._ends.keys() - state.schedules.keys():
            del self._ends[schedule_id]
        single: dict[str, Single] = {}
        for schedule_id in listed:
            schedule = state.schedules[schedule_id]
            single[schedule_id] = Single(
                state=state_of(schedule, state.watermark_of(schedule)),
                runs=len(schedule.runs),
                ends=self._ends.get(schedule_id, {}),
            )
        return single
