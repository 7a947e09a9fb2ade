"""The fake workflow server is held to the same contract as a real one, plain and keyed."""

import pytest

from tests.conformance.server_contract import ServerContract
from tests.conformance.talk import ServerUnderTest
from tests.fakes.http import face_of
from tests.fakes.server import IDEMPOTENT_START, MAX_STEPS, FakeWorkflowServer

ROLES = {role: f"{role}.default" for role in ("hello", "fail", "approval", "slow", "unbound", "steps")}


async def served(fake):
    async with face_of(fake) as face:
        yield ServerUnderTest(url=face.url, roles=ROLES, kill=face.kill, restart=face.restart)


class TestPlainFake(ServerContract):
    @pytest.fixture
    async def server(self):
        async for server in served(FakeWorkflowServer()):
            yield server


class TestKeyedFake(ServerContract):
    @pytest.fixture
    async def server(self):
        async for server in served(FakeWorkflowServer(features={IDEMPOTENT_START, MAX_STEPS})):
            yield server
