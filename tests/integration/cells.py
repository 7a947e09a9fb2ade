"""The fault matrix as data: what can break, which call it breaks, and how each cell must end.

Owns: the faults, the expected end of each cell, and how a call is brought to meet a fault.  Must never know: how the daemon decides.

`judge` is a sixth call: the one that finds out about a lost one (an inspect at a plain server, a repeat at a keyed one).  A cell of
`health` is a lost start whose judgement waits for the health that breaks.
"""

import asyncio
import random
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from rpc_client.transport import Limits
from tests.fakes.proxy import Answer, CutResponse, DropRequest, DropResponse, Garbage, Pass, RpcError, Slow
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.integration.matrix import EVERYBODY, HEALTH, INSPECT, RESUME, START, VALIDATE, Bench, LastWord, Stuck
from tests.integration.process import until

Kind = Literal["plain", "keyed"]
Call = Literal["start", "resume", "inspect", "validate", "health", "judge"]
Evidence = Literal["not-sent", "lost", "late"]

STUCK_S = 12.0
"""Longer than any question may take, so that it is the daemon that gives up; a call that may take hours waits until this cut."""

AHEAD_S, AHEAD_ALONE_S, TTL_S = 6.0, 4.2, 3.0
"""A validate that only admission asks for: the answer that create got is out of date when its instant comes.

Among many cells there must be time to create them all; alone it must be asked (2 s ahead) before health is, every 5 s.
"""


class Fault(msgspec.Struct, frozen=True):
    """One way in which a call breaks.  `began` says that the server has the request all the same; no mode: connections are refused."""

    name: str
    evidence: Evidence
    mode: Any = None
    began: bool = False


FAULTS = (
    Fault("refuse", "not-sent"),
    Fault("307", "not-sent", Answer(307, ("Location: /rpc",))),
    Fault("401", "not-sent", Answer(401)),
    Fault("429", "not-sent", Answer(429, ("Retry-After: 1",))),
    Fault("drop-request", "lost", DropRequest()),
    Fault("drop-response", "lost", DropResponse(), began=True),
    Fault("cut-in-head", "lost", CutResponse(20), began=True),
    Fault("cut-in-body", "lost", CutResponse(250), began=True),
    Fault("black-hole-before", "lost", Stuck(STUCK_S)),
    Fault("black-hole-after", "lost", Stuck(STUCK_S, forwarded=True), began=True),
    Fault("502-before", "lost", Answer(502)),
    Fault("502-after", "lost", Answer(502, forwarded=True), began=True),
    Fault("garbage-before", "lost", Garbage()),
    Fault("garbage-after", "lost", Garbage(forwarded=True), began=True),
    Fault("-32603-before", "lost", RpcError(forwarded=False)),
    Fault("-32603-after", "lost", RpcError(), began=True),
    Fault("slow", "late", Slow(1.5), began=True),
)
CALLS: tuple[Call, ...] = ("start", "resume", "inspect", "validate", "health", "judge")


class End(msgspec.Struct, frozen=True):
    """The final row, and how often the server began to execute."""

    status: str
    reason: str | None
    starts: int
    resumes: int


