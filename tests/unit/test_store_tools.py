"""Verifying, backing up and restoring, from outside and beside a daemon that goes on."""

import asyncio
import shutil
import threading

import pytest

from scheduler_daemon.core.model import Settings
from scheduler_daemon.store import store as store_module
from scheduler_daemon.store.errors import RestoreNotAccepted, StoreUnusable
from scheduler_daemon.store.fs import RealFileSystem
from scheduler_daemon.store.store import Retention, Store
from scheduler_daemon.store.tools import backup, restore, verify
from tests.scribe import NOW, Scribe, durable
from tests.shelf import Shelf, rot


@pytest.fixture
def shelf(tmp_path):
    """A store in a scratch folder, with everything in it that a store can have."""
    made = Shelf(RealFileSystem(), root=tmp_path / "live", retention=Retention(runs_max=6, others_max=4, slack=0.0))
    made.lock = None  # the store's own
    made.start()
    s = made.scribe
    made.commit(*s.create("a"), *s.create("b"))
    for _ in range(3):
        made.commit(*s.ran("a"), *s.skip("b"), *s.skip("b"))
        made.checkpoint()
    made.commit(*s.admit("b"), *s.ran("a"))
    yield made
    made.stop()


def files_of(root):
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def path_to(root, part):
    return next(path for path in sorted(root.rglob("*.json*"), reverse=True) if part in str(path))


def damage_line(path, number):
    lines = path.read_bytes().splitlines(keepends=True)
    offset = sum(map(len, lines[: number % len(lines)]))
    lines[number] = rot(lines[number])
    path.write_bytes(b"".join(lines))
    return offset


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_sound_store_is_clean_and_counted(shelf):
    report = verify(shelf.root)
    assert report.clean, report.problems
    assert (report.store_id, report.schedules) == ("store", 2)
    assert report.rows > 8
    assert report.runs >= 2
    assert report.notes == []


def test_verify_changes_nothing_and_disturbs_nobody(shelf):
    before = files_of(shelf.root)
    verify(shelf.root)
    assert files_of(shelf.root) == before
    shelf.commit(*shelf.scribe.skip("a"))


@pytest.mark.parametrize(
    ("part", "number"),
    [("/journal/", 1), ("/journal/", -1), ("/snapshot/", 1), ("/a.jsonl", 1), ("/runs/", 0), ("/b.jsonl", 0)],
)
def test_every_bad_record_is_reported_with_file_and_offset(shelf, part, number):
    shelf.stop()
    path = path_to(shelf.root, part)
    offset = damage_line(path, number)
    report = verify(shelf.root)
    where = [(problem.file, problem.offset) for problem in report.problems]
    assert (str(path.relative_to(shelf.root)), offset) in where
    assert all(problem.reason for problem in report.problems)


def test_damage_is_reported_with_the_schedule_it_belongs_to(shelf):
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.stop()
    damage_line(path_to(shelf.root, "/journal/"), -2)
    assert "a" in {problem.schedule_id for problem in verify(shelf.root).problems}


def test_what_a_crash_leaves_is_a_note_and_no_problem(shelf):
    shelf.stop()
    journal = path_to(shelf.root, "/journal/")
    size = journal.stat().st_size
    with journal.open("ab") as file:
        file.write(b'{"c":"half')
    report = verify(shelf.root)
    assert report.clean
    assert [(note.file, note.offset) for note in report.notes] == [(str(journal.relative_to(shelf.root)), size)]


def test_a_missing_segment_is_a_problem(shelf):
    shelf.stop()
    path_to(shelf.root, "/journal/").unlink()
    assert not verify(shelf.root).clean


def test_a_run_that_the_index_lacks_is_a_problem(shelf):
    shelf.checkpoint()
    shelf.stop()
    shutil.rmtree(shelf.root / "schedules" / "runs")
    assert any("not in the run index" in problem.reason for problem in verify(shelf.root).problems)


def test_a_history_that_is_gone_is_a_problem_that_the_run_index_knows_of(tmp_path):
    gone = Shelf(RealFileSystem(), root=tmp_path / "gone")
    gone.lock = None
    gone.start()
    gone.commit(*gone.scribe.create("a"), *gone.scribe.ran("a"))
    gone.checkpoint()
    gone.stop()
    assert verify(gone.root).clean
    path_to(gone.root, "occurrences").unlink()
    problems = verify(gone.root).problems
    assert [(each.schedule_id, each.reason) for each in problems] == [("a", "a row of run run-000001 is gone")] * 2


