"""Everything that one seed is made of, put together; and the one way to run it.

Owns: the loop, the clock, the disk, the server, the network, the accounts, the daemons' succession.
Must never know: what goes wrong when; `chaos.py` does.
"""

import asyncio
import random as randomness
import traceback
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from scheduler_daemon.core.events import AttemptMarked, CandidateHeld, DispatchMarked, Event, RunAdmitted
from scheduler_daemon.runtime import logs
from tests.simulation.daemon import Answer, Daemon
from tests.simulation.ledger import Ledger
from tests.simulation.loop import Process, SimLoop, VirtualClock
from tests.simulation.model import Violation
from tests.simulation.plan import Plan, draw
from tests.simulation.power import PowerDisk, PowerStore
from tests.simulation.server import ServerProcess, ServerStore, ServerWorld
from tests.simulation.store import STORE_ID, Disk, SimStore
from tests.simulation.story import line
from tests.simulation.truth import Truth
from tests.simulation.wire import Network

TRACE_MAX = 20_000
BEGINNINGS = (AttemptMarked, CandidateHeld, DispatchMarked, RunAdmitted)


@dataclass
class Report:
    """What came of one seed."""

    seed: int
    violations: list[str]
    counts: Counter[str]
    virtual_s: float
    iterations: int
    trace: list[str] = field(default_factory=list)


