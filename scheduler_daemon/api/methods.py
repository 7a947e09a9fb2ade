"""The table of methods: name, params, result, and the call of the service that carries each out.

Owns: which methods exist, which of them change something, and which refusals each is documented with.  Must never know: HTTP, how
anything is decided or stored.

A schedule id is checked at this door for every method, so that a name which could be a path, or would break a terminal, is never
looked up, logged or echoed as an id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from scheduler_daemon.api import faults, wire
from scheduler_daemon.api.service import Service
from scheduler_daemon.core.queries import ScheduleView
from scheduler_daemon.core.validate import check_note, check_schedule_id
from scheduler_daemon.jsonrpc import Failure, Method

P = TypeVar("P", bound=msgspec.Struct)


class Entry(msgspec.Struct, frozen=True):
    """One method with what its documentation says: a sentence, and the application errors that a caller should expect."""

    method: Method
    summary: str
    codes: tuple[str, ...] = ()


def _entry(
    name: str,
    handler: Callable[[Service, P], Awaitable[object]],
    params: type[P],
    result: object,
    summary: str,
    *codes: str,
    mutates: bool = False,
) -> Entry:
    return Entry(Method(name, params, faults.told(handler), mutates, result), summary, codes)


# --- schedules --------------------------------------------------------------------------------------------------------


async def _create(service: Service, params: wire.Create) -> ScheduleView:
    check_schedule_id(params.schedule_id)
    return await service.create(params.definition())


async def _get(service: Service, params: wire.OneSchedule) -> ScheduleView:
    check_schedule_id(params.schedule_id)
    return service.get(params.schedule_id)


async def _list(service: Service, params: wire.ListSchedules) -> wire.SchedulePage:
    views, cursor = service.list(
        include_deleted=params.include_deleted,
        deployment_id=params.deployment_id,
        state=params.state,
        cursor=params.cursor,
        limit=params.limit,
    )
    return wire.SchedulePage(tuple(views), cursor)


async def _update(service: Service, params: wire.Update) -> ScheduleView:
    check_schedule_id(params.schedule_id)
    return await service.update(params.schedule_id, params.expected_revision, params.changes())


async def _pause(service: Service, params: wire.ScheduleWithNote) -> ScheduleView:
    _check(params)
    return await service.pause(params.schedule_id, params.note)


async def _resume(service: Service, params: wire.ScheduleWithNote) -> ScheduleView:
    _check(params)
    return await service.resume(params.schedule_id, params.note)


async def _delete(service: Service, params: wire.ScheduleWithNote) -> ScheduleView:
    _check(params)
    return await service.delete(params.schedule_id, params.note)


async def _unblock(service: Service, params: wire.Unblock) -> ScheduleView:
    _check(params)
    return await service.unblock(params.schedule_id, params.note)


async def _occurrences(service: Service, params: wire.ListOccurrences) -> wire.OccurrencePage:
    check_schedule_id(params.schedule_id)
    rows, cursor = service.occurrences(params.schedule_id, params.cursor, params.limit)
    return wire.OccurrencePage(tuple(wire.occurrence(row) for row in rows), cursor)


def _check(params: wire.ScheduleWithNote | wire.Unblock) -> None:
    check_schedule_id(params.schedule_id)
    check_note(params.note)


# --- runs and the daemon ----------------------------------------------------------------------------------------------


async def _inspect_run(service: Service, params: wire.OneRun) -> dict[str, Any]:
    return await service.inspect_run(params.run_id)


async def _resume_run(service: Service, params: wire.ResumeRun) -> dict[str, Any]:
    return await service.resume_run(
        params.run_id,
        params.resume_payload,
        params.resume_outcome,
        wait=params.wait,
        trace_range=params.trace_range,
    )


async def _abandon_run(service: Service, params: wire.AbandonRun) -> dict[str, Any]:
    check_note(params.note)
    return await service.abandon_run(params.run_id, params.note)


async def _health(service: Service, _params: wire.Nothing) -> dict[str, Any]:
    return service.health()


async def pass_on(service: Service, method: str, params: dict[str, Any]) -> object:
    """A method that is not ours: the server's, where the daemon is a gateway, and unknown otherwise."""
    if not method.startswith("workflow.") or method.startswith("workflow.schedules."):
        raise Failure(METHOD_NOT_FOUND, "Method not found")
    return await faults.told(lambda host, given: host.forward(method, given))(service, params)


