"""The recovery table: every combination of facts is one row, and each letter does what it says (`DESIGN.md`)."""

from itertools import product
from typing import get_args

import pytest

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.lifecycle import HOLDS_SLOT
from scheduler_daemon.core.model import Phase
from scheduler_daemon.core.reconcile import FINDINGS, LETTERS, TABLE, Decision, Facts, classify
from tests.builders import KEYED, World, result

PHASES = ("settled", "none", *get_args(Phase))
EVERY = [
    Facts(
        phase=phase,
        call_open=call_open,
        kind=kind,
        caller_gone=caller_gone,
        reachable=reachable,
        same=same,
        keyed_at_mark=keyed_at_mark,
        keyed_now=keyed_now,
        finding=finding,
        grace_over=grace_over,
    )
    for phase, kind, finding in product(PHASES, ("start", "resume"), FINDINGS)
    for call_open, caller_gone, reachable, same, keyed_at_mark, keyed_now, grace_over in product(
        (False, True), repeat=7
    )
]
FRESH = result("interrupted", "server-run-000001", trace_count=1)
NEWER = result("completed", "server-run-000001", trace_count=4)


def facts(**changes):
    """An ambiguous start at a plain, reachable, same server of which nothing is known yet."""
    plain = {
        "phase": "ambiguous",
        "call_open": False,
        "kind": "start",
        "caller_gone": False,
        "reachable": True,
        "same": True,
        "keyed_at_mark": False,
        "keyed_now": False,
        "finding": "none",
        "grace_over": False,
    }
    return Facts(**{**plain, **changes})


def test_every_combination_of_facts_matches_exactly_one_row():
    assert len(EVERY) == len(PHASES) * 2 * len(FINDINGS) * 2**7
    for one in EVERY:
        matching = [case for case in TABLE if case.matches(one)]
        assert len(matching) == 1, (one, [case.letter for case in matching])
        assert classify(one) is matching[0]


def test_every_letter_and_every_row_is_reached():
    assert "".join(sorted(LETTERS)) == "ABCDEFGHIJKLMNOPQX"
    reached = {id(classify(one)) for one in EVERY}
    assert reached == {id(case) for case in TABLE}


def test_every_decision_is_used():
    assert {case.decision for case in TABLE} == set(get_args(Decision))


def test_nothing_is_ever_sent_again_without_keys_then_and_now_and_the_same_server():
    for one in EVERY:
        if classify(one).decision == "repeat":
            assert one.keyed_at_mark
            assert one.keyed_now
            assert one.same
            assert one.reachable
            assert not one.caller_gone or one.kind == "start"


def test_another_server_is_never_asked():
    for one in EVERY:
        if one.phase == "ambiguous" and not one.call_open and one.reachable and not one.same:
            assert classify(one).decision in ("fail", "fail-and-block")


def test_an_open_call_is_only_ever_waited_for():
    for one in EVERY:
        if one.phase in HOLDS_SLOT and one.call_open:
            assert classify(one).letter == "D"


