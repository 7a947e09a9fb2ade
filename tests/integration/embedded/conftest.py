"""A running embedded server: in this process, or in one that can be killed."""

import signal

import pytest

from scheduler_daemon.embedded.server import EmbeddedServer
from tests.embedded_process import EmbeddedProcess
from tests.integration.embedded.place import Client, Place


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
async def server(place):
    bugs = []
    server = EmbeddedServer(place.file, place.data, on_bug=lambda where, bug: bugs.append((where, bug)))
    await server.start()
    yield server
    await server.stop()
    assert bugs == []


@pytest.fixture
async def client(server):
    return Client(await server.start(), server.token)


@pytest.fixture
def process(place):
    process = EmbeddedProcess(place.file, place.data)
    process.start()
    yield process
    process.end(signal.SIGKILL)
