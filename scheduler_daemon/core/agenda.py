"""When something next needs a decision: indexes derived from the state.

Owns: five questions that must not cost a walk over all schedules.  Which schedules are due a look?  Whose deployment should be asked
about ahead of time?  Who waits for a slot, fairest first?  Whose instant stands, due but not written down yet?  Which runs, deployments
and probes have a timer that ran out?  Must never know: what will be decided.

All of it can be thrown away and derived again.  Queues are cleaned lazily.  What a question hands out is forgotten here; whoever
asked has the schedule indexed again.
"""

from __future__ import annotations

import heapq
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scheduler_daemon.core import triggers
from scheduler_daemon.core.faults import SCHEDULE_FAULTS

if TYPE_CHECKING:
    from scheduler_daemon.core.live import Answer, ServerView
    from scheduler_daemon.core.model import Candidate, Run, Schedule, UnknownRun
    from scheduler_daemon.core.state import Draft

AHEAD_S = 2.0
"""How long before the next instant the preflight answer is fetched.  Source: spec section 5."""

AT_ONCE = datetime(1970, 1, 1, tzinfo=UTC)
"""Earlier than any clock of ours: the look of a schedule whose calendar raised, so that the next decision blocks it."""

STAND_S = 3.0
"""How long an instant may wait for a slot before it is held durably; a burst is over by then, and most of it was never held."""

STAND = timedelta(seconds=STAND_S)
_AHEAD = timedelta(seconds=AHEAD_S)
_TICK = timedelta(microseconds=1)
_NEVER_ADMITTED = datetime(1, 1, 1, tzinfo=UTC)
_STALE_MIN, _STALE_RATIO = 64, 4
_FEW, _FEW_OF = 32, 32

FairKey = tuple[datetime, datetime, str]
Timer = tuple[str, str]
K = TypeVar("K")
P = TypeVar("P")


class LazyQueue(Generic[P, K]):
    """A priority queue with one priority per key, changed by putting it in again.

    Time goes on, and so do priorities: one that is not smaller than any before it joins the end of a sorted row, at no cost worth
    naming; only what comes out of order goes into a heap.  An entry counts while it holds the very object that stands beside its key:
    comparing priorities would cost more than all the rest.
    """

    __slots__ = ("_heap", "_row", "_valid")

    def __init__(self) -> None:
        self._row: deque[tuple[Any, K]] = deque()
        self._heap: list[tuple[Any, K]] = []
        self._valid: dict[K, Any] = {}

    def set(self, key: K, priority: P | None) -> None:
        """Give `key` this priority; None takes it out."""
        valid = self._valid
        if priority is None:
            if key in valid:
                del valid[key]
            return
        if valid.get(key) == priority:
            return
        valid[key] = priority
        row, entry = self._row, (priority, key)
        if not row or entry > row[-1]:
            row.append(entry)
        else:
            heapq.heappush(self._heap, entry)
        if len(row) + len(self._heap) > _STALE_MIN + _STALE_RATIO * len(valid):
            self._shed()

    def set_all(self, entries: list[tuple[P, K]]) -> None:
        """As `set` for each of these, whose keys differ; for a crowd, of which the first must not wait for the last."""
        valid, row = self._valid, self._row
        fresh = sorted(entry for entry in entries if valid.get(entry[1]) != entry[0])
        if not fresh:
            return
        valid.update({key: priority for priority, key in fresh})
        if not row or fresh[0] > row[-1]:
            row.extend(fresh)
        else:
            self._heap += fresh
            heapq.heapify(self._heap)
        if len(row) + len(self._heap) > _STALE_MIN + _STALE_RATIO * len(valid):
            self._shed()

    def _shed(self) -> None:
        self._heap = [(of, kept) for kept, of in self._valid.items()]
        heapq.heapify(self._heap)
        self._row.clear()

    def top(self) -> P | None:
        """The smallest priority there is."""
        row, heap, valid = self._row, self._heap, self._valid
        while row and valid.get(row[0][1]) is not row[0][0]:
            row.popleft()
        while heap and valid.get(heap[0][1]) is not heap[0][0]:
            heapq.heappop(heap)
        if not heap:
            return row[0][0] if row else None
        return heap[0][0] if not row or heap[0] < row[0] else row[0][0]

    def get(self, key: K) -> P | None:
        """The priority of `key`, if it has one."""
        return self._valid.get(key)

    def pop_until(self, priority: P) -> list[K]:
        """Take out every key at or before `priority`, smallest first."""
        taken = self._from_row(priority)
        if self._heap and not priority < self._heap[0][0]:
            taken += self._from_heap(priority)
            taken.sort()
        valid = self._valid
        keys: list[K] = []
        for of, key in taken:
            if valid.get(key) is of:
                del valid[key]
                keys.append(key)
        return keys

    def _from_row(self, priority: P) -> list[tuple[Any, K]]:
        row = self._row
        taken: list[tuple[Any, K]] = []
        while row and not priority < row[0][0]:
            taken.append(row.popleft())
        return taken

    def _from_heap(self, priority: P) -> list[tuple[Any, K]]:
        """In no order.  Where a good part of the heap is due, to look at all of it costs less than to pop one by one."""
        heap = self._heap
        taken: list[tuple[Any, K]] = []
        few = _FEW + len(heap) // _FEW_OF
        while heap and not priority < heap[0][0]:
            if len(taken) == few:
                taken += [entry for entry in heap if not priority < entry[0]]
                heap[:] = [entry for entry in heap if priority < entry[0]]
                heapq.heapify(heap)
                break
            taken.append(heapq.heappop(heap))
        return taken


