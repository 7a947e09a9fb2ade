"""No wake without a reason, no reason without a wake (spec section 5).

`tests/invariants.py` asserts after every turn of every test that the next wake lies ahead and that deciding again decides nothing;
here are the wakes themselves, and that nothing walks over schedules that nothing is due for.
"""

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.decide import HEARTBEAT, decide, next_wake
from tests.builders import DAILY, World, at, clock


def wake_at(world):
    return clock(next_wake(world.state)[0])


def test_an_active_schedule_wakes_two_seconds_before_its_next_instant_and_at_it():
    world = World("08:59:45")
    world.create(cron=DAILY)
    assert wake_at(world) == "08:59:58"
    world.until("08:59:58")
    assert wake_at(world) == "09:00"


def test_it_wakes_at_the_next_instant_after_the_watermark_and_never_after_now():
    world = World("08:59:59.5")
    world.create(cron=DAILY)
    world.asleep_until("09:00:00.2")
    assert next_wake(world.state)[0] <= at("09:00")


def test_a_skip_candidate_wakes_just_after_its_allowance():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create("held", DAILY)
    world.until("09:00")
    world.until("09:00:50")
    assert next_wake(world.state)[0] == at("09:01:00.000001") or next_wake(world.state)[0] == at("09:00") + HEARTBEAT


def test_a_latest_candidate_that_waits_for_a_slot_does_not_wake():
    world = World(max_concurrent_runs=1)
    world.create("a-holder", DAILY)
    world.create("held", DAILY, misfire="latest")
    world.until("09:00:10")
    assert next_wake(world.state)[0] == world.state.globals.decided_until + HEARTBEAT


def test_a_paused_schedule_does_not_wake():
    world = World()
    world.create()
    world.pause()
    assert next_wake(world.state)[0] == world.state.globals.decided_until + HEARTBEAT


def test_an_unsent_run_wakes_by_the_monotonic_clock():
    world = World()
    world.create(cron=DAILY)
    world.until("09:00")
    world.not_sent()
    assert next_wake(world.state)[1] == world.now.mono + 0.5


def test_a_draining_or_full_daemon_wakes_for_nothing_and_consumes_nothing():
    for stop in (lambda world: world.command(cmd.Drain()), lambda world: world.observe(cmd.StoreRoom(full=True))):
        world = World()
        world.create()
        stop(world)
        assert next_wake(world.state) == (None, None)
        before = list(world.journal)
        world.until("09:05")
        assert world.journal == before


def test_room_on_the_disk_again_is_downtime_that_ends():
    world = World()
    world.create(cron=DAILY)
    world.observe(cmd.StoreRoom(full=True))
    world.until("09:00:30")
    world.observe(cmd.StoreRoom(full=False))
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_drain_writes_down_up_to_when_everything_is_decided():
    world = World()
    world.create()
    world.pass_s(10)
    world.command(cmd.Drain())
    assert world.state.globals.decided_until == at("08:59:40")


def test_a_drain_that_finds_something_due_does_not_decide_it():
    world = World()
    world.create()
    world.asleep_until("09:00:10")
    world.command(cmd.Drain())
    assert world.history() == []
    assert world.state.globals.decided_until == at("08:59:59.999999")
    world.restart()
    assert world.history() == ["09:00 admitted", "09:00 running"]


def test_a_wake_with_nothing_due_looks_at_no_schedule(monkeypatch):
    world = World(checked=False)
    for number in range(300):
        world.create(f"s{number:03}", "0 12 * * *")
    world.until("09:00")
    world.until("09:00:01")
    touched = []
    get = world.state.schedules.__class__.__getitem__

    class Counting(dict):
        def get(self, key, default=None):
            touched.append(key)
            return super().get(key, default)

        def __getitem__(self, key):
            touched.append(key)
            return get(self, key)

        def __iter__(self):
            touched.append("iterated")
            return super().__iter__()

    world.state.schedules = Counting(world.state.schedules)
    world.pass_s(1)
    assert touched == []


def test_a_decision_that_was_dropped_is_made_again():
    world = World()
    world.create(cron=DAILY)
    world.asleep_until("09:00")
    draft = world.state.draft(world.now)
    lost = decide(draft)
    draft.drop()
    assert world.state.schedules["daily"].runs == ()
    again = world.wake()
    assert again.events == lost.events
    assert world.history() == ["09:00 admitted", "09:00 running"]
    assert world.state.globals.slots_used == 1
