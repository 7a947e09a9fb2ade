"""A real workflow server, named by WORKFLOW_SERVER_URL, is held to the same contract.

Its deployments are those of the recordings, or what WORKFLOW_SERVER_ROLES says as JSON, role by role. Nothing here can
kill or restart it, so those tests skip.
"""

import json
import os

import pytest

from tests.conformance.server_contract import ServerContract
from tests.conformance.talk import ServerUnderTest

URL = os.environ.get("WORKFLOW_SERVER_URL")
USUAL_ROLES = {role: f"{role}.default" for role in ("hello", "fail", "approval", "slow", "unbound")}


if URL is None:
    pytest.skip("WORKFLOW_SERVER_URL names no server to test", allow_module_level=True)


class TestRealServer(ServerContract):
    @pytest.fixture
    async def server(self):
        roles = json.loads(os.environ.get("WORKFLOW_SERVER_ROLES", "null")) or USUAL_ROLES
        return ServerUnderTest(url=URL, roles=roles)
