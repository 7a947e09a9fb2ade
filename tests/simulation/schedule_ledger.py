"""The second account of schedules and of instants that never ran.

Owns: watermarks, pauses, rows and summaries as an outsider counts them; invariants 2, 5, 6, 7 and 10 of DESIGN.md.
Must never know: how the core decides; its own counts and its own calendar are all it has.
"""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.model import Settings
from tests.simulation.minutes import instants, is_instant
from tests.simulation.model import LONG_AGO, RunAccount, ScheduleAccount, Turn, Violation
from tests.simulation.truth import Truth, demand

SUMMARY_MAX = 1000


class ScheduleLedger:
    """One method per event that is not about a run; `ledger.py` calls them."""

    def __init__(self, settings: Settings, store_id: str, truth: Truth) -> None:
        self.schedules: dict[str, ScheduleAccount] = {}
        self.runs: dict[str, RunAccount] = {}
        self.by_key: dict[str, RunAccount] = {}
        self.decided_at = LONG_AGO
        self.latest_at = LONG_AGO
        self.epoch = 0
        self.batches = 0
        self.statuses: Counter[str] = Counter()
        self._settings = settings
        self._store_id = store_id
        self._truth = truth
        self._number = 0
        self._unsent: list[RunAccount] = []
        self._started: Counter[str] = Counter()
        self._turns: list[tuple[datetime, str, Turn]] = []

    # --- the daemon ---

    def on_epoch_started(self, event: ev.EpochStarted) -> None:
        demand(event.epoch > self.epoch, "an epoch that does not grow")
        self.epoch = event.epoch
        for run in self.runs.values():
            if run.phase in ("running", "ambiguous"):
                run.phase, run.lost_s = "ambiguous", self._truth.now_s()

    def on_decided(self, event: ev.Decided) -> None:
        for schedule in self.schedules.values():
            if schedule.admits and (event.until > self.decided_at or event.until == event.at):
                self._covered(schedule, event.until)
        self.decided_at = max(self.decided_at, event.until)

    def on_clock_stepped(self, event: ev.ClockStepped) -> None:
        demand(abs(event.step_s) > 2.0, "a step that is none")

    def _covered(self, schedule: ScheduleAccount, until: datetime) -> None:
        """Each instant up to there was admitted, is held, or has a row: nothing is passed over in silence."""
        if until <= schedule.checked_at:
            return
        for instant in instants(schedule.definition.trigger, schedule.checked_at, until):
            known = instant == schedule.candidate or schedule.has_row(instant)
            demand(known, f"{schedule.definition.schedule_id}: {instant} was passed over without a row")
        schedule.checked_at = until

    # --- schedules ---

    def on_schedule_created(self, event: ev.ScheduleCreated) -> None:
        demand(event.schedule_id not in self.schedules, "an id was used twice")
        exempt = self.decided_at if self.decided_at > event.at else None
        self.schedules[event.schedule_id] = ScheduleAccount(event.definition, event.at, event.at, event.at, exempt)

    def _revised(self, event: Any) -> ScheduleAccount:
        schedule = self.schedules[event.schedule_id]
        demand(
            event.revision == schedule.revision + 1,
            f"{event.schedule_id}: revision {event.revision} after {schedule.revision}",
        )
        demand(not schedule.deleted, f"{event.schedule_id}: changed after it was deleted")
        schedule.revision = event.revision
        return schedule

    def on_schedule_updated(self, event: ev.ScheduleUpdated) -> None:
        schedule = self._revised(event)
        demand(not schedule.blocked, "a blocked schedule was edited")
        demand(
            event.trigger_changed == (event.definition.trigger != schedule.definition.trigger),
            "trigger_changed is wrong",
        )
        if event.trigger_changed:
            self._consumed(schedule, event.at)
            if not schedule.admits:
                schedule.stopped_at = event.at
        schedule.definition = event.definition

    def _consumed(self, schedule: ScheduleAccount, at: datetime) -> None:
        """Time up to `at` is over for this schedule, and what it held as well."""
        schedule_id = schedule.definition.schedule_id
        demand(schedule.candidate is None, f"{schedule_id}: a candidate outlived what consumed it")
        unsent = [run.run_id for run in schedule.runs.values() if run.phase == "admitted"]
        demand(not unsent, f"{schedule_id}: {unsent} outlived what consumed it")
        self._covered(schedule, at)
        schedule.closed_n = schedule.n
        schedule.own_at = max(schedule.watermark(self.decided_at), at)
        schedule.checked_at = max(schedule.checked_at, schedule.own_at)

    def _stopped(self, event: Any) -> ScheduleAccount:
        schedule = self._revised(event)
        self._consumed(schedule, event.at)
        if schedule.stopped_at is None:
            schedule.stopped_at = event.at
        return schedule

    def _ended(self, schedule: ScheduleAccount, at: datetime) -> None:
        """A pause or block ends: its span has its summary, and is remembered."""
        self._consumed(schedule, at)
        if schedule.admits and schedule.stopped_at is not None:
            schedule.spans.append((schedule.stopped_at, at))
            schedule.stopped_at = None

    def on_schedule_paused(self, event: ev.SchedulePaused) -> None:
        demand(not self.schedules[event.schedule_id].paused, "paused twice")
        self._stopped(event).paused = True

    def on_schedule_resumed(self, event: ev.ScheduleResumed) -> None:
        schedule = self._revised(event)
        demand(schedule.paused and not schedule.blocked, "resumed what was not paused, or was blocked")
        schedule.paused = False
        self._ended(schedule, event.at)

    def on_schedule_deleted(self, event: ev.ScheduleDeleted) -> None:
        self._stopped(event).deleted = True

    def on_schedule_blocked(self, event: ev.ScheduleBlocked) -> None:
        if self.schedules[event.schedule_id].blocked:
            self._revised(event)  # one more reason for a block that lasts already
        else:
            self._stopped(event).blocked = True

    def on_schedule_unblocked(self, event: ev.ScheduleUnblocked) -> None:
        schedule = self._revised(event)
        schedule.blocked = False
        if not event.rewound:
            self._ended(schedule, event.at)
            return
        demand(
            schedule.watermark(self.decided_at) - event.at > timedelta(seconds=120),
            "rewound a watermark that was not ahead",
        )
        schedule.rewound, schedule.spans = True, []
        # A summary row speaks for its span under the wrong clock, not for each instant: those come again, as their operator asked.
        schedule.ranges = [(first, min(last, event.at)) for first, last in schedule.ranges if first <= event.at]
        if schedule.candidate is not None and schedule.candidate > event.at:
            schedule.candidate = None
        schedule.own_at = schedule.checked_at = event.at
        schedule.created_at = min(schedule.created_at, event.at)
        schedule.exempt_until = self.decided_at if self.decided_at > event.at else None
        schedule.stopped_at = None if schedule.admits else event.at

    # --- occurrences ---

    def _fresh(self, event: Any, instant: datetime) -> ScheduleAccount:
        """An instant of the trigger in force that has no row yet, is due, and lies after the watermark or is the candidate."""
        schedule, where = self.schedules[event.schedule_id], f"{event.schedule_id} {instant}: {type(event).__name__}"
        demand(
            is_instant(schedule.definition.trigger, instant),
            f"{where}: not an instant of {schedule.definition.trigger}",
        )
        demand(not schedule.has_row(instant), f"{where}: it has a row already")
        demand(instant > schedule.created_at, f"{where}: before the creation at {schedule.created_at}")
        passed = event.at >= instant or (instant == schedule.candidate and not isinstance(event, ev.RunAdmitted))
        demand(passed, f"{where}: before its instant, at {event.at}")
        watermark = schedule.watermark(self.decided_at)
        demand(instant > watermark or instant == schedule.candidate, f"{where}: not after the watermark {watermark}")
        return schedule

    def _rowed(self, schedule: ScheduleAccount, instant: datetime, status: str) -> None:
        schedule.rowed[instant] = status
        schedule.own_at = max(schedule.own_at, instant)
        if schedule.candidate == instant:
            schedule.candidate = None

    def on_candidate_held(self, event: ev.CandidateHeld) -> None:
        schedule = self._fresh(event, event.instant)
        demand(schedule.candidate is None, "two candidates")
        demand(schedule.admits, "a candidate of a schedule that admits nothing")
        self._left_in_turn(schedule, event)
        schedule.candidate, schedule.candidate_batch = event.instant, self.batches
        schedule.own_at = max(schedule.own_at, event.instant)

    def _left_in_turn(self, schedule: ScheduleAccount, event: ev.CandidateHeld) -> None:
        """What was admitted in the wake that left this one waiting came first."""
        deployment_id, mine = schedule.definition.deployment_id, schedule.turn(event.instant)
        for at, to, turn in self._turns if event.waiting != "overlap" else ():
            before = (at, to) != (event.at, deployment_id) or turn < mine
            demand(before, f"{event.schedule_id} {event.instant}: held, although {turn} was admitted after its turn")

    def on_occurrence_closed(self, event: ev.OccurrenceClosed) -> None:
        schedule = self._fresh(event, event.instant)
        where = f"{event.schedule_id} {event.instant}: {event.status}"
        late = event.at - event.instant > schedule.allowance(self._settings.lateness_s)
        held = event.instant == schedule.candidate and schedule.candidate_batch < self.batches
        match event.status:
            case "skipped-misfire":
                demand(late and schedule.definition.misfire == "skip", f"{where}: neither late nor skipping")
            case "skipped-overlap":
                holding = schedule.holding(event.at)
                demand(
                    event.blocking_run_id in holding,
                    f"{where}: {event.blocking_run_id} does not hold overlap, {holding} do",
                )
                demand(len(holding) >= schedule.active_max, f"{where}: overlap was open")
                demand(schedule.definition.misfire == "skip", f"{where}: latest waits")
            case "coalesced":
                demand(not held, f"{where}: it was held since an earlier wake")
            case "superseded":
                demand(held or event.reason != "newer-instant", f"{where}: it was never held")
            case "preflight-rejected":
                demand(event.reason == "preflight", f"{where}: {event.reason}")
            case _:
                raise Violation(f"{where}: not the end of an instant that never ran")
        self._rowed(schedule, event.instant, event.status)
        self.statuses[event.status] += 1

    def on_range_closed(self, event: ev.RangeClosed) -> None:
        schedule, first, last = self.schedules[event.schedule_id], event.first_instant, event.last_instant
        where = f"{event.schedule_id} [{first}, {last}]"
        trigger = schedule.definition.trigger
        inside = [one for one in instants(trigger, first - timedelta(minutes=1), last) if one >= first]
        demand(
            is_instant(trigger, first) and is_instant(trigger, last) and event.at >= last,
            f"{where}: bounds are no due instants",
        )
        if not schedule.rewound:
            demand(not any(schedule.has_row(one) for one in inside), f"{where}: covers instants that have rows")
            said, counted = (event.count, event.at_least), (min(len(inside), SUMMARY_MAX), len(inside) > SUMMARY_MAX)
            demand(said == counted, f"{where}: says {said}, counted {counted}")
        schedule.ranges.append((first, last))
        schedule.own_at = max(schedule.own_at, last)
        self.statuses[f"{event.status} (range)"] += 1
