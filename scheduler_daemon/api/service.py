"""What the face needs of the scheduler behind it.

Owns: the calls, and the figures, that a face may rely on.  Must never know: who answers them; a test answers them with a fake, the
daemon with `runtime.service.Service`.

Refusals are `core.commands.Rejected`, and `errors.ServerRefused` for what the workflow server itself said to a call that was
passed on.  What changes something returns after it is durable.  When the awaiting task is cancelled, its caller went away;
the face cancels it for no other reason until it is taken down, which happens after the service was fenced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from scheduler_daemon.core.model import Definition, Row
from scheduler_daemon.core.queries import ScheduleView


class Check(Protocol):
    """One thing that must hold for the daemon to be scheduling, with its figure."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def figure(self) -> str: ...


class Histogram(Protocol):
    """Durations in seconds: `buckets` maps an upper bound to how many were at most that, `sum_s` adds all of them up."""

    @property
    def buckets(self) -> Mapping[float, int]: ...
    @property
    def count(self) -> int: ...
    @property
    def sum_s(self) -> float: ...


class Single(Protocol):
    """One schedule in figures."""

    @property
    def state(self) -> str: ...
    @property
    def runs(self) -> int:
        """Unfinished ones."""
        ...

    @property
    def ends(self) -> Mapping[str, int]:
        """How its occurrences ended, by status."""
        ...


class Figures(Protocol):
    """One reading of what `GET /metrics` shows.  Counts of the past begin at the start of the process."""

    @property
    def schedules(self) -> Mapping[str, int]:
        """Schedules by state."""
        ...

    @property
    def runs(self) -> Mapping[str, int]:
        """Unfinished runs by phase; `ambiguous` is one of its own here."""
        ...

    @property
    def candidates(self) -> Mapping[str, int]:
        """Held candidates by what they wait for."""
        ...

    @property
    def decisions(self) -> Mapping[tuple[str, str], int]:
        """History rows written, by status and reason; the reason is empty when there was none."""
        ...

    @property
    def slots_used(self) -> int: ...
    @property
    def slots_max(self) -> int: ...
    @property
    def overdue_s(self) -> float:
        """How long the most overdue instant has been due, 0 when none is."""
        ...

    @property
    def tick_age_s(self) -> float: ...
    @property
    def server_up(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def storage_full(self) -> bool: ...
    @property
    def dispatch_lateness(self) -> Histogram:
        """From the instant to the dispatch of its run."""
        ...

    @property
    def commit(self) -> Histogram:
        """What it takes to make one batch durable."""
        ...

    @property
    def single(self) -> Mapping[str, Single]:
        """A bounded number of schedules, the first by id that are not deleted."""
        ...

    @property
    def unlisted(self) -> int:
        """How many more schedules there are."""
        ...


class Service(Protocol):
    """The scheduler as its callers see it; `under` is the same for one call that came with an idempotency key."""

    def under(self, key: str) -> Service: ...
    async def create(self, definition: Definition) -> ScheduleView: ...
    async def update(self, schedule_id: str, expected_revision: int, changes: dict[str, Any]) -> ScheduleView: ...
    async def pause(self, schedule_id: str, note: str | None) -> ScheduleView: ...
    async def resume(self, schedule_id: str, note: str | None) -> ScheduleView: ...
    async def delete(self, schedule_id: str, note: str | None) -> ScheduleView: ...
    async def unblock(self, schedule_id: str, note: str) -> ScheduleView: ...
    def get(self, schedule_id: str) -> ScheduleView: ...
    def list(
        self, *, include_deleted: bool, deployment_id: str | None, state: str | None, cursor: str | None, limit: int
    ) -> tuple[list[ScheduleView], str | None]: ...
    def occurrences(self, schedule_id: str, cursor: str | None, limit: int) -> tuple[list[Row], str | None]: ...
    async def inspect_run(self, run_id: str) -> dict[str, Any]: ...
    async def resume_run(
        self,
        run_id: str,
        payload: dict[str, Any],
        outcome: str,
        *,
        wait: bool,
        trace_range: dict[str, Any] | None = None,
    ) -> dict[str, Any]: ...
    async def abandon_run(self, run_id: str, note: str) -> dict[str, Any]: ...
    async def forward(self, method: str, params: dict[str, Any]) -> Any: ...
    def health(self) -> dict[str, Any]: ...
    def checks(self) -> Sequence[Check]: ...
    def figures(self) -> Figures: ...
