"""Taking a store over: locks, format, recovery, and whether what was recovered is what was here before.

Owns: the order of these, and everything that refuses a start.  Must never know: what a record means.

What is refused is left as it was.  Nothing is written to the journal here: what recovery has to say goes out with the first batch, so
that a crash before it finds everything as this start did.

An older copy of the store must not be taken for the store: what it does not remember would be done again.  It gives itself away by a
marker (`restore` and `backup` leave one), by an epoch or a record number below the lock file's, or by records that are missing and
nobody can name.  An operator's acceptance mints a new store id, so that no key is used twice, and stands in the marker until what it
means has been carried out.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from scheduler_daemon.core.model import Now, Settings
from scheduler_daemon.store.documents import (
    COPIES_MAX,
    FOLDER,
    MARKER_NAME,
    Home,
    Marker,
    make_folders,
    read_format,
    read_marker,
    write_format,
    write_marker,
)
from scheduler_daemon.store.errors import RestoreNotAccepted, StorageFailed, StoreUnusable
from scheduler_daemon.store.fs import FileSystem
from scheduler_daemon.store.history import first_damage, path_of
from scheduler_daemon.store.loading import Recovered, recover
from scheduler_daemon.store.lock import Ownership, Seen
from scheduler_daemon.store.recovery import key_of
from scheduler_daemon.store.scan import Found, Lost
from scheduler_daemon.store.schema import Accepted, Damage, DamageLine, Judged

_PASSING: Final = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Torn(msgspec.Struct, frozen=True):
    """Bytes at the end of the journal that were never acknowledged; they are cut after a copy of them is in quarantine."""

    file: str
    offset: int
    size: int
    reason: str


class Opening(msgspec.Struct, kw_only=True):
    """A store that was taken over.  `own` is what the first batch must say, `copies` what must be in quarantine before it."""

    store_id: str
    recovered: Recovered
    seq: int
    epoch: int
    restored: bool
    own: list[Judged | Accepted]
    copies: list[Lost]
    torn: tuple[Torn, ...]

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Damage that nobody acted on yet."""
        return tuple(line.damage for line in self.recovered.judged.values() if line.waiting)


def open_store(
    fs: FileSystem,
    home: Home,
    lock: Ownership,
    settings: Settings,
    now: Now,
    *,
    accept_restore: bool,
    mint: Callable[[], str],
) -> Opening:
    """Take the store over.  Raises `LockHeld`, `StoreUnusable`, `StorageFailed`; then the locks are not held."""
    with told_at_opening():
        read_format(fs, home)  # before the locks: what is somebody else's is not to be touched at all
        _make_folder(fs, home)
        seen = lock.acquire(now.at)
        try:
            return _opened(fs, home, seen, settings, now, accept_restore=accept_restore, mint=mint)
        except BaseException:
            lock.release()
            raise


@contextmanager
def told_at_opening() -> Generator[None]:
    """Tell an `OSError` as what it means at a start: it may pass by itself, or an operator has to do something."""
    try:
        yield
    except OSError as error:
        if error.errno in _PASSING:
            raise StorageFailed(f"cannot be opened: {error}") from error
        raise StoreUnusable(f"cannot be opened: {error}") from error


def _make_folder(fs: FileSystem, home: Home) -> None:
    if not fs.exists(home.folder):
        for folder in (*reversed([str(parent) for parent in Path(home.folder).parents]), home.folder):
            if not fs.exists(folder):
                fs.make_folder(folder)
                fs.fsync_folder(str(Path(folder).parent))


def _opened(
    fs: FileSystem,
    home: Home,
    seen: Seen,
    settings: Settings,
    now: Now,
    *,
    accept_restore: bool,
    mint: Callable[[], str],
) -> Opening:
    found = read_format(fs, home)
    if found is None and seen.epoch and not accept_restore:
        raise RestoreNotAccepted(f"the store is empty, but its lock file has seen epoch {seen.epoch}", FOLDER)
    store_id = found.store_id if found is not None else mint()
    if found is None:
        write_format(fs, home, store_id)
    make_folders(fs, home)
    recovered = recover(fs, home, store_id, settings, now)
    _check_unfinished(fs, home, recovered)
    restored = _judge_copy(fs, home, recovered, seen, store_id, accept_restore=accept_restore)
    if restored is not None and restored.accepted != store_id:
        store_id = recovered.state.store_id = _accept(fs, home, restored.reason, mint())
    own: list[Judged | Accepted] = [recovered.fresh] if recovered.fresh is not None else []
    if restored is not None:
        own.append(Accepted())
        recovered.judged = {key: line for key, line in recovered.judged.items() if key[0] is not None}
    damaged_end = recovered.tail.found is Found.DAMAGED
    return Opening(
        store_id=store_id,
        recovered=recovered,
        seq=max(recovered.seq, seen.seq) if damaged_end else recovered.seq,
        epoch=max(recovered.epoch, seen.epoch) + 1,
        restored=restored is not None,
        own=own,
        copies=_copies(recovered),
        torn=_torn(recovered),
    )


