"""What the store can fail with, named for whose fault it is and what to do now.

Owns: the names and their data.  Must never know: exit codes, JSON-RPC.  An `OSError` never leaves the store but from a read; each one
that a write meets becomes one of these.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who has the store, as the lock file tells; all None when the file was taken away from its holder."""

    pid: int | None = None
    host: str | None = None
    started_at: datetime | None = None


class StorageFull(Exception):
    """No room: nothing of the batch is on disk, and the same batch may be tried again later."""


class StorageReadOnly(StorageFull):
    """The filesystem takes no writes; otherwise as `StorageFull`."""


class StorageFailed(Exception):
    """What is on disk is not known any more: the process must end, and the next one reads what is there."""


class OwnershipLost(Exception):
    """Somebody else may own the store: nothing may be admitted or dispatched any more, and the process must end."""


class LockHeld(Exception):
    """Another daemon owns the store; it was not disturbed."""

    def __init__(self, holder: Holder) -> None:
        known = holder.pid is not None
        who = (
            f"pid {holder.pid} on {holder.host} since {holder.started_at}"
            if known
            else "a process that the lock file does not name"
        )
        super().__init__(f"the store is owned by {who}")
        self.holder = holder


class StoreUnusable(Exception):
    """The store cannot be opened as it is, and was left as it was; `file` and `offset` say where, `reason` why."""

    def __init__(self, reason: str, file: str = "", offset: int = 0) -> None:
        super().__init__(f"{file} at byte {offset}: {reason}" if file else reason)
        self.reason = reason
        self.file = file
        self.offset = offset


class RestoreNotAccepted(StoreUnusable):
    """The store is an older copy of itself, or lost records that nobody can name: an operator has to accept that."""


class CursorExpired(Exception):
    """Rows that would follow were dropped by retention; the caller starts again from the oldest that is kept."""
