"""The scheduler as its callers see it: every method of the face, over one engine.

Owns: what has to be asked of the server or the store before or after a command, start, drain and stop.  Must never know: JSON-RPC, HTTP,
configuration files.

Reads see committed state.  A method that changes something returns after its change is durable.  All refusals are
`core.commands.Rejected`; what the workflow server refused is passed on as `ServerRefused`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from rpc_client.errors import Answered, Refused
from rpc_client.workflow import WorkflowClient
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import handle as handling
from scheduler_daemon.core import queries
from scheduler_daemon.core.commands import Preflight, Rejected
from scheduler_daemon.core.events import EpochStarted
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.model import Definition, Diagnostic, Now, Row, Run, Settings
from scheduler_daemon.core.queries import ScheduleView
from scheduler_daemon.core.state import State
from scheduler_daemon.runtime import cursors
from scheduler_daemon.runtime.clock import Clock
from scheduler_daemon.runtime.dispatcher import Dispatcher
from scheduler_daemon.runtime.engine import Engine
from scheduler_daemon.runtime.inspection import Inspection, ServerRefused
from scheduler_daemon.runtime.logs import log
from scheduler_daemon.runtime.questions import CheckRoot, Questions, Unanswered
from scheduler_daemon.runtime.waiters import Waiters
from scheduler_daemon.store.errors import CursorExpired, OwnershipLost, StorageFailed, StorageFull
from scheduler_daemon.store.store import Damage, Store

CHECKPOINT_LOOK_S = 1.0
TICK_AGE_MAX_S = 10.0
OVERDUE_MAX_S = 5.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the service needs to know beside the core's settings."""

    server_name: str
    check_root: CheckRoot
    version: str
    instance_id: str
    poll_interval_s: float = 1.0
    drain_grace_s: float = 30.0
    gateway: bool = False
    accept_restore: bool = False


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold for the daemon to be scheduling, with its figure."""

    name: str
    ok: bool
    figure: str


class Service:
    """Start it, use it, stop it; stop is idempotent and may come before start."""

    def __init__(self, store: Store, clock: Clock, settings: Settings, options: Options) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._options = options
        self._client: WorkflowClient
        self._questions: Questions
        self._dispatcher: Dispatcher
        self._waiters: Waiters
        self._inspection: Inspection
        self._damages: tuple[Damage, ...] = ()
        self._state: State | None = None
        self._engine: Engine | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._cut_short = asyncio.Event()
        self._stopped = False

    # --- lifecycle ---

    async def open(self) -> None:
        """Own the store, rebuild the state, begin a new epoch.  Raises the store's refusals; nothing is sent yet."""
        now = self._clock.now()
        opened = self._store.open(self._settings, now, accept_restore=self._options.accept_restore)
        self._state, self._damages = opened.state, opened.damages
        await self._begin_epoch(opened.state, opened.epoch, now)
        log("recovered", epoch=opened.epoch, schedules=len(opened.state.schedules), replayed=opened.replayed)

    async def start(self, client: WorkflowClient) -> None:
        """Decide and dispatch, against the server that `client` reaches."""
        state = self.state
        self._client = client
        self._questions = Questions(client, self._options.server_name, self._options.check_root)
        self._dispatcher = Dispatcher(client, self._questions, self._clock, self._report)
        self._waiters = Waiters(state)
        self._inspection = Inspection(state, self._store, client)
        self._engine = Engine(
            state,
            self._store,
            self._clock,
            perform=self._dispatcher.perform,
            settled=self._waiters.note,
            poll_interval_s=self._options.poll_interval_s,
        )
        for damage in self._damages:
            self._block_damaged(damage)
        self._tasks = [asyncio.create_task(self._engine.run()), asyncio.create_task(self._checkpoints())]

    async def _begin_epoch(self, state: State, epoch: int, now: Now) -> None:
        draft = state.draft(now)
        begun = EpochStarted(at=now.at, epoch=epoch)
        fold(draft, begun)
        await self._store.commit([begun])
        draft.merge()

    def _block_damaged(self, damage: Damage) -> None:
        """Damage that belongs to a schedule blocks it; damage that cannot be told apart blocks every schedule there is."""
        log("damaged", "error", schedule_id=damage.schedule_id, file=damage.file, offset=damage.offset, reason=damage.reason)
        state, now = self.state, self._clock.now()
        named = [damage.schedule_id] if damage.schedule_id is not None else list(state.schedules)
        data = {"file": damage.file, "offset": damage.offset}
        for schedule_id in named:
            if schedule_id in state.schedules:
                self.engine.submit(cmd.Block(schedule_id, Diagnostic("damaged-record", damage.reason, now.at, data)))

    async def run(self) -> None:
        """Return when `stop` was called; raise what makes going on impossible: `StorageFailed`, `OwnershipLost`, `ServerRefused`."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()

    async def stop(self) -> None:
        """Stop admitting, let open calls end within the grace, fence what is left, release the store."""
        if self._stopped:
            return
        self._stopped = True
        if self._engine is not None:
            if not self._tasks[0].done():
                await self._drain(self._engine)
            await self._dispatcher.fence()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Release the store, after everything that used it has ended."""
        await self.stop()
        self._store.close()
        log("stopped")

    async def _drain(self, engine: Engine) -> None:
        try:
            await engine.submit(cmd.Drain())
        except Rejected as rejected:
            log("storage_full", "warning", reason=rejected.message)
        drained = asyncio.create_task(self._dispatcher.drained())
        grace = asyncio.create_task(self._clock.sleep(self._options.drain_grace_s))
        cut = asyncio.create_task(self._cut_short.wait())
        await asyncio.wait({drained, grace, cut}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drained, grace, cut):
            task.cancel()
        if self._dispatcher.open_calls:
            log("fenced", "warning", open_calls=self._dispatcher.open_calls)
        engine.fence()
        engine.stop()
        await asyncio.wait([self._tasks[0]])

    def cut_short(self) -> None:
        """A second signal: the drain is over, equally safely."""
        self._cut_short.set()

    async def _checkpoints(self) -> None:
        """Write history and snapshots when the journal has grown, off the critical path."""
        while True:
            await self._clock.sleep(CHECKPOINT_LOOK_S)
            refusal = self.state.globals.server.refusal
            if refusal is not None:
                log("server_refused", "error", reason=refusal)
                raise ServerRefused(0, refusal)
            if self._store.wants_checkpoint():
                try:
                    await self._store.checkpoint(self.state)
                except StorageFull:
                    log("checkpoint_failed", "warning")

    def _report(self, observation: cmd.Observation) -> None:
        self.engine.observe(observation)

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the service was not started")
        return self._engine

    @property
    def state(self) -> State:
        if self._state is None:
            raise RuntimeError("the service was not started")
        return self._state

    # --- schedules ---

    async def create(self, definition: Definition) -> ScheduleView:
        """Store a new schedule, after the server agreed to it."""
        handling.precheck_create(self.state.draft(self._clock.now()), definition)
        preflight = await self._ask_preflight(definition)
        return await self.engine.submit(cmd.Create(definition, preflight, self._features(definition)))

    async def update(self, schedule_id: str, expected_revision: int, changes: dict[str, Any]) -> ScheduleView:
        """Change the fields given; the server is asked about the definition that they lead to."""
        draft = self.state.draft(self._clock.now())
        definition = handling.precheck_update(draft, schedule_id, expected_revision, changes)
        preflight = await self._ask_preflight(definition)
        return await self.engine.submit(
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
            return await self._questions.ask_preflight(definition.deployment_id)
        except Unanswered as unanswered:
            raise _unavailable(unanswered.reason) from None

    def _features(self, definition: Definition) -> tuple[str, ...]:
        facts = self.state.globals.server.facts
        if facts is None and definition.max_steps is not None:
            raise _unavailable(self.state.globals.server.reason)
        return facts.features if facts is not None else ()

    async def pause(self, schedule_id: str, note: str | None) -> ScheduleView:
        return await self.engine.submit(cmd.Pause(schedule_id, note))

    async def resume(self, schedule_id: str, note: str | None) -> ScheduleView:
        return await self.engine.submit(cmd.Resume(schedule_id, note))

    async def delete(self, schedule_id: str, note: str | None) -> ScheduleView:
        return await self.engine.submit(cmd.Delete(schedule_id, note))

    async def unblock(self, schedule_id: str, note: str) -> ScheduleView:
        """An operator takes responsibility for a blocked schedule, or for a watermark that ran ahead of the clock."""
        rowed = self._store.rowed_after(schedule_id, self._clock.now().at) if schedule_id in self.state.schedules else ()
        return await self.engine.submit(cmd.Unblock(schedule_id, note, rowed))

    def get(self, schedule_id: str) -> ScheduleView:
        if schedule_id not in self.state.schedules:
            raise Rejected("ScheduleNotFound", f"no schedule {schedule_id!r}", schedule_id=schedule_id)
        return queries.schedule_view(self.state, schedule_id, now=self._clock.now())

    def list(
        self, *, include_deleted: bool, deployment_id: str | None, state: str | None, cursor: str | None, limit: int
    ) -> tuple[list[ScheduleView], str | None]:
        """One page in order of id; the cursor stays valid while schedules come and go."""
        after = cursors.decode("schedules", cursor, 1)[0] if cursor is not None else None
        ids, last = queries.list_ids(
            self.state, after=after, limit=limit, include_deleted=include_deleted, deployment_id=deployment_id, state=state
        )
        now = self._clock.now()
        views = [queries.schedule_view(self.state, schedule_id, now=now) for schedule_id in ids]
        return views, cursors.encode("schedules", last) if last is not None else None

    def occurrences(self, schedule_id: str, cursor: str | None, limit: int) -> tuple[list[Row], str | None]:
        """One page of history, oldest first; on the first page a held candidate stands on top as `pending`."""
        schedule = self.state.schedules.get(schedule_id)
        if schedule is None:
            raise Rejected("ScheduleNotFound", f"no schedule {schedule_id!r}", schedule_id=schedule_id)
        after_n = None if cursor is None else self._after_n(schedule_id, cursor)
        try:
            page = self._store.page(schedule_id, after_n, limit)
        except CursorExpired:
            raise Rejected("CursorExpired", "cursor: rows after it were dropped by retention; start again without it") from None
        rows = [self._with_observed(row) for row in page.rows]
        pending = queries.pending_row(schedule) if cursor is None else None
        following = cursors.encode("occurrences", schedule_id, str(page.next_n)) if page.next_n is not None else None
        return ([pending, *rows] if pending is not None else rows), following

    def _after_n(self, schedule_id: str, cursor: str) -> int:
        found, after_n = cursors.decode("occurrences", cursor, 2)
        if found != schedule_id or not after_n.isdecimal():
            raise Rejected("InvalidCursor", "cursor: belongs to another schedule", field="cursor")
        return int(after_n)

    def _with_observed(self, row: Row) -> Row:
        """What the server showed later of a run that ended unknown stands beside its row; the status stays."""
        unknown = self.state.unknown.get(row.run_id or "") if row.reason == "outcome-unknown" else None
        if unknown is None or unknown.observed is None:
            return row
        detail = {**(row.detail or {}), "observed_outcome": msgspec.to_builtins(unknown.observed)}
        return msgspec.structs.replace(row, detail=detail)

    # --- runs ---

    async def inspect_run(self, run_id: str) -> dict[str, Any]:
        """One run, by either id; an id that is neither ours nor of our form is asked of the server unchanged."""
        return await self._inspection.inspect(run_id)

    async def resume_run(self, run_id: str, payload: dict[str, Any], outcome: str, *, wait: bool) -> dict[str, Any]:
        """Resume an interrupted run under a durable attempt.

        A cancellation of the waiting caller means that it went away: the forwarded call is cut off, and exactly this run is
        then judged by the engine, once.
        """
        run = self._resumable(run_id)
        fresh = await self._inspection.fresh(run)
        marked = self.engine.submit(cmd.ResumeRun(run_id=run.run_id, payload=payload, outcome=outcome, fresh=fresh))
        try:
            await asyncio.shield(marked)
            refusal = await self._waiters.rest_of(run.run_id) if wait else None
        except asyncio.CancelledError:
            marked.add_done_callback(self._desert)
            raise
        if isinstance(refusal, cmd.CallRefused):
            raise ServerRefused(refusal.code, refusal.message, refusal.data)
        if isinstance(refusal, cmd.CallNotSent):
            raise _unavailable(refusal.reason)
        return await self._inspection.inspect(run.run_id)

    def _resumable(self, run_id: str) -> Run:
        try:
            return handling.resumable(self.state.draft(self._clock.now()), run_id)
        except Rejected as rejected:
            if rejected.code == "RunNotFound" and self._store.find_run(run_id) is not None:
                raise Rejected("RunNotResumable", f"run {run_id} is over", run_id=run_id) from None
            raise

    def _desert(self, marked: asyncio.Future[Any]) -> None:
        """The caller went away: end its forwarded call as soon as its attempt is durable."""
        if not marked.cancelled() and marked.exception() is None:
            self._dispatcher.cancel(marked.result(), "caller-gone")

    async def abandon_run(self, run_id: str, note: str) -> dict[str, Any]:
        """Give up an interrupt that nobody will answer; asking again changes nothing."""
        found = self._store.find_run(run_id)
        if found is not None and found.rows and found.rows[-1].reason == "abandoned":
            return await self._inspection.inspect(found.run_id)
        abandoned: str = await self.engine.submit(cmd.AbandonRun(run_id, note))
        return await self._inspection.inspect(abandoned)

    async def forward(self, method: str, params: dict[str, Any]) -> Any:
        """Pass another `workflow.*` method on to the server unchanged, errors included."""
        if not self._options.gateway:
            raise ServerRefused(-32601, "Method not found")
        ending = await self._client.forward(method, params)
        match ending:
            case Answered():
                return ending.result
            case Refused():
                raise ServerRefused(ending.code, ending.message, ending.data)
            case _:
                raise _unavailable(ending.reason)

    # --- health ---

    def health(self) -> dict[str, Any]:
        """What `workflow.health` answers."""
        features = ["schedules", *(["gateway"] if self._options.gateway else [])]
        return {
            "status": "ok",
            "store_root": str(self._store.root),
            "instance_id": self._options.instance_id,
            "features": features,
            "version": self._options.version,
        }

    def checks(self) -> list[Check]:
        """Whether scheduling works, as named checks with their figures."""
        now, state = self._clock.now(), self.state
        server = state.globals.server
        tick_s = now.mono - self.engine.decided_mono
        overdue = state.agenda.overdue()
        overdue_s = max(0.0, (now.at - overdue).total_seconds()) if overdue is not None else 0.0
        ahead_s = (state.globals.decided_until - now.at).total_seconds()
        return [
            Check("lock", self._owns(), "held" if self._owns() else "lost"),
            Check("tick", tick_s < TICK_AGE_MAX_S, f"{tick_s:.3f} s old"),
            Check("overdue", overdue_s < OVERDUE_MAX_S, f"{overdue_s:.3f} s"),
            Check("store", not state.globals.full, "disk full" if state.globals.full else "writable"),
            Check("server", server.up and server.refusal is None, server.refusal or (server.reason if not server.up else "up")),
            Check("clock", ahead_s <= queries.BEHIND.total_seconds(), f"watermark {max(0.0, ahead_s):.0f} s ahead"),
            Check("admission", not state.globals.draining, "draining" if state.globals.draining else "on"),
        ]

    def ticking(self) -> bool:
        """Whether scheduling itself works: what a sign of life may be given for."""
        return all(check.ok for check in self.checks() if check.name in ("lock", "tick", "overdue"))

    async def pause_for(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def _owns(self) -> bool:
        try:
            self._store.check_ownership()
        except (OwnershipLost, StorageFailed):
            return False
        return True


def _unavailable(reason: str) -> Rejected:
    return Rejected("ServerUnavailable", f"the workflow server did not answer: {reason}; nothing was changed, try again", retryable=True)
