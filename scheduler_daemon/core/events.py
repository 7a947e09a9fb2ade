"""What happened: the durable events, and the unjournalled notes about the live view.

Owns: one frozen struct per event of `DESIGN.md`, and the row that an event adds to an occurrence's history.  An event holds facts
and results of decisions, never a question: replaying it must need no calendar, no clock and no server.  Must never know: bytes,
sequence numbers of the journal, epochs of other processes; the store wraps events in records of its own.

`n` numbers the events of one schedule without gaps.  One event adds at most one row, and the row has the event's `n`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from scheduler_daemon.core.live import Answer, ServerView
from scheduler_daemon.core.model import (
    Checkpoint,
    Definition,
    Diagnostic,
    Json,
    Mark,
    Result,
    Row,
    RunLive,
    Status,
    Waiting,
)


class _Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag=True, tag_field="kind", omit_defaults=True):
    at: datetime


class _OfSchedule(_Event, frozen=True, kw_only=True):
    schedule_id: str
    n: int


# --- the whole daemon -------------------------------------------------------------------------------------------------


class EpochStarted(_Event, frozen=True, kw_only=True):
    """A process took the store over: whatever was running is ambiguous, and the live view is empty."""

    epoch: int


class Decided(_Event, frozen=True, kw_only=True):
    """Everything due at or before `until` is decided for good, for every schedule there is."""

    until: datetime


class ClockStepped(_Event, frozen=True, kw_only=True):
    """The wall clock moved by `step_s` seconds against the monotonic one."""

    step_s: float


# --- schedules --------------------------------------------------------------------------------------------------------


class ScheduleCreated(_OfSchedule, frozen=True, kw_only=True):
    """Revision 1; nothing due at or before `at` is its own."""

    definition: Definition


class ScheduleUpdated(_OfSchedule, frozen=True, kw_only=True):
    """`trigger_changed` consumes the time up to `at`."""

    definition: Definition
    revision: int
    trigger_changed: bool = False


class SchedulePaused(_OfSchedule, frozen=True, kw_only=True):
    """A span without admissions begins; what was due before it has been closed."""

    revision: int
    note: str | None = None


class ScheduleResumed(_OfSchedule, frozen=True, kw_only=True):
    """The span of the pause is over and consumed."""

    revision: int
    note: str | None = None


class ScheduleDeleted(_OfSchedule, frozen=True, kw_only=True):
    """It admits nothing for ever; runs and history live on."""

    revision: int
    note: str | None = None


class ScheduleBlocked(_OfSchedule, frozen=True, kw_only=True):
    """It admits nothing until an operator acts on this diagnostic, and on those before it."""

    revision: int
    diagnostic: Diagnostic


class ScheduleUnblocked(_OfSchedule, frozen=True, kw_only=True):
    """`rewound` sets the watermark back to `at` (it had run ahead of the clock); `taken` instants stay decided."""

    revision: int
    note: str
    rewound: bool = False
    taken: tuple[datetime, ...] = ()


# --- occurrences ------------------------------------------------------------------------------------------------------


class CandidateHeld(_OfSchedule, frozen=True, kw_only=True):
    """A due instant waits; there was no candidate before it, or its end was recorded first."""

    instant: datetime
    waiting: Waiting
    previous_instant: datetime | None = None


class OccurrenceClosed(_OfSchedule, frozen=True, kw_only=True):
    """One instant will never run; the held candidate goes with it when it is that instant."""

    instant: datetime
    status: Status
    reason: str
    revision: int
    blocking_run_id: str | None = None
    detail: dict[str, Json] | None = None


class RangeClosed(_OfSchedule, frozen=True, kw_only=True):
    """Many instants that share one fate and one row."""

    first_instant: datetime
    last_instant: datetime
    count: int
    status: Status
    reason: str
    revision: int
    at_least: bool = False
    blocking_run_id: str | None = None


# --- runs -------------------------------------------------------------------------------------------------------------


class RunAdmitted(_OfSchedule, frozen=True, kw_only=True):
    """The decision to run, with all that is pinned; nothing has left the process yet."""

    instant: datetime
    run_id: str
    number: int
    key: str
    revision: int
    deployment_id: str
    input: dict[str, Json]
    artifact_id: str | None = None
    artifact_version: int | None = None
    max_steps: int | None = None


class _OfRun(_OfSchedule, frozen=True, kw_only=True):
    run_id: str
    instant: datetime
    revision: int


class DispatchMarked(_OfRun, frozen=True, kw_only=True):
    """From here on the start may have left this process."""

    mark: Mark


class DispatchNotSent(_OfRun, frozen=True, kw_only=True):
    """Proven: no server got the first request under this mark."""

    reason: str


class CallLost(_OfRun, frozen=True, kw_only=True):
    """A start or resume was sent, or may have been, and its outcome is not known.

    `caller_gone`: whoever wanted the resume closed the connection, so it is never sent again, not even by the next process.
    """

    reason: str
    mark_kind: Literal["start", "resume"]
    caller_gone: bool = False


class AttemptMarked(_OfRun, frozen=True, kw_only=True):
    """An ACTIVE attempt: from here on the resume may have left this process.  `mark.checkpoint` is fresh."""

    mark: Mark


class AttemptReverted(_OfRun, frozen=True, kw_only=True):
    """The attempt had no effect: `not-sent` or `refused`."""

    reason: Literal["not-sent", "refused"]
    detail: dict[str, Json] | None = None


class RunInterrupted(_OfRun, frozen=True, kw_only=True):
    """The run stopped at an interrupt; a resume may continue it."""

    server_run_id: str
    checkpoint: Checkpoint
    interrupt: Json = None
    detail: dict[str, Json] | None = None


class CheckpointSeen(_OfRun, frozen=True, kw_only=True):
    """Somebody resumed the run at the server, and it is interrupted again."""

    checkpoint: Checkpoint
    interrupt: Json = None


class RunSettled(_OfRun, frozen=True, kw_only=True):
    """The final outcome.  `attempt` > 0 keeps that attempt ACTIVE for good, as the record that forbids a repeat."""

    status: Status
    reason: str | None = None
    server_run_id: str | None = None
    result: Result | None = None
    attempt: int = 0
    checkpoint: Checkpoint | None = None
    hold_until: datetime | None = None
    watch_until: datetime | None = None
    detail: dict[str, Json] | None = None


class OutcomeObserved(_OfSchedule, frozen=True, kw_only=True):
    """What the server showed later of a run that ended `outcome-unknown`; its row keeps its status."""

    run_id: str
    result: Result


Event = (
    EpochStarted
    | Decided
    | ClockStepped
    | ScheduleCreated
    | ScheduleUpdated
    | SchedulePaused
    | ScheduleResumed
    | ScheduleDeleted
    | ScheduleBlocked
    | ScheduleUnblocked
    | CandidateHeld
    | OccurrenceClosed
    | RangeClosed
    | RunAdmitted
    | DispatchMarked
    | DispatchNotSent
    | CallLost
    | AttemptMarked
    | AttemptReverted
    | RunInterrupted
    | CheckpointSeen
    | RunSettled
    | OutcomeObserved
)
"""Everything that the store keeps."""

ScheduleEvent = _OfSchedule
"""Every event that belongs to one schedule and has an `n`."""


# --- notes: folded like events, never stored --------------------------------------------------------------------------


class RunNoted(msgspec.Struct, frozen=True, gc=False):
    """A run's live part is replaced; `schedule_id` finds it."""

    schedule_id: str
    run_id: str
    live: RunLive


