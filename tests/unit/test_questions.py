"""One answer of the server about a deployment, for several who create at the same time."""

from rpc_client.errors import Answered, Refused
from scheduler_daemon.runtime.questions import AGREED_S, Questions

RUNNABLE = {"status": "runnable", "artifact_id": "art", "artifact_version": 1}
UNKNOWN = Refused(5000, "Application error", {"code": "KeyError", "message": "Deployment not found"})


class Server:
    """Answers `validate` with what it is told to, and counts."""

    def __init__(self, *says):
        self.says = list(says)
        self.asked = 0

    async def deployments_validate(self, _deployment_id):
        self.asked += 1
        said = self.says.pop(0)
        return said if isinstance(said, Refused) else Answered(said)

    async def artifacts_inspect(self, _artifact_id, _version):
        return Answered({"input_schema": {"type": "object"}})


def asking(server):
    return Questions(server, "http://server.example", lambda _root: None)


async def test_a_yes_is_good_for_whoever_comes_within_a_second():
    server = Server(RUNNABLE, {**RUNNABLE, "artifact_version": 2})
    questions = asking(server)
    first = await questions.agreed("dep", 100.0)
    assert await questions.agreed("dep", 100.0 + AGREED_S) == first
    assert server.asked == 1
    assert (await questions.agreed("dep", 100.1 + AGREED_S)).artifact_version == 2


async def test_a_no_is_asked_for_each_time():
    server = Server(UNKNOWN, {"status": "unrunnable"}, RUNNABLE)
    questions = asking(server)
    assert not (await questions.agreed("dep", 100.0)).known
    assert (await questions.agreed("dep", 100.0)).diagnostics
    assert (await questions.agreed("dep", 100.0)).artifact_id == "art"
    assert server.asked == 3


async def test_a_yes_about_one_deployment_says_nothing_about_another():
    server = Server(RUNNABLE, UNKNOWN)
    questions = asking(server)
    assert (await questions.agreed("dep", 100.0)).known
    assert not (await questions.agreed("other", 100.0)).known
