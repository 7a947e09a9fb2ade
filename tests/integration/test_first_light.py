"""The main job, end to end, in the real process: what an operator would see on the first evening."""

from datetime import UTC, datetime, timedelta

import pytest

from rpc_client.errors import RpcError
from tests.integration.process import HELLO, Daemon, rows_of, until

LATER = "2060-01-01T00:00:00Z"


async def _final(app, schedule_id):
    rows = await rows_of(app, schedule_id)
    return rows if rows and rows[-1]["status"] in ("completed", "failed", "preflight-rejected") else None


async def test_a_one_shot_half_a_second_ahead_runs_and_its_history_shows_it(tmp_path):
    async with Daemon(tmp_path, deployments=HELLO) as daemon, daemon.app() as app:
        due = datetime.now(UTC) + timedelta(seconds=0.5)
        await app.create_schedule(
            schedule_id="hello-once",
            deployment_id="scheduled_hello.default",
            trigger={"kind": "oneshot", "at": due.isoformat()},
        )
        rows = await until(lambda: _final(app, "hello-once"))
        assert [row["status"] for row in rows] == ["admitted", "running", "completed"]
        run_id = rows[-1]["run_id"]
        assert run_id == "run-000001"
        inspected = await app.inspect_run(run_id)
        assert inspected["status"] == "completed"
        assert inspected["output"] == {"result": "hello on a schedule"}
        assert (await app.get_schedule("hello-once"))["state"] == "finished"
        assert await daemon.stop() == 0


async def test_history_survives_a_kill_and_a_restart(tmp_path):
    async with Daemon(tmp_path, deployments=HELLO) as daemon:
        async with daemon.app() as app:
            due = datetime.now(UTC) + timedelta(seconds=1)
            await app.create_schedule(
                schedule_id="once",
                deployment_id="scheduled_hello.default",
                trigger={"kind": "oneshot", "at": due.isoformat()},
            )
            before = await until(lambda: _final(app, "once"))
        await daemon.kill()
        await daemon.start()
        async with daemon.app() as app:
            assert await rows_of(app, "once") == before
            assert (await app.inspect_run("run-000001"))["status"] == "completed"


def _cron(expression, timezone="UTC"):
    return {"trigger": {"kind": "cron", "expression": expression, "timezone": timezone}}


def _oneshot(at):
    return {"trigger": {"kind": "oneshot", "at": at}}


REFUSED = {
    "a naive time": (_oneshot("2060-01-01T00:00:00"), "InvalidTrigger", "trigger.at"),
    "a one-shot in the past": (_oneshot("2020-01-01T00:00:00Z"), "InvalidTrigger", "trigger.at"),
    "an unknown zone": (_cron("0 9 * * *", "Mars/Olympus"), "InvalidTrigger", "trigger.timezone"),
    "six fields": (_cron("0 0 9 * * *"), "InvalidTrigger", "trigger.expression"),
    "R": (_cron("R * * * *"), "InvalidTrigger", "trigger.expression"),
    "5-5": (_cron("5-5 * * * *"), "InvalidTrigger", "trigger.expression"),
    "the 31st of February": (_cron("0 0 31 2 *"), "InvalidTrigger", "trigger.expression"),
    "300 characters": (_cron("0 9 * * " + ",".join(["1"] * 146)), "InvalidTrigger", "trigger.expression"),
    "a path for an id": ({"schedule_id": "../x"}, "InvalidScheduleId", "schedule_id"),
    "an empty id": ({"schedule_id": ""}, "InvalidScheduleId", "schedule_id"),
    "an id of 200 characters": ({"schedule_id": "x" * 200}, "InvalidScheduleId", "schedule_id"),
    "an unknown deployment": ({"deployment_id": "nope"}, "DeploymentNotFound", "deployment_id"),
    "input against the schema": ({"input": {"who": {"value": 7}}}, "InvalidInput", "input"),
}

STRICT = (
    HELLO
    + """
[deployments."strict.default"]
input_schema = { type = "object", properties = { who = { type = "string" } }, required = ["who"] }
[[deployments."strict.default".steps]]
argv = ["true"]
"""
)


async def test_create_refuses_by_code_field_and_reason_and_leaves_nothing_on_disk(tmp_path):
    good = {
        "schedule_id": "fresh",
        "deployment_id": "strict.default",
        "trigger": {"kind": "oneshot", "at": LATER},
        "input": {"who": {"value": "world"}},
    }
    async with Daemon(tmp_path, deployments=STRICT) as daemon:
        async with daemon.app() as app:
            for what, (change, code, field) in REFUSED.items():
                with pytest.raises(RpcError) as refused:
                    await app.create_schedule(**{**good, **change})
                assert (refused.value.code, refused.value.data.get("field")) == (code, field), what
                assert refused.value.message, what
            assert (await app.list_schedules(include_deleted=True))["schedules"] == []
        await daemon.stop()
    for path in daemon.store.rglob("*"):
        assert not path.is_file() or b"ScheduleCreated" not in path.read_bytes(), path


async def test_an_unknown_param_is_refused_by_name(tmp_path, post):
    async with Daemon(tmp_path, deployments=HELLO) as daemon:
        answer = await post(
            daemon.url,
            "workflow.schedules.create",
            {"schedule_id": "a", "deployment_id": "d", "trigger": {"kind": "oneshot", "at": LATER}, "colour": "red"},
        )
    assert answer["error"]["code"] == -32602
    assert answer["error"]["data"]["errors"][0]["loc"] == ["colour"]


async def test_with_the_server_down_create_fails_by_name_and_stores_nothing(tmp_path):
    async with Daemon(tmp_path, server="http://127.0.0.1:9/rpc") as daemon, daemon.app() as app:
        with pytest.raises(RpcError) as refused:
            await app.create_schedule(schedule_id="a", deployment_id="d", trigger={"kind": "oneshot", "at": LATER})
        assert refused.value.code == "ServerUnavailable"
        assert (await app.list_schedules())["schedules"] == []
