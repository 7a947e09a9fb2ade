"""What the daemon knows, as values.

Owns: the frozen structs of the durable truth (schedules, candidates, runs); the live view beside it is in `core/live.py`.  Must never
know: files, clocks, sockets, JSON on a wire.  Every struct is immutable; the only thing that makes a new one is `core/fold.py`.

Two invariants are carried by the shapes.  A run's `phase` and its `mark` agree: a mark exists exactly while a request may have left
this process.  Everything under a field named `live` is lost at a restart, and nothing durable is ever derived from it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

import msgspec

Json = Any
"""A decoded JSON value."""


class Now(msgspec.Struct, frozen=True, gc=False):
    """One reading of both clocks: `at` judges instants and lateness, `mono` (seconds) judges waiting."""

    at: datetime
    mono: float


class Settings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The configured figures that decisions depend on.  Seconds throughout."""

    max_concurrent_runs: int = 4
    lateness_s: float = 60.0
    preflight_ttl_s: float = 30.0
    reconcile_grace_s: float = 30.0
    server_url: str = ""


# --- the definition ---------------------------------------------------------------------------------------------------


class Cron(msgspec.Struct, frozen=True, gc=False, tag="cron", tag_field="kind", forbid_unknown_fields=True):
    """A five-field cron expression, evaluated in an IANA zone."""

    expression: str
    timezone: str = "UTC"


class OneShot(msgspec.Struct, frozen=True, gc=False, tag="oneshot", tag_field="kind", forbid_unknown_fields=True):
    """One instant, given with an offset."""

    at: datetime


Trigger = Cron | OneShot


