"""A copy of a store that is being written, and putting one back.

Owns: the order of copying, the marker that tells a copy from the store.  Must never know: locks; a backup disturbs nobody.

Files of a store only grow, are replaced whole, or are dropped, so a copy is consistent if it is read in the right order: the snapshot
and every segment since are opened first and held open, which keeps them readable after a checkpoint drops them; then the histories
and the run index are copied; then the segments, to wherever they have grown meanwhile.  So the journal of the copy is later than
everything derived from it, and what the histories lack or have too much of is cut and written again from the journal.

The lock file is not copied: it is how the place itself remembers what it has seen.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from scheduler_daemon.store.checkpoint import list_histories
from scheduler_daemon.store.documents import (
    FORMAT_NAME,
    MARKER_NAME,
    Home,
    Marker,
    make_folders,
    read_format,
    write_marker,
)
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.fs import (
    TEMPORARY,
    FileSystem,
    RealFileSystem,
    append_all,
    read_file,
    read_range,
    replace_whole,
    sync_everything,
    sync_folder,
    told_as_storage_errors,
)
from scheduler_daemon.store.journal import list_segments, segments_after
from scheduler_daemon.store.runindex import BUCKETS, RunIndex
from scheduler_daemon.store.scan import TORN, Scan, Segment
from scheduler_daemon.store.snapshot import list_snapshots
from scheduler_daemon.store.verify import verify

_TRIES_MAX: Final = 5
_LOOK_EVERY: Final = 20
"""After how many copied files new segments are looked for, so that none is dropped before it is held open."""


class Copied(msgspec.Struct, frozen=True):
    """A finished copy."""

    files: int
    size: int


class _Again(Exception):
    """A checkpoint came in between; what was begun is begun anew."""


def backup(root: Path, destination: Path, *, fs: FileSystem | None = None) -> Copied:
    """Copy a store, live or not, into a folder that is empty or not there yet; durable when it returns.

    Raises `StoreUnusable` for what is no store, or no empty folder; `StorageFull`, `StorageFailed`.
    """
    files = fs if fs is not None else RealFileSystem()
    source, target = Home(str(root.absolute())), Home(str(destination.absolute()))
    with told_as_storage_errors("copying the store"):
        if read_format(files, source) is None:
            raise StoreUnusable("there is no store to copy", source.folder)
        _make_empty(files, target)
        for _ in range(_TRIES_MAX):
            try:
                return _backup(files, source, target)
            except (FileNotFoundError, _Again):
                _remove_files(files, target)
    raise StoreUnusable(
        "the journal has a gap, or is dropped faster than it can be copied; verify tells", source.folder
    )


def restore(source: Path, root: Path, *, fs: FileSystem | None = None, even_if_damaged: bool = False) -> Copied:
    """Put a backup where a store is to be; the daemon starts on it only once that is accepted.

    Raises `StoreUnusable` when the backup is damaged, or when there is a store already.
    """
    files = fs if fs is not None else RealFileSystem()
    report = verify(source, fs=files)
    if report.problems and not even_if_damaged:
        first = report.problems[0]
        raise StoreUnusable(
            f"the backup has {len(report.problems)} problems, the first: {first.reason}", first.file, first.offset
        )
    copy, target = Home(str(source.absolute())), Home(str(root.absolute()))
    with told_as_storage_errors("restoring the store"):
        _make_empty(files, target)
        writer = _Writer(files, copy, target)
        for path in _every_file(files, copy):
            writer.copy_whole(path)
        return _finish(files, writer, copy, target, "the store was restored from a backup")


# --- copying ----------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes copies under the target, in the places their originals have."""

    def __init__(self, fs: FileSystem, source: Home, target: Home) -> None:
        self._fs = fs
        self._source = source
        self._target = target
        self.paths: list[str] = []
        self.folders: dict[str, None] = {}
        self.size = 0

    def write(self, path: str, data: bytes) -> None:
        to = self._target.root + path.removeprefix(self._source.root)
        folder = to.rpartition("/")[0]
        if folder not in self.folders:
            self._fs.make_folder(folder)
            self.folders[folder] = None
        fd = self._fs.create(to)
        try:
            append_all(self._fs, fd, data)
        finally:
            self._fs.close(fd)
        self.paths.append(to)
        self.size += len(data)

    def copy_whole(self, path: str) -> None:
        self.write(path, read_file(self._fs, path))

    def copy_lines(self, path: str) -> None:
        """A file that is being appended to, without the piece of a line at its end."""
        data = read_file(self._fs, path)
        self.write(path, data[: data.rfind(b"\n") + 1])


