"""The look at a connection in the moment in which a request would leave by it."""

import asyncio
import socket

import pytest

from rpc_client.proof import CallProbe, Kept


class Line:
    """A connection between two ends of this process; `ours` is asyncio's, `theirs` is what a server would hold."""

    async def __aenter__(self):
        near, self.theirs = socket.socketpair()
        self.ours, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
        return self

    async def __aexit__(self, *_):
        self.ours.abort()
        self.theirs.close()

    def send(self, kept, *, spoken=False):
        """What became of one request on this connection."""
        probe = CallProbe()
        try:
            kept.send(self.ours, b"{}", probe, spoken=spoken)
        except ConnectionResetError:
            assert not probe.sent
        return probe

    def arrived(self):
        """What lies at the other end and has not been asked for yet."""
        self.theirs.setblocking(False)
        try:
            return self.theirs.recv(100)
        except BlockingIOError:
            return b""


async def test_a_new_connection_is_not_looked_at():
    async with Line() as line:
        line.theirs.send(b"a ticket of its own accord")
        probe = line.send(Kept())
    assert (probe.sent, probe.reused, probe.stale) == (True, False, False)


async def test_a_kept_connection_that_is_quiet_carries_another_request():
    kept = Kept()
    async with Line() as line:
        line.send(kept)
        probe = line.send(kept)
        assert line.arrived() == b"{}{}"
    assert (probe.sent, probe.reused, probe.stale) == (True, True, False)


@pytest.mark.parametrize("goodbye", [lambda end: end.shutdown(socket.SHUT_WR), lambda end: end.send(b"x")])
async def test_a_kept_connection_on_which_the_server_has_spoken_carries_nothing(goodbye):
    """The loop has not run since, so that nobody but this look can know."""
    kept = Kept()
    async with Line() as line:
        line.send(kept)
        goodbye(line.theirs)
        probe = line.send(kept)
        assert line.arrived() == b"{}"
    assert (probe.sent, probe.reused, probe.stale) == (False, True, True)


@pytest.mark.parametrize("used", [False, True])
async def test_what_was_read_from_a_kept_connection_already_counts_as_spoken(used):
    """A new one may have brought a greeting; what it is worth shows in the answer."""
    kept = Kept()
    async with Line() as line:
        if used:
            line.send(kept)
        probe = line.send(kept, spoken=True)
    assert (probe.sent, probe.stale) == (not used, used)


async def test_a_connection_that_the_loop_knows_to_be_closed_carries_nothing():
    async with Line() as line:
        line.ours.abort()
        probe = line.send(Kept())
        assert line.arrived() == b""
    assert (probe.sent, probe.stale) == (False, True)


async def test_a_server_that_is_not_trusted_gets_no_second_request_on_a_connection():
    kept = Kept()
    async with Line() as line:
        line.send(kept)
        kept.trusted = False
        probe = line.send(kept)
        assert line.arrived() == b"{}"
    assert (probe.sent, probe.stale) == (False, True)
