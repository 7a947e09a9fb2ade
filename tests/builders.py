"""One builder per thing that the tests of the core need, and `World`, which drives the core by hand.

Owns: literal instants, definitions, server facts and results with defaults, and a virtual `Now`.  Must never know: what a plan ought
to contain; each test says that.  What holds in every plan of every test is checked here after each turn (`tests/invariants.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import events as ev
from scheduler_daemon.core.commands import Plan, Preflight
from scheduler_daemon.core.decide import decide, next_wake
from scheduler_daemon.core.events import row_of
from scheduler_daemon.core.handle import handle
from scheduler_daemon.core.model import (
    Cron,
    Definition,
    Now,
    OneShot,
    Result,
    Row,
    Run,
    Schedule,
    ServerFacts,
    Settings,
)
from scheduler_daemon.core.observe import observe
from scheduler_daemon.core.queries import ScheduleView, schedule_view
from scheduler_daemon.core.state import State
from tests.invariants import Watch, rebuilt

DAY = "2026-01-05"
"""A Monday in winter, far from every clock change."""

MINUTELY, HOURLY, DAILY = "* * * * *", "0 * * * *", "0 9 * * *"
KEYED = ("idempotent-start",)
URL = "http://server.example:8765"

E = TypeVar("E", bound=cmd.Effect)


def at(text: str) -> datetime:
    """`09:00`, `09:00:30.5` on `DAY`, or `2026-01-06 09:00`; always UTC."""
    day, _, time = text.rpartition(" ")
    return datetime.fromisoformat(f"{day or DAY}T{time}").replace(tzinfo=UTC)


def clock(instant: datetime | None) -> str:
    """The other way round, for asserts that read like a timetable: the day only where it is not `DAY`."""
    if instant is None:
        return "-"
    day, time = instant.strftime("%Y-%m-%d"), instant.strftime("%H:%M:%S").removesuffix(":00")
    return time if day == DAY else f"{day} {time}"


def definition(
    schedule_id: str = "daily", cron: str | None = None, at: datetime | None = None, **fields: Any
) -> Definition:
    """A cron of every minute unless `cron` or `at` (one-shot) says otherwise."""
    trigger = OneShot(at) if at is not None else Cron(cron or MINUTELY, fields.pop("timezone", "UTC"))
    return Definition(
        schedule_id=schedule_id, deployment_id=fields.pop("deployment_id", "dep"), trigger=trigger, **fields
    )


def facts(*features: str, instance_id: str = "i1", store_root: str = "/srv/a", url: str = URL) -> ServerFacts:
    return ServerFacts(url, store_root, instance_id, features)


def preflight(deployment_id: str = "dep", **fields: Any) -> Preflight:
    return Preflight(deployment_id=deployment_id, artifact_id="art", artifact_version=1, **fields)


def result(status: str = "completed", server_run_id: str | None = "run_a", **fields: Any) -> Result:
    return Result(status=status, server_run_id=server_run_id, **fields)


class World:
    """A state, a clock, and the effects that nobody has answered yet.

    Each turn is what the engine makes of one input: a draft, the input's plan, a decision, a merge.  `attended`: probes and preflight
    questions are answered at once, by the server as `server` and `preflights` describe it.  `checked` False: too many schedules for it;
    `compared` False: the test changed the calendar under the agenda, so that a rebuilt one must differ.
    """

    def __init__(
        self, start: str = "08:59:30", *, attended: bool = True, checked: bool = True, **settings: Any
    ) -> None:
        self.now = Now(at(start), 1000.0)
        self.state = State("store", Settings(server_url=URL, **settings))
        self.journal: list[ev.Event] = []
        self._rows: dict[str, list[Row]] = {}
        self.open: list[cmd.Effect] = []
        self.logs: list[cmd.LogLine] = []
        self.attended = attended
        self.checked = checked
        self.compared = True
        self.server: ServerFacts | None = facts()
        self.preflights: dict[str, Preflight] = {}
        self.watch = Watch(self.state)
        self.state.rebuild_agenda(self.now)
        self.restart()

    # --- time ---

    def pass_s(self, seconds: float) -> Plan:
        """Both clocks go on by so much, then a wake."""
        self.now = Now(self.now.at + timedelta(seconds=seconds), self.now.mono + seconds)
        return self.wake()

    def until(self, text: str) -> Plan:
        """Straight to that moment, as after a suspend; then a wake."""
        return self.pass_s((at(text) - self.now.at).total_seconds())

    def live_until(self, text: str) -> None:
        """To that moment through every wake that the core asks for, as the engine does."""
        end = at(text)
        while self.now.at < end:
            wake_at, wake_mono = next_wake(self.state)
            waits = [(end - self.now.at).total_seconds()]
            waits += [(wake_at - self.now.at).total_seconds()] if wake_at is not None else []
            waits += [wake_mono - self.now.mono] if wake_mono is not None else []
            self.pass_s(max(min(waits), 0.001))

    def live_s(self, seconds: float) -> None:
        """As `live_until`, for so long."""
        self.live_until((self.now.at + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f"))

    def asleep_until(self, text: str) -> None:
        """Both clocks go on to that moment and nobody wakes: the next command finds what is due undecided."""
        gone_s = (at(text) - self.now.at).total_seconds()
        self.now = Now(at(text), self.now.mono + gone_s)

    def set_clock(self, text: str) -> Plan:
        """The wall clock is set and nothing else passes."""
        step_s = (at(text) - self.now.at).total_seconds()
        self.now = Now(at(text), self.now.mono)
        return self.observe(cmd.Stepped(step_s))

    # --- turns ---

    def wake(self) -> Plan:
        return self._turn([])

    def command(self, command: cmd.Command) -> Any:
        """The reply; raises `Rejected`, and then nothing happened."""
        return self._turn([command]).reply

    def observe(self, observation: cmd.Observation) -> Plan:
        return self._turn([observation])

    def _turn(self, inputs: Sequence[cmd.Command | cmd.Observation]) -> Plan:
        twin = rebuilt(self.state, self.now) if self.checked and self.compared else None
        draft = self.state.draft(self.now)
        try:
            plan = _plan(draft, inputs)
        except cmd.Rejected:
            draft.drop()
            raise
        draft.merge()
        self.journal += plan.events
        for row in filter(None, map(row_of, plan.events)):
            self._rows.setdefault(row.schedule_id, []).append(row)
        self.logs += plan.logs
        self.open += plan.effects
        if self.checked:
            from_rebuilt = _plan(twin.draft(self.now), inputs) if twin is not None else None
            self.watch.turn(self.state, self.now, plan, from_rebuilt)
        self._attend()
        return plan

    def _attend(self) -> None:
        while self.attended:
            probe, ask = self._next(cmd.Probe), self._next(cmd.AskPreflight)
            if probe is not None:
                self.open.remove(probe)
                self._health(probe)
            elif ask is not None:
                self.open.remove(ask)
                said = self.preflights.get(ask.deployment_id, preflight(ask.deployment_id))
                self.observe(cmd.PreflightAnswered(ask.seq, ask.deployment_id, self.now.at, said))
            else:
                return

    def _next(self, kind: type[E]) -> E | None:
        return next((effect for effect in self.open if isinstance(effect, kind)), None)

    def _health(self, probe: cmd.Probe) -> None:
        if self.server is not None:
            self.observe(cmd.ServerSeen(probe.seq, self.server))
        else:
            self.observe(cmd.ServerMissed(probe.seq, "refused"))

    # --- the daemon's life ---

    def restart(self) -> None:
        """What a crash and a new start do: the journal is what is left, folded on a fresh state."""
        epoch = ev.EpochStarted(at=self.now.at, epoch=self.state.globals.epoch + 1)
        self.journal.append(epoch)
        self.open.clear()
        self.state = self.watch.restarted(self.journal, self.now)
        self._turn([])

    # --- the server ---

    def server_up(self, *features: str, **fields: str) -> None:
        """A server with these features answers health and first contact."""
        self.server = facts(*features, **fields)
        known = self.state.globals.server.facts
        while not self.state.globals.server.up or known != self.server:
            self.health(*features, **fields)
            known = self.server

    def health(self, *features: str, **fields: str) -> Plan:
        """The open probe, or the next one, is answered once."""
        self.server = facts(*features, **fields)
        return self._probe_now()

    def server_down(self) -> Plan:
        """From now on probes go unanswered, and one that failed has been noticed."""
        self.server = None
        return self.observe(cmd.ServerMissed(0, "refused"))

    def _probe_now(self) -> Plan:
        probe = self._next(cmd.Probe)
        if probe is None:
            return self.pass_s(max(0.0, self.state.globals.server.probe_mono - self.now.mono))
        self.open.remove(probe)
        assert self.server is not None
        return self.observe(cmd.ServerSeen(probe.seq, self.server))

    def answer(self, deployment_id: str = "dep", *, asked_at: datetime | None = None, **fields: Any) -> Plan:
        """The open question about that deployment is answered: runnable, unless `diagnostics` or `known` say otherwise."""
        ask = next(one for one in self.all(cmd.AskPreflight) if one.deployment_id == deployment_id)
        self.open.remove(ask)
        said = preflight(deployment_id, **fields)
        return self.observe(cmd.PreflightAnswered(ask.seq, deployment_id, asked_at or self.now.at, said))

    def answer_fails(self, deployment_id: str = "dep") -> Plan:
        """The open question about that deployment comes to nothing."""
        ask = next(one for one in self.all(cmd.AskPreflight) if one.deployment_id == deployment_id)
        self.open.remove(ask)
        return self.observe(cmd.PreflightAnswered(ask.seq, deployment_id, self.now.at, None, "timeout"))

    def unrunnable(self, deployment_id: str = "dep") -> None:
        """From now on the server says that this deployment cannot run."""
        self.preflights[deployment_id] = preflight(deployment_id, diagnostics=({"code": "broken"},))

    # --- calls ---

    def all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.open if isinstance(effect, kind)]

    def one(self, kind: type[E]) -> E:
        """The only open effect of that kind."""
        (effect,) = self.all(kind)
        return effect

    def call(self, run_id: str = "run-000001") -> cmd.StartCall | cmd.ResumeCall:
        """The open start or resume of that run."""
        calls = [*self.all(cmd.StartCall), *self.all(cmd.ResumeCall)]
        (found,) = [call for call in calls if call.run_id == run_id]
        return found

    def answered(self, run_id: str = "run-000001", status: str = "completed", **fields: Any) -> Plan:
        """The server's result for the open call of that run."""
        call = self._ended(run_id)
        said = result(status, **{"server_run_id": f"server-{run_id}", **fields})
        return self.observe(cmd.CallAnswered(call.seq, call.schedule_id, run_id, said))

    def refused(self, run_id: str = "run-000001", code: int = -32603, message: str = "no", data: Any = None) -> Plan:
        call = self._ended(run_id)
        return self.observe(cmd.CallRefused(call.seq, call.schedule_id, run_id, code, message, data))

    def not_sent(self, run_id: str = "run-000001", *, server_down: bool = False) -> Plan:
        call = self._ended(run_id)
        if server_down:
            self.server = None
        return self.observe(cmd.CallNotSent(call.seq, call.schedule_id, run_id, "refused", server_down))

    def lost(self, run_id: str = "run-000001", *, caller_gone: bool = False) -> Plan:
        call = self._ended(run_id)
        return self.observe(cmd.CallLostSight(call.seq, call.schedule_id, run_id, "reset", caller_gone))

    def _ended(self, run_id: str) -> cmd.StartCall | cmd.ResumeCall:
        call = self.call(run_id)
        self.open.remove(call)
        return call

    def inspected(self, said: Result | None = None, *, known: bool = True, failed: str | None = None) -> Plan:
        """The answer to the only open inspection."""
        ask = self.one(cmd.InspectRun)
        self.open.remove(ask)
        return self.observe(
            cmd.RunInspected(
                seq=ask.seq,
                schedule_id=ask.schedule_id,
                run_id=ask.run_id,
                attempt=ask.attempt,
                known=known,
                result=said,
                failed=failed,
            )
        )

    def listed(self, *server_run_ids: str) -> Plan:
        """The answer to the only open listing."""
        ask = self.one(cmd.ListStopped)
        self.open.remove(ask)
        return self.observe(cmd.StoppedListed(ask.seq, ask.schedule_id, ask.run_id, server_run_ids))

    # --- commands ---

    def create(
        self, schedule_id: str = "daily", cron: str | None = None, at: datetime | None = None, **fields: Any
    ) -> ScheduleView:
        made = definition(schedule_id, cron, at, **fields)
        return self.command(cmd.Create(made, preflight(made.deployment_id), ("max-steps",)))

    def update(self, schedule_id: str = "daily", *, revision: int | None = None, **changes: Any) -> ScheduleView:
        expected = revision if revision is not None else self.state.schedules[schedule_id].revision
        deployment_id = changes.get("deployment_id") or self.state.schedules[schedule_id].definition.deployment_id
        return self.command(
            cmd.Update(
                schedule_id=schedule_id,
                expected_revision=expected,
                changes=changes,
                preflight=preflight(deployment_id),
                features=("max-steps",),
            )
        )

    def pause(self, schedule_id: str = "daily", note: str | None = None) -> ScheduleView:
        return self.command(cmd.Pause(schedule_id, note))

    def resume(self, schedule_id: str = "daily", note: str | None = None) -> ScheduleView:
        return self.command(cmd.Resume(schedule_id, note))

    def delete(self, schedule_id: str = "daily", note: str | None = None) -> ScheduleView:
        return self.command(cmd.Delete(schedule_id, note))

    def unblock(
        self, schedule_id: str = "daily", note: str = "looked at it", *, rowed: tuple[datetime, ...] | None = None
    ) -> Any:
        """`rowed` is what the store would find, unless given."""
        found = tuple(
            row.instant for row in self.rows(schedule_id) if row.instant is not None and row.instant > self.now.at
        )
        return self.command(cmd.Unblock(schedule_id, note, found if rowed is None else rowed))

    def resume_run(self, run_id: str = "run-000001", fresh: Result | None = None) -> Any:
        said = fresh if fresh is not None else result("interrupted", f"server-{run_id}", trace_count=1)
        return self.command(cmd.ResumeRun(run_id=run_id, payload={"ok": True}, outcome="submitted", fresh=said))

    def abandon(self, run_id: str = "run-000001") -> Any:
        return self.command(cmd.AbandonRun(run_id, "nobody will answer"))

    # --- what there is ---

    def schedule(self, schedule_id: str = "daily") -> Schedule:
        return self.state.schedules[schedule_id]

    def run(self, run_id: str = "run-000001") -> Run:
        """The unfinished run of that id."""
        found = self.state.draft(self.now).run_of(run_id)
        assert found is not None, f"{run_id} is not unfinished"
        return found

    def view(self, schedule_id: str = "daily") -> ScheduleView:
        return schedule_view(self.state, schedule_id, now=self.now)

    def rows(self, schedule_id: str = "daily") -> list[Row]:
        return list(self._rows.get(schedule_id, ()))

    def history(self, schedule_id: str = "daily") -> list[str]:
        """Rows as `09:00 skipped-misfire late`, summaries as `09:00..09:59 x60 …`."""
        return [_line(row) for row in self.rows(schedule_id)]

    def actions(self) -> list[str]:
        return [line.action for line in self.logs]

    def letters(self) -> list[str]:
        """The cases of the recovery table that were judged, in order."""
        return [line.fields["case"] for line in self.logs if line.action in ("reconcile", "outcome_unknown")]


def _plan(draft: Any, inputs: Sequence[cmd.Command | cmd.Observation]) -> Plan:
    whole = Plan()
    for item in inputs:
        plan = handle(draft, item) if isinstance(item, cmd.Command) else observe(draft, item)
        _add(whole, plan)
        whole.reply = plan.reply
    _add(whole, decide(draft))
    return whole


def _add(whole: Plan, plan: Plan) -> None:
    whole.events += plan.events
    whole.effects += plan.effects
    whole.logs += plan.logs


def _line(row: Row) -> str:
    if row.count is not None:
        more = "+" if row.at_least else ""
        when = f"{clock(row.first_instant)}..{clock(row.last_instant)} x{row.count}{more}"
    else:
        when = clock(row.instant)
    return " ".join(word for word in (when, row.status, row.reason) if word)