LETTER_OF = [
    ("A", "nothing", {"phase": "settled"}),
    ("B", "plan", {"phase": "none"}),
    ("C", "dispatch", {"phase": "admitted"}),
    ("D", "wait", {"call_open": True}),
    ("D", "wait", {"phase": "running"}),
    ("E", "wait", {"reachable": False, "keyed_at_mark": True}),
    ("E", "wait", {"reachable": False, "kind": "resume", "grace_over": True}),
    ("F", "wait", {"reachable": False}),
    ("G", "fail", {"reachable": False, "grace_over": True}),
    ("H", "repeat", {"keyed_at_mark": True, "keyed_now": True}),
    ("H", "repeat", {"keyed_at_mark": True, "keyed_now": True, "kind": "resume"}),
    ("I", "list", {}),
    ("I", "fail", {"finding": "not-newer"}),
    ("I", "list", {"keyed_at_mark": True}),
    ("I", "list", {"keyed_now": True}),
    ("I", "fail", {"same": False}),
    ("J", "fail-and-block", {"kind": "resume", "finding": "unknown"}),
    ("K", "settle", {"kind": "resume", "finding": "newer"}),
    ("L", "inspect", {"kind": "resume"}),
    ("L", "inspect", {"kind": "resume", "finding": "failed", "grace_over": True}),
    ("L", "inspect", {"kind": "resume", "finding": "not-newer"}),
    ("L", "fail", {"kind": "resume", "finding": "not-newer", "grace_over": True}),
    ("L", "inspect", {"kind": "resume", "keyed_at_mark": True}),
    ("M", "watch", {"phase": "interrupted", "reachable": False}),
    ("N", "block-and-watch", {"phase": "interrupted", "finding": "unknown"}),
    ("O", "settle", {"phase": "interrupted", "finding": "newer"}),
    ("P", "watch", {"phase": "interrupted", "finding": "not-newer"}),
    ("Q", "fail-and-block", {"kind": "resume", "same": False}),
    ("Q", "block-and-watch", {"phase": "interrupted", "same": False}),
    ("X", "inspect", {"kind": "resume", "caller_gone": True, "keyed_at_mark": True, "keyed_now": True}),
    ("X", "settle", {"kind": "resume", "caller_gone": True, "finding": "newer"}),
    ("X", "fail", {"kind": "resume", "caller_gone": True, "finding": "not-newer"}),
    ("X", "fail-and-block", {"kind": "resume", "caller_gone": True, "finding": "unknown"}),
]


@pytest.mark.parametrize(("letter", "decision", "changes"), LETTER_OF)
def test_the_letter_and_the_decision(letter, decision, changes):
    case = classify(facts(**changes))
    assert (case.letter, case.decision) == (letter, decision)


def test_the_list_above_leaves_no_letter_out():
    assert {letter for letter, _, _ in LETTER_OF} == set(LETTERS)


# --- each letter, carried out -----------------------------------------------------------------------------------------


def started(*features, **settings):
    world = World(**settings)
    world.server_up(*features)
    world.create()
    world.until("09:00")
    return world


def interrupted(*features):
    world = started(*features)
    world.answered(status="interrupted", trace_count=1)
    return world


def lost_resume(*features):
    world = interrupted(*features)
    world.resume_run()
    world.lost()
    return world


def test_a_settled_run_is_left_alone():
    world = started()
    world.answered()
    world.live_until("09:00:50")
    assert world.letters() == []
    assert world.history()[-1] == "09:00 completed"


def test_b_an_instant_that_nobody_admitted_is_planned_normally_after_a_restart():
    world = World()
    world.create()
    world.restart()
    world.until("09:00")
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_c_an_admitted_run_without_a_mark_is_dispatched():
    world = started()
    world.not_sent()
    world.restart()
    assert world.call().repeat is False


def test_d_an_open_call_is_waited_for_whatever_becomes_of_the_server():
    world = started()
    world.server_down()
    world.live_until("09:00:50")
    assert world.letters() == []
    assert world.run().phase == "running"
    world.answered()
    assert world.history()[-1] == "09:00 completed"


def test_e_a_keyed_start_waits_for_the_server_as_long_as_it_takes():
    world = started(*KEYED)
    world.server_down()
    world.lost()
    world.pass_s(3600)
    assert world.run().phase == "ambiguous"
    assert world.state.globals.slots_used == 1
    world.server_up(*KEYED)
    world.live_s(2)
    assert world.call().repeat


def test_e_a_resume_of_any_server_waits_as_long_as_it_takes():
    world = interrupted()
    world.resume_run()
    world.server_down()
    world.lost()
    world.pass_s(3600)
    assert world.run().phase == "ambiguous"


def test_f_a_plain_start_waits_for_its_grace_keeping_overlap_and_slot():
    world = started(reconcile_grace_s=30.0)
    world.server_down()
    world.lost()
    world.live_s(20)
    assert world.run().phase == "ambiguous"
    assert world.state.globals.slots_used == 1
    assert world.schedule().blocking_run_id(world.now.at) == "run-000001"
    world.server_up()
    world.live_s(1)
    assert world.one(cmd.ListStopped).run_id == "run-000001"