class Agenda:
    """The five indexes.  `index` must be called after every change of a schedule."""

    def __init__(self) -> None:
        self._looks: LazyQueue[datetime, str] = LazyQueue()
        self._ahead: LazyQueue[datetime, str] = LazyQueue()
        self._line: LazyQueue[FairKey, str] = LazyQueue()
        self._standing: LazyQueue[datetime, str] = LazyQueue()
        self._timers: LazyQueue[float, Timer] = LazyQueue()
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

    def leave_line(self, schedule_id: str) -> None:
        """Its turn has come; it stands in line again when it is indexed and still waits."""
        self._line.set(schedule_id, None)

    def timers(self, mono: float) -> list[Timer]:
        """Timers that ran out: ("run" | "unknown" | "deployment" | "server", id)."""
        return self._timers.pop_until(mono)

    def next_look(self) -> tuple[datetime | None, float | None]:
        """The earliest wall-clock moment and the earliest monotonic one at which there is something to do."""
        stands_at = self._standing.top()
        looks = [at for at in (self._looks.top(), self._ahead.top(), stands_at and stands_at + STAND) if at is not None]
        return (min(looks) if looks else None), self._timers.top()

    def overdue(self) -> datetime | None:
        """The earliest moment that something was due a look at, or an instant that stands."""
        undecided = [at for at in (self._looks.top(), self._standing.top()) if at is not None]
        return min(undecided) if undecided else None

    # --- standing: due on time, in line, and not written down yet ---

    def stand(self, draft: Draft, due: list[str]) -> list[str]:
        """Let each of these wait in line with its next instant and no record of its own, for `STAND` at most.

        Returns those that may not.
        """
        places: list[tuple[FairKey, str]] = []
        others: list[str] = []
        schedules, next_at = draft.schedules, self.next_at
        for schedule_id in due:
            schedule, instant = schedules.get(schedule_id), next_at.get(schedule_id)
            if schedule is None or instant is None or not may_stand(draft, schedule, instant):
                others.append(schedule_id)
            else:
                places.append((fair_key(schedule, instant), schedule_id))
        self._line.set_all(places)
        self._standing.set_all([(place[1], schedule_id) for place, schedule_id in places])
        return others

    def standing_at(self, schedule_id: str) -> datetime | None:
        """The instant with which this schedule stands, if it does."""
        return self._standing.get(schedule_id)

    def oldest_standing(self) -> datetime | None:
        """The earliest instant that stands."""
        return self._standing.top()

    def stood_long(self, at: datetime) -> list[str]:
        """Schedules whose instant has stood for `STAND`: now it must be written down."""
        return self._standing.pop_until(at - STAND)

    # --- parking: who waits for the answer about one deployment ---

    def park(self, deployment_id: str, schedule_id: str) -> None:
        self._parked.setdefault(deployment_id, {})[schedule_id] = None

    def unpark(self, draft: Draft, deployment_id: str) -> None:
        """The answer is there, or it is time to ask again: everyone who waited for it stands in line again."""
        parked = self._parked.pop(deployment_id, None)
        if parked is not None:
            for schedule_id in parked:
                draft.touch(schedule_id)
            draft.reindex()

    # --- indexing ---

    def index(self, draft: Draft, schedule: Schedule) -> None:
        """Put one schedule where it belongs at `draft.now`."""
        schedule_id = schedule.definition.schedule_id
        now_at = draft.now.at
        next_at = self._next_at(draft, schedule) if schedule.admits else None
        self.next_at[schedule_id] = next_at
        stands_at = self._still_standing(draft, schedule, next_at)
        look_at = next_at if stands_at is None else None
        if schedule.candidate is None and not schedule.runs:  # nothing is open, as with nearly all of them at any time
            self._line.set(schedule_id, None if stands_at is None else self._place(schedule, stands_at, parks=True))
        else:
            looks = _expiries(draft, schedule, now_at)
            look_at = min(looks if look_at is None else [*looks, look_at], default=None)
            first = waiting(schedule, now_at, draft.now.mono)
            parks = first is not None and first is schedule.candidate
            self._line.set(schedule_id, None if first is None else self._place(schedule, first.instant, parks=parks))
        self._looks.set(schedule_id, look_at)
        self._ahead.set(schedule_id, next_at - _AHEAD if next_at is not None and next_at > now_at else None)
        self._index_runs(schedule)

    def _still_standing(self, draft: Draft, schedule: Schedule, next_at: datetime | None) -> datetime | None:
        """What it stands with, when that is still its next instant; otherwise it stands no more."""
        schedule_id = schedule.definition.schedule_id
        stands_at = self._standing.get(schedule_id)
        if stands_at is not None and (stands_at != next_at or not may_stand(draft, schedule, stands_at)):
            self._standing.set(schedule_id, None)
            return None
        return stands_at

    def _next_at(self, draft: Draft, schedule: Schedule) -> datetime | None:
        """The first instant that has no row and is not held."""
        trigger = schedule.definition.trigger
        try:
            next_at = triggers.next_after(trigger, draft.watermark_of(schedule))
            while next_at is not None and next_at in schedule.taken:
                next_at = triggers.next_after(trigger, next_at)
        except SCHEDULE_FAULTS:
            return AT_ONCE
        return next_at

    def _place(self, schedule: Schedule, instant: datetime, *, parks: bool) -> FairKey | None:
        """Its place in line; None while it `parks`, because the answer about its deployment is what is missing."""
        parked = self._parked.get(schedule.definition.deployment_id) if parks else None
        if parked is None:
            return fair_key(schedule, instant)
        parked[schedule.definition.schedule_id] = None
        return None

    def _index_runs(self, schedule: Schedule) -> None:
        if not schedule.runs and schedule.definition.schedule_id not in self._runs_timed:
            return
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
    return (schedule.admitted_last_at or _NEVER_ADMITTED, instant, schedule.definition.schedule_id)


