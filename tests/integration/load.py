"""A daemon and a server under steady load, which are killed and come back, and a checker that believes neither.

Owns: the load (so many one-shots due each second, some of which ask, some of which are answered), the killing, and the comparison
of the server's execution log with the daemon's history.  Must never know: why the daemon judged as it did.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self

from rpc_client.errors import AmbiguousOutcome, RpcError
from tests.fakes.http import HttpFace
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer, ServerGone
from tests.integration.matrix import FINAL, KEYED, RESUME, START, figures_of
from tests.integration.process import Daemon, rows_of, until

DUE_PER_S = 20
AHEAD_S = (0.5, 8.0)
"""How far ahead of its instant a one-shot is created: far enough that some become due while the daemon is down."""

CREATES_MAX = 8
Victim = Literal["daemon", "server", "both"]

_QUICK, _SLOW, _ASKING = "quick.default", "slow.default", "asking.default"
_SHARES = ((_QUICK, 0.4), (_SLOW, 0.35), (_ASKING, 0.25))
_DONE = Complete(steps=3, delay_s=0.3)
_ANSWERED, _ANSWERED_ELSEWHERE = 0.6, 0.2
"""Which part of the interrupts is answered through the daemon, and at the server; the rest waits for good."""


class Load:
    """One store, one server and their victims; `async with` starts both, `checked` ends the load and judges it."""

    def __init__(self, folder: Path, *, keyed: bool, seed: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(seed)
        self.fake = FakeWorkflowServer(
            [
                Deployment(deployment_id=_QUICK, script=Complete()),
                Deployment(deployment_id=_SLOW, script=Complete(delay_s=0.6)),
                Deployment(deployment_id=_ASKING, script=Interrupt(then=_DONE, delay_s=0.1)),
            ],
            features=KEYED if keyed else (),
            announces_instance=True,
        )
        self.keyed = keyed
        self.face = HttpFace(self.fake)
        self.acknowledged: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._folder = folder
        self._up = asyncio.Event()
        self._stack = AsyncExitStack()
        self._made = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._creates: set[asyncio.Task[None]] = set()
        self._answered: set[str] = set()

    async def __aenter__(self) -> Self:
        await self.face.start()
        self._stack.push_async_callback(self.face.stop)
        self._stack.callback(self.fake.kill)
        self.daemon = Daemon(self._folder, server=self.face.url, options=("--max-concurrent-runs", "100"))
        self.daemon.environment = {"SCHEDULER_RECONCILE_GRACE_S": "3"}
        await self._stack.enter_async_context(self.daemon)
        self.app = await self._stack.enter_async_context(self.daemon.app())
        self._up.set()
        self._began = time.monotonic()
        self._tasks = [asyncio.create_task(self._create()), asyncio.create_task(self._answer())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._calls):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._calls, return_exceptions=True)
        await self._stack.aclose()

    # --- the load ----------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        """Keep so many one-shots due each second, also those in which the daemon is down."""
        due = datetime.now(UTC)
        while True:
            await self._up.wait()
            now = datetime.now(UTC)
            due = max(due, now + timedelta(seconds=AHEAD_S[0]))
            if due < now + timedelta(seconds=AHEAD_S[1]) and len(self._creates) < CREATES_MAX:
                self._made += 1
                later = timedelta(seconds=self.chance.random() / DUE_PER_S)
                creating = self._call(self._create_one(f"s-{self._made:06d}", due + later))
                self._creates.add(creating)
                creating.add_done_callback(self._creates.discard)
                due += timedelta(seconds=1 / DUE_PER_S)
            else:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0)

    async def _create_one(self, schedule_id: str, due: datetime) -> None:
        names, weights = zip(*_SHARES, strict=True)
        try:
            await self.app.create_schedule(
                schedule_id=schedule_id,
                deployment_id=self.chance.choices(names, weights)[0],
                trigger={"kind": "oneshot", "at": due.isoformat()},
                input={"id": {"from": "schedule.id"}},
            )
        except AmbiguousOutcome:
            self.counts["creates in doubt"] += 1
        except RpcError as refused:
            self.counts[f"creates refused {refused.code}"] += 1
        else:
            self.acknowledged.add(schedule_id)

    async def _answer(self) -> None:
        """Answer interrupts: through the daemon, at the server, or never."""
        while True:
            await asyncio.sleep(0.1)
            for run in list(self.fake._runs.values()):
                if run.status != "interrupted" or run.run_id in self._answered:
                    continue
                self._answered.add(run.run_id)
                lot = self.chance.random()
                if lot < _ANSWERED:
                    self._call(self._resume(run.run_id, wait=self.chance.random() < 0.7))
                elif lot < _ANSWERED + _ANSWERED_ELSEWHERE:
                    self._call(self._resume_elsewhere(run.run_id))

    async def _resume(self, run_id: str, *, wait: bool) -> None:
        """One resume by the server's id, which the daemon may not have heard of yet."""
        for _ in range(20):
            await asyncio.sleep(self.chance.uniform(0.05, 0.6))
            await self._up.wait()
            try:
                await self.app.resume_run(run_id, resume_payload={"approved": True}, wait=wait)
            except RpcError as refused:
                self.counts[f"resumes refused {refused.code}"] += 1
                if refused.code in ("RunNotFound", "ServerUnavailable", "NotReached"):
                    continue
            else:
                self.counts["resumes answered"] += 1
            return

    async def _resume_elsewhere(self, run_id: str) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        with contextlib.suppress(ServerGone, Exception):
            await self.fake.call(RESUME, {"run_id": run_id, "resume_payload": {"approved": True}}, key=f"man:{run_id}")
            self.counts["resumes elsewhere"] += 1

    def _call(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    # --- the killing -------------------------------------------------------------------------------------------------

    async def kill(self, victim: Victim) -> None:
        """At a random moment, and back again after a random time."""
        await asyncio.sleep(self.chance.uniform(0.05, 2.5))
        if victim == "both":
            victim = self.chance.choice(("daemon", "server", "both"))
        match victim:
            case "daemon":
                await self._kill_daemon()
            case "server":
                await self._kill_server()
            case "both":
                await asyncio.gather(self._kill_daemon(), self._kill_server())

    async def _kill_daemon(self) -> None:
        self._up.clear()
        await self.daemon.kill()
        self.counts["daemon killed"] += 1
        if self.chance.random() < 0.25:  # somewhere between its first line and its first decisions
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.chance.uniform(0.3, 2.0)):
                    await self.daemon.start()
                    await asyncio.sleep(2.0)
            await self.daemon.kill()
            self.counts["daemon killed while it started"] += 1
        await self.daemon.start()
        self._up.set()

    async def _kill_server(self) -> None:
        self.counts["cut off at the server"] += self.fake.executing
        await self.face.kill()
        self.counts["server killed"] += 1
        await asyncio.sleep(self.chance.uniform(0.0, 0.8))
        await self.face.restart()

    # --- the judgement -----------------------------------------------------------------------------------------------

    async def checked(self) -> list[str]:
        """End the load, wait until nothing is open, and compare; what does not fit is returned, counts are kept."""
        self._tasks[0].cancel()
        under_load_s = time.monotonic() - self._began
        await until(self._is_quiet, seconds=300, every_s=1.0)
        self._tasks[1].cancel()
        existing = {one["schedule_id"]: one async for one in self.app.schedules(page_limit=1000)}
        wrong = [f"{one}: acknowledged and missing" for one in self.acknowledged - set(existing)]
        self.counts["created"] = len(existing)
        self.counts["seconds under load"] = round(under_load_s)
        twice = Counter(one.key for one in self.fake.execution_log if one.key is not None)
        wrong += [f"{key}: executed {n} times" for key, n in twice.items() if n > 1]
        for schedule_id, schedule in existing.items():
            rows = await rows_of(self.app, schedule_id)
            wrong += [f"{schedule_id}: {what}" for what in self._judge(schedule, rows)]
        return wrong

    async def _is_quiet(self) -> bool:
        """Nothing is open, held or disagreed about: what was answered at the server has been noticed."""
        figures = await figures_of(self.daemon)
        busy = sum(
            value
            for name, value in figures.items()
            if name.startswith("scheduler_candidates{")
            or (name.startswith("scheduler_runs{") and 'phase="interrupted"' not in name)
        )
        waiting = [one async for one in self.app.schedules(page_limit=1000)]
        disagreed = [
            run["server_run_id"]
            for one in waiting
            for run in one["active_runs"]
            if run["status"] == "interrupted" and self.fake._runs[run["server_run_id"]].status != "interrupted"
        ]
        undecided = [one for one in waiting if one["next_instants"]]
        return not (busy or disagreed or undecided or self._calls or self.fake.executing)

    def _judge(self, schedule: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
        schedule_id = schedule["schedule_id"]
        finals = [row for row in rows if row["status"] in FINAL]
        begun = self._starts().get(schedule_id, [])
        wrong = []
        if len(begun) > 1:
            wrong.append(f"executed {len(begun)} times")
        if len({row["run_id"] for row in rows if row["run_id"] is not None}) > 1:
            wrong.append("more than one run")
        if len(finals) > 1 or (finals and rows[-1] is not finals[0]):
            wrong.append(f"final rows {[row['status'] for row in finals]}")
        end = finals[-1] if finals else None
        self.counts[f"ended {end['status']} {end['reason'] or ''}".strip() if end else "interrupted still"] += 1
        stored = self.fake._runs.get(begun[0]) if begun else None
        if not self._fits(schedule, end, began=bool(begun), stored=stored.status if stored else None):
            wrong.append(
                f"row {end and (end['status'], end['reason'])}, server {stored and stored.status}, began {begun}"
            )
        return wrong

    def _starts(self) -> dict[str, list[str]]:
        """The server's runs by schedule, from its execution log."""
        if self._log_read != len(self.fake.execution_log):
            self._by_schedule: dict[str, list[str]] = {}
            for one in self.fake.execution_log:
                if one.method == START:
                    self._by_schedule.setdefault(one.input["id"], []).append(one.run_id)
            self._log_read = len(self.fake.execution_log)
        return self._by_schedule

    _log_read = -1

    def _fits(self, schedule: dict[str, Any], end: dict[str, Any] | None, *, began: bool, stored: str | None) -> bool:
        """Whether the last row may stand beside what the server did; nothing here is a reason to block a schedule."""
        if schedule["diagnostics"]:
            return False
        if end is None:
            phases = [(run["status"], run["ambiguous"]) for run in schedule["active_runs"]]
            return stored == "interrupted" and phases == [("interrupted", False)]
        match end["status"], end["reason"]:
            case "completed", None:
                return stored == "completed"
            case "failed", None:
                return self.keyed and stored == "failed"
            case "failed", "outcome-unknown":
                return not self.keyed and "may already have happened" in end["detail"]["message"]
            case (("skipped-misfire" | "superseded"), _):
                return not began
            case _:
                return False