class World:
    """`violated` is where every broken invariant ends; the first one stops the seed."""

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self.clock = VirtualClock(self.loop, plan.start_at)
        self.glance = self.stream("glance")
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.traced = traced
        self.trace: deque[tuple[float, Any, tuple[Any, ...]]] = deque(maxlen=TRACE_MAX)
        self.truth = Truth()
        self.truth.now_s = self.loop.time
        self.ledger = Ledger(plan.settings, STORE_ID, self.truth)
        self.truth.runs = self.ledger.by_key
        disk = PowerDisk if plan.real_store else Disk
        self.disk = disk(plan.settings, self.stream("disk"), self._written)
        self.loop.thread_s = self._thread_s
        self.server = ServerWorld(self.loop, self.clock, self.stream("server"), self._seen(self.truth.executing))
        self.server.deployments = plan.deployments
        self.network = Network(self.server, self.stream("network"), self._seen(self.truth.sending), self.loop)
        self.daemons: list[Daemon] = []
        self.replaced = False
        self._instances = 0
        self._done = False

    def stream(self, name: str) -> randomness.Random:
        """Random numbers of one part; another part's draws do not shift them."""
        return randomness.Random(f"{self.plan.seed}:{name}")

    # --- what happens ---

    def note(self, what: str, *more: Any) -> None:
        if self.traced:
            self.trace.append((self.loop.now_s, self.clock.now().at, (what, *more)))

    def violated(self, error: BaseException) -> None:
        """Keep the first few, and end the seed."""
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, Violation):
            text += "\n" + "".join(traceback.format_exception(error)[-8:])
        self.violations.append(text)
        self.note("VIOLATION", text)
        self._done = True
        self.loop.stop()

    def _written(self, events: Sequence[Event]) -> None:
        if self.traced:
            for event in events:
                self.note("durable", event)
        try:
            self._may_be_written(events)
            self.ledger.batch(events)
        except Violation as violation:
            self.violated(violation)
            raise

    def _may_be_written(self, events: Sequence[Event]) -> None:
        """While the daemon drains or has no room, nothing new begins, and no instant is consumed."""
        modes = next((one.modes for one in self.daemons if one.store is self.disk.owner), None)
        if modes is None or not (modes.draining or modes.full):
            return
        begins = [event for event in events if isinstance(event, BEGINNINGS)]
        if begins:
            raise Violation(f"begun while draining={modes.draining}, full={modes.full}: {begins}")

    def _seen(self, look: Callable[[Any], None]) -> Callable[[Any], None]:
        def seen(subject: Any) -> None:
            self.note(look.__name__, subject)
            try:
                look(subject)
            except Violation as violation:
                self.violated(violation)
                raise

        return seen

    def said(self, action: str, fields: dict[str, Any]) -> None:
        """A log record of the daemon."""
        self.counts[f"log {action}"] += 1
        if action in ("reconcile", "outcome_unknown"):
            self.counts[f"case {fields['case']}"] += 1
        self.note("log", action, fields)
        if action in ("bug", "schedule_fault"):
            self.violated(Violation(f"the daemon found a bug in itself: {fields}"))

    def _thread_s(self) -> float:
        """How long something takes that the daemon does in a thread."""
        faults, chance = self.disk.faults, self.disk.random
        return chance.uniform(0.0, faults.slow_s_max) if chance.random() < faults.slow else 0.0

    # --- the daemon ---

    def new_store(self, process: Process) -> SimStore:
        return PowerStore(self.disk, process) if isinstance(self.disk, PowerDisk) else SimStore(self.disk, process)

    @property
    def daemon(self) -> Daemon:
        """The newest one, alive or not."""
        return self.daemons[-1]

    def start_daemon(self) -> Daemon:
        self.note("daemon starts", len(self.daemons) + 1)
        self.daemons.append(Daemon(self, f"daemon-{len(self.daemons) + 1}"))
        return self.daemon

    async def ask(self, method: str, *args: Any, **named: Any) -> Answer:
        answer = await self.daemon.ask(method, *args, **named)
        self.counts[f"{method} {answer}"] += 1
        return answer

    # --- the server ---

    def boot_server(self, features: tuple[str, ...], store: ServerStore) -> None:
        self._instances += 1
        instance_id = f"instance-{self._instances}" if self.plan.announces_instance else None
        self.server.process = ServerProcess(self.server, store, features, instance_id)
        self.truth.booted(self.server.process)
        self.note("server up", instance_id, features, store.root)

    def kill_server(self) -> None:
        process, self.server.process = self.server.process, None
        if process is not None:
            self.note("server dies", process.instance_id)
            process.die()
            self.network.server_died(process)

    # --- running ---

    def run(self, script: Callable[["World"], Coroutine[Any, Any, None]]) -> Report:
        """Run the script to its end, or to the first violation."""
        self.loop.set_exception_handler(lambda _loop, context: self._unhandled(context))
        processors, logger = structlog.get_config()["processors"], logs._logger
        structlog.configure(processors=[self._log])
        logs._logger = structlog.get_logger()
        main = self.loop.create_task(self._main(script))
        main._log_destroy_pending = False  # type: ignore[attr-defined]
        try:
            self.loop.run_forever()
        except Exception as error:
            self.violated(error)
        finally:
            structlog.configure(processors=processors)
            logs._logger = logger
            self._tear_down(main)
        trace = [line(mono_s, at, more) for mono_s, at, more in self.trace]
        counts = self.counts + Counter({f"row {name}": count for name, count in self.ledger.statuses.items()})
        return Report(self.plan.seed, self.violations, counts, self.loop.now_s - 1000.0, self.loop.iterations, trace)

    async def _main(self, script: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        try:
            await script(self)
        except Exception as error:
            self.violated(error)
        self._done = True
        self.loop.stop()

    def _log(self, _logger: Any, _method: str, record: dict[str, Any]) -> Any:
        action = record.pop("event")
        self.said(action, record)
        raise structlog.DropEvent

    def _unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._done and error is not None:
            self.violated(error)

    def _tear_down(self, main: asyncio.Task[None]) -> None:
        self._done = True
        for daemon in self.daemons:
            daemon.process.alive = False
            daemon.process.bury()
        for task in [main, *asyncio.all_tasks(self.loop)]:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.get_coro().close()  # type: ignore[union-attr]
        self.loop.close()


def run_seed(seed: int, script: Callable[[World], Coroutine[Any, Any, None]], *, traced: bool = False) -> Report:
    """One seed from nothing to its report."""
    return World(draw(seed), traced=traced).run(script)
