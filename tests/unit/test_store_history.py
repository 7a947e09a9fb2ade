"""Pages of history, what retention takes from them, and how runs are found."""

from datetime import timedelta

import pytest

from scheduler_daemon.core.events import RangeClosed
from scheduler_daemon.store import history
from scheduler_daemon.store.errors import CursorExpired
from scheduler_daemon.store.history import DAMAGED
from scheduler_daemon.store.retention import Retention
from tests.scribe import NOON, server_id
from tests.shelf import Shelf, rot

EXACT = Retention(runs_max=6, others_max=4, slack=0.0)


@pytest.fixture
def shelf():
    made = Shelf(retention=EXACT)
    made.start()
    made.commit(*made.scribe.create("a"))
    yield made
    made.stop()


def written(shelf, schedule_id="a"):
    return shelf.scribe.rows[schedule_id]


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_put_together_are_the_whole_history_wherever_the_checkpoint_came(shelf, limit):
    shelf.commit(*shelf.scribe.ran("a"))
    shelf.checkpoint()
    shelf.commit(*shelf.scribe.skip("a"), *shelf.scribe.admit("a"))
    assert shelf.rows("a", limit) == written(shelf)
    shelf.checkpoint()
    assert shelf.rows("a", limit) == written(shelf)


def test_a_page_says_where_the_next_begins_and_the_last_says_that_there_is_none(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    first = shelf.store.page("a", None, 2)
    assert ([row.n for row in first.rows], first.next_n) == ([2, 3], 3)
    second = shelf.store.page("a", first.next_n, 2)
    assert ([row.n for row in second.rows], second.next_n) == ([4], None)


def test_rows_that_come_while_somebody_pages_are_on_a_later_page(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    first = shelf.store.page("a", None, 2)
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.checkpoint()
    assert [*first.rows, *shelf.store.page("a", first.next_n, 100).rows] == written(shelf)


def test_a_schedule_without_rows_has_an_empty_page(shelf):
    page = shelf.store.page("a", None, 10)
    assert (page.rows, page.next_n) == ((), None)


def test_rows_are_in_pages_as_soon_as_their_batch_is_durable_and_after_a_restart(shelf):
    shelf.commit(*shelf.scribe.skip("a"))
    assert shelf.rows("a") == written(shelf)
    shelf.restart()
    assert shelf.rows("a") == written(shelf)


def test_a_place_in_a_long_history_is_found_without_reading_it_all(monkeypatch):
    shelf = Shelf()
    shelf.start()
    shelf.commit(*shelf.scribe.create("a"))
    for _ in range(20):
        shelf.commit(*(event for _ in range(60) for event in shelf.scribe.skip("a")))
    shelf.checkpoint()
    decoded = 0
    decode = history.decode_line

    def count(line):
        nonlocal decoded
        decoded += 1
        return decode(line)

    monkeypatch.setattr(history, "decode_line", count)
    for after_n in (1, 350, 700, 1_150):
        decoded = 0
        assert [row.n for row in shelf.store.page("a", after_n, 5).rows] == list(range(after_n + 1, after_n + 6))
        assert decoded < 400
    shelf.stop()


# --- retention --------------------------------------------------------------------------------------------------------


def test_rows_of_runs_and_rows_of_instants_that_did_not_run_are_counted_apart(shelf):
    shelf.commit(*shelf.scribe.ran("a"), *shelf.scribe.ran("a"))
    for _ in range(5):
        shelf.commit(*shelf.scribe.skip("a"), *shelf.scribe.skip("a"))
    shelf.checkpoint()
    rows = shelf.rows("a")
    assert [row.n for row in rows if row.run_id is not None] == [2, 3, 4, 5, 6, 7]
    assert [row.n for row in rows if row.run_id is None] == [14, 15, 16, 17]


def test_a_row_of_an_unfinished_run_is_never_dropped(shelf):
    shelf.commit(*shelf.scribe.admit("a"), *shelf.scribe.interrupt("a"))
    for _ in range(4):
        shelf.commit(*(event for _ in range(9) for event in shelf.scribe.skip("a")))
        shelf.checkpoint()
    assert [row.n for row in shelf.rows("a") if row.run_id is not None] == [2, 3, 4]


def test_rows_are_dropped_when_they_are_too_old(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    shelf.checkpoint()
    for _ in range(100):
        shelf.scribe.tick(86_400)
        shelf.commit(*shelf.scribe.decided())
        shelf.checkpoint()
    assert shelf.rows("a") == []


def test_a_clock_that_is_wrong_by_years_does_not_empty_the_histories(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    shelf.checkpoint()
    shelf.scribe.tick(20 * 365 * 86_400)
    for _ in range(10):
        shelf.commit(*shelf.scribe.decided())
        shelf.checkpoint()
    assert shelf.rows("a") == written(shelf)


def test_a_history_is_bounded_in_bytes(shelf):
    shelf.options["retention"] = Retention(runs_max=1_000, others_max=1_000, bytes_max=20_000, slack=0.0)
    shelf.restart()
    for number in range(20):
        shelf.commit(
            *shelf.scribe.admit("a"), *shelf.scribe.settle("a", output={"text": "x" * 3_000, "number": number})
        )
    shelf.checkpoint()
    assert len(shelf.read("/a.jsonl")) < 20_500
    assert shelf.rows("a")[-1] == written(shelf)[-1]


def test_slack_saves_rewriting_a_history_for_every_row(shelf):
    shelf.options["retention"] = Retention(runs_max=6, others_max=4, slack=0.5)
    shelf.restart()
    for _ in range(6):
        shelf.commit(*shelf.scribe.skip("a"))
        shelf.checkpoint()
    assert len(shelf.rows("a")) == 6
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.checkpoint()
    assert len(shelf.rows("a")) == 4


def test_kept_rows_are_byte_for_byte_what_they_were(shelf):
    shelf.commit(*(event for _ in range(8) for event in shelf.scribe.skip("a")))
    shelf.options["retention"] = Retention()
    shelf.restart()
    shelf.checkpoint()
    before = shelf.read("/a.jsonl").splitlines()
    shelf.options["retention"] = EXACT
    shelf.restart()
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.checkpoint()
    after = shelf.read("/a.jsonl").splitlines()
    assert after[1:-1] == before[-3:]
    assert b'"truncated_before"' in after[0]


# --- cursors ----------------------------------------------------------------------------------------------------------


def fill(shelf, skips):
    shelf.commit(*(event for _ in range(skips) for event in shelf.scribe.skip("a")))
    shelf.checkpoint()


def test_a_cursor_expires_when_rows_after_it_are_dropped(shelf):
    fill(shelf, 4)
    page = shelf.store.page("a", None, 1)
    fill(shelf, 4)
    with pytest.raises(CursorExpired):
        shelf.store.page("a", page.next_n, 1)


def test_a_cursor_stays_when_only_rows_before_it_are_dropped(shelf):
    fill(shelf, 4)
    page = shelf.store.page("a", None, 3)
    fill(shelf, 3)
    rest = shelf.store.page("a", page.next_n, 100)
    assert [*page.rows, *rest.rows] == written(shelf)


def test_a_history_with_holes_of_its_own_can_be_paged_from_its_beginning(shelf):
    """Rows that went before somebody began to read are no loss to him, wherever in the history they were."""
    shelf.commit(*shelf.scribe.ran("a"))
    fill(shelf, 12)
    assert shelf.rows("a", 1) == shelf.rows("a", 100)
    assert [row.n for row in shelf.rows("a", 1)] == [2, 3, 4, 13, 14, 15, 16]


def test_a_cursor_into_a_truncated_history_expires_by_the_next_truncation(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    fill(shelf, 12)
    page = shelf.store.page("a", None, 4)
    assert shelf.store.page("a", page.next_n, 4).rows
    fill(shelf, 2)
    with pytest.raises(CursorExpired):
        shelf.store.page("a", page.next_n, 4)


def test_a_cursor_survives_a_restart_and_the_rewriting_of_another_history(shelf):
    shelf.commit(*shelf.scribe.create("b"))
    fill(shelf, 4)
    page = shelf.store.page("a", None, 2)
    shelf.commit(*(event for _ in range(9) for event in shelf.scribe.skip("b")))
    shelf.checkpoint()
    shelf.restart()
    assert [*page.rows, *shelf.store.page("a", page.next_n, 9).rows] == written(shelf)


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(shelf, change):
    fill(shelf, 4)
    shelf.stop()
    shelf.edit("/a.jsonl", change)
    shelf.start()
    return shelf


def test_a_diagnostic_row_is_passed_once_at_any_page_size(shelf):
    rows = damaged(shelf, lambda data: data[:300] + b"#" + data[301:]).rows("a")
    assert [row.status == DAMAGED for row in rows].count(True) == 1
    for limit in (1, 2, 3):
        assert shelf.rows("a", limit) == rows


@pytest.mark.parametrize("number", [0, 1, 3])
def test_rows_around_a_bad_line_are_as_they_were_written(shelf, number):
    fill(shelf, 4)
    shelf.stop()
    shelf.edit_line("/a.jsonl", number, rot)
    shelf.start()
    found = shelf.rows("a", 2)
    truth = written(shelf)
    assert [row for row in found if row.status != DAMAGED] == [row for row in truth if row is not truth[number]]
    assert [row.n for row in found] == sorted({row.n for row in found})


def test_a_damaged_newline_between_two_rows_is_one_diagnostic_row(shelf):
    fill(shelf, 4)
    shelf.stop()
    shelf.edit_line("/a.jsonl", 1, lambda line: line[:-1] + b"\x0b")
    shelf.start()
    assert [row.status == DAMAGED for row in shelf.rows("a")] == [False, True, False]


def test_a_damaged_last_newline_costs_nothing_and_is_mended_by_the_next_append(shelf):
    fill(shelf, 3)
    shelf.stop()
    shelf.edit_line("/a.jsonl", -1, lambda line: line[:-1] + b"\x0b")
    shelf.start()
    assert shelf.rows("a") == written(shelf)
    fill(shelf, 1)
    assert shelf.rows("a") == written(shelf)
    assert b"\x0b" not in shelf.read("/a.jsonl")


def test_a_bad_last_line_stays_where_it_is_when_rows_are_appended(shelf):
    fill(shelf, 3)
    shelf.stop()
    shelf.edit_line("/a.jsonl", -1, rot)
    shelf.start()
    before = shelf.read("/a.jsonl")
    shelf.commit(*shelf.scribe.skip("a"))
    assert [row.status == DAMAGED for row in shelf.rows("a")] == [False, False, True, False]
    shelf.checkpoint()
    assert shelf.read("/a.jsonl").startswith(before)
    assert [row.status == DAMAGED for row in shelf.rows("a")] == [False, False, True, False]


def test_retention_keeps_a_copy_of_a_bad_line_that_it_drops(shelf):
    fill(shelf, 4)
    shelf.stop()
    shelf.edit_line("/a.jsonl", 1, rot)
    bad = shelf.read("/a.jsonl").splitlines()[1]
    shelf.start()
    fill(shelf, 4)
    assert all(row.status != DAMAGED for row in shelf.rows("a"))
    assert bad in [shelf.fs.image()[path] for path in shelf.files("quarantine/")]


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_run_is_found_by_either_id_wherever_its_rows_are(shelf, checkpoints):
    shelf.commit(*shelf.scribe.admit("a"))
    if checkpoints:
        shelf.checkpoint()
    shelf.commit(*shelf.scribe.interrupt("a"), *shelf.scribe.settle("a"))
    if checkpoints == 2:
        shelf.checkpoint()
    for any_id in ("run-000001", server_id("run-000001")):
        found = shelf.store.find_run(any_id)
        assert found is not None
        assert (found.schedule_id, found.run_id, found.server_run_id) == ("a", "run-000001", server_id("run-000001"))
        assert list(found.rows) == written(shelf)


def test_an_id_that_nothing_is_known_of_is_not_found(shelf):
    fill(shelf, 1)
    shelf.commit(*shelf.scribe.ran("a"))
    shelf.checkpoint()
    for any_id in ("run-000009", "run-00000", "", "run_x", 'run"000001', "a"):
        assert shelf.store.find_run(any_id) is None


def test_a_run_is_found_although_another_names_it_as_the_one_that_blocked(shelf):
    shelf.commit(*shelf.scribe.admit("a"))
    skipped = shelf.scribe.skip("a")[0]
    assert skipped.blocking_run_id is None
    shelf.commit(skipped)
    shelf.checkpoint()
    found = shelf.store.find_run("run-000001")
    assert found is not None
    assert {row.run_id for row in found.rows} == {"run-000001"}


def test_a_run_whose_rows_retention_dropped_is_not_found_any_more(shelf):
    for _ in range(4):
        shelf.commit(*shelf.scribe.ran("a"))
    shelf.checkpoint()
    assert shelf.store.find_run("run-000002") is None
    assert shelf.store.find_run(server_id("run-000002")) is None
    assert shelf.store.find_run("run-000003") is not None


def test_a_run_is_found_although_its_line_of_the_index_is_damaged_and_then_the_index_is_made_again(shelf):
    shelf.commit(*shelf.scribe.ran("a"), *shelf.scribe.ran("a"))
    shelf.checkpoint()
    shelf.stop()
    for path in shelf.files("/runs/"):
        shelf.edit(path, rot)
    damaged = shelf.read("/runs/")
    shelf.start()
    for any_id in ("run-000001", server_id("run-000002")):
        assert shelf.store.find_run(any_id) is not None
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.checkpoint()
    assert shelf.store._index._damaged == set()
    assert shelf.store.find_run("run-000001") is not None
    assert damaged


def test_a_bucket_of_the_index_is_rewritten_without_what_retention_dropped(monkeypatch, shelf):
    from scheduler_daemon.store import runindex

    monkeypatch.setattr(runindex, "_COMPACT_FROM_BYTES", 300)
    monkeypatch.setattr(runindex, "BUCKETS", 1)
    for _ in range(10):
        shelf.commit(*shelf.scribe.ran("a"))
        shelf.checkpoint()
    assert len(shelf.read("/runs/")) < 2_000
    assert b'"gone"' not in shelf.read("/runs/").splitlines()[0]
    assert shelf.store.find_run("run-000010") is not None
    assert shelf.store.find_run("run-000001") is None


# --- instants ---------------------------------------------------------------------------------------------------------


def test_instants_after_a_moment_that_have_a_row_are_told_from_file_and_journal(shelf):
    shelf.commit(*shelf.scribe.skip("a"), *shelf.scribe.skip("a"))
    shelf.checkpoint()
    shelf.commit(*shelf.scribe.ran("a"))
    second = timedelta(seconds=1)
    assert shelf.store.rowed_after("a", NOON + second) == (NOON + 2 * second, NOON + 3 * second)
    assert shelf.store.rowed_after("a", NOON + 9 * second) == ()


def test_a_range_has_no_instant_of_its_own(shelf):
    closed = RangeClosed(
        at=NOON,
        schedule_id="a",
        n=2,
        first_instant=NOON,
        last_instant=NOON + timedelta(hours=1),
        count=60,
        status="skipped-misfire",
        reason="late",
        revision=1,
    )
    shelf.commit(*shelf.scribe._fold(closed))
    assert shelf.store.rowed_after("a", NOON - timedelta(days=1)) == ()
    assert shelf.rows("a")[0].count == 60


def test_a_line_that_is_there_twice_or_in_the_place_of_the_next_puts_no_page_out_of_order():
    shelf = Shelf()
    shelf.start()
    shelf.commit(*shelf.scribe.create("late"))
    for _ in range(6):
        shelf.commit(*shelf.scribe.skip("late"))
    shelf.checkpoint()
    expected = [row.n for row in shelf.scribe.rows["late"]]

    def meddled(content):
        lines = content.splitlines(keepends=True)
        return b"".join([lines[0], lines[0], lines[2], lines[1], *lines[3:]])

    shelf.edit("/late.jsonl", meddled)
    found = [row.n for row in shelf.store.page("late", None, 100).rows]
    assert found == sorted(set(found))
    assert set(found) <= set(expected)
    assert len(found) >= len(expected) - 1
    shelf.stop()
