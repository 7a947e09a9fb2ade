"""History files: one per schedule, its rows in order of `n`, appended at checkpoints.

Owns: `occurrences/<hh>/<schedule id>.jsonl`, where the next rows go, how a page is read, what stands in for a line that cannot be.
Must never know: which rows are kept (`retention.py`), what is not yet in a file (`tail.py`).

Each line carries how many rows of each sort there ever were up to it, so that first and last line tell how many are in the file and
nothing about an idle schedule has to be kept in memory.  Places are found by bisection over bytes.

What an interrupted checkpoint left is cut before the next append: everything from the first row on that the journal still has.  A
line that cannot be read and lies before that is damage.  It stays, and a page shows a diagnostic row in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, cast
from zlib import crc32

import msgspec

from scheduler_daemon.core.model import Row, Status
from scheduler_daemon.store.documents import Home, keep_copy
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.framing import frame
from scheduler_daemon.store.fs import FileSystem, append_all, chunked, sync_folder
from scheduler_daemon.store.lines import Line, LineReader, reading
from scheduler_daemon.store.schema import HistoryLine, NewerVersion, RowLine, TruncatedBefore, decode_history, versioned

DAMAGED: Final = cast("Status", "damaged")
"""The status of a row that stands in for a line that cannot be read."""

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Counts(msgspec.Struct, frozen=True):
    """How many rows of runs, and of instants that did not run, a schedule ever had."""

    runs: int = 0
    others: int = 0

    def with_row(self, row: Row) -> Counts:
        """These and one more."""
        return Counts(self.runs + 1, self.others) if row.run_id is not None else Counts(self.runs, self.others + 1)


class Appended(msgspec.Struct, frozen=True):
    """A file after rows were appended to it."""

    schedule_id: str
    path: str
    folder: str
    size: int
    counts: Counts


def folder_of(home: Home, schedule_id: str) -> str:
    """The folder of a schedule's file; 256 of them keep each one small."""
    return f"{home.occurrences}/{crc32(schedule_id.encode()) & 0xFF:02x}"


def path_of(home: Home, schedule_id: str) -> str:
    """The file of a schedule.  Its id is a safe file name (spec section 3)."""
    return f"{folder_of(home, schedule_id)}/{schedule_id}.jsonl"


def decode_line(line: Line) -> HistoryLine | None:
    """What a line of a history says, None when it cannot be read.  Raises `StoreUnusable` for a newer format."""
    body = line.body
    if body is None:
        return None
    try:
        return decode_history(body)
    except NewerVersion as newer:
        raise StoreUnusable(str(newer), offset=line.offset) from newer
    except msgspec.MsgspecError:
        return None


def head_of(reader: LineReader) -> tuple[TruncatedBefore | None, int]:
    """The line that retention left at the beginning, if there is one, and where rows begin."""
    first = next(reader.lines(0), None)
    content = decode_line(first) if first is not None else None
    return (content, first.end) if first is not None and isinstance(content, TruncatedBefore) else (None, 0)


def is_damage(line: Line) -> bool:
    """Whether an unreadable line cannot be what an interrupted append left: it is whole, and no block of it is missing."""
    return line.whole and b"\0" not in line.data


def _number_of(line: Line) -> int | None:
    content = decode_line(line)
    return content.row.n if isinstance(content, RowLine) else None


# --- reading ----------------------------------------------------------------------------------------------------------


class HistoryRows:
    """The rows of one file from a place on."""

    def __init__(self, home: Home, schedule_id: str, reader: LineReader) -> None:
        self.head, self._begin = head_of(reader)
        self._schedule_id = schedule_id
        self._reader = reader
        self._name = home.relative(path_of(home, schedule_id))

    def after(self, n: int, below: int | None) -> Iterator[Row]:
        """Rows with `n` above that and, given `below`, under it; unreadable lines as diagnostic rows.

        With `below`, a piece of a line or zeros after the last row under it are what a checkpoint left that is being done again.
        """
        before = Row(n=0, schedule_id=self._schedule_id, status=DAMAGED, at=_NEVER)
        bad: list[Line] = []
        for line in self._reader.lines(self._reader.seek(self._begin, _number_of, n)):
            content = decode_line(line)
            if not isinstance(content, RowLine) or content.row.n <= before.n:  # there twice, or in another's place
                bad.append(line)
                continue
            row = content.row
            if below is not None and row.n >= below:
                break
            if bad and n < before.n + 1 < row.n:
                yield self._diagnostic(before, bad)
            bad = []
            if row.n > n:
                yield row
            before = row
        bad = [line for line in bad if below is None or is_damage(line)]
        if bad and n < before.n + 1 and (below is None or before.n + 1 < below):
            yield self._diagnostic(before, bad)

    def _diagnostic(self, before: Row, bad: list[Line]) -> Row:
        """One row for a stretch that cannot be read, numbered after the row before it, so that cursors pass it once."""
        detail = {
            "file": self._name,
            "offset": bad[0].offset,
            "bytes": bad[-1].end - bad[0].offset,
            "message": "this part of the history cannot be read; the rows around it are as they were written",
        }
        return Row(
            n=before.n + 1,
            schedule_id=self._schedule_id,
            status=DAMAGED,
            at=before.at,
            reason="damaged-record",
            detail=detail,
        )

    def of_run(self, run_id: str) -> Iterator[Row]:
        """The rows of one run, found without decoding the others."""
        data = self._reader.everything()
        wanted = b'"run_id":"%b"' % run_id.encode()
        at = data.find(wanted)
        while at >= 0:
            start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            end = len(data) if end < 0 else end
            content = decode_line(Line(start, data[start:end], whole=end < len(data)))
            if isinstance(content, RowLine) and content.row.run_id == run_id:
                yield content.row
            at = data.find(wanted, end)


