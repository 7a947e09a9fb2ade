"""Resumes through the daemon: each ending of spec section 7."""

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Rejected
from tests.builders import DAILY, KEYED, World, result

FRESH = result("interrupted", "server-run-000001", trace_count=1)
NEWER = result("completed", "server-run-000001", trace_count=4)


def interrupted(*features, **settings):
    world = World(**settings)
    world.server_up(*features)
    world.create(cron=DAILY)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    return world


def resumed(*features, **settings):
    """A resume under attempt 1 is open."""
    world = interrupted(*features, **settings)
    world.resume_run()
    return world


def refusal(world, run_id="run-000001"):
    with pytest.raises(Rejected) as refused:
        world.resume_run(run_id, FRESH)
    return refused.value.code


# --- the attempt ------------------------------------------------------------------------------------------------------


def test_an_attempt_is_marked_with_its_key_and_the_fresh_checkpoint_before_the_call_leaves():
    world = interrupted()
    world.resume_run(fresh=result("interrupted", "server-run-000001", trace_count=3))
    mark = world.run().mark
    assert (mark.kind, mark.attempt, mark.key) == ("resume", 1, "store:run-000001:1")
    assert (mark.checkpoint.status, mark.checkpoint.trace_count) == ("interrupted", 3)
    call = world.call()
    assert (call.server_run_id, call.key, call.payload, call.outcome) == (
        "server-run-000001",
        "store:run-000001:1",
        {"ok": True},
        "submitted",
    )
    assert call.repeat is False
    assert world.history()[-1] == "09:00 running resume"


def test_the_reply_is_the_number_of_the_call():
    world = interrupted()
    assert world.resume_run() == world.call().seq


def test_the_servers_id_names_the_run_as_well():
    world = interrupted()
    world.resume_run("server-run-000001", FRESH)
    assert world.run().mark.attempt == 1


def test_attempts_are_counted():
    world = resumed()
    world.answered(status="interrupted", trace_count=2)
    world.resume_run(fresh=result("interrupted", "server-run-000001", trace_count=2))
    assert (world.run().mark.attempt, world.call().key) == (2, "store:run-000001:2")


def test_run_timeout_is_for_starts_and_not_for_resumes():
    world = World()
    world.create(cron=DAILY, run_timeout_s=90.0)
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.resume_run()
    assert world.call().timeout_s is None


# --- refused before ---------------------------------------------------------------------------------------------------


def test_a_run_that_is_being_resumed_is_refused():
    assert refusal(resumed()) == "ResumeInProgress"


def test_a_run_whose_attempt_is_ambiguous_is_refused():
    world = resumed()
    world.server_down()
    world.lost()
    assert refusal(world) == "AttemptAmbiguous"


def test_a_run_that_is_not_interrupted_is_refused():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    assert refusal(world) == "RunNotResumable"
    world.lost()
    assert refusal(world) == "RunNotResumable"


def test_a_run_that_is_over_is_not_found():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.answered()
    assert refusal(world) == "RunNotFound"


def test_a_run_that_ended_unknown_during_its_start_is_refused():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.lost()
    world.live_s(5)
    world.listed()
    assert refusal(world) == "RunNotResumable"


def test_a_run_that_ended_unknown_during_a_resume_is_ambiguous_for_good_by_either_id():
    world = resumed()
    world.lost(caller_gone=True)
    world.inspected(FRESH)
    world.restart()
    assert refusal(world) == "AttemptAmbiguous"
    assert refusal(world, "server-run-000001") == "AttemptAmbiguous"


def test_a_draining_daemon_refuses():
    world = interrupted()
    world.command(cmd.Drain())
    assert refusal(world) == "Draining"


def test_before_the_server_was_heard_of_there_is_no_mark_that_could_say_which_server_it_is_for():
    world = interrupted(*KEYED)
    world.attended = False
    world.restart()
    assert refusal(world) == "ServerUnavailable"
    world.attended = True
    world.server_up(*KEYED)
    world.resume_run()
    world.lost()
    world.live_s(1)
    assert (world.letters()[-1], world.call().repeat) == ("H", True)


def test_no_resume_is_marked_with_what_a_server_announced_that_has_been_gone_since():
    """The one that is back may keep no keys, and a third one keep them again: then a repeat would be a second resume."""
    world = interrupted(*KEYED)
    world.server_down()
    assert refusal(world) == "ServerUnavailable"
    world.server_up()
    world.resume_run()
    assert not world.run().mark.server.keyed


def test_a_run_that_somebody_else_finished_is_settled_and_the_call_refused():
    world = interrupted()
    reply = world.resume_run(fresh=NEWER)
    assert isinstance(reply, Rejected)
    assert reply.code == "RunNotResumable"
    assert world.history()[-1] == "09:00 completed"
    assert world.all(cmd.ResumeCall) == []


