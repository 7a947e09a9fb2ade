"""The journal's writing end: one batch, one append, one sync.

Owns: the segment files, where the next batch goes, what happens when a write fails.  Must never know: what events mean, who owns the
store.

Invariants.  Up to `_good` the open segment holds whole, durable batches; nobody else appends to it.  A batch is durable when `commit`
returns, and is not there when it raises `StorageFull`.  After `StorageFailed` nothing is known, and every later call raises it again.

A segment is begun exclusively, synced, and its name made durable before anything is written to it, so that a later batch can never be
on disk without the file of an earlier one.  When no segment can be created (no inodes, no descriptors), the old one takes more: a
segment that is too long harms nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from scheduler_daemon.core.events import Event
from scheduler_daemon.store.documents import Home
from scheduler_daemon.store.errors import OwnershipLost, StorageFailed, StorageFull
from scheduler_daemon.store.fs import FileSystem, append_all, storage_error, sync_data, sync_file, sync_folder
from scheduler_daemon.store.scan import Found, Segment, Tail
from scheduler_daemon.store.schema import Accepted, Commit, Judged, encode_batch

_NAME_DIGITS: Final = 20
_SUFFIX: Final = ".jsonl"


def segment_name(first: int) -> str:
    """The file name of the segment whose first record has that number."""
    return f"{first:0{_NAME_DIGITS}d}{_SUFFIX}"


def list_segments(fs: FileSystem, home: Home) -> list[Segment]:
    """The segments there are, in order."""
    if not fs.exists(home.journal):
        return []
    names = [name for name in fs.list_folder(home.journal) if _is_segment(name)]
    return [
        Segment(f"{home.journal}/{name}", home.relative(f"{home.journal}/{name}"), int(name[:_NAME_DIGITS]))
        for name in names
    ]


def segments_after(segments: list[Segment], seq: int) -> list[Segment] | None:
    """Those that hold every record after `seq`; None when one of them is not there.

    Ones wholly before it may be there or not, with gaps or without: dropping them is not synced.
    """
    older = [position for position, segment in enumerate(segments) if segment.first <= seq + 1]
    if older:
        return segments[older[-1] :]
    return None if seq or segments else []


def _is_segment(name: str) -> bool:
    return len(name) == _NAME_DIGITS + len(_SUFFIX) and name[:_NAME_DIGITS].isdecimal() and name.endswith(_SUFFIX)


class Journal:
    """Appends batches after record `seq`.  Used by one thread; `written`, the bytes of batches so far, may be read by any."""

    def __init__(self, fs: FileSystem, home: Home, *, seq: int, epoch: int, segment_bytes_max: int) -> None:
        self.seq = seq
        self.epoch = epoch
        self.written = 0
        self._fs = fs
        self._home = home
        self._segment_bytes_max = segment_bytes_max
        self._fd: int | None = None
        self._path = ""
        self._good = 0
        self._dirty = False
        self._lacks_newline = False
        self._rotate_next = False
        self._failed: str | None = None

    # --- opening and closing ---

    def resume(self, segment: Segment, tail: Tail) -> None:
        """Go on in the last segment.  What is torn at its end is cut before the first batch."""
        self._fd = self._fs.open_append(segment.path)
        self._path = segment.path
        self._good = tail.good
        self._lacks_newline = tail.found is Found.LOST_NEWLINE
        self._dirty = self._lacks_newline or bool(tail.torn)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._fs.close(fd)

    def rotate(self) -> None:
        """Let the next batch begin a segment, so that a snapshot taken now makes the ones before droppable."""
        self._rotate_next = True

    # --- one batch ---

    def commit(self, events: Sequence[Event], own: Sequence[Judged | Accepted] = ()) -> Commit:
        """Append one batch and make it durable.  Raises `StorageFull`, `StorageFailed`, `OwnershipLost`."""
        if self._failed is not None:
            raise StorageFailed(self._failed)
        lines, commit = encode_batch(self.seq + 1, self.epoch, events[-1].at, events, own)
        try:
            self.clean()
            fd = self._segment()
            self._append(fd, lines)
            # Here a crash leaves the batch, a part of it or nothing: nobody was told yet, so all three are the truth.
            sync_data(self._fs, fd, self._path)
        except StorageFailed as failed:
            self._failed = str(failed)
            raise
        self._good += len(lines)
        self.written += len(lines)
        self.seq = commit.last
        return commit

    def _append(self, fd: int, lines: bytes) -> None:
        if self._fs.size(fd) != self._good:
            raise OwnershipLost(f"{self._path} is not as long as it was left: somebody else wrote to it")
        try:
            append_all(self._fs, fd, lines)
        except OSError as error:
            self._dirty = True
            failure = storage_error(error, f"writing {self._path}")
            if isinstance(failure, StorageFull):
                with suppress(StorageFull):
                    self.clean()
            raise failure from error

    def clean(self) -> None:
        """Cut what does not belong at the end of the segment.  Raises `StorageFull` when even that finds no room; it stays to be done."""
        if not self._dirty or self._fd is None:
            return
        try:
            self._fs.truncate(self._fd, self._good)
            if self._lacks_newline:
                append_all(self._fs, self._fd, b"\n")
        except OSError as error:
            raise storage_error(error, f"truncating {self._path}") from error
        sync_file(self._fs, self._fd, self._path)
        self._good += 1 if self._lacks_newline else 0
        self._dirty = self._lacks_newline = False

    # --- segments ---

    def _segment(self) -> int:
        """The descriptor that the next batch goes to."""
        if self._fd is not None and self._good < self._segment_bytes_max and not (self._rotate_next and self._good):
            return self._fd
        path = f"{self._home.journal}/{segment_name(self.seq + 1)}"
        try:
            fd = self._fs.open_append(path) if self._fs.exists(path) else self._fs.create(path)
        except OSError as error:
            if self._fd is None:
                raise storage_error(error, "beginning a segment") from error
            return self._fd
        self._begin(fd, path)
        self.close()
        self._fd, self._path, self._good, self._rotate_next = fd, path, 0, False
        return fd

    def _begin(self, fd: int, path: str) -> None:
        """Make the name of a segment durable.

        Once there is a file of that name, the old segment must not grow past its number, or a crash could show both.  So a failure
        here refuses the batch, and the next try finds the file as this one left it, empty.
        """
        try:
            if self._fs.size(fd):
                raise OwnershipLost(f"{path} is there already: somebody else wrote it")
            sync_file(self._fs, fd, path)
            sync_folder(self._fs, self._home.journal)
        except OSError as error:
            self._fs.close(fd)
            raise storage_error(error, f"beginning {path}") from error
