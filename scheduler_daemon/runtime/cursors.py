"""Opaque places in a list.

Owns: how a place is written so that nobody takes it for a number to count on.  Must never know: what is listed.
"""

from __future__ import annotations

import base64
import binascii

from scheduler_daemon.core.commands import Rejected


def encode(kind: str, *parts: str) -> str:
    """A cursor for `kind`; parts may hold anything but a NUL."""
    return base64.urlsafe_b64encode("\0".join((kind, *parts)).encode()).decode().rstrip("=")


def decode(kind: str, cursor: str, count: int) -> list[str]:
    """The parts of a cursor of this kind.  Raises `Rejected` InvalidCursor for anything else."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise _invalid() from None
    found, *parts = raw.split("\0")
    if found != kind or len(parts) != count:
        raise _invalid()
    return parts


def _invalid() -> Rejected:
    return Rejected(
        "InvalidCursor", "cursor: not one that this method gave out; start again without it", field="cursor"
    )
