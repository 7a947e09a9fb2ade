"""What every workflow server must do, as one suite: for the fake, for the embedded server, and for a real one by URL.

A test module derives a class from `ServerContract` and gives it a `server` fixture that yields a `ServerUnderTest`. What
a server does not announce or a hook that is missing skips its tests, and says so.

The deployments, by role (the input each takes is the recorded one):
- `hello`    completes with an output; input `{"who": text}`, and its schema demands `who`;
- `fail`     fails; input `{"message": text}`;
- `approval` interrupts; input `{"message": text}`; a resume whose payload has `seconds` takes that long;
- `slow`     takes as long as its input `{"seconds": number, "tag": text}` says;
- `unbound`  cannot run;
- `steps`    completes after more than one step, for budgets (needed only where `max-steps` is announced).

Shapes are compared with the recordings by members and types, status words and error codes by value, prose not at all.
"""

import re
from datetime import datetime

import aiohttp
import pytest

from tests.conformance.recorded import differences, load
from tests.conformance.talk import (
    A_WHILE_S,
    FOR_EVER_S,
    IDEMPOTENT_START,
    MAX_STEPS,
    SOURCE_KINDS,
    ServerUnderTest,
    Talk,
    assert_like,
    assert_same_error,
    eventually,
    hook,
    under_way,
)


