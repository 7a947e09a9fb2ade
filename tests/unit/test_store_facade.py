"""The store's promises to the engine: order, guards, cancellation, figures."""

import asyncio
import threading

import pytest
from msgspec.structs import replace

from scheduler_daemon.core.model import RunLive
from scheduler_daemon.store import loading
from scheduler_daemon.store.errors import StorageFailed
from scheduler_daemon.store.snapshot import KEPT
from scheduler_daemon.store.store import Retention, Store
from tests.crash.simfs import SimFileSystem
from tests.scribe import NOW, durable
from tests.shelf import ROOT, Shelf


@pytest.fixture
def shelf():
    made = Shelf()
    made.start()
    made.commit(*made.scribe.create("a"))
    yield made
    made.stop()


# --- commits ----------------------------------------------------------------------------------------------------------


def test_a_commit_returns_only_after_the_batch_was_synced(shelf):
    synced = []
    fdatasync = shelf.fs.fdatasync
    shelf.fs.fdatasync = lambda fd: (fdatasync(fd), synced.append(threading.current_thread().name))
    shelf.commit(*shelf.scribe.skip("a"))
    assert synced == ["store-write_0"], "and the loop's thread did not wait for it"


def test_a_batch_is_one_write_and_one_sync(shelf):
    before = len(shelf.fs.log)
    shelf.commit(*(event for _ in range(50) for event in shelf.scribe.skip("a")))
    assert [name for name, _ in shelf.fs.log[before:]] == ["write", "fdatasync"]


def test_an_empty_batch_writes_nothing(shelf):
    before = shelf.fs.calls
    shelf.commit()
    assert shelf.fs.calls == before


def test_an_event_that_cannot_be_encoded_leaves_the_journal_as_it_was(shelf):
    before = shelf.read("/journal/")
    with pytest.raises(TypeError):
        shelf.commit(*shelf.scribe.admit("a", input={"x": object()}))
    assert shelf.read("/journal/") == before
    shelf.store.check_ownership()


def test_a_commit_that_was_abandoned_ends_the_store():
    """Whoever stops waiting does not know whether the batch is durable, and nothing may be built on that."""
    shelf = Shelf()
    shelf.start()
    let_go, syncing = threading.Event(), threading.Event()
    fdatasync = shelf.fs.fdatasync

    def slow(fd):
        syncing.set()
        let_go.wait(5)
        fdatasync(fd)

    async def abandon():
        commit = asyncio.create_task(shelf.store.commit(shelf.scribe.create("a")))
        assert await asyncio.to_thread(syncing.wait, 5)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        with pytest.raises(StorageFailed, match="abandoned"):
            await shelf.store.commit(shelf.scribe.decided())

    shelf.fs.fdatasync = slow
    try:
        asyncio.run(abandon())
    finally:
        let_go.set()
    shelf.stop()
    assert "a" in shelf.open().state.schedules, "close waited for what was being written"
    shelf.stop()


def test_a_store_that_is_not_open_takes_nothing():
    store = Store(ROOT, fs=SimFileSystem())
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(store.commit(Shelf().scribe.decided()))
    assert not store.wants_checkpoint()
    assert store.facts() == {"open": False}


def test_close_is_idempotent_and_may_come_before_open(shelf):
    store = Store(ROOT, fs=SimFileSystem())
    store.close()
    store.close()
    shelf.stop()
    shelf.stop()
    assert not shelf.lock.held


def test_the_locks_are_given_back_last(shelf):
    held_at_close = []
    close = shelf.fs.close
    shelf.fs.close = lambda fd: (held_at_close.append(shelf.lock.held), close(fd))
    shelf.stop()
    assert held_at_close == [True]
    assert not shelf.lock.held


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_state_that_lacks_a_committed_batch_is_refused(shelf):
    behind = shelf.scribe.state.schedules["a"]
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.scribe.state.schedules["a"] = behind
    with pytest.raises(RuntimeError, match="lacks record 2 of a"):
        shelf.checkpoint()


def test_a_snapshot_that_is_whole_is_read_alone(shelf, monkeypatch):
    for name in ("c", "d"):
        shelf.commit(*shelf.scribe.create(name))
        shelf.checkpoint()
    shelf.stop()
    asked = []
    real = loading.load_snapshot
    monkeypatch.setattr(loading, "load_snapshot", lambda fs, one: asked.append(one.path) or real(fs, one))
    shelf.start()
    assert asked == shelf.files("/snapshot/")[-1:]
    assert len(shelf.files("/snapshot/")) == KEPT


def test_a_checkpoint_before_the_first_batch_of_an_epoch_is_refused(shelf):
    shelf.stop()
    opened = shelf.open()
    with pytest.raises(RuntimeError, match="no batch of this epoch"):
        asyncio.run(shelf.store.checkpoint(opened.state))


