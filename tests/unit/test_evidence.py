"""Where a request stands when its call ended badly: every row of the table of spec section 6, first request and repeat."""

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.judging import BEYOND_MAX
from tests.builders import DAILY, KEYED, World, result

DISCLOSED = "external effects may already have happened"


def started(*features, **fields):
    """A run whose first start is open."""
    world = World()
    world.server_up(*features)
    world.create(cron=DAILY, **fields)
    world.until("09:00")
    return world


def repeated(**fields):
    """A run of a keyed server whose start was lost and is being sent again under the same key."""
    world = started(*KEYED, **fields)
    world.lost()
    world.live_s(10)
    assert world.call().repeat
    return world


# --- answered ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "failed", "exhausted"])
def test_an_answer_settles_the_run(status):
    world = started()
    world.answered(status=status, outcome="done", output={"a": 1}, trace_count=3)
    row = world.rows()[-1]
    assert (row.status, row.server_run_id, row.run_id) == (status, "server-run-000001", "run-000001")
    assert row.detail["result"]["output"] == {"a": 1}
    assert row.detail["result"]["trace_count"] == 3
    assert world.schedule().runs == ()
    assert world.state.globals.slots_used == 0


def test_an_interrupt_keeps_the_run_with_its_checkpoint():
    world = started()
    world.answered(status="interrupted", trace_count=2, interrupt={"kind": "approval"})
    run = world.run()
    assert (run.phase, run.mark, run.server_run_id) == ("interrupted", None, "server-run-000001")
    assert (run.checkpoint.status, run.checkpoint.trace_count) == ("interrupted", 2)
    assert world.rows()[-1].detail["interrupt"] == {"kind": "approval"}


def test_unrunnable_is_preflight_rejected():
    world = started()
    world.answered(status="unrunnable", server_run_id=None, diagnostics=({"code": "no_tool"},))
    row = world.rows()[-1]
    assert (row.status, row.reason, row.server_run_id) == ("preflight-rejected", "unrunnable", None)
    assert row.detail["diagnostics"] == [{"code": "no_tool"}]


def test_another_artifact_version_than_the_admitted_one_is_disclosed():
    world = started()
    world.answered(artifact_version=2)
    assert world.rows()[-1].detail["artifact-drift"] == {"admitted": 1, "ran": 2}


def test_the_admitted_version_is_no_drift():
    world = started()
    world.answered(artifact_version=1)
    assert "artifact-drift" not in world.rows()[-1].detail


def test_a_status_that_nobody_knows_is_ambiguous():
    world = started()
    world.answered(status="sideways")
    assert world.run().phase == "ambiguous"


def test_an_interrupt_without_an_id_is_ambiguous():
    world = started()
    world.answered(status="interrupted", server_run_id=None)
    assert world.run().phase == "ambiguous"


# --- not sent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server_down", [True, False], ids=["no connection", "did not reach the method"])
def test_not_sent_keeps_the_run_admitted_with_everything_pinned_and_gives_its_slot_back(server_down):
    world = started(input={"who": {"value": "x"}}, misfire="latest")
    before = world.run()
    world.not_sent(server_down=server_down)
    run = world.run()
    assert (run.phase, run.mark) == ("admitted", None)
    assert (run.run_id, run.key, run.input, run.revision) == (before.run_id, before.key, {"who": "x"}, 1)
    assert world.state.globals.slots_used == 0
    assert world.schedule().blocking_run_id(world.now.at) == "run-000001"
    assert world.history()[-1] == "09:00 admitted not-sent"


def test_a_run_that_was_not_sent_goes_out_again_as_a_first_request():
    world = started(misfire="latest")
    world.not_sent()
    world.pass_s(0.5)
    call = world.call()
    assert (call.repeat, call.key) == (False, "store:run-000001")
    assert world.run().mark.marked_at == world.now.at


def test_not_sent_on_a_repeat_says_nothing_about_the_first_request():
    world = repeated()
    world.not_sent()
    assert world.run().phase == "ambiguous"
    assert world.state.globals.slots_used == 1
    assert world.history()[-1] == "09:00 running ambiguous"
    world.live_until("09:01")
    assert world.call().repeat


# --- refused before anything ran --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [-32600, -32601, -32602, -32700, 413])
def test_a_refusal_before_the_method_is_preflight_rejected_with_the_servers_message(code):
    world = started()
    world.refused(code=code, message="unknown param")
    row = world.rows()[-1]
    assert (row.status, row.reason) == ("preflight-rejected", "refused")
    assert row.detail["message"] == "unknown param"


def test_a_key_error_that_names_the_deployment_is_preflight_rejected():
    world = started()
    world.refused(code=5000, data={"code": "KeyError", "message": "unknown deployment 'dep'"})
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["message"]) == (
        "preflight-rejected",
        "refused",
        "unknown deployment 'dep'",
    )


