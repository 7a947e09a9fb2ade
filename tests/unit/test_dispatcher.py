"""In which order, and how many at a time, calls that execute begin; and what becomes of one whose turn has not come."""

import asyncio
from datetime import UTC, datetime

import pytest

from rpc_client.errors import Answered
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.runtime.dispatcher import UNSENT_MAX, Dispatcher

AT = datetime(2026, 1, 5, 9, tzinfo=UTC)
MANY = 3 * UNSENT_MAX


class Server:
    """A client whose calls get a connection, and an answer, when the test says so."""

    def __init__(self):
        self.connecting, self.waiting, self.all_begun = {}, {}, asyncio.Event()

    async def runs_start(self, deployment_id, workflow_input, *, idempotency_key, probe, **_options):
        self.connecting[idempotency_key] = probe, (may_send := asyncio.Event())
        if len(self.connecting) == MANY:
            self.all_begun.set()
        await may_send.wait()
        probe.sent = True
        probe.on_sent()
        self.waiting[idempotency_key] = answered = asyncio.Event()
        await answered.wait()
        return Answered({"status": "completed"})

    def let_send(self, count):
        for key in list(self.connecting)[:count]:
            self.connecting.pop(key)[1].set()

    def answer(self):
        for answered in self.waiting.values():
            answered.set()


class Stage:
    def __init__(self, count=MANY):
        self.server, self.reports = Server(), []
        self.dispatcher = Dispatcher(self.server, None, None, self.reports.append)  # no question is asked here
        for seq in range(count):
            self.dispatcher.perform(start(seq))

    @property
    def order(self):
        return [*self.server.waiting, *self.server.connecting]


def start(seq):
    return cmd.StartCall(
        seq=seq, run_id=f"run-{seq}", schedule_id="s", instant=AT, deployment_id="d", input={}, key=f"{seq}",
        max_steps=None, timeout_s=None, repeat=False
    )  # fmt: skip


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def stage():
    made = Stage()
    await settled()
    yield made
    await made.dispatcher.fence()


async def test_no_more_than_a_few_get_a_connection_at_once(stage):
    assert len(stage.server.connecting) == UNSENT_MAX
    assert stage.dispatcher.open_calls == MANY


async def test_each_request_that_leaves_lets_the_next_call_begin_in_order(stage):
    for _ in range(3):
        stage.server.let_send(UNSENT_MAX)
        await settled()
    assert stage.order == [f"{seq}" for seq in range(MANY)]


async def test_an_open_answer_keeps_no_other_call_from_beginning(stage):
    for _ in range(3):
        stage.server.let_send(UNSENT_MAX)
        await settled()
    assert len(stage.server.waiting) == MANY
    assert stage.reports == []


async def test_a_server_that_takes_no_connection_holds_nobody_up_for_long(stage):
    async with asyncio.timeout(5):
        await stage.server.all_begun.wait()
    assert stage.order == [f"{seq}" for seq in range(MANY)]


async def test_where_hardly_any_leaves_more_and_more_begin_at_a_time():
    stage = Stage(10 * MANY)
    most = []
    async with asyncio.timeout(5):
        while len(stage.server.connecting) < 10 * MANY:
            begun = len(stage.server.connecting)
            if begun and begun not in most:
                most.append(begun)
            await asyncio.sleep(0.001)
    assert most == [UNSENT_MAX << doubled for doubled in range(len(most))]
    await stage.dispatcher.fence()


async def test_the_next_crowd_begins_with_few_again(stage):
    await asyncio.wait_for(stage.server.all_begun.wait(), 5)
    stage.server.let_send(MANY)
    await settled()
    for seq in range(MANY, 2 * MANY):
        stage.dispatcher.perform(start(seq))
    await settled()
    assert len(stage.server.connecting) == UNSENT_MAX


async def test_one_that_ends_without_a_connection_makes_room(stage):
    stage.dispatcher.cancel(0, "caller-gone")
    await settled()
    assert f"{UNSENT_MAX}" in stage.server.connecting


async def test_one_whose_turn_has_not_come_is_cut_off_as_not_sent(stage):
    stage.dispatcher.cancel(MANY - 1, "caller-gone")
    assert [(type(report), report.seq) for report in stage.reports] == [(cmd.CallNotSent, MANY - 1)]
    assert stage.dispatcher.open_calls == MANY - 1


async def test_a_drain_waits_for_those_whose_turn_has_not_come_too(stage):
    drained = asyncio.create_task(stage.dispatcher.drained())
    for _ in range(3):
        stage.server.let_send(UNSENT_MAX)
        await settled()
        assert not drained.done()
        stage.server.answer()
        await settled()
    await asyncio.wait_for(drained, 5)
    assert len(stage.reports) == MANY


async def test_the_fence_begins_nothing_more_and_says_nothing(stage):
    await stage.dispatcher.fence()
    await settled()
    assert stage.dispatcher.open_calls == 0
    assert len(stage.order) == UNSENT_MAX
    assert stage.reports == []
