"""The face over real HTTP: every method reaches the service, every error has its shape, and the OpenRPC document is true."""

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import msgspec
import pytest

from scheduler_daemon.api import faults, methods, openrpc
from scheduler_daemon.api.http import ApiServer
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Cron, OneShot, Row
from scheduler_daemon.errors import ServerRefused
from tests.unit.face import DAILY, NIGHTLY, NOW, FaceOptions, FakeService, running

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def face():
    async with running() as face:
        yield face


async def create(face, **fields):
    return await face.result("workflow.schedules.create", {**NIGHTLY, **fields})


# --- methods ----------------------------------------------------------------------------------------------------------


async def test_create_answers_the_whole_schedule_with_warnings(face):
    made = await create(face, trigger={**DAILY, "expression": "0 9 1 * 1"})
    assert made["schedule_id"] == "nightly"
    assert made["trigger"] == {"kind": "cron", "expression": "0 9 1 * 1", "timezone": "Europe/Berlin"}
    assert len(made["next_instants"]) == 5
    assert "day_of_week" in made["warnings"][0]


async def test_create_hands_the_core_a_definition(face):
    await create(face, trigger={"kind": "oneshot", "at": "2030-01-31T09:00:00+01:00"}, misfire="latest")
    name, definition = face.service.calls[0]
    assert name == "create"
    assert definition.trigger == OneShot(at=datetime(2030, 1, 31, 8, tzinfo=UTC))
    assert definition.misfire == "latest"


async def test_update_hands_on_the_changes_only(face):
    await create(face)
    changed = await face.result(
        "workflow.schedules.update",
        {"schedule_id": "nightly", "expected_revision": 1, "lateness_s": 5, "trigger": None},
    )
    assert face.service.calls[-1] == ("update", "nightly", 1, {"lateness_s": 5})
    assert (changed["revision"], changed["lateness_s"]) == (2, 5)


async def test_an_update_of_the_trigger_arrives_as_one(face):
    await create(face)
    trigger = {"kind": "cron", "expression": "*/5 * * * *"}
    await face.result(
        "workflow.schedules.update", {"schedule_id": "nightly", "expected_revision": 1, "trigger": trigger}
    )
    assert face.service.calls[-1][3] == {"trigger": Cron(expression="*/5 * * * *", timezone="UTC")}


@pytest.mark.parametrize("verb", ["pause", "resume", "delete"])
async def test_pause_resume_and_delete_take_a_note_or_none(face, verb):
    await create(face)
    await face.result(f"workflow.schedules.{verb}", {"schedule_id": "nightly"})
    assert face.service.calls[-1] == (verb, "nightly", None)
    shown = await face.result(f"workflow.schedules.{verb}", {"schedule_id": "nightly", "note": "maintenance"})
    assert shown["note"] == "maintenance"


async def test_unblock_passes_the_note_on(face):
    await create(face)
    await face.result("workflow.schedules.unblock", {"schedule_id": "nightly", "note": "looked at it"})
    assert face.service.calls[-1] == ("unblock", "nightly", "looked at it")


async def test_list_has_defaults_and_passes_cursors_unchanged(face):
    await create(face)
    page = await face.result("workflow.schedules.list")
    assert [one["schedule_id"] for one in page["schedules"]] == ["nightly"]
    assert page["next_cursor"] == "more"
    asked = {
        "include_deleted": True,
        "deployment_id": "report.default",
        "state": "paused",
        "cursor": "more",
        "limit": 1,
    }
    assert (await face.result("workflow.schedules.list", asked))["next_cursor"] is None
    assert face.service.calls[-1] == ("list", asked)


async def test_occurrences_are_a_page_of_rows(face):
    await create(face)
    face.service.rows = [Row(n=2, schedule_id="nightly", status="completed", at=NOW, instant=NOW, run_id="run-000001")]
    page = await face.result("workflow.schedules.occurrences.list", {"schedule_id": "nightly", "limit": 3})
    assert face.service.calls[-1] == ("occurrences", "nightly", None, 3)
    assert page["occurrences"][0]["run_id"] == "run-000001"
    assert page["occurrences"][0]["instant"] == "2026-03-01T12:00:00Z"
    assert page["next_cursor"] is None


