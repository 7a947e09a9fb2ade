"""Reading a whole store to say what is wrong with it, without touching it.

Owns: the report.  Must never know: how to mend anything; recovery does that at the next start.

It may read a store that a daemon is writing.  So it reads first what is derived and last what it is derived from (histories, run
index, then snapshots and journal): what it finds in the former must then be in the latter.  Files that a checkpoint replaced meanwhile
are read again.

A problem is damage, or a contradiction between files.  A note is what a crash or a restore leaves and a start takes care of.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from scheduler_daemon.core.model import Now, Settings
from scheduler_daemon.store.checkpoint import list_histories
from scheduler_daemon.store.documents import Home, read_format, read_marker
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.framing import unframe
from scheduler_daemon.store.fs import FileSystem, RealFileSystem, read_file
from scheduler_daemon.store.history import HistoryRows, decode_line, head_of, path_of
from scheduler_daemon.store.journal import list_segments, segments_after
from scheduler_daemon.store.lines import LineReader, reading
from scheduler_daemon.store.loading import Recovered, recover
from scheduler_daemon.store.lock import Seen, read_seen
from scheduler_daemon.store.opening import behind_of
from scheduler_daemon.store.runindex import BUCKETS, RunIndex, bucket_of, entries_of
from scheduler_daemon.store.scan import Scan
from scheduler_daemon.store.schema import (
    Gone,
    Indexed,
    NewerVersion,
    RowLine,
    TruncatedBefore,
    decode_index,
    decode_snapshot,
)
from scheduler_daemon.store.snapshot import list_snapshots

_READS_MAX: Final = 5
_ANY_TIME: Final = Now(datetime(1970, 1, 1, tzinfo=UTC), 0.0)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as it should be; `file` relative to the store root, `schedule_id` where it is known."""

    file: str
    offset: int
    reason: str
    schedule_id: str | None = None


class Report(msgspec.Struct):
    """What was read, what is wrong, and what is merely worth knowing."""

    store_id: str = ""
    schedules: int = 0
    records: int = 0
    rows: int = 0
    runs: int = 0
    files: int = 0
    problems: list[Problem] = []
    notes: list[Problem] = []

    @property
    def clean(self) -> bool:
        return not self.problems


def verify(root: Path, *, fs: FileSystem | None = None) -> Report:
    """Read everything.  Raises nothing about the store: what cannot be read is in the report."""
    home = Home(str(root.absolute()))
    with _collector_at_rest():
        return _Verification(fs if fs is not None else RealFileSystem(), home).run()