# --- endings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "failed", "exhausted"])
def test_an_answer_settles_the_attempt_and_the_run(status):
    world = resumed()
    world.answered(status=status, trace_count=4)
    assert world.history()[-1] == f"09:00 {status}"
    assert world.schedule().runs == ()
    assert world.state.unknown == {}


def test_interrupted_again_settles_the_attempt_with_a_new_checkpoint():
    world = resumed()
    world.answered(status="interrupted", trace_count=5)
    run = world.run()
    assert (run.phase, run.mark, run.checkpoint.trace_count, run.attempts) == ("interrupted", None, 5, 1)
    assert world.state.globals.slots_used == 0


def test_not_sent_leaves_the_run_interrupted_and_free_to_be_resumed_again():
    world = resumed()
    world.not_sent(server_down=True)
    assert world.history()[-1] == "09:00 interrupted not-sent"
    assert (world.run().phase, world.run().mark) == ("interrupted", None)
    world.server_up()
    world.resume_run()
    assert world.run().mark.attempt == 2


REFUSALS = [
    (-32602, None),
    (5000, {"code": "ValueError", "message": "workflow run 'server-run-000001' is not interrupted"}),
    (5000, {"code": "KeyError", "message": "server-run-000001"}),
]


@pytest.mark.parametrize(("code", "data"), REFUSALS)
def test_a_refusal_settles_the_attempt_and_the_run_is_inspected_at_once(code, data):
    world = resumed()
    world.refused(code=code, data=data)
    assert world.history()[-1] == "09:00 interrupted refused"
    assert world.rows()[-1].detail["code"] == code
    assert world.one(cmd.InspectRun).server_run_id == "server-run-000001"
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"


AMBIGUOUS = [
    (-32603, None),
    (5000, {"code": "ValueError", "message": "invalid literal for int()"}),
    (5000, {"code": "RuntimeError", "message": "server-run-000001"}),
    (-32000, {"code": "ValueError", "message": "server-run-000001"}),
]


@pytest.mark.parametrize(("code", "data"), AMBIGUOUS)
def test_any_other_error_leaves_the_attempt_ambiguous(code, data):
    world = resumed()
    world.refused(code=code, data=data)
    assert world.run().phase == "ambiguous"
    assert world.run().mark.attempt == 1


@pytest.mark.parametrize("features", [(), KEYED], ids=["plain", "keyed"])
def test_when_the_caller_goes_away_exactly_this_run_is_inspected_once_and_never_sent_again(features):
    world = resumed(*features)
    world.lost(caller_gone=True)
    assert world.one(cmd.InspectRun).run_id == "run-000001"
    world.inspected(FRESH)
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"]) == ("failed", "outcome-unknown", "X")
    assert world.state.globals.slots_used == 0
    assert world.state.unknown["run-000001"].attempt == 1
    world.live_until("09:05")
    assert world.all(cmd.ResumeCall) == []
    finals = [row for row in world.rows() if row.status == "failed"]
    assert len(finals) == 1


def test_when_the_caller_goes_away_a_newer_result_is_taken():
    world = resumed()
    world.lost(caller_gone=True)
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"
    assert world.state.unknown == {}


def test_when_the_caller_goes_away_and_the_run_was_interrupted_again_it_is_interrupted():
    world = resumed()
    world.lost(caller_gone=True)
    world.inspected(result("interrupted", "server-run-000001", trace_count=2))
    assert world.run().phase == "interrupted"


def test_when_the_inspection_itself_fails_mark_and_slot_stay_and_the_error_is_reported():
    world = resumed()
    world.lost(caller_gone=True)
    world.inspected(failed="timeout")
    assert "reconcile_failed" in world.actions()
    assert (world.run().phase, world.run().mark.attempt) == ("ambiguous", 1)
    assert world.state.globals.slots_used == 1
    world.live_until("09:00:02")
    world.inspected(FRESH)
    assert world.rows()[-1].reason == "outcome-unknown"


def test_when_the_caller_goes_away_while_the_server_is_unreachable_mark_and_slot_stay_and_it_is_reported():
    world = resumed(*KEYED)
    world.server_down()
    world.lost(caller_gone=True)
    assert "reconcile_failed" in world.actions()
    assert world.state.globals.slots_used == 1
    world.pass_s(120)
    assert world.run().phase == "ambiguous"
    world.server_up(*KEYED)
    world.pass_s(1)
    assert world.all(cmd.ResumeCall) == []
    world.inspected(FRESH)
    assert world.rows()[-1].detail["case"] == "X"


def test_a_resume_whose_caller_went_away_is_not_sent_again_by_the_next_process_either():
    world = resumed(*KEYED)
    world.server_down()
    world.lost(caller_gone=True)
    world.restart()
    world.server_up(*KEYED)
    world.pass_s(1)
    assert world.all(cmd.ResumeCall) == []
    assert world.one(cmd.InspectRun).run_id == "run-000001"


