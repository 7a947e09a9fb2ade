"""The invariants that can be seen in the history: events in, violations out.

Owns: the second account of runs, their order and their slots; invariants 3, 6 and 13 of DESIGN.md; what each batch is checked for.
Must never know: how the core decides.

It is told of each batch in the moment it is durable, so a violation is found at the write that made it.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.model import Mark
from tests.simulation.minutes import instants
from tests.simulation.model import RunAccount, ScheduleAccount
from tests.simulation.schedule_ledger import ScheduleLedger
from tests.simulation.truth import demand

FINALS_OF_SERVER = ("completed", "failed", "exhausted")


class Ledger(ScheduleLedger):
    """`batch` is the only way in."""

    @property
    def slots(self) -> int:
        return sum(run.holds_slot for run in self.runs.values())

    def batch(self, events: Sequence[ev.Event]) -> None:
        self.batches += 1
        self._started.clear()
        self._turns.clear()
        for event in events:
            self.latest_at = max(self.latest_at, event.at)
            if isinstance(event, ev.ScheduleEvent):
                self._count(event)
            getattr(self, f"on_{_words(type(event).__name__)}")(event)
        for run in self._unsent:
            passed_over = run.phase == "admitted" and self.schedules[run.schedule_id].closed_n > run.admitted_n
            demand(not passed_over, f"{run.run_id}: unsent, passed over meanwhile, and not ended")
        self._unsent.clear()

    def _count(self, event: Any) -> None:
        """`n` has no gaps, and `revision` grows by one with each change."""
        known = self.schedules.get(event.schedule_id)
        demand(
            (known.n if known else 0) + 1 == event.n,
            f"{event.schedule_id}: record {event.n} follows {known and known.n}",
        )
        if known is not None:
            known.n = event.n

    # --- runs ---

    def on_run_admitted(self, event: ev.RunAdmitted) -> None:
        schedule = self._fresh(event, event.instant)
        where = f"{event.schedule_id} {event.instant} {event.run_id}"
        demand(schedule.admits, f"{where}: admitted while paused, blocked or deleted")
        demand(
            event.revision == schedule.revision,
            f"{where}: admitted under revision {event.revision}, not {schedule.revision}",
        )
        demand(
            event.number == self._number + 1 and event.key == f"{self._store_id}:{event.run_id}",
            f"{where}: number or key is wrong",
        )
        demand(
            not any(begin < event.instant <= end for begin, end in schedule.spans), f"{where}: lies in a paused span"
        )
        holding = schedule.holding(
            max(event.at, self.latest_at)
        )  # a hold that ran out does not come back with the clock
        demand(len(holding) < schedule.active_max, f"{where}: admitted over {holding}")
        self._as_policy_says(schedule, event, where)
        self._in_turn(schedule, event, where)
        self._number = event.number
        self._started[event.schedule_id] += 1
        wanted = resolved(schedule, event)
        if schedule.rewound:  # which row is the newest earlier one is not well told after a clock was wrong
            wanted = {name: event.input.get(name) if name == "before" else value for name, value in wanted.items()}
        demand(comparable(event.input) == comparable(wanted), f"{where}: pinned {event.input}, not {wanted}")
        run = RunAccount(
            event.run_id,
            event.schedule_id,
            event.instant,
            event.key,
            event.deployment_id,
            event.at,
            event.input,
            event.n,
        )
        self.runs[event.run_id] = schedule.runs[event.run_id] = self.by_key[event.key] = run
        schedule.admitted_at = event.at
        self._rowed(schedule, event.instant, "admitted")

    def _in_turn(self, schedule: ScheduleAccount, event: ev.RunAdmitted, where: str) -> None:
        """Nobody waits for the very same, a slot and an answer about that deployment, who should have come first."""
        mine = schedule.turn(event.instant)
        for other in self.schedules.values():
            if other is not schedule and other.candidate is not None and other.contends_with(schedule, event.at):
                demand(other.turn(other.candidate) > mine, f"{where}: {other.definition.schedule_id} comes first")
        self._turns.append((event.at, schedule.definition.deployment_id, mine))

    def _as_policy_says(self, schedule: ScheduleAccount, event: ev.RunAdmitted, where: str) -> None:
        definition = schedule.definition
        if definition.misfire == "skip":
            demand(
                event.at - event.instant <= schedule.allowance(self._settings.lateness_s),
                f"{where}: admitted late at {event.at}",
            )
            return
        demand(not self._started[event.schedule_id], f"{where}: a burst")
        since = max(event.instant, schedule.watermark(self.decided_at))
        newer = [one for one in instants(definition.trigger, since, event.at) if not schedule.has_row(one)]
        demand(not newer, f"{where}: not the newest, {newer[-1:]} is")

    def _run(self, event: Any, *phases: str) -> RunAccount:
        run = self.runs[event.run_id]
        demand(run.phase in phases, f"{event.run_id}: {type(event).__name__} while {run.phase}")
        demand(
            run.instant == event.instant and run.schedule_id == event.schedule_id,
            f"{event.run_id}: changed its occurrence",
        )
        return run

    def on_dispatch_marked(self, event: ev.DispatchMarked) -> None:
        run, schedule = self._run(event, "admitted"), self.schedules[event.schedule_id]
        demand(
            self.slots < self._settings.max_concurrent_runs, f"{run.run_id}: dispatched with {self.slots} slots in use"
        )
        demand(schedule.admits, f"{run.run_id}: dispatched while its schedule is paused, blocked or deleted")
        if schedule.definition.misfire == "skip":
            late = event.at - event.instant > schedule.allowance(self._settings.lateness_s)
            demand(not late, f"{run.run_id}: dispatched late at {event.at}")
        demand(event.at >= event.instant, f"{run.run_id}: dispatched before its instant, at {event.at}")
        demand(event.mark.key == run.key, f"{run.run_id}: marked with another key")
        run.kind = "start"
        self._marked(run, event.mark)

    def _marked(self, run: RunAccount, mark: Mark) -> None:
        run.lost_s = None
        run.phase, run.marked_by, run.marked_in, run.caller_gone = "running", mark.server, self._truth.daemon, False

    def on_dispatch_not_sent(self, event: ev.DispatchNotSent) -> None:
        run = self._run(event, "running")
        demand(run.kind == "start", f"{run.run_id}: a resume cannot become unsent")
        self._truth.proven_unsent(run)
        run.phase = "admitted"
        self._unsent.append(run)

    def on_call_lost(self, event: ev.CallLost) -> None:
        run = self._run(event, "running")
        run.phase, run.lost_s = "ambiguous", self._truth.now_s()
        if event.caller_gone:
            demand(run.sending_key in self._truth.deserted, f"{run.run_id}: its caller is said to be gone, and is not")
            run.caller_gone = True

    def on_attempt_marked(self, event: ev.AttemptMarked) -> None:
        run = self._run(event, "interrupted")
        demand(
            event.mark.attempt == run.attempts + 1, f"{run.run_id}: attempt {event.mark.attempt} after {run.attempts}"
        )
        run.kind, run.attempts = "resume", event.mark.attempt
        self._marked(run, event.mark)

    def on_attempt_reverted(self, event: ev.AttemptReverted) -> None:
        run = self._run(event, "running")
        demand(run.kind == "resume", f"{run.run_id}: a start was reverted")
        run.phase = "interrupted"

    def on_run_interrupted(self, event: ev.RunInterrupted) -> None:
        run = self._run(event, "running", "ambiguous")
        run.phase, run.server_run_id = "interrupted", event.server_run_id
        self._newer(run, event.checkpoint.trace_count)
        self._truth.stopped_so(run, event.server_run_id, "interrupted", event.checkpoint.trace_count)

    def _newer(self, run: RunAccount, trace_count: int) -> None:
        """Each rest has more behind it than the one before: an old checkpoint tells nothing of a resume."""
        demand(trace_count > run.trace_count, f"{run.run_id}: {trace_count} is no newer than {run.trace_count}")
        run.trace_count = trace_count

    def on_checkpoint_seen(self, event: ev.CheckpointSeen) -> None:
        run = self._run(event, "interrupted")
        self._newer(run, event.checkpoint.trace_count)
        self._truth.stopped_so(run, run.server_run_id, "interrupted", event.checkpoint.trace_count)

    def on_run_settled(self, event: ev.RunSettled) -> None:
        run, schedule = (
            self._run(event, "admitted", "running", "ambiguous", "interrupted"),
            self.schedules[event.schedule_id],
        )
        if event.status in FINALS_OF_SERVER and event.reason is None:
            demand(run.phase != "admitted", f"{run.run_id}: {event.status} without having been sent")
            result = event.result
            self._truth.stopped_so(
                run, event.server_run_id, event.status, result.trace_count if result is not None else -1
            )
        elif event.status == "failed" and event.reason == "outcome-unknown":
            self._truth.really_unknown(run)
            self._hold(schedule, event)
        elif event.status == "failed":
            demand(event.reason in ("abandoned", "contradiction"), f"{run.run_id}: failed, {event.reason}")
            demand(run.phase == "interrupted", f"{run.run_id}: {event.reason} while {run.phase}")
        else:
            unsent = event.status in ("superseded", "skipped-misfire") and run.phase == "admitted"
            demand(unsent or event.status == "preflight-rejected", f"{run.run_id}: {event.status} while {run.phase}")
            self._truth.never_ran(run)
        run.phase, run.reason = event.status, event.reason
        schedule.rowed[event.instant] = event.status
        self.statuses[event.status if event.reason is None else f"{event.status} {event.reason}"] += 1

    def _hold(self, schedule: ScheduleAccount, event: ev.RunSettled) -> None:
        held_s = schedule.definition.hold_unknown_s
        wanted = event.at + timedelta(seconds=held_s) if held_s > 0 else None
        demand(event.hold_until == wanted, f"{event.run_id}: holds until {event.hold_until}, not {wanted}")
        if wanted is not None:
            schedule.holds.append((event.run_id, wanted))

    def on_outcome_observed(self, event: ev.OutcomeObserved) -> None:
        run = self.runs[event.run_id]
        demand((run.phase, run.reason) == ("failed", "outcome-unknown"), f"{run.run_id}: observed while {run.phase}")
        self._truth.stopped_so(run, run.server_run_id, event.result.status, event.result.trace_count)


@cache
def _words(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def resolved(schedule: ScheduleAccount, event: ev.RunAdmitted) -> dict[str, Any]:
    """The input that the bindings in force and the facts of the occurrence lead to; moments as datetimes."""
    earlier = [one for one in schedule.rowed if one < event.instant]
    earlier += [last for _, last in schedule.ranges if last < event.instant]
    facts = {
        "occurrence.instant": event.instant,
        "occurrence.local_time": event.instant,
        "occurrence.previous_instant": max(earlier, default=None),
        "schedule.id": event.schedule_id,
        "schedule.revision": event.revision,
        "run.id": event.run_id,
    }
    bound = schedule.definition.input.items()
    return {name: one["value"] if "value" in one else facts[one["from"]] for name, one in bound}


def comparable(values: dict[str, Any]) -> dict[str, Any]:
    """With moments, however they are written, as moments."""
    return {name: _moment(value) if isinstance(value, str) else value for name, value in values.items()}


def _moment(text: str) -> Any:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text