class Definition(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a caller asked for; spec section 3 gives the rule of each field."""

    schedule_id: str
    deployment_id: str
    trigger: Trigger
    input: dict[str, Json] = {}
    overlap: Literal["skip", "parallel"] = "skip"
    max_active_runs: int | None = None
    misfire: Literal["skip", "latest"] = "skip"
    lateness_s: int | None = None
    max_steps: int | None = None
    hold_unknown_s: float = 0.0
    run_timeout_s: float | None = None

    @property
    def active_max(self) -> int:
        """How many of its own runs may be unfinished at once."""
        return self.max_active_runs or 1 if self.overlap == "parallel" else 1


# --- what the server said ---------------------------------------------------------------------------------------------


class ServerFacts(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a server announced, noted under a mark so that a later start can tell whether it is the same one."""

    url: str
    store_root: str | None = None
    instance_id: str | None = None
    features: tuple[str, ...] = ()

    @property
    def keyed(self) -> bool:
        """Whether a repeated request with the same key is answered and never executed again."""
        return "idempotent-start" in self.features

    def same_server(self, other: ServerFacts) -> bool:
        """URL and store root agree; `instance_id` does not matter, it changes when the process restarts."""
        return self.url == other.url and self.store_root == other.store_root


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a run stood when it was last seen at rest; a larger `trace_count` or another status is newer."""

    status: str
    trace_count: int

    def older_than(self, status: str, trace_count: int) -> bool:
        """Whether that reading shows progress since this one."""
        return status != self.status or trace_count > self.trace_count


class Result(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the server's answer said of a run, kept with the outcome; `output` is at most 64 KiB, else `truncated`."""

    status: str
    server_run_id: str | None = None
    outcome: str | None = None
    error: str | None = None
    output: Json = None
    truncated: bool = False
    trace_count: int = 0
    interrupt: Json = None
    diagnostics: tuple[Json, ...] = ()
    artifact_id: str | None = None
    artifact_version: int | None = None


# --- candidates, runs, attempts ---------------------------------------------------------------------------------------

Waiting = Literal["no-slot", "preflight-pending", "server-unreachable", "overlap"]
"""Why a due occurrence is held rather than admitted."""


class Candidate(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A due, unadmitted occurrence.  `previous_instant` is pinned here because later rows may overtake it."""

    instant: datetime
    held_at: datetime
    waiting: Waiting
    previous_instant: datetime | None = None


class Mark(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The executing mark: from its commit on, the request may have left this process.

    `kind` resume makes it an ACTIVE attempt: `attempt` counts from 1, `checkpoint` was read just before, `payload` and
    `outcome` are kept because a keyed server must get the very same request again; but not after `caller_gone`, when the one who
    wanted it is no longer there.
    """

    kind: Literal["start", "resume"]
    key: str
    marked_at: datetime
    server: ServerFacts
    attempt: int = 0
    checkpoint: Checkpoint | None = None
    payload: dict[str, Json] | None = None
    outcome: str | None = None
    caller_gone: bool = False


class Finding(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the last question about an unfinished run found: unknown to the server, a result, or runs it stopped since."""

    kind: Literal["unknown", "result", "listed", "failed"]
    result: Result | None = None
    run_ids: tuple[str, ...] = ()
    reason: str = ""


class RunLive(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What this process is doing about a run right now; gone at a restart.

    `call_seq` is the open start or resume, sent again under the same key if `repeat`; `ask_seq` is the open inspect or list.
    `look_mono` is when to act next, `tries` counts for backoff.  `lost_mono` is when sight of the call was lost: only what was
    heard of the server later counts.  `unsure_mono` is since when the grace of reconciliation has been running.  `beyond` counts answers in
    a row that could not be read.
    """

    call_seq: int | None = None
    call_mono: float = 0.0
    repeat: bool = False
    ask_seq: int | None = None
    look_mono: float | None = None
    lost_mono: float | None = None
    unsure_mono: float | None = None
    tries: int = 0
    beyond: int = 0
    finding: Finding | None = None


Phase = Literal["admitted", "running", "ambiguous", "interrupted"]
"""Where an unfinished run stands; `ambiguous` is shown to callers as running."""


class Run(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One admitted, unfinished occurrence with everything that was pinned at admission.

    `server` is the one its last request was marked for; it outlives the mark, so that an interrupted run is asked after there.
    """

    run_id: str
    schedule_id: str
    instant: datetime
    revision: int
    admitted_at: datetime
    admitted_n: int
    key: str
    deployment_id: str
    artifact_id: str | None = None
    artifact_version: int | None = None
    input: dict[str, Json] = {}
    max_steps: int | None = None
    phase: Phase = "admitted"
    mark: Mark | None = None
    server_run_id: str | None = None
    checkpoint: Checkpoint | None = None
    interrupt: Json = None
    attempts: int = 0
    server: ServerFacts | None = None
    live: RunLive = RunLive()


class UnknownRun(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A run that ended `outcome-unknown`; its ids and its attempt are kept for good, so that no resume repeats it.

    It is watched until `watch_until` when the server's id is known; `observed` is what the server showed later.
    """

    run_id: str
    schedule_id: str
    settled_at: datetime
    server_run_id: str | None = None
    attempt: int = 0
    checkpoint: Checkpoint | None = None
    server: ServerFacts | None = None
    watch_until: datetime | None = None
    observed: Result | None = None
    live: RunLive = RunLive()


class Hold(msgspec.Struct, frozen=True, gc=False):
    """An `outcome-unknown` end that keeps holding overlap until then (`hold_unknown_s`)."""

    run_id: str
    until: datetime


@lru_cache(maxsize=256)
def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


# --- the schedule -----------------------------------------------------------------------------------------------------


class Diagnostic(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Why a schedule needs an operator: `code` is stable, `message` is for people, `data` locates it."""

    code: str
    message: str
    at: datetime
    data: dict[str, Json] = {}


class Closing(msgspec.Struct, frozen=True, gc=False):
    """The last pause, delete, block or trigger change: runs admitted up to record `n` that turn out unsent end with it."""

    n: int
    reason: str


ScheduleStatus = Literal["active", "finished", "paused", "blocked", "deleted"]


class Schedule(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One schedule and all that is undecided or unfinished about it.

    `watermark` is its own; the effective one is `State.watermark_of`.  `span_at` is from when a pause or block has been
    consuming time without rows.  `taken` are instants after the watermark that have a row already (after a wrong clock).
    """

    definition: Definition
    revision: int
    created_at: datetime
    updated_at: datetime
    watermark: datetime
    exempt_until: datetime | None = None
    paused: bool = False
    blocked: bool = False
    deleted: bool = False
    note: str | None = None
    span_at: datetime | None = None
    candidate: Candidate | None = None
    runs: tuple[Run, ...] = ()
    holds: tuple[Hold, ...] = ()
    n: int = 0
    admitted_last_at: datetime | None = None
    row_last_at: datetime | None = None
    closing: Closing | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    taken: tuple[datetime, ...] = ()

    @property
    def schedule_id(self) -> str:
        return self.definition.schedule_id

    @property
    def admits(self) -> bool:
        """Whether nothing but time, overlap and capacity stands between it and an admission."""
        return not (self.paused or self.blocked or self.deleted)

    def run(self, run_id: str) -> Run | None:
        """Its unfinished run of that id."""
        for run in self.runs:
            if run.run_id == run_id:
                return run
        return None

    def allowance(self, settings: Settings) -> timedelta:
        """How late a start may be before it counts as missed."""
        own = self.definition.lateness_s
        return _span(settings.lateness_s if own is None else own)

    def untaken(self, instants: Sequence[datetime]) -> Sequence[datetime]:
        """These instants without those that have a row already, from when the clock was wrong."""
        return [instant for instant in instants if instant not in self.taken] if self.taken else instants

    def blocking_run_id(self, at: datetime) -> str | None:
        """The run that keeps overlap closed at `at`, the oldest first; None when another admission fits."""
        if not (self.runs or self.holds):
            return None
        holding = [run.run_id for run in self.runs] + [hold.run_id for hold in self.holds if hold.until > at]
        return holding[0] if len(holding) >= self.definition.active_max else None


# --- history ----------------------------------------------------------------------------------------------------------

Status = Literal[
    "pending",
    "coalesced",
    "superseded",
    "skipped-overlap",
    "skipped-misfire",
    "preflight-rejected",
    "admitted",
    "running",
    "interrupted",
    "completed",
    "failed",
    "exhausted",
]
FINAL: frozenset[str] = frozenset(
    {
        "coalesced",
        "superseded",
        "skipped-overlap",
        "skipped-misfire",
        "preflight-rejected",
        "completed",
        "failed",
        "exhausted",
    }
)


class Row(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One transition of one occurrence, or of a range of them (`first_instant`, `last_instant`, `count`).

    `at_least` says that `count` is a lower bound.  `n` orders the rows of a schedule; numbers without a row exist.
    """

    n: int
    schedule_id: str
    status: Status
    at: datetime
    instant: datetime | None = None
    reason: str | None = None
    run_id: str | None = None
    server_run_id: str | None = None
    revision: int | None = None
    blocking_run_id: str | None = None
    detail: dict[str, Json] | None = None
    first_instant: datetime | None = None
    last_instant: datetime | None = None
    count: int | None = None
    at_least: bool = False
