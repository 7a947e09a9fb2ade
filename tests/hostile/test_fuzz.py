"""Generated bodies against the real daemon: an answer or the right refusal for each, nothing in the log, memory flat.

`FUZZ_SEED` and `FUZZ_BODIES` choose others than the usual ones; a complaint names the number of its body.
"""

import os

import pytest

from scheduler_daemon.store import tools
from tests.hostile import judging
from tests.hostile.bodies import KINDS, MARK, body
from tests.hostile.siege import Siege
from tests.integration.process import Daemon, rows_of

SEED = int(os.environ.get("FUZZ_SEED", "20260101"))
GROWTH_KIB_MAX = 24 << 10
PEAK_KIB_MAX = 400 << 10
DEPLOYMENTS = """
[deployments."hello.default"]
[[deployments."hello.default".steps]]
argv = ["sh", "-c", "echo '{}'"]
"""


async def besiege(folder, count: int) -> Siege:
    """Send that many bodies to a daemon that has a schedule to keep, and look at everything but its memory."""
    async with Daemon(folder, deployments=DEPLOYMENTS) as daemon, daemon.app() as app:
        await app.create_schedule(
            schedule_id="minutely", deployment_id="hello.default", trigger={"kind": "cron", "expression": "* * * * *"}
        )
        siege = Siege(daemon, SEED, count)
        await siege.run()
        print(siege.told())
        assert siege.complaints == []
        rows = await rows_of(app, "minutely")
        assert {row["status"] for row in rows} <= {"admitted", "running", "completed"}
        assert len([row for row in rows if row["status"] == "completed"]) >= siege.took_s // 60 - 1
        assert await daemon.stop() == 0
        printed = daemon.log_path.read_text()
    assert "Traceback" not in printed
    assert MARK not in printed
    assert all(line.startswith("{") for line in printed.splitlines())
    assert [line for line in daemon.log() if line["action"] == "bug" or line["level"] == "error"] == []
    assert list(tools.verify(daemon.store).problems) == []
    return siege


async def test_whatever_is_sent_is_answered_or_refused_and_nothing_is_logged(tmp_path):
    await besiege(tmp_path, int(os.environ.get("FUZZ_BODIES", "3000")))


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_two_hundred_thousand_bodies_leave_the_daemon_as_it_was(tmp_path):
    siege = await besiege(tmp_path, int(os.environ.get("FUZZ_BODIES", "200000")))
    first, _, last = siege.thirds()
    assert last - first <= GROWTH_KIB_MAX
    assert max(siege.rss_kib) <= PEAK_KIB_MAX


# --- the generator and the judge --------------------------------------------------------------------------------------


def test_a_body_is_the_same_whenever_it_is_made_and_every_kind_is_among_them():
    made = [body(7, index) for index in range(3000)]
    assert made == [body(7, index) for index in range(3000)]
    assert {one.kind for one in made} == {kind.__name__ for kind in KINDS}
    assert len({one.text for one in made}) > 2500


def test_the_bodies_are_of_every_sort_for_another_reader_too():
    read = [judging.read(body(7, index).text) for index in range(3000)]
    unreadable = sum(value is judging.UNREADABLE for value in read)
    requests = sum(judging._is_request(value) for value in read if value is not judging.DOUBTFUL)
    assert 300 < unreadable < 1500
    assert 600 < requests < 2400


@pytest.mark.parametrize(
    ("text", "status", "answer"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', 500, b""),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', 204, b""),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', 200, b'{"jsonrpc":"2.0","id":2,"result":1}'),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', 200, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"x"}}'),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', 200, b'{"jsonrpc":"2.0","id":1,"result":NaN}'),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', 200, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}'),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', 200, b'[{"jsonrpc":"2.0","id":1,"result":1}]'),
        (b"{", 200, b'{"jsonrpc":"2.0","id":null,"result":1}'),
        (b'{"id":1,"id":1}', 200, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}'),
        (b"[1,2]", 200, b'[{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}]'),
        (b"x" * (1 << 20) + b"x", 200, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}'),
        (b"{", 413, b""),
    ],
)  # fmt: skip
def test_an_answer_that_is_wrong_would_be_noticed(text, status, answer):
    assert judging.complaint(text, status, answer) is not None
