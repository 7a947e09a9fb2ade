"""A filesystem in memory that knows what a power cut may leave of it.

Owns: what is volatile and what is durable, the disk images that are legal after a crash, faults on chosen calls.  Must never know: the
store.

The rules, stricter than any one filesystem so that they hold on all of them:

- Content is durable after fsync, fdatasync or syncfs of that file; names are durable after fsync of their folder, or syncfs.  Neither
  makes the other durable.
- Of content that was not synced, any state it had since the last sync may be there; of what was appended, a part (also one that ends
  with a line), or zeros in place of whole sectors or of the end.
- Of changes of names that were not synced, any prefix may be there, all but one, or only one.  A rename is one change.
- After a failed fsync the pages count as clean: a later fsync succeeds, and the disk holds zeros.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SECTOR = 512
Image = dict[str, bytes | None]
"""What is on a disk: a path's content, None for a folder."""

Fault = Callable[[int, str, str], int | None]
"""Asked before each call with its number, name and path; an errno makes it fail, 0 makes a write short."""


@dataclass(eq=False)
class File:
    data: bytes = b""
    durable: bytes = b""
    since: list[bytes] = field(default_factory=list)
    rotten: list[tuple[int, int]] = field(default_factory=list)

    def change(self, data: bytes) -> None:
        self.data = data
        self.since.append(data)

    def sync(self) -> None:
        kept = bytearray(self.data)
        for start, end in self.rotten:
            kept[start:end] = bytes(max(0, min(end, len(kept)) - start))
        self.durable = bytes(kept)
        self.since.clear()

    def fail_sync(self) -> None:
        if len(self.data) > len(self.durable):
            self.rotten.append((len(self.durable), len(self.data)))

    def variants(self) -> list[bytes]:
        """What a crash may leave: all of it first, nothing unsynced second."""
        if not self.since:
            return [self.durable]
        others = dict.fromkeys([*self.since, *self._torn()])
        return [self.data, self.durable, *(each for each in others if each not in (self.data, self.durable))]

    def _torn(self) -> Iterator[bytes]:
        for state in (self.data, *self.since[:-1]):
            start, end = len(self.durable), len(state)
            if end > start and state.startswith(self.durable):
                lines = {
                    state.find(b"\n", start) + 1,
                    state.rfind(b"\n", start, end - 1) + 1,
                    (start + end) // 2,
                    end - 1,
                }
                yield from (state[:cut] for cut in sorted(lines) if start < cut < end)
                yield self.durable + bytes(end - start)
                yield from _with_holes(state, start)