async def test_runs_are_inspected_resumed_and_abandoned(face):
    assert (await face.result("workflow.runs.inspect", {"run_id": "run-000001"}))["output"] == {"result": "hello"}
    face.service.gate.set()
    given = {"run_id": "run-000001", "resume_payload": {"approved": True}, "resume_outcome": "submitted"}
    assert (await face.result("workflow.runs.resume", given))["status"] == "completed"
    assert face.service.calls[-1] == ("resume_run", "run-000001", {"approved": True}, "submitted", True)
    assert (await face.result("workflow.runs.resume", {**given, "wait": False}))["status"] == "running"
    assert (await face.result("workflow.runs.abandon", {"run_id": "run-000001", "note": "n"}))["status"] == "failed"


async def test_health_is_the_services_own(face):
    assert (await face.result("workflow.health"))["store_root"] == "/srv/store"


async def test_params_may_be_absent_where_none_is_needed(face):
    answer = await face.post({"jsonrpc": "2.0", "id": 1, "method": "workflow.health"})
    assert answer.json["result"]["status"] == "ok"


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(faults.FAULTS))
async def test_each_application_error_is_5000_with_code_message_and_what_to_do(face, code):
    face.service.refusal = Rejected(code, "the reason", field="x", retry="no")
    error = await face.error("workflow.schedules.get", {"schedule_id": "nightly"})
    assert (error["code"], error["message"]) == (5000, "Workflow operation failed")
    assert error["data"] == {
        "code": code,
        "message": "the reason",
        "hint": faults.FAULTS[code].hint,
        "retryable": code in {"ServerUnavailable", "Draining", "StorageFull"},
        "field": "x",
        "retry": "no",
    }


async def test_details_of_a_refusal_cannot_change_its_code(face):
    face.service.refusal = Rejected("RunNotFound", "the reason", hint="none", retryable=True)
    data = (await face.error("workflow.schedules.get", {"schedule_id": "a"}))["data"]
    assert (data["code"], data["retryable"]) == ("RunNotFound", False)


def test_every_code_that_the_daemon_refuses_with_is_listed_and_every_listed_one_is_used():
    used = {
        code
        for path in (ROOT / "scheduler_daemon").rglob("*.py")
        for code in re.findall(r'Rejected\(\s*"(\w+)"', path.read_text("utf-8"))
    }
    assert used == set(faults.FAULTS)


def test_the_errors_that_the_document_promises_are_all_listed():
    assert {code for entry in methods.TABLE for code in entry.codes} == set(faults.FAULTS)


async def test_what_the_server_refused_is_passed_on_as_it_came(face):
    data = {"code": "KeyError", "message": "\"unknown workflow run 'run-9'\""}
    face.service.refusal = ServerRefused(5000, "Workflow operation failed", data)
    error = await face.error("workflow.runs.inspect", {"run_id": "run-9"})
    assert error == {"code": 5000, "message": "Workflow operation failed", "data": data}
    face.service.refusal = ServerRefused(-32603, "Internal error")
    assert await face.error("workflow.runs.inspect", {"run_id": "run-9"}) == {
        "code": -32603,
        "message": "Internal error",
    }


async def test_an_unknown_method_is_32601(face):
    assert await face.error("workflow.schedules.explode") == {"code": -32601, "message": "Method not found"}


async def test_an_unknown_param_is_32602_and_named(face):
    error = await face.error("workflow.schedules.get", {"schedule_id": "a", "verbose": True})
    assert (error["code"], error["message"]) == (-32602, "Invalid params")
    assert error["data"]["errors"] == [
        {"type": "extra_forbidden", "loc": ["verbose"], "msg": "Extra inputs are not permitted", "input": True}
    ]