def test_a_resume_that_was_cut_off_before_it_was_sent_had_no_effect():
    world = resumed()
    world.not_sent()
    assert world.run().phase == "interrupted"


def test_a_lost_resume_of_a_keyed_server_is_sent_again_with_the_same_key():
    world = resumed(*KEYED)
    world.lost()
    world.live_s(10)
    call = world.call()
    assert (call.repeat, call.key, call.payload, call.outcome) == (
        True,
        "store:run-000001:1",
        {"ok": True},
        "submitted",
    )
    world.answered(status="completed", trace_count=4)
    assert world.history()[-1] == "09:00 completed"


def test_a_resume_that_a_crash_cut_off_is_sent_again_to_a_keyed_server():
    world = resumed(*KEYED)
    world.restart()
    world.live_s(1)
    assert (world.call().repeat, world.call().key) == (True, "store:run-000001:1")


def test_a_lost_resume_of_a_plain_server_is_inspected_for_the_grace_and_then_fails_closed():
    world = resumed(reconcile_grace_s=30.0)
    world.lost()
    began_mono = None
    while world.run().phase == "ambiguous":
        world.live_until(
            f"09:{(world.now.at.minute):02}:{world.now.at.second + 1:02}" if world.now.at.second < 59 else "09:01:00"
        )
        if world.all(cmd.InspectRun):
            began_mono = began_mono or world.now.mono
            world.inspected(FRESH)
            if world.schedule().runs == ():
                break
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"]) == ("failed", "outcome-unknown", "L")
    assert 30.0 <= world.now.mono - began_mono <= 45.0
    assert world.state.unknown["run-000001"].attempt == 1
    assert world.view().state == "active"


def test_the_grace_never_ends_on_an_old_reading():
    world = resumed(reconcile_grace_s=2.0)
    world.lost()
    world.live_s(1)
    world.inspected(FRESH)
    world.pass_s(60)
    assert world.run().phase == "ambiguous"
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"


def test_a_newer_result_within_the_grace_settles_attempt_and_run():
    world = resumed()
    world.lost()
    world.live_s(10)
    world.inspected(FRESH)
    world.pass_s(1)
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"


def test_a_run_that_the_server_does_not_know_during_a_resume_fails_closed_and_blocks():
    world = resumed()
    world.lost()
    world.live_s(10)
    world.inspected(known=False)
    assert world.rows()[-1].detail["case"] == "J"
    assert world.view().state == "blocked"
    assert world.state.globals.slots_used == 0


# --- abandon ----------------------------------------------------------------------------------------------------------


def test_abandoning_an_interrupted_run_fails_it_and_frees_overlap_without_touching_the_server():
    world = interrupted()
    assert world.abandon() == "run-000001"
    assert world.history()[-1] == "09:00 failed abandoned"
    assert world.rows()[-1].detail["message"] == "nobody will answer"
    assert world.schedule().blocking_run_id(world.now.at) is None
    assert [one for one in world.open if not isinstance(one, cmd.Probe)] == []


def test_only_an_interrupted_run_can_be_abandoned():
    for world in (resumed(), World()):
        if not world.state.schedules:
            world.create(cron=DAILY)
            world.until("09:00")
        with pytest.raises(Rejected) as refused:
            world.abandon()
        assert refused.value.code == "RunNotResumable"


def test_abandoning_a_run_that_nobody_knows_is_refused():
    with pytest.raises(Rejected) as refused:
        World().abandon("run-000099")
    assert refused.value.code == "RunNotFound"


# --- watching an interrupted run ---------------------------------------------------------------------------------------


def test_an_interrupted_run_is_asked_after_from_five_to_sixty_seconds():
    world = interrupted()
    waits, since_mono = [], world.now.mono
    for _ in range(7):
        while not world.all(cmd.InspectRun):
            world.pass_s(1)
        waits.append(world.now.mono - since_mono)
        since_mono = world.now.mono
        world.inspected(FRESH)
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_a_run_resumed_at_the_server_is_settled():
    world = interrupted()
    world.pass_s(5)
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"


def test_a_run_resumed_at_the_server_and_interrupted_again_has_a_new_checkpoint():
    world = interrupted()
    world.pass_s(5)
    world.inspected(result("interrupted", "server-run-000001", trace_count=9, interrupt={"kind": "again"}))
    assert world.history()[-1] == "09:00 interrupted checkpoint"
    assert (world.run().checkpoint.trace_count, world.run().interrupt) == (9, {"kind": "again"})


def test_a_status_that_nobody_knows_is_not_taken_for_news():
    world = interrupted()
    world.pass_s(5)
    world.inspected(result("running", "server-run-000001", trace_count=9))
    assert world.run().phase == "interrupted"
    assert world.run().checkpoint.trace_count == 1


def test_an_interrupted_run_is_not_asked_after_while_the_server_is_down():
    world = interrupted()
    world.server_down()
    world.pass_s(120)
    assert world.all(cmd.InspectRun) == []
