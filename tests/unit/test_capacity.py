"""Slots: how many execute, who comes first, and what a resume may do (spec section 5)."""

from scheduler_daemon.core import commands as cmd
from tests.builders import DAILY, World, at


def test_at_most_max_concurrent_runs_execute():
    world = World(max_concurrent_runs=2)
    for name in ("a", "b", "c"):
        world.create(name, DAILY)
    world.until("09:00")
    assert [call.schedule_id for call in world.all(cmd.StartCall)] == ["a", "b"]
    assert world.state.globals.slots_used == 2
    assert world.schedule("c").candidate.waiting == "no-slot"


def test_the_schedule_least_recently_admitted_comes_first():
    world = World(max_concurrent_runs=1, preflight_ttl_s=3600)
    world.create("a", misfire="latest")
    world.create("b", misfire="latest")
    world.until("09:00")
    world.until("09:01")
    world.answered("run-000001")
    assert world.one(cmd.StartCall).schedule_id == "b"
    world.until("09:02")
    world.answered("run-000002")
    assert world.one(cmd.StartCall).schedule_id == "a"


def test_a_schedule_never_admitted_comes_before_all_others():
    world = World(max_concurrent_runs=1, preflight_ttl_s=3600)
    world.create("a", misfire="latest")
    world.until("09:00")
    world.create("z", misfire="latest")
    world.until("09:01")
    world.answered("run-000001")
    assert world.one(cmd.StartCall).schedule_id == "z"


def test_among_equals_the_oldest_instant_comes_first_and_then_the_id():
    world = World(max_concurrent_runs=1, preflight_ttl_s=3600)
    world.create("holder", DAILY)
    world.until("09:00")
    world.create("c", at=at("09:02"), misfire="latest")
    world.create("b", at=at("09:03"), misfire="latest")
    world.create("a", at=at("09:03"), misfire="latest")
    world.until("09:03")
    order = []
    for number in range(1, 5):
        order.append(world.one(cmd.StartCall).schedule_id)
        world.answered(f"run-{number:06}")
    assert order == ["holder", "c", "a", "b"]


def test_the_just_due_and_those_in_line_share_one_order():
    world = World(max_concurrent_runs=1, preflight_ttl_s=3600)
    world.create("holder", DAILY)
    world.create("old", at=at("09:01"), misfire="latest")
    world.create("new", at=at("09:02"), misfire="latest")
    world.until("09:01")
    draft_before = world.all(cmd.StartCall)
    assert [call.schedule_id for call in draft_before] == ["holder"]
    world.answered("run-000001")
    assert world.one(cmd.StartCall).schedule_id == "old"
    world.until("09:02")
    world.answered("run-000002")
    assert world.one(cmd.StartCall).schedule_id == "new"


def test_seven_schedules_under_one_slot_and_overload_all_run():
    world = World(max_concurrent_runs=1, preflight_ttl_s=36_000)
    names = [f"s{number}" for number in range(7)]
    for name in names:
        world.create(name, misfire="latest")
    served = []
    for minute in range(28):
        world.until(f"09:{minute:02}:10")
        for _ in range(2):
            call = world.one(cmd.StartCall)
            served.append(call.schedule_id)
            world.pass_s(1)
            world.answered(call.run_id)
    counts = {name: served.count(name) for name in names}
    assert max(counts.values()) - min(counts.values()) <= 1, counts


def test_seven_skip_schedules_under_one_slot_and_overload_all_run():
    world = World(max_concurrent_runs=1, preflight_ttl_s=36_000)
    names = [f"s{number}" for number in range(7)]
    for name in names:
        world.create(name)
    served = []
    for minute in range(28):
        world.live_until(f"09:{minute:02}:10")
        call = world.one(cmd.StartCall)
        served.append(call.schedule_id)
        world.answered(call.run_id)
    assert set(served) == set(names)


