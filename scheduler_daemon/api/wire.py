"""The params and results of every method, as they look on the wire.

Owns: names, shapes and defaults of params; the conversion into what the core understands.  Must never know: HTTP, who carries a
call out, whether a definition makes sense.

Two doors refuse a call, and which one it is follows from what the caller must do next.

- *Shape* is refused here, as -32602: a member that does not exist or is missing, a wrong type, a word that is none of the
  listed ones, a page larger than allowed.  The program that made the call is wrong, whatever its data.
- *Meaning* is refused by the core under a code of its own, with the field and the reason: a zone that does not exist, an
  expression that can never fire, a bad id.  Somebody typed that.  So such values travel as plain strings and numbers, and the
  schema shows their ranges without this module enforcing them twice.

A one-shot's time is of the second kind.  It arrives as a string and becomes a moment in `instant_of`, which alone can say that
an offset is missing; a decoder's datetime would turn "2030-01-31T09:00:00" into "Invalid params".
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from scheduler_daemon import limits
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, Definition, OneShot, Row, ScheduleStatus, Trigger
from scheduler_daemon.core.queries import ScheduleView

FACTS: Final = (
    "occurrence.instant",
    "occurrence.local_time",
    "occurrence.previous_instant",
    "schedule.id",
    "schedule.revision",
    "run.id",
)
"""What an input binding may take its value from.  Source: spec section 4."""

_BINDING: Final[dict[str, Any]] = {
    "oneOf": [
        {"type": "object", "required": ["value"], "properties": {"value": {}}, "additionalProperties": False},
        {
            "type": "object",
            "required": ["from"],
            "properties": {"from": {"enum": list(FACTS)}},
            "additionalProperties": False,
        },
    ]
}

# JSON Schema and Python agree on this one: unlike `$`, the lookahead does not let a trailing newline through.
_PRINTABLE: Final = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+(?![\s\S])"


def _shown(description: str, **schema: Any) -> Meta:
    """A description, and bounds that the core enforces and the schema shows."""
    return Meta(description=description, extra_json_schema=schema or None)


ScheduleId = Annotated[
    str,
    _shown(
        "Chosen by the caller, never used a second time, not even after deletion.",
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(?![\s\S])",
    ),
]
DeploymentId = Annotated[str, _shown("A deployment of the workflow server.", minLength=1, maxLength=256)]
Input = Annotated[
    dict[str, Annotated[Any, Meta(extra_json_schema=_BINDING)]],
    _shown('Each input of the workflow: a literal {"value": …} or a fact of the occurrence {"from": …}.'),
]
Overlap = Annotated[
    Literal["skip", "parallel"],
    _shown("Whether an occurrence may start while an earlier run of the schedule is unfinished."),
]
Misfire = Annotated[Literal["skip", "latest"], _shown("What becomes of instants that could not start in time.")]
ActiveMax = Annotated[int, _shown("Unfinished runs at once; needed with overlap parallel.", minimum=1, maximum=1000)]
Lateness = Annotated[
    int, _shown("Seconds that a start may be late, instead of the daemon's own.", minimum=1, maximum=86_400)
]
Steps = Annotated[
    int, _shown("Step budget of each run; the server must announce max-steps.", minimum=1, maximum=1_000_000)
]
HoldUnknown = Annotated[
    float,
    _shown("For how many seconds a run whose outcome is unknown keeps overlap closed.", minimum=0, maximum=7 * 86_400),
]
RunTimeout = Annotated[
    float, _shown("After how many seconds the wait for a run is given up.", minimum=1, maximum=366 * 86_400)
]
Revision = Annotated[int, Meta(ge=1, le=limits.INTEGER_MAX, description="The revision that the change was decided on.")]
Note = Annotated[str, Meta(max_length=limits.NOTE_CHARS_MAX, description="Why, in one printable line; shown by get.")]
NeededNote = Annotated[str, Meta(min_length=1, max_length=limits.NOTE_CHARS_MAX, description="Who decided it and why.")]
RunId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.RUN_ID_CHARS_MAX,
        pattern=_PRINTABLE,
        description="The daemon's id of a run (run-000001) or the workflow server's.",
    ),
]
Cursor = Annotated[
    str,
    Meta(max_length=limits.CURSOR_CHARS_MAX, description="next_cursor of the page before; without it, the first page."),
]


class _Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named params; an unknown one is refused."""


