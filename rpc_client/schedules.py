"""`App`: the scheduler daemon's methods for programs, with results returned and refusals raised.

Owns: the daemon's method and parameter names as a Python API, and the retries that are safe.
Must never know: how the daemon decides, the HTTP library.

Invariants
- A call is repeated only after `NotSent` of a kind that passes by itself, and a bounded number of times. An ambiguous end
  is raised, never retried: the caller looks (`get_schedule`, `inspect_run`) and decides.
- A parameter that is None is not sent. The daemon reads an absent field as "default" at create and "unchanged" at update.

Payloads are the daemon's JSON, decoded: dicts with the members that its `rpc.discover` document describes. Instants are
RFC 3339 strings in UTC, durations are seconds.

Every method raises
- `Rejected`: the request is at fault (`ScheduleNotFound`, `RevisionConflict`, `InvalidTrigger`, `InvalidParams`, ...);
- `Unavailable`: nothing was done, try later (daemon not reached, `ServerUnavailable`, `Draining`, `StorageFull`; the last
  two can come from whatever changes something, and are not listed again below);
- `AmbiguousOutcome`: it may have been done; look first.
What stands under "Codes" of a method are the words in `code` that it has beside those of every method; `data` then has a
`hint`, and what else helps (`field` and `reason`, `revision`, `diagnostics`, `violations`).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, assert_never, cast

from rpc_client.endpoint import TokenSource
from rpc_client.errors import (
    Ambiguous,
    AmbiguousOutcome,
    Answered,
    Ending,
    NotSent,
    Refused,
    Unavailable,
    refusal,
)
from rpc_client.transport import Limits, Transport

Payload: TypeAlias = dict[str, Any]

_RETRY_DELAYS_S = (0.1, 0.4, 1.6)
"""Waits before each repetition: long enough for a daemon that is just being restarted, short enough for a person."""
_TOO_MANY_REQUESTS = 429


class App:
    """A client of one scheduler daemon.

    `url` is `http://host:port`, `https://…` or `http+unix://%2Frun%2F…sock`; `socket_path` reaches it by a unix socket
    instead. `token` or `token_file` as the daemon demands. `timeout_s` bounds each call but `resume_run` with `wait`.
    Use it with `async with`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8766/rpc",
        *,
        socket_path: str | None = None,
        token: str | TokenSource | None = None,
        token_file: Path | str | None = None,
        ca_file: str | None = None,
        timeout_s: float = 30.0,
        limits: Limits | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._transport = Transport(
            url, socket_path=socket_path, token=token, token_file=token_file, ca_file=ca_file, limits=limits
        )

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. May be called more than once."""
        await self._transport.close()

    async def create_schedule(
        self,
        *,
        schedule_id: str,
        deployment_id: str,
        trigger: Mapping[str, Any],
        input: Mapping[str, Mapping[str, Any]] | None = None,  # noqa: A002  the daemon's own name for it
        overlap: str | None = None,
        max_active_runs: int | None = None,
        misfire: str | None = None,
        lateness_s: int | None = None,
        max_steps: int | None = None,
        hold_unknown_s: float | None = None,
        run_timeout_s: float | None = None,
    ) -> Payload:
        """Create a schedule under an id that was never used before; answers what `get_schedule` does, and `warnings`.

        `trigger` is `{"kind": "oneshot", "at": …}` or `{"kind": "cron", "expression": …, "timezone": …}`; `input` maps
        names to `{"value": …}` or `{"from": "occurrence.instant"}`. `overlap` is `skip` or `parallel` (which needs
        `max_active_runs`, 1 to 1000), `misfire` is `skip` or `latest`. `lateness_s` (whole, 1 to 86,400), `hold_unknown_s`
        and `run_timeout_s` are seconds, `max_steps` counts step executions.
        After `AmbiguousOutcome` ask `get_schedule`: a second create of the same id is `ScheduleExists` in any case.

        Codes: `InvalidScheduleId`, `ScheduleExists`, `InvalidTrigger`, `InvalidInput`, `InvalidPolicy`, `Unsupported`,
        `DeploymentNotFound`, `DeploymentUnrunnable`, `ServerUnavailable`.
        """
        return await self._change(
            "workflow.schedules.create",
            schedule_id=schedule_id,
            deployment_id=deployment_id,
            trigger=trigger,
            input=input,
            overlap=overlap,
            max_active_runs=max_active_runs,
            misfire=misfire,
            lateness_s=lateness_s,
            max_steps=max_steps,
            hold_unknown_s=hold_unknown_s,
            run_timeout_s=run_timeout_s,
        )

    async def get_schedule(self, schedule_id: str) -> Payload:
        """Definition, `revision`, `state`, `note`, watermark, the next five instants, candidate, active and ambiguous
        runs, diagnostics.

        Codes: `InvalidScheduleId`, `ScheduleNotFound`.
        """
        return await self._look("workflow.schedules.get", schedule_id=schedule_id)

    async def list_schedules(
        self,
        *,
        include_deleted: bool | None = None,
        deployment_id: str | None = None,
        state: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Payload:
        """One page, `{"schedules": […], "next_cursor": str | None}`; `limit` is 1 to 1000, deleted ones only if asked.

        Codes: `InvalidCursor`.
        """
        return await self._look(
            "workflow.schedules.list",
            include_deleted=include_deleted,
            deployment_id=deployment_id,
            state=state,
            cursor=cursor,
            limit=limit,
        )

    async def schedules(
        self,
        *,
        include_deleted: bool | None = None,
        deployment_id: str | None = None,
        state: str | None = None,
        page_limit: int | None = None,
    ) -> AsyncIterator[Payload]:
        """Every schedule that matches, page after page."""
        cursor = None
        while True:
            page = await self.list_schedules(
                include_deleted=include_deleted,
                deployment_id=deployment_id,
                state=state,
                cursor=cursor,
                limit=page_limit,
            )
            for schedule in page["schedules"]:
                yield schedule
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def update_schedule(
        self,
        *,
        schedule_id: str,
        expected_revision: int,
        deployment_id: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        input: Mapping[str, Mapping[str, Any]] | None = None,  # noqa: A002  the daemon's own name for it
        overlap: str | None = None,
        max_active_runs: int | None = None,
        misfire: str | None = None,
        lateness_s: int | None = None,
        max_steps: int | None = None,
        hold_unknown_s: float | None = None,
        run_timeout_s: float | None = None,
    ) -> Payload:
        """Change the given fields for future admissions; units as in `create_schedule`; answers the new payload.

        `expected_revision` is the `revision` that the change was decided on: when somebody was faster the code is
        `RevisionConflict`, with the present one in `data`.

        Codes: `InvalidScheduleId`, `ScheduleNotFound`, `ScheduleDeleted`, `ScheduleBlocked`, `RevisionConflict`,
        `InvalidTrigger`, `InvalidInput`, `InvalidPolicy`, `Unsupported`, `DeploymentNotFound`, `DeploymentUnrunnable`,
        `ServerUnavailable`.
        """
        return await self._change(
            "workflow.schedules.update",
            schedule_id=schedule_id,
            expected_revision=expected_revision,
            deployment_id=deployment_id,
            trigger=trigger,
            input=input,
            overlap=overlap,
            max_active_runs=max_active_runs,
            misfire=misfire,
            lateness_s=lateness_s,
            max_steps=max_steps,
            hold_unknown_s=hold_unknown_s,
            run_timeout_s=run_timeout_s,
        )

    async def pause_schedule(self, schedule_id: str, *, note: str | None = None) -> Payload:
        """Stop admission; the paused span is consumed. Idempotent. Active runs go on.

        Codes: `InvalidScheduleId`, `ScheduleNotFound`, `ScheduleDeleted`, `InvalidInput` (the note).
        """
        return await self._change("workflow.schedules.pause", schedule_id=schedule_id, note=note)

    async def resume_schedule(self, schedule_id: str, *, note: str | None = None) -> Payload:
        """Admit again, from the next future instant on. Idempotent.

        Codes: `InvalidScheduleId`, `ScheduleNotFound`, `ScheduleDeleted`, `ScheduleBlocked`, `InvalidInput`.
        """
        return await self._change("workflow.schedules.resume", schedule_id=schedule_id, note=note)

    async def delete_schedule(self, schedule_id: str, *, note: str | None = None) -> Payload:
        """Delete softly: runs and history stay, the id is never free again. Idempotent.

        Codes: `InvalidScheduleId`, `ScheduleNotFound`, `InvalidInput` (the note).
        """
        return await self._change("workflow.schedules.delete", schedule_id=schedule_id, note=note)

    async def unblock_schedule(self, schedule_id: str, *, note: str) -> Payload:
        """Accept what the diagnostics of a blocked schedule say and let it admit again; `note` says who and why.

        Codes: `InvalidScheduleId`, `ScheduleNotFound`, `ScheduleDeleted`, `InvalidInput` (the note).
        """
        return await self._change("workflow.schedules.unblock", schedule_id=schedule_id, note=note)

    async def list_schedule_occurrences(
        self, schedule_id: str, *, cursor: str | None = None, limit: int | None = None
    ) -> Payload:
        """One page of history, oldest first: `{"occurrences": […], "next_cursor": str | None}`; `limit` is 1 to 100.

        While a candidate is held the first page begins with a `pending` row and may hold one row more than `limit`.

        Codes: `InvalidScheduleId`, `ScheduleNotFound`, `InvalidCursor`, `CursorExpired` (retention has passed the cursor).
        """
        return await self._look(
            "workflow.schedules.occurrences.list", schedule_id=schedule_id, cursor=cursor, limit=limit
        )

    async def occurrences(self, schedule_id: str, *, page_limit: int | None = None) -> AsyncIterator[Payload]:
        """Every row of a schedule's history, oldest first, page after page."""
        cursor = None
        while True:
            page = await self.list_schedule_occurrences(schedule_id, cursor=cursor, limit=page_limit)
            for row in page["occurrences"]:
                yield row
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def inspect_run(self, run_id: str) -> Payload:
        """A scheduled run by the daemon's id or the server's: status, output, interrupt, both ids.

        Codes: `RunNotFound`, `ServerUnavailable`; a server's own code for a run that is not scheduled.
        """
        return await self._look("workflow.runs.inspect", run_id=run_id)

    async def resume_run(
        self,
        run_id: str,
        *,
        resume_payload: Mapping[str, Any] | None = None,
        resume_outcome: str | None = None,
        wait: bool = True,
    ) -> Payload:
        """Answer an interrupted run. With `wait` it returns when the run stops again, however long that takes; without,
        as soon as the attempt is durable.

        Leaving while it waits (cancellation, a lost connection) cancels the resume: the run is then judged by one look
        at the server and may end `failed`, outcome unknown.

        Codes: `RunNotFound`, `RunNotResumable`, `ResumeInProgress`, `AttemptAmbiguous`, `ScheduleBlocked`,
        `ServerUnavailable`; a server's own code where it refused the resume.
        """
        ending = await self._settled(
            "workflow.runs.resume",
            {
                "run_id": run_id,
                "resume_payload": resume_payload,
                "resume_outcome": resume_outcome,
                "wait": None if wait else False,
            },
            blocking=True,
            timeout_s=None if wait else self._timeout_s,
        )
        return _result(ending)

    async def abandon_run(self, run_id: str, *, note: str) -> Payload:
        """Give up an interrupted run that nobody will answer: it is `failed`, and the server is not touched.

        Codes: `RunNotFound`, `RunNotResumable`, `AttemptAmbiguous`, `ScheduleBlocked`, `InvalidInput` (the note).
        """
        return await self._change("workflow.runs.abandon", run_id=run_id, note=note)

    async def health(self) -> Payload:
        """Status, store root, instance id, features, version of the daemon."""
        return await self._look("workflow.health")

    async def discover(self) -> Payload:
        """The daemon's OpenRPC document."""
        return await self._look("rpc.discover")

    async def _look(self, method: str, **params: Any) -> Payload:
        return _result(await self._settled(method, params, blocking=False, timeout_s=self._timeout_s))

    async def _change(self, method: str, **params: Any) -> Payload:
        return _result(await self._settled(method, params, blocking=True, timeout_s=self._timeout_s))

    async def _settled(
        self, method: str, params: Mapping[str, Any], *, blocking: bool, timeout_s: float | None
    ) -> Ending:
        given = {name: value for name, value in params.items() if value is not None}
        for delay_s in (*_RETRY_DELAYS_S, None):
            ending = await self._transport.call(method, given, blocking=blocking, timeout_s=timeout_s)
            if delay_s is None or not _passes_by_itself(ending):
                return ending
            await asyncio.sleep(delay_s)
        raise AssertionError("unreachable: the last round returns")


def _passes_by_itself(ending: Ending) -> bool:
    return isinstance(ending, NotSent) and (ending.server_down or ending.http_status == _TOO_MANY_REQUESTS)


def _result(ending: Ending) -> Payload:
    match ending:
        case Answered():
            if isinstance(ending.result, dict):
                return cast("Payload", ending.result)
            raise AmbiguousOutcome("UnexpectedResult", "the result is not an object: this is no scheduler daemon")
        case Refused():
            raise refusal(ending)
        case NotSent():
            data = {} if ending.http_status is None else {"http_status": ending.http_status}
            raise Unavailable("NotReached", ending.reason, data)
        case Ambiguous():
            raise AmbiguousOutcome("OutcomeUnknown", ending.reason)
        case _:
            assert_never(ending)