def test_files_of_the_run_index_that_were_exchanged_are_a_problem_and_no_run_is_lost_by_it(shelf):
    first, second = sorted((shelf.root / "schedules" / "runs").iterdir())[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert any("another file of the run index" in problem.reason for problem in verify(shelf.root).problems)
    for row in shelf.scribe.rows["a"]:
        found = shelf.store.find_run(row.run_id)
        assert found is None or found.schedule_id == "a"
    assert shelf.store.find_run(shelf.scribe.rows["a"][-1].run_id) is not None


def test_a_history_of_another_schedule_is_a_problem(shelf):
    shelf.stop()
    path = path_to(shelf.root, "/a.jsonl")
    path.rename(path.with_name("c.jsonl"))
    reasons = [problem.reason for problem in verify(shelf.root).problems]
    assert "a row of a" in reasons
    assert "a history of a schedule that does not exist" in reasons


@pytest.mark.parametrize("content", [None, b"{}"])
def test_what_is_no_store_is_a_problem_and_no_error(tmp_path, content):
    if content is not None:
        (tmp_path / "schedules").mkdir()
        (tmp_path / "schedules" / "FORMAT.json").write_bytes(content)
    assert not verify(tmp_path).clean


def test_what_is_in_quarantine_is_noted_with_its_reason(shelf):
    shelf.stop()
    with path_to(shelf.root, "/journal/").open("ab") as file:
        file.write(b'{"c":"half')
    shelf.start()
    assert any("torn" in note.reason for note in verify(shelf.root).notes)


# --- backup -----------------------------------------------------------------------------------------------------------


def test_a_backup_is_clean_and_is_no_store_until_that_is_accepted(shelf, tmp_path):
    copied = backup(shelf.root, tmp_path / "copy")
    assert copied.files > 5
    report = verify(tmp_path / "copy")
    assert report.clean, report.problems
    assert report.schedules == 2
    assert not (tmp_path / "copy" / "scheduler.lock").exists()
    with pytest.raises(RestoreNotAccepted):
        Store(tmp_path / "copy").open(Settings(), NOW)


def test_a_backup_holds_what_was_acknowledged_before_it(shelf, tmp_path):
    backup(shelf.root, tmp_path / "copy")
    copy = Store(tmp_path / "copy", mint=lambda: "minted")
    opened = copy.open(Settings(), NOW, accept_restore=True)
    assert durable(opened.state) == durable(shelf.scribe.state)
    assert opened.state.store_id == "minted"
    for schedule_id in ("a", "b"):
        assert copy.page(schedule_id, None, 100) == shelf.store.page(schedule_id, None, 100)
    copy.close()


def test_a_backup_goes_into_an_empty_folder_only(shelf, tmp_path):
    backup(shelf.root, tmp_path / "copy")
    with pytest.raises(StoreUnusable, match="a store already"):
        backup(shelf.root, tmp_path / "copy")
    (tmp_path / "other" / "schedules").mkdir(parents=True)
    (tmp_path / "other" / "schedules" / "notes.txt").write_text("mine")
    with pytest.raises(StoreUnusable, match="not empty"):
        backup(shelf.root, tmp_path / "other")
    with pytest.raises(StoreUnusable, match="no store to copy"):
        backup(tmp_path / "nowhere", tmp_path / "third")


def test_a_backup_of_a_store_that_goes_on_is_of_one_moment(tmp_path, monkeypatch):
    """Batches and checkpoints come all the while; each copy must be exactly what some number of batches made."""
    monkeypatch.setattr(store_module, "CHECKPOINT_BYTES_MIN", 20_000)
    store = Store(tmp_path / "live", segment_bytes_max=40_000)
    opened = store.open(Settings(), NOW)
    scribe = Scribe(opened.state)
    ids = [f"s{number}" for number in range(12)]
    moments = []
    stop, begun = threading.Event(), threading.Event()

    async def live():
        await store.commit([*scribe.epoch(1), *(event for each in ids for event in scribe.create(each))])
        moments.append(durable(scribe.state))
        begun.set()
        while not stop.is_set():
            await store.commit([event for each in ids for event in scribe.ran(each)])
            moments.append(durable(scribe.state))
            if store.wants_checkpoint():
                await store.checkpoint(scribe.state)

    writer = threading.Thread(target=lambda: asyncio.run(live()))
    writer.start()
    try:
        assert begun.wait(10)
        for number in range(6):
            acked = len(moments)
            backup(tmp_path / "live", tmp_path / f"copy{number}")
            report = verify(tmp_path / f"copy{number}")
            assert report.clean, report.problems[:3]
            copy = Store(tmp_path / f"copy{number}")
            state = durable(copy.open(Settings(), NOW, accept_restore=True).state)
            assert state in moments[max(0, acked - 1) :]
            runs = (moments.index(state)) * 3
            assert {len(copy.page(each, None, 10_000).rows) for each in ids} == {runs}
            copy.close()
            assert verify(tmp_path / "live").clean
    finally:
        stop.set()
        writer.join()
        store.close()
    assert len(moments) > 6


# --- restore ----------------------------------------------------------------------------------------------------------


def test_a_backup_that_is_put_back_is_the_store_of_its_moment_and_waits_for_acceptance(shelf, tmp_path):
    backup(shelf.root, tmp_path / "copy")
    truth = durable(shelf.scribe.state)
    restore(tmp_path / "copy", tmp_path / "again")
    again = Store(tmp_path / "again")
    with pytest.raises(RestoreNotAccepted):
        again.open(Settings(), NOW)
    opened = again.open(Settings(), NOW, accept_restore=True)
    assert opened.restored
    assert durable(opened.state) == truth
    again.close()


def test_where_a_store_is_nothing_is_restored(shelf, tmp_path):
    backup(shelf.root, tmp_path / "copy")
    before = files_of(shelf.root)
    with pytest.raises(StoreUnusable, match="a store already"):
        restore(tmp_path / "copy", shelf.root)
    assert files_of(shelf.root) == before


def test_a_damaged_backup_is_put_back_only_if_asked_for(shelf, tmp_path):
    backup(shelf.root, tmp_path / "copy")
    damage_line(path_to(tmp_path / "copy", "/a.jsonl"), 1)
    with pytest.raises(StoreUnusable, match="1 problems"):
        restore(tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    restore(tmp_path / "copy", tmp_path / "again", even_if_damaged=True)
    assert not verify(tmp_path / "again").clean


def test_restored_over_its_own_lock_file_it_continues_above_every_epoch_that_was_seen(shelf, tmp_path):
    backup(shelf.root, tmp_path / "copy")
    shelf.restart()
    shelf.restart()
    shelf.stop()
    shutil.rmtree(shelf.root / "schedules")
    restore(tmp_path / "copy", shelf.root)
    assert shelf.start(accept_restore=True).epoch == 4
