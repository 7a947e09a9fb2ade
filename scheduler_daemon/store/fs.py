"""The only place that touches files (the lock file apart), and the few compound steps that durability is made of.

Owns: the protocol behind which a simulated filesystem can stand, the real one, and the steps *append all of it*, *sync or fail*,
*replace whole*.  Must never know: what is in a file.

What the rest of the store relies on:

- `create` is exclusive, `rename` is atomic, and neither is durable before the folder is synced.
- A write may be short, and a full tmpfs says nothing until the next call: only `append_all` writes.
- After a failed sync nobody knows what is on disk, and asking again gets a lie (after the first EIO, retries return success while the
  disk holds zeros).  So the sync steps raise `StorageFailed` and nothing catches it.
- Files are 0600 and folders 0700, whatever the umask.
- A descriptor is held in reserve, so that a process out of descriptors can still read a page and never takes EMFILE for damage.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from scheduler_daemon.store.errors import StorageFailed, StorageFull, StorageReadOnly

CHUNK_BYTES: Final = 1 << 16
"""How much is written at once: each write lets the other threads run, so a long one would hold up the loop."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_SYNCFS_TELLS_SINCE: Final = (5, 8)
"""The Linux version from which syncfs reports a failed writeback; before that its success proves nothing."""


class FileSystem(Protocol):
    """Files by path and descriptor.  Every method may raise `OSError`; paths are absolute."""

    def create(self, path: str) -> int: ...
    def open_append(self, path: str) -> int: ...
    def open_read(self, path: str) -> int: ...
    def close(self, fd: int) -> None: ...
    def write(self, fd: int, data: bytes | memoryview) -> int: ...
    def pread(self, fd: int, size: int, offset: int) -> bytes: ...
    def size(self, fd: int) -> int: ...
    def truncate(self, fd: int, size: int) -> None: ...
    def fdatasync(self, fd: int) -> None: ...
    def fsync(self, fd: int) -> None: ...
    def fsync_folder(self, path: str) -> None: ...
    def syncfs(self, path: str) -> bool: ...
    def make_folder(self, path: str) -> None: ...
    def list_folder(self, path: str) -> list[str]: ...
    def rename(self, path: str, to: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def exists(self, path: str) -> bool: ...


class _Reserve:
    """One descriptor of the process, given up when there is no other and taken back when there is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = None

    def spend(self) -> bool:
        """Give it up; whether there was one."""
        with self._lock:
            spent, self._fd = self._fd, None
        if spent is not None:
            os.close(spent)
        return spent is not None

    def refill(self) -> None:
        if self._fd is None:
            with self._lock, suppress(OSError):
                self._fd = os.open(os.devnull, os.O_RDONLY) if self._fd is None else self._fd


_RESERVE: Final = _Reserve()


class RealFileSystem:
    """The machine's own filesystem."""

    def __init__(self) -> None:
        self._syncfs = _find_syncfs()
        _RESERVE.refill()

    def create(self, path: str) -> int:
        """A new, empty file for appending; `FileExistsError` when the name is taken."""
        return self._open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)

    def open_append(self, path: str) -> int:
        """An existing file, for appending, reading and truncating."""
        return self._open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)

    def open_read(self, path: str) -> int:
        return self._open(path, os.O_RDONLY)

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS or not _RESERVE.spend():
                raise
            return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)
        _RESERVE.refill()

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return os.write(fd, data)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fsync_folder(self, path: str) -> None:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            self.close(fd)

    def syncfs(self, path: str) -> bool:
        """Sync everything on the filesystem of `path`; False where the system cannot do that and report errors."""
        if self._syncfs is None:
            return False
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if self._syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            self.close(fd)
        return True

    def make_folder(self, path: str) -> None:
        """As mkdir; a folder that is there already is as good."""
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def list_folder(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS or not _RESERVE.spend():
                raise
            return sorted(os.listdir(path))
        finally:
            _RESERVE.refill()

    def rename(self, path: str, to: str) -> None:
        os.rename(path, to)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)


def _find_syncfs() -> Callable[[int], int] | None:
    system = os.uname()
    release = tuple(int(part) for part in system.release.split(".")[:2] if part.isdecimal())
    if system.sysname != "Linux" or release < _SYNCFS_TELLS_SINCE:
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


# --- the steps --------------------------------------------------------------------------------------------------------


