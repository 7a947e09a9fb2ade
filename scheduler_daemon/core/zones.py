"""Time zones by name, from one database.

Owns: which zone names exist and where their rules come from.  Must never know: schedules, expressions.

The rules come from the `tzdata` package that the lock file pins, never from the machine's own files: two hosts, or one host before
and after an upgrade of its operating system, would otherwise disagree about an instant that is already in the history.  The
standard library looks at the machine first, so its search path is emptied here, once, for the whole process; whoever asks
`zoneinfo` for a zone by name then gets the same one.
"""

from __future__ import annotations

import difflib
import zoneinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

zoneinfo.reset_tzpath(to=())
ZoneInfo.clear_cache()

_NO_PLACE = frozenset({"Factory", "localtime", "posixrules"})
"""Entries of the database that name a setting of some machine and not a place."""


class ZoneUnknown(ValueError):
    """No such zone; the text says so and names the nearest one."""


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The zone of that exact IANA name, or `ZoneUnknown`.  The lookup is by list: a name is never used as a path."""
    if name not in _names():
        raise ZoneUnknown(f"{name[:80]!r} is not an IANA time zone{_nearest(name)}")
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - _NO_PLACE)


def _nearest(name: str) -> str:
    by_lower = {known.lower(): known for known in sorted(_names())}
    near = difflib.get_close_matches(name[:80].lower(), by_lower, n=1, cutoff=0.7)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
