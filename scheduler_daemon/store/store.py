"""The store as the daemon uses it: open, commit, read, checkpoint, close.

Owns: the life of one store in one process, which thread does what, what is remembered between a batch and the next.  Must never know:
policy, clocks, the network.

Threads.  Everything public is called on the loop's thread (reads may be called anywhere).  Batches are written in one thread, checkpoints
in another; each does one thing at a time, in order.

Invariants.  `commit` returns only after its batch is durable, and then its rows are in pages.  No batch is written unless both locks were
ours a moment before.  A checkpoint is of a state that holds exactly the batches committed so far: the caller folds a batch in before
it awaits anything else, and `checkpoint` refuses a state that lacks one.  After `StorageFailed` or `OwnershipLost` nothing is written.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from scheduler_daemon.core.events import EpochStarted, Event, ScheduleBlocked, ScheduleDeleted
from scheduler_daemon.core.model import Now, Row, Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.store import documents
from scheduler_daemon.store.checkpoint import Checkpointer, Done
from scheduler_daemon.store.errors import OwnershipLost, StorageFailed, StorageFull
from scheduler_daemon.store.fs import FileSystem, RealFileSystem, told_as_storage_errors
from scheduler_daemon.store.journal import Journal
from scheduler_daemon.store.lock import MOUNTINFO, Ownership, StoreLock
from scheduler_daemon.store.opening import Opening, Torn, open_store, told_at_opening
from scheduler_daemon.store.reading import FoundRun, Histories, Page
from scheduler_daemon.store.recovery import Key, without_waiting
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.runindex import RunIndex
from scheduler_daemon.store.schema import Commit, Damage, DamageLine
from scheduler_daemon.store.snapshot import capture
from scheduler_daemon.store.tail import Tail

__all__ = ["Damage", "FoundRun", "Opened", "Page", "Retention", "Row", "Store", "Torn"]

SEGMENT_BYTES_MAX: Final = 32 << 20
CHECKPOINT_BYTES_MIN: Final = 8 << 20
"""How much journal is worth a checkpoint; more where a snapshot is larger than that, up to one segment."""

CHECKPOINT_PATIENCE: Final = 3
"""How many times that much may gather while batches come thick: a burst is not the time to open a file for each of its schedules."""

BUSY_BYTES: Final = 256 << 10
"""How much journal between two times that somebody asks for a checkpoint is a burst."""

CHECKPOINT_ROWS_MAX: Final = 50_000
AGE_STEP: Final = timedelta(days=1)
"""How far the time that ages are counted from moves at a checkpoint: a clock that is wrong by years must not empty the histories."""

PASSES_MAX: Final = 64
"""How many times `wants_checkpoint` says no after checkpoints that found no room, so that they do not take up the disk's time."""


class Opened(msgspec.Struct, frozen=True):
    """What a start found.  `damages` blocks schedules (None: all of them); `harmless` is damage that took nothing away."""

    state: State
    damages: tuple[Damage, ...]
    torn: tuple[Torn, ...]
    epoch: int
    restored: bool
    replayed: int
    harmless: tuple[Damage, ...] = ()


class _Written(msgspec.Struct):
    """What one store remembers of its last batch and snapshot."""

    at: datetime
    seq: int
    n: dict[str, int] = {}
    begun: bool = False
    journal_bytes: int = 0
    asked_at_bytes: int = 0
    commit_s: float = 0.0
    snapshot_bytes: int = 0
    snapshot_seq: int = 0
    aged_until: datetime | None = None
    segments: int = 1
    postponed: str | None = None


