"""Whether the daemon is scheduling, as named checks.

Owns: what `GET /readyz` says, and the limits beyond which a figure is bad.  Must never know: HTTP.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from scheduler_daemon.core.model import Now
from scheduler_daemon.core.queries import BEHIND
from scheduler_daemon.core.state import State
from scheduler_daemon.store.errors import OwnershipLost, StorageFailed

TICK_AGE_MAX_S = 10.0
"""How old the last decision may be; the poll interval is a second by default."""

OVERDUE_MAX_S = 5.0
"""How long an instant may be due without having been decided."""


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold for the daemon to be scheduling, with its figure."""

    name: str
    ok: bool
    figure: str


class Owned(Protocol):
    """A store that can say whether it is still ours."""

    def check_ownership(self) -> None:
        """Raise `OwnershipLost` when it is not."""
        ...


def checks(state: State, store: Owned, now: Now, decided_mono: float) -> list[Check]:
    """Every check with its figure; the daemon is ready when all of them hold."""
    server, modes = state.globals.server, state.globals
    owns = _owns(store)
    tick_s = now.mono - decided_mono
    overdue = state.agenda.overdue()
    waiting = overdue is not None and not (modes.full or modes.draining)
    overdue_s = max(0.0, (now.at - overdue).total_seconds()) if overdue is not None and waiting else 0.0
    ahead_s = max(0.0, (modes.decided_until - now.at).total_seconds())
    return [
        Check("lock", owns, "held" if owns else "lost"),
        Check("tick", tick_s < TICK_AGE_MAX_S, f"{tick_s:.3f} s old"),
        Check("overdue", overdue_s < OVERDUE_MAX_S, f"{overdue_s:.3f} s"),
        Check("store", not modes.full, "disk full" if modes.full else "writable"),
        Check("server", server.up and server.refusal is None, server.refusal or ("up" if server.up else server.reason)),
        Check("clock", ahead_s <= BEHIND.total_seconds(), f"watermark {ahead_s:.0f} s ahead"),
        Check("admission", not modes.draining, "draining" if modes.draining else "on"),
    ]


def _owns(store: Owned) -> bool:
    try:
        store.check_ownership()
    except (OwnershipLost, StorageFailed):
        return False
    return True