@contextmanager
def _collector_at_rest() -> Generator[None]:
    """Nothing here has cycles, and looking for some among millions of ids costs a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Verification:
    def __init__(self, fs: FileSystem, home: Home) -> None:
        self._fs = fs
        self._home = home
        self._report = Report()
        self._rows_of: dict[str, tuple[str, str]] = {}
        self._unindexed: set[str] = set()
        self._rowless: dict[str, Indexed] = {}
        self._last_n: dict[str, int] = {}
        self._runs = RunIndex(fs, home)
        self._seen = Seen()

    def run(self) -> Report:
        try:
            found = read_format(self._fs, self._home)
        except StoreUnusable as unusable:
            self._problem(unusable.file, unusable.offset, unusable.reason)
            return self._report
        if found is None:
            self._problem(self._home.relative(self._home.folder), 0, "there is no store here")
            return self._report
        self._report.store_id = found.store_id
        self._seen = read_seen(self._home.root)
        for schedule_id, path in list_histories(self._fs, self._home):
            self._history(schedule_id, path)
        self._index()
        self._truth(found.store_id)
        self._leftovers()
        return self._report

    def _problem(self, file: str, offset: int, reason: str, schedule_id: str | None = None) -> None:
        self._report.problems.append(Problem(file, offset, reason, schedule_id))

    def _note(self, file: str, offset: int, reason: str) -> None:
        self._report.notes.append(Problem(file, offset, reason))

    # --- histories and run index ---

    def _history(self, schedule_id: str, path: str) -> None:
        name = self._home.relative(path)
        with reading(self._fs, path) as reader:
            if reader is not None:
                self._report.files += 1
                self._rows(schedule_id, name, reader)

    def _rows(self, schedule_id: str, name: str, reader: LineReader) -> None:
        counted: tuple[int, int] | None = (0, 0)
        before = 0
        for line in reader.lines(0):
            try:
                content = decode_line(line)
            except StoreUnusable as newer:
                self._problem(name, line.offset, newer.reason, schedule_id)
                return
            match content:
                case RowLine(row=row):
                    self._report.rows += 1
                    if row.schedule_id != schedule_id:
                        self._problem(name, line.offset, f"a row of {row.schedule_id}", schedule_id)
                    if row.n <= before:
                        self._problem(name, line.offset, f"row {row.n} follows row {before}", schedule_id)
                    ran = row.run_id is not None
                    if counted is not None and counted != (content.runs - ran, content.others - (not ran)):
                        self._problem(name, line.offset, f"row {row.n} counts rows that are not there", schedule_id)
                    counted, before = (content.runs, content.others), row.n
                    self._expect(schedule_id, content)
                case TruncatedBefore() if line.offset == 0:
                    counted = (content.runs, content.others)
                case None if not line.whole:
                    self._note(name, line.offset, "a piece of a line, as a checkpoint leaves while it is written")
                case _:
                    counted = None
                    self._problem(name, line.offset, "this line cannot be read", schedule_id)
        self._last_n[schedule_id] = before

    def _expect(self, schedule_id: str, line: RowLine) -> None:
        for entry in entries_of(line.row):
            self._rows_of[entry.id] = (entry.run_id, schedule_id)
            self._unindexed.add(entry.id)

    def _index(self) -> None:
        for bucket in range(BUCKETS):
            path = self._runs.path(bucket)
            with reading(self._fs, path) as reader:
                if reader is not None:
                    self._report.files += 1
                    self._bucket(bucket, self._home.relative(path), reader)

    def _bucket(self, bucket: int, name: str, reader: LineReader) -> None:
        for line in reader.lines(0):
            body = line.body
            try:
                content = decode_index(body) if body is not None else None
            except (NewerVersion, msgspec.MsgspecError):
                content = None
            if content is not None and bucket_of(content.id) != bucket:
                self._problem(name, line.offset, f"run {content.id} belongs into another file of the run index")
            elif isinstance(content, Indexed):
                self._report.runs += content.id == content.run_id
                self._unindexed.discard(content.id)
                expected = self._rows_of.get(content.id)
                if expected is None:
                    self._rowless[content.id] = content
                elif expected != (content.run_id, content.schedule_id):
                    self._problem(name, line.offset, f"run {content.id} is indexed as another", content.schedule_id)
            elif isinstance(content, Gone):
                self._rowless.pop(content.id, None)
            elif line.whole:
                self._problem(
                    name, line.offset, "this line cannot be read; the next checkpoint after a search makes it again"
                )

    # --- snapshots and journal ---

    def _truth(self, store_id: str) -> None:
        for _ in range(_READS_MAX):
            with suppress(FileNotFoundError):  # a checkpoint dropped a file between listing and reading: once more
                found: list[Problem] = []
                found += self._snapshots()
                found += self._segments()
                recovered = self._recovered(store_id, found)
                self._report.problems += list(dict.fromkeys(found))
                if recovered is not None:
                    self._compare(recovered)
                return
        self._problem(self._home.relative(self._home.journal), 0, "files come and go faster than they can be read")

    def _snapshots(self) -> Iterator[Problem]:
        for snapshot in list_snapshots(self._fs, self._home):
            self._report.files += 1
            with reading(self._fs, snapshot.path) as reader:
                for line in reader.lines(0) if reader is not None else ():
                    body = line.body
                    try:
                        readable = body is not None and bool(decode_snapshot(body))
                    except (NewerVersion, msgspec.MsgspecError):
                        readable = False
                    if not readable:
                        yield Problem(snapshot.name, line.offset, "this line of a snapshot cannot be read")

    def _segments(self) -> Iterator[Problem]:
        snapshots = list_snapshots(self._fs, self._home)
        everything = list_segments(self._fs, self._home)
        segments = segments_after(everything, snapshots[-1].seq if snapshots else 0) or everything
        self._report.files += len(segments)
        scan = Scan(segments, lambda path: read_file(self._fs, path))
        self._report.records = 0
        try:
            for batch in scan.batches():
                self._report.records += len(batch.entries)
                for lost in batch.lost:
                    yield Problem(lost.file, lost.offset, lost.reason)
        except StoreUnusable as unusable:
            yield Problem(unusable.file, unusable.offset, unusable.reason)
        for lost in scan.mended:
            yield Problem(lost.file, lost.offset, lost.reason)
        if scan.tail.torn and segments:
            self._note(
                segments[-1].name,
                scan.tail.good,
                f"{scan.tail.found.value}; never acknowledged, the next start cuts it",
            )

    def _recovered(self, store_id: str, found: list[Problem]) -> Recovered | None:
        try:
            recovered = recover(self._fs, self._home, store_id, Settings(), _ANY_TIME, agenda=False)
        except StoreUnusable as unusable:
            found.append(Problem(unusable.file, unusable.offset, unusable.reason))
            return None
        for line in recovered.judged.values():
            damage = line.damage
            if line.waiting:
                whose = damage.schedule_id or "nobody can tell whose"
                found.append(Problem(damage.file, damage.offset, f"{damage.reason} ({whose})", damage.schedule_id))
        return recovered

    def _compare(self, recovered: Recovered) -> None:
        """What the histories hold must be in the state that they are derived from."""
        self._report.schedules = len(recovered.state.schedules)
        behind = behind_of(recovered, self._seen)
        if behind is not None:
            self._problem(self._home.relative(self._home.journal), 0, behind)
        for schedule_id, n in self._last_n.items():
            schedule = recovered.state.schedules.get(schedule_id)
            name = self._home.relative(self._home.occurrences)
            if schedule is None:
                self._problem(name, 0, "a history of a schedule that does not exist", schedule_id)
            elif n > schedule.n:
                self._problem(name, 0, f"row {n} is later than the schedule's last record, {schedule.n}", schedule_id)
        in_journal = {getattr(event, name, None) for event in recovered.events for name in ("run_id", "server_run_id")}
        self._compare_index(in_journal)
        self._compare_rows(in_journal)

    def _compare_index(self, in_journal: set[str | None]) -> None:
        """Runs that no index line was found for, and that are not about to get one, or have got it meanwhile."""
        for run_id in sorted(self._unindexed):
            schedule_id = self._rows_of[run_id][1]
            with suppress(LookupError):  # its bucket is damaged, which was reported
                if run_id not in in_journal and self._runs.find(run_id) is None:
                    self._problem(
                        self._home.relative(self._home.runs), 0, f"run {run_id} is not in the run index", schedule_id
                    )

    def _compare_rows(self, in_journal: set[str | None]) -> None:
        """Runs that the index names and no history has, although nothing was ever dropped from it, and that it has not got meanwhile."""
        by_schedule: dict[str, list[Indexed]] = {}
        for entry in self._rowless.values():
            by_schedule.setdefault(entry.schedule_id, []).append(entry)
        for schedule_id, entries in by_schedule.items():
            path = path_of(self._home, schedule_id)
            with reading(self._fs, path) as reader:
                if reader is not None and head_of(reader)[0] is not None:
                    continue
                rows = HistoryRows(self._home, schedule_id, reader).after(0, None) if reader is not None else ()
                kept = {name for row in rows for name in (row.run_id, row.server_run_id)}
            for entry in entries:
                if entry.id not in kept and entry.id not in in_journal:
                    self._problem(self._home.relative(path), 0, f"a row of run {entry.run_id} is gone", schedule_id)

    def _leftovers(self) -> None:
        marker = read_marker(self._fs, self._home)
        if marker is not None:
            self._note(self._home.relative(self._home.folder), 0, f"{marker.reason}; a start must accept that")
        with suppress(FileNotFoundError):
            for name in self._fs.list_folder(self._home.quarantine):
                if name.endswith(".json"):
                    path = f"{self._home.quarantine}/{name}"
                    body = unframe(read_file(self._fs, path).rstrip(b"\n"))
                    reason = (
                        msgspec.json.decode(body, type=dict[str, object]).get("reason")
                        if body is not None
                        else "unreadable"
                    )
                    self._note(self._home.relative(path), 0, f"kept in quarantine: {reason}")
