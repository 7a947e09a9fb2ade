"""`App`: what it asks the daemon, what it raises, and what it tries again."""

import asyncio
import inspect
import json
import re
from contextlib import AsyncExitStack

import pytest

import rpc_client.schedules
from rpc_client import AmbiguousOutcome, App, Rejected, RpcError, Unavailable
from scheduler_daemon.api import methods
from tests.fakes.raw import http_answer, raw_server


class Daemon:
    """Answers each call with what the test scripted for it, by method."""

    def __init__(self, **by_method):
        self.by_method = {name.replace("__", "."): list(says) for name, says in by_method.items()}
        self.calls: list[tuple[str, dict]] = []

    async def __call__(self, _reader, writer, request):
        self.calls.append((request["method"], request["params"]))
        said = self.by_method[request["method"]].pop(0)
        if isinstance(said, bytes):
            writer.write(said)
            return
        member = "error" if "code" in said and "message" in said else "result"
        writer.write(http_answer(json.dumps({"jsonrpc": "2.0", "id": request["id"], member: said}).encode()))
        await writer.drain()


def failed(code: str, **more) -> dict:
    return {"code": 5000, "message": "Workflow operation failed", "data": {"code": code, "message": "why", **more}}


PASSED_ON = {"trace_range"}
"""What means something only to a workflow server behind a gateway; `WorkflowClient` has it."""


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses that were asked for; none is taken."""
    asked: list[float] = []

    async def note(delay_s):
        asked.append(delay_s)

    monkeypatch.setattr(rpc_client.schedules.asyncio, "sleep", note)
    return asked


EVERY_CALL = {
    "workflow.schedules.create": (
        lambda app: app.create_schedule(
            schedule_id="s", deployment_id="d", trigger={"kind": "cron", "expression": "0 9 * * *"}, misfire="latest"
        ),
        {
            "schedule_id": "s",
            "deployment_id": "d",
            "trigger": {"kind": "cron", "expression": "0 9 * * *"},
            "misfire": "latest",
        },
    ),
    "workflow.schedules.get": (lambda app: app.get_schedule("s"), {"schedule_id": "s"}),
    "workflow.schedules.list": (lambda app: app.list_schedules(state="paused"), {"state": "paused"}),
    "workflow.schedules.update": (
        lambda app: app.update_schedule(schedule_id="s", expected_revision=3, input={}),
        {"schedule_id": "s", "expected_revision": 3, "input": {}},
    ),
    "workflow.schedules.pause": (lambda app: app.pause_schedule("s", note="n"), {"schedule_id": "s", "note": "n"}),
    "workflow.schedules.resume": (lambda app: app.resume_schedule("s"), {"schedule_id": "s"}),
    "workflow.schedules.delete": (lambda app: app.delete_schedule("s"), {"schedule_id": "s"}),
    "workflow.schedules.unblock": (lambda app: app.unblock_schedule("s", note="n"), {"schedule_id": "s", "note": "n"}),
    "workflow.schedules.occurrences.list": (
        lambda app: app.list_schedule_occurrences("s", cursor="c", limit=5),
        {"schedule_id": "s", "cursor": "c", "limit": 5},
    ),
    "workflow.runs.inspect": (lambda app: app.inspect_run("run-000001"), {"run_id": "run-000001"}),
    "workflow.runs.resume": (
        lambda app: app.resume_run("run-000001", resume_payload={"ok": True}, wait=False),
        {"run_id": "run-000001", "resume_payload": {"ok": True}, "wait": False},
    ),
    "workflow.runs.abandon": (
        lambda app: app.abandon_run("run-000001", note="n"),
        {"run_id": "run-000001", "note": "n"},
    ),
    "workflow.health": (lambda app: app.health(), {}),
    "rpc.discover": (lambda app: app.discover(), {}),
}


FACE = {entry.method.name: entry for entry in methods.TABLE}
EVERYWHERE = {"Draining", "StorageFull"}
"""Told once at the head of the module, as something that any change may end with."""


def function_of(method: str):
    """The function of `App` that calls a method."""
    called = EVERY_CALL[method][0].__code__.co_names
    return next(getattr(App, name) for name in called if hasattr(App, name))


@pytest.mark.parametrize("method", FACE)
def test_the_docstring_of_each_function_lists_the_codes_that_its_method_promises(method):
    listed = inspect.cleandoc(function_of(method).__doc__).partition("Codes:")[2]
    assert set(re.findall(r"`(\w+)`", listed)) == set(FACE[method].codes) - EVERYWHERE
    changes = set(FACE[method].codes) >= EVERYWHERE
    assert changes is FACE[method].method.mutates


@pytest.mark.parametrize("method", FACE)
def test_each_function_takes_exactly_the_params_of_its_method(method):
    described = set(FACE[method].method.params.__struct_fields__)
    assert set(inspect.signature(function_of(method)).parameters) - {"self"} == described - PASSED_ON


@pytest.mark.parametrize(("method", "call"), EVERY_CALL.items(), ids=EVERY_CALL)
async def test_a_method_sends_what_was_given_and_returns_the_payload(method, call):
    calling, params = call
    daemon = Daemon(**{method.replace(".", "__"): [{"answer": 1}]})
    async with raw_server(daemon) as server, App(server.url) as app:
        assert await calling(app) == {"answer": 1}

    assert daemon.calls == [(method, params)]


@pytest.mark.parametrize(
    ("said", "kind", "code"),
    [
        (failed("ScheduleNotFound"), Rejected, "ScheduleNotFound"),
        (failed("RevisionConflict", revision=4), Rejected, "RevisionConflict"),
        (failed("AttemptAmbiguous"), Rejected, "AttemptAmbiguous"),
        (failed("ServerUnavailable"), Unavailable, "ServerUnavailable"),
        (failed("Draining"), Unavailable, "Draining"),
        (failed("StorageFull"), Unavailable, "StorageFull"),
        ({"code": -32602, "message": "Invalid params"}, Rejected, "InvalidParams"),
        ({"code": -32601, "message": "Method not found"}, Rejected, "MethodNotFound"),
        ({"code": -32603, "message": "Internal error"}, AmbiguousOutcome, "InternalError"),
        (http_answer(b"", status="413 Content Too Large"), Rejected, "RequestTooLarge"),
        (http_answer(b"", status="401 Unauthorized"), Unavailable, "NotReached"),
        (http_answer(b"", status="502 Bad Gateway"), AmbiguousOutcome, "OutcomeUnknown"),
        (b"", AmbiguousOutcome, "OutcomeUnknown"),
    ],
)
async def test_an_end_without_a_result_is_raised_by_whose_fault_it_is(said, kind, code, pauses):
    daemon = Daemon(workflow__schedules__pause=[said])
    async with raw_server(daemon) as server, App(server.url) as app:
        with pytest.raises(RpcError) as raised:
            await app.pause_schedule("s")

    assert type(raised.value) is kind
    assert raised.value.code == code
    assert len(daemon.calls) == 1, "only what is proven not sent may be tried again"
    assert pauses == []


async def test_the_data_of_a_refusal_is_handed_on():
    daemon = Daemon(workflow__schedules__update=[failed("RevisionConflict", revision=4)])
    async with raw_server(daemon) as server, App(server.url) as app:
        with pytest.raises(Rejected, match="RevisionConflict: why") as raised:
            await app.update_schedule(schedule_id="s", expected_revision=3)

    assert raised.value.data["revision"] == 4


async def test_a_daemon_that_is_down_is_tried_again_a_bounded_number_of_times(pauses):
    async with App("http://127.0.0.1:1") as app:
        with pytest.raises(Unavailable, match="NotReached"):
            await app.pause_schedule("s")

    assert pauses == [0.1, 0.4, 1.6]


async def test_a_daemon_that_comes_back_is_reached_by_the_next_try(monkeypatch, tmp_path):
    path = str(tmp_path / "s.sock")
    daemon = Daemon(workflow__schedules__pause=[{"state": "paused"}])
    async with AsyncExitStack() as started, App(socket_path=path) as app:

        async def start_the_daemon(_delay_s):
            await started.enter_async_context(raw_server(daemon, unix_path=path))

        monkeypatch.setattr(rpc_client.schedules.asyncio, "sleep", start_the_daemon)
        assert await app.pause_schedule("s") == {"state": "paused"}


async def test_a_busy_daemon_is_tried_again(pauses):
    busy = http_answer(b"", status="429 Too Many Requests")
    daemon = Daemon(workflow__schedules__pause=[busy, busy, {"state": "paused"}])
    async with raw_server(daemon) as server, App(server.url) as app:
        assert await app.pause_schedule("s") == {"state": "paused"}

    assert pauses == [0.1, 0.4]


async def test_every_page_of_history_is_walked_in_order():
    pages = [
        {"occurrences": [{"n": 1}, {"n": 2}], "next_cursor": "a"},
        {"occurrences": [], "next_cursor": "b"},
        {"occurrences": [{"n": 3}], "next_cursor": None},
    ]
    daemon = Daemon(workflow__schedules__occurrences__list=pages)
    async with raw_server(daemon) as server, App(server.url) as app:
        rows = [row["n"] async for row in app.occurrences("s", page_limit=2)]

    assert rows == [1, 2, 3]
    assert [params.get("cursor") for _, params in daemon.calls] == [None, "a", "b"]


async def test_every_page_of_schedules_is_walked_with_the_same_filter():
    pages = [
        {"schedules": [{"schedule_id": "a"}], "next_cursor": "x"},
        {"schedules": [{"schedule_id": "b"}], "next_cursor": None},
    ]
    daemon = Daemon(workflow__schedules__list=pages)
    async with raw_server(daemon) as server, App(server.url) as app:
        assert [one["schedule_id"] async for one in app.schedules(state="active")] == ["a", "b"]

    assert daemon.calls[1][1] == {"state": "active", "cursor": "x"}


async def test_a_waiting_resume_has_no_bound_in_time_and_its_cancellation_closes_the_connection():
    gone = asyncio.Event()

    async def hang(reader, _writer, _request):
        await reader.read()
        gone.set()

    async with raw_server(hang) as server, App(server.url, timeout_s=0.05) as app:
        with pytest.raises(AmbiguousOutcome):
            await app.resume_run("run-000001", wait=False)
        resuming = asyncio.create_task(app.resume_run("run-000001"))
        server.arrived.clear()
        await asyncio.wait_for(server.arrived.wait(), 5)
        done, _ = await asyncio.wait({resuming}, timeout=0.2)
        assert not done
        gone.clear()
        resuming.cancel()
        await asyncio.wait_for(gone.wait(), 5)


async def test_an_answer_that_is_no_object_is_not_taken_for_one():
    async def say(_reader, writer, request):
        writer.write(http_answer(b'{"jsonrpc":"2.0","id":%d,"result":[1]}' % request["id"]))

    async with raw_server(say) as server, App(server.url) as app:
        with pytest.raises(AmbiguousOutcome, match="no scheduler daemon"):
            await app.health()
