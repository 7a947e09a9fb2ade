"""What an outsider remembers of schedules and runs, as plain records.

Owns: the shape of the second account that `ledger.py` keeps.
Must never know: how the core keeps the same things.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler_daemon.core.model import Definition, OneShot, ServerFacts
from tests.simulation.loop import Process

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

Turn = tuple[datetime, datetime, str]
"""Who comes first: never admitted or longest ago, then the older instant, then the id."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class RunAccount:
    """One admitted occurrence.  `phase` is admitted, running, ambiguous, interrupted, or the status of its final row."""

    run_id: str
    schedule_id: str
    instant: datetime
    key: str
    deployment_id: str
    admitted_at: datetime
    input: dict[str, Any]
    admitted_n: int
    phase: str = "admitted"
    kind: str = "start"
    attempts: int = 0
    trace_count: int = 0
    reason: str | None = None
    server_run_id: str | None = None
    marked_by: ServerFacts | None = None
    marked_in: Process | None = None
    lost_s: float | None = None
    caller_gone: bool = False

    @property
    def unfinished(self) -> bool:
        return self.phase in ("admitted", "running", "ambiguous", "interrupted")

    @property
    def holds_slot(self) -> bool:
        return self.phase in ("running", "ambiguous")

    @property
    def sending_key(self) -> str:
        """The key under which its open request went out."""
        return self.key if self.kind == "start" else f"{self.key}:{self.attempts}"


@dataclass
class ScheduleAccount:
    """One schedule.  Everything due up to `checked_at` was seen to have a row; `own_at` is its own watermark."""

    definition: Definition
    created_at: datetime
    own_at: datetime
    checked_at: datetime
    exempt_until: datetime | None
    revision: int = 1
    n: int = 1
    closed_n: int = 0
    paused: bool = False
    blocked: bool = False
    deleted: bool = False
    stopped_at: datetime | None = None
    rewound: bool = False
    candidate: datetime | None = None
    candidate_batch: int = 0
    rowed: dict[datetime, str] = field(default_factory=dict)
    ranges: list[tuple[datetime, datetime]] = field(default_factory=list)
    spans: list[tuple[datetime, datetime]] = field(default_factory=list)
    runs: dict[str, RunAccount] = field(default_factory=dict)
    holds: list[tuple[str, datetime]] = field(default_factory=list)
    admitted_at: datetime = LONG_AGO

    @property
    def admits(self) -> bool:
        return not (self.paused or self.blocked or self.deleted)

    @property
    def active_max(self) -> int:
        return self.definition.max_active_runs or 1

    def watermark(self, decided_at: datetime) -> datetime:
        """The global watermark counts too, unless this schedule began while that lay in the future."""
        if self.exempt_until is not None and decided_at <= self.exempt_until:
            return self.own_at
        return max(self.own_at, decided_at)

    def allowance(self, default_s: float) -> timedelta:
        own = self.definition.lateness_s
        return timedelta(seconds=default_s if own is None else own)

    def holding(self, at: datetime) -> list[str]:
        """Ids of the runs that hold overlap at `at`."""
        unfinished = [run.run_id for run in self.runs.values() if run.unfinished]
        return unfinished + [run_id for run_id, until in self.holds if until > at]

    def turn(self, instant: datetime) -> Turn:
        return self.admitted_at, instant, self.definition.schedule_id

    def contends_with(self, other: "ScheduleAccount", at: datetime) -> bool:
        """Whether its candidate waits for nothing at `at` that the other does not wait for as well."""
        same = self.definition.deployment_id == other.definition.deployment_id
        due = self.candidate is not None and self.candidate <= at
        return same and due and self.admits and len(self.holding(at)) < self.active_max

    @property
    def over(self) -> bool:
        """A one-shot that had its instant."""
        trigger = self.definition.trigger
        return isinstance(trigger, OneShot) and self.has_row(trigger.at)

    def has_row(self, instant: datetime) -> bool:
        return instant in self.rowed or any(first <= instant <= last for first, last in self.ranges)
