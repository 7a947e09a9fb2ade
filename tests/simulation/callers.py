"""What callers ask for: creates, edits, pauses, resumes of runs, and everything that reads.

Owns: one operator who acts at random, and what an acknowledged call must have left on the disk (invariant 4 of DESIGN.md).
Must never know: what else goes wrong meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from scheduler_daemon.core.model import Cron, Definition, OneShot, Trigger
from scheduler_daemon.core.queries import ScheduleView
from tests.simulation.daemon import Answer
from tests.simulation.model import RunAccount, Violation
from tests.simulation.plan import FOCUS
from tests.simulation.world import World

EXPRESSIONS = (
    "* * * * *",
    "* * * * *",
    "*/2 * * * *",
    "1-59/3 * * * *",
    "*/5 * * * *",
    "0 * * * *",
    "15,45 * * * *",
    "30 9 * * *",
)
BINDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"n": {"value": 7}},
    {"at": {"from": "occurrence.instant"}, "before": {"from": "occurrence.previous_instant"}},
    {"id": {"from": "schedule.id"}, "revision": {"from": "schedule.revision"}, "run": {"from": "run.id"}},
    {"local": {"from": "occurrence.local_time"}},
)
ACTIONS = {
    "create": 10,
    "update": 4,
    "pause": 2,
    "resume": 3,
    "delete": 1,
    "unblock": 2,
    "resume_run": 8,
    "abandon_run": 1,
    "read": 3,
}


class Callers:
    """`go_on` acts until it is cancelled."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.stream("callers")
        self._numbers = 0
        self._weights = {**ACTIONS, **FOCUS[world.plan.focus]}
        self._asking = world.plan.focus == "resumes"

    async def begin(self) -> None:
        """Some schedules to begin with, before anything goes wrong."""
        for _ in range(self.chance.randint(1, self.world.plan.schedules_max)):
            await self._create()

    async def go_on(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.world.plan.act_s))
            name = self.chance.choices(list(self._weights), list(self._weights.values()))[0]
            action: Callable[[], Awaitable[None]] = getattr(self, f"_{name}")
            task = asyncio.ensure_future(action())
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.violated(error)

    # --- schedules ---

    async def _create(self) -> None:
        waiting = [one for one in self.world.ledger.schedules.values() if not (one.deleted or one.over)]
        if len(waiting) >= self.world.plan.schedules_max:
            return
        self._numbers += 1
        answer = await self.world.ask("create", self._definition(f"s{self._numbers}"), leave_s=self._patience_s())
        self._acknowledged(answer)

    def _definition(self, schedule_id: str) -> Definition:
        chance = self.chance
        parallel = chance.random() < 0.4
        return Definition(
            schedule_id=schedule_id,
            deployment_id="ask" if self._asking else chance.choice(list(self.world.server.deployments)),
            trigger=self._trigger(),
            input=chance.choice(BINDINGS),
            overlap="parallel" if parallel else "skip",
            max_active_runs=chance.randint(1, 3) if parallel else None,
            misfire=chance.choice(("skip", "latest")),
            lateness_s=chance.choice((None, None, 2, 20, 120)),
            max_steps=5 if chance.random() < 0.2 else None,
            hold_unknown_s=chance.choice((0.0, 0.0, 45.0)),
            run_timeout_s=chance.choice((None, None, 5.0, 40.0)),
        )

    def _trigger(self) -> Trigger:
        if self.chance.random() < 0.5:
            return OneShot(
                self.world.clock.now().at
                + timedelta(seconds=self.chance.choice((2.0, 20.0, 200.0)) * self.chance.random())
            )
        return Cron(self.chance.choice(EXPRESSIONS), self.chance.choice(("UTC", "Asia/Kathmandu")))

    def _patience_s(self) -> float | None:
        """Few callers go away before they are answered."""
        return self.chance.expovariate(20.0) if self.chance.random() < 0.05 else None

    def _any(self) -> str:
        known = list(self.world.ledger.schedules)
        return self.chance.choice(known) if known and self.chance.random() < 0.97 else "nobody"

    async def _update(self) -> None:
        schedule_id, chance = self._any(), self.chance
        account = self.world.ledger.schedules.get(schedule_id)
        stale = chance.random() < 0.1
        expected = (account.revision if account is not None else 1) - stale
        overlap: dict[str, Any] = chance.choice(
            ({"overlap": "skip"}, {"overlap": "parallel", "max_active_runs": chance.randint(1, 3)})
        )
        changes: dict[str, Any] = chance.choice(
            (
                {"trigger": self._trigger()},
                {"misfire": chance.choice(("skip", "latest"))},
                {"input": chance.choice(BINDINGS)},
                {"lateness_s": chance.choice((2, 60)), "hold_unknown_s": 45.0},
                {"deployment_id": chance.choice(list(self.world.server.deployments))},
                overlap,
                {"misfire": None},
            )
        )
        answer = await self.world.ask("update", schedule_id, expected, changes, leave_s=self._patience_s())
        if stale and answer.how == "ok":
            raise Violation(f"{schedule_id}: updated at a revision that it is not at")
        self._acknowledged(answer)

    async def _pause(self) -> None:
        answer = await self.world.ask("pause", self._any(), None, leave_s=self._patience_s())
        self._acknowledged(answer)

    async def _resume(self) -> None:
        paused = [key for key, one in self.world.ledger.schedules.items() if one.paused and not one.deleted]
        schedule_id = self.chance.choice(paused) if paused and self.chance.random() < 0.8 else self._any()
        self._acknowledged(await self.world.ask("resume", schedule_id, None))

    async def _delete(self) -> None:
        if self.chance.random() < 0.3:
            self._acknowledged(await self.world.ask("delete", self._any(), "not needed"))

    async def _unblock(self) -> None:
        ledger, behind_at = self.world.ledger, self.world.clock.now().at + timedelta(seconds=120.0)
        alive = {key: one for key, one in ledger.schedules.items() if not one.deleted}
        blocked = [key for key, one in alive.items() if one.blocked or one.watermark(ledger.decided_at) > behind_at]
        schedule_id = self.chance.choice(blocked) if blocked and self.chance.random() < 0.8 else self._any()
        self._acknowledged(await self.world.ask("unblock", schedule_id, "seen"))

    def _acknowledged(self, answer: Answer) -> None:
        """Whatever was answered is on the disk: what the view says of the schedule, the records say as well."""
        view = answer.value
        if answer.how != "ok" or not isinstance(view, ScheduleView):
            return
        account = self.world.ledger.schedules[view.schedule_id]
        if account.revision < view.revision:
            raise Violation(
                f"{view.schedule_id}: revision {view.revision} was acknowledged, {account.revision} is durable"
            )
        shown = (view.paused, view.blocked, view.deleted)
        if account.revision == view.revision and shown != (account.paused, account.blocked, account.deleted):
            raise Violation(f"{view.schedule_id}: acknowledged as {shown}, which the records do not say")

    # --- runs ---

    def _interrupted(self) -> RunAccount | None:
        waiting = [run for run in self.world.ledger.runs.values() if run.phase == "interrupted"]
        return self.chance.choice(waiting) if waiting else None

    def _some_run(self) -> RunAccount | None:
        runs = list(self.world.ledger.runs.values())
        return self.chance.choice(runs) if runs else None

    async def _resume_run(self) -> None:
        run = self._interrupted() if self.chance.random() < 0.85 else self._some_run()
        if run is None:
            return
        wait, leave_s = self.chance.random() < 0.7, None
        if wait and self.chance.random() < 0.4:
            leave_s = self.chance.expovariate(1 / 2.0)
            self.world.server.later(leave_s, self._deserts, run)
        if self.chance.random() < 0.15:  # somebody else has the same idea
            asyncio.ensure_future(
                self.world.ask("resume_run", run.run_id, {"ok": False}, "submitted", wait=True)
            ).add_done_callback(self._ended)
        run_id = run.server_run_id if run.server_run_id is not None and self.chance.random() < 0.2 else run.run_id
        attempts, before = run.attempts, run.phase
        answer = await self.world.ask("resume_run", run_id, {"ok": True}, "submitted", wait=wait, leave_s=leave_s)
        if answer.how == "ok" and (before != "interrupted" or run.attempts == attempts):
            raise Violation(f"{run_id}: a resume was acknowledged that nothing durable tells of (it was {before})")

    def _deserts(self, run: RunAccount) -> None:
        """Its caller goes away now: from the attempt that is open, or from one whose mark is just being written.

        Which number that is was not known when it was asked for: somebody else's attempt may have come first.
        """
        self.world.truth.deserted |= {f"{run.key}:{attempt}" for attempt in (run.attempts, run.attempts + 1)}

    async def _abandon_run(self) -> None:
        run = self._interrupted() if self.chance.random() < 0.8 else self._some_run()
        if run is not None and self.chance.random() < 0.4:
            answer = await self.world.ask("abandon_run", run.run_id, "nobody will answer")
            if answer.how == "ok" and run.reason != "abandoned":
                raise Violation(f"{run.run_id}: said to be abandoned, but is {run.phase}")

    # --- reads ---

    async def _read(self) -> None:
        run = self._some_run()
        if run is not None:
            await self.world.ask("inspect_run", run.run_id)
        schedule_id = self._any()
        await self.world.ask("get", schedule_id)
        await self.world.ask("list", include_deleted=True, deployment_id=None, state=None, cursor=None, limit=2)
        await read_history(self.world, schedule_id, self.chance.choice((1, 3, 50)))
        await self.world.ask("checks")
        await self.world.ask("figures")


async def read_history(world: World, schedule_id: str, limit: int) -> None:
    """Pages put together are the whole history, in order, although it grows meanwhile."""
    cursor, found = None, []
    while True:
        answer = await world.ask("occurrences", schedule_id, cursor, limit)
        if answer.how != "ok":
            return
        rows, cursor = answer.value
        found += [row for row in rows if row.status != "pending"]
        if cursor is None:
            break
    whole = world.disk.rows.get(schedule_id, [])
    shown = [(row.n, row.status, row.instant) for row in found]
    if shown != [(row.n, row.status, row.instant) for row in whole[: len(shown)]]:
        raise Violation(f"{schedule_id}: its pages are not its history")