class ServerNoted(msgspec.Struct, frozen=True, gc=False):
    """What is known of the workflow server now."""

    server: ServerView


class AnswerNoted(msgspec.Struct, frozen=True, gc=False):
    """What is known of one deployment now."""

    answer: Answer


class ModeNoted(msgspec.Struct, frozen=True, gc=False):
    """Admission is off while draining or while the disk is full; no instant is consumed meanwhile."""

    draining: bool
    full: bool


Note = RunNoted | ServerNoted | AnswerNoted | ModeNoted


# --- rows -------------------------------------------------------------------------------------------------------------


def row_of(event: Event) -> Row | None:
    """The history row that this event adds, or None.  Source: spec section 6."""
    match event:
        case OccurrenceClosed():
            return _row(event, event.status, event.instant, reason=event.reason, revision=event.revision,
                        blocking_run_id=event.blocking_run_id, detail=event.detail)  # fmt: skip
        case RangeClosed():
            return _row(event, event.status, None, reason=event.reason, revision=event.revision, first_instant=event.first_instant,
                        last_instant=event.last_instant, count=event.count, at_least=event.at_least,
                        blocking_run_id=event.blocking_run_id)  # fmt: skip
        case RunAdmitted():
            return _row(event, "admitted", event.instant, run_id=event.run_id, revision=event.revision,
                        detail={"input": event.input, "deployment_id": event.deployment_id, "artifact_id": event.artifact_id,
                                "artifact_version": event.artifact_version, "key": event.key})  # fmt: skip
        case DispatchMarked():
            return _run_row(event, "running")
        case DispatchNotSent():
            return _run_row(event, "admitted", reason="not-sent", detail={"message": event.reason})
        case CallLost():
            return _run_row(
                event, "running", reason="ambiguous", detail={"message": event.reason, "call": event.mark_kind}
            )
        case AttemptMarked():
            return _run_row(event, "running", reason="resume", detail={"attempt": event.mark.attempt})
        case AttemptReverted():
            return _run_row(event, "interrupted", reason=event.reason, detail=event.detail)
        case RunInterrupted():
            detail = {**_rest(event.interrupt, event.checkpoint), **(event.detail or {})}
            return _run_row(event, "interrupted", server_run_id=event.server_run_id, detail=detail)
        case CheckpointSeen():
            return _run_row(event, "interrupted", reason="checkpoint", detail=_rest(event.interrupt, event.checkpoint))
        case RunSettled():
            return _run_row(
                event,
                event.status,
                reason=event.reason,
                server_run_id=event.server_run_id,
                detail=_settled_detail(event),
            )
        case _:
            return None


def _rest(interrupt: Json, checkpoint: Checkpoint) -> dict[str, Json]:
    return {"interrupt": interrupt, "trace_count": checkpoint.trace_count}


def _settled_detail(event: RunSettled) -> dict[str, Json] | None:
    result = msgspec.to_builtins(event.result) if event.result is not None else None
    detail = {**(event.detail or {}), **({"result": result} if result else {})}
    return detail or None


def _row(event: ScheduleEvent, status: Status, instant: datetime | None, **fields: Json) -> Row:
    return Row(n=event.n, schedule_id=event.schedule_id, status=status, at=event.at, instant=instant, **fields)


def _run_row(event: _OfRun, status: Status, **fields: Json) -> Row:
    return _row(event, status, event.instant, run_id=event.run_id, revision=event.revision, **fields)