AMBIGUOUS_ERRORS = [
    (-32603, "Internal error", None),
    (5000, "Workflow operation failed", {"code": "KeyError", "message": "'colour'"}),
    (5000, "Workflow operation failed", {"code": "RuntimeError", "message": "dep broke"}),
    (5000, "Workflow operation failed", None),
    (-32000, "Server error", {"code": "KeyError", "message": "dep"}),
]


@pytest.mark.parametrize(("code", "message", "data"), AMBIGUOUS_ERRORS)
def test_any_other_error_may_come_from_the_middle_of_an_execution(code, message, data):
    world = started()
    world.refused(code=code, message=message, data=data)
    assert world.run().phase == "ambiguous"
    assert world.history()[-1] == "09:00 running ambiguous"
    assert world.state.globals.slots_used == 1


@pytest.mark.parametrize("code", [-32600, -32601, -32602, -32700, 413, -32603, 5000])
def test_an_error_on_a_repeat_fails_closed(code):
    world = repeated()
    world.refused(code=code, message="KeyConflict", data={"code": "KeyError", "message": "dep"})
    row = world.rows()[-1]
    assert (row.status, row.reason) == ("failed", "outcome-unknown")
    assert DISCLOSED in row.detail["message"]
    assert row.detail["case"] == "H"
    assert row.detail["error"]["code"] == code
    assert world.state.globals.slots_used == 0


def test_a_status_that_nobody_knows_on_a_repeat_fails_closed():
    world = repeated()
    world.answered(status="sideways")
    assert (world.rows()[-1].status, world.rows()[-1].reason) == ("failed", "outcome-unknown")


def test_unrunnable_on_a_repeat_is_the_truth_about_the_first_request():
    world = repeated()
    world.answered(status="unrunnable", server_run_id=None)
    assert world.rows()[-1].status == "preflight-rejected"


# --- lost -------------------------------------------------------------------------------------------------------------


def test_lost_after_sending_is_ambiguous_and_keeps_overlap_and_slot():
    world = started()
    world.lost()
    run = world.run()
    assert (run.phase, run.mark.key) == ("ambiguous", "store:run-000001")
    assert world.state.globals.slots_used == 1
    assert world.schedule().blocking_run_id(world.now.at) == "run-000001"
    assert world.view().ambiguous_runs == ("run-000001",)
    assert world.view().active_runs[0].status == "running"
    assert world.view().active_runs[0].ambiguous


def test_lost_on_a_repeat_is_tried_again_with_backoff_for_as_long_as_it_takes():
    world = repeated()
    waits = []
    for _ in range(7):
        lost_mono = world.now.mono
        world.lost()
        while not [one for one in world.all(cmd.StartCall) if one.repeat]:
            world.pass_s(0.5)
        waits.append(world.now.mono - lost_mono)
    assert waits == sorted(waits)
    assert waits[-1] <= 16.0
    assert world.run().phase == "ambiguous"
    world.answered()
    assert world.history()[-1] == "09:00 completed"


def test_the_answer_to_a_repeat_is_the_truth():
    world = repeated()
    world.answered(status="failed", error="server-restarted")
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["result"]["error"]) == ("failed", None, "server-restarted")


# --- this process died ------------------------------------------------------------------------------------------------


def test_after_a_crash_a_marked_run_is_ambiguous():
    world = started()
    world.restart()
    assert world.run().phase == "ambiguous"
    assert world.all(cmd.StartCall) == []


def test_after_a_crash_an_unmarked_run_is_dispatched_by_the_rule_of_the_unsent():
    world = started(misfire="latest")
    world.not_sent()
    world.restart()
    call = world.call()
    assert (call.repeat, call.run_id) == (False, "run-000001")


def test_after_a_crash_an_unmarked_run_that_is_late_is_missed():
    world = started()
    world.not_sent(server_down=True)
    world.asleep_until("09:05")
    world.restart()
    assert world.history()[-1] == "09:00 skipped-misfire not-sent"


# --- what is out of date ----------------------------------------------------------------------------------------------


def test_an_observation_about_another_call_is_dropped():
    world = started()
    call = world.call()
    journal = list(world.journal)
    where = (call.seq + 1000, call.schedule_id, call.run_id)
    world.observe(cmd.CallAnswered(*where, result()))
    world.observe(cmd.CallRefused(*where, -32602, "no"))
    world.observe(cmd.CallNotSent(*where, "refused", server_down=False))
    world.observe(cmd.CallLostSight(*where, "reset"))
    assert world.journal == journal


