"""What goes into the core and what it asks for: commands, observations, effects, and the plan that ties them.

Owns: the vocabulary between the pure core and the runtime.  Must never know: who carries an effect out, or how.

A command comes from a caller and is answered by the plan's `reply` or refused with `Rejected`.  An observation is what came back
from an effect, or from the machine; it is never refused, only found stale and dropped.  Every effect carries a `seq`, and the
observation about it carries the same one: that is how an answer to an old question is recognised.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from scheduler_daemon.core.events import Event
from scheduler_daemon.core.model import Definition, Diagnostic, Json, Result, ServerFacts


class Rejected(Exception):
    """A caller's fault, told with the code of spec section 11 and data that says what to do."""

    def __init__(self, code: str, message: str, **data: Json) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


# --- commands ---------------------------------------------------------------------------------------------------------


class Preflight(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the server said about a deployment when it was asked for a caller or ahead of an instant.

    `known` False: no such deployment.  `diagnostics` empty: runnable.
    """

    deployment_id: str
    known: bool = True
    diagnostics: tuple[Json, ...] = ()
    artifact_id: str | None = None
    artifact_version: int | None = None
    input_schema: dict[str, Json] | None = None


class Create(msgspec.Struct, frozen=True, gc=False):
    """`preflight` and `features` are what the server was asked for this definition."""

    definition: Definition
    preflight: Preflight
    features: tuple[str, ...] = ()


class Update(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`changes` holds only the fields given; the server was asked for the definition they lead to."""

    schedule_id: str
    expected_revision: int
    changes: dict[str, Any]
    preflight: Preflight
    features: tuple[str, ...] = ()


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Stop admission, for a time."""

    schedule_id: str
    note: str | None = None


class Resume(msgspec.Struct, frozen=True, gc=False):
    """Admit again, from the next instant on."""

    schedule_id: str
    note: str | None = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Stop admission for ever."""

    schedule_id: str
    note: str | None = None


class Unblock(msgspec.Struct, frozen=True, gc=False):
    """`rowed` are the instants after now that have a row of their own; they are not admitted again."""

    schedule_id: str
    note: str
    rowed: tuple[datetime, ...] = ()


class Block(msgspec.Struct, frozen=True, gc=False):
    """The store found damage that belongs to this schedule."""

    schedule_id: str
    diagnostic: Diagnostic


class ResumeRun(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`fresh` is the inspection made just before; it becomes the attempt's checkpoint."""

    run_id: str
    payload: dict[str, Json]
    outcome: str
    fresh: Result


class AbandonRun(msgspec.Struct, frozen=True, gc=False):
    """Nobody will answer this interrupt."""

    run_id: str
    note: str


class Drain(msgspec.Struct, frozen=True, gc=False):
    """Stop admitting; the last thing decided is everything due by now."""


class AcceptRestore(msgspec.Struct, frozen=True, gc=False):
    """An operator accepted that this store is an older copy."""


Command = Create | Update | Pause | Resume | Delete | Unblock | Block | ResumeRun | AbandonRun | Drain | AcceptRestore


# --- effects ----------------------------------------------------------------------------------------------------------


class StartCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Send `workflow.runs.start`.  `repeat` says that the same request under the same key went out before."""

    seq: int
    run_id: str
    schedule_id: str
    instant: datetime
    deployment_id: str
    input: dict[str, Json]
    key: str
    max_steps: int | None
    timeout_s: float | None
    repeat: bool = False


class ResumeCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Send `workflow.runs.resume`.  `repeat` as in `StartCall`."""

    seq: int
    run_id: str
    schedule_id: str
    attempt: int
    server_run_id: str
    payload: dict[str, Json]
    outcome: str
    key: str
    timeout_s: float | None
    repeat: bool = False


class InspectRun(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Ask the server for one run.  `attempt` is echoed, so that an answer about an older attempt is recognised.

    `watch`: only news of a run that holds no slot is asked for, and whatever decides about one goes first.
    """

    seq: int
    run_id: str
    schedule_id: str
    server_run_id: str
    attempt: int
    watch: bool = False


class ListStopped(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Ask for the ids of runs of one deployment that stopped at or after `since`; a help for people, never a proof."""

    seq: int
    run_id: str
    schedule_id: str
    deployment_id: str
    since: datetime


class AskPreflight(msgspec.Struct, frozen=True, gc=False):
    """Ask whether a deployment is runnable, and for the schema of its input."""

    seq: int
    deployment_id: str


class Probe(msgspec.Struct, frozen=True, gc=False):
    """Ask for health; with `first_contact` also the checks that spec section 10 demands before anything is admitted."""

    seq: int
    first_contact: bool


class CancelCall(msgspec.Struct, frozen=True, gc=False):
    """End the wait for an open start or resume; its ending comes back as an observation."""

    seq: int
    run_id: str
    reason: str


Effect = StartCall | ResumeCall | InspectRun | ListStopped | AskPreflight | Probe | CancelCall


# --- observations -----------------------------------------------------------------------------------------------------


class CallAnswered(msgspec.Struct, frozen=True, gc=False):
    """The server's result of a start or resume; `status` unrunnable has no server run id."""

    seq: int
    schedule_id: str
    run_id: str
    result: Result


class CallRefused(msgspec.Struct, frozen=True, gc=False):
    """A JSON-RPC error, or HTTP 413 as code 413."""

    seq: int
    schedule_id: str
    run_id: str
    code: int
    message: str
    data: Json = None


class CallNotSent(msgspec.Struct, frozen=True, gc=False):
    """Proven not to have reached the method; `server_down` when no connection came about."""

    seq: int
    schedule_id: str
    run_id: str
    reason: str
    server_down: bool


class CallLostSight(msgspec.Struct, frozen=True, gc=False):
    """Sent, or maybe sent, and no outcome.  `caller_gone`: the resume's caller closed its connection.

    `beyond`: the server answered, beyond what is read here, and would answer the same again.
    """

    seq: int
    schedule_id: str
    run_id: str
    reason: str
    caller_gone: bool = False
    beyond: bool = False


class RunInspected(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to `InspectRun`: a result, unknown to the server (`known` False), or `failed` to answer.

    None of the three: the server answered, and what it says cannot be read as news of this run.
    """

    seq: int
    schedule_id: str
    run_id: str
    attempt: int
    known: bool = True
    result: Result | None = None
    failed: str | None = None


class StoppedListed(msgspec.Struct, frozen=True, gc=False):
    """The answer to `ListStopped`: what could be had of it."""

    seq: int
    schedule_id: str
    run_id: str
    server_run_ids: tuple[str, ...]


class PreflightAnswered(msgspec.Struct, frozen=True, gc=False):
    """`asked_at` is when the question left: the answer judges instants due before it.  `preflight` None: it failed."""

    seq: int
    deployment_id: str
    asked_at: datetime
    preflight: Preflight | None
    failed: str | None = None


class ServerSeen(msgspec.Struct, frozen=True, gc=False):
    """Health answered.  `refusal` is why nothing may be admitted although it does."""

    seq: int
    facts: ServerFacts
    refusal: str | None = None


class ServerMissed(msgspec.Struct, frozen=True, gc=False):
    """Health did not answer, or a connection failed.  `seq` is 0 when no probe was meant."""

    seq: int
    reason: str


class Stepped(msgspec.Struct, frozen=True, gc=False):
    """The wall clock was set: by `step_s` seconds against the monotonic one."""

    step_s: float


class StoreRoom(msgspec.Struct, frozen=True, gc=False):
    """The disk is full, or has room again."""

    full: bool


Observation = (
    CallAnswered
    | CallRefused
    | CallNotSent
    | CallLostSight
    | RunInspected
    | StoppedListed
    | PreflightAnswered
    | ServerSeen
    | ServerMissed
    | Stepped
    | StoreRoom
)


# --- the plan ---------------------------------------------------------------------------------------------------------


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """A decision worth a log record: `action` is of the closed list in `runtime/logs.py`."""

    action: str
    level: Literal["info", "warning", "error"]
    fields: dict[str, Json]


class Plan(msgspec.Struct):
    """One decision: `events` become durable in one write, then `effects` leave and `reply` is given."""

    events: list[Event] = msgspec.field(default_factory=list)
    effects: list[Effect] = msgspec.field(default_factory=list)
    logs: list[LogLine] = msgspec.field(default_factory=list)
    reply: Any = None