def test_g_a_plain_start_fails_closed_when_the_grace_is_over():
    world = started(reconcile_grace_s=30.0)
    world.server_down()
    world.lost()
    world.live_s(31)
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"], row.detail["stopped_since"]) == (
        "failed",
        "outcome-unknown",
        "G",
        [],
    )
    assert world.state.globals.slots_used == 0


def test_h_a_keyed_start_is_sent_again_under_its_key_and_settles_from_the_answer():
    world = started(*KEYED)
    first = world.call()
    world.lost()
    world.live_s(1)
    again = world.call()
    assert (again.repeat, again.key, again.input, again.deployment_id) == (
        True,
        first.key,
        first.input,
        first.deployment_id,
    )
    assert again.seq != first.seq
    world.answered(status="failed", error="server-restarted")
    assert world.history()[-1] == "09:00 failed"
    assert world.letters() == ["H"]


def test_i_a_plain_start_lists_what_the_server_stopped_and_fails_closed():
    world = started()
    world.lost()
    world.live_s(1)
    world.listed("run_x")
    row = world.rows()[-1]
    assert (row.status, row.reason, row.detail["case"], row.detail["stopped_since"]) == (
        "failed",
        "outcome-unknown",
        "I",
        ["run_x"],
    )
    assert world.view().state == "active"


def test_i_at_another_server_nothing_is_listed():
    world = started(*KEYED)
    world.server_down()
    world.lost()
    world.server_up(*KEYED, store_root="/srv/b")
    world.live_s(1)
    assert world.all(cmd.ListStopped) == []
    assert world.rows()[-1].detail["case"] == "I"


def test_j_a_run_that_the_server_does_not_know_any_more_fails_closed_and_blocks():
    world = lost_resume()
    world.live_s(1)
    world.inspected(known=False)
    assert world.rows()[-1].detail["case"] == "J"
    assert world.view().state == "blocked"
    assert world.schedule().diagnostics[0].code == "run-unknown-at-server"


def test_k_a_newer_result_settles_attempt_and_run():
    world = lost_resume()
    world.live_s(1)
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"
    assert "K" in world.letters()


def test_k_interrupted_again_is_a_new_checkpoint():
    world = lost_resume()
    world.live_s(1)
    world.inspected(result("interrupted", "server-run-000001", trace_count=2))
    assert (world.run().phase, world.run().checkpoint.trace_count) == ("interrupted", 2)


def test_l_no_newer_result_within_the_grace_fails_closed_and_the_attempt_stays_active():
    world = lost_resume()
    for _ in range(60):
        world.live_s(1)
        if world.all(cmd.InspectRun):
            world.inspected(FRESH)
        if not world.schedule().runs:
            break
    failed = next(row for row in world.rows() if row.reason == "outcome-unknown")
    assert (failed.status, failed.detail["case"]) == ("failed", "L")
    assert world.state.unknown["run-000001"].attempt == 1


def test_m_an_interrupted_run_waits_for_an_unreachable_server():
    world = interrupted()
    world.server_down()
    world.live_s(120)
    assert world.run().phase == "interrupted"
    assert world.all(cmd.InspectRun) == []
    assert world.view().state == "active"


def test_n_an_interrupted_run_that_the_server_does_not_know_blocks_keeps_overlap_and_is_watched_on():
    world = interrupted()
    world.pass_s(5)
    world.inspected(known=False)
    assert world.view().state == "blocked"
    assert world.run().phase == "interrupted"
    world.pass_s(10)
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"


def test_o_a_run_resumed_elsewhere_is_settled():
    world = interrupted()
    world.pass_s(5)
    world.inspected(NEWER)
    assert world.history()[-1] == "09:00 completed"
    assert "O" in world.letters()


def test_p_no_news_is_asked_for_again():
    world = interrupted()
    world.pass_s(5)
    world.inspected(FRESH)
    assert world.all(cmd.InspectRun) == []
    world.pass_s(10)
    assert len(world.all(cmd.InspectRun)) == 1


