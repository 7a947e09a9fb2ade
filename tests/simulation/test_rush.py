"""A thousand schedules due at once, four slots, rivals that never rest, runs of other people: the whole daemon, nothing broken.

The ledger looks at every record as in any seed: slots, overlap, and whose turn it was.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from scheduler_daemon.core.events import RunAdmitted
from scheduler_daemon.core.model import Cron, Definition, OneShot, Settings
from tests.simulation.plan import URL, Plan
from tests.simulation.server import Deployment, ServerStore
from tests.simulation.store import DiskFaults
from tests.simulation.wire import NetFaults
from tests.simulation.world import World

SLOTS = 4
CROWD = 1000
RUSH_AT = datetime(2030, 3, 1, 9, tzinfo=UTC)
MINUTELY = Cron("* * * * *")


def quiet_world(duration_s, **settings):
    """Nothing goes wrong here; each run lasts as long as `duration_s` says."""
    plan = Plan(
        seed=1,
        settings=Settings(max_concurrent_runs=SLOTS, server_url=URL, **settings),
        start_at=RUSH_AT - timedelta(seconds=45),
        fault_s=0.0,
        schedules_max=CROWD,
        act_s=1.0,
        pace_s=1.0,
        poll_interval_s=1.0,
        drain_grace_s=0.0,
        features=(),
        announces_instance=True,
        events=(),
        focus="everything",
        down_s=1.0,
        net=NetFaults(),
        disk=DiskFaults(),
        real_store=False,
        deployments={"quick": Deployment(duration_s, {"completed": 1.0})},
    )
    world = World(plan)
    world.loop.iterations_max = 1_000_000
    return world


async def begin(world):
    world.boot_server((), ServerStore("/srv/1"))
    world.start_daemon()
    await asyncio.sleep(0.5)
    assert world.daemon.host.state.globals.server.up


async def create(world, schedule_id, trigger, **fields):
    told = await world.ask(
        "create", Definition(schedule_id=schedule_id, deployment_id="quick", trigger=trigger, **fields)
    )
    assert told.how == "ok", told


class Watched:
    """What the server executes at once, and the order in which occurrences were admitted."""

    def __init__(self, world):
        self.most = 0
        self.admitted: list[RunAdmitted] = []
        self._world = world
        watch, batch = world.server.watch, world.ledger.batch

        def executing(execution):
            self.most = max(self.most, len(world.server.process.executions))
            watch(execution)

        def written(events):
            self.admitted += [event for event in events if isinstance(event, RunAdmitted)]
            batch(events)

        world.server.watch, world.ledger.batch = executing, written

    def order(self, prefix):
        return [event.schedule_id for event in self.admitted if event.schedule_id.startswith(prefix)]


def played(world, script):
    report = world.run(script)
    assert report.violations == []


def ends(world, schedule_id):
    """How each of its instants ended."""
    return list(world.ledger.schedules[schedule_id].rowed.values())


def test_of_a_thousand_due_at_once_four_execute_in_order_and_every_one_ends_admitted_or_with_its_reason():
    world = quiet_world((0.5, 1.5))
    watched = Watched(world)

    async def script(world):
        await begin(world)
        for number in range(CROWD):
            await create(world, f"s{number:03}", OneShot(RUSH_AT), misfire="latest" if number % 2 else "skip")
        await create(world, "minutely", MINUTELY, misfire="latest")
        for second in range(120):
            await create(world, f"o{second:03}", OneShot(RUSH_AT + timedelta(seconds=second)), misfire="latest")
        assert world.clock.now().at < RUSH_AT
        await asyncio.sleep(600.0)

    played(world, script)
    assert watched.most == SLOTS
    firsts = {event.schedule_id: event.instant for event in reversed(watched.admitted)}
    turns = [(firsts[name], name) for name in dict.fromkeys(event.schedule_id for event in watched.admitted)]
    assert turns == sorted(turns)
    assert len(watched.order("minutely")) >= 5
    assert len(watched.order("o")) == 120
    for number in range(CROWD):
        (end,) = ends(world, f"s{number:03}")
        assert end == "completed" or (number % 2 == 0 and end == "skipped-misfire")
    skipped = world.disk.rows["s998"]
    assert [(row.status, row.reason) for row in skipped] == [("skipped-misfire", "no-slot")]


def test_under_permanent_overload_by_equals_a_minutely_latest_schedule_and_each_of_its_rivals_go_on_running():
    world = quiet_world((9.0, 9.0), preflight_ttl_s=5.0)
    watched = Watched(world)
    names = ["minutely", *(f"rival-{number:02}" for number in range(39))]

    async def script(world):
        await begin(world)
        for name in names:
            await create(world, name, MINUTELY, misfire="latest")
        await asyncio.sleep(1800.0)

    played(world, script)
    assert watched.most == SLOTS
    served = {name: len(watched.order(name)) for name in names}
    assert min(served.values()) >= 1800 // (9 * len(names) // SLOTS) - 2
    assert max(served.values()) - min(served.values()) <= 1


def test_a_minutely_schedule_waits_behind_one_shots_that_never_ran_for_as_long_as_they_may_be_late_and_no_longer():
    world = quiet_world((6.0, 6.0))
    watched = Watched(world)

    async def script(world):
        await begin(world)
        await create(world, "minutely", MINUTELY, misfire="latest")
        for second in range(180):
            await create(world, f"o{second:03}", OneShot(RUSH_AT + timedelta(seconds=second)))
        await asyncio.sleep(900.0)

    played(world, script)
    assert watched.most == SLOTS
    rows = [row for second in range(180) for row in world.disk.rows[f"o{second:03}"]]
    assert {(row.status, row.reason) for row in rows} == {
        ("admitted", None),
        ("running", None),
        ("completed", None),
        ("skipped-misfire", "no-slot"),
    }
    waited = [event.at for event in watched.admitted if event.schedule_id == "minutely"]
    assert waited[0] == RUSH_AT
    assert waited[1] <= RUSH_AT + timedelta(seconds=180 + 60 + 6)
    assert len(waited) >= 10


def test_runs_that_people_start_at_the_server_count_towards_neither_slots_nor_overlap():
    world = quiet_world((90.0, 90.0))

    async def script(world):
        await begin(world)
        for name in ("a", "b", "c", "d"):
            await create(world, name, MINUTELY)
        for _ in range(10):
            world.server.process.somebody_starts("quick")
        await asyncio.sleep(120.0)

    played(world, script)
    for number, name in enumerate(("a", "b", "c", "d"), start=1):
        first, _, overlapped = world.disk.rows[name][:3]
        assert (first.status, first.instant, first.at) == ("admitted", RUSH_AT, RUSH_AT)
        assert (overlapped.status, overlapped.blocking_run_id) == ("skipped-overlap", f"run-{number:06}")
