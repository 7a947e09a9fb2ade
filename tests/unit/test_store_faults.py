"""The fault table, a test a row: what the store does when the disk does not."""

import asyncio
import errno
import os
import resource
import threading
from contextlib import contextmanager, suppress

import pytest

from scheduler_daemon.core.model import Settings
from scheduler_daemon.store.errors import OwnershipLost, StorageFailed, StorageFull, StorageReadOnly
from scheduler_daemon.store.store import Store
from tests.crash.simfs import SimFileSystem
from tests.scribe import NOW, Scribe, durable
from tests.shelf import Shelf


@pytest.fixture
def shelf():
    made = Shelf()
    made.start()
    made.commit(*made.scribe.create("a"))
    yield made
    made.fs.fault = lambda _number, _call, _path: None
    made.stop()


def fail(shelf, call, code, *, where="", times=1_000):
    """Let that call fail from now on; 0 makes writes short."""
    left = [times]

    def fault(_number, name, path):
        if name != call or where not in path or not left[0]:
            return None
        left[0] -= 1
        return code

    shelf.fs.fault = fault


def heal(shelf):
    shelf.fs.fault = lambda _number, _call, _path: None


def calls_of(shelf, call):
    return [path for name, path in shelf.fs.log if name == call]


def test_short_writes_are_gone_on_with_until_all_is_written(shelf):
    fail(shelf, "write", 0)
    shelf.commit(*shelf.scribe.skip("a"))
    heal(shelf)
    state = durable(shelf.scribe.state)
    shelf.stop()
    assert durable(shelf.open().state) == state


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("short", [False, True])
def test_without_room_the_batch_is_refused_and_nothing_of_it_is_on_disk(shelf, code, short):
    before = shelf.read("/journal/")
    codes = iter([0, code] if short else [code])
    shelf.fs.fault = lambda _number, name, _path: next(codes, None) if name == "write" else None
    with pytest.raises(StorageFull):
        shelf.commit(*shelf.scribe.skip("a"))
    heal(shelf)
    assert shelf.read("/journal/") == before
    assert calls_of(shelf, "truncate")
    assert shelf.fs.log[-1][0] == "fsync", "the cut is durable before anybody is told"


def test_a_refused_batch_may_be_tried_again_without_a_restart(shelf):
    fail(shelf, "write", errno.ENOSPC)
    events = shelf.scribe.skip("a")
    for _ in range(3):
        with pytest.raises(StorageFull):
            shelf.commit(*events)
    assert shelf.rows("a") == [], "what was refused is on no page"
    heal(shelf)
    shelf.commit(*events)
    assert shelf.rows("a") == shelf.scribe.rows["a"]
    state = durable(shelf.scribe.state)
    shelf.stop()
    assert durable(shelf.open().state) == state


