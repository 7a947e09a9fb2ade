"""Many rows: every one is there, pages lead through all of them, retention keeps its bound, and a check finds nothing wrong.

What it costs is printed and not asserted, since it says as much about the machine: `python -m tests.crash.million` prints the same.
"""

import asyncio

import pytest

from scheduler_daemon.core.model import Settings
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.store import Store
from scheduler_daemon.store.tools import verify
from tests.crash import million

KEPT = Retention(runs_max=60, others_max=60)


def _paged(root, schedule_id):
    store = Store(root, mint=lambda: "million")
    store.open(Settings(), million.now())
    rows, after = [], None
    while True:
        page = store.page(schedule_id, after, 7)
        rows += page.rows
        if page.next_n is None:
            store.close()
            return rows
        after = page.next_n


def test_each_of_many_rows_is_on_exactly_one_page(tmp_path):
    asyncio.run(million.fill(tmp_path, 3_000, 10))
    assert verify(tmp_path).rows == 3_000
    numbers = [row.n for row in _paged(tmp_path, million.ids(10)[4])]
    assert len(numbers) == 300
    assert numbers == sorted(set(numbers))


def test_however_many_rows_are_written_no_history_grows_beyond_what_is_kept(tmp_path):
    bound = KEPT.runs_max * (1 + KEPT.slack)
    sizes = []
    for _ in range(4):
        asyncio.run(million.fill(tmp_path, 1_200, 10, retention=KEPT))
        assert all(len(_paged(tmp_path, each)) <= bound for each in million.ids(10))
        sizes.append(million.sizes(tmp_path)["occurrences"])
    assert sizes[-1] <= sizes[0] * 1.5
    report = verify(tmp_path)
    assert report.problems == []
    assert report.rows <= bound * 10


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_a_million_rows_over_a_thousand_schedules(tmp_path):
    said = million.measure(tmp_path, million.ROWS, million.SCHEDULES)
    assert said["build.rows"] == said["build.rows_found"] > 0.99 * million.ROWS
    assert (said["build.problems"], said["problems"]) == (0, 0)
    assert said["retention.rows_kept"] <= said["retention.rows_bound"]
