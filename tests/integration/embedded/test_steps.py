"""What the end of a step means, what an interrupt keeps, and where a budget ends a run."""

import pytest

from scheduler_daemon.embedded.server import EmbeddedServer
from tests.integration.embedded.place import Client, going_on

# --- what an exit means ---


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("hello", {"result": "hello"}),
        ("list", {"result": [1, 2]}),
        ("null", {"result": None}),
        ("quiet", {}),
        ("text", {}),
        ("blank", {"x": 1}),
        ("twice", {}),
    ],
)
async def test_json_on_the_last_line_of_a_step_that_exits_0_is_the_output(client, name, output):
    run = await client.start(name)
    assert (run["status"], run["outcome"], run["error"]) == ("completed", "ok", None)
    assert run["output"] == output
    assert run["trace_count"] == 1


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fail", "first\nboom"),
        ("silent", "step 'step-1' exited with status 4"),
        ("signal", "step 'step-1' was ended by signal 9"),
        ("interrupt_text", "step 'step-1' exited with status 75 and no JSON object on its last line"),
        ("interrupt_list", "step 'step-1' exited with status 75 and no JSON object on its last line"),
        ("huge", "step 'step-1': its last line of output is longer than 1048576 bytes"),
    ],
)
async def test_any_other_end_of_a_step_fails_the_run_with_its_reason(client, name, error):
    run = await client.start(name)
    assert (run["status"], run["error"]) == ("failed", error)
    assert (run["output"], run["outcome"], run["trace_count"]) == ({}, None, 0)


async def test_exit_75_with_an_object_interrupts_with_it_as_the_payload(client):
    run = await client.start("interrupt")
    assert (run["status"], run["resume_readiness"], run["trace_count"]) == ("interrupted", "ready", 1)
    assert run["interrupt"]["payload"] == {"message": "ok?"}
    assert run["interrupt"]["node_id"] == "step-1"


async def test_the_next_step_gets_the_output_before_it_on_stdin_and_in_a_variable(client):
    run = await client.start("chain", {"who": 'wörld "x"'})
    assert run["output"] == {"got": {"who": 'wörld "x"'}, "env": {"who": 'wörld "x"'}}
    assert run["trace_count"] == 2


async def test_a_step_that_fails_ends_the_run_there(client, place):
    run = await client.start("stop_at_two")
    assert (run["status"], run["error"], run["trace_count"]) == ("failed", "broken", 1)
    assert place.ran() == ["1", "2"]


async def test_a_step_runs_in_its_folder_with_its_variables_and_without_the_daemons(place, monkeypatch):
    monkeypatch.setenv("SCHEDULER_TOKEN", "hush")
    server = EmbeddedServer(place.file, place.data)
    client = Client(await server.start(), server.token)
    try:
        output = (await client.start("where"))["output"]
    finally:
        await server.stop()
    assert output == {"cwd": str(place.folder / "sub"), "color": "blue", "secret": ""}


@pytest.mark.parametrize(("size", "in_env"), [(1_000, True), (200_000, False)])
async def test_an_input_too_large_for_a_variable_is_on_stdin_only(client, size, in_env):
    output = (await client.start("sizes", {"x": "y" * size}))["output"]
    assert output["stdin"] == size + 8
    assert output["env"] == (size + 8 if in_env else 0)


# --- interrupts and resumes ---


async def test_a_resume_repeats_the_interrupted_step_with_the_answer_and_goes_on(client, place):
    started = await client.start("approval", {"n": 1})
    assert (started["status"], started["trace_count"]) == ("interrupted", 2)
    assert started["interrupt"]["id"] == "interrupt:step-2"
    run = await client.resume(started["run_id"], {"approved": True}, resume_outcome="granted")

    assert (run["status"], run["run_id"]) == ("completed", started["run_id"])
    assert run["trace_count"] == 4
    assert run["output"] == {
        "resume": {"outcome": "granted", "payload": {"approved": True}},
        "input": {"from": "one"},
    }
    assert place.ran() == ["one", "two", "two", "three"]
    assert await client.inspect(run["run_id"]) == run


async def test_a_run_may_be_interrupted_again_and_again(client):
    run = await client.start("again")
    for count in (2, 3):
        run = await client.resume(run["run_id"])
        assert (run["status"], run["trace_count"]) == ("interrupted", count)


async def test_an_interrupted_run_goes_on_as_it_was_when_it_started_after_a_restart(client, server, place):
    started = await client.start("approval")
    await server.stop()
    place.write({"approval": ["echo changed >> ran"]})
    client = Client(await server.start(), server.token)

    assert await client.inspect(started["run_id"]) == started
    run = await client.resume(started["run_id"])
    assert run["status"] == "completed"
    assert place.ran() == ["one", "two", "two", "three"]


async def test_a_run_that_is_being_resumed_shows_its_checkpoint_and_refuses_another_resume(client, place):
    started = await client.start("ask_at_gate")
    async with going_on(client.resume(started["run_id"])) as resuming:
        await place.pids(1)
        assert await client.inspect(started["run_id"]) == started
        data = await client.error("runs.resume", {"run_id": started["run_id"]})
        assert data == {"code": "ValueError", "message": f"workflow run '{started['run_id']}' is already being resumed"}
        place.open_the_gate()
        assert (await resuming)["status"] == "completed"
    assert place.ran() == ["x"]


async def test_a_resume_of_what_is_not_interrupted_or_not_there_is_refused(client):
    run = await client.start("hello")
    data = await client.error("runs.resume", {"run_id": run["run_id"]})
    assert data == {"code": "ValueError", "message": f"workflow run '{run['run_id']}' is not interrupted"}
    for run_id in ("run-999", "run_" + "0" * 32, "../x", "run_" + "0" * 31 + "\n"):
        data = await client.error("runs.resume", {"run_id": run_id})
        assert (data["code"], data["message"]) == ("KeyError", f'"unknown workflow run {run_id!r}"')


async def test_a_resume_too_large_for_a_variable_is_refused_and_executes_nothing(client, place):
    started = await client.start("approval")
    data = await client.error("runs.resume", {"run_id": started["run_id"], "resume_payload": {"x": "y" * 200_000}})
    assert data["code"] == "ValueError"
    assert place.ran() == ["one", "two"]
    assert (await client.resume(started["run_id"]))["status"] == "completed"


# --- budgets ---


@pytest.mark.parametrize(
    ("max_steps", "status", "ran"), [(1, "exhausted", "1"), (2, "exhausted", "12"), (3, "completed", "123")]
)
async def test_a_budget_ends_a_run_before_the_step_that_would_pass_it(client, place, max_steps, status, ran):
    run = await client.start("three", {"a": 1}, max_steps=max_steps)
    assert (run["status"], run["trace_count"]) == (status, len(ran))
    assert "".join(place.ran()) == ran
    assert run["resume_readiness"] == "not_applicable"


async def test_a_budget_counts_finished_steps_across_a_resume_and_no_interrupts(client, place):
    started = await client.start("approval", max_steps=2)
    assert started["status"] == "interrupted"
    run = await client.resume(started["run_id"])
    assert (run["status"], run["trace_count"]) == ("exhausted", 3)
    assert place.ran() == ["one", "two", "two"]