async def test_positional_params_are_32602(face):
    assert (await face.error("workflow.schedules.get", ["nightly"]))["code"] == -32602


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"workflow.health","id":2}', -32700),
        (b"[" * 33 + b"]" * 33, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"workflow.health","params":{"a":NaN}}', -32700),
        (b'{"jsonrpc":"1.0","id":1,"method":"workflow.health"}', -32600),
        (b'{"id":1}', -32600),
        (b"[]", -32600),
        (b'""', -32600),
        (b"", -32700),
    ],
)
async def test_what_is_no_request_is_answered_as_json_rpc_over_http_200(face, body, code):
    answer = await face.post(body)
    assert answer.status == 200
    assert answer.json["error"]["code"] == code
    assert answer.json["id"] is None


async def test_a_bug_tells_the_caller_nothing_and_the_log_everything(face, monkeypatch):
    said = []
    monkeypatch.setattr("scheduler_daemon.api.http.log", lambda *args, **fields: said.append((args, fields)))
    face.service.refusal = RuntimeError("the secret is 4711")
    answer = await face.post({"jsonrpc": "2.0", "id": 1, "method": "workflow.health"})
    assert answer.json["error"] == {"code": -32603, "message": "Internal error"}
    assert b"4711" not in answer.body
    (args, fields) = said[0]
    assert args == ("bug", "error")
    assert fields["method"] == "workflow.health"
    assert str(fields["exc_info"]) == "the secret is 4711"


@pytest.mark.parametrize("bad", ["../x", "", "a" * 200, "a\n", "a/b"])
@pytest.mark.parametrize(
    ("method", "beside"),
    [
        ("create", {"deployment_id": "d", "trigger": DAILY}),
        ("get", {}),
        ("update", {"expected_revision": 1}),
        ("pause", {}),
        ("resume", {}),
        ("delete", {}),
        ("unblock", {"note": "n"}),
        ("occurrences.list", {}),
    ],
)
async def test_a_bad_id_is_refused_by_name_before_the_service_sees_it(face, method, beside, bad):
    error = await face.error(f"workflow.schedules.{method}", {"schedule_id": bad, **beside})
    assert error["data"]["code"] == "InvalidScheduleId"
    assert error["data"]["field"] == "schedule_id"
    assert face.service.calls == []


@pytest.mark.parametrize("note", ["a\nb", "\x1b[2J", "\u202e"])
@pytest.mark.parametrize(
    "method", ["schedules.pause", "schedules.resume", "schedules.delete", "schedules.unblock", "runs.abandon"]
)
async def test_a_note_with_control_characters_is_refused_by_its_field(face, method, note):
    about = {"run_id": "run-000001"} if method.startswith("runs") else {"schedule_id": "nightly"}
    error = await face.error(f"workflow.{method}", {**about, "note": note})
    assert (error["data"]["code"], error["data"]["field"]) == ("InvalidInput", "note")
    assert face.service.calls == []


@pytest.mark.parametrize(
    ("trigger", "field"),
    [
        ({"kind": "oneshot", "at": "2030-01-31T09:00:00"}, "trigger.at"),
        ({"kind": "oneshot", "at": "2020-01-31T09:00:00Z"}, "trigger.at"),
        ({"kind": "cron", "expression": "0 9 * * *", "timezone": "Mars/Olympus"}, "trigger.timezone"),
        ({"kind": "cron", "expression": "0 0 9 * * *"}, "trigger.expression"),
        ({"kind": "cron", "expression": "R * * * *"}, "trigger.expression"),
        ({"kind": "cron", "expression": "5-5 * * * *"}, "trigger.expression"),
        ({"kind": "cron", "expression": "0 0 31 2 *"}, "trigger.expression"),
        ({"kind": "cron", "expression": "*" * 300}, "trigger.expression"),
    ],
)
async def test_a_trigger_that_makes_no_sense_is_refused_with_its_field_and_a_reason(face, trigger, field):
    data = (await face.error("workflow.schedules.create", {**NIGHTLY, "trigger": trigger}))["data"]
    assert (data["code"], data["field"]) == ("InvalidTrigger", field)
    assert data["reason"]
    assert face.service.views == {}


# --- notifications and batches ----------------------------------------------------------------------------------------


async def test_a_notification_is_carried_out_and_answered_with_204(face):
    answer = await face.post({"jsonrpc": "2.0", "method": "workflow.schedules.create", "params": NIGHTLY})
    assert (answer.status, answer.body) == (204, b"")
    assert "nightly" in face.service.views


