"""Stores in odd places, at odd times and under odd hands: each is used, or refused with a reason, and never half of both."""

import asyncio
import errno
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scheduler_daemon.core.model import Now, Settings
from scheduler_daemon.store.errors import LockHeld, RestoreNotAccepted, StorageFailed, StoreUnusable
from scheduler_daemon.store.fs import RealFileSystem
from scheduler_daemon.store.store import Store
from scheduler_daemon.store.tools import backup, restore, verify
from tests.crash import scripts
from tests.crash.disks import run, tmpfs
from tests.crash.simfs import SimFileSystem
from tests.crash.stage import ROOT, SimLock, Stage, Violation, check, crashes_now, crashes_of
from tests.scribe import NOW, Scribe, durable
from tests.shelf import Shelf


def shelf_at(root: Path) -> Shelf:
    made = Shelf(RealFileSystem(), root=root)
    made.lock = None
    return made


def lived_in(root: Path) -> Shelf:
    """A store with histories, a snapshot, and a journal that goes on; stopped."""
    made = shelf_at(root)
    made.start()
    made.commit(*made.scribe.create("a"), *made.scribe.ran("a"))
    made.checkpoint()
    made.commit(*made.scribe.skip("a"))
    made.stop()
    return made


# --- where ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["with two  spaces", "ünïcödé-☃", "new\nline", "100%d{x}", "-rf", "a" * 200])
def test_a_store_may_have_any_path(tmp_path, name):
    made = lived_in(tmp_path / name / "store")
    assert verify(made.root).clean
    assert backup(made.root, tmp_path / f"{name} copy").files
    assert durable(made.open().state) == durable(made.scribe.state)
    assert len(made.store.page("a", None, 10).rows) == 4
    made.stop()


