"""Preflight: what the server says before anything is admitted, shared per deployment (spec section 5)."""

import pytest

from scheduler_daemon.core import commands as cmd
from tests.builders import DAILY, World, at, facts, preflight


def silent(**settings):
    """A server that is up, and questions that the test answers itself."""
    world = World(attended=False, **settings)
    world.server_up()
    return world


def test_a_fresh_answer_admits_without_a_question():
    world = silent()
    world.create(cron=DAILY)
    world.until("09:00")
    assert world.all(cmd.AskPreflight) == []
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_what_was_asked_for_a_create_counts_until_it_is_too_old():
    world = silent(preflight_ttl_s=30)
    world.create(cron=DAILY)
    world.until("09:00:01")
    assert world.one(cmd.AskPreflight).deployment_id == "dep"
    assert world.schedule().candidate.waiting == "preflight-pending"


def test_the_answer_is_fetched_two_seconds_ahead_so_that_the_start_does_not_wait_for_it():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY)
    world.until("08:59:57.9")
    assert world.all(cmd.AskPreflight) == []
    world.until("08:59:58")
    world.answer()
    world.until("09:00")
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_an_answer_that_will_still_be_fresh_is_not_asked_for_ahead():
    world = silent(preflight_ttl_s=600)
    world.create(cron=DAILY)
    world.until("08:59:58")
    assert world.all(cmd.AskPreflight) == []


def test_nothing_is_asked_ahead_for_what_overlap_would_not_admit():
    world = silent(preflight_ttl_s=50)
    world.create()
    world.until("09:00")
    world.until("09:00:58")
    assert world.all(cmd.AskPreflight) == []


def test_nothing_is_asked_ahead_while_no_slot_is_free():
    world = silent(preflight_ttl_s=50, max_concurrent_runs=1)
    world.create("holder", DAILY)
    world.create("next", "1 9 * * *")
    world.until("09:00")
    world.until("09:00:58")
    assert world.all(cmd.AskPreflight) == []


def test_nothing_is_asked_for_a_candidate_that_has_no_slot():
    world = silent(preflight_ttl_s=50, max_concurrent_runs=1)
    world.create("holder", DAILY)
    world.create("next", "1 9 * * *", misfire="latest")
    world.until("09:00")
    world.until("09:02")
    assert world.schedule("next").candidate.waiting == "no-slot"
    assert world.all(cmd.AskPreflight) == []
    world.answered()
    assert len(world.all(cmd.AskPreflight)) == 1


def test_schedules_of_one_deployment_share_one_question_and_its_answer():
    world = silent(preflight_ttl_s=10)
    for name in ("a", "b", "c"):
        world.create(name, DAILY)
    world.until("09:00:05")
    assert len(world.all(cmd.AskPreflight)) == 1
    world.answer()
    assert [call.schedule_id for call in world.all(cmd.StartCall)] == ["a", "b", "c"]


def test_one_question_at_a_time_for_a_deployment():
    world = silent(preflight_ttl_s=10)
    world.create("a", "0 9 * * *", misfire="latest")
    world.create("b", "1 9 * * *", misfire="latest")
    world.until("09:00:05")
    world.until("09:01:05")
    assert len(world.all(cmd.AskPreflight)) == 1


def test_a_deployment_that_is_waited_for_does_not_hold_up_another():
    world = silent(preflight_ttl_s=10)
    world.create("slow", DAILY, deployment_id="slow")
    world.create("quick", DAILY, deployment_id="quick")
    world.until("09:00:05")
    world.answer("quick")
    assert world.history("quick") == ["09:00 admitted", "09:00 running"]
    assert world.schedule("slow").candidate is not None


def test_an_unrunnable_deployment_rejects_with_the_servers_diagnostics_and_no_run_exists():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY)
    world.until("09:00:05")
    world.answer(diagnostics=({"code": "missing_tool", "message": "no such tool"},))
    assert world.history() == ["09:00 preflight-rejected preflight"]
    row = world.rows()[0]
    assert row.run_id is None
    assert row.detail == {"diagnostics": [{"code": "missing_tool", "message": "no such tool"}]}
    assert world.schedule().runs == ()
    assert world.state.globals.run_number == 0


def test_a_deployment_that_the_server_no_longer_knows_rejects():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY)
    world.until("09:00:05")
    world.answer(known=False)
    assert world.history() == ["09:00 preflight-rejected preflight"]
    assert world.rows()[0].detail["diagnostics"][0]["code"] == "deployment_not_found"