async def test_a_batch_is_answered_in_order_without_its_notifications(face):
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "workflow.schedules.create", "params": NIGHTLY},
        {"jsonrpc": "2.0", "method": "workflow.schedules.pause", "params": {"schedule_id": "nightly"}},
        {"jsonrpc": "2.0", "id": 2, "method": "workflow.schedules.get", "params": {"schedule_id": "nightly"}},
        {"jsonrpc": "2.0", "id": 3, "method": "nothing"},
        7,
    ]
    answers = (await face.post(batch)).json
    assert [answer["id"] for answer in answers] == [1, 2, 3, None]
    assert answers[1]["result"]["state"] == "paused"
    assert [answers[2]["error"]["code"], answers[3]["error"]["code"]] == [-32601, -32600]


async def test_a_batch_of_notifications_alone_is_204(face):
    answer = await face.post([{"jsonrpc": "2.0", "method": "workflow.health"}] * 2)
    assert answer.status == 204


async def test_a_batch_of_51_is_refused_whole(face):
    answer = await face.post([{"jsonrpc": "2.0", "id": n, "method": "workflow.health"} for n in range(51)])
    assert answer.json["error"]["code"] == -32600
    assert face.service.calls == []


# --- a caller that goes away ------------------------------------------------------------------------------------------


async def test_a_caller_that_closes_its_connection_cancels_its_resume(face):
    body = {"jsonrpc": "2.0", "id": 1, "method": "workflow.runs.resume", "params": {"run_id": "run-000001"}}
    waiting = asyncio.create_task(face.post(body))
    await asyncio.wait_for(face.service.entered.wait(), 10)
    waiting.cancel()
    assert await asyncio.wait_for(face.service.left, 10) == "cancelled"


