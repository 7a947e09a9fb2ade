"""One life of the daemon under test, seen from outside.

Owns: starting the real host, service and engine in a process of the simulation; asking them as callers do; noticing how they
end; looking over the engine's shoulder after each turn (invariants 11, 12 and 13 of DESIGN.md).
Must never know: what is asked, or when anything is killed.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scheduler_daemon.core import decide as deciding
from scheduler_daemon.core.agenda import Agenda, LazyQueue
from scheduler_daemon.core.commands import AskPreflight, Rejected
from scheduler_daemon.core.model import Now
from scheduler_daemon.core.state import Globals
from scheduler_daemon.errors import ServerRefused
from scheduler_daemon.runtime import host as host_module
from scheduler_daemon.runtime.host import Host, Options
from scheduler_daemon.runtime.service import Service
from scheduler_daemon.store.errors import LockHeld, OwnershipLost, StorageFailed, StorageFull
from tests.simulation.loop import Process
from tests.simulation.model import Violation
from tests.simulation.plan import URL
from tests.simulation.wire import Wire

if TYPE_CHECKING:
    from tests.simulation.world import World

host_module.CHECKPOINT_LOOK_S = 9.0  # nothing is decided by it, and each look is a wake of the loop
IDLE_TURNS_MAX = 20
ENDINGS = (OwnershipLost, StorageFailed, StorageFull, LockHeld)
"""What a daemon may end with by itself."""


class Answer:
    """How a call of a caller ended: `ok` with a value, `rejected` or `refused` with a code, `left`, `died`."""

    def __init__(self, how: str, value: Any = None) -> None:
        self.how = how
        self.value = value

    def __repr__(self) -> str:
        return f"{self.how} {self.value if isinstance(self.value, str) else ''}".rstrip()


class Daemon:
    """`ended` is set when the process is gone, however; `ready` when it serves."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        deciding.WRITTEN_MAX = world.plan.written_max
        self.process = Process(world.loop, name, self._died)
        self.store = world.new_store(self.process)
        options = Options(
            server_name=URL,
            check_root=lambda _: None,
            version="0",
            instance_id=name,
            poll_interval_s=world.plan.poll_interval_s,
            drain_grace_s=world.plan.drain_grace_s,
        )
        self.host = Host(self.store, world.clock, world.plan.settings, options)  # type: ignore[arg-type]
        self.service = Service(self.host)
        self.ready = False
        self.ended = asyncio.Event()
        self.failure: BaseException | None = None
        self._asked_to_stop = asyncio.Event()
        self._answers: dict[asyncio.Future[Answer], None] = {}
        self._idle = 0
        self._idle_s = 0.0
        self.process.spawn(self._live())

    # --- life ---

    async def _live(self) -> None:
        world, host = self.world, self.host
        try:
            await host.open()
            if not self.store.lost:
                world.truth.daemon = self.process
            await host.start(Wire(world.network, self.process))  # type: ignore[arg-type]
            self._look_over_its_shoulder()
            self.ready = True
            running = asyncio.create_task(host.run())
            asked = asyncio.create_task(self._asked_to_stop.wait())
            await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        except ENDINGS as failure:
            self.failure = failure
        except Exception as error:
            self._broke(error)
        self.ready = False
        try:
            await host.close()
            host.raise_failure()
        except ENDINGS as failure:
            self.failure = self.failure or failure
        except Exception as error:
            self._broke(error)
        self.process.kill()

    def _broke(self, error: Exception) -> None:
        """Nothing of the daemon may raise that is not meant to; what is left of a killed step does not count."""
        if self.process.alive:
            self.world.violated(error)

    def stop(self) -> None:
        """SIGTERM."""
        self._asked_to_stop.set()

    def _died(self, process: Process) -> None:
        self.world.note("daemon gone", process.name, self.failure)
        self.ready = False
        try:
            self.store.died()
        except Violation as violation:
            self.world.violated(violation)
        for answer in self._answers:
            if not answer.done():
                answer.set_result(Answer("died"))
        self.ended.set()

    @property
    def modes(self) -> Globals | None:
        """What is committed of its modes; None before it has a state."""
        return self.host._state.globals if self.host._state is not None else None

    # --- callers ---

    async def ask(self, method: str, *args: Any, leave_s: float | None = None, **named: Any) -> Answer:
        """Call one method of the service, as a handler of the face would; `leave_s` is when the caller goes away."""
        if not self.ready:
            return Answer("died")
        answer: asyncio.Future[Answer] = self.world.loop.create_future()
        self._answers[answer] = None
        task = self.process.spawn(self._handle(answer, method, args, named))
        if leave_s is not None:
            self.world.server.later(leave_s, task.cancel)
        told = await answer
        self._answers.pop(answer, None)
        self.world.note(method, args, told)
        return told

    async def _handle(self, answer: asyncio.Future[Answer], method: str, args: Any, named: Any) -> None:
        told = Answer("left")
        try:
            value = getattr(self.service, method)(*args, **named)
            told = Answer("ok", await value if inspect.isawaitable(value) else value)
        except Rejected as rejected:
            told = Answer("rejected", rejected.code)
        except ServerRefused as refused:
            told = Answer("refused", str(refused.code))
        except Exception as error:
            self._broke(error)
        finally:
            if self.process.alive and not answer.done():
                answer.set_result(told)

    # --- the engine ---

    def _look_over_its_shoulder(self) -> None:
        engine: Any = self.host.engine
        turn: Callable[[], Any] = engine._turn

        async def watched() -> None:
            now, batches = self.world.clock.now(), self.world.ledger.batches
            await turn()
            self._after_turn(now, moved=self.world.ledger.batches != batches)

        engine._turn = watched

    def _after_turn(self, now: Now, *, moved: bool) -> None:
        if self.store.lost or not self.process.alive:
            return
        world, state = self.world, self.host.state
        if state.globals.slots_used != world.ledger.slots:
            raise Violation(f"{state.globals.slots_used} slots are said to be used, {world.ledger.slots} are")
        self._idle = self._idle + 1 if now.mono == self._idle_s and not moved else 0
        self._idle_s = now.mono
        if self._idle > IDLE_TURNS_MAX:
            raise Violation(f"the engine spins: {self._idle} turns at {now.mono} without a record")
        if world.glance.random() < 0.1:
            self._decide_again(now)

    def _decide_again(self, now: Now) -> None:
        """Right after its own plan there is nothing to decide, and an agenda made anew knows of nothing that is overdue."""
        state = self.host.state
        kept = state.agenda
        try:
            state.agenda = _twin(kept)
            plan = deciding.decide(state.draft(now))
            state.rebuild_agenda(now)
            anew = deciding.decide(state.draft(now))
        finally:
            state.agenda = kept
        # What is asked ahead of an instant is asked once, which an agenda made anew has forgotten.
        asked = [one for one in anew.effects if not isinstance(one, AskPreflight)]
        if plan.events or plan.effects or anew.events or asked:
            raise Violation(f"deciding again at {now.at} gives {plan}, and with the agenda made anew {anew}")


def _twin(agenda: Agenda) -> Agenda:
    """A copy to decide on: a decision takes out of the agenda what it was given."""
    twin = Agenda()
    for name, value in vars(agenda).items():
        setattr(twin, name, _copied(value))
    return twin


def _copied(value: Any) -> Any:
    if isinstance(value, LazyQueue):
        queue: LazyQueue[Any, Any] = LazyQueue()
        queue._row, queue._heap, queue._valid = deque(value._row), list(value._heap), dict(value._valid)
        return queue
    return {key: dict(one) if isinstance(one, dict) else one for key, one in value.items()}
