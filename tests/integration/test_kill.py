"""`kill -9` right after `create` answered: nothing acknowledged is missing, nothing ran twice.

`KILLS` says how often (6 in `make test`).  The embedded server's children append to a file of the test, one line an execution.
"""

import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

from rpc_client.errors import Rejected
from tests.integration.process import Daemon, rows_of, until

KILLS = int(os.environ.get("KILLS", "6"))

FINAL = {"completed", "failed", "skipped-misfire", "superseded", "preflight-rejected"}


def _deployments(log):
    return f"""
[deployments."note.default"]
[[deployments."note.default".steps]]
argv = ["sh", "-c", "echo $WORKFLOW_INPUT >> {log}"]
"""


async def test_what_create_answered_survives_a_kill_at_a_random_moment(tmp_path):
    seed = int(os.environ.get("KILL_SEED", "1"))
    chance = random.Random(seed)
    executed = tmp_path / "executed.log"
    daemon = Daemon(tmp_path, deployments=_deployments(executed))
    acknowledged: dict[str, str] = {}
    for turn in range(KILLS):
        await daemon.start()
        async with daemon.app() as app:
            for number in range(chance.randint(1, 5)):
                schedule_id = f"s-{turn}-{number}"
                due = datetime.now(UTC) + timedelta(seconds=chance.uniform(0.02, 1.5))
                try:
                    await app.create_schedule(
                        schedule_id=schedule_id,
                        deployment_id="note.default",
                        trigger={"kind": "oneshot", "at": due.isoformat()},
                        input={"id": {"from": "schedule.id"}},
                    )
                except Rejected as refused:
                    if refused.code != "InvalidTrigger":
                        raise
                    continue  # a busy machine took longer to ask than the instant lay ahead
                acknowledged[schedule_id] = due.isoformat()
            if chance.random() < 0.5:
                await until(_after(chance.uniform(0.0, 0.4)))
        await daemon.kill()
    await daemon.start()
    async with daemon.app() as app:
        listed = [schedule async for schedule in app.schedules()]
        assert {schedule["schedule_id"] for schedule in listed} == set(acknowledged)
        histories = {}
        for schedule_id in acknowledged:
            histories[schedule_id] = await until(lambda name=schedule_id: _ended(app, name), seconds=90)
    await daemon.stop()
    times = (
        Counter(line.strip() for line in executed.read_text().splitlines() if line.strip()) if executed.exists() else {}
    )
    assert all(count == 1 for count in times.values()), times
    for rows in histories.values():
        assert sum(row["status"] in FINAL for row in rows) == 1, rows
        assert sum(row["status"] == "admitted" and row.get("reason") is None for row in rows) <= 1, rows
    ends = Counter(rows[-1]["status"] for rows in histories.values())
    print(f"seed {seed}: {KILLS} kills, {len(acknowledged)} acknowledged, {len(times)} executed, ends {dict(ends)}")


def _after(seconds):
    end = datetime.now(UTC) + timedelta(seconds=seconds)

    async def reached():
        return datetime.now(UTC) >= end

    return reached


async def _ended(app, schedule_id):
    rows = await rows_of(app, schedule_id)
    return rows if rows and rows[-1]["status"] in FINAL else None