@contextmanager
def told_as_storage_errors(what: str) -> Generator[None]:
    """Tell an `OSError` met while writing as what it means for the daemon.

    Out of descriptors counts as no room: nothing on disk is wrong, and the same thing may succeed later.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(error, what) from error


def storage_error(error: OSError, what: str) -> StorageFull | StorageFailed:
    """The store's name for an error that a write met."""
    message = f"{what}: {error.strerror or error}"
    if error.errno in _NO_ROOM | _NO_DESCRIPTORS:
        return StorageFull(message)
    return StorageReadOnly(message) if error.errno == errno.EROFS else StorageFailed(message)


def append_all(fs: FileSystem, fd: int, data: bytes) -> None:
    """Write all of `data`, however short the single writes are."""
    left = memoryview(data)
    while left:
        written = fs.write(fd, left)
        if written <= 0:
            raise OSError(errno.ENOSPC, "a write took nothing")
        left = left[written:]


def sync_data(fs: FileSystem, fd: int, what: str) -> None:
    """Make a file's content durable, its length included.  Raises `StorageFailed`; there is no second try."""
    try:
        fs.fdatasync(fd)
    except OSError as error:
        raise StorageFailed(f"fdatasync of {what}: {error.strerror or error}") from error


def sync_file(fs: FileSystem, fd: int, what: str) -> None:
    """As `sync_data`, with everything about the file."""
    try:
        fs.fsync(fd)
    except OSError as error:
        raise StorageFailed(f"fsync of {what}: {error.strerror or error}") from error


def sync_folder(fs: FileSystem, path: str) -> None:
    """Make the names in a folder durable.  Raises `StorageFailed`; there is no second try."""
    try:
        fs.fsync_folder(path)
    except OSError as error:
        if error.errno in _NO_DESCRIPTORS:
            raise
        raise StorageFailed(f"fsync of the folder {path}: {error.strerror or error}") from error


def sync_everything(fs: FileSystem, root: str, paths: Iterable[str], folders: Iterable[str]) -> None:
    """Make files and folders durable: by one syncfs where there is one that reports errors, else one by one."""
    try:
        if fs.syncfs(root):
            return
    except OSError as error:
        if error.errno in _NO_DESCRIPTORS:
            raise
        raise StorageFailed(f"syncfs: {error.strerror or error}") from error
    for path in paths:
        fd = fs.open_append(path)
        try:
            sync_file(fs, fd, path)
        finally:
            fs.close(fd)
    for folder in folders:
        sync_folder(fs, folder)


def read_file(fs: FileSystem, path: str) -> bytes:
    """All of a file, as it is when it is opened."""
    fd = fs.open_read(path)
    try:
        return read_range(fs, fd, 0, fs.size(fd))
    finally:
        fs.close(fd)


def read_range(fs: FileSystem, fd: int, offset: int, end: int) -> bytes:
    """The bytes from `offset` to `end`, or to the end of the file if that comes first."""
    parts: list[bytes] = []
    while offset < end:
        part = fs.pread(fd, end - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_new(fs: FileSystem, path: str, chunks: Iterable[bytes]) -> int:
    """Write a file of a name nobody reads yet and sync its content; its size.  What was left there by a crash goes first."""
    if fs.exists(path):
        fs.unlink(path)
    fd = fs.create(path)
    size = 0
    try:
        for chunk in chunks:
            append_all(fs, fd, chunk)
            size += len(chunk)
        sync_file(fs, fd, path)
    finally:
        fs.close(fd)
    return size


def replace_whole(fs: FileSystem, folder: str, name: str, chunks: Iterable[bytes]) -> int:
    """Put a whole file in place of another, so that a crash leaves the old or the new one; its size.

    The order is the point: content first, then the name, then the folder that holds the name.
    """
    path = f"{folder}/{name}"
    try:
        size = write_new(fs, path + TEMPORARY, chunks)
    except OSError:
        with suppress(OSError):
            fs.unlink(path + TEMPORARY)
        raise
    fs.rename(path + TEMPORARY, path)
    sync_folder(fs, folder)
    return size


TEMPORARY: Final = ".tmp"
"""How the names of files end that no reader takes notice of."""


def chunked(parts: Iterable[bytes], size_max: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The same bytes in pieces worth a write each."""
    pending: list[bytes] = []
    size = 0
    for part in parts:
        pending.append(part)
        size += len(part)
        if size >= size_max:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)