class _Held:
    """Segments and snapshots that are held open, so that dropping them takes nothing from us."""

    def __init__(self, fs: FileSystem, home: Home, stack: ExitStack) -> None:
        self._fs = fs
        self._home = home
        self._stack = stack
        snapshots = list_snapshots(fs, home)[:2]
        self.snapshots = {snapshot.path: self._hold(snapshot.path) for snapshot in snapshots}
        self.segments: dict[Segment, int] = {}
        self._snapshot_seq = min((snapshot.seq for snapshot in snapshots), default=0)
        self.look()

    def _hold(self, path: str) -> int:
        fd = self._fs.open_read(path)
        self._stack.callback(self._fs.close, fd)
        return fd

    def look(self) -> None:
        """Hold segments that began since."""
        segments = list_segments(self._fs, self._home)
        for segment in segments_after(segments, self._snapshot_seq) or segments:
            if segment not in self.segments:
                self.segments[segment] = self._hold(segment.path)

    def read(self, fd: int) -> bytes:
        return read_range(self._fs, fd, 0, self._fs.size(fd))


def _backup(fs: FileSystem, source: Home, target: Home) -> Copied:
    writer = _Writer(fs, source, target)
    with _holding(fs, source) as held:
        for number, path in enumerate(_derived(fs, source)):
            writer.copy_lines(path)
            if number % _LOOK_EVERY == 0:
                held.look()
        held.look()
        for path, fd in held.snapshots.items():
            writer.write(path, held.read(fd))
        for segment, fd in held.segments.items():
            writer.write(segment.path, held.read(fd))
    _cut_unfinished(fs, target)
    return _finish(fs, writer, source, target, "the store is a backup")


@contextmanager
def _holding(fs: FileSystem, home: Home) -> Generator[_Held]:
    with ExitStack() as stack:
        yield _Held(fs, home, stack)


def _derived(fs: FileSystem, home: Home) -> Iterator[str]:
    for _, path in list_histories(fs, home):
        yield path
    index = RunIndex(fs, home)
    yield from (path for path in map(index.path, range(BUCKETS)) if fs.exists(path))


def _cut_unfinished(fs: FileSystem, target: Home) -> None:
    """A batch that was being written has no commit line in the copy: it was not acknowledged when it was read."""
    snapshots = list_snapshots(fs, target)
    segments = segments_after(list_segments(fs, target), snapshots[0].seq if snapshots else 0)
    if segments is None:
        raise _Again
    scan = Scan(segments, lambda path: read_file(fs, path))
    try:
        for _ in scan.batches():
            pass
    except StoreUnusable as unusable:  # a segment that was dropped before it was held, or the source has the same gap
        raise _Again from unusable
    if scan.tail.found in TORN:
        fd = fs.open_append(segments[-1].path)
        try:
            fs.truncate(fd, scan.tail.good)
        finally:
            fs.close(fd)


# --- beginning and end ------------------------------------------------------------------------------------------------


def _make_empty(fs: FileSystem, target: Home) -> None:
    if read_format(fs, target) is not None:
        raise StoreUnusable("there is a store already", target.folder)
    for folder in (*reversed([str(parent) for parent in Path(target.folder).parents]), target.folder):
        if not fs.exists(folder):
            fs.make_folder(folder)
    make_folders(fs, target)


def _every_file(fs: FileSystem, home: Home) -> Iterator[str]:
    """Everything of a store but the two documents that make it one, which come last."""
    pending = [folder for folder in home.folders() if fs.exists(folder)]
    while pending:
        folder = pending.pop()
        for name in fs.list_folder(folder):
            path = f"{folder}/{name}"
            if folder == home.occurrences:
                pending.append(path)
            elif not name.endswith(TEMPORARY):
                yield path


def _finish(fs: FileSystem, writer: _Writer, source: Home, target: Home, reason: str) -> Copied:
    """Everything durable, then the marker, and only then what makes the folder a store."""
    sync_everything(fs, target.root, writer.paths, [*writer.folders, target.folder])
    write_marker(fs, target, Marker(reason))
    replace_whole(fs, target.folder, FORMAT_NAME, [read_file(fs, f"{source.folder}/{FORMAT_NAME}")])
    sync_folder(fs, target.root)
    return Copied(len(writer.paths) + 2, writer.size)


def _remove_files(fs: FileSystem, target: Home) -> None:
    for path in list(_every_file(fs, target)):
        fs.unlink(path)
    for name in fs.list_folder(target.folder):
        if name in {FORMAT_NAME, MARKER_NAME}:
            fs.unlink(f"{target.folder}/{name}")
