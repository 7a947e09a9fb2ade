"""The life of the parts: open, start, run, drain, stop, close.

Owns: store, engine, dispatcher and their tasks, in the order in which they begin and end.
Must never know: what a caller wants; that is `service.py`.

Invariants
- A new epoch is durable before anything is decided in it.
- After the fence no observation is believed any more: marks and ACTIVE attempts stay as they are, for the next start to judge.
- The lock is released last, when every task has ended.
"""

from __future__ import annotations

import asyncio

import msgspec

from rpc_client.workflow import WorkflowClient
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.events import EpochStarted
from scheduler_daemon.core.fold import fold
from scheduler_daemon.core.model import Diagnostic, Now, Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.errors import ServerRefused
from scheduler_daemon.runtime import readiness
from scheduler_daemon.runtime.clock import Clock
from scheduler_daemon.runtime.dispatcher import Dispatcher
from scheduler_daemon.runtime.engine import Engine
from scheduler_daemon.runtime.logs import log
from scheduler_daemon.runtime.questions import CheckRoot, Questions
from scheduler_daemon.runtime.readiness import Check
from scheduler_daemon.runtime.waiters import Waiters
from scheduler_daemon.store.errors import StorageFull
from scheduler_daemon.store.store import Damage, Store

CHECKPOINT_LOOK_S = 1.0


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