def test_an_input_that_violates_the_schema_rejects_and_says_where():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, input={"who": {"value": 7}})
    world.until("09:00:05")
    world.answer(input_schema={"type": "object", "properties": {"who": {"type": "string"}}})
    assert world.history() == ["09:00 preflight-rejected preflight"]
    diagnostic = world.rows()[0].detail["diagnostics"][0]
    assert diagnostic["code"] == "input_invalid"
    assert "who" in diagnostic["message"]


def test_a_negative_answer_judges_only_instants_due_before_it():
    world = silent(preflight_ttl_s=60)
    world.create(cron=DAILY, misfire="latest")
    world.state.answers.clear()
    world.until("08:59:58")
    world.answer(diagnostics=({"code": "broken"},))
    world.until("09:00")
    assert world.history() == []
    assert world.schedule().candidate.waiting == "preflight-pending"
    world.answer()
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_negative_answer_to_a_question_that_was_open_when_the_instant_came_is_asked_again():
    world = silent(preflight_ttl_s=60)
    world.create(cron=DAILY, misfire="latest")
    world.state.answers.clear()
    world.until("08:59:58")
    asked_at = world.now.at
    world.until("09:00")
    world.answer(asked_at=asked_at, diagnostics=({"code": "broken"},))
    assert world.history() == []
    world.answer(diagnostics=({"code": "broken"},))
    assert world.history() == ["09:00 preflight-rejected preflight"]


def test_an_answer_never_admits_by_itself():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00:05")
    world.pause()
    world.answer()
    assert world.history() == ["09:00 superseded paused"]


def test_a_question_that_fails_backs_off_alone_and_the_server_stays_up():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, misfire="latest")
    world.create("other", "1 9 * * *", deployment_id="other")
    world.until("09:00:05")
    world.answer_fails()
    assert world.all(cmd.AskPreflight) == []
    assert world.state.globals.server.up
    assert "preflight_failed" in world.actions()
    world.pass_s(0.5)
    assert len(world.all(cmd.AskPreflight)) == 1
    world.answer_fails()
    world.pass_s(0.9)
    assert world.all(cmd.AskPreflight) == []
    world.pass_s(0.1)
    world.answer()
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_the_backoff_of_a_deployment_ends_at_thirty_seconds():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00:05")
    waits = []
    for _ in range(8):
        failed_mono = world.now.mono
        world.answer_fails()
        while not world.all(cmd.AskPreflight):
            world.pass_s(0.5)
        waits.append(world.now.mono - failed_mono)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_create_that_brings_an_answer_ends_the_backoff_for_whoever_waits():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00:05")
    world.answer_fails()
    world.create("second", "0 12 * * *")
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_create_that_brings_an_answer_while_a_question_is_open_does_not_strand_anybody():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00:05")
    world.create("second", "0 12 * * *")
    assert world.history() == ["09:00 admitted", "09:00 running"]
    world.answer()
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_pause_and_resume_while_the_answer_is_awaited_strand_nobody_else():
    world = silent(preflight_ttl_s=10)
    world.create("a", DAILY, misfire="latest")
    world.create("b", DAILY, misfire="latest")
    world.until("09:00:05")
    world.delete("a")
    world.answer()
    assert world.history("b") == ["09:00 admitted", "09:00 running"]


def test_the_server_that_comes_back_ends_every_backoff():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00:05")
    for _ in range(5):
        world.answer_fails()
        while not world.all(cmd.AskPreflight):
            world.pass_s(1)
    world.answer_fails()
    world.server_down()
    world.pass_s(1)
    world.server_up()
    assert len(world.all(cmd.AskPreflight)) == 1


def test_a_ttl_of_nothing_still_admits():
    world = silent(preflight_ttl_s=0)
    world.create(cron=DAILY)
    world.until("09:00:01")
    world.answer()
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_an_answer_to_an_older_question_is_dropped():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00:05")
    world.observe(cmd.PreflightAnswered(999, "dep", world.now.at, preflight()))
    assert world.history() == []
    world.observe(cmd.PreflightAnswered(999, "nobody-asked", world.now.at, preflight("nobody-asked")))
    assert "nobody-asked" not in world.state.answers


def test_the_admitted_artifact_is_the_one_of_the_answer():
    world = silent(preflight_ttl_s=10)
    world.create(cron=DAILY)
    world.until("09:00:05")
    world.answer()
    assert (world.run().artifact_id, world.run().artifact_version) == ("art", 1)


# --- the server ------------------------------------------------------------------------------------------------------


