"""Lines that can be trusted: a checksum beside each body, and the newline as the mark to find the next one.

Owns: the frame `{"c":"<crc32, 8 hex digits>","r":<body>}` + newline, and the judgement whether a line is one.  Must never know: what
a body says.

A frame is valid JSON, so `jq .r` reads every file of the store.  The checksum is taken over the exact bytes of the body and compared
as bytes, too: comparing the parsed number would let through a flip that turns `a` into `A`.  Every other byte of a frame is constant,
so a flip anywhere in a line is found.  JSON text has no raw newline and no NUL inside, which makes the newline safe to split at and
a run of NULs a sign of blocks that were never written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from zlib import crc32

_OPEN: Final = b'{"c":"'
_MIDDLE: Final = b'","r":'
_CLOSE: Final = b"}"
_HEAD: Final = _OPEN + b"%08x" + _MIDDLE
BODY_AT: Final = len(_OPEN) + 8 + len(_MIDDLE)
"""How many bytes of a frame come before its body."""

SECTOR: Final = 512
_NULS: Final = re.compile(rb"\0+")


def frame(body: bytes) -> bytes:
    """The line of one body, newline included.  `body` is JSON without a raw newline."""
    return b'{"c":"%08x","r":%b}\n' % (crc32(body), body)


def unframe(line: bytes) -> bytes | None:
    """The body of a line without its newline, or None when any byte of the line is not as it was written."""
    body = line[BODY_AT:-1]
    valid = line[:BODY_AT] == _HEAD % crc32(body) and line[-1:] == _CLOSE
    return body if valid else None


def unmerge(line: bytes) -> list[bytes]:
    """The bodies of frames that one damaged newline ran together, or nothing.

    Each part must be a whole frame by its own checksum, with exactly one foreign byte between: then what was damaged is known to
    be the newline, and nothing is lost.
    """
    at = line.find(_OPEN, BODY_AT)
    while at > 0:
        first, second = unframe(line[: at - 1]), unframe(line[at:])
        if first is not None and second is not None:
            return [first, second]
        at = line.find(_OPEN, at + 1)
    return []


def lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Each line of `data` with its offset, without its newline, and whether it had one."""
    at, size = 0, len(data)
    while at < size:
        end = data.find(b"\n", at)
        if end < 0:
            yield at, data[at:], False
            return
        yield at, data[at:end], True
        at = end + 1


def unwritten(data: bytes, offset: int) -> bool:
    """Whether blocks of `data`, which lies at `offset` of its file and is its end, were never written.

    After a power cut a filesystem may show a file at its new size with zeros where blocks had not reached the disk: at the end, or
    as whole sectors in between.  The first sector of an append is shared with what was there before, hence a run that begins
    with `data`.
    """
    for run in _NULS.finditer(data):
        start, end = run.start() + offset, run.end() + offset
        whole = (run.start() == 0 or start % SECTOR == 0) and end % SECTOR == 0
        if run.end() == len(data) or whole or end - start >= SECTOR:
            return True
    return False