def test_a_resume_is_never_refused_for_capacity_and_nothing_is_admitted_above_the_bound():
    world = World(max_concurrent_runs=1, preflight_ttl_s=3600)
    world.create("asks", at=at("09:00"))
    world.create("next", at=at("09:01"), misfire="latest")
    world.create("last", at=at("09:02"), misfire="latest")
    world.until("09:00")
    world.answered("run-000001", "interrupted", trace_count=1)
    world.until("09:01")
    assert world.one(cmd.StartCall).schedule_id == "next"
    world.resume_run("run-000001")
    assert world.state.globals.slots_used == 2
    world.until("09:02")
    world.answered("run-000002")
    assert world.all(cmd.StartCall) == []
    assert world.schedule("last").candidate.waiting == "no-slot"
    world.answered("run-000001")
    assert world.one(cmd.StartCall).schedule_id == "last"


def test_interrupted_runs_hold_no_slot():
    world = World(max_concurrent_runs=1)
    world.create("asks", at=at("09:00"))
    world.create("next", at=at("09:01"))
    world.until("09:00")
    world.answered("run-000001", "interrupted", trace_count=1)
    assert world.state.globals.slots_used == 0
    world.until("09:01")
    assert world.one(cmd.StartCall).schedule_id == "next"


def test_an_unsent_run_gives_its_slot_back_and_is_sent_again_before_its_schedules_candidate():
    world = World(max_concurrent_runs=1, preflight_ttl_s=3600)
    world.create(at=at("09:00"), lateness_s=600)
    world.until("09:00")
    world.not_sent()
    assert world.state.globals.slots_used == 0
    assert world.all(cmd.StartCall) == []
    world.live_until("09:00:01")
    again = world.one(cmd.StartCall)
    assert (again.run_id, again.repeat, again.key) == ("run-000001", False, "store:run-000001")


def test_an_unsent_run_backs_off_from_half_a_second_to_thirty():
    world = World(preflight_ttl_s=3600)
    world.create(at=at("09:00"), misfire="latest")
    world.until("09:00")
    waits = []
    for _ in range(9):
        lost_at = world.now.mono
        world.not_sent()
        while not world.all(cmd.StartCall):
            world.pass_s(0.25)
        waits.append(world.now.mono - lost_at)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_two_unsent_runs_of_one_schedule_are_both_sent_again_in_one_wake():
    world = World(preflight_ttl_s=3600)
    world.create(overlap="parallel", max_active_runs=2, lateness_s=600)
    world.until("09:00")
    world.until("09:01")
    world.not_sent("run-000001", server_down=True)
    world.not_sent("run-000002")
    world.pass_s(5)
    world.server_up()
    assert sorted(call.run_id for call in world.all(cmd.StartCall)) == ["run-000001", "run-000002"]


def test_one_unsent_run_that_backs_off_does_not_hold_up_the_next_of_its_schedule():
    world = World(preflight_ttl_s=3600)
    world.create(overlap="parallel", max_active_runs=3, lateness_s=600)
    world.until("09:00")
    for _ in range(4):
        world.not_sent("run-000001")
        world.live_until(f"09:00:{int(world.now.at.second) + 5:02}")
    world.not_sent("run-000001")
    world.until("09:01")
    assert "09:01 running" in world.history()


def test_a_thousand_due_at_once_all_end_admitted_or_with_a_reason_and_four_run_at_a_time():
    world = World(checked=False, max_concurrent_runs=4, preflight_ttl_s=36_000)
    for number in range(1000):
        world.create(f"s{number:03}", at=at("09:00"), misfire="latest" if number % 2 else "skip", lateness_s=200)
    world.create("minutely", misfire="latest")
    for second in range(120):
        world.create(f"o{second:03}", at=at(f"09:{second // 60:02}:{second % 60:02}"), misfire="latest")
    world.until("09:00")
    served = []
    while calls := world.all(cmd.StartCall):
        assert len(calls) <= 4
        assert world.state.globals.slots_used <= 4
        served.append(calls[0].schedule_id)
        world.answered(calls[0].run_id)
        world.pass_s(0.5)
    once = [name for name in served if name.startswith("s")]
    assert once[:400] == sorted(once[:400])
    assert served.count("minutely") >= 2
    for number in range(1000):
        ends = [row for row in world.rows(f"s{number:03}") if row.status in ("completed", "skipped-misfire")]
        assert len(ends) == 1, number
        assert number % 2 == 0 or ends[0].status == "completed"
        assert ends[0].status == "completed" or ends[0].reason == "no-slot"
    assert all(world.rows(f"o{second:03}")[-1].status == "completed" for second in range(120))