class Cell(msgspec.Struct, frozen=True):
    """One call that meets one fault at one kind of server."""

    kind: Kind
    call: Call
    fault: Fault

    @property
    def name(self) -> str:
        """Of its deployment and of its schedule."""
        return f"{self.call}.{self.fault.name}"

    @property
    def refused(self) -> bool:
        return self.fault.mode is None

    @property
    def stuck(self) -> bool:
        return isinstance(self.fault.mode, Stuck)

    @property
    def erring(self) -> bool:
        return isinstance(self.fault.mode, RpcError)

    @property
    def modes(self) -> list[Any]:
        """Twice in a row, so that one repetition is not enough.

        Once where the first has taken ten seconds, and where a repeated request must not be answered by an error: that fails closed.
        """
        if self.refused:
            return []
        return [self.fault.mode] * (1 if self.stuck or (self.erring and self.call != "inspect") else 2)

    @property
    def meets(self) -> tuple[str, str]:
        """Method and deployment of the requests that meet the fault."""
        judge = INSPECT if self.kind == "plain" else START
        methods = {"start": START, "resume": RESUME, "inspect": INSPECT, "validate": VALIDATE, "judge": judge}
        return (HEALTH, EVERYBODY) if self.call == "health" else (methods[self.call], self.name)

    @property
    def deployment(self) -> Deployment:
        resumed = self.call in ("resume", "inspect") or (self.call == "judge" and self.kind == "plain")
        done = Complete(steps=3, output={"result": self.name})
        return Deployment(deployment_id=self.name, script=Interrupt(then=done) if resumed else done)

    @property
    def end(self) -> End:
        """What must have become of it once everything works again."""
        unknown = ("failed", "outcome-unknown")
        began, lost = int(self.fault.began), self.fault.evidence == "lost"
        match self.call, self.kind:
            case "start", "plain" if lost:
                return End(*unknown, starts=began, resumes=0)
            case "resume", "plain" if lost and not began:
                return End(*unknown, starts=1, resumes=0)
            case "health", "plain":
                return End(*unknown, starts=1, resumes=0)
            case "judge", "keyed" if self.erring:
                return End(*unknown, starts=1, resumes=0)
            case ("resume" | "inspect", _) | ("judge", "plain"):
                return End("completed", None, starts=1, resumes=1)
            case _:
                return End("completed", None, starts=1, resumes=0)

    @property
    def fails_closed_by_design(self) -> bool:
        """A repeated request that is answered by an error: the one cell of a keyed server without its true outcome."""
        return self.kind == "keyed" and self.end.reason is not None


def all_cells(kind: Kind) -> list[Cell]:
    return [Cell(kind, call, fault) for fault in FAULTS for call in CALLS]


