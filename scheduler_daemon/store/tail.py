"""Rows that are durable in the journal and not yet in a history file.

Owns: the events of each schedule since the last checkpoint, and which runs they speak of.  Must never know: files.

A page is the file's rows followed by these, so the two must not overlap: of a schedule that is here, the file counts only below its
first `n` here, whatever an interrupted checkpoint may have appended.  While a checkpoint runs, what it is writing stays here, `frozen`,
until the writing is durable; new rows gather behind.

Events are kept rather than rows: they are in memory already and share their parts with the state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from scheduler_daemon.core.events import Event, ScheduleEvent, row_of
from scheduler_daemon.core.model import Row

Rows = dict[str, list[ScheduleEvent]]

_ADDS_ROW: dict[type, bool] = {}


def adds_row(event: Event) -> bool:
    """Whether this event has a row; all events of a kind have one, or none has."""
    kind = type(event)
    known = _ADDS_ROW.get(kind)
    if known is None:
        known = _ADDS_ROW[kind] = row_of(event) is not None
    return known


def to_row(event: ScheduleEvent) -> Row:
    """The row of an event that has one."""
    row = row_of(event)  # pyright: ignore[reportArgumentType]  # every ScheduleEvent is an Event; the base class is not in the union
    if row is None:
        raise ValueError(f"{type(event).__name__} has no row")
    return row


class Tail:
    """Safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: Rows = {}
        self._frozen: Rows = {}
        self._owners: dict[str, str] = {}
        self._frozen_owners: dict[str, str] = {}
        self.count = 0

    def add(self, events: Iterable[Event]) -> None:
        """Take in the events of a batch that is durable."""
        with self._lock:
            for event in events:
                if isinstance(event, ScheduleEvent) and adds_row(event):
                    self._rows.setdefault(event.schedule_id, []).append(event)
                    self.count += 1
                    self._own(event)

    def _own(self, event: ScheduleEvent) -> None:
        for name in ("run_id", "server_run_id"):
            run_id = getattr(event, name, None)
            if run_id is not None:
                self._owners[run_id] = event.schedule_id

    def rows_of(self, schedule_id: str) -> list[ScheduleEvent]:
        """Its events here, in order of `n`."""
        with self._lock:
            return [*self._frozen.get(schedule_id, ()), *self._rows.get(schedule_id, ())]

    def owner_of(self, run_id: str) -> str | None:
        """The schedule of a run that rows here speak of, by either id."""
        with self._lock:
            return self._owners.get(run_id) or self._frozen_owners.get(run_id)

    def freeze(self) -> Rows:
        """Hand out everything to a checkpoint.  It must not be changed."""
        with self._lock:
            if self._frozen:
                raise RuntimeError("a checkpoint is running already")
            self._frozen, self._rows = self._rows, {}
            self._frozen_owners, self._owners = self._owners, {}
            return self._frozen

    def written(self) -> None:
        """What was frozen is durable in the files."""
        with self._lock:
            self.count -= sum(map(len, self._frozen.values()))
            self._frozen, self._frozen_owners = {}, {}

    def thaw(self) -> None:
        """The checkpoint failed: what was frozen is still only here."""
        with self._lock:
            for schedule_id, events in self._rows.items():
                self._frozen.setdefault(schedule_id, []).extend(events)
            self._rows, self._frozen = self._frozen, {}
            self._owners = {**self._frozen_owners, **self._owners}
            self._frozen_owners = {}