class Store:
    """One store, from `open` to `close`.  `close` is idempotent and may come before `open`."""

    def __init__(
        self,
        root: Path,
        *,
        fs: FileSystem | None = None,
        lock: Ownership | None = None,
        mountinfo: Path = MOUNTINFO,
        allow_network_fs: bool = False,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        retention: Retention = Retention(),  # noqa: B008  # frozen
        mint: Callable[[], str] = lambda: secrets.token_hex(8),
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`timer` gives seconds for the figure of the last commit; `mint` gives store ids."""
        self.root = root
        self._home = documents.Home(str(root.absolute()))
        self._fs = fs if fs is not None else RealFileSystem()
        folder = Path(self._home.folder)
        self._lock = lock or StoreLock(root, folder, mountinfo=mountinfo, allow_network_fs=allow_network_fs)
        self._segment_bytes_max = segment_bytes_max
        self._mint = mint
        self._timer = timer
        self._tail = Tail()
        self._index = RunIndex(self._fs, self._home)
        self._histories = Histories(self._fs, self._home, self._tail, self._index)
        self._checkpointer = Checkpointer(self._fs, self._home, self._index, retention)
        self._writing = ThreadPoolExecutor(1, "store-write")
        self._tidying = ThreadPoolExecutor(1, "store-checkpoint")
        self._journal: Journal | None = None
        self._opening: Opening | None = None
        self._judged: dict[Key, DamageLine] = {}
        self._written: _Written
        self._checkpointing = False
        self._passes = 0
        self._passes_next = 1
        self._lost: str | None = None
        self._failed: str | None = None

    # --- opening and closing ---

    def open(self, settings: Settings, now: Now, *, accept_restore: bool = False) -> Opened:
        """Own the store and rebuild its state.  The first batch must begin with `EpochStarted` of `epoch`.

        Raises `LockHeld`, `StoreUnusable` (`RestoreNotAccepted` where an operator can help it), `StorageFailed`.
        """
        opening = open_store(
            self._fs, self._home, self._lock, settings, now, accept_restore=accept_restore, mint=self._mint
        )
        try:
            with told_at_opening():
                return self._take(opening, now)
        except BaseException:
            self._lock.release()
            raise

    def _take(self, opening: Opening, now: Now) -> Opened:
        recovered = opening.recovered
        self._opening = opening
        self._judged = recovered.judged
        self._written = _Written(
            at=now.at, seq=opening.seq, aged_until=recovered.aged_until, journal_bytes=-recovered.journal_bytes
        )
        self._tail.add(recovered.events)
        self._journal = Journal(
            self._fs,
            self._home,
            seq=opening.seq,
            epoch=opening.epoch,
            segment_bytes_max=self._segment_bytes_max,
        )
        if recovered.last_segment is not None:
            self._journal.resume(recovered.last_segment, recovered.tail)
        return Opened(
            state=recovered.state,
            damages=opening.damages,
            torn=opening.torn,
            epoch=opening.epoch,
            restored=opening.restored,
            replayed=recovered.replayed,
            harmless=tuple(recovered.harmless),
        )

    def finish_restore(self) -> None:
        """What an accepted restore means has been committed: the next start is an ordinary one."""
        if self._opening is not None and self._opening.restored:
            with told_as_storage_errors("removing the restore marker"):
                documents.remove_marker(self._fs, self._home)

    def close(self) -> None:
        """Let what is being written end, then give the store back, the locks last."""
        self._writing.shutdown(wait=True)
        self._tidying.shutdown(wait=True)
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
        self._lock.release()

    # --- committing ---

    async def commit(self, events: Sequence[Event]) -> None:
        """Make one batch durable.  Only one at a time.

        Raises `StorageFull` (nothing of it is on disk, it may be tried again), `StorageFailed` and `OwnershipLost` (the process must
        end).  Fold the batch in before awaiting anything else.
        """
        if not events:
            return
        self._check_begin(events)
        begun_s = self._timer()
        try:
            commit = await asyncio.get_running_loop().run_in_executor(self._writing, self._write, events)
        except asyncio.CancelledError:
            self._failed = "a commit was abandoned, and whether it is durable was not waited for"
            raise
        except StorageFailed as failed:
            self._failed = str(failed)
            raise
        except OwnershipLost as lost:
            self._lost = str(lost)
            raise
        self._note(events, commit)
        self._written.commit_s = self._timer() - begun_s

    def _check_begin(self, events: Sequence[Event]) -> None:
        if self._journal is None or self._opening is None:
            raise RuntimeError("the store is not open")
        self.check_trusted()
        first = events[0]
        if not self._written.begun and not (isinstance(first, EpochStarted) and first.epoch == self._opening.epoch):
            raise ValueError(f"the first event must begin epoch {self._opening.epoch}")

    def check_trusted(self) -> None:
        """Raise `StorageFailed` or `OwnershipLost` if that happened to anything since the start, whoever was told of it then."""
        if self._failed is not None:
            raise StorageFailed(self._failed)
        if self._lost is not None:
            raise OwnershipLost(self._lost)

    def _write(self, events: Sequence[Event]) -> Commit:
        """In the writing thread."""
        journal, opening = self._journal, self._opening
        if journal is None or opening is None:
            raise RuntimeError("the store is not open")
        self._lock.check()
        first = not self._written.begun
        if first:
            with told_as_storage_errors("keeping copies of what is damaged"):
                for lost in opening.copies:
                    documents.keep_copy(
                        self._fs, self._home, lost.file, lost.offset, data=lost.data, reason=lost.reason
                    )
            opening.copies.clear()
        commit = journal.commit(events, opening.own if first else ())
        self._lock.note(commit.epoch, commit.last, durably=first)
        return commit

    def _note(self, events: Sequence[Event], commit: Commit) -> None:
        self._tail.add(events)
        self._written.begun = True
        self._written.at, self._written.seq, self._written.n = commit.at, commit.last, commit.last_n
        if self._judged:
            for event in events:
                if isinstance(event, ScheduleBlocked | ScheduleDeleted):
                    self._judged = without_waiting(self._judged, event.schedule_id)

    def check_ownership(self) -> None:
        """Raise `OwnershipLost` unless the store is ours, `StorageFailed` if it cannot be trusted.  Costs some microseconds."""
        self.check_trusted()
        self._lock.check()

    # --- reading ---

    def page(self, schedule_id: str, after_n: int | None, limit: int) -> Page:
        """Rows after a position that an earlier page gave, or from the oldest kept.  Raises `CursorExpired`."""
        return self._histories.page(schedule_id, after_n, limit)

    def find_run(self, any_id: str) -> FoundRun | None:
        """A run by our id or the server's, with every row of it that is kept."""
        return self._histories.find_run(any_id)

    def rowed_after(self, schedule_id: str, at: datetime) -> tuple[datetime, ...]:
        """Instants later than `at` that have a row of their own."""
        return self._histories.rowed_after(schedule_id, at)

    # --- checkpoints ---

    def wants_checkpoint(self) -> bool:
        """Whether enough was written since the last one.  Meant to be asked every second or so."""
        if self._journal is None or self._checkpointing or not self._written.begun or self._failed or self._lost:
            return False
        enough = max(CHECKPOINT_BYTES_MIN, min(self._written.snapshot_bytes, self._segment_bytes_max))
        enough = min(enough, self._segment_bytes_max)
        written, before = self._journal.written, self._written.asked_at_bytes
        self._written.asked_at_bytes = written
        if written - before > BUSY_BYTES:
            enough = max(enough, min(enough * CHECKPOINT_PATIENCE, self._segment_bytes_max))
        if written - self._written.journal_bytes < enough and self._tail.count < CHECKPOINT_ROWS_MAX:
            return False
        self._passes = max(0, self._passes - 1)
        return self._passes == 0

    async def checkpoint(self, state: State) -> None:
        """Write histories and a snapshot of the committed state, and drop what that makes superfluous.  Commits go on meanwhile.

        Raises `StorageFull` (nothing is lost, it may be tried again) and `StorageFailed`.  Cancelled, it still waits for the end of what
        was begun, so that a failure of it is known before anybody calls this store well.
        """
        journal = self._begin_checkpoint(state)
        captured = capture(state, self._written.seq, self._written.at, self._damage_lines(state), self._age_until())
        written = journal.written
        journal.rotate()
        self._checkpointing = True
        future = asyncio.get_running_loop().run_in_executor(
            self._tidying, self._checkpointer.run, captured, self._tail.freeze()
        )
        future.add_done_callback(lambda done: self._end_checkpoint(done, written, captured.aged_until))
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise

    def _begin_checkpoint(self, state: State) -> Journal:
        self.check_trusted()
        if self._journal is None or not self._written.begun:
            raise RuntimeError("the store has no batch of this epoch yet")
        if self._checkpointing:
            raise RuntimeError("a checkpoint is running already")
        for schedule_id, n in self._written.n.items():
            schedule = state.schedules.get(schedule_id)
            if schedule is None or schedule.n != n:
                raise RuntimeError(f"the state lacks record {n} of {schedule_id}, which is committed")
        return self._journal

    def _damage_lines(self, state: State) -> tuple[DamageLine, ...]:
        """Damage that still waits, and what is damaged in the history of an unfinished run, which is to be found only once."""
        for key, line in list(self._judged.items()):
            schedule = state.schedules.get(key[0] or "")
            if not line.waiting and (schedule is None or not schedule.runs):
                del self._judged[key]
        return tuple(self._judged.values())

    def _age_until(self) -> datetime:
        before = self._written.aged_until
        return self._written.at if before is None else min(self._written.at, before + AGE_STEP)

    def _end_checkpoint(self, future: asyncio.Future[Done], journal_bytes: int, aged_until: datetime | None) -> None:
        self._checkpointing = False
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._tail.thaw()
            self._passes = self._passes_next = min(2 * self._passes_next, PASSES_MAX)
            if not isinstance(error, StorageFull):
                self._failed = self._failed or f"a checkpoint failed: {error}"
            return
        done = future.result()
        self._tail.written()
        self._passes, self._passes_next = 0, 1
        written = self._written
        written.journal_bytes, written.aged_until = journal_bytes, aged_until
        written.snapshot_bytes, written.snapshot_seq = done.snapshot_bytes, done.seq
        written.segments, written.postponed = done.segments, done.postponed

    def facts(self) -> dict[str, Any]:
        """Figures for metrics and health."""
        journal, opening = self._journal, self._opening
        if journal is None or opening is None:
            return {"open": False}
        written = self._written
        return {
            "open": True,
            "store_id": opening.store_id,
            "epoch": opening.epoch,
            "seq": written.seq,
            "journal_bytes": journal.written - written.journal_bytes,
            "segments": written.segments,
            "snapshot_bytes": written.snapshot_bytes,
            "snapshot_seq": written.snapshot_seq,
            "tail_rows": self._tail.count,
            "commit_s": written.commit_s,
            "checkpointing": self._checkpointing,
            "damages": sum(bool(line.waiting) for line in self._judged.values()),
            "retention_postponed": written.postponed,
        }
