"""The real store, in the same simulation: on a disk whose power is cut.

Owns: a simulated filesystem under the real store, kills and power cuts at any of its calls, full and failing writes; and the
proof at each start that what was acknowledged is there, and nothing by half.
Must never know: how the store writes, what is in a record.

What a kill leaves is everything that was written; what a power cut leaves is one of the images that `tests/crash` calls legal.
The batch that was being written is the only doubt, and the next start decides it: there or not, as a whole.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scheduler_daemon.core.events import Event
from scheduler_daemon.core.model import Now, Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.store.errors import Holder, LockHeld, OwnershipLost, StorageFull
from scheduler_daemon.store.lock import Seen
from scheduler_daemon.store.store import FoundRun, Opened, Page, Store
from tests.crash.simfs import Image, SimFileSystem
from tests.simulation.loop import Process
from tests.simulation.model import Violation
from tests.simulation.store import STORE_ID, Disk, SimStore, durable_part, encode

SEGMENT_BYTES = 20_000
CALLS_MAX = 8
"""How many calls after a decision to cut the power it is cut; a batch takes fewer."""


@dataclass
class PowerDisk(Disk):
    """`pending` is a batch that may or may not be there.  `seen` is what the lock file holds for certain, `noted` what it may."""

    fs: SimFileSystem = field(default_factory=SimFileSystem)
    pending: list[bytes] | None = None
    seen: Seen = field(default_factory=Seen)
    noted: Seen = field(default_factory=Seen)

    def restart(self) -> None:
        """The process is gone: killed, or the machine with it."""
        if self.random.random() < 0.5:
            image: Image = self.fs.image()
        else:
            image = self.random.choice(list(self.fs.crash_images()))
            self.noted = self.random.choice((self.seen, self.noted))
        self.fs = SimFileSystem(image)

    def found(self, state: State) -> None:
        """A start read this: all that was acknowledged, and the batch in doubt as a whole or not at all."""
        found, pending = durable_part(state), self.pending
        self.pending = None
        if found == durable_part(self.shadow):
            return
        if pending is not None:
            self.append(pending)
        told = durable_part(self.shadow)
        if found != told:
            different = {name: (found[name], told[name]) for name in told if found[name] != told[name]}
            raise Violation(f"a start found something else than was written (found, written): {different}")


class _Lock:
    """`store.lock.Ownership` of one process."""

    def __init__(self, disk: PowerDisk, store: "PowerStore") -> None:
        self._disk = disk
        self._store = store

    def acquire(self, started_at: datetime) -> Seen:
        if self._disk.owner is not None:
            raise LockHeld(Holder())
        self._disk.owner = self._store
        return self._disk.noted

    def check(self) -> None:
        if self._store.lost or self._disk.owner is not self._store:
            raise OwnershipLost("the lock is somebody else's")

    def note(self, epoch: int, seq: int, *, durably: bool) -> None:
        self._disk.noted = Seen(epoch, seq)
        if durably:
            self._disk.seen = Seen(epoch, 0)

    def release(self) -> None:
        if self._disk.owner is self._store:
            self._disk.owner = None


class PowerStore(SimStore):
    """The real store with the same facade and the same faults as the one in memory."""

    def __init__(self, disk: PowerDisk, process: Process) -> None:
        super().__init__(disk, process)
        self._power = disk
        self._fs = disk.fs
        self._cut_in: int | None = None
        self._fail_sync = False
        self._closed = False
        self._fs.fault = self._fault
        self._real = Store(
            self.root,
            fs=self._fs,
            lock=_Lock(disk, self),
            segment_bytes_max=SEGMENT_BYTES,
            mint=lambda: STORE_ID,
        )

    def disarm(self) -> None:
        self._cut_in, self._fail_sync = None, False

    def _fault(self, _number: int, name: str, _path: str) -> int | None:
        """Asked before each call of the filesystem."""
        if not self.process.alive:
            return errno.EIO  # whoever was killed writes no more
        if self._cut_in is not None:
            self._cut_in -= 1
            if self._cut_in <= 0:
                self._cut_in = None
                self.process.kill()
                return errno.EIO
        if self._fail_sync and name in ("fsync", "fdatasync"):
            self._fail_sync, self.failed = False, True
            return errno.EIO
        if self.disk.faults.full and name in ("write", "create", "make_folder"):
            return self.disk.random.choice((errno.ENOSPC, errno.EDQUOT)) if name != "write" else self._no_room()
        return None

    def _no_room(self) -> int:
        """A full disk may take a part of a write and say nothing until the next."""
        return self.disk.random.choice((errno.ENOSPC, errno.ENOSPC, 0))

    # --- the facade ---

    def open(self, settings: Settings, now: Now, *, accept_restore: bool = False) -> Opened:  # type: ignore[override]
        opened = self._real.open(settings, now, accept_restore=accept_restore)
        if opened.damages:
            raise Violation(f"a crash is taken for damage: {opened.damages}")
        self._power.found(opened.state)
        self.state = opened.state
        return opened

    def check_ownership(self) -> None:
        self._real.check_ownership()

    async def commit(self, events: Sequence[Event]) -> None:
        faults, chance = self.disk.faults, self.disk.random
        if self.failed:
            raise Violation("a write after a failed fsync")
        if chance.random() < faults.kill_before + faults.kill_after:
            self._cut_in = chance.randint(1, CALLS_MAX)
        if chance.random() < faults.failed:
            self._fail_sync = True
        data = [encode(event) for event in events]
        self._power.pending = data
        try:
            await self._real.commit(events)
        except (StorageFull, OwnershipLost):
            self._power.pending = None
            raise
        self._power.pending = None
        self.unheard = True
        self.disk.append(data)
        self.unheard = False

    def page(self, schedule_id: str, after_n: int | None, limit: int) -> Page:  # type: ignore[override]
        return self._real.page(schedule_id, after_n, limit)

    def find_run(self, run_id: str) -> FoundRun | None:  # type: ignore[override]
        return self._real.find_run(run_id)

    def rowed_after(self, schedule_id: str, at: datetime) -> tuple[datetime, ...]:
        return self._real.rowed_after(schedule_id, at)

    def wants_checkpoint(self) -> bool:
        busy: Any = self._real
        return super().wants_checkpoint() and busy._written.begun and not busy._checkpointing

    async def checkpoint(self, state: State) -> None:
        self.check_ownership()
        self.compare()
        if self.disk.random.random() < self.disk.faults.kill_after * 5:
            self._cut_in = self.disk.random.randint(1, 40)
        await self._real.checkpoint(state)

    def close(self) -> None:
        self._closed = True
        self._real.close()

    # --- the outside ---

    def give_up(self) -> None:
        self.lost = True
        self.disk.owner = None

    def died(self) -> None:
        if self.lost or self._closed:
            return
        if not self.unheard:
            self.compare()
        self._power.restart()
        self.disk.owner = None
