"""From the id of a run, ours or the server's, to the schedule that has its rows.

Owns: `runs/<hh>.jsonl`, 256 buckets by hash of the id, appended at checkpoints.  Must never know: rows.

The index can be lost and made again from the histories, so it is never quarantined, and what cannot be read in it is only a reason
to look the slow way once and to write the bucket anew.  An id that retention let go gets a line that says so; a bucket that has
doubled is rewritten without what cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final
from zlib import crc32

import msgspec

from scheduler_daemon.core.model import Row
from scheduler_daemon.store.documents import Home
from scheduler_daemon.store.framing import frame
from scheduler_daemon.store.fs import FileSystem, append_all, chunked, read_file, replace_whole
from scheduler_daemon.store.lines import Line, LineReader
from scheduler_daemon.store.schema import Gone, Indexed, IndexLine, NewerVersion, decode_index, versioned

_COMPACT_FROM_BYTES: Final = 1 << 16
BUCKETS: Final = 256


def bucket_of(run_id: str) -> int:
    """Which bucket an id is in."""
    return crc32(run_id.encode()) % BUCKETS


class RunIndex:
    """The buckets of one store.  Writing is one thread's; looking up is anybody's."""

    def __init__(self, fs: FileSystem, home: Home) -> None:
        self._fs = fs
        self._home = home
        self._compacted: dict[int, int] = {}
        self._damaged: set[int] = set()

    def _name(self, bucket: int) -> str:
        return f"{bucket:02x}.jsonl"

    def path(self, bucket: int) -> str:
        """The file of a bucket."""
        return f"{self._home.runs}/{self._name(bucket)}"

    # --- looking up ---

    def find(self, run_id: str) -> Indexed | None:
        """Where a run's rows are.  Raises `LookupError` when the bucket is damaged and does not hold the id: ask `slowly`."""
        bucket = bucket_of(run_id)
        try:
            data = read_file(self._fs, self.path(bucket))
        except FileNotFoundError:
            return None
        at = data.rfind(b'"id":%b' % msgspec.json.encode(run_id))
        if at >= 0:
            start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            content = _decode(Line(start, data[start : end if end >= 0 else len(data)], whole=end >= 0))
            if content is not None and content.id == run_id:
                return content if isinstance(content, Indexed) else None
        if any(line.whole and not _belongs(line, bucket) for line in _lines(data)):
            self._damaged.add(bucket)
            raise LookupError(self._home.relative(self.path(bucket)))
        return None

    # --- writing ---

    def append(self, lines: Iterable[IndexLine]) -> list[str]:
        """Add lines; the paths they went to.  Nothing is synced here, and adding a line twice harms nothing."""
        buckets: dict[int, list[bytes]] = {}
        for line in lines:
            buckets.setdefault(bucket_of(line.id), []).append(frame(versioned(line)))
        for bucket, parts in buckets.items():
            self._append(bucket, b"".join(parts))
        return [self.path(bucket) for bucket in buckets]

    def _append(self, bucket: int, data: bytes) -> None:
        path = self.path(bucket)
        fd = self._fs.open_append(path) if self._fs.exists(path) else self._fs.create(path)
        try:
            last = LineReader(self._fs, fd).last()
            if last is not None and not last.whole:
                whole = last.body is not None
                # A piece of a line is the leftover of a checkpoint that is being done again.
                self._fs.truncate(fd, last.content_end if whole else last.offset)
                data = b"\n" + data if whole else data
            append_all(self._fs, fd, data)
        finally:
            self._fs.close(fd)

    def compact(self, paths: Iterable[str]) -> int:
        """Rewrite those of the buckets that have doubled since; how many.  Each is durable when this returns."""
        count = 0
        for bucket in (int(path[-8:-6], 16) for path in paths):
            data = read_file(self._fs, self.path(bucket))
            if len(data) < max(_COMPACT_FROM_BYTES, 2 * self._compacted.get(bucket, 0)):
                continue
            if not all(_belongs(line, bucket) for line in _lines(data)):
                self._damaged.add(bucket)
                continue
            self._rewrite(bucket, _live(_lines(data)))
            count += 1
        return count

    def mend(self, histories: Callable[[], Iterator[Row]]) -> int:
        """Make damaged buckets again from the rows there are; how many."""
        damaged = set(self._damaged)
        if not damaged:
            return 0
        found: dict[int, dict[str, Indexed]] = {bucket: {} for bucket in damaged}
        for row in histories():
            for entry in entries_of(row):
                if (bucket := bucket_of(entry.id)) in damaged:
                    found[bucket][entry.id] = entry
        for bucket, live in found.items():
            self._rewrite(bucket, live)
        self._damaged -= damaged
        return len(damaged)

    def _rewrite(self, bucket: int, live: Mapping[str, Indexed]) -> None:
        parts = (frame(versioned(entry)) for entry in live.values())
        self._compacted[bucket] = replace_whole(self._fs, self._home.runs, self._name(bucket), chunked(parts))


def entries_of(row: Row) -> list[Indexed]:
    """The index lines that a row calls for: a run's id once, at its admission, the server's wherever it is told."""
    if row.run_id is None:
        return []
    entries: list[Indexed] = []
    if row.status == "admitted" and row.reason is None:
        entries.append(Indexed(row.run_id, row.run_id, row.schedule_id))
    if row.server_run_id is not None:
        entries.append(Indexed(row.server_run_id, row.run_id, row.schedule_id))
    return entries


def _lines(data: bytes) -> Iterator[Line]:
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        whole = end >= 0
        end = end if whole else len(data)
        yield Line(at, data[at:end], whole)
        at = end + whole


def _decode(line: Line) -> IndexLine | None:
    body = line.body
    if body is None:
        return None
    with suppress(msgspec.MsgspecError, NewerVersion):
        return decode_index(body)
    return None


def _belongs(line: Line, bucket: int) -> bool:
    """Whether a line can be read, and is of this bucket: a file under another's name says nothing about its own ids."""
    content = _decode(line)
    return content is not None and bucket_of(content.id) == bucket


def _live(lines: Iterator[Line]) -> dict[str, Indexed]:
    live: dict[str, Indexed] = {}
    for line in lines:
        match _decode(line):
            case Indexed() as entry:
                live[entry.id] = entry
            case Gone(id=run_id):
                live.pop(run_id, None)
            case None:
                pass
    return live