def test_q_an_interrupted_run_left_at_another_server_blocks_and_keeps_overlap():
    world = interrupted()
    world.server_down()
    world.server_up(store_root="/srv/b")
    world.live_s(30)
    assert world.view().state == "blocked"
    assert world.schedule().diagnostics[0].code == "another-server"
    assert world.run().phase == "interrupted"
    assert world.all(cmd.InspectRun) == []


def test_q_a_lost_resume_left_at_another_server_fails_closed_and_blocks():
    world = interrupted()
    world.resume_run()
    world.server_down()
    world.lost()
    world.server_up(store_root="/srv/b")
    world.live_s(1)
    failed = next(row for row in world.rows() if row.reason == "outcome-unknown")
    assert failed.detail["case"] == "Q"
    assert world.view().state == "blocked"
    assert world.all(cmd.InspectRun) == []


def test_x_a_deserted_resume_is_inspected_and_never_sent_again():
    world = interrupted(*KEYED)
    world.resume_run()
    world.lost(caller_gone=True)
    world.inspected(FRESH)
    assert world.letters()[-1] == "X"
    assert world.all(cmd.ResumeCall) == []


# --- the three traps --------------------------------------------------------------------------------------------------


def test_a_watchs_inspect_that_overtakes_a_resume_does_not_fail_it():
    world = interrupted()
    world.pass_s(5)
    early = world.one(cmd.InspectRun)
    world.resume_run()
    world.open.remove(early)
    old = {"seq": early.seq, "schedule_id": "daily", "run_id": "run-000001", "attempt": early.attempt}
    for observation in (
        cmd.RunInspected(**old, known=False),
        cmd.RunInspected(**old, result=FRESH),
        cmd.RunInspected(**old, result=result("interrupted", "server-run-000001", trace_count=2)),
        cmd.RunInspected(**old, failed="timeout"),
    ):
        world.observe(observation)
        assert (world.run().phase, world.view().state) == ("running", "active")
    world.answered(trace_count=4)
    assert world.history()[-1] == "09:00 completed"


def test_a_watchs_inspect_that_overtakes_a_lost_resume_is_dropped_as_well():
    world = interrupted()
    world.pass_s(5)
    early = world.one(cmd.InspectRun)
    world.open.remove(early)
    world.resume_run()
    world.lost()
    world.observe(
        cmd.RunInspected(seq=early.seq, schedule_id="daily", run_id="run-000001", attempt=early.attempt, known=False)
    )
    assert (world.run().phase, world.view().state) == ("ambiguous", "active")


@pytest.mark.parametrize("server_down", [True, False])
def test_a_repeat_of_a_keyed_start_that_is_refused_a_connection_says_nothing_about_the_first(server_down):
    world = started(*KEYED)
    world.lost()
    world.live_s(1)
    world.not_sent(server_down=server_down)
    assert world.run().phase == "ambiguous"
    assert world.run().mark is not None
    assert world.state.globals.slots_used == 1
    assert "09:00 admitted not-sent" not in world.history()
    world.server_up(*KEYED)
    world.live_s(2)
    assert world.call().repeat


def test_a_server_that_announces_keys_only_after_the_start_was_sent_gets_no_second_start():
    world = started()
    world.server_down()
    world.lost()
    world.server_up(*KEYED)
    world.live_s(2)
    assert world.all(cmd.StartCall) == []
    world.listed()
    assert world.rows()[-1].detail["case"] == "I"
    world.live_until("09:00:50")
    assert world.all(cmd.StartCall) == []


def test_a_server_that_no_longer_announces_keys_gets_no_second_start_either():
    world = started(*KEYED)
    world.server_down()
    world.lost()
    world.server_up()
    world.live_s(2)
    assert world.all(cmd.StartCall) == []
    assert world.one(cmd.ListStopped).run_id == "run-000001"


def test_what_was_heard_of_the_server_before_sight_was_lost_proves_nothing_about_now():
    world = started(*KEYED)
    world.attended = False
    world.lost()
    world.pass_s(5)
    assert world.all(cmd.StartCall) == []
    world.health(*KEYED)
    world.pass_s(1)
    assert world.call().repeat
