"""When something next needs a decision: indexes derived from the state.

Owns: four questions that must not cost a walk over all schedules.  Which schedules are due a look?  Whose deployment should be asked
about ahead of time?  Who waits for a slot, fairest first?  Which runs, deployments and probes have a timer that ran out?  Must
never know: what will be decided.

All of it can be thrown away and derived again.  Heaps are cleaned lazily: an entry counts only while it equals the value in the
dict beside the heap.  What a question hands out is forgotten here; whoever asked has the schedule indexed again.
"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scheduler_daemon.core import triggers
from scheduler_daemon.core.calendar import CalendarBroken

if TYPE_CHECKING:
    from scheduler_daemon.core.model import Answer, Run, Schedule, ServerView, UnknownRun
    from scheduler_daemon.core.state import Draft

AHEAD_S = 2.0
"""How long before the next instant the preflight answer is fetched.  Source: spec section 5."""

_TICK = timedelta(microseconds=1)
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)

FairKey = tuple[datetime, datetime, str]
Timer = tuple[str, str]
K = TypeVar("K")
P = TypeVar("P")


class LazyHeap(Generic[P, K]):
    """A priority queue with one priority per key, changed by pushing again."""

    __slots__ = ("_heap", "_valid")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, K]] = []
        self._valid: dict[K, Any] = {}

    def set(self, key: K, priority: P | None) -> None:
        """Give `key` this priority; None takes it out."""
        if priority is None:
            self._valid.pop(key, None)
        elif self._valid.get(key) != priority:
            self._valid[key] = priority
            heapq.heappush(self._heap, (priority, key))

    def top(self) -> P | None:
        """The smallest priority there is."""
        heap = self._heap
        while heap and self._valid.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self) -> K | None:
        """Take out the key with the smallest priority."""
        if self.top() is None:
            return None
        key = heapq.heappop(self._heap)[1]
        del self._valid[key]
        return key

    def pop_until(self, priority: P) -> list[K]:
        """Take out every key at or before `priority`, smallest first."""
        taken: list[K] = []
        while (top := self.top()) is not None and not priority < top:  # pyright: ignore[reportOperatorIssue]
            key = self.pop()
            if key is not None:
                taken.append(key)
        return taken


class Agenda:
    """The four indexes.  `index` must be called after every change of a schedule."""

    def __init__(self) -> None:
        self._looks: LazyHeap[datetime, str] = LazyHeap()
        self._ahead: LazyHeap[datetime, str] = LazyHeap()
        self._line: LazyHeap[FairKey, str] = LazyHeap()
        self._timers: LazyHeap[float, Timer] = LazyHeap()
        self._parked: dict[str, dict[str, None]] = {}
        self._runs_timed: dict[str, tuple[str, ...]] = {}
        self.next_at: dict[str, datetime | None] = {}

    # --- questions ---

    def due(self, at: datetime) -> list[str]:
        """Schedules that something is due for at `at`."""
        return self._looks.pop_until(at)

    def due_ahead(self, at: datetime) -> list[str]:
        """Schedules whose next instant comes within `AHEAD_S`."""
        return self._ahead.pop_until(at)

    def first_in_line(self) -> FairKey | None:
        """The fair key of who waits for a slot and comes first."""
        return self._line.top()

    def next_in_line(self) -> str | None:
        return self._line.pop()

    def timers(self, mono: float) -> list[Timer]:
        """Timers that ran out: ("run" | "unknown" | "deployment" | "server", id)."""
        return self._timers.pop_until(mono)

    def next_look(self) -> tuple[datetime | None, float | None]:
        """The earliest wall-clock moment and the earliest monotonic one at which there is something to do."""
        looks = [at for at in (self._looks.top(), self._ahead.top()) if at is not None]
        return (min(looks) if looks else None), self._timers.top()

    def overdue(self) -> datetime | None:
        """The earliest moment that something was due a look at."""
        return self._looks.top()

    # --- parking: who waits for the answer about one deployment ---

    def park(self, deployment_id: str, schedule_id: str) -> None:
        self._parked.setdefault(deployment_id, {})[schedule_id] = None

    def unpark(self, draft: Draft, deployment_id: str) -> None:
        """The answer is there, or it is time to ask again: everyone who waited for it stands in line again."""
        for schedule_id in self._parked.pop(deployment_id, {}):
            draft.touch(schedule_id)
        draft.reindex()

    # --- indexing ---

    def index(self, draft: Draft, schedule: Schedule) -> None:
        """Put one schedule where it belongs at `draft.now`."""
        schedule_id = schedule.definition.schedule_id
        now_at = draft.now.at
        next_at = self._next_at(draft, schedule)
        self.next_at[schedule_id] = next_at
        looks = [*_expiries(draft, schedule, now_at)]
        if next_at is not None:
            looks.append(next_at)
        self._looks.set(schedule_id, min(looks) if looks else None)
        self._ahead.set(schedule_id, next_at - timedelta(seconds=AHEAD_S) if next_at is not None and next_at > now_at else None)
        self._index_line(draft, schedule)
        self._index_runs(schedule)

    def _next_at(self, draft: Draft, schedule: Schedule) -> datetime | None:
        if not schedule.admits:
            return None
        try:
            return triggers.next_after(schedule.definition.trigger, draft.watermark_of(schedule))
        except CalendarBroken:
            return _LONG_AGO  # look at once: the decision made then blocks it, with the diagnostic

    def _index_line(self, draft: Draft, schedule: Schedule) -> None:
        schedule_id = schedule.definition.schedule_id
        instant = waiting_instant(schedule, draft.now.at, draft.now.mono)
        if instant is None:
            self._line.set(schedule_id, None)
        elif (parked := self._parked.get(schedule.definition.deployment_id)) is not None and not _unsent(schedule):
            parked[schedule_id] = None
            self._line.set(schedule_id, None)
        else:
            self._line.set(schedule_id, fair_key(schedule, instant))

    def _index_runs(self, schedule: Schedule) -> None:
        timed = {run.run_id: look for run in schedule.runs if (look := _look_mono(run)) is not None}
        for run_id in self._runs_timed.pop(schedule.definition.schedule_id, ()):
            if run_id not in timed:
                self._timers.set(("run", run_id), None)
        for run_id, look_mono in timed.items():
            self._timers.set(("run", run_id), look_mono)
        if timed:
            self._runs_timed[schedule.definition.schedule_id] = tuple(timed)

    def index_unknown(self, unknown: UnknownRun) -> None:
        idle = unknown.watch_until is None or unknown.live.ask_seq is not None
        self._timers.set(("unknown", unknown.run_id), None if idle else unknown.live.look_mono or 0.0)

    def index_answer(self, answer: Answer) -> None:
        waiting = answer.ask_seq is None and answer.retry_mono > 0
        self._timers.set(("deployment", answer.deployment_id), answer.retry_mono if waiting else None)

    def index_server(self, server: ServerView) -> None:
        self._timers.set(("server", ""), server.probe_mono if server.probe_seq is None else None)


def fair_key(schedule: Schedule, instant: datetime) -> FairKey:
    """The schedule least recently admitted first, never admitted first of all; then instant, then id.  Source: spec section 5.

    Oldest instant first would starve: one slot under overload then serves the same few for ever.
    """
    return (schedule.admitted_last_at or _LONG_AGO, instant, schedule.definition.schedule_id)


def waiting_instant(schedule: Schedule, at: datetime, mono: float) -> datetime | None:
    """The instant that could be dispatched now if slot, server and preflight allow; an unsent run comes before a candidate."""
    if not schedule.admits:
        return None
    unsent = _unsent(schedule)
    if unsent is not None and unsent.instant <= at:
        return unsent.instant if unsent.live.look_mono is None or unsent.live.look_mono <= mono else None
    candidate = schedule.candidate
    if candidate is None or candidate.instant > at or schedule.blocking_run_id(at) is not None:
        return None
    return candidate.instant


def _look_mono(run: Run) -> float | None:
    """When this run is to be looked at; one that nobody is waiting for and that has no time yet is looked at now."""
    if run.live.look_mono is not None:
        return run.live.look_mono
    idle = run.live.call_seq is None and run.live.ask_seq is None
    return 0.0 if idle and run.phase in ("ambiguous", "interrupted") else None


def _unsent(schedule: Schedule) -> Run | None:
    return next((run for run in schedule.runs if run.phase == "admitted"), None)


def _expiries(draft: Draft, schedule: Schedule, now_at: datetime) -> list[datetime]:
    """Moments, other than its next instant, at which what is held must be looked at: expiry, its instant, an ending hold."""
    if not schedule.admits:
        return []
    held = [run.instant for run in schedule.runs if run.phase == "admitted"]
    if schedule.candidate is not None:
        held.append(schedule.candidate.instant)
    if not held:
        return []
    looks = [instant for instant in held if instant > now_at]
    if schedule.definition.misfire == "skip":
        looks += [instant + schedule.allowance(draft.settings) + _TICK for instant in held]
    return looks + [hold.until for hold in schedule.holds if hold.until > now_at]
