"""What callers are shown: the payload, pages, states (spec section 11)."""

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.queries import list_ids, schedule_view, state_of
from tests.builders import DAILY, World, at


def ids(world, **asked):
    options = {"after": None, "limit": 100, "include_deleted": False, "deployment_id": None, "state": None}
    return list_ids(world.state, **{**options, **asked})


def many(count=7):
    world = World(checked=False)
    for number in range(count):
        world.create(f"s{number}", DAILY, deployment_id="even" if number % 2 == 0 else "odd")
    return world


def test_the_payload_has_the_definition_and_what_became_of_it():
    world = World()
    view = world.create(
        cron=DAILY,
        timezone="Europe/Berlin",
        input={"who": {"value": "x"}},
        overlap="parallel",
        max_active_runs=2,
        misfire="latest",
        lateness_s=30,
        max_steps=5,
        hold_unknown_s=10.0,
        run_timeout_s=60.0,
    )
    assert (view.schedule_id, view.deployment_id, view.revision, view.state) == ("daily", "dep", 1, "active")
    assert (view.trigger.expression, view.trigger.timezone) == (DAILY, "Europe/Berlin")
    assert view.input == {"who": {"value": "x"}}
    assert (view.overlap, view.max_active_runs, view.misfire, view.lateness_s) == ("parallel", 2, "latest", 30)
    assert (view.max_steps, view.hold_unknown_s, view.run_timeout_s) == (5, 10.0, 60.0)
    assert (view.created_at, view.updated_at, view.watermark) == (at("08:59:30"),) * 3
    assert (view.candidate, view.active_runs, view.ambiguous_runs, view.diagnostics) == (None, (), (), ())


def test_the_next_five_instants_are_shown():
    view = World().create(cron="0 9,12 * * *")
    assert [instant.isoformat() for instant in view.next_instants] == [
        "2026-01-05T09:00:00+00:00",
        "2026-01-05T12:00:00+00:00",
        "2026-01-06T09:00:00+00:00",
        "2026-01-06T12:00:00+00:00",
        "2026-01-07T09:00:00+00:00",
    ]


def test_a_paused_schedule_shows_what_it_would_fire_at_if_it_were_resumed_now():
    world = World()
    world.create(cron="0 * * * *")
    world.pause()
    world.until("11:30")
    assert world.view().next_instants[0] == at("12:00")


def test_a_deleted_and_a_finished_schedule_show_none():
    world = World()
    world.create("gone", DAILY)
    world.create("once", at=at("09:00"))
    assert world.delete("gone").next_instants == ()
    world.until("09:00")
    assert world.view("once").next_instants == ()


def test_an_active_run_is_shown_with_its_ids_and_its_interrupt():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    (shown,) = world.view().active_runs
    assert (shown.run_id, shown.instant, shown.status, shown.revision) == ("run-000001", at("09:00"), "running", 1)
    assert (shown.server_run_id, shown.interrupt, shown.ambiguous) == (None, None, False)
    world.answered(status="interrupted", trace_count=1, interrupt={"kind": "approval"})
    (shown,) = world.view().active_runs
    assert (shown.status, shown.server_run_id, shown.interrupt) == (
        "interrupted",
        "server-run-000001",
        {"kind": "approval"},
    )


def test_an_unsent_run_is_shown_as_admitted():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.not_sent()
    assert [shown.status for shown in world.view().active_runs] == ["admitted"]


def test_reads_see_committed_state_only():
    world = World()
    world.create(cron=DAILY)
    draft = world.state.draft(world.now)
    from scheduler_daemon.core.handle import handle

    handle(draft, cmd.Pause("daily"))
    assert schedule_view(draft, "daily").state == "paused"
    assert schedule_view(world.state, "daily", now=world.now).state == "active"
    draft.drop()
    assert world.view().state == "active"


def test_pages_follow_the_order_of_ids_and_concatenate_to_the_whole():
    world = many()
    first, after = ids(world, limit=3)
    second, after_second = ids(world, limit=3, after=after)
    third, end = ids(world, limit=3, after=after_second)
    assert (first, second, third) == (["s0", "s1", "s2"], ["s3", "s4", "s5"], ["s6"])
    assert (after, after_second, end) == ("s2", "s5", None)


def test_a_page_that_ends_with_the_list_has_no_next():
    world = many(3)
    assert ids(world, limit=3) == (["s0", "s1", "s2"], None)


def test_schedules_that_come_and_go_between_pages_shift_nothing():
    world = many()
    _, after = ids(world, limit=3)
    world.create("s00", DAILY)
    world.delete("s4")
    assert ids(world, limit=3, after=after) == (["s3", "s5", "s6"], None)


def test_deleted_ones_are_listed_only_when_asked_for():
    world = many(3)
    world.delete("s1")
    assert ids(world)[0] == ["s0", "s2"]
    assert ids(world, include_deleted=True)[0] == ["s0", "s1", "s2"]
    assert ids(world, state="deleted")[0] == ["s1"]


def test_the_list_can_be_narrowed_to_a_deployment_and_to_a_state():
    world = many(4)
    world.pause("s2")
    assert ids(world, deployment_id="even")[0] == ["s0", "s2"]
    assert ids(world, state="paused")[0] == ["s2"]
    assert ids(world, state="active", deployment_id="even")[0] == ["s0"]
    assert ids(world, state="finished")[0] == []


def test_a_filter_that_matches_beyond_the_page_still_has_a_next():
    world = many()
    assert ids(world, deployment_id="even", limit=2) == (["s0", "s2"], "s2")
    assert ids(world, deployment_id="even", limit=2, after="s2") == (["s4", "s6"], None)


def test_the_state_is_derived_from_the_effective_watermark():
    world = World()
    world.create(at=at("09:00"))
    schedule = world.schedule()
    assert state_of(schedule, at("08:59:59")) == "active"
    assert state_of(schedule, at("09:00")) == "finished"