class ServerContract:
    """Derive from it with a `server` fixture."""

    @pytest.fixture
    async def server(self) -> ServerUnderTest:
        raise NotImplementedError

    @pytest.fixture
    async def talk(self, server):
        async with Talk.with_(server) as talk:
            yield talk

    # -- shapes -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "name",
        [
            "health",
            "method_not_found",
            "sources_list",
            "deployments_inspect",
            "deployments_inspect_unknown",
            "deployments_validate_runnable",
            "deployments_validate_unrunnable",
            "runs_start_completed",
            "runs_start_failed",
            "runs_start_interrupted",
            "runs_start_bad_input",
            "runs_start_unrunnable",
            "runs_start_unknown_deployment",
            "runs_start_extra_param",
            "runs_inspect_unknown",
            "runs_list",
            "runs_list_interrupted",
        ],
    )
    async def test_the_answer_has_the_recorded_shape(self, talk, name):
        recorded = load(name)

        assert_like(await talk.replay(recorded), recorded)

    async def test_the_artifact_of_a_deployment_has_the_recorded_shape(self, talk):
        deployment = (await talk.ask("workflow.deployments.inspect", {"deployment_id": talk.role("hello")})).result
        recorded = load("artifacts_inspect")
        answer = await talk.replay(
            recorded, artifact_id=deployment["artifact_id"], version=deployment["artifact_version"]
        )

        assert_like(answer, recorded)
        assert answer.result["id"] == deployment["artifact_id"]
        assert answer.result["version"] == deployment["artifact_version"]
        assert "who" in answer.result["input_schema"]["required"]

    async def test_an_interrupted_run_has_the_recorded_shape_until_a_resume_completes_it(self, talk):
        started = await talk.start("approval", {"message": "ok?"})
        run_id = started["run_id"]

        interrupted = await talk.replay(load("runs_inspect_interrupted"), run_id=run_id)
        assert_like(interrupted, load("runs_inspect_interrupted"))
        assert interrupted.result == started

        resumed = await talk.replay(load("runs_resume_completed"), run_id=run_id)
        assert_like(resumed, load("runs_resume_completed"))
        assert resumed.result["trace_count"] > started["trace_count"]
        assert resumed.result["run_id"] == run_id

        completed = await talk.replay(load("runs_inspect_completed"), run_id=run_id)
        assert_like(completed, load("runs_inspect_completed"))
        assert completed.result == resumed.result

        again = await talk.replay(load("runs_resume_not_interrupted"), run_id=run_id)
        assert_like(again, load("runs_resume_not_interrupted"))

    async def test_the_list_shows_stopped_runs_latest_first_and_by_pages(self, talk):
        ids = [(await talk.start("hello", {"who": str(n)}))["run_id"] for n in range(3)]

        answer = await talk.ask("workflow.runs.list", {"limit": 2})
        assert differences(answer.body, load("runs_list").answer.body) == []
        assert [row["run_id"] for row in answer.result["runs"]] == [ids[2], ids[1]]
        assert answer.result["total"] >= 3
        for row in answer.result["runs"]:
            assert datetime.fromisoformat(row["created_at"]).tzinfo is not None
            assert row["updated_at"] >= row["created_at"]

        after = await talk.ask("workflow.runs.list", {"limit": 2, "cursor": answer.result["next_cursor"]})
        assert after.result["runs"][0]["run_id"] == ids[0]

    async def test_the_list_can_be_asked_for_one_status(self, talk):
        run_id = (await talk.start("approval", {"message": "?"}))["run_id"]
        await talk.start("hello", {"who": "w"})

        page = (await talk.ask("workflow.runs.list", {"status": "interrupted", "limit": 100})).result
        assert run_id in [row["run_id"] for row in page["runs"]]
        assert {row["status"] for row in page["runs"]} == {"interrupted"}

    async def test_sources_are_of_the_known_kinds_on_every_page(self, talk):
        cursor, kinds, total = None, [], None
        while cursor is not None or total is None:
            page = (await talk.ask("workflow.sources.list", {"limit": 1, "cursor": cursor})).result
            kinds += [source["kind"] for source in page["sources"]]
            cursor, total = page["next_cursor"], page["total"]

        assert set(kinds) <= SOURCE_KINDS
        assert len(kinds) == total

    async def test_a_server_run_id_is_a_word_of_its_own(self, talk):
        assert re.fullmatch("run_[0-9a-f]{32}", (await talk.start("hello", {"who": "w"}))["run_id"])

    # -- the protocol -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("workflow.health", {"x": 1}),
            ("workflow.runs.start", {}),
            ("workflow.runs.start", {"deployment_id": ""}),
            ("workflow.runs.start", {"deployment_id": 5}),
            ("workflow.runs.start", {"deployment_id": "d", "workflow_input": []}),
            ("workflow.runs.inspect", {}),
            ("workflow.runs.list", {"status": "running"}),
            ("workflow.runs.list", {"limit": 0}),
            ("workflow.runs.list", {"limit": 101}),
            ("workflow.artifacts.inspect", {"artifact_id": "a", "version": 0}),
            ("workflow.sources.list", {"limit": 101}),
        ],
    )
    async def test_params_that_its_document_does_not_allow_are_invalid(self, talk, method, params):
        assert (await talk.ask(method, params)).error["code"] == -32602

    async def test_a_step_budget_is_unknown_to_a_server_that_does_not_announce_it(self, talk):
        if MAX_STEPS in await talk.features():
            pytest.skip(f"this server announces {MAX_STEPS!r}")
        params = {"deployment_id": talk.role("hello"), "workflow_input": {"who": "w"}, "max_steps": 1}

        assert (await talk.ask("workflow.runs.start", params)).error["code"] == -32602

    async def test_a_batch_is_answered_as_a_batch(self, talk):
        call = {"jsonrpc": "2.0", "method": "workflow.health", "params": {}}
        answer = await talk.post([{**call, "id": 1}, {**call, "id": "two"}, {**call, "id": 3, "method": "none"}])

        by_id = {one["id"]: one for one in answer.body}
        assert by_id[1]["result"]["status"] == "ok"
        assert by_id["two"]["result"]["status"] == "ok"
        assert by_id[3]["error"]["code"] == -32601

    async def test_its_own_scheduler_is_not_there(self, talk):
        assert_like(await talk.replay(load("method_not_found")), load("method_not_found"))

    # -- what runs are for those who look -----------------------------------------------------------------------------

    async def test_bad_input_makes_a_run_that_failed(self, talk):
        before = await talk.total()
        failed = await talk.start("hello", {})

        assert failed["status"] == "failed"
        assert "who" in failed["error"]
        assert await talk.total() == before + 1

    async def test_what_cannot_run_leaves_no_run(self, talk):
        before = await talk.total()
        await talk.start("unbound", {"seconds": 1, "tag": "x"})
        await talk.ask("workflow.runs.start", {"deployment_id": "no.such", "workflow_input": {}})

        assert await talk.total() == before

    async def test_a_run_is_not_listed_before_it_stops_although_its_caller_left(self, talk):
        before = await talk.total()
        async with under_way(talk, talk.start("slow", {"seconds": A_WHILE_S, "tag": "gone"})) as starting:
            assert not starting.done()
            assert await talk.total() == before
        page = await eventually(
            lambda: talk.ask("workflow.runs.list", {"limit": 1}), lambda answer: answer.result["total"] == before + 1
        )

        assert_like(page, load("runs_list_after_client_gone"))
        assert page.result["runs"][0]["deployment_id"] == talk.role("slow")
        assert page.result["runs"][0]["status"] == "completed"

    async def test_while_a_resume_executes_readers_see_the_checkpoint_before_it_although_its_caller_left(self, talk):
        started = await talk.start("approval", {"message": "ok?"})
        run_id = started["run_id"]
        async with under_way(talk, talk.resume(run_id, {"seconds": A_WHILE_S})) as resuming:
            during = await talk.ask("workflow.runs.inspect", {"run_id": run_id})
            if resuming.done():
                pytest.skip("the role 'approval' resumes too quickly to be looked at")
        assert_like(during, load("runs_inspect_during_resume"))
        assert during.result == started

        after = await eventually(
            lambda: talk.ask("workflow.runs.inspect", {"run_id": run_id}),
            lambda answer: answer.result["status"] != "interrupted",
        )
        assert_like(after, load("runs_inspect_after_client_gone"))
        assert after.result["trace_count"] > started["trace_count"]

    async def test_runs_that_stopped_survive_a_restart(self, talk):
        restart = hook(talk.server.restart, "restart")
        completed = await talk.start("hello", {"who": "w"})
        interrupted = await talk.start("approval", {"message": "ok?"})
        await restart()

        assert await talk.inspect(completed["run_id"]) == completed
        assert await talk.inspect(interrupted["run_id"]) == interrupted
        assert (await talk.resume(interrupted["run_id"], {}))["status"] == "completed"

    async def test_an_unkeyed_run_leaves_no_trace_of_success_when_the_server_is_killed(self, talk):
        kill, restart = hook(talk.server.kill, "kill"), hook(talk.server.restart, "restart")
        before = await talk.total()
        async with under_way(talk, talk.start("slow", {"seconds": FOR_EVER_S, "tag": "killed"})) as starting:
            await kill()
            with pytest.raises(aiohttp.ClientError):
                await starting
        with pytest.raises(aiohttp.ClientConnectorError):
            await talk.total()
        await restart()

        assert await talk.total() == before

    # -- idempotent starts --------------------------------------------------------------------------------------------

    async def test_without_a_key_the_same_start_runs_twice(self, talk):
        first = await talk.start("hello", {"who": "w"})
        second = await talk.start("hello", {"who": "w"})

        assert first["run_id"] != second["run_id"]

    async def test_a_server_without_keys_runs_the_same_key_twice(self, talk):
        if IDEMPOTENT_START in await talk.features():
            pytest.skip(f"this server announces {IDEMPOTENT_START!r}")
        first = await talk.start("hello", {"who": "w"}, key="plain:run-000001")
        second = await talk.start("hello", {"who": "w"}, key="plain:run-000001")

        assert first["run_id"] != second["run_id"]

    async def test_the_same_key_has_the_same_answer_and_one_run(self, talk):
        await talk.need(IDEMPOTENT_START)
        before = await talk.total()
        first = await talk.start("hello", {"who": "w"}, key="same:run-000001")
        second = await talk.start("hello", {"who": "w"}, key="same:run-000001")

        assert second == first
        assert await talk.total() == before + 1

    async def test_a_failed_start_is_not_repeated_by_its_key(self, talk):
        await talk.need(IDEMPOTENT_START)
        first = await talk.start("fail", {"message": "boom"}, key="fail:run-000001")

        assert await talk.start("fail", {"message": "boom"}, key="fail:run-000001") == first

    async def test_a_key_whose_run_is_under_way_waits_for_that_run(self, talk):
        await talk.need(IDEMPOTENT_START)
        before, given = await talk.total(), {"seconds": A_WHILE_S, "tag": "x"}
        async with under_way(talk, talk.start("slow", given, key="wait:run-000001")) as first:
            assert not first.done()
            second = await talk.start("slow", given, key="wait:run-000001")
            assert await first == second

        assert second["status"] == "completed"
        assert await talk.total() == before + 1

    async def test_the_same_key_with_other_params_is_a_conflict(self, talk):
        await talk.need(IDEMPOTENT_START)
        await talk.start("hello", {"who": "w"}, key="conflict:run-000001")
        before = await talk.total()
        params = {"deployment_id": talk.role("hello"), "workflow_input": {"who": "somebody else"}}
        answer = await talk.ask("workflow.runs.start", params, key="conflict:run-000001")

        assert answer.error["code"] == 5000
        assert answer.error["data"]["code"] == "KeyConflict"
        assert await talk.total() == before

    async def test_a_resume_with_the_same_key_executes_once(self, talk):
        await talk.need(IDEMPOTENT_START)
        run_id = (await talk.start("approval", {"message": "ok?"}, key="resume:run-000001"))["run_id"]
        first = await talk.resume(run_id, {}, key="resume:run-000001:1")
        second = await talk.resume(run_id, {}, key="resume:run-000001:1")

        assert first["status"] == "completed"
        assert second == first

    async def test_the_start_of_a_run_that_was_resumed_since_still_has_its_first_answer(self, talk):
        await talk.need(IDEMPOTENT_START)
        first = await talk.start("approval", {"message": "ok?"}, key="first:run-000001")
        await talk.resume(first["run_id"], {}, key="first:run-000001:1")

        assert await talk.start("approval", {"message": "ok?"}, key="first:run-000001") == first

    async def test_a_key_is_known_after_a_restart_and_the_process_is_named_anew(self, talk):
        restart = hook(talk.server.restart, "restart")
        await talk.need(IDEMPOTENT_START)
        was = (await talk.ask("workflow.health", {})).result
        first = await talk.start("hello", {"who": "w"}, key="restart:run-000001")
        await restart()
        now = (await talk.ask("workflow.health", {})).result

        assert await talk.start("hello", {"who": "w"}, key="restart:run-000001") == first
        assert now["store_root"] == was["store_root"]
        assert now["instance_id"] != was["instance_id"]

    async def test_a_keyed_run_that_a_kill_cut_short_is_answered_failed_and_never_runs_again(self, talk):
        kill, restart = hook(talk.server.kill, "kill"), hook(talk.server.restart, "restart")
        await talk.need(IDEMPOTENT_START)
        before, given = await talk.total(), {"seconds": FOR_EVER_S, "tag": "killed"}
        async with under_way(talk, talk.start("slow", given, key="kill:run-000001")) as starting:
            await kill()
            with pytest.raises(aiohttp.ClientError):
                await starting
        await restart()
        answer = await talk.start("slow", given, key="kill:run-000001")

        assert answer["status"] == "failed"
        assert answer["error"] == "server-restarted"
        assert differences(answer, load("runs_start_failed").answer.result) == []
        assert await talk.start("slow", given, key="kill:run-000001") == answer
        assert await talk.total() == before + 1

    async def test_a_keyed_resume_that_a_kill_cut_short_is_answered_failed(self, talk):
        kill, restart = hook(talk.server.kill, "kill"), hook(talk.server.restart, "restart")
        await talk.need(IDEMPOTENT_START)
        run_id = (await talk.start("approval", {"message": "ok?"}))["run_id"]
        payload = {"seconds": FOR_EVER_S}
        async with under_way(talk, talk.resume(run_id, payload, key="kill:run-000002:1")) as resuming:
            await kill()
            with pytest.raises(aiohttp.ClientError):
                await resuming
        await restart()
        answer = await talk.resume(run_id, payload, key="kill:run-000002:1")

        assert answer["status"] == "failed"
        assert answer["error"] == "server-restarted"
        assert (await talk.inspect(run_id))["status"] == "failed"

    # -- step budgets -------------------------------------------------------------------------------------------------

    async def test_a_run_over_its_budget_is_exhausted_for_good(self, talk):
        await talk.need(MAX_STEPS)
        params = {"deployment_id": talk.role("steps"), "workflow_input": {}, "max_steps": 1}
        run = (await talk.ask("workflow.runs.start", params)).result

        assert run["status"] == "exhausted"
        assert run["resume_readiness"] == "not_applicable"
        assert run["interrupt"] is None
        assert await talk.inspect(run["run_id"]) == run
        refused = await talk.ask("workflow.runs.resume", {"run_id": run["run_id"], "resume_payload": {}})
        assert_same_error(refused.error, load("runs_resume_not_interrupted").answer.error)

    async def test_a_run_within_its_budget_completes(self, talk):
        await talk.need(MAX_STEPS)
        params = {"deployment_id": talk.role("steps"), "workflow_input": {}, "max_steps": 1_000}

        assert (await talk.ask("workflow.runs.start", params)).result["status"] == "completed"

    @pytest.mark.parametrize("max_steps", [0, -1, "1", 1.5])
    async def test_a_budget_that_is_no_positive_number_is_invalid(self, talk, max_steps):
        await talk.need(MAX_STEPS)
        params = {"deployment_id": talk.role("hello"), "workflow_input": {"who": "w"}, "max_steps": max_steps}

        assert (await talk.ask("workflow.runs.start", params)).error["code"] == -32602
