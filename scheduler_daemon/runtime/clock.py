"""The only place that reads a clock or sleeps.

Owns: both clocks and every wait.  Must never know: what anybody waits for.  A simulation puts another `Clock` here.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

from scheduler_daemon.core.model import Now


class Clock(Protocol):
    """Both clocks, and waiting on the monotonic one."""

    def now(self) -> Now:
        """Both clocks, read together."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Return when `event` is set or after `seconds`, whichever comes first; None waits for the event alone."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's clocks.  The monotonic one stands still while the machine is suspended, so waking up is a step ahead."""

    def now(self) -> Now:
        """Both clocks, read together."""
        return Now(datetime.now(UTC), time.monotonic())

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Return when `event` is set or after `seconds`; the event is set then too."""
        if event.is_set():
            return
        if seconds is None:
            await event.wait()
            return
        # A timer of the loop costs a tenth of `asyncio.wait_for`, and this runs at every wake.
        alarm = asyncio.get_running_loop().call_later(max(0.0, seconds), event.set)
        try:
            await event.wait()
        finally:
            alarm.cancel()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class StepWatch:
    """Notices when the wall clock was set, by comparing both clocks between two looks."""

    def __init__(self, now: Now) -> None:
        self._last = now

    def step_s(self, now: Now) -> float:
        """By how many seconds the wall clock moved against the monotonic one since the last call."""
        moved_s = (now.at - self._last.at).total_seconds() - (now.mono - self._last.mono)
        self._last = now
        return moved_s
