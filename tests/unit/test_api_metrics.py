"""`GET /metrics` from a real state: which series there are, and that their number is bounded."""

from datetime import timedelta

import pytest

from scheduler_daemon.api.metrics import Page
from scheduler_daemon.core.model import Now
from scheduler_daemon.runtime.figures import SINGLE_MAX, Counters
from tests.scribe import NOON, Scribe


class Source:
    """A state with its counters, as the daemon has them."""

    def __init__(self) -> None:
        self.scribe = Scribe()
        self.counters = Counters()

    def committed(self, *events) -> None:
        for each in events:
            self.counters.committed(each, 0.002)

    def checks(self):
        return []

    def figures(self):
        return self.counters.read(self.scribe.state, Now(NOON + timedelta(hours=1), 1000.0), 999.5)

    def lines(self, *of: str) -> list[str]:
        """The page without comments and `_created`; only of these metrics, if some are named."""
        page = Page(self).render().decode().splitlines()
        return [line for line in page if not line.startswith("#") and (not of or line.startswith(of))]


@pytest.fixture
def source():
    return Source()


def test_every_state_and_every_phase_has_its_gauge_from_the_start(source):
    lines = source.lines("scheduler_schedules{", "scheduler_runs{")
    states = ("active", "blocked", "deleted", "finished", "paused")
    assert lines[:5] == [f'scheduler_schedules{{state="{state}"}} 0.0' for state in states]
    assert lines[5:] == [
        f'scheduler_runs{{phase="{phase}"}} 0.0' for phase in ("admitted", "ambiguous", "interrupted", "running")
    ]


def test_blocked_schedules_and_interrupted_runs_are_counted(source):
    scribe = source.scribe
    scribe.create("a")
    scribe.create("b")
    scribe.block("b")
    scribe.admit("a")
    scribe.interrupt("a")
    lines = source.lines("scheduler_schedules{", "scheduler_runs{")
    assert 'scheduler_schedules{state="blocked"} 1.0' in lines
    assert 'scheduler_runs{phase="interrupted"} 1.0' in lines


def test_each_schedule_shows_its_state_its_runs_and_how_its_occurrences_ended(source):
    scribe = source.scribe
    scribe.create("nightly")
    scribe.create("paused")
    scribe.pause("paused")
    source.committed(scribe.skip("nightly"), scribe.skip("nightly"), scribe.ran("nightly"))
    scribe.admit("nightly")
    assert source.lines("scheduler_schedule_", "scheduler_schedules_unlisted") == [
        'scheduler_schedule_state{schedule_id="nightly",state="active"} 1.0',
        'scheduler_schedule_state{schedule_id="paused",state="paused"} 1.0',
        'scheduler_schedule_runs{schedule_id="nightly"} 1.0',
        'scheduler_schedule_runs{schedule_id="paused"} 0.0',
        'scheduler_schedule_ends_total{schedule_id="nightly",status="completed"} 1.0',
        'scheduler_schedule_ends_total{schedule_id="nightly",status="skipped-misfire"} 2.0',
        "scheduler_schedules_unlisted 0.0",
    ]
    assert 'scheduler_decisions_total{reason="late",status="skipped-misfire"} 2.0' in source.lines()


def test_beyond_the_bound_the_first_by_id_have_series_and_the_others_are_counted(source):
    for number in range(SINGLE_MAX + 7):
        source.scribe.create(f"s{number:04}")
    source.scribe.delete("s0000")
    states = source.lines("scheduler_schedule_state")
    assert len(states) == SINGLE_MAX
    assert 'schedule_id="s0001"' in states[0]
    assert f'schedule_id="s{SINGLE_MAX:04}"' in states[-1]
    assert source.lines("scheduler_schedules_unlisted") == ["scheduler_schedules_unlisted 6.0"]


def test_one_commit_is_one_in_the_histogram_of_commits(source):
    source.committed(source.scribe.create("a"))
    lines = source.lines("scheduler_commit_seconds")
    assert 'scheduler_commit_seconds_bucket{le="0.001"} 0.0' in lines
    assert 'scheduler_commit_seconds_bucket{le="0.0025"} 1.0' in lines
    assert "scheduler_commit_seconds_count 1.0" in lines
