"""What the store answers: pages of history, runs by id.

Owns: joining what is in a history file with what is only in the journal yet, and the position that a cursor holds.  Must never know:
how either got there.

A position is an `n` and, above it, the generation of the file it was read from: how often retention had rewritten it.  Rows that went
before a reader began are no loss to it; rows that went since, after its position, are, and then it is told.  Before the first rewrite a
position is simply the `n`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from scheduler_daemon.core.model import Row
from scheduler_daemon.store.checkpoint import list_histories
from scheduler_daemon.store.documents import Home
from scheduler_daemon.store.errors import CursorExpired
from scheduler_daemon.store.fs import FileSystem, read_file, told_as_storage_errors
from scheduler_daemon.store.history import HistoryRows, path_of
from scheduler_daemon.store.lines import reading
from scheduler_daemon.store.runindex import RunIndex
from scheduler_daemon.store.schema import Indexed
from scheduler_daemon.store.tail import Tail, to_row

_GENERATION_SHIFT: Final = 32
_N_MASK: Final = (1 << _GENERATION_SHIFT) - 1


class Page(msgspec.Struct, frozen=True):
    """Rows in order of `n`; `next_n` is the position to ask for the following ones with, None at the end."""

    rows: tuple[Row, ...]
    next_n: int | None


class FoundRun(msgspec.Struct, frozen=True):
    """A run with every row of it that is kept, in order of `n`."""

    schedule_id: str
    run_id: str
    server_run_id: str | None
    rows: tuple[Row, ...]


class Histories:
    """Reads; may be used from any thread, also while a checkpoint runs."""

    def __init__(self, fs: FileSystem, home: Home, tail: Tail, index: RunIndex) -> None:
        self._fs = fs
        self._home = home
        self._tail = tail
        self._index = index

    def page(self, schedule_id: str, after_n: int | None, limit: int) -> Page:
        """Up to `limit` rows after a position.  Raises `CursorExpired`."""
        n, generation = (after_n & _N_MASK, after_n >> _GENERATION_SHIFT) if after_n is not None else (0, None)
        # The tail first: what a checkpoint moves meanwhile is then in both, and `below` decides.
        events = self._tail.rows_of(schedule_id)
        below = events[0].n if events else None
        now, rows = 0, list[Row]()
        with told_as_storage_errors("reading a history"), reading(self._fs, path_of(self._home, schedule_id)) as reader:
            if reader is not None:
                history = HistoryRows(self._home, schedule_id, reader)
                now = history.head.generation if history.head is not None else 0
                dropped_n = history.head.n if history.head is not None else 0
                if generation is not None and (generation > now or (generation < now and n < dropped_n)):
                    raise CursorExpired(f"rows after {n} of {schedule_id} were dropped by retention")
                rows = list(islice(history.after(n, below), limit + 1))
        rows.extend(islice((to_row(event) for event in events if event.n > n), max(0, limit + 1 - len(rows))))
        following = rows[limit - 1].n | now << _GENERATION_SHIFT if len(rows) > limit else None
        return Page(tuple(rows[:limit]), following)

    def find_run(self, any_id: str) -> FoundRun | None:
        """A run by our id or the server's; None when no row of it is kept."""
        schedule_id, run_id = self._tail.owner_of(any_id), None
        if schedule_id is None:
            found = self._look_up(any_id)
            if found is None:
                return None
            schedule_id, run_id = found.schedule_id, found.run_id
        events = self._tail.rows_of(schedule_id)
        recent = [to_row(event) for event in events]
        if run_id is None:
            run_id = next((row.run_id for row in recent if any_id in (row.run_id, row.server_run_id)), any_id)
        older = self._rows_in_file(schedule_id, run_id or any_id, events[0].n if events else None)
        rows = (*older, *(row for row in recent if row.run_id == run_id))
        if not rows or run_id is None:
            return None
        server_run_id = next((row.server_run_id for row in reversed(rows) if row.server_run_id is not None), None)
        return FoundRun(schedule_id, run_id, server_run_id, rows)

    def rowed_after(self, schedule_id: str, at: datetime) -> tuple[datetime, ...]:
        """Instants later than `at` that have a row of their own, in order."""
        events = self._tail.rows_of(schedule_id)
        rows = [to_row(event) for event in events]
        with told_as_storage_errors("reading a history"), reading(self._fs, path_of(self._home, schedule_id)) as reader:
            if reader is not None:
                rows.extend(HistoryRows(self._home, schedule_id, reader).after(0, events[0].n if events else None))
        return tuple(sorted({row.instant for row in rows if row.instant is not None and row.instant > at}))

    def _rows_in_file(self, schedule_id: str, run_id: str, below: int | None) -> Iterable[Row]:
        with told_as_storage_errors("reading a history"), reading(self._fs, path_of(self._home, schedule_id)) as reader:
            if reader is None:
                return []
            history = HistoryRows(self._home, schedule_id, reader)
            return [row for row in history.of_run(run_id) if below is None or row.n < below]

    def _look_up(self, any_id: str) -> Indexed | None:
        with told_as_storage_errors("reading the run index"):
            try:
                return self._index.find(any_id)
            except LookupError:
                return self._look_everywhere(any_id)

    def _look_everywhere(self, any_id: str) -> Indexed | None:
        """The index cannot tell: look through every history.  It takes seconds, and the next checkpoint makes the index good again."""
        quoted = msgspec.json.encode(any_id)
        wanted = (b'"run_id":%b' % quoted, b'"server_run_id":%b' % quoted)
        for schedule_id, path in list_histories(self._fs, self._home):
            data = read_file(self._fs, path)
            if not any(each in data for each in wanted):
                continue
            with reading(self._fs, path) as reader:
                rows = HistoryRows(self._home, schedule_id, reader).after(0, None) if reader is not None else iter(())
                for row in rows:
                    if row.run_id is not None and any_id in (row.run_id, row.server_run_id):
                        return Indexed(any_id, row.run_id, schedule_id)
        return None