# --- triggers ---------------------------------------------------------------------------------------------------------


class CronTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="cron", forbid_unknown_fields=True):
    """Five fields (minute, hour, day of month, month, day of week), evaluated in a time zone."""

    expression: Annotated[str, _shown("Such as 0 9 * * 1-5.", maxLength=256)]
    timezone: Annotated[str, _shown("An IANA name, such as Europe/Berlin.")] = "UTC"


class OneShotTrigger(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="oneshot", forbid_unknown_fields=True
):
    """One moment in the future."""

    at: Annotated[str, _shown("RFC 3339 with an offset, such as 2030-01-31T09:00:00+01:00.", format="date-time")]


AnyTrigger = CronTrigger | OneShotTrigger


def instant_of(text: str, field: str) -> datetime:
    """The moment that an RFC 3339 text names, in UTC.  Raises `Rejected` InvalidTrigger, naming `field`."""
    try:
        at = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        raise _no_instant(field, "is not RFC 3339; write it like 2030-01-31T09:00:00+01:00") from None
    if at.tzinfo is None:
        raise _no_instant(field, "needs an offset, such as 2030-01-31T09:00:00+01:00 or 2030-01-31T08:00:00Z")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise _no_instant(field, "lies outside the years 1 to 9999 in UTC") from None


def _no_instant(field: str, reason: str) -> Rejected:
    return Rejected("InvalidTrigger", f"{field}: {reason}", field=field, reason=reason)


def _trigger_of(trigger: AnyTrigger) -> Trigger:
    if isinstance(trigger, CronTrigger):
        return Cron(expression=trigger.expression, timezone=trigger.timezone)
    return OneShot(at=instant_of(trigger.at, "trigger.at"))


# --- params -----------------------------------------------------------------------------------------------------------


class Nothing(_Params, frozen=True, kw_only=True):
    """No params."""


class Create(_Params, frozen=True, kw_only=True):
    """The definition of a new schedule."""

    schedule_id: ScheduleId
    deployment_id: DeploymentId
    trigger: AnyTrigger
    input: Input = {}
    overlap: Overlap = "skip"
    max_active_runs: ActiveMax | None = None
    misfire: Misfire = "skip"
    lateness_s: Lateness | None = None
    max_steps: Steps | None = None
    hold_unknown_s: HoldUnknown = 0.0
    run_timeout_s: RunTimeout | None = None

    def definition(self) -> Definition:
        """What the core checks and stores.  Raises `Rejected` InvalidTrigger for a one-shot's time that names no moment."""
        fields = msgspec.structs.asdict(self)
        fields["trigger"] = _trigger_of(self.trigger)
        return Definition(**fields)