async def test_a_caller_that_half_closes_is_still_answered_or_cancelled_never_forgotten(face):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "workflow.runs.resume", "params": {"run_id": "run-000001"}})
    _, writer = await asyncio.open_connection("127.0.0.1", face.port)
    writer.write(
        f"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    await asyncio.wait_for(face.service.entered.wait(), 10)
    writer.write_eof()
    face.service.gate.set()
    assert await asyncio.wait_for(face.service.left, 10) in {"cancelled", "answered"}
    writer.close()


# --- what is read without JSON-RPC ------------------------------------------------------------------------------------


async def test_healthz_says_that_it_is_alive(face):
    answer = await face.get("/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


async def test_readyz_shows_each_check_and_is_503_when_one_fails(face):
    assert (await face.get("/readyz")).json == {
        "ready": True,
        "checks": [{"name": "lock", "ok": True, "figure": "held"}, {"name": "server", "ok": True, "figure": "up"}],
    }
    face.service.ready[1] = msgspec.structs.replace(face.service.ready[1], ok=False, figure="refused")
    answer = await face.get("/readyz")
    assert (answer.status, answer.json["ready"]) == (503, False)
    assert answer.json["checks"][1] == {"name": "server", "ok": False, "figure": "refused"}


async def test_metrics_are_the_figures_of_this_moment(face):
    await face.result("workflow.health")
    answer = await face.get("/metrics")
    lines = answer.body.decode().splitlines()
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'scheduler_schedules{state="active"} 2.0' in lines
    assert 'scheduler_decisions_total{reason="no-slot",status="skipped-misfire"} 1.0' in lines
    assert "scheduler_overdue_seconds 0.25" in lines
    assert "scheduler_server_up 1.0" in lines
    assert 'scheduler_dispatch_lateness_seconds_bucket{le="0.0025"} 0.0' in lines
    assert 'scheduler_dispatch_lateness_seconds_bucket{le="0.005"} 1.0' in lines
    assert 'scheduler_dispatch_lateness_seconds_bucket{le="+Inf"} 1.0' in lines
    assert "scheduler_commit_seconds_count 1.0" in lines
    assert "scheduler_http_connections 1.0" in lines
    assert 'scheduler_http_responses_total{route="/rpc",status="200"} 1.0' in lines


async def test_paths_that_do_not_exist_share_one_label(face):
    for n in range(3):
        assert (await face.get(f"/{n}")).status == 404
    assert b'route="other",status="404"} 3.0' in (await face.get("/metrics")).body


@pytest.mark.parametrize(("path", "status"), [("/rpc", 405), ("/", 404), ("/rpc/", 404), ("/metrics/x", 404)])
async def test_other_paths_and_verbs_are_refused(face, path, status):
    assert (await face.get(path)).status == status


async def test_responses_do_not_say_what_they_are_built_with(face):
    assert (await face.get("/healthz")).headers["Server"] == "scheduler-daemon"


# --- OpenRPC ----------------------------------------------------------------------------------------------------------


async def test_discover_and_openrpc_json_are_one_document(face):
    served = (await face.get("/openrpc.json")).json
    assert served == await face.result("rpc.discover")
    assert served["openrpc"] == "1.3.2"
    assert {method["name"] for method in served["methods"]} == {entry.method.name for entry in methods.TABLE} | {
        "rpc.discover"
    }


DOCUMENT = json.loads(openrpc.with_discovery(methods.TABLE)[1])
DESCRIBED = {method["name"]: method for method in DOCUMENT["methods"]}


def fits(schema, value) -> bool:
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator.check_schema(whole)
    return jsonschema.Draft202012Validator(whole).is_valid(value)


def params_fit(method, params) -> bool:
    described = {one["name"]: one for one in DESCRIBED[method]["params"]}
    required = {name for name, one in described.items() if one["required"]}
    return required <= params.keys() <= described.keys() and all(
        fits(described[n]["schema"], v) for n, v in params.items()
    )


WHOLE = {
    "input": {"a": {"value": {"deep": [1]}}, "b": {"from": "occurrence.instant"}},
    "overlap": "parallel",
    "max_active_runs": 2,
    "misfire": "latest",
    "lateness_s": 5,
    "hold_unknown_s": 1.5,
    "run_timeout_s": 60,
}
ONCE = {"kind": "oneshot", "at": "2030-01-31T09:00:00+01:00"}
TAKEN = [
    ("workflow.schedules.create", NIGHTLY),
    ("workflow.schedules.create", {**NIGHTLY, **WHOLE}),
    (
        "workflow.schedules.create",
        {**NIGHTLY, "trigger": ONCE, "max_active_runs": None, "lateness_s": None, "max_steps": None},
    ),
    ("workflow.schedules.get", {"schedule_id": "nightly"}),
    ("workflow.schedules.list", {}),
    ("workflow.schedules.list", {"include_deleted": True, "state": "paused", "cursor": None, "limit": 1000}),
    ("workflow.schedules.update", {"schedule_id": "nightly", "expected_revision": 1, **WHOLE}),
    ("workflow.schedules.update", {"schedule_id": "nightly", "expected_revision": 1, **dict.fromkeys(WHOLE)}),
    ("workflow.schedules.pause", {"schedule_id": "nightly", "note": "n"}),
    ("workflow.schedules.resume", {"schedule_id": "nightly", "note": None}),
    ("workflow.schedules.delete", {"schedule_id": "nightly"}),
    ("workflow.schedules.unblock", {"schedule_id": "nightly", "note": "n"}),
    ("workflow.schedules.occurrences.list", {"schedule_id": "nightly", "cursor": "c", "limit": 100}),
    ("workflow.runs.inspect", {"run_id": "run-000001"}),
    (
        "workflow.runs.resume",
        {"run_id": "run-000001", "resume_payload": {"a": 1}, "resume_outcome": "o", "wait": False},
    ),
    ("workflow.runs.abandon", {"run_id": "run-000001", "note": "n"}),
    ("workflow.health", {}),
    ("rpc.discover", {}),
]
REFUSED = [
    ("workflow.schedules.create", {**NIGHTLY, "schedule_id": "../x"}),
    ("workflow.schedules.create", {**NIGHTLY, "overlap": "queue"}),
    ("workflow.schedules.create", {**NIGHTLY, "lateness_s": 0}),
    ("workflow.schedules.create", {**NIGHTLY, "run_timeout_s": "1"}),
    ("workflow.schedules.create", {**NIGHTLY, "trigger": {"kind": "interval"}}),
    ("workflow.schedules.create", {**NIGHTLY, "trigger": {**DAILY, "at": "x"}}),
    ("workflow.schedules.create", {**NIGHTLY, "input": {"a": 1}}),
    ("workflow.schedules.create", {**NIGHTLY, "input": {"a": {"from": "nothing"}}}),
    ("workflow.schedules.create", {**NIGHTLY, "input": {"a": {"from": "run.id", "value": 1}}}),
    ("workflow.schedules.create", {**NIGHTLY, "extra": 1}),
    ("workflow.schedules.create", {"schedule_id": "a", "trigger": DAILY}),
    ("workflow.schedules.update", {"schedule_id": "nightly"}),
    ("workflow.schedules.update", {"schedule_id": "nightly", "expected_revision": 0}),
    ("workflow.schedules.list", {"limit": 1001}),
    ("workflow.schedules.list", {"state": "busy"}),
    ("workflow.schedules.pause", {"schedule_id": "nightly", "note": "n" * 1001}),
    ("workflow.schedules.unblock", {"schedule_id": "nightly"}),
    ("workflow.schedules.occurrences.list", {"schedule_id": "nightly", "limit": 101}),
    ("workflow.runs.inspect", {"run_id": "a\n"}),
    ("workflow.runs.resume", {"run_id": "run-000001", "wait": "no"}),
    ("workflow.runs.abandon", {"run_id": "run-000001"}),
    ("workflow.health", {"verbose": True}),
]


def test_every_method_is_among_the_examples():
    assert {method for method, _ in TAKEN} == set(DESCRIBED)


@pytest.mark.parametrize(("method", "params"), TAKEN)
async def test_what_the_document_permits_is_taken_and_its_result_is_as_described(face, method, params):
    assert params_fit(method, params)
    face.service.gate.set()
    if method != "workflow.schedules.create":
        await create(face)
    result = await face.result(method, params)
    assert fits(DESCRIBED[method]["result"]["schema"], result)


@pytest.mark.parametrize(("method", "params"), REFUSED)
async def test_what_the_document_forbids_is_refused(face, method, params):
    assert not params_fit(method, params)
    await create(face)
    error = await face.error(method, params)
    assert error["code"] in {-32602, 5000}


async def test_a_summary_row_and_a_plain_row_are_as_described(face):
    await create(face)
    face.service.rows = [
        Row(n=2, schedule_id="nightly", status="skipped-misfire", at=NOW, first_instant=NOW, last_instant=NOW, count=7),
        Row(
            n=3, schedule_id="nightly", status="failed", at=NOW, instant=NOW, reason="outcome-unknown", detail={"a": 1}
        ),
    ]
    page = await face.result("workflow.schedules.occurrences.list", {"schedule_id": "nightly"})
    assert page["occurrences"][0]["count"] == 7
    assert fits(DESCRIBED["workflow.schedules.occurrences.list"]["result"]["schema"], page)


# --- start and stop ---------------------------------------------------------------------------------------------------


async def test_stop_may_come_before_start_and_twice():
    server = ApiServer(FakeService(), FaceOptions())
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()


async def test_after_stop_nobody_listens():
    async with running() as face:
        await face.result("workflow.health")
    with pytest.raises(OSError, match=r"Connect|refused"):
        await asyncio.open_connection("127.0.0.1", face.port)


async def test_a_call_that_does_not_end_is_cancelled_by_stop(monkeypatch):
    monkeypatch.setattr("scheduler_daemon.limits.STOP_S", 0.1)
    async with running() as face:
        body = {"jsonrpc": "2.0", "id": 1, "method": "workflow.runs.resume", "params": {"run_id": "run-000001"}}
        waiting = asyncio.create_task(face.post(body))
        await asyncio.wait_for(face.service.entered.wait(), 10)
        await asyncio.wait_for(face.server.stop(), 10)
        assert await face.service.left == "cancelled"
        waiting.cancel()
        await asyncio.wait({waiting})
