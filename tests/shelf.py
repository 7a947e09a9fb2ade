"""A store on a simulated filesystem for tests that look at one thing: start it, commit, damage a file, start it again.

Owns: the synchronous handling of a store, and editing files behind its back.  Must never know: what a test expects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduler_daemon.core.events import Event
from scheduler_daemon.core.model import Row, Settings
from scheduler_daemon.store.store import Opened, Store
from tests.crash.simfs import File, SimFileSystem
from tests.crash.stage import SimLock
from tests.scribe import NOW, Scribe

ROOT = Path("/store")


class Shelf:
    """One store and what was written into it."""

    def __init__(self, fs: Any = None, lock: Any = None, root: Path = ROOT, **options: Any) -> None:
        self.fs = fs if fs is not None else SimFileSystem()
        self.lock = lock if lock is not None else SimLock()
        self.root = root
        self.options = {"mint": lambda: "store", **options}
        self.scribe = Scribe()
        self.store: Store
        self.opened: Opened

    # --- the life of a store ---

    def open(self, *, accept_restore: bool = False) -> Opened:
        """Open without beginning an epoch."""
        self.store = Store(self.root, fs=self.fs, lock=self.lock, **self.options)
        self.opened = self.store.open(Settings(), NOW, accept_restore=accept_restore)
        return self.opened

    def start(self, *, accept_restore: bool = False) -> Opened:
        """Open and begin the epoch; what is recovered is what the scribe goes on from."""
        opened = self.open(accept_restore=accept_restore)
        before = self.scribe
        self.scribe = Scribe(opened.state)
        self.scribe.rows, self.scribe.at = before.rows, before.at
        self.commit(*self.scribe.epoch(opened.epoch))
        return opened

    def commit(self, *events: Event) -> None:
        asyncio.run(self.store.commit(events))

    def checkpoint(self) -> None:
        asyncio.run(self.store.checkpoint(self.scribe.state))

    def stop(self) -> None:
        self.store.close()

    def restart(self, *, accept_restore: bool = False) -> Opened:
        self.stop()
        return self.start(accept_restore=accept_restore)

    def rows(self, schedule_id: str, limit: int = 100) -> list[Row]:
        """All rows, page by page."""
        rows: list[Row] = []
        after_n = None
        while True:
            page = self.store.page(schedule_id, after_n, limit)
            rows += page.rows
            if page.next_n is None:
                return rows
            after_n = page.next_n

    # --- files ---

    def files(self, part: str) -> list[str]:
        """Paths that contain `part`, in order."""
        return sorted(path for path, content in self.fs.image().items() if content is not None and part in path)

    def file(self, part: str) -> str:
        """The last such path."""
        return self.files(part)[-1]

    def read(self, part: str) -> bytes:
        content = self.fs.image()[self.file(part)]
        assert content is not None
        return content

    def edit(self, part: str, change: Callable[[bytes], bytes]) -> str:
        """Change a file behind the store's back; its path."""
        path = self.file(part)
        node = self.fs._node(path)
        assert isinstance(node, File)
        node.data = node.durable = change(node.data)
        node.since.clear()
        return path

    def edit_line(self, part: str, number: int, change: Callable[[bytes], bytes]) -> int:
        """Change one line (its newline included) of a file; the offset it begins at."""
        lines = self.read(part).splitlines(keepends=True)
        number %= len(lines)
        offset = sum(map(len, lines[:number]))
        lines[number] = change(lines[number])
        self.edit(part, lambda _: b"".join(lines))
        return offset


def rot(line: bytes) -> bytes:
    """One bit of the middle of a line is another."""
    at = len(line) // 2
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
