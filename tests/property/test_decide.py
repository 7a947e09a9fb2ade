"""The core under arbitrary callers, clocks, restarts and answers: what holds after every turn, and that no instant is lost in silence.

`World` asserts after each turn the invariants of `tests/invariants.py`, among them that deciding again decides nothing and that an
agenda made anew leads to the same plan.  Here the workload is drawn, around a fold and a gap of New York, and the minute scan says which
instants there were.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import decide as deciding
from scheduler_daemon.core import events as ev
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, Diagnostic, OneShot, Schedule, Trigger
from tests.builders import World, definition, preflight, result
from tests.property.minute_scan import scan

NAMES = ("a", "b", "c")
FOLD, GAP = "2026-11-01 05:20", "2026-03-08 06:20"
EXPRESSIONS = ("* * * * *", "*/20 * * * *", "30 1 * * *", "30 1 1 11 *", "30 2 * * *", "0,30 1,2 * * *", "0 * * * 0")
crons = st.builds(Cron, st.sampled_from(EXPRESSIONS), st.sampled_from(("America/New_York", "UTC")))
ahead_s = st.sampled_from((1, 20, 61, 200, 3000, 7200))
passing_s = st.sampled_from((0.5, 2.0, 19.0, 59.0, 61.0, 61.0, 300.0, 1800.0, 3700.0, 7300.0, 180_000.0))
policies = st.fixed_dictionaries(
    {"misfire": st.sampled_from(("skip", "latest"))},
    optional={
        "lateness_s": st.sampled_from((1, 30, 600, 5000)),
        "overlap": st.just("parallel"),
        "hold_unknown_s": st.just(90.0),
    },
).map(lambda fields: {**fields, "max_active_runs": 2} if "overlap" in fields else fields)


class Account:
    """Which instants one schedule had: its triggers, each with the span that it was in force for, as far as not looked at yet."""

    def __init__(self, trigger: Trigger, since: datetime) -> None:
        self._past: list[datetime] = []
        self._trigger, self._since = trigger, since

    def changed(self, trigger: Trigger, at: datetime) -> None:
        self._past += self._pass(at)
        self._trigger, self._since = trigger, max(at, self._since)

    def _pass(self, until: datetime) -> list[datetime]:
        found = _instants(self._trigger, self._since, until)
        self._since = max(self._since, until)
        return found

    def look(self, until: datetime, held: datetime | None) -> list[datetime]:
        """The instants up to there that were not looked at yet; what is held is looked at again."""
        found, self._past = [*self._past, *self._pass(until)], []
        self._past = [instant for instant in found if instant == held]
        return [instant for instant in found if instant != held]


def _instants(trigger: Trigger, after: datetime, until: datetime) -> list[datetime]:
    if until <= after:
        return []
    if isinstance(trigger, OneShot):
        return [trigger.at] if after < trigger.at <= until else []
    return scan(trigger.expression, trigger.timezone, after, until)


class Core(RuleBasedStateMachine):
    @initialize(
        start=st.sampled_from((FOLD, GAP)),
        slots=st.integers(1, 3),
        ttl_s=st.sampled_from((5.0, 300.0)),
        written_max=st.sampled_from((0, 256)),
        keyed=st.booleans(),
    )
    def begin(self, start: str, slots: int, ttl_s: float, written_max: int, *, keyed: bool) -> None:
        self._written_max, deciding.WRITTEN_MAX = deciding.WRITTEN_MAX, written_max
        self.world = World(start, max_concurrent_runs=slots, preflight_ttl_s=ttl_s)
        if keyed:
            self.world.server_up("idempotent-start")
        self.accounts: dict[str, Account] = {}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            note("\n".join(map(repr, self.world.journal)))
            deciding.WRITTEN_MAX = self._written_max

    # --- time ---

    @rule(seconds=passing_s)
    def sleep_through(self, seconds: float) -> None:
        """A suspended machine: one wake at the end."""
        self.world.pass_s(seconds)

    @rule(seconds=st.sampled_from((1.0, 10.0, 70.0, 130.0)))
    def live_through(self, seconds: float) -> None:
        self.world.live_s(seconds)

    @rule(seconds=passing_s)
    def be_down_for(self, seconds: float) -> None:
        at = self.world.now.at + timedelta(seconds=seconds)
        self.world.asleep_until(at.strftime("%Y-%m-%d %H:%M:%S.%f"))
        self.world.restart()

    @rule(seconds=st.sampled_from((-4000.0, -300.0, -20.0, -1.5, 1.5, 20.0, 4000.0)))
    def set_the_clock(self, seconds: float) -> None:
        self.world.set_clock((self.world.now.at + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f"))

    # --- callers ---

    @rule(name=st.sampled_from(NAMES), trigger=crons | ahead_s, fields=policies)
    def create(self, name: str, trigger: Cron | int, fields: dict) -> None:
        if name in self.world.state.schedules:
            return
        made = definition(name, **fields)
        made = type(made)(
            **{key: getattr(made, key) for key in made.__struct_fields__} | {"trigger": self._at(trigger)}
        )
        self.world.command(cmd.Create(made, preflight(), ("max-steps",)))
        self.accounts[name] = Account(made.trigger, self.world.now.at)

    def _at(self, trigger: Cron | int) -> Trigger:
        return trigger if isinstance(trigger, Cron) else OneShot(self.world.now.at + timedelta(seconds=trigger))

    @rule(name=st.sampled_from(NAMES), trigger=st.none() | crons | ahead_s, fields=policies, seconds=passing_s)
    def update(self, name: str, trigger: Cron | int | None, fields: dict, seconds: float) -> None:
        """The edit finds what came due in `seconds` undecided."""
        self.world.now = type(self.world.now)(
            self.world.now.at + timedelta(seconds=seconds), self.world.now.mono + seconds
        )
        changes = {**fields, "trigger": self._at(trigger)} if trigger is not None else fields
        before = self.world.state.schedules.get(name)
        if self._asked(name, lambda: self.world.update(name, **changes)) and before is not None:
            after = self.world.schedule(name)
            if name in self.accounts and after.definition.trigger != before.definition.trigger:
                self.accounts[name].changed(after.definition.trigger, self._changed_at(name))

    def _changed_at(self, name: str) -> datetime:
        """Where the trigger that was just set begins: now, or the watermark that the clock once raised beyond it."""
        events = [one for one in self.world.journal if isinstance(one, ev.ScheduleUpdated) and one.schedule_id == name]
        watermark = self.world.state.watermark_of(self.world.schedule(name))
        return events[-1].at if watermark <= self.world.now.at else watermark

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(("pause", "resume", "delete", "block", "unblock")))
    def close_or_open(self, name: str, what: str) -> None:
        act = {
            "pause": lambda: self.world.pause(name),
            "resume": lambda: self.world.resume(name),
            "delete": lambda: self.world.delete(name),
            "block": lambda: self.world.command(cmd.Block(name, Diagnostic("damaged", "?", self.world.now.at))),
            "unblock": lambda: self._unblock(name),
        }[what]
        self._asked(name, act)

    def _unblock(self, name: str) -> None:
        before = self.world.state.watermark_of(self.world.schedule(name))
        self.world.unblock(name)
        if self.world.state.watermark_of(self.world.schedule(name)) < before:
            self.accounts.pop(name, None)  # rewound: its instants come again, those without a row of their own

    def _asked(self, name: str, act) -> bool:
        if name not in self.world.state.schedules:
            return False
        try:
            act()
        except Rejected as rejected:
            assert rejected.code in ("ScheduleBlocked", "ScheduleDeleted", "InvalidPolicy"), rejected
            self.world.wake()
            return False
        return True

    # --- the server ---

    @precondition(lambda self: any(self.world.all(kind) for kind in (cmd.StartCall, cmd.ResumeCall)))
    @rule(
        data=st.data(),
        how=st.sampled_from(
            ("completed", "failed", "interrupted", "not-sent", "down", "lost", "refused", "unrunnable")
        ),
    )
    def end_a_call(self, data: st.DataObject, how: str) -> None:
        world = self.world
        run_id = data.draw(
            st.sampled_from([call.run_id for kind in (cmd.StartCall, cmd.ResumeCall) for call in world.all(kind)])
        )
        match how:
            case "not-sent" | "down":
                world.not_sent(run_id, server_down=how == "down")
            case "lost":
                world.lost(run_id)
            case "refused":
                world.refused(run_id)
            case _:
                traces = sum(isinstance(event, ev.AttemptMarked) for event in world.journal) + 1
                world.answered(run_id, how, trace_count=traces)

    @precondition(lambda self: bool(self.world.all(cmd.InspectRun)) or bool(self.world.all(cmd.ListStopped)))
    @rule(how=st.sampled_from(("unknown", "failed", "same", "completed")))
    def answer_a_question(self, how: str) -> None:
        world = self.world
        for ask in world.all(cmd.ListStopped)[:1]:
            world.open.remove(ask)
            world.observe(cmd.StoppedListed(ask.seq, ask.schedule_id, ask.run_id, ()))
            return
        ask = world.all(cmd.InspectRun)[0]
        world.open.remove(ask)
        run = world.state.draft(world.now).run_of(ask.run_id)
        seen = run.checkpoint if run is not None else None
        said = {
            "same": result("interrupted", ask.server_run_id, trace_count=seen.trace_count if seen else 0),
            "completed": result("completed", ask.server_run_id, trace_count=99),
        }.get(how)
        world.observe(
            cmd.RunInspected(
                seq=ask.seq,
                schedule_id=ask.schedule_id,
                run_id=ask.run_id,
                attempt=ask.attempt,
                known=how != "unknown",
                result=said,
                failed="timeout" if how == "failed" else None,
            )
        )

    @rule(what=st.sampled_from(("resume", "abandon")))
    def meet_an_interrupt(self, what: str) -> None:
        runs = [run for one in self.world.state.schedules.values() for run in one.runs if run.phase == "interrupted"]
        if runs and not self.world.schedule(runs[0].schedule_id).blocked:
            run = runs[0]
            traces = run.checkpoint.trace_count if run.checkpoint is not None else 0
            fresh = result("interrupted", run.server_run_id, trace_count=traces)
            self.world.abandon(run.run_id) if what == "abandon" else self.world.resume_run(run.run_id, fresh)

    @rule(there=st.booleans(), runnable=st.booleans(), attended=st.booleans())
    def change_the_server(self, *, there: bool, runnable: bool, attended: bool) -> None:
        self.world.attended = True
        self.world.preflights.pop("dep", None)
        if not runnable:
            self.world.unrunnable()
        if not there:
            self.world.server_down()
        elif not (self.world.state.globals.server.up or self.world.state.globals.full):  # nobody is probed without room
            self.world.server_up()
        self.world.attended = attended or not there

    @rule(full=st.booleans())
    def fill_the_disk(self, *, full: bool) -> None:
        self.world.observe(cmd.StoreRoom(full))

    # --- what holds ---

    @invariant()
    def every_instant_that_was_decided_ran_or_has_a_row_or_is_held(self) -> None:
        for name, account in getattr(self, "accounts", {}).items():
            schedule = self.world.schedule(name)
            held = schedule.candidate.instant if schedule.candidate is not None else None
            instants = account.look(self._settled_at(schedule), held)
            rows = self.world.rows(name) if instants else []
            single = {row.instant for row in rows if row.instant is not None}
            ranges = [(row.first_instant, row.last_instant) for row in rows if row.count is not None]
            for instant in instants:
                known = instant in single or any(first <= instant <= last for first, last in ranges)
                assert known, f"{name}: {instant} was passed over in silence"

    def _settled_at(self, schedule: Schedule) -> datetime:
        watermark = self.world.state.watermark_of(schedule)
        return watermark if schedule.span_at is None else min(watermark, schedule.span_at)


LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
Core.TestCase.settings = settings(max_examples=1_000 if LONG else 40, stateful_step_count=40, deadline=None)
test_the_core_under_arbitrary_callers_and_clocks = Core.TestCase