class Host:
    """Open it, start it, stop it, close it; stop and close are idempotent and may come before start."""

    def __init__(self, store: Store, clock: Clock, settings: Settings, options: Options) -> None:
        self.store = store
        self.clock = clock
        self.options = options
        self.client: WorkflowClient
        self.questions: Questions
        self.dispatcher: Dispatcher
        self.waiters: Waiters
        self._settings = settings
        self._damages: tuple[Damage, ...] = ()
        self._restored = False
        self._state: State | None = None
        self._engine: Engine | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._cut_short = asyncio.Event()
        self._stopped = False

    async def open(self) -> None:
        """Own the store, rebuild the state, begin a new epoch.  Raises the store's refusals; nothing is sent yet."""
        now = self.clock.now()
        opened = self.store.open(self._settings, now, accept_restore=self.options.accept_restore)
        self._state, self._damages, self._restored = opened.state, opened.damages, opened.restored
        await self._begin_epoch(opened.state, opened.epoch, now)
        for torn in opened.torn:
            log("torn_tail", "warning", file=torn.file, offset=torn.offset, size=torn.size, reason=torn.reason)
        log("recovered", epoch=opened.epoch, schedules=len(opened.state.schedules), replayed=opened.replayed)

    async def start(self, client: WorkflowClient) -> None:
        """Decide and dispatch, against the server that `client` reaches."""
        state = self.state
        self.client = client
        self.questions = Questions(client, self.options.server_name, self.options.check_root)
        self.dispatcher = Dispatcher(client, self.questions, self.clock, self._report)
        self.waiters = Waiters(state)
        self._engine = Engine(
            state,
            self.store,
            self.clock,
            perform=self.dispatcher.perform,
            settled=self.waiters.note,
            poll_interval_s=self.options.poll_interval_s,
        )
        for damage in self._damages:
            self._block_damaged(damage)
        # First in line, so that nothing is admitted before it is decided what the restore means.
        accepted = self._engine.submit(cmd.AcceptRestore()) if self._restored else None
        self._tasks = [asyncio.create_task(self._engine.run()), asyncio.create_task(self._checkpoints())]
        if accepted is not None:
            await asyncio.wait({accepted, self._tasks[0]}, return_when=asyncio.FIRST_COMPLETED)
            if accepted.done():
                self.store.finish_restore()

    async def _begin_epoch(self, state: State, epoch: int, now: Now) -> None:
        draft = state.draft(now)
        begun = EpochStarted(at=now.at, epoch=epoch)
        fold(draft, begun)
        await self.store.commit([begun])
        draft.merge()

    def _block_damaged(self, damage: Damage) -> None:
        """Damage that belongs to a schedule blocks it; damage that cannot be told apart blocks every schedule there is."""
        log(
            "damaged",
            "error",
            schedule_id=damage.schedule_id,
            file=damage.file,
            offset=damage.offset,
            reason=damage.reason,
        )
        state, now = self.state, self.clock.now()
        named = [damage.schedule_id] if damage.schedule_id is not None else list(state.schedules)
        data = {"file": damage.file, "offset": damage.offset}
        for schedule_id in named:
            if schedule_id in state.schedules:
                self.engine.submit(cmd.Block(schedule_id, Diagnostic("damaged-record", damage.reason, now.at, data)))

    async def run(self) -> None:
        """Return when `stop` was called; raise what makes going on impossible.

        That is `StorageFailed`, `OwnershipLost`, or `ServerRefused` when the server must not be used.
        """
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self.raise_failure()

    async def stop(self) -> None:
        """Stop admitting, let open calls end within the grace, fence what is left, release the store."""
        if self._stopped:
            return
        self._stopped = True
        if self._engine is not None:
            if not self._tasks[0].done():
                await self._drain(self._engine)
            await self.dispatcher.fence()
            self.waiters.fence()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Release the store, after everything that used it has ended."""
        await self.stop()
        self.store.close()
        log("stopped")

    def raise_failure(self) -> None:
        """Raise what made going on impossible, if anything did.  Ask once more after `close`: of the way out nobody else tells."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        self.store.check_trusted()

    async def _drain(self, engine: Engine) -> None:
        asked, deciding = engine.submit(cmd.Drain()), self._tasks[0]
        await asyncio.wait({asked, deciding}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            return  # the store is lost, so nobody decides any more and nothing that ends could be written down
        if (refused := asked.exception()) is not None:
            log("storage_full", "warning", reason=str(refused))
        drained = asyncio.create_task(self.dispatcher.drained())
        grace = asyncio.create_task(self.clock.sleep(self.options.drain_grace_s))
        cut = asyncio.create_task(self._cut_short.wait())
        await asyncio.wait({drained, grace, cut, deciding}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drained, grace, cut):
            task.cancel()
        if self.dispatcher.open_calls:
            log("fenced", "warning", open_calls=self.dispatcher.open_calls)
        engine.fence()
        engine.stop()
        await asyncio.wait([self._tasks[0]])

    def cut_short(self) -> None:
        """A second signal: the drain is over, equally safely."""
        self._cut_short.set()

    async def _checkpoints(self) -> None:
        """Write history and snapshots when the journal has grown, off the critical path."""
        while True:
            await self.clock.sleep(CHECKPOINT_LOOK_S)
            refusal = self.state.globals.server.refusal
            if refusal is not None:
                log("server_refused", "error", reason=refusal)
                raise ServerRefused(0, refusal)
            if self.store.wants_checkpoint():
                try:
                    await self.store.checkpoint(self.state)
                    log("checkpoint")
                except StorageFull:
                    log("checkpoint_failed", "warning")

    def _report(self, observation: cmd.Observation) -> None:
        self.engine.observe(observation)

    @property
    def engine(self) -> Engine:
        """The engine, once started."""
        if self._engine is None:
            raise RuntimeError("the service was not started")
        return self._engine

    @property
    def state(self) -> State:
        """The committed state, once opened."""
        if self._state is None:
            raise RuntimeError("the service was not started")
        return self._state

    def ticking(self) -> bool:
        """Whether scheduling itself works: what a sign of life may be given for."""
        return all(check.ok for check in self.checks() if check.name in ("lock", "tick", "overdue"))

    def checks(self) -> list[Check]:
        """Whether scheduling works, as named checks with their figures."""
        return readiness.checks(self.state, self.store, self.clock.now(), self.engine.decided_mono)
