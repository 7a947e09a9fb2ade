"""The benchmarks in a short form: that they end, and that the daemon loses and doubles nothing in them.  No time is judged."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.benchmarks import adapter, crashing, firing, seeds, soak, stored
from tests.benchmarks.__main__ import CASES
from tests.benchmarks.rig import lateness_ms
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.alone


async def test_a_burst_loses_and_doubles_nothing():
    told = await firing.burst(200, kind="oneshot")
    assert (told["lost"], told["duplicated"], told["early"]) == (0, 0, 0)
    assert told["firings_per_s"] > 0 < told["of_bare_loop"]


@pytest.mark.long
async def test_a_steady_load_loses_and_doubles_nothing():
    told = await firing.steady(2, per_s=50)
    assert (told["n"], told["lost"], told["duplicated"]) == (100, 0, 0)


async def test_a_burst_that_is_killed_loses_nothing_unnoticed_and_doubles_nothing():
    told = await crashing.killed(200, slots=16, rest_s=2)
    assert (told["lost"], told["duplicated"]) == (0, 0)
    assert told["ambiguous"] <= 16
    assert sum(told["ends"].values()) == 200


async def test_a_day_down_is_one_row_of_each_schedule():
    told = await crashing.caught_up(50)
    assert told["summary_rows"] == {"1": 50}


async def test_every_create_that_is_counted_was_acknowledged():
    told = await stored.registered(100)
    assert told["acknowledged"] == 200


@pytest.mark.long
async def test_a_store_full_of_sleepers_starts_and_stays_still():
    told = await stored.asleep(1_000, idle_s=0.2, starts=1)
    assert told["started"] == 0


@pytest.mark.long
async def test_many_stored_schedules_cost_a_burst_nothing_that_arrives():
    told = await stored.growth(100, 1_000, firings=50, idle_s=0.2)
    assert told["lost"] == 0


async def test_the_pages_of_a_long_history_hold_every_row():
    told = await stored.history(3_000)
    assert (told["found"], told["pages"]) == (3_000, 30)


async def test_a_soak_loses_nothing_unnoticed_and_doubles_nothing():
    told = await soak.soak(8.0, per_s=25, restarts=2, rest_s=3)
    assert (told["lost"], told["duplicated"]) == (0, 0)
    assert told["edits"] > 0
    assert told["samples"] > 0


async def test_what_never_came_and_nobody_was_told_of_is_lost(monkeypatch):
    rows = {
        "came": [{"reason": None, "status": "completed"}],
        "twice": [{"reason": None, "status": "completed"}],
        "told": [{"reason": "outcome-unknown", "status": "failed"}],
        "lost": [{"reason": None, "status": "completed"}],
    }

    class Bench:
        daemon = SimpleNamespace(url="http://daemon.example/rpc")

        async def arrivals(self):
            return [(9.0, "came", "d"), (9.5, "twice", "d"), (11.0, "twice", "d")]

    async def histories(url, ids):
        return {one: rows[one] for one in ids}

    monkeypatch.setattr(crashing.calls, "histories", histories)
    told = await crashing._account(Bench(), list(rows), killed_at=10.0)
    assert (told["lost"], told["duplicated"], told["ambiguous"], told["ambiguous_arrived"]) == (1, 1, 1, 0)
    assert told["first_after_kill_s"] == 1.0


def test_a_slope_is_that_of_the_line():
    assert soak.slope([0, 1, 2, 3], [5, 7, 9, 11]) == pytest.approx(2.0)
    assert soak.slope([1], [7]) == 0.0


def test_only_the_first_arrival_of_an_instant_counts_for_its_lateness():
    due = "2026-01-05T09:00:00Z"
    at = datetime(2026, 1, 5, 9, tzinfo=UTC).timestamp()
    assert lateness_ms([(at + 0.25, "a", due), (at + 9, "a", due), (at + 0.5, "b", due)]) == pytest.approx([250, 500])


def test_none_of_the_sleepers_is_due_within_two_days():
    from scheduler_daemon.core.triggers import next_after

    for month in range(1, 13):
        now = datetime(2026, month, 1 + 27 * (month % 2), 23, 59, tzinfo=UTC)
        for event in seeds.asleep(600, now):
            trigger = event.definition.trigger
            assert (next_after(trigger, now) - now).days >= 2, (trigger, now)


def test_each_case_of_the_table_can_be_named():
    told = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == list(CASES)


def test_the_harness_can_import_the_adapter_without_our_dependencies():
    program = "import json, sys; from tests.benchmarks.adapter import Product; print(json.dumps(sorted(sys.modules)))"
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"aiohttp", "msgspec", "rpc_client"} & set(json.loads(told.stdout))
    assert adapter.Product.name == "scheduler"