def test_an_observation_about_a_run_that_is_over_is_dropped():
    world = started()
    call = world.call()
    world.answered()
    journal = list(world.journal)
    world.observe(cmd.CallAnswered(call.seq, call.schedule_id, call.run_id, result("failed")))
    assert world.journal == journal


def test_the_run_timeout_goes_with_the_start():
    world = started(run_timeout_s=90.0)
    assert world.call().timeout_s == 90.0


def test_max_steps_goes_with_the_start():
    world = started(max_steps=7)
    assert world.call().max_steps == 7


# --- answers that cannot be read, and would be the same again ---------------------------------------------------------


def beyond(world):
    call = world._ended("run-000001")
    world.observe(
        cmd.CallLostSight(call.seq, call.schedule_id, "run-000001", "answer larger than 9 bytes", beyond=True)
    )


def test_an_answer_beyond_reading_is_ambiguous_and_when_five_repeats_in_a_row_are_so_the_run_fails_closed():
    world = started(*KEYED)
    beyond(world)
    assert world.run().phase == "ambiguous"
    for _ in range(BEYOND_MAX):
        assert world.run().phase == "ambiguous"
        world.live_s(12)
        assert world.call().repeat
        beyond(world)
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"]) == ("failed", "outcome-unknown", "H")
    assert "answer larger than 9 bytes" in row.detail["why"]
    assert world.state.globals.slots_used == 0


def test_an_unreadable_answer_in_between_is_not_the_last_word_of_a_server_that_keeps_the_key():
    world = started(*KEYED)
    for _ in range(BEYOND_MAX):
        beyond(world)
        world.live_s(12)
        world.lost()
        world.live_s(12)
    world.answered()
    assert world.rows()[-1].status == "completed"


def test_inspections_that_cannot_be_read_do_not_hold_a_lost_resume_and_its_slot_for_ever():
    world = started()
    world.answered(status="interrupted", trace_count=1)
    world.resume_run()
    world.lost()
    for _ in range(100):
        if not world.schedule().runs:
            break
        world.live_s(1)
        if world.all(cmd.InspectRun):
            world.inspected()
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"]) == ("failed", "outcome-unknown", "L")
    assert world.state.globals.slots_used == 0


# --- an answer about another run --------------------------------------------------------------------------------------


def test_a_start_that_is_answered_with_the_id_of_another_unfinished_run_is_ambiguous():
    world = World()
    world.server_up()
    world.create("one", cron=DAILY)
    world.create("two", cron=DAILY)
    world.until("09:00")
    world.answered("run-000001", status="interrupted", server_run_id="run_a", trace_count=1)
    world.answered("run-000002", status="interrupted", server_run_id="run_a", trace_count=1)
    one, two = world.run("run-000001"), world.run("run-000002")
    assert (one.phase, one.server_run_id, two.phase, two.server_run_id) == ("interrupted", "run_a", "ambiguous", None)
    world.live_s(1)
    world.listed("run_a")
    row = world.rows("two")[-1]
    assert (row.status, row.reason, row.detail["stopped_since"]) == ("failed", "outcome-unknown", ["run_a"])
    assert world.run("run-000001").phase == "interrupted"


def test_a_repeat_that_is_answered_with_the_id_of_another_unfinished_run_fails_closed():
    world = World()
    world.server_up(*KEYED)
    world.create("one", cron=DAILY)
    world.create("two", cron=DAILY)
    world.until("09:00")
    world.answered("run-000001", status="interrupted", server_run_id="run_a", trace_count=1)
    world.lost("run-000002")
    world.live_s(10)
    world.answered("run-000002", status="completed", server_run_id="run_a")
    row = world.rows("two")[-1]
    assert (row.status, row.reason, row.detail["case"]) == ("failed", "outcome-unknown", "H")
    assert "'run_a'" in row.detail["why"]


def test_a_resume_that_is_answered_about_another_run_is_ambiguous_and_inspected():
    world = started()
    world.answered(status="interrupted", trace_count=1)
    world.resume_run()
    world.answered(status="completed", server_run_id="run_b", trace_count=4)
    assert world.run().phase == "ambiguous"
    world.live_s(1)
    world.inspected(result("completed", "server-run-000001", trace_count=4))
    assert (world.history()[-1], world.rows()[-1].server_run_id) == ("09:00 completed", "server-run-000001")


def test_another_server_may_give_an_id_that_the_one_before_it_gave():
    world = World()
    world.server_up()
    world.create("one", cron=DAILY)
    world.create("two", cron="1 9 * * *")
    world.until("09:00")
    world.answered("run-000001", status="interrupted", server_run_id="run_1", trace_count=1)
    world.server_up(store_root="/srv/b")
    world.live_until("09:01")
    world.answered("run-000002", server_run_id="run_1")
    assert world.history("two")[-1] == "09:01 completed"