def _with_holes(state: bytes, start: int) -> Iterator[bytes]:
    """One sector each that never reached the disk, and everything from one on."""
    bounds = [start, *range((start // SECTOR + 1) * SECTOR, len(state), SECTOR), len(state)]
    chosen = [0, len(bounds) // 2 - 1, len(bounds) - 2] if len(bounds) > 3 else [0]
    for position in dict.fromkeys(max(0, each) for each in chosen):
        low, high = bounds[position], bounds[position + 1]
        yield state[:low] + bytes(high - low) + state[high:]
        yield state[:low] + bytes(len(state) - low)


@dataclass(eq=False)
class Folder:
    entries: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    since: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, change: dict[str, File | Folder | None]) -> None:
        _apply(self.entries, change)
        self.since.append(change)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.since.clear()

    def variants(self) -> list[dict[str, File | Folder]]:
        """What a crash may leave: every change first, none second."""
        count = len(self.since)
        everything = list(range(count))
        subsets = [everything, [], *(everything[:end] for end in range(1, count))]
        subsets += [[other for other in everything if other != left_out] for left_out in everything]
        subsets += [[only] for only in everything]
        return [self._with(subset) for subset in dict.fromkeys(map(tuple, subsets))]

    def _with(self, subset: tuple[int, ...]) -> dict[str, File | Folder]:
        entries = dict(self.durable)
        for position in subset:
            _apply(entries, self.since[position])
        return entries


def _apply(entries: dict[str, File | Folder], change: dict[str, File | Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class SimFileSystem:
    """Implements `store.fs.FileSystem`.  `watch` is called after every call that changed or synced something."""

    mixed = 8
    """How many images besides mix the states of everything unsynced at random (the same ones in every run)."""

    def __init__(self, image: Image | None = None) -> None:
        self.root = Folder()
        self._random = random.Random(1)
        self.calls = 0
        self.log: list[tuple[str, str]] = []
        self.fault: Fault = lambda _number, _call, _path: None
        self.watch: Callable[[], None] = lambda: None
        self._open: dict[int, tuple[File, str]] = {}
        self._next = 3
        for path, content in sorted((image or {}).items()):
            self._put(path, content)

    def _put(self, path: str, content: bytes | None) -> None:
        folder, name = self._parent(path)
        node: File | Folder = Folder() if content is None else File(content, content)
        folder.entries[name] = folder.durable[name] = node

    # --- finding things ---

    def _parent(self, path: str) -> tuple[Folder, str]:
        *parts, name = path.strip("/").split("/")
        node: File | Folder = self.root
        for part in parts:
            found = node.entries.get(part) if isinstance(node, Folder) else None
            if found is None:
                raise _error(errno.ENOENT, path)
            node = found
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node, name

    def _node(self, path: str) -> File | Folder:
        if not path.strip("/"):
            return self.root
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _folder(self, path: str) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _handle(self, path: str) -> int:
        node = self._node(path)
        if not isinstance(node, File):
            raise _error(errno.EISDIR, path)
        self._next += 1
        self._open[self._next] = (node, path)
        return self._next

    def _call(self, name: str, path: str) -> int | None:
        """Count the call; raise what the fault plan says, or return 0 for a short write."""
        self.calls += 1
        self.log.append((name, path))
        code = self.fault(self.calls, name, path)
        if code:
            if name in {"fsync", "fdatasync"} and code == errno.EIO:
                file = self._node(path)
                if isinstance(file, File):
                    file.fail_sync()
            raise _error(code, path)
        return code

    # --- the protocol ---

    def create(self, path: str) -> int:
        self._call("create", path)
        folder, name = self._parent(path)
        if name in folder.entries:
            raise _error(errno.EEXIST, path)
        folder.change({name: File()})
        handle = self._handle(path)
        self.watch()
        return handle

    def open_append(self, path: str) -> int:
        self._call("open", path)
        return self._handle(path)

    def open_read(self, path: str) -> int:
        self._call("open", path)
        return self._handle(path)

    def close(self, fd: int) -> None:
        del self._open[fd]

    def write(self, fd: int, data: bytes | memoryview) -> int:
        file, path = self._open[fd]
        short = self._call("write", path) == 0
        taken = bytes(data[: max(1, len(data) // 2)] if short else data)
        file.change(file.data + taken)
        self.watch()
        return len(taken)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._open[fd][0].data[offset : offset + size]

    def size(self, fd: int) -> int:
        return len(self._open[fd][0].data)

    def truncate(self, fd: int, size: int) -> None:
        file, path = self._open[fd]
        self._call("truncate", path)
        file.change(file.data[:size].ljust(size, b"\0"))
        self.watch()

    def fdatasync(self, fd: int) -> None:
        file, path = self._open[fd]
        self._call("fdatasync", path)
        file.sync()
        self.watch()

    def fsync(self, fd: int) -> None:
        file, path = self._open[fd]
        self._call("fsync", path)
        file.sync()
        self.watch()

    def fsync_folder(self, path: str) -> None:
        self._call("fsync_folder", path)
        self._folder(path).sync()
        self.watch()

    def syncfs(self, path: str) -> bool:
        self._call("syncfs", path)
        for node in self._everything():
            node.sync()
        self.watch()
        return True

    def make_folder(self, path: str) -> None:
        self._call("mkdir", path)
        folder, name = self._parent(path)
        if name not in folder.entries:
            folder.change({name: Folder()})
        self.watch()

    def list_folder(self, path: str) -> list[str]:
        return sorted(self._folder(path).entries)

    def rename(self, path: str, to: str) -> None:
        self._call("rename", path)
        (folder, name), (other, new) = self._parent(path), self._parent(to)
        assert folder is other, "the store renames within a folder"
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        folder.change({name: None, new: node})
        self.watch()

    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        folder, name = self._parent(path)
        if name not in folder.entries:
            raise _error(errno.ENOENT, path)
        folder.change({name: None})
        self.watch()

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except OSError:
            return False
        return True

    # --- crashes ---

    def _everything(self) -> Iterator[File | Folder]:
        """Every node that is named somewhere, in memory or on disk."""
        seen: dict[int, File | Folder] = {}
        pending: list[File | Folder] = [self.root]
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen[id(node)] = node
            if isinstance(node, Folder):
                pending += node.entries.values()
                pending += node.durable.values()
                pending += [each for change in node.since for each in change.values() if each is not None]
        return iter(seen.values())

    def image(self) -> Image:
        """What is there as the process sees it."""
        return _flatten(lambda folder: folder.entries, lambda file: file.data, self.root)

    def extreme_images(self) -> Iterator[Image]:
        """Legal images after a crash now, only those that keep or lose all names, and all content."""
        for names_kept, content_kept in ((True, True), (False, False), (True, False), (False, True)):
            yield self._chosen({}, names_kept=names_kept, content_kept=content_kept)

    def crash_images(self) -> Iterator[Image]:
        """Legal images after a crash now: everything, nothing, each unsynced thing in each of its states among both, and mixtures."""
        loose = [node for node in self._everything() if node.since]
        for names_kept, content_kept in ((True, True), (False, False), (True, False), (False, True)):
            yield self._chosen({}, names_kept=names_kept, content_kept=content_kept)
            for node in loose:
                for position in range(len(node.variants())):
                    yield self._chosen({id(node): position}, names_kept=names_kept, content_kept=content_kept)
        for _ in range(self.mixed if len(loose) > 1 else 0):
            choice = {id(node): self._random.randrange(len(node.variants())) for node in loose}
            yield self._chosen(choice, names_kept=True, content_kept=True)

    def _chosen(self, choice: dict[int, int], *, names_kept: bool, content_kept: bool) -> Image:
        def entries(folder: Folder) -> dict[str, File | Folder]:
            if not folder.since:
                return folder.entries
            return folder.variants()[choice.get(id(folder), 0 if names_kept else 1)]

        def content(file: File) -> bytes:
            if not file.since:
                return file.durable
            return file.variants()[choice.get(id(file), 0 if content_kept else 1)]

        return _flatten(entries, content, self.root)


def _flatten(
    entries: Callable[[Folder], dict[str, File | Folder]], content: Callable[[File], bytes], root: Folder
) -> Image:
    image: Image = {}
    pending: list[tuple[str, Folder]] = [("", root)]
    while pending:
        path, folder = pending.pop()
        for name, node in entries(folder).items():
            if isinstance(node, Folder):
                image[f"{path}/{name}"] = None
                pending.append((f"{path}/{name}", node))
            else:
                image[f"{path}/{name}"] = content(node)
    return image


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