def some_cells(kind: Kind, seed: int) -> list[Cell]:
    """Each fault once, each call at least twice."""
    chance = random.Random(f"{kind} {seed}")
    calls = list(CALLS) * (len(FAULTS) // len(CALLS) + 1)
    chance.shuffle(calls)
    return [Cell(kind, call, fault) for fault, call in zip(FAULTS, calls, strict=False)]


# --- bringing a call to meet its fault --------------------------------------------------------------------------------


async def run_cells(bench: Bench, cells: Iterable[Cell]) -> None:
    """What the daemon takes for the server's absence one by one; all others at once, since they do not disturb each other.

    The refused validate comes first: an inspect of a run that ended unknown could be refused before it, and nothing be asked then.
    """
    alone = sorted(
        (cell for cell in cells if cell.refused or cell.call == "health"), key=lambda one: one.call != "validate"
    )
    for cell in alone:
        await _meet(bench, cell)
    shared = [cell for cell in cells if cell not in alone]
    for evidence in (("lost", "late"), ("not-sent",)):
        await asyncio.gather(*(_meet(bench, cell) for cell in shared if cell.fault.evidence in evidence))


async def _meet(bench: Bench, cell: Cell) -> None:
    met = bench.proxy.met[cell.meets]
    match cell.call:
        case "start":
            await _start(bench, cell)
        case "resume":
            await _resume(bench, cell)
        case "inspect":
            await _inspect(bench, cell)
        case "validate":
            await _validate(bench, cell)
        case "health":
            await _health(bench, cell)
        case "judge":
            await (_judge_by_inspect if cell.kind == "plain" else _judge_by_repeat)(bench, cell)
    await bench.row_of(cell.name)
    assert cell.refused or bench.proxy.met[cell.meets] > met, f"{cell.name} met nothing"


async def _rested() -> None:
    """Return when no connection is kept that a start or a resume would still go out on."""
    await asyncio.sleep(Limits().reuse_s + 0.1)


async def _start(bench: Bench, cell: Cell) -> None:
    bench.proxy.plan(START, cell.name, *cell.modes)
    if cell.refused:
        await _rested()
    await bench.due_in(0.7, cell.name, cell.name, **({"run_timeout_s": 1} if cell.stuck else {}))
    if cell.refused:
        await bench.proxy.refuse(sever=False)
        await bench.logged(action="dispatch_not_sent", schedule_id=cell.name)
        await bench.proxy.reset()


async def _resume(bench: Bench, cell: Cell) -> None:
    run_id = await bench.interrupted(cell.name, cell.name)
    bench.proxy.plan(RESUME, cell.name, *cell.modes)
    if cell.refused:
        await _rested()
        await bench.app.inspect_run(run_id)  # leaves a connection on which the fresh checkpoint can be read
        await bench.proxy.refuse(sever=False)
        assert await bench.resume(run_id) == "ServerUnavailable"
        await bench.proxy.reset()
    await _resume_until_heard(bench, run_id)


async def _inspect(bench: Bench, cell: Cell) -> None:
    """The reading of a fresh checkpoint breaks before a resume: its caller is told, and asks again."""
    run_id = await bench.interrupted(cell.name, cell.name)
    bench.proxy.plan(INSPECT, cell.name, *cell.modes)
    if cell.refused:
        await bench.proxy.refuse()
        assert await bench.resume(run_id) == "ServerUnavailable"
        await bench.proxy.reset()
    await _resume_until_heard(bench, run_id)


async def _resume_until_heard(bench: Bench, run_id: str) -> None:
    """As a caller does it: again, as long as the daemon says that nothing was sent."""

    async def heard() -> bool:
        return await bench.resume(run_id) not in ("ServerUnavailable", "InternalError")

    await until(heard, seconds=60, every_s=0.2)


async def _validate(bench: Bench, cell: Cell) -> None:
    if cell.refused:
        await bench.proxy.next_health()  # or the one after it would be refused first, and nothing be asked at all
    bench.proxy.plan(VALIDATE, cell.name, Pass(), *cell.modes)
    await bench.due_in(AHEAD_ALONE_S if cell.refused else AHEAD_S, cell.name, cell.name)
    if cell.refused:
        await bench.proxy.refuse()
        await bench.logged(action="preflight_failed", deployment_id=cell.name)
        await bench.proxy.reset()


async def _health(bench: Bench, cell: Cell) -> None:
    bench.proxy.plan(START, cell.name, LastWord() if cell.refused else DropResponse())
    if not cell.refused:
        bench.proxy.plan_health_after_start(cell.name, *cell.modes)
    await bench.due_in(0.7, cell.name, cell.name)
    if cell.refused or cell.stuck:  # a plain run's grace is over sooner than a health that nobody answers
        await _heal_when_down(bench, cell)


async def _judge_by_inspect(bench: Bench, cell: Cell) -> None:
    run_id = await bench.interrupted(cell.name, cell.name)
    bench.proxy.plan(RESUME, cell.name, LastWord() if cell.refused else DropResponse())
    bench.proxy.plan(INSPECT, cell.name, Pass(), *([] if cell.refused else cell.modes))
    resuming = asyncio.create_task(_resume_until_heard(bench, run_id))
    if cell.refused:
        await _heal_when_down(bench, cell)
    await resuming


async def _judge_by_repeat(bench: Bench, cell: Cell) -> None:
    """Health still answers on a connection that rests, and the repeat, which wants one of its own, is refused."""
    modes = [LastWord(sever=False)] if cell.refused else [DropResponse(), *cell.modes]
    bench.proxy.plan(START, cell.name, *modes)
    await bench.due_in(0.7, cell.name, cell.name)
    if cell.refused:
        await _heal_when_down(bench, cell)


async def _heal_when_down(bench: Bench, cell: Cell) -> None:
    lost = await bench.logged(action="call_lost", schedule_id=cell.name)
    await bench.log.until(lambda one: one["action"] == "server_down", seconds=30, since=lost)
    await bench.proxy.reset()
