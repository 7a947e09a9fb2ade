"""One checkpoint: rows into history files, a snapshot, then dropping what both make superfluous.

Owns: the order of these steps.  Must never know: the loop, the live state.  It runs in a thread of its own while batches are committed,
on values that cannot change under it.

The order is what makes a crash at any point harmless.  Rows are durable in the histories before the snapshot that says so has its
name; the snapshot is durable before anything that only the journal had is dropped.  A crash before the snapshot leaves rows in the
histories that the journal still has: they are cut and written again.  What comes after the snapshot (retention, tidying the run
index) is no matter of durability: without room it waits for the next time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

import msgspec

from scheduler_daemon.core.model import Row
from scheduler_daemon.store.documents import Home
from scheduler_daemon.store.errors import StorageFull
from scheduler_daemon.store.fs import FileSystem, sync_everything, told_as_storage_errors
from scheduler_daemon.store.history import Appended, HistoryRows, append
from scheduler_daemon.store.journal import list_segments
from scheduler_daemon.store.lines import reading
from scheduler_daemon.store.retention import Retention, is_aged, is_due, trim
from scheduler_daemon.store.runindex import RunIndex, entries_of
from scheduler_daemon.store.schema import Gone, Indexed
from scheduler_daemon.store.snapshot import Captured, drop_old_snapshots, write_snapshot
from scheduler_daemon.store.tail import Rows, to_row

SWEPT_MAX: Final = 500
"""How many histories a checkpoint looks at for rows that are too old; all are looked at in turn."""


class Done(msgspec.Struct, frozen=True):
    """What a checkpoint did.  `postponed` says why retention has to wait, None when it did not."""

    seq: int
    snapshot_bytes: int
    rows: int
    trimmed_rows: int
    segments: int
    postponed: str | None


class Checkpointer:
    """Runs checkpoints, one at a time, always in the same thread."""

    def __init__(self, fs: FileSystem, home: Home, index: RunIndex, keep: Retention) -> None:
        self._fs = fs
        self._home = home
        self._index = index
        self._keep = keep
        self._due: dict[str, None] = {}
        self._swept = 0

    def run(self, captured: Captured, frozen: Rows) -> Done:
        """Make everything up to `captured.seq` durable outside the journal.

        Raises `StorageFull`: then nothing is lost and it can be tried again; `StorageFailed`: then the process must end.
        """
        with told_as_storage_errors("writing a checkpoint"):
            appended, touched = self._append(frozen)
            snapshot_bytes = write_snapshot(self._fs, self._home, captured)
        trimmed, segments, postponed = 0, 0, None
        try:
            with told_as_storage_errors("tidying after a checkpoint"):
                segments = self._drop_segments(drop_old_snapshots(self._fs, self._home))
                self._note_due(captured, appended)
                trimmed = self._trim(captured)
                self._index.compact(touched)
                self._index.mend(self._all_rows)
        except StorageFull as full:
            postponed = str(full)
        return Done(captured.seq, snapshot_bytes, sum(map(len, frozen.values())), trimmed, segments, postponed)

    def _append(self, frozen: Rows) -> tuple[list[Appended], list[str]]:
        """Rows and their index entries into files, and all of those durable."""
        appended: list[Appended] = []
        entries: list[Indexed] = []
        for schedule_id, events in frozen.items():
            rows = [to_row(event) for event in events]
            appended.append(append(self._fs, self._home, schedule_id, rows))
            entries.extend(entry for row in rows for entry in entries_of(row))
        touched = self._index.append(entries)
        if appended:
            paths = [*(each.path for each in appended), *touched]
            folders = [*dict.fromkeys(each.folder for each in appended), self._home.runs]
            sync_everything(self._fs, self._home.root, paths, folders)
        return appended, touched

    def _drop_segments(self, seq: int) -> int:
        """Drop what lies wholly before the older of the two snapshots that are kept; how many segments are left."""
        segments = list_segments(self._fs, self._home)
        dropped = 0
        for segment, following in pairwise(segments):
            if following.first <= seq + 1:
                self._fs.unlink(segment.path)
                dropped += 1
        return len(segments) - dropped

    # --- retention ---

    def _note_due(self, captured: Captured, appended: list[Appended]) -> None:
        for each in appended:
            if is_due(self._fs, each, self._keep):
                self._due[each.schedule_id] = None
        if captured.aged_until is None:
            return
        swept = captured.schedules[self._swept : self._swept + SWEPT_MAX]
        self._swept = self._swept + SWEPT_MAX if len(swept) == SWEPT_MAX else 0
        for schedule in swept:
            if is_aged(self._fs, self._home, schedule.schedule_id, self._keep, captured.aged_until):
                self._due[schedule.schedule_id] = None

    def _trim(self, captured: Captured) -> int:
        if not self._due:
            return 0
        unfinished = {
            schedule.schedule_id: {run.run_id for run in schedule.runs}
            for schedule in captured.schedules
            if schedule.runs
        }
        count = 0
        while self._due:
            schedule_id = next(iter(self._due))
            trimmed = trim(
                self._fs,
                self._home,
                schedule_id,
                keep=self._keep,
                unfinished=unfinished.get(schedule_id, frozenset[str]()),
                until=captured.aged_until or captured.at,
            )
            self._index.append(Gone(name) for name in trimmed.gone)
            del self._due[schedule_id]
            count += trimmed.rows
        return count

    def _all_rows(self) -> Iterator[Row]:
        for schedule_id, path in list_histories(self._fs, self._home):
            with reading(self._fs, path) as reader:
                if reader is not None:
                    yield from HistoryRows(self._home, schedule_id, reader).after(0, None)


def list_histories(fs: FileSystem, home: Home) -> Iterator[tuple[str, str]]:
    """Every schedule that has a history file, and the file."""
    with suppress(FileNotFoundError):
        for folder in fs.list_folder(home.occurrences):
            for name in fs.list_folder(f"{home.occurrences}/{folder}"):
                if name.endswith(".jsonl"):
                    yield name.removesuffix(".jsonl"), f"{home.occurrences}/{folder}/{name}"
