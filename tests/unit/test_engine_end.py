"""The end of the engine: nobody waits for an answer that nobody will give any more."""

import asyncio

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.runtime.clock import SystemClock
from scheduler_daemon.runtime.engine import Engine
from scheduler_daemon.store.errors import StorageFailed


class _Store:
    """Takes what is committed, or fails for good; a commit begins when `asked` is set and ends when the gate opens."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def commit(self, _events) -> None:
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    def check_ownership(self) -> None:
        return


def _engine(store: _Store) -> Engine:
    return Engine(
        State("store", Settings(server_url="http://server/rpc")),
        store,
        SystemClock(),
        perform=lambda _effect: None,
        settled=lambda _observations: None,
        poll_interval_s=0.05,
    )


async def _refusal(answer: asyncio.Future) -> str:
    with pytest.raises(Rejected) as refused:
        await asyncio.wait_for(answer, 5)
    return refused.value.code


async def test_a_command_that_comes_after_the_end_is_refused_at_once():
    store = _Store()
    store.gate.set()
    engine = _engine(store)
    engine.stop()
    await asyncio.wait_for(engine.run(), 5)
    assert await _refusal(engine.submit(cmd.Drain())) == "Draining"


async def test_a_command_that_was_waiting_when_the_store_failed_is_refused_as_not_done():
    store = _Store(StorageFailed("the disk is gone"))
    engine = _engine(store)
    running = asyncio.create_task(engine.run())
    await asyncio.wait_for(store.asked.wait(), 5)
    waiting = engine.submit(cmd.Pause("nightly", None))
    store.gate.set()
    with pytest.raises(StorageFailed):
        await asyncio.wait_for(running, 5)
    assert await _refusal(waiting) == "Draining"