# --- copies of the store ----------------------------------------------------------------------------------------------


def _judge_copy(
    fs: FileSystem, home: Home, recovered: Recovered, seen: Seen, store_id: str, *, accept_restore: bool
) -> Marker | None:
    """The marker of a store that is not what was here before, if an operator accepted it.  Raises `RestoreNotAccepted` if none did."""
    marker = read_marker(fs, home)
    if marker is not None and marker.accepted == store_id:
        return marker
    reason = marker.reason if marker is not None else behind_of(recovered, seen)
    if reason is not None and not accept_restore:
        raise RestoreNotAccepted(
            f"{reason}; nothing is admitted until that is accepted", f"{FOLDER}/{MARKER_NAME}" if marker else ""
        )
    if (
        reason is None
        and accept_restore
        and any(line.waiting for key, line in recovered.judged.items() if key[0] is None)
    ):
        reason = "records are missing that nobody can name"
    return Marker(reason) if reason is not None else None


def behind_of(recovered: Recovered, seen: Seen) -> str | None:
    """Why what was recovered is less than what its lock file has seen, None when it is not."""
    if recovered.epoch < seen.epoch:
        return f"the store ends in epoch {recovered.epoch}, its lock file has seen {seen.epoch}"
    damaged_end = recovered.tail.found is Found.DAMAGED
    if recovered.epoch == seen.epoch and recovered.seq < seen.seq and not damaged_end:
        return f"the store ends at record {recovered.seq}, its lock file has seen {seen.seq}"
    return None


def _accept(fs: FileSystem, home: Home, reason: str, store_id: str) -> str:
    """Give the store the id it goes on with.  The marker first: while it names another id, nothing was accepted."""
    write_marker(fs, home, Marker(reason, store_id))
    write_format(fs, home, store_id)
    return store_id


# --- damage -----------------------------------------------------------------------------------------------------------


def _check_unfinished(fs: FileSystem, home: Home, recovered: Recovered) -> None:
    """A history row that cannot be read matters only while its run is unfinished: then its schedule is damaged."""
    below: dict[str, int] = {}
    for event in recovered.events:
        below.setdefault(getattr(event, "schedule_id", ""), getattr(event, "n", 0))
    found: list[Damage] = []
    for schedule in recovered.state.schedules.values():
        if not schedule.runs:
            continue
        schedule_id = schedule.schedule_id
        offset = first_damage(
            fs, home, schedule_id, min(run.admitted_n for run in schedule.runs), below.get(schedule_id)
        )
        if offset is not None:
            file = home.relative(path_of(home, schedule_id))
            found.append(
                Damage(schedule_id, file, offset, "a row of its history cannot be read while a run of it is unfinished")
            )
    new = tuple(damage for damage in found if key_of(damage) not in recovered.judged)
    for damage in new:
        recovered.judged[key_of(damage)] = DamageLine(damage, (damage.schedule_id or "",))
    if new:
        known = recovered.fresh or Judged((), {}, recovered.state.globals.run_number)
        recovered.fresh = Judged((*known.damages, *new), known.last_n, known.run_number)


def _copies(recovered: Recovered) -> list[Lost]:
    """What to keep a copy of: the torn end whole, of damaged lines as many as one start keeps."""
    copies = recovered.lost[:COPIES_MAX]
    if recovered.tail.torn and recovered.last_segment is not None:
        torn = recovered.tail
        copies.append(Lost(recovered.last_segment.name, torn.good, torn.torn, torn.found.value))
    return copies


def _torn(recovered: Recovered) -> tuple[Torn, ...]:
    tail, segment = recovered.tail, recovered.last_segment
    if not tail.torn or segment is None:
        return ()
    return (Torn(segment.name, tail.good, len(tail.torn), tail.found.value),)