class Update(_Params, frozen=True, kw_only=True):
    """The fields to change; null, like absence, means unchanged."""

    schedule_id: ScheduleId
    expected_revision: Revision
    deployment_id: DeploymentId | None = None
    trigger: AnyTrigger | None = None
    input: Input | None = None
    overlap: Overlap | None = None
    max_active_runs: ActiveMax | None = None
    misfire: Misfire | None = None
    lateness_s: Lateness | None = None
    max_steps: Steps | None = None
    hold_unknown_s: HoldUnknown | None = None
    run_timeout_s: RunTimeout | None = None

    def changes(self) -> dict[str, Any]:
        """The given fields as values of the core.  Raises `Rejected` like `Create.definition`."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        del given["schedule_id"], given["expected_revision"]
        if self.trigger is not None:
            given["trigger"] = _trigger_of(self.trigger)
        return given


class OneSchedule(_Params, frozen=True, kw_only=True):
    """Which schedule."""

    schedule_id: ScheduleId


class ScheduleWithNote(_Params, frozen=True, kw_only=True):
    """Which schedule, and why."""

    schedule_id: ScheduleId
    note: Note | None = None


class Unblock(_Params, frozen=True, kw_only=True):
    """Which schedule, and who takes responsibility."""

    schedule_id: ScheduleId
    note: NeededNote


class ListSchedules(_Params, frozen=True, kw_only=True):
    """Which schedules, and which page of them."""

    include_deleted: Annotated[bool, Meta(description="Show deleted schedules among the others.")] = False
    deployment_id: (
        Annotated[str, Meta(max_length=limits.FILTER_CHARS_MAX, description="Only of this deployment.")] | None
    ) = None
    state: (
        Annotated[ScheduleStatus, Meta(description="Only in this state; deleted needs no include_deleted.")] | None
    ) = None
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.SCHEDULES_PAGE_MAX)] = limits.SCHEDULES_PAGE


class ListOccurrences(_Params, frozen=True, kw_only=True):
    """Whose history, and which page of it."""

    schedule_id: ScheduleId
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.OCCURRENCES_PAGE_MAX)] = limits.OCCURRENCES_PAGE


class OneRun(_Params, frozen=True, kw_only=True):
    """Which run."""

    run_id: RunId


class ResumeRun(_Params, frozen=True, kw_only=True):
    """Which run, and the answer to its interrupt."""

    run_id: RunId
    resume_payload: Annotated[dict[str, Any], Meta(description="The answer to the interrupt.")] = {}
    resume_outcome: Annotated[
        str,
        Meta(min_length=1, max_length=limits.OUTCOME_CHARS_MAX, pattern=_PRINTABLE, description="How it was answered."),
    ] = "submitted"
    wait: Annotated[
        bool, Meta(description="Answer when the run stops again; false: as soon as the attempt is durable.")
    ] = True
    trace_range: (
        Annotated[
            dict[str, Any],
            Meta(description="Only for a run of the workflow server that is no scheduled one: passed on to it."),
        ]
        | None
    ) = None


class AbandonRun(_Params, frozen=True, kw_only=True):
    """Which run, and who gives it up."""

    run_id: RunId
    note: NeededNote


# --- results ----------------------------------------------------------------------------------------------------------


class SchedulePage(msgspec.Struct, frozen=True):
    """Schedules in order of id; `next_cursor` is null on the last page."""

    schedules: tuple[ScheduleView, ...]
    next_cursor: str | None


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One transition of an occurrence; a summary of many has `first_instant`, `last_instant`, `count` and `at_least`."""

    n: int
    schedule_id: str
    instant: datetime | None
    status: str
    at: datetime
    reason: str | None
    run_id: str | None
    server_run_id: str | None
    revision: int | None
    blocking_run_id: str | None
    detail: dict[str, Any] | None
    first_instant: datetime | UnsetType = UNSET
    last_instant: datetime | UnsetType = UNSET
    count: int | UnsetType = UNSET
    at_least: bool | UnsetType = UNSET


class OccurrencePage(msgspec.Struct, frozen=True):
    """Occurrences, oldest first; a held candidate is one `pending` row on top of the first page."""

    occurrences: tuple[Occurrence, ...]
    next_cursor: str | None


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """A run as far as it is known; what the workflow server says of a run that is not the daemon's has members of its own."""

    run_id: str
    status: str
    server_run_id: str | UnsetType | None = UNSET
    schedule_id: str | UnsetType = UNSET
    instant: datetime | UnsetType = UNSET
    output: Any = UNSET
    interrupt: Any = UNSET
    trace_count: int | UnsetType = UNSET
    source: str | UnsetType = UNSET


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """That the daemon is alive, and which one it is; `instance_id` changes with its process."""

    status: str
    store_root: str
    instance_id: str
    features: tuple[str, ...]
    version: str


def occurrence(row: Row) -> Occurrence:
    """A row of the history as callers see it: absent members as null, those of a summary only where there is one."""
    shown: dict[str, Any] = {
        "n": row.n,
        "schedule_id": row.schedule_id,
        "instant": row.instant,
        "status": row.status,
        "at": row.at,
        "reason": row.reason,
        "run_id": row.run_id,
        "server_run_id": row.server_run_id,
        "revision": row.revision,
        "blocking_run_id": row.blocking_run_id,
        "detail": row.detail,
    }
    if row.first_instant is not None:
        shown |= {
            "first_instant": row.first_instant,
            "last_instant": row.last_instant,
            "count": row.count,
            "at_least": row.at_least,
        }
    return Occurrence(**shown)