METHOD_NOT_FOUND: Final = -32601
_DEFINITION: Final = (
    "InvalidTrigger",
    "InvalidInput",
    "InvalidPolicy",
    "Unsupported",
    "DeploymentNotFound",
    "DeploymentUnrunnable",
    "ServerUnavailable",
)
_ONE: Final = ("InvalidScheduleId", "ScheduleNotFound")
_CHANGE: Final = ("Draining", "StorageFull")
"""What may stand in the way of any change: the daemon is about to leave, or cannot write it down."""

TABLE: Final = (
    _entry("workflow.schedules.create", _create, wire.Create, ScheduleView,
           "Create a schedule, after the workflow server agreed to its deployment and input.",
           "InvalidScheduleId", "ScheduleExists", *_DEFINITION, *_CHANGE, mutates=True),
    _entry("workflow.schedules.get", _get, wire.OneSchedule, ScheduleView,
           "Everything about one schedule, with its next five instants.", *_ONE),
    _entry("workflow.schedules.list", _list, wire.ListSchedules, wire.SchedulePage,
           "Schedules in order of id, page by page.", "InvalidCursor"),
    _entry("workflow.schedules.update", _update, wire.Update, ScheduleView,
           "Change the given fields for future admissions.",
           *_ONE, "ScheduleDeleted", "ScheduleBlocked", "RevisionConflict", *_DEFINITION, *_CHANGE, mutates=True),
    _entry("workflow.schedules.pause", _pause, wire.ScheduleWithNote, ScheduleView,
           "Stop admission; runs go on, and the paused span is not replayed.",
           *_ONE, "ScheduleDeleted", "InvalidInput", *_CHANGE, mutates=True),
    _entry("workflow.schedules.resume", _resume, wire.ScheduleWithNote, ScheduleView,
           "Admit again, from the next future instant on.",
           *_ONE, "ScheduleDeleted", "ScheduleBlocked", "InvalidInput", *_CHANGE, mutates=True),
    _entry("workflow.schedules.delete", _delete, wire.ScheduleWithNote, ScheduleView,
           "Delete softly: runs and history stay, the id is never free again.",
           *_ONE, "InvalidInput", *_CHANGE, mutates=True),
    _entry("workflow.schedules.unblock", _unblock, wire.Unblock, ScheduleView,
           "Take responsibility for a blocked schedule, and let it admit again.",
           *_ONE, "ScheduleDeleted", "InvalidInput", *_CHANGE, mutates=True),
    _entry("workflow.schedules.occurrences.list", _occurrences, wire.ListOccurrences, wire.OccurrencePage,
           "The history of one schedule, oldest first.", *_ONE, "InvalidCursor", "CursorExpired"),
    _entry("workflow.runs.inspect", _inspect_run, wire.OneRun, wire.RunState,
           "One run, by the daemon's id or the workflow server's.", "RunNotFound", "ServerUnavailable"),
    _entry("workflow.runs.resume", _resume_run, wire.ResumeRun, wire.RunState,
           "Answer an interrupted run; closing the connection while it waits cancels the resume.",
           "RunNotFound", "RunNotResumable", "ResumeInProgress", "AttemptAmbiguous", "ScheduleBlocked", "ServerUnavailable",
           *_CHANGE, mutates=True),
    _entry("workflow.runs.abandon", _abandon_run, wire.AbandonRun, wire.RunState,
           "Give up an interrupted run that nobody will answer; the workflow server is not touched.",
           "RunNotFound", "RunNotResumable", "AttemptAmbiguous", "ScheduleBlocked", "InvalidInput", *_CHANGE, mutates=True),
    _entry("workflow.health", _health, wire.Nothing, wire.Health,
           "That the daemon is alive, and which one it is; GET /readyz says whether it is scheduling."),
)  # fmt: skip
"""Every method but `rpc.discover`, which describes them and is made from this."""