def test_batches_are_committed_while_a_checkpoint_runs_and_none_is_lost(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    let_go, begun = threading.Event(), threading.Event()
    syncfs = shelf.fs.syncfs

    def slow(path):
        begun.set()
        let_go.wait(5)
        return syncfs(path)

    async def both():
        checkpoint = asyncio.create_task(shelf.store.checkpoint(shelf.scribe.state))
        await asyncio.to_thread(begun.wait, 5)
        await shelf.store.commit(shelf.scribe.skip("a"))
        assert shelf.rows("a") == shelf.scribe.rows["a"]
        assert not shelf.store.wants_checkpoint()
        with pytest.raises(RuntimeError, match="running already"):
            await shelf.store.checkpoint(shelf.scribe.state)
        let_go.set()
        await checkpoint
        assert shelf.rows("a") == shelf.scribe.rows["a"]
        await shelf.store.commit(shelf.scribe.ran("a"))

    shelf.fs.syncfs = slow
    asyncio.run(both())
    truth = durable(shelf.scribe.state)
    shelf.stop()
    assert durable(shelf.open().state) == truth
    assert shelf.rows("a") == shelf.scribe.rows["a"]


def test_a_checkpoint_that_nobody_waits_for_any_more_still_ends_well(shelf):
    shelf.commit(*shelf.scribe.ran("a"))

    async def cancel():
        ended = asyncio.Event()
        end = shelf.store._end_checkpoint
        shelf.store._end_checkpoint = lambda *ending: (end(*ending), ended.set())
        checkpoint = asyncio.create_task(shelf.store.checkpoint(shelf.scribe.state))
        await asyncio.sleep(0)
        checkpoint.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checkpoint
        await asyncio.wait_for(ended.wait(), 5)
        await shelf.store.commit(shelf.scribe.skip("a"))
        await shelf.store.checkpoint(shelf.scribe.state)

    asyncio.run(cancel())
    assert shelf.rows("a") == shelf.scribe.rows["a"]


def test_live_fields_are_in_no_snapshot(shelf):
    shelf.commit(*shelf.scribe.admit("a"))
    schedule = shelf.scribe.state.schedules["a"]
    lively = replace(schedule.runs[0], live=RunLive(tries=7))
    shelf.scribe.state.schedules["a"] = replace(schedule, runs=(lively,))
    shelf.checkpoint()
    assert b'"live"' not in shelf.read("/snapshot/")
    assert b"tries" not in shelf.read("/snapshot/")


def test_two_snapshots_are_kept_and_segments_wholly_before_the_older_are_dropped(shelf):
    for _ in range(5):
        shelf.commit(*shelf.scribe.skip("a"))
        shelf.checkpoint()
    shelf.commit(*shelf.scribe.skip("a"))
    assert len(shelf.files("/snapshot/")) == 2
    assert len(shelf.files("/journal/")) == 2


def test_a_checkpoint_is_wanted_when_enough_was_written_and_not_before(shelf, monkeypatch):
    monkeypatch.setattr("scheduler_daemon.store.store.CHECKPOINT_BYTES_MIN", 4_000)
    assert not shelf.store.wants_checkpoint()
    shelf.commit(*(event for _ in range(20) for event in shelf.scribe.skip("a")))
    assert shelf.store.wants_checkpoint()
    shelf.checkpoint()
    assert not shelf.store.wants_checkpoint()


def test_what_was_replayed_counts_towards_the_next_checkpoint(shelf, monkeypatch):
    monkeypatch.setattr("scheduler_daemon.store.store.CHECKPOINT_BYTES_MIN", 4_000)
    shelf.commit(*(event for _ in range(20) for event in shelf.scribe.skip("a")))
    shelf.restart()
    assert shelf.store.wants_checkpoint()


def test_without_syncfs_every_file_is_synced_one_by_one():
    class WithoutSyncfs(SimFileSystem):
        def syncfs(self, path: str) -> bool:
            return False

    shelf = Shelf(WithoutSyncfs())
    shelf.start()
    shelf.commit(*shelf.scribe.create("a"), *shelf.scribe.ran("a"))
    shelf.checkpoint()
    shelf.stop()
    for image in shelf.fs.crash_images():
        after = Shelf(SimFileSystem(image))
        after.scribe = shelf.scribe
        after.open()
        assert after.rows("a") == shelf.scribe.rows["a"]
        after.stop()


# --- figures ----------------------------------------------------------------------------------------------------------


def test_facts_tell_what_metrics_ask_for(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    facts = shelf.store.facts()
    assert (facts["epoch"], facts["store_id"], facts["tail_rows"], facts["segments"]) == (1, "store", 3, 1)
    assert facts["journal_bytes"] == len(shelf.read("/journal/"))
    shelf.checkpoint()
    facts = shelf.store.facts()
    assert (facts["tail_rows"], facts["journal_bytes"], facts["snapshot_seq"]) == (0, 0, facts["seq"])
    assert facts["snapshot_bytes"] == len(shelf.read("/snapshot/"))


def test_the_duration_of_a_commit_is_measured_with_the_timer_that_was_given():
    ticks = iter(range(100))
    shelf = Shelf(timer=lambda: float(next(ticks)))
    shelf.start()
    assert shelf.store.facts()["commit_s"] == 1.0
    shelf.stop()


def test_the_defaults_of_retention_are_those_of_the_contract():
    assert (Retention().runs_max, Retention().others_max, Retention().age_max_s) == (1_000, 1_000, 90 * 86_400)


def test_opened_tells_how_much_was_replayed(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    shelf.stop()
    assert shelf.open().replayed == 5
    assert NOW.at == shelf.store._written.at
