"""Full disks and power cuts on filesystems as they are, not as they are simulated.  Skipped, aloud, where they cannot be had."""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler_daemon.core.model import Settings
from scheduler_daemon.store.errors import StorageFull
from scheduler_daemon.store.store import Store
from tests.crash.disks import Disk, tmpfs
from tests.crash.writer import COUNT_BYTES
from tests.scribe import NOW, Scribe, durable

pytestmark = pytest.mark.root
PROJECT = Path(__file__).parents[2]


def opened_in(folder, **options):
    store = Store(folder, mint=lambda: "store", **options)
    opened = store.open(Settings(), NOW)
    return store, opened, Scribe(opened.state)


# --- full disks -------------------------------------------------------------------------------------------------------


def test_on_a_full_tmpfs_batches_are_refused_reads_go_on_and_room_is_all_it_takes(tmp_path):
    with tmpfs(tmp_path / "small", "size=64k") as folder:
        store, opened, scribe = opened_in(folder)
        (folder / "ballast").write_bytes(bytes(24 << 10))
        with asyncio.Runner() as runner:
            runner.run(store.commit([*scribe.epoch(opened.epoch), *scribe.create("a")]))
            events = runner.run(_until_full(store, scribe))
            acknowledged = scribe.rows["a"][:-3]
            assert len(acknowledged) >= 3
            assert list(store.page("a", None, 1_000).rows) == acknowledged
            with pytest.raises(StorageFull):
                runner.run(store.commit(events))
            (folder / "ballast").unlink()
            runner.run(store.commit(events))
            assert list(store.page("a", None, 1_000).rows) == scribe.rows["a"]
        store.close()
        again, opened, _ = opened_in(folder)
        assert durable(opened.state) == durable(scribe.state)
        assert (opened.damages, opened.torn) == ((), ())
        again.close()


async def _until_full(store, scribe):
    """Commit runs until one is refused; its events."""
    while True:
        events = scribe.ran("a")
        try:
            await store.commit(events)
        except StorageFull:
            return events


def test_without_inodes_the_journal_goes_on_in_the_segment_it_has(tmp_path):
    with tmpfs(tmp_path / "few", "size=4m,nr_inodes=13") as folder:
        store, opened, scribe = opened_in(folder, segment_bytes_max=500)
        with asyncio.Runner() as runner:
            runner.run(store.commit([*scribe.epoch(opened.epoch), *scribe.create("a")]))
            for _ in range(12):
                runner.run(store.commit(scribe.skip("a")))
            with pytest.raises(StorageFull):
                runner.run(store.checkpoint(scribe.state))
            runner.run(store.commit(scribe.skip("a")))
        store.close()
        again, opened, _ = opened_in(folder)
        assert durable(opened.state) == durable(scribe.state)
        assert list(again.page("a", None, 100).rows) == scribe.rows["a"]
        again.close()


# --- power cuts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(request, tmp_path):
    made = Disk(tmp_path, request.param)
    yield made
    made.remove()


def _write_until_the_power_goes(disk, counted, seed, *options):
    """Cut the power under a writing process; how many batches it had acknowledged by then."""
    counted.write_bytes(b"0".rjust(COUNT_BYTES))
    argv = [sys.executable, "-m", "tests.crash.writer", str(disk.mounted / "store"), str(counted), *options]
    with subprocess.Popen(argv, cwd=PROJECT, stderr=subprocess.DEVNULL) as writer:
        _wait(writer, lambda: _count(counted) > 0)
        enough = _count(counted) + random.Random(seed).randrange(5, 120)
        _wait(writer, lambda: _count(counted) >= enough)
        acknowledged = _count(counted)
        disk.cut_power()
        writer.kill()
    return acknowledged


def _wait(writer, condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert writer.poll() is None, "the writer ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _count(counted):
    return int(counted.read_bytes() or b"0")


def _found_after(disk):
    """How many batches are there after the power is back; all of what a batch wrote, or nothing of it."""
    disk.unmount()
    disk.mount()
    store, opened, _ = opened_in(disk.mounted / "store")
    assert opened.damages == ()
    found = len(store.page("a", None, 1_000_000).rows)
    assert opened.state.schedules["a"].n == found + 1
    assert len(store.page("b", None, 1_000_000).rows) == 3 * found
    store.close()
    return found


def _lost_by_cuts(disk, tmp_path, cuts):
    counted = tmp_path / "count"
    disk.mount()
    lost = 0
    for seed in range(cuts):
        acknowledged = _write_until_the_power_goes(disk, counted, seed)
        found = _found_after(disk)
        lost += max(0, acknowledged - found)
    print(f"{cuts} power cuts: {lost} acknowledged batches lost")
    disk.unmount()
    return lost


@pytest.mark.parametrize("disk", ["ext4", "xfs"], indirect=True)
def test_a_power_cut_loses_nothing_that_was_acknowledged(disk, tmp_path):
    assert _lost_by_cuts(disk, tmp_path, 3) == 0


@pytest.mark.long
@pytest.mark.parametrize("disk", ["ext4", "xfs"], indirect=True)
def test_thirty_power_cuts_lose_nothing_that_was_acknowledged(disk, tmp_path):
    assert _lost_by_cuts(disk, tmp_path, 30) == 0


@pytest.mark.parametrize("disk", ["ext4", "xfs"], indirect=True)
def test_a_store_that_acknowledges_before_it_syncs_is_caught_by_a_power_cut(disk, tmp_path):
    disk.mount()
    counted = tmp_path / "count"
    acknowledged = _write_until_the_power_goes(disk, counted, 0, "no-sync")
    disk.unmount()
    disk.mount()
    try:
        store, _, _ = opened_in(disk.mounted / "store")
        found = len(store.page("a", None, 1_000_000).rows)
        store.close()
    except Exception:
        found = 0
    disk.unmount()
    assert found < acknowledged