def test_a_store_behind_a_symlink_is_the_store_and_a_second_way_in_is_none(tmp_path):
    made = lived_in(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked = shelf_at(tmp_path / "link")
    linked.start()
    with pytest.raises(LockHeld):
        made.open()
    linked.stop()
    made.open()
    with pytest.raises(LockHeld):
        linked.open()
    made.stop()


def test_a_symlink_in_place_of_the_last_segment_is_not_written_through(tmp_path):
    """Whoever can put a name into the folder could let the daemon append to any file."""
    made = lived_in(tmp_path / "store")
    segment = max((made.root / "schedules" / "journal").iterdir())
    segment.rename(tmp_path / "elsewhere")
    segment.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises((StoreUnusable, StorageFailed)):
        made.start()
    made.stop()
    assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.root
def test_a_read_only_store_can_be_checked_and_copied_and_is_not_started(tmp_path):
    with tmpfs(tmp_path / "disk", "size=8m") as disk:
        made = lived_in(disk / "store")
        run("mount", "-o", "remount,ro", str(disk))
        with pytest.raises((StoreUnusable, StorageFailed), match="ead-only"):
            made.open()
        made.stop()
        assert verify(disk / "store").clean
        assert backup(disk / "store", tmp_path / "copy").files
        assert verify(tmp_path / "copy").clean


# --- when and how much ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", [1970, 2038, 2106, 9998])
def test_a_store_lives_through_any_year_and_back(tmp_path, year):
    made = lived_in(tmp_path / "store")
    then = Now(datetime(year, 2, 7, 6, 28, 16, tzinfo=UTC), 5.0)
    store = Store(made.root, mint=lambda: "store")
    scribe = Scribe(store.open(Settings(), then).state)
    scribe.at = then.at
    asyncio.run(_two_batches(store, scribe))
    store.close()
    assert verify(made.root).clean
    assert durable(made.open().state) == durable(scribe.state)
    assert [row.at.year for row in made.store.page("a", None, 100).rows][-1] == year
    made.stop()


async def _two_batches(store: Store, scribe: Scribe) -> None:
    await store.commit(scribe.epoch(2))
    await store.commit(scribe.ran("a"))
    await store.checkpoint(scribe.state)
    scribe.tick(timedelta(days=1).total_seconds())
    await store.commit(scribe.skip("a"))


def test_a_record_of_a_megabyte_is_written_read_paged_and_checked(tmp_path):
    made = lived_in(tmp_path / "store")
    made.start()
    large = {"text": "x" * 1_000_000, "nested": [{"deep": ["é\n\\\0"] * 1_000}] * 20}
    made.commit(*made.scribe.admit("a", input=large), *made.scribe.settle("a", output=large))
    expected = [row.n for row in made.store.page("a", None, 100).rows]
    made.checkpoint()
    made.restart()
    rows = made.store.page("a", None, 100).rows
    assert [row.n for row in rows] == expected
    assert [row for row in rows if row.status == "admitted"][-1].detail["input"] == large
    made.commit(*made.scribe.skip("a"))
    made.checkpoint()
    made.stop()
    assert verify(made.root).clean


# --- checkpoints without room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(1, 16, 3))
def test_a_crash_in_a_checkpoint_that_is_done_again_for_want_of_room_loses_nothing(after):
    """The disk is full in the middle of a checkpoint, at one call after another, and has room again later."""
    fs = SimFileSystem()
    fs.mixed = 2

    async def script(stage: Stage) -> None:
        s = stage.scribe
        await stage.commit(*s.create("a"), *s.create("b"))
        await stage.commit(*s.ran("a"), *s.skip("b"))
        full_from = fs.calls + after
        fs.fault = lambda number, call, _: (
            errno.ENOSPC if full_from <= number < full_from + 4 and call in TAKES else None
        )
        await stage.checkpoint()
        await stage.commit(*s.ran("b"))
        await stage.checkpoint()

    crashes, stage = crashes_of(script, fs)
    for crash in crashes[::2]:
        check(crash, stage.moments)


TAKES = {"write", "create", "mkdir", "rename"}


# --- copies -----------------------------------------------------------------------------------------------------------


def _source() -> SimFileSystem:
    fs = SimFileSystem()
    crashes_of(scripts.checkpoints, fs)
    fs.watch = lambda: None
    return fs


@pytest.mark.parametrize("putting_back", [False, True], ids=["backup", "restore"])
def test_a_copy_that_a_crash_interrupted_is_never_taken_for_a_store(putting_back):
    """Whatever is there of it: nothing, a folder that is refused, or a copy that waits for acceptance."""
    fs = _source()
    if putting_back:
        backup(ROOT, Path("/copy"), fs=fs)
    source, target = (Path("/copy"), Path("/second")) if putting_back else (ROOT, Path("/copy"))
    stage = Stage(fs)
    left = []
    fs.mixed = 2
    fs.watch = lambda: left.extend(crashes_now(stage))
    (restore if putting_back else backup)(source, target, fs=fs)
    fs.watch = lambda: None
    ends: dict[str, int] = {}
    for crash in [*left[:: max(1, len(left) // 300)], *left[-60:]]:
        end = _end_of(crash.image, target)
        ends[end] = ends.get(end, 0) + 1
    print(f"{len(left)} images: {ends}")
    assert _end_of(fs.image(), target) == "waits for acceptance"
    assert "waits for acceptance" in ends


def _end_of(image, target: Path) -> str:
    store = Store(target, fs=SimFileSystem(image), lock=SimLock(), mint=lambda: "new")
    try:
        opened = store.open(Settings(), NOW)
    except RestoreNotAccepted:
        return "waits for acceptance"
    except StoreUnusable:
        return "refused"
    finally:
        store.close()
    if opened.state.schedules:
        raise Violation("half of a copy was started as a store")
    return "nothing there"


def test_nothing_is_restored_into_a_folder_of_somebody_else(tmp_path):
    made = lived_in(tmp_path / "store")
    backup(made.root, tmp_path / "copy")
    (tmp_path / "other" / "schedules").mkdir(parents=True)
    (tmp_path / "other" / "schedules" / "notes.txt").write_text("mine")
    with pytest.raises(StoreUnusable):
        restore(tmp_path / "copy", tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").rglob("*") if path.is_file()] == ["notes.txt"]


def test_two_copies_that_are_taken_at_once_are_both_clean(tmp_path):
    made = lived_in(tmp_path / "store")
    made.start()
    results: list[object] = []

    def copy(name: str) -> None:
        try:
            results.append(backup(made.root, tmp_path / name).files)
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=copy, args=(name,)) for name in ("one", "two", "same", "same")]
    for thread in threads:
        thread.start()
    for _ in range(20):
        made.commit(*made.scribe.ran("a"))
    made.checkpoint()
    for thread in threads:
        thread.join()
    made.stop()
    assert verify(tmp_path / "one").clean
    assert verify(tmp_path / "two").clean
    refused = [each for each in results if isinstance(each, Exception)]
    assert all(isinstance(each, StoreUnusable | StorageFailed) for each in refused), refused
    if len(refused) < 2:  # one of the two that wanted the same place had it
        assert verify(tmp_path / "same").clean


def test_a_store_on_which_an_older_copy_was_laid_is_not_taken_for_either(tmp_path):
    """Files of the copy over those of the store, without removing what is newer: a hand that was in a hurry."""
    made = lived_in(tmp_path / "store")
    backup(made.root, tmp_path / "copy")
    made.start()
    for _ in range(5):
        made.commit(*made.scribe.ran("a"))
    made.checkpoint()
    made.commit(*made.scribe.skip("a"))
    made.stop()
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file():
            (made.root / path.relative_to(tmp_path / "copy")).write_bytes(path.read_bytes())
    mixed = Store(made.root)
    with pytest.raises(StoreUnusable):
        mixed.open(Settings(), NOW)
    mixed.close()
