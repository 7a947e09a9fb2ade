"""Who owns the store: two locks, checked again before every batch.

Owns: `scheduler.lock` and what is written in it, the lock on the `schedules/` folder.  Must never know: what is stored.

One lock would not do.  The file says who the holder is and survives whatever happens to the folder, but anybody can delete it, and the
next process would then lock a new file of the same name.  The folder cannot go without the data going too, but it cannot say who
holds it.  So the folder is locked first, the file second, and both are compared with what their names lead to before every
commit and dispatch: a file that was deleted or replaced is a lost store, although its lock is still held.

The file also holds the highest epoch and record that were ever durable here.  No backup contains it, so a store that knows less
than its lock file is an older copy of itself.  The record number is written without a sync: it can only be behind the journal, never
ahead of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec
from filelock import FileLock, Timeout

from scheduler_daemon.store.errors import Holder, LockHeld, OwnershipLost, StorageFailed, StoreUnusable
from scheduler_daemon.store.framing import frame, unframe
from scheduler_daemon.store.mounts import MOUNTINFO, filesystem_of, is_remote

LOCK_NAME: Final = "scheduler.lock"
_CONTENT_BYTES: Final = 512
"""The content is padded to one sector, so that one write replaces it whole and never needs room."""


_PASSING: Final = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_ALLOW: Final = "a lock there may not bind everybody who can write there; allow it explicitly if it does"


class Seen(msgspec.Struct, frozen=True):
    """The highest epoch and record number that were durable here; zeros when the lock file does not tell."""

    epoch: int = 0
    seq: int = 0


class Ownership(Protocol):
    """What the store needs of a lock; a simulation puts its own here."""

    def acquire(self, started_at: datetime) -> Seen: ...
    def check(self) -> None: ...
    def note(self, epoch: int, seq: int, *, durably: bool) -> None: ...
    def release(self) -> None: ...


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    host: str
    started_at: datetime
    epoch: int
    seq: int


_NEVER: Final = datetime(1, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode
_content = msgspec.json.Decoder(_Content)


class StoreLock:
    """The two locks of one store.  `folder` must exist when they are taken."""

    def __init__(
        self, root: Path, folder: Path, *, mountinfo: Path = MOUNTINFO, allow_network_fs: bool = False
    ) -> None:
        self._path = str(root / LOCK_NAME)
        self._folder = str(folder)
        self._mountinfo = mountinfo
        self._allow_network_fs = allow_network_fs
        self._folder_fd: int | None = None
        self._file: FileLock | None = None
        self._fd = -1
        self._identity = (0, 0)
        self._seen = Seen()
        self._content = _Content(pid=0, host="", started_at=_NEVER, epoch=0, seq=0)
        self._lost: str | None = None

    # --- taking and giving back ---

    def acquire(self, started_at: datetime) -> Seen:
        """Take both locks or neither.  Raises `LockHeld`, or `StoreUnusable` where locks cannot be trusted."""
        self._refuse_network_filesystem()
        try:
            self._lock_folder()
            self._lock_file(started_at)
        except BaseException:
            self.release()
            raise
        return self._seen

    def _refuse_network_filesystem(self) -> None:
        if self._allow_network_fs:
            return
        try:
            kind = filesystem_of(os.path.realpath(self._folder), self._mountinfo)
        except OSError as error:
            raise StoreUnusable(f"cannot tell on what filesystem the store lies ({error}); {_ALLOW}") from error
        if kind is None or is_remote(kind):
            raise StoreUnusable(f"the store lies on a filesystem of type {kind}; {_ALLOW}")

    def _lock_folder(self) -> None:
        try:
            self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(self._read_holder()) from None
        except OSError as error:
            raise _unlockable(f"cannot lock the folder: {error}", self._folder, error) from error

    def _lock_file(self, started_at: datetime) -> None:
        self._content = _Content(pid=os.getpid(), host=os.uname().nodename, started_at=started_at, epoch=0, seq=0)
        self._file = FileLock(
            self._path,
            timeout=0,
            blocking=False,
            mode=0o600,
            thread_local=False,
            fallback_to_soft=False,
            preserve_lock_file=True,
            on_acquired=self._on_acquired,
        )
        try:
            self._file.acquire()
        except Timeout:
            raise LockHeld(self._read_holder()) from None
        except OSError as error:
            raise _unlockable(f"cannot take the lock: {error}", LOCK_NAME, error) from error

    def _on_acquired(self, fd: int) -> None:
        known = _read(fd)
        self._fd = fd
        found = os.fstat(fd)
        self._identity = (found.st_dev, found.st_ino)
        self._seen = Seen(known.epoch, known.seq) if known is not None else Seen()
        self._write(self._seen)

    def release(self) -> None:
        """Give both back, the folder last; again is harmless.  The file stays."""
        file, self._file = self._file, None
        if file is not None:
            self._fd = -1
            file.release(force=True)
        folder_fd, self._folder_fd = self._folder_fd, None
        if folder_fd is not None:
            os.close(folder_fd)

    # --- while it is held ---

    def check(self) -> None:
        """Raise `OwnershipLost` unless both locks are ours and are what their names lead to; once lost is lost for good."""
        if self._lost is None:
            self._lost = self._loss()
        if self._lost is not None:
            raise OwnershipLost(self._lost)

    def _loss(self) -> str | None:
        if self._file is None or self._folder_fd is None:
            return "the locks are not held"
        try:
            named = os.stat(self._path, follow_symlinks=False)
            folder, held = os.stat(self._folder), os.fstat(self._folder_fd)
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ours already: asks whether it still is
        except OSError as error:
            return f"the locks cannot be checked: {error}"
        if (named.st_dev, named.st_ino) != self._identity or named.st_nlink != 1:
            return f"{LOCK_NAME} was replaced or linked elsewhere"
        if (folder.st_dev, folder.st_ino) != (held.st_dev, held.st_ino):
            return "the schedules folder was replaced"
        return None

    def note(self, epoch: int, seq: int, *, durably: bool) -> None:
        """Remember what became durable in the journal.  Without `durably` a power cut may forget it, which is safe."""
        self._seen = Seen(max(epoch, self._seen.epoch), seq)
        try:
            self._write(self._seen)
            if durably:
                os.fsync(self._fd)
                self._sync_name()
        except OSError as error:
            if durably or error.errno == errno.EIO:
                raise StorageFailed(f"writing {LOCK_NAME}: {error}") from error

    def _sync_name(self) -> None:
        """What the file remembers is worth something only if a power cut cannot take the file."""
        fd = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _write(self, seen: Seen) -> None:
        content = msgspec.structs.replace(self._content, epoch=seen.epoch, seq=seen.seq)
        os.pwrite(self._fd, frame(_encode(content)).ljust(_CONTENT_BYTES), 0)

    def _read_holder(self) -> Holder:
        content = None
        with suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                content = _read(fd)
            finally:
                os.close(fd)
        if content is None:
            return Holder()
        return Holder(pid=content.pid, host=content.host, started_at=content.started_at)


def _unlockable(reason: str, where: str, error: OSError) -> StorageFailed | StoreUnusable:
    """A disk without room, or that fails, may take the lock at the next try; anything else an operator has to look at."""
    return StorageFailed(reason) if error.errno in _PASSING else StoreUnusable(reason, where)


def read_seen(root: str) -> Seen:
    """What the lock file of a store has seen, without taking it."""
    try:
        fd = os.open(f"{root}/{LOCK_NAME}", os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return Seen()
    try:
        content = _read(fd)
    finally:
        os.close(fd)
    return Seen(content.epoch, content.seq) if content is not None else Seen()


def _read(fd: int) -> _Content | None:
    """What a lock file says; None when it is empty or damaged, which proves nothing about the store."""
    body = unframe(os.pread(fd, _CONTENT_BYTES, 0).partition(b"\n")[0])
    try:
        return _content.decode(body) if body is not None else None
    except msgspec.MsgspecError:
        return None