def test_reads_go_on_while_the_disk_is_full(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    shelf.checkpoint()
    fail(shelf, "write", errno.ENOSPC)
    with pytest.raises(StorageFull):
        shelf.commit(*shelf.scribe.decided())
    assert len(shelf.rows("a")) == 3
    assert shelf.store.find_run("run-000001") is not None
    shelf.store.check_ownership()


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_after_a_failed_sync_nothing_is_written_any_more(shelf, call):
    if call == "fsync":
        shelf.store._journal.rotate()
    fail(shelf, call, errno.EIO, times=1)
    events = shelf.scribe.skip("a")
    with pytest.raises(StorageFailed):
        shelf.commit(*events)
    written = len(calls_of(shelf, "write"))
    with pytest.raises(StorageFailed):
        shelf.commit(*events)
    with pytest.raises(StorageFailed):
        shelf.store.check_ownership()
    with pytest.raises(StorageFailed):
        shelf.checkpoint()
    assert len(calls_of(shelf, "write")) == written
    assert len(calls_of(shelf, call)) == [name for name, _ in shelf.fs.log].count(call)


def test_no_room_at_a_sync_is_a_failed_sync(shelf):
    fail(shelf, "fdatasync", errno.ENOSPC)
    with pytest.raises(StorageFailed):
        shelf.commit(*shelf.scribe.skip("a"))


def test_an_io_error_at_a_write_ends_the_store(shelf):
    fail(shelf, "write", errno.EIO)
    with pytest.raises(StorageFailed):
        shelf.commit(*shelf.scribe.skip("a"))


def test_a_disk_that_became_read_only_refuses_batches_until_it_takes_writes_again(shelf):
    fail(shelf, "write", errno.EROFS)
    with pytest.raises(StorageReadOnly):
        shelf.commit(*shelf.scribe.skip("a"))
    heal(shelf)
    shelf.restart()
    assert shelf.rows("a") == []


def test_what_could_not_be_cut_is_cut_before_the_next_batch(shelf):
    """A disk that turns read-only in the middle of a batch leaves a piece of it."""
    state = {"writes": 0}

    def fault(_number, name, _path):
        if name == "write":
            state["writes"] += 1
            return 0 if state["writes"] == 1 else errno.EROFS
        return errno.EROFS if name == "truncate" else None

    before = shelf.read("/journal/")
    shelf.fs.fault = fault
    events = shelf.scribe.skip("a")
    with pytest.raises(StorageReadOnly):
        shelf.commit(*events)
    assert shelf.read("/journal/") != before
    with pytest.raises(StorageReadOnly):
        shelf.commit(*events)
    heal(shelf)
    shelf.commit(*events)
    shelf.stop()
    assert durable(shelf.open().state) == durable(shelf.scribe.state)
    assert shelf.opened.torn == ()


def test_without_inodes_or_descriptors_for_a_new_segment_the_old_one_takes_more(shelf):
    shelf.store._journal.rotate()
    for code in (errno.ENOSPC, errno.EMFILE):
        fail(shelf, "create", code)
        shelf.commit(*shelf.scribe.skip("a"))
    heal(shelf)
    assert len(shelf.files("/journal/")) == 1
    shelf.commit(*shelf.scribe.skip("a"))
    assert len(shelf.files("/journal/")) == 2


def test_a_segment_whose_name_may_not_be_durable_is_not_passed_by(shelf):
    shelf.store._journal.rotate()
    fail(shelf, "fsync_folder", errno.EMFILE)
    events = shelf.scribe.skip("a")
    with pytest.raises(StorageFull):
        shelf.commit(*events)
    heal(shelf)
    shelf.commit(*events)
    assert len(shelf.files("/journal/")) == 2
    assert shelf.rows("a") == shelf.scribe.rows["a"]


@pytest.mark.parametrize("call", ["write", "create", "open", "rename"])
def test_a_checkpoint_without_room_loses_nothing_and_is_done_again(shelf, call):
    shelf.commit(*shelf.scribe.ran("a"))
    rows = shelf.rows("a")
    fail(shelf, call, errno.ENOSPC, times=1)
    with pytest.raises(StorageFull):
        shelf.checkpoint()
    heal(shelf)
    assert shelf.rows("a") == rows
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.checkpoint()
    assert shelf.rows("a") == shelf.scribe.rows["a"]
    shelf.restart()
    assert shelf.rows("a") == shelf.scribe.rows["a"]


def test_a_checkpoint_whose_sync_fails_ends_the_store(shelf):
    shelf.commit(*shelf.scribe.ran("a"))
    fail(shelf, "syncfs", errno.EIO)
    with pytest.raises(StorageFailed):
        shelf.checkpoint()
    heal(shelf)
    with pytest.raises(StorageFailed):
        shelf.commit(*shelf.scribe.skip("a"))


def test_a_checkpoint_that_fails_after_nobody_waits_for_it_any_more_ends_the_store_all_the_same(shelf):
    """A daemon that is asked to stop cancels the checkpoint that it was about to wait for; its exit code tells of it."""
    shelf.commit(*shelf.scribe.ran("a"))
    begun, let_go = threading.Event(), threading.Event()

    def slow_and_failed(_path):
        begun.set()
        let_go.wait(5)
        raise OSError(errno.EIO, "input/output error")

    async def stop():
        checkpoint = asyncio.create_task(shelf.store.checkpoint(shelf.scribe.state))
        await asyncio.to_thread(begun.wait, 5)
        checkpoint.cancel()
        await asyncio.sleep(0)
        assert not checkpoint.done()
        shelf.store.check_trusted()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await checkpoint

    shelf.fs.syncfs = slow_and_failed
    asyncio.run(stop())
    with pytest.raises(StorageFailed, match="checkpoint"):
        shelf.store.check_trusted()


def test_after_checkpoints_without_room_the_next_is_not_wanted_at_once(shelf, monkeypatch):
    monkeypatch.setattr("scheduler_daemon.store.store.CHECKPOINT_ROWS_MAX", 1)
    shelf.commit(*shelf.scribe.ran("a"))
    assert shelf.store.wants_checkpoint()
    fail(shelf, "write", errno.ENOSPC)
    asked = []
    for _ in range(4):
        with pytest.raises(StorageFull):
            shelf.checkpoint()
        asked.append(next(times for times in range(200) if shelf.store.wants_checkpoint()))
    assert asked == sorted(asked)
    assert asked[-1] > asked[0]


def test_retention_that_finds_no_room_waits_and_the_checkpoint_counts(shelf):
    shelf.options["retention"] = shelf.store._checkpointer._keep.__class__(runs_max=2, others_max=2, slack=0.0)
    shelf.restart()
    shelf.commit(*(event for _ in range(5) for event in shelf.scribe.skip("a")))
    rewriting = "/a.jsonl.tmp"
    fail(shelf, "create", errno.ENOSPC, where=rewriting)
    shelf.checkpoint()
    assert any(path.endswith(rewriting) for path in calls_of(shelf, "create"))
    assert "No space" in shelf.store.facts()["retention_postponed"]
    assert len(shelf.rows("a")) == 5
    heal(shelf)
    shelf.commit(*shelf.scribe.decided())
    shelf.checkpoint()
    assert shelf.store.facts()["retention_postponed"] is None
    assert len(shelf.rows("a")) == 2


def test_a_damaged_end_that_cannot_be_copied_for_want_of_room_is_not_cut(shelf):
    shelf.stop()
    shelf.edit("/journal/", lambda data: data + b'{"c":"half')
    opened = shelf.open()
    fail(shelf, "create", errno.ENOSPC, where="quarantine")
    torn = shelf.read("/journal/")
    with pytest.raises(StorageFull):
        shelf.commit(*shelf.scribe.epoch(opened.epoch))
    assert shelf.read("/journal/") == torn
    heal(shelf)
    shelf.commit(*Scribe(opened.state).epoch(opened.epoch))
    assert shelf.fs.image()[shelf.files("quarantine/")[0]] == b'{"c":"half'


# --- on the real filesystem -------------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path):
    """A store in a scratch folder, with an epoch begun and one schedule."""
    store = Store(tmp_path, mint=lambda: "store")
    opened = store.open(Settings(), NOW)
    scribe = Scribe(opened.state)
    asyncio.run(store.commit([*scribe.epoch(opened.epoch), *scribe.create("a")]))
    yield store, scribe
    store.close()


def test_a_lost_lock_ends_the_store_before_its_next_batch(real, tmp_path):
    store, scribe = real
    journal = next((tmp_path / "schedules" / "journal").iterdir())
    before = journal.read_bytes()
    (tmp_path / "scheduler.lock").unlink()
    with pytest.raises(OwnershipLost):
        asyncio.run(store.commit(scribe.skip("a")))
    assert journal.read_bytes() == before
    with pytest.raises(OwnershipLost):
        store.check_ownership()


def test_a_journal_that_somebody_else_wrote_to_ends_the_store(real, tmp_path):
    store, scribe = real
    journal = next((tmp_path / "schedules" / "journal").iterdir())
    with journal.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(OwnershipLost, match="somebody else wrote"):
        asyncio.run(store.commit(scribe.skip("a")))
    assert journal.read_bytes().endswith(b"{}\n")


def test_out_of_descriptors_pages_are_read_and_batches_written_and_nothing_is_taken_for_damage(real):
    store, scribe = real
    with asyncio.Runner() as runner:
        runner.run(store.commit(scribe.ran("a")))
        runner.run(store.checkpoint(scribe.state))
        runner.run(store.commit(scribe.skip("a")))
        with no_descriptors_left():
            assert store.page("a", None, 100).rows == tuple(scribe.rows["a"])
            assert store.find_run("run-000001") is not None
            store.check_ownership()
            runner.run(store.commit(scribe.skip("a")))
            with suppress(StorageFull):
                runner.run(store.checkpoint(scribe.state))
        runner.run(store.commit(scribe.skip("a")))
        runner.run(store.checkpoint(scribe.state))
    assert store.page("a", None, 100).rows == tuple(scribe.rows["a"])


@contextmanager
def no_descriptors_left():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_files_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = Store(tmp_path / "new")
        opened = store.open(Settings(), NOW)
        scribe = Scribe(opened.state)
        asyncio.run(store.commit([*scribe.epoch(1), *scribe.create("a"), *scribe.ran("a")]))
        asyncio.run(store.checkpoint(scribe.state))
        store.close()
    finally:
        os.umask(before)
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_the_simulated_filesystem_is_asked_nothing_that_the_real_one_lacks():
    from scheduler_daemon.store.fs import FileSystem, RealFileSystem

    asked = {name for name in vars(FileSystem) if not name.startswith("_")}
    for each in (SimFileSystem, RealFileSystem):
        assert asked <= set(dir(each))
