"""Reading the journal back: which batches there are, what in them cannot be read, and how the last segment ends.

Owns: the structure of the journal (segments, batches, commit lines) and the first half of the table *found at recovery*: what the end
of the last segment means.  Must never know: what a record means for a schedule (`recovery.py`).

The question at every bad line is whether its batch was acknowledged.  A batch without a commit line after it was not, and what an
interrupted append leaves is told apart from damage by its shape: it stops short, or it has zeros where blocks never reached the disk.
Everything else that cannot be read may have been acted on, so it is damage, and damage is reported and never cut away.  A batch that
is followed by another was durable before that one was written; if only its commit line is unreadable, nothing of it is missing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.framing import lines, unframe, unmerge, unwritten
from scheduler_daemon.store.schema import Commit, NewerVersion, Record, decode_journal


class Found(enum.Enum):
    """What the end of the last segment turned out to be."""

    CLEAN = "ends with a commit line"
    NO_NEWLINE = "torn: the last line has no newline"
    NO_COMMIT = "torn: valid lines that no commit line follows"
    UNWRITTEN = "torn: zeros where blocks never reached the disk"
    LOST_NEWLINE = "whole but for the newline of its commit line"
    DAMAGED = "damaged: a complete line with a bad checksum, and no commit line after it"


TORN = frozenset({Found.NO_NEWLINE, Found.NO_COMMIT, Found.UNWRITTEN})


class Segment(NamedTuple):
    """A file of the journal: its path, its name in reports, and the number of its first record."""

    path: str
    name: str
    first: int


class Entry(NamedTuple):
    """A record and where it stands."""

    file: str
    offset: int
    record: Record


class Lost(NamedTuple):
    """A line that cannot be read."""

    file: str
    offset: int
    data: bytes
    reason: str


class Batch(msgspec.Struct):
    """Records that were written together.  `commit` is None when its line is unreadable; `last` is then deduced from the next batch.

    `lost` may hold that commit line.  `missing` are the numbers of records that are nowhere.  `open`: nothing follows, so it is not
    known how many records there were.
    """

    first: int
    last: int
    entries: list[Entry]
    lost: list[Lost]
    commit: Commit | None
    file: str
    start: int
    end: int
    open: bool = False

    @property
    def missing(self) -> list[int]:
        if self.last - self.first + 1 == len(self.entries):
            return []
        present = {entry.record.seq for entry in self.entries}
        return [seq for seq in range(self.first, self.last + 1) if seq not in present]


class Tail(msgspec.Struct, frozen=True):
    """How the last segment ends: everything before `good` is to be kept, `torn` is what follows."""

    found: Found
    good: int
    torn: bytes = b""


class Scan:
    """One pass over segments in order.  `batches` must be read to its end before `tail` means anything."""

    def __init__(self, segments: Sequence[Segment], read: Callable[[str], bytes], skip_until: int = 0) -> None:
        self._segments = segments
        self._read = read
        self._skip_until = skip_until
        self._data = b""
        self._expected = segments[0].first if segments else 1
        self._seq = self._expected - 1
        self._start = 0
        self._entries: list[Entry] = []
        self._lost: list[Lost] = []
        self._whole_until: int | None = None
        self.size = 0
        self.mended: list[Lost] = []
        self.tail = Tail(Found.CLEAN, 0)

    @property
    def last_seq(self) -> int:
        """The number of the last record that was read and is kept."""
        return self._seq

    def batches(self) -> Iterator[Batch]:
        """Every batch that is kept, in order; last of all one without a commit line, if the end is damaged.

        The newest is held back until the next one or the end is seen, because zeros in it then mean something else.
        Raises `StoreUnusable` for a missing segment, a gap in the numbers, and a newer format.
        """
        held: Batch | None = None
        for batch in self._closed():
            if held is not None:
                yield held
            held = batch
        held = self._judge_end(held)
        if held is not None:
            yield held
        if self._entries or self._lost:
            yield self._open_batch()

    def _closed(self) -> Iterator[Batch]:
        for position, segment in enumerate(self._segments):
            self._start = 0
            self._data = self._read(segment.path)
            self.size += len(self._data)
            if segment.first != self._seq + 1 and not (self._lost and segment.first > self._seq):
                raise StoreUnusable(f"records from {self._seq + 1} on are missing: a segment is gone", segment.name)
            last = position == len(self._segments) - 1
            for offset, line, whole in lines(self._data):
                yield from self._line(segment, offset, line, torn=last and not whole)

    # --- lines ---

    def _line(self, segment: Segment, offset: int, line: bytes, *, torn: bool) -> list[Batch]:
        closed: list[Batch] = []
        for body in self._bodies(segment, offset, line, torn=torn):
            content = self._decode(segment, offset, body)
            if isinstance(content, Commit):
                closed = self._close(segment, offset, offset + len(line) + 1, content)
            elif content is not None:
                self._take(segment, offset, content)
        return closed

    def _bodies(self, segment: Segment, offset: int, line: bytes, *, torn: bool) -> list[bytes]:
        body = unframe(line)
        if torn:  # the end of everything: only a commit line counts, whatever became of its newline
            self._whole_until = offset + len(line) - (0 if body is not None else 1)
            body = body or unframe(line[:-1])
            return [body] if body is not None and isinstance(self._decode(segment, offset, body), Commit) else []
        if body is not None:
            return [body]
        bodies = unmerge(line)
        lost = Lost(segment.name, offset, line, "its newline is damaged" if bodies else "checksum does not match")
        (self.mended if bodies else self._lost).append(lost)
        return bodies

    def _decode(self, segment: Segment, offset: int, body: bytes) -> Record | Commit | None:
        try:
            return decode_journal(body, self._skip_until)
        except NewerVersion as newer:
            raise StoreUnusable(str(newer), segment.name, offset) from newer
        except msgspec.MsgspecError as error:
            self._lost.append(Lost(segment.name, offset, body, f"not a record: {error}"))
            return None

    def _take(self, segment: Segment, offset: int, record: Record) -> None:
        if record.seq <= self._seq or (record.seq != self._seq + 1 and not self._lost):
            raise StoreUnusable(f"record {record.seq} follows record {self._seq}", segment.name, offset)
        self._seq = record.seq
        self._entries.append(Entry(segment.name, offset, record))

    def _close(self, segment: Segment, offset: int, end: int, commit: Commit) -> list[Batch]:
        """A commit line: what stands before it is its batch, and perhaps an earlier one whose own line is unreadable."""
        own = [entry for entry in self._entries if entry.record.seq >= commit.first]
        earlier = self._entries[: len(self._entries) - len(own)]
        whole = not earlier and commit.first == self._expected and len(own) == commit.last - commit.first + 1
        if commit.first < self._expected or self._seq > commit.last or not (whole or self._lost):
            message = f"the batch {commit.first} to {commit.last} is not what stands before its commit line"
            raise StoreUnusable(message, segment.name, offset)
        theirs, ours = self._split_lost(earlier, own, commit)
        closed: list[Batch] = []
        if commit.first > self._expected:
            closed.append(
                Batch(self._expected, commit.first - 1, earlier, theirs, None, segment.name, self._start, offset)
            )
        closed.append(Batch(commit.first, commit.last, own, ours, commit, segment.name, self._start, end))
        self._entries, self._lost = [], []
        self._seq, self._expected, self._start = commit.last, commit.last + 1, end
        return closed

    def _split_lost(self, earlier: list[Entry], own: list[Entry], commit: Commit) -> tuple[list[Lost], list[Lost]]:
        """Which unreadable lines are the earlier batch's.  When none of its records is missing it is one, its commit line."""
        if commit.first == self._expected:
            return [], self._lost
        whole = len(own) == commit.last - commit.first + 1
        if len(earlier) == commit.first - self._expected:
            return self._lost[:1], self._lost[1:] or ([] if whole else self._lost)
        return self._lost, [] if whole else self._lost

    # --- the end ---

    def _judge_end(self, newest: Batch | None) -> Batch | None:
        """Judge how the last segment ends, and whether the newest batch stays."""
        if not self._segments:
            return newest
        segment, data = self._segments[-1], self._data
        here = newest is not None and newest.file == segment.name
        good = newest.end if newest is not None and here else 0
        if good > len(data) and self._whole_until is not None:
            self.tail = Tail(Found.LOST_NEWLINE, self._whole_until)
            return newest
        rest = data[good:]
        if newest is not None and here and not rest and newest.lost and unwritten(data[newest.start :], newest.start):
            self._forget(segment, newest.first)
            self.tail = Tail(Found.UNWRITTEN, newest.start, data[newest.start :])
            return None
        found = self._judge_rest(rest, good, segment)
        if found in TORN:
            self._forget(segment, self._expected)
            self.tail = Tail(found, good, rest)
        else:
            self.tail = Tail(found, len(data))
        return newest

    def _judge_rest(self, rest: bytes, offset: int, segment: Segment) -> Found:
        if not rest:
            return Found.CLEAN
        if unwritten(rest, offset):
            return Found.UNWRITTEN
        if not rest.endswith(b"\n"):
            return Found.NO_NEWLINE
        return Found.DAMAGED if any(lost.file == segment.name for lost in self._lost) else Found.NO_COMMIT

    def _forget(self, segment: Segment, first: int) -> None:
        """Nothing of the last segment from record `first` on was ever acknowledged."""
        self._entries = [entry for entry in self._entries if entry.file != segment.name]
        self._lost = [lost for lost in self._lost if lost.file != segment.name]
        self._seq = self._entries[-1].record.seq if self._entries else first - 1

    def _open_batch(self) -> Batch:
        name = self._segments[-1].name
        return Batch(
            self._expected, self._seq, self._entries, self._lost, None, name, self._start, len(self._data), open=True
        )