def first_damage(fs: FileSystem, home: Home, schedule_id: str, n: int, below: int | None) -> int | None:
    """The offset of the first line at or after row `n` that cannot be read, None when all can."""
    with reading(fs, path_of(home, schedule_id)) as reader:
        if reader is None:
            return None
        for row in HistoryRows(home, schedule_id, reader).after(n - 1, below):
            if row.status == DAMAGED and row.detail is not None:
                return row.detail["offset"]
    return None


# --- appending --------------------------------------------------------------------------------------------------------


def append(fs: FileSystem, home: Home, schedule_id: str, rows: Sequence[Row]) -> Appended:
    """Put rows, in order and at least one, at the end of a schedule's file.  Nothing is synced here."""
    folder, path = folder_of(home, schedule_id), path_of(home, schedule_id)
    fd = _open(fs, home, folder, path)
    try:
        counts, size, joint = _prepare(fs, home, path, fd, rows[0].n)
        parts = [joint]
        for row in rows:
            counts = counts.with_row(row)
            parts.append(frame(versioned(RowLine(counts.runs, counts.others, row))))
        for chunk in chunked(parts):
            append_all(fs, fd, chunk)
            size += len(chunk)
    finally:
        fs.close(fd)
    return Appended(schedule_id, path, folder, size, counts)


def _open(fs: FileSystem, home: Home, folder: str, path: str) -> int:
    try:
        return fs.open_append(path)
    except FileNotFoundError:
        if not fs.exists(folder):
            fs.make_folder(folder)
            sync_folder(fs, home.occurrences)
        return fs.create(path)


def _prepare(fs: FileSystem, home: Home, path: str, fd: int, first_n: int) -> tuple[Counts, int, bytes]:
    """Make the file end where row `first_n` belongs: the counts so far, its size, and what must come before the row."""
    reader = LineReader(fs, fd)
    last = reader.last()
    if last is None:
        return Counts(), 0, b""
    content = decode_line(last) if last.whole else None
    match content:
        case RowLine(runs=runs, others=others, row=row) if row.n < first_n:
            return Counts(runs, others), reader.size, b""
        case TruncatedBefore(runs=runs, others=others):
            return Counts(runs, others), reader.size, b""
        case _:
            return _cut(fs, home, path, fd, first_n)


def _cut(fs: FileSystem, home: Home, path: str, fd: int, first_n: int) -> tuple[Counts, int, bytes]:
    """The end is not a row before `first_n`: find where those end, keep damage among them, cut what follows."""
    reader = LineReader(fs, fd)
    counts, keep, joint, lost = Counts(), 0, b"", b""
    head, begin = head_of(reader)
    if head is not None:
        counts, keep = Counts(head.runs, head.others), begin
    for line in reader.lines(reader.seek(begin, _number_of, first_n - 1)):
        content = decode_line(line)
        if isinstance(content, RowLine):
            if content.row.n >= first_n:
                break
            counts, keep, lost = Counts(content.runs, content.others), line.end, b""
            if not line.whole:  # its newline was damaged: to nothing, or to another byte
                keep, joint = line.content_end, b"\n"
        elif is_damage(line):
            keep = line.end
        else:
            lost += line.data
    if lost:
        keep_copy(
            fs, home, home.relative(path), keep, data=lost, reason="left by an interrupted checkpoint, or damaged"
        )
    fs.truncate(fd, keep)
    return counts, keep, joint
