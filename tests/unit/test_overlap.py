"""Overlap is per schedule; its admitted, running and interrupted runs count (spec section 5)."""

from scheduler_daemon.core import commands as cmd
from tests.builders import DAILY, World, at, result


def test_a_running_run_skips_the_next_instant_and_the_row_names_it():
    world = World()
    world.create()
    world.until("09:00")
    world.until("09:01")
    assert world.history()[-1] == "09:01 skipped-overlap overlap"
    assert world.rows()[-1].blocking_run_id == "run-000001"


def test_an_interrupted_run_blocks_and_the_row_names_it():
    world = World()
    world.create()
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.until("09:01")
    assert world.history()[-1] == "09:01 skipped-overlap overlap"
    assert world.rows()[-1].blocking_run_id == "run-000001"


def test_an_unsent_run_blocks():
    world = World()
    world.create(lateness_s=600)
    world.until("09:00")
    world.not_sent(server_down=True)
    world.until("09:01")
    assert world.history()[-1] == "09:01 skipped-overlap overlap"


def test_an_ambiguous_run_blocks():
    world = World()
    world.create()
    world.until("09:00")
    world.server_down()
    world.lost()
    assert world.run().phase == "ambiguous"
    world.until("09:00:20")
    world.server_down()
    world.until("09:01")
    assert "09:01 skipped-overlap overlap" in world.history() or world.schedule().candidate is not None


def test_a_completed_failed_or_exhausted_run_releases():
    for status in ("completed", "failed", "exhausted"):
        world = World()
        world.create()
        world.until("09:00")
        world.answered(status=status)
        world.until("09:01")
        assert world.history()[-3:] == [f"09:00 {status}", "09:01 admitted", "09:01 running"]


def test_other_schedules_never_count():
    world = World()
    world.create("first")
    world.create("second")
    world.until("09:00")
    assert world.history("second") == ["09:00 admitted", "09:00 running"]


def test_parallel_admits_up_to_its_limit():
    world = World(preflight_ttl_s=600)
    world.create(overlap="parallel", max_active_runs=2)
    for minute in ("09:00", "09:01", "09:02"):
        world.until(minute)
    assert world.history() == [
        "09:00 admitted",
        "09:00 running",
        "09:01 admitted",
        "09:01 running",
        "09:02 skipped-overlap overlap",
    ]
    assert world.rows()[-1].blocking_run_id == "run-000001"


def test_three_to_one_cancels_nothing_and_admits_nothing_until_none_is_left_above_the_limit():
    world = World(preflight_ttl_s=600)
    world.create(overlap="parallel", max_active_runs=3)
    for minute in ("09:00", "09:01", "09:02"):
        world.until(minute)
    world.update(max_active_runs=1)
    assert [effect for effect in world.open if isinstance(effect, cmd.CancelCall)] == []
    world.answered("run-000001")
    world.until("09:03")
    assert world.history()[-1] == "09:03 skipped-overlap overlap"
    world.answered("run-000002")
    world.until("09:04")
    assert world.history()[-1] == "09:04 skipped-overlap overlap"
    world.answered("run-000003")
    world.until("09:05")
    assert world.history()[-2:] == ["09:05 admitted", "09:05 running"]
    finished = [line for line in world.history() if line.endswith("completed")]
    assert len(finished) == 3


def test_a_candidate_whose_limit_was_lowered_waits_for_overlap_and_is_admitted_when_it_is_open():
    world = World(max_concurrent_runs=3, preflight_ttl_s=3600)
    world.create("rival", DAILY)
    world.create("second", overlap="parallel", max_active_runs=3, misfire="latest")
    for minute in ("09:00", "09:01", "09:02"):
        world.until(minute)
    assert world.schedule("second").candidate.instant == at("09:02")
    world.update("second", max_active_runs=1)
    world.answered("run-000001")
    assert world.schedule("second").candidate.instant == at("09:02")
    world.answered("run-000002")
    assert world.schedule("second").candidate.instant == at("09:02")
    world.answered("run-000003")
    assert world.history("second")[-2:] == ["09:02 admitted", "09:02 running"]


def test_raising_the_limit_admits_a_candidate_that_overlap_held():
    world = World(preflight_ttl_s=600)
    world.create(overlap="parallel", max_active_runs=1, misfire="latest")
    world.until("09:00")
    world.until("09:01")
    assert world.schedule().candidate.waiting == "overlap"
    world.update(max_active_runs=2)
    assert world.history()[-2:] == ["09:01 admitted", "09:01 running"]


def test_setting_skip_drops_the_limit():
    world = World()
    world.create(overlap="parallel", max_active_runs=3)
    view = world.update(overlap="skip")
    assert view.overlap == "skip"
    assert view.max_active_runs is None


def test_an_outcome_unknown_end_releases_overlap_at_once_without_a_hold():
    world = World()
    world.create()
    world.until("09:00")
    world.lost()
    world.live_s(1)
    world.listed()
    world.until("09:01")
    assert world.history()[-2:] == ["09:01 admitted", "09:01 running"]


def test_a_run_resumed_at_an_interrupt_goes_on_blocking():
    world = World()
    world.create()
    world.until("09:00")
    world.answered(status="interrupted", trace_count=1)
    world.resume_run(fresh=result("interrupted", "server-run-000001", trace_count=1))
    world.until("09:01")
    assert world.history()[-1] == "09:01 skipped-overlap overlap"
