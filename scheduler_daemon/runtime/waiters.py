"""Callers who wait for a run to come to rest.

Owns: one future per waiting caller, and the last thing that was heard about the run it waits for.
Must never know: how a run comes to rest; it asks the state after every durable batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from rpc_client.errors import INTERNAL_ERROR
from scheduler_daemon.core.commands import CallNotSent, CallRefused, Observation
from scheduler_daemon.core.lifecycle import HOLDS_SLOT
from scheduler_daemon.core.state import State
from scheduler_daemon.errors import ServerRefused

Refusal = CallRefused | CallNotSent | None
"""What ended an attempt without effect; None when the run came to rest by itself."""


def stopped_meanwhile() -> ServerRefused:
    """The one answer that promises nothing: what the caller waits for may have happened, and goes on without this process."""
    message = "the daemon stopped while this was open at the workflow server; it may have its effect all the same"
    return ServerRefused(INTERNAL_ERROR, "Internal error", {"message": message})


class _Waiter(msgspec.Struct):
    run_id: str
    rest: asyncio.Future[Refusal]
    last: Refusal = None


class Waiters:
    """`note` must be called after every durable batch, with its observations."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting: list[_Waiter] = []

    async def rest_of(self, run_id: str) -> Refusal:
        """Return when the run executes no more and its outcome is known, or its end is recorded as unknown."""
        waiter = _Waiter(run_id, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._look(waiter)
        try:
            return await waiter.rest
        finally:
            self._waiting.remove(waiter)

    def fence(self) -> None:
        """The daemon stops: whoever still waits is told that nobody knows, so that no caller holds up the exit."""
        for waiter in self._waiting:
            if not waiter.rest.done():
                waiter.rest.set_exception(stopped_meanwhile())

    def note(self, observations: Sequence[Observation]) -> None:
        """Take in one durable batch: whoever waited for a run that rests now is told."""
        if not self._waiting:
            return
        for observation in observations:
            if isinstance(observation, CallRefused | CallNotSent):
                for waiter in self._waiting:
                    if waiter.run_id == observation.run_id:
                        waiter.last = observation
        for waiter in list(self._waiting):
            self._look(waiter)

    def _look(self, waiter: _Waiter) -> None:
        owner = self._state.owners.get(waiter.run_id)
        run = self._state.schedules[owner].run(waiter.run_id) if owner is not None else None
        if run is not None and run.phase in HOLDS_SLOT:
            # What was heard did not end the attempt: it was about a repeat, and the first request stands.
            waiter.last = None
        elif not waiter.rest.done():
            waiter.rest.set_result(waiter.last if run is not None else None)
