"""What a start accepts, what it refuses untouched, and how an older copy of a store is told from the store."""

import pytest

from scheduler_daemon.core.events import Decided
from scheduler_daemon.store.documents import Home, Marker, read_marker, write_marker
from scheduler_daemon.store.errors import RestoreNotAccepted, StoreUnusable
from scheduler_daemon.store.framing import frame
from scheduler_daemon.store.lock import Seen
from tests.crash.simfs import SimFileSystem
from tests.crash.stage import SimLock
from tests.scribe import NOON, durable
from tests.shelf import Shelf, rot

HOME = Home("/store")


@pytest.fixture
def shelf():
    made = Shelf()
    made.start()
    made.commit(*made.scribe.create("a"))
    yield made
    made.stop()


# --- new and foreign folders ------------------------------------------------------------------------------------------


def test_a_new_store_is_made_with_its_parents():
    shelf = Shelf()
    opened = shelf.start()
    assert (opened.epoch, opened.state.store_id, opened.damages, opened.torn) == (1, "store", (), ())
    assert shelf.files("FORMAT.json") == ["/store/schedules/FORMAT.json"]
    shelf.stop()


@pytest.mark.parametrize("name", ["notes.txt", "journal/00000000000000000001.jsonl", ".hidden"])
def test_a_folder_with_anything_of_somebody_else_is_refused_untouched(name):
    image = {
        "/store": None,
        "/store/schedules": None,
        "/store/schedules/journal": None,
        f"/store/schedules/{name}": b"x",
    }
    shelf = Shelf(SimFileSystem(image))
    with pytest.raises(StoreUnusable, match="not empty"):
        shelf.open()
    assert shelf.fs.image() == image
    assert not shelf.lock.held


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"format":"scheduler-daemon-store"}',
        frame(b'{"format":"another","version":1,"store_id":"x"}'),
        frame(b'{"format":"scheduler-daemon-store","version":2,"store_id":"x"}'),
        frame(b'{"format":"scheduler-daemon-store","version":"1"}'),
        rot(frame(b'{"format":"scheduler-daemon-store","version":1,"store_id":"x"}')),
    ],
)
def test_a_format_that_is_not_ours_is_refused_with_the_file_named(content):
    image = {"/store": None, "/store/schedules": None, "/store/schedules/FORMAT.json": content}
    shelf = Shelf(SimFileSystem(image))
    with pytest.raises(StoreUnusable) as refused:
        shelf.open()
    assert refused.value.file == "schedules/FORMAT.json"
    assert shelf.fs.image() == image


def test_what_an_interrupted_first_start_left_is_no_foreign_folder():
    image = {"/store": None, "/store/schedules": None, "/store/schedules/FORMAT.json.tmp": b'{"c":'}
    shelf = Shelf(SimFileSystem(image))
    assert shelf.start().epoch == 1
    shelf.stop()


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_the_epoch_grows_at_each_start_and_the_first_event_must_begin_it(shelf):
    assert shelf.restart().epoch == 2
    assert shelf.restart().epoch == 3
    shelf.stop()
    shelf.open()
    with pytest.raises(ValueError, match="must begin epoch 4"):
        shelf.commit(Decided(at=NOON, until=NOON))
    with pytest.raises(ValueError, match="must begin epoch 4"):
        shelf.commit(*shelf.scribe.epoch(9))


def test_opening_and_closing_without_a_batch_changes_nothing(shelf):
    shelf.stop()
    before = shelf.fs.image()
    assert shelf.open().epoch == 2
    shelf.stop()
    assert shelf.fs.image() == before
    assert shelf.open().epoch == 2


# --- older copies -----------------------------------------------------------------------------------------------------


def test_a_store_of_a_lower_epoch_than_its_lock_file_has_seen_is_not_started_until_that_is_accepted(shelf):
    image = shelf.fs.image()
    shelf.restart()
    shelf.stop()
    old = Shelf(SimFileSystem(image), shelf.lock)
    with pytest.raises(RestoreNotAccepted, match="ends in epoch 1, its lock file has seen 2"):
        old.open()
    assert old.fs.image() == image
    assert not old.lock.held


def test_a_store_that_lacks_records_its_lock_file_has_seen_is_not_started_until_that_is_accepted(shelf):
    image = shelf.fs.image()
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.stop()
    old = Shelf(SimFileSystem(image), SimLock(Seen(1, 3)))
    with pytest.raises(RestoreNotAccepted, match="ends at record 2, its lock file has seen 3"):
        old.open()


def test_a_store_ahead_of_its_lock_file_is_an_ordinary_one(shelf):
    shelf.stop()
    shelf.lock.seen = Seen(0, 0)
    assert not shelf.open().restored


def test_an_empty_folder_beside_a_lock_file_that_has_seen_a_store_is_not_started():
    shelf = Shelf(lock=SimLock(Seen(7, 100)))
    with pytest.raises(RestoreNotAccepted, match="empty"):
        shelf.open()
    opened = shelf.open(accept_restore=True)
    assert opened.epoch == 8
    shelf.stop()


def test_acceptance_mints_a_new_id_and_an_epoch_above_all_seen(shelf):
    shelf.stop()
    shelf.lock.seen = Seen(5, 0)
    shelf.options["mint"] = lambda: "minted"
    opened = shelf.start(accept_restore=True)
    assert (opened.restored, opened.epoch, opened.state.store_id) == (True, 6, "minted")
    shelf.store.finish_restore()
    opened = shelf.restart()
    assert (opened.restored, opened.epoch, opened.state.store_id) == (False, 7, "minted")


def test_what_was_accepted_is_reported_again_until_it_has_been_carried_out(shelf):
    shelf.stop()
    shelf.lock.seen = Seen(5, 0)
    shelf.options["mint"] = lambda: "minted"
    shelf.start(accept_restore=True)
    assert shelf.restart().restored, "accepted once is enough"
    assert shelf.opened.state.store_id == "minted"
    shelf.store.finish_restore()
    assert not shelf.restart().restored


def test_a_marker_is_refused_until_accepted_and_then_removed(shelf):
    shelf.stop()
    write_marker(shelf.fs, HOME, Marker("the store is a backup"))
    with pytest.raises(RestoreNotAccepted, match="the store is a backup"):
        shelf.open()
    assert shelf.start(accept_restore=True).restored
    shelf.store.finish_restore()
    assert read_marker(shelf.fs, HOME) is None


def test_a_damaged_marker_is_a_marker(shelf):
    shelf.stop()
    write_marker(shelf.fs, HOME, Marker("x", "store"))
    shelf.edit("RESTORED", rot)
    with pytest.raises(RestoreNotAccepted, match="marker is damaged"):
        shelf.open()


def test_a_crash_between_marker_and_new_id_asks_again(shelf):
    shelf.stop()
    write_marker(shelf.fs, HOME, Marker("the store is a backup", accepted="never-written"))
    with pytest.raises(RestoreNotAccepted):
        shelf.open()


def test_to_accept_what_is_no_restore_changes_nothing(shelf):
    state = durable(shelf.scribe.state)
    shelf.stop()
    opened = shelf.open(accept_restore=True)
    assert (opened.restored, opened.state.store_id) == (False, "store")
    assert durable(opened.state) == state
    shelf.store.finish_restore()


# --- a refused start leaves nothing behind ----------------------------------------------------------------------------


def test_after_a_refused_start_the_locks_are_free(shelf):
    shelf.stop()
    shelf.fs.unlink(shelf.file("/journal/"))
    shelf.edit("FORMAT", lambda data: data)
    with pytest.raises(RestoreNotAccepted):
        shelf.open()
    assert not shelf.lock.held
