"""Reading a file of framed lines from anywhere in it, without reading all of it.

Owns: chunks, line boundaries, the search for a place by a number that grows along the file.  Must never know: what a line says.

A reader holds one descriptor and the size the file had when it was opened, so that what it sees is one version: files only grow, or
are replaced as a whole under another descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from scheduler_daemon.store.framing import unframe
from scheduler_daemon.store.fs import FileSystem, read_range

_CHUNK: Final = 1 << 16
_FIRST_CHUNK: Final = 1 << 13
"""Whoever looks for a place reads a line here and there; whoever reads on wants larger pieces."""


class Line(NamedTuple):
    """A line without its newline; `whole` says whether it had one, `end` is where the next begins."""

    offset: int
    data: bytes
    whole: bool

    @property
    def end(self) -> int:
        return self.offset + len(self.data) + self.whole

    @property
    def body(self) -> bytes | None:
        """Its body, or None when it cannot be trusted.  Only its newline being damaged takes nothing from a line."""
        body = unframe(self.data)
        return body if body is not None or self.whole else unframe(self.data[:-1])

    @property
    def content_end(self) -> int:
        """Where its frame ends, when it can be trusted: before its newline, or what became of it."""
        return self.offset + len(self.data) - (not self.whole and unframe(self.data) is None)


class LineReader:
    """Lines of one open file."""

    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self.size = fs.size(fd)

    def everything(self) -> bytes:
        """All of the file."""
        return read_range(self._fs, self._fd, 0, self.size)

    def lines(self, offset: int, until: int | None = None) -> Iterator[Line]:
        """Each line from the one that begins at `offset` on, up to those that begin before `until`."""
        end = self.size if until is None else until
        pending, at = b"", offset
        place, chunk = offset, _FIRST_CHUNK
        while at < end:
            data = read_range(self._fs, self._fd, place, min(place + chunk, self.size))
            chunk = _CHUNK
            if not data:
                break
            place += len(data)
            *whole, pending = (pending + data).split(b"\n")
            for line in whole:
                yield Line(at, line, whole=True)
                at += len(line) + 1
                if at >= end:
                    return
        if pending and at < end:
            yield Line(at, pending, whole=False)

    def lines_within(self, offset: int, until: int | None = None) -> Iterator[Line]:
        """As `lines`, but `offset` may lie inside a line, which is left out."""
        partial = next(self.lines(offset), None)
        if partial is not None and partial.whole:
            yield from self.lines(partial.end, until)

    def last(self) -> Line | None:
        """The last line there is."""
        back = _CHUNK
        while self.size:
            start = max(0, self.size - back)
            data = read_range(self._fs, self._fd, start, self.size)
            begin = data.rfind(b"\n", 0, len(data) - 1) + 1
            if begin or not start:
                whole = data.endswith(b"\n")
                return Line(start + begin, data[begin:-1] if whole else data[begin:], whole)
            back *= 4
        return None

    def seek(self, low: int, number_of: Callable[[Line], int | None], number: int) -> int:
        """Where to begin reading for lines numbered above `number`: a line before which none is.

        `number_of` gives a line's number, None when it has none; `low` is where numbered lines begin.
        """
        high = self.size
        while high - low > _FIRST_CHUNK:
            middle = (low + high) // 2
            found = self._numbered(middle, high, number_of)
            if found is None or found[1] > number:
                high = middle
            else:
                low = found[0]
        return low

    def _numbered(self, offset: int, until: int, number_of: Callable[[Line], int | None]) -> tuple[int, int] | None:
        for line in self.lines_within(offset, until):
            found = number_of(line)
            if found is not None:
                return line.offset, found
        return None


@contextmanager
def reading(fs: FileSystem, path: str) -> Generator[LineReader | None]:
    """A reader of the file, or None when there is no such file."""
    try:
        fd = fs.open_read(path)
    except FileNotFoundError:
        yield None
        return
    try:
        yield LineReader(fs, fd)
    finally:
        fs.close(fd)