def may_stand(draft: Draft, schedule: Schedule, instant: datetime) -> bool:
    """Whether nothing about this schedule needs deciding but who gets the next slot.

    Nothing else of it is open, and it is due and on time beyond `STAND`, which is shorter than the minute until its next instant.
    """
    if schedule.runs or schedule.candidate or schedule.holds or schedule.taken or not schedule.admits:
        return False
    own_s = schedule.definition.lateness_s
    return (
        instant <= draft.now.at < instant + STAND and (draft.settings.lateness_s if own_s is None else own_s) >= STAND_S
    )


def waiting(schedule: Schedule, at: datetime, mono: float) -> Run | Candidate | None:
    """What could be dispatched now if slot, server and preflight allow; an unsent run comes before a candidate."""
    if not schedule.admits:
        return None
    for run in schedule.runs:
        if run.phase == "admitted" and run.instant <= at and (run.live.look_mono is None or run.live.look_mono <= mono):
            return run
    candidate = schedule.candidate
    if candidate is None or candidate.instant > at or schedule.blocking_run_id(at) is not None:
        return None
    return candidate


def _look_mono(run: Run) -> float | None:
    """When this run is to be looked at; one that nobody is waiting for and that has no time yet is looked at now."""
    if run.live.look_mono is not None:
        return run.live.look_mono
    idle = run.live.call_seq is None and run.live.ask_seq is None
    return 0.0 if idle and run.phase in ("ambiguous", "interrupted") else None


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
        expiry = schedule.allowance(draft.settings) + _TICK
        looks += [instant + expiry for instant in held]
    return looks + [hold.until for hold in schedule.holds if hold.until > now_at]
