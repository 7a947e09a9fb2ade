"""The scheduler as its callers see it: every method of the face, over one engine.

Owns: what has to be asked of the server or the store before or after a command.
Must never know: JSON-RPC, HTTP, configuration files, the life of the parts (`host.py`).

Reads see committed state.  A method that changes something returns after its change is durable.  All refusals are
`core.commands.Rejected`; what the workflow server refused is passed on as `ServerRefused`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from rpc_client.endpoint import is_header_safe
from rpc_client.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Ambiguous,
    Answered,
    NotSent,
    Refused,
)
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import handle as handling
from scheduler_daemon.core import queries
from scheduler_daemon.core.commands import Preflight, Rejected
from scheduler_daemon.core.model import Definition, Row, Run
from scheduler_daemon.core.queries import ScheduleView
from scheduler_daemon.errors import ServerRefused
from scheduler_daemon.runtime import cursors
from scheduler_daemon.runtime.figures import Figures
from scheduler_daemon.runtime.host import Host
from scheduler_daemon.runtime.inspection import OURS, Inspection
from scheduler_daemon.runtime.questions import Unanswered
from scheduler_daemon.runtime.readiness import Check
from scheduler_daemon.store.errors import CursorExpired

CONTACT_S, CONTACT_LOOK_S = 6.0, 0.02
"""How long a resume waits for the health of a server that answers it, and how often it looks."""


class Service:
    """The methods of a host that was started."""

    def __init__(self, host: Host, key: str | None = None) -> None:
        self._host = host
        self._key = key
        self._inspection = Inspection(host)

    def under(self, key: str) -> Service:
        """The same for a call that came with this idempotency key, which goes with it wherever it is passed on to."""
        return Service(self._host, key)

    # --- schedules ---

    async def create(self, definition: Definition) -> ScheduleView:
        """Store a new schedule, after the server agreed to it."""
        handling.precheck_create(self._host.state.draft(self._host.clock.now()), definition)
        preflight = await self._ask_preflight(definition)
        return await self._host.engine.submit(cmd.Create(definition, preflight, self._features(definition)))

    async def update(self, schedule_id: str, expected_revision: int, changes: dict[str, Any]) -> ScheduleView:
        """Change the fields given; the server is asked about the definition that they lead to."""
        draft = self._host.state.draft(self._host.clock.now())
        definition = handling.precheck_update(draft, schedule_id, expected_revision, changes)
        preflight = await self._ask_preflight(definition)
        return await self._host.engine.submit(
            cmd.Update(
                schedule_id=schedule_id,
                expected_revision=expected_revision,
                changes=changes,
                preflight=preflight,
                features=self._features(definition),
            )
        )

    async def _ask_preflight(self, definition: Definition) -> Preflight:
        try:
            return await self._host.questions.agreed(definition.deployment_id, self._host.clock.now().mono)
        except Unanswered as unanswered:
            raise _unavailable(unanswered.reason) from None

    def _features(self, definition: Definition) -> tuple[str, ...]:
        facts = self._host.state.globals.server.facts
        if facts is None and definition.max_steps is not None:
            raise _unavailable(self._host.state.globals.server.reason)
        return facts.features if facts is not None else ()

    async def pause(self, schedule_id: str, note: str | None) -> ScheduleView:
        """Stop admission; the span until the resume is consumed and never replayed."""
        return await self._host.engine.submit(cmd.Pause(schedule_id, note))

    async def resume(self, schedule_id: str, note: str | None) -> ScheduleView:
        """Admit again, from the next future instant."""
        return await self._host.engine.submit(cmd.Resume(schedule_id, note))

    async def delete(self, schedule_id: str, note: str | None) -> ScheduleView:
        """Stop admission for ever; runs and history live on."""
        return await self._host.engine.submit(cmd.Delete(schedule_id, note))

    async def unblock(self, schedule_id: str, note: str) -> ScheduleView:
        """An operator takes responsibility for a blocked schedule, or for a watermark that ran ahead of the clock."""
        rowed = (
            self._host.store.rowed_after(schedule_id, self._host.clock.now().at)
            if schedule_id in self._host.state.schedules
            else ()
        )
        return await self._host.engine.submit(cmd.Unblock(schedule_id, note, rowed))

    def get(self, schedule_id: str) -> ScheduleView:
        """Everything about one schedule, as committed."""
        if schedule_id not in self._host.state.schedules:
            raise Rejected("ScheduleNotFound", f"no schedule {schedule_id!r}", schedule_id=schedule_id)
        return queries.schedule_view(self._host.state, schedule_id, now=self._host.clock.now())

    def list(
        self, *, include_deleted: bool, deployment_id: str | None, state: str | None, cursor: str | None, limit: int
    ) -> tuple[list[ScheduleView], str | None]:
        """One page in order of id; the cursor stays valid while schedules come and go."""
        after = cursors.decode("schedules", cursor, 1)[0] if cursor is not None else None
        ids, last = queries.list_ids(
            self._host.state,
            after=after,
            limit=limit,
            include_deleted=include_deleted,
            deployment_id=deployment_id,
            state=state,
        )
        now = self._host.clock.now()
        views = [queries.schedule_view(self._host.state, schedule_id, now=now) for schedule_id in ids]
        return views, cursors.encode("schedules", last) if last is not None else None

    def occurrences(self, schedule_id: str, cursor: str | None, limit: int) -> tuple[list[Row], str | None]:
        """One page of history, oldest first; on the first page a held candidate stands on top as `pending`."""
        schedule = self._host.state.schedules.get(schedule_id)
        if schedule is None:
            raise Rejected("ScheduleNotFound", f"no schedule {schedule_id!r}", schedule_id=schedule_id)
        after_n = None if cursor is None else self._after_n(schedule_id, cursor)
        try:
            page = self._host.store.page(schedule_id, after_n, limit)
        except CursorExpired:
            raise Rejected(
                "CursorExpired", "cursor: rows after it were dropped by retention; start again without it"
            ) from None
        rows = [self._with_observed(row) for row in page.rows]
        pending = queries.pending_row(self._host.state, schedule) if cursor is None else None
        following = cursors.encode("occurrences", schedule_id, str(page.next_n)) if page.next_n is not None else None
        return ([pending, *rows] if pending is not None else rows), following

    def _after_n(self, schedule_id: str, cursor: str) -> int:
        found, after_n = cursors.decode("occurrences", cursor, 2)
        if found != schedule_id or not after_n.isdecimal():
            raise Rejected("InvalidCursor", "cursor: belongs to another schedule", field="cursor")
        return int(after_n)

    def _with_observed(self, row: Row) -> Row:
        """What the server showed later of a run that ended unknown stands beside its row; the status stays."""
        unknown = self._host.state.unknown.get(row.run_id or "") if row.reason == "outcome-unknown" else None
        if unknown is None or unknown.observed is None:
            return row
        detail = {**(row.detail or {}), "observed_outcome": msgspec.to_builtins(unknown.observed)}
        return msgspec.structs.replace(row, detail=detail)

    # --- runs ---

    async def inspect_run(self, run_id: str) -> dict[str, Any]:
        """One run, by either id; an id that is neither ours nor of our form is asked of the server unchanged."""
        return await self._inspection.inspect(run_id)

    async def resume_run(
        self,
        run_id: str,
        payload: dict[str, Any],
        outcome: str,
        *,
        wait: bool,
        trace_range: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Resume an interrupted run under a durable attempt.

        A cancellation of the waiting caller means that it went away: the forwarded call is cut off, and exactly this run is
        then judged by the engine, once.
        """
        try:
            run = self._resumable(run_id)
        except Rejected as rejected:
            if rejected.code == "RunNotFound" and self._host.options.gateway and not OURS.match(run_id):
                theirs = {"run_id": run_id, "resume_payload": payload, "resume_outcome": outcome}
                wanted = {} if trace_range is None else {"trace_range": trace_range}
                return await self.forward("workflow.runs.resume", theirs | wanted)
            raise
        if trace_range is not None:
            told = (
                "trace_range: a scheduled run is shown without its trace; ask workflow.runs.trace for its server_run_id"
            )
            raise Rejected("Unsupported", told, field="trace_range", server_run_id=run.server_run_id)
        fresh = await self._inspection.fresh(run)
        if not self._known():
            await self._contact()
            fresh = await self._inspection.fresh(run)
        marked = self._host.engine.submit(
            cmd.ResumeRun(run_id=run.run_id, payload=payload, outcome=outcome, fresh=fresh)
        )
        try:
            await asyncio.shield(marked)
            refusal = await self._host.waiters.rest_of(run.run_id) if wait else None
        except asyncio.CancelledError:
            marked.add_done_callback(self._desert)
            raise
        except Rejected as rejected:  # it may have ended while its checkpoint was read
            raise self._told_if_over(rejected, run_id) from None
        if isinstance(refusal, cmd.CallRefused):
            raise ServerRefused(refusal.code, refusal.message, refusal.data)
        if isinstance(refusal, cmd.CallNotSent):
            raise _unavailable(refusal.reason)
        return await self._inspection.inspect(run.run_id)

    def _known(self) -> bool:
        """Whether what the server announced holds of the one that is there now."""
        server = self._host.state.globals.server
        return server.up and server.facts is not None

    async def _contact(self) -> None:
        """A server that is just back answers before its health was asked for, and nothing can be marked for it yet."""
        end_mono = self._host.clock.now().mono + CONTACT_S
        while not self._known():
            if self._host.clock.now().mono >= end_mono:
                raise _unavailable(self._host.state.globals.server.reason)
            await self._host.clock.sleep(CONTACT_LOOK_S)

    def _resumable(self, run_id: str) -> Run:
        try:
            return handling.resumable(self._host.state.draft(self._host.clock.now()), run_id)
        except Rejected as rejected:
            raise self._told_if_over(rejected, run_id) from None

    def _told_if_over(self, rejected: Rejected, run_id: str) -> Rejected:
        """The core knows unfinished runs only; one that history has is over, and not unknown."""
        if rejected.code != "RunNotFound" or self._host.store.find_run(run_id) is None:
            return rejected
        return Rejected("RunNotResumable", f"run {run_id} is over", run_id=run_id)

    def _desert(self, marked: asyncio.Future[Any]) -> None:
        """The caller went away: end its forwarded call as soon as its attempt is durable."""
        if not marked.cancelled() and marked.exception() is None:
            self._host.dispatcher.cancel(marked.result(), "caller-gone")

    async def abandon_run(self, run_id: str, note: str) -> dict[str, Any]:
        """Give up an interrupt that nobody will answer; asking again changes nothing."""
        found = self._host.store.find_run(run_id)
        if found is not None and found.rows and found.rows[-1].reason == "abandoned":
            return await self._inspection.inspect(found.run_id)
        try:
            abandoned: str = await self._host.engine.submit(cmd.AbandonRun(run_id, note))
        except Rejected as rejected:
            raise self._told_if_over(rejected, run_id) from None
        return await self._inspection.inspect(abandoned)

    async def forward(self, method: str, params: dict[str, Any]) -> Any:
        """Pass another `workflow.*` method on to the server unchanged, the caller's key and errors included.

        But not with a run id of our form, which the server cannot know.
        """
        if not self._host.options.gateway:
            raise ServerRefused(METHOD_NOT_FOUND, "Method not found")
        run_id = params.get("run_id")
        if isinstance(run_id, str) and OURS.match(run_id):
            raise self._not_theirs(run_id)
        if self._key is not None and not is_header_safe(self._key):
            raise ServerRefused(
                INVALID_REQUEST, "Invalid Request", {"message": "Idempotency-Key: must be printable ASCII"}
            )
        ending = await self._host.dispatcher.forward(method, params, self._key)
        match ending:
            case Answered():
                return ending.result
            case Refused():
                raise ServerRefused(ending.code, ending.message, ending.data)
            case NotSent():
                raise _unavailable(ending.reason)
            case Ambiguous():
                # No method of the server's own is known to change nothing, so nobody may be told that nothing was done.
                lost = f"the workflow server's answer was lost ({ending.reason}); the call may have had its effect"
                raise ServerRefused(INTERNAL_ERROR, "Internal error", {"message": lost})

    def _not_theirs(self, run_id: str) -> Rejected:
        """The server has its own id for a run of ours; once there is one, that is what it can be asked about."""
        owner = self._host.state.owners.get(run_id)
        run = self._host.state.schedules[owner].run(run_id) if owner is not None else None
        found = self._host.store.find_run(run_id) if run is None else None
        server_run_id = run.server_run_id if run is not None else found.server_run_id if found is not None else None
        hint = "the workflow server has no id for it" if server_run_id is None else f"there it is {server_run_id!r}"
        told = f"run id {run_id!r} is the daemon's: {hint}"
        return Rejected("RunNotFound", told, run_id=run_id, server_run_id=server_run_id)

    # --- health ---

    def health(self) -> dict[str, Any]:
        """What `workflow.health` answers."""
        features = ["schedules", *(["gateway"] if self._host.options.gateway else [])]
        return {
            "status": "ok",
            "store_root": str(self._host.store.root),
            "instance_id": self._host.options.instance_id,
            "features": features,
            "version": self._host.options.version,
        }

    def checks(self) -> list[Check]:
        """What `GET /readyz` says."""
        return self._host.checks()

    def figures(self) -> Figures:
        """What `GET /metrics` shows."""
        engine = self._host.engine
        return engine.counters.read(self._host.state, self._host.clock.now(), engine.decided_mono)


def _unavailable(reason: str) -> Rejected:
    message = f"the workflow server did not answer: {reason}; nothing was changed, try again"
    return Rejected("ServerUnavailable", message, retryable=True)