def test_nothing_is_admitted_before_first_contact():
    world = World(attended=False)
    assert world.one(cmd.Probe).first_contact
    world.create(cron=DAILY, misfire="latest")
    world.until("09:00")
    assert world.schedule().candidate.waiting == "server-unreachable"
    world.server_up()
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_server_that_answers_is_asked_for_its_health_every_five_seconds_without_first_contact():
    world = silent()
    world.pass_s(4.9)
    assert world.all(cmd.Probe) == []
    world.pass_s(0.1)
    assert world.one(cmd.Probe).first_contact is False


def test_a_server_that_does_not_answer_is_probed_with_backoff_up_to_five_seconds():
    world = World(attended=False)
    waits = []
    for _ in range(7):
        probe = world.one(cmd.Probe)
        world.open.remove(probe)
        asked_mono = world.now.mono
        world.observe(cmd.ServerMissed(probe.seq, "refused"))
        while not world.all(cmd.Probe):
            world.pass_s(0.25)
        waits.append(world.now.mono - asked_mono)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_calls_that_fail_while_the_server_is_known_to_be_down_do_not_slow_the_prober():
    world = silent()
    world.server_down()
    before = world.state.globals.server
    for _ in range(20):
        world.observe(cmd.ServerMissed(0, "refused"))
    assert world.state.globals.server == before


def test_a_refusal_of_first_contact_is_not_forgotten_by_the_next_health_answer():
    world = World(attended=False)
    probe = world.one(cmd.Probe)
    world.open.remove(probe)
    world.observe(cmd.ServerSeen(probe.seq, facts(), "source 'x' is of kind connection"))
    world.create(cron=DAILY)
    world.pass_s(5)
    again = world.one(cmd.Probe)
    assert again.first_contact
    world.open.remove(again)
    world.observe(cmd.ServerSeen(again.seq, facts(), "source 'x' is of kind connection"))
    world.until("09:00")
    assert world.schedule().candidate.waiting == "server-unreachable"
    assert world.state.globals.server.refusal == "source 'x' is of kind connection"


def test_a_refusal_that_is_gone_lets_admission_go_on():
    world = World(attended=False)
    probe = world.one(cmd.Probe)
    world.open.remove(probe)
    world.observe(cmd.ServerSeen(probe.seq, facts(), "source 'x' is of kind connection"))
    world.pass_s(5)
    world.health()
    assert world.state.globals.server.refusal is None


def test_another_process_behind_the_same_url_is_checked_before_anything_is_admitted():
    world = silent()
    world.pass_s(5)
    world.health(instance_id="i2")
    assert not world.state.globals.server.up
    assert world.one(cmd.Probe).first_contact
    world.health(instance_id="i2")
    assert world.state.globals.server.up


def test_a_health_answer_that_was_asked_before_a_connection_failed_does_not_replace_first_contact():
    world = silent()
    world.pass_s(5)
    plain = world.one(cmd.Probe)
    world.observe(cmd.ServerMissed(0, "connection refused"))
    world.open.remove(plain)
    world.observe(cmd.ServerSeen(plain.seq, facts()))
    assert not world.state.globals.server.up
    assert world.one(cmd.Probe).first_contact


def test_a_health_answer_to_an_older_question_is_dropped():
    world = silent()
    before = world.state.globals.server
    world.observe(cmd.ServerSeen(999, facts(instance_id="i9")))
    world.observe(cmd.ServerMissed(999, "refused"))
    assert world.state.globals.server == before


@pytest.mark.parametrize("restarted", [False, True])
def test_only_a_changed_instance_ends_the_wait_for_an_open_call_and_a_failed_health_never_does(restarted):
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.live_until("09:00:20")
    world.server_down()
    world.pass_s(30)
    assert world.all(cmd.CancelCall) == []
    world.server_up(instance_id="i2" if restarted else "i1")
    assert [one.run_id for one in world.all(cmd.CancelCall)] == (["run-000001"] if restarted else [])
    if restarted:
        assert world.one(cmd.CancelCall).seq == world.call().seq


def test_a_call_that_may_have_reached_the_successor_is_not_cut_off():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.live_until("09:00:04")
    world.server_down()
    world.server_up(instance_id="i2")
    assert world.all(cmd.CancelCall) == []
    assert at("09:00") == world.run().instant


def test_the_failed_connection_of_a_call_makes_the_server_unreachable_for_all():
    world = World()
    world.create("a", DAILY)
    world.create("b", "1 9 * * *", misfire="latest")
    world.until("09:00")
    world.not_sent(server_down=True)
    assert not world.state.globals.server.up
    assert "server_down" in world.actions()
    world.until("09:01")
    assert world.schedule("b").candidate.waiting == "server-unreachable"
