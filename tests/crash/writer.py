"""A process that only writes: batches and checkpoints until somebody ends it, each batch counted in a file once it is acknowledged.

    python -m tests.crash.writer STORE_ROOT COUNT_FILE [no-sync]

Owns: one store and the count.  Must never know: when the power goes.  `no-sync` is the control: a store that acknowledges too early.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from scheduler_daemon.core.model import Settings
from scheduler_daemon.store.fs import RealFileSystem
from scheduler_daemon.store.store import Retention, Store
from tests.scribe import NOW, Scribe

CHECKPOINT_EVERY = 40
COUNT_BYTES = 12


class NeverSyncs(RealFileSystem):
    """Answers before anything is durable."""

    def fdatasync(self, fd: int) -> None:
        """Left out."""

    def fsync(self, fd: int) -> None:
        """Left out."""


async def write(root: Path, count_file: Path, *, syncs: bool) -> None:
    """Batch `k` adds one row to schedule `a` and three to `b`."""
    fs = RealFileSystem() if syncs else NeverSyncs()
    store = Store(root, fs=fs, segment_bytes_max=20_000, retention=Retention(runs_max=1_000_000, others_max=1_000_000))
    opened = store.open(Settings(), NOW)
    scribe = Scribe(opened.state)
    first = [] if "a" in opened.state.schedules else [*scribe.create("a"), *scribe.create("b")]
    await store.commit([*scribe.epoch(opened.epoch), *first])
    count = opened.state.schedules["a"].n - 1
    fd = os.open(count_file, os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        await store.commit([*scribe.skip("a"), *scribe.ran("b")])
        count += 1
        os.pwrite(fd, b"%*d" % (COUNT_BYTES, count), 0)
        if count % CHECKPOINT_EVERY == 0:
            await store.checkpoint(scribe.state)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), Path(sys.argv[2]), syncs="no-sync" not in sys.argv))
