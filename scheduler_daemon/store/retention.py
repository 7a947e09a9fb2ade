"""How much history is kept, and how a file loses what is not.

Owns: the bounds, the choice of rows, the rewriting of one file.  Must never know: when it is time (`checkpoint.py`), what a cursor is.

Rows of runs and rows of instants that did not run are counted apart, so that a schedule that is skipped every minute does not lose
the runs it had.  A row of an unfinished run is never dropped.  Kept rows are copied byte for byte, checksums included, so a rewrite
cannot damage what it keeps; lines that cannot be read go with the rows before them, after a copy to quarantine.

A rewrite costs the whole file, so a file may grow over its bounds by `slack` before it is cut back to them.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta
from typing import Final

import msgspec

from scheduler_daemon.core.model import Row
from scheduler_daemon.store.documents import Home, keep_copy
from scheduler_daemon.store.framing import frame
from scheduler_daemon.store.fs import FileSystem, chunked, replace_whole
from scheduler_daemon.store.history import Appended, decode_line, folder_of, head_of, path_of
from scheduler_daemon.store.lines import Line, reading
from scheduler_daemon.store.schema import RowLine, TruncatedBefore, versioned


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one schedule's history.  Source: spec section 9."""

    runs_max: int = 1_000
    others_max: int = 1_000
    age_max_s: float = 90 * 86_400.0
    bytes_max: int = 16 << 20
    slack: float = 0.25

    def allows(self, runs: int, others: int, size: int) -> bool:
        """Whether a file of that many rows and bytes may stay as it is for now."""
        more = 1 + self.slack
        return runs <= self.runs_max * more and others <= self.others_max * more and size <= self.bytes_max * more


class Trimmed(msgspec.Struct, frozen=True):
    """What a rewrite dropped: how many rows, and the ids of runs of which no row is left."""

    rows: int
    gone: frozenset[str]


NOTHING: Final = Trimmed(0, frozenset())


def is_due(fs: FileSystem, appended: Appended, keep: Retention) -> bool:
    """Whether a file that just grew is over its bounds.  Reads its first line only when it may be."""
    counts = appended.counts
    if keep.allows(counts.runs, counts.others, appended.size):
        return False
    with reading(fs, appended.path) as reader:
        head = head_of(reader)[0] if reader is not None else None
    dropped = (head.runs, head.others) if head is not None else (0, 0)
    return not keep.allows(counts.runs - dropped[0], counts.others - dropped[1], appended.size)


def is_aged(fs: FileSystem, home: Home, schedule_id: str, keep: Retention, until: datetime) -> bool:
    """Whether the oldest row of a schedule is past its age by more than the slack."""
    limit = until - timedelta(seconds=keep.age_max_s * (1 + keep.slack))
    with reading(fs, path_of(home, schedule_id)) as reader:
        if reader is None:
            return False
        for line in reader.lines(head_of(reader)[1]):
            content = decode_line(line)
            if isinstance(content, RowLine):
                return content.row.at < limit
    return False


class _Kept(msgspec.Struct):
    """A line of the file, its row if it can be read, and whether it stays."""

    line: Line
    content: RowLine | None
    stays: bool = True

    @property
    def row(self) -> Row | None:
        return self.content.row if self.content is not None else None


def trim(
    fs: FileSystem, home: Home, schedule_id: str, *, keep: Retention, unfinished: Container[str], until: datetime
) -> Trimmed:
    """Cut a file back to its bounds; durable when it returns.  Raises `OSError` when there is no room: the old file stays."""
    with reading(fs, path_of(home, schedule_id)) as reader:
        if reader is None:
            return NOTHING
        head, begin = head_of(reader)
        found = [_Kept(line, _row_line(line)) for line in reader.lines(begin)]
    _choose(found, keep, unfinished, until - timedelta(seconds=keep.age_max_s))
    dropped = [each for each in found if not each.stays]
    rows = [each.row for each in dropped if each.row is not None]
    if not rows:
        return NOTHING
    _copy_unreadable(fs, home, schedule_id, dropped)
    new_head = _new_head(head, rows, found)
    parts = (each.line.data + b"\n" for each in found if each.stays)
    folder = folder_of(home, schedule_id)
    replace_whole(fs, folder, f"{schedule_id}.jsonl", chunked([frame(versioned(new_head)), *parts]))
    return Trimmed(len(rows), _ids(rows) - _ids([each.row for each in found if each.stays and each.row is not None]))


def _row_line(line: Line) -> RowLine | None:
    content = decode_line(line)
    return content if isinstance(content, RowLine) else None


def _choose(found: list[_Kept], keep: Retention, unfinished: Container[str], oldest_at: datetime) -> None:
    """Mark what goes, from the newest row backwards.  An unreadable line goes with the row before it."""
    runs = others = size = 0
    for each in reversed(found):
        row = each.row
        size += len(each.line.data) + 1
        if row is None:
            continue
        if row.run_id is not None:
            runs += 1
            within = runs <= keep.runs_max
        else:
            others += 1
            within = others <= keep.others_max
        final = row.run_id is None or row.run_id not in unfinished
        each.stays = not final or (within and size <= keep.bytes_max and row.at >= oldest_at)
    stays = False
    for each in found:
        if each.content is None:
            each.stays = stays
        stays = each.stays


def _copy_unreadable(fs: FileSystem, home: Home, schedule_id: str, dropped: list[_Kept]) -> None:
    name = home.relative(path_of(home, schedule_id))
    for each in dropped:
        if each.content is None:
            keep_copy(fs, home, name, each.line.offset, data=each.line.data, reason="unreadable, dropped by retention")


def _new_head(head: TruncatedBefore | None, rows: list[Row], found: list[_Kept]) -> TruncatedBefore:
    """What the file says of what it lost.  When an older such line was damaged, a generation that was never given out."""
    runs = sum(row.run_id is not None for row in rows)
    others = len(rows) - runs
    n = max(row.n for row in rows)
    if head is not None:
        return TruncatedBefore(head.generation + 1, max(n, head.n), head.runs + runs, head.others + others)
    first = next(each.content for each in found if each.content is not None)
    lost_head = found[0].content is None or first.runs + first.others > 1
    before = (first.runs - (first.row.run_id is not None), first.others - (first.row.run_id is None))
    return TruncatedBefore(n + 1 if lost_head else 1, n, before[0] + runs, before[1] + others)


def _ids(rows: list[Row]) -> frozenset[str]:
    return frozenset(name for row in rows for name in (row.run_id, row.server_run_id) if name is not None)
