"""Crash after every call of a script, open every disk that this may leave: nothing acknowledged is missing, nothing is there by half.

Each mutant at the end is a store, or a filesystem, that leaves one step out; every one must be caught by the very same check.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from itertools import islice

import pytest

from scheduler_daemon.core.model import Settings
from scheduler_daemon.store import fs as steps
from scheduler_daemon.store import journal
from tests.crash import scripts
from tests.crash.simfs import SimFileSystem
from tests.crash.stage import (
    Crash,
    Moment,
    Script,
    Stage,
    Violation,
    check,
    check_going_on,
    crashes_now,
    crashes_of,
    new_store,
    play,
)
from tests.crash.stage import SimLock as Lock
from tests.scribe import NOW, Scribe, durable

EVERYTHING = "CRASH_EVERYTHING" in os.environ
"""Set it to check every image in every way; the short suite goes on from every sixth, and mixes less."""

STRIDE = 1 if EVERYTHING else 6


@pytest.fixture(autouse=True)
def _more_mixtures(monkeypatch):
    monkeypatch.setattr(SimFileSystem, "mixed", 60 if EVERYTHING else 8)


@pytest.mark.parametrize("script", scripts.ALL, ids=lambda script: script.__name__)
def test_every_legal_disk_after_a_crash_at_any_call_holds_what_was_acknowledged(script: Script):
    crashes, stage = crashes_of(script, SimFileSystem())
    for crash in crashes:
        check(crash, stage.moments)
    print(f"{script.__name__}: {stage.fs.calls} calls, {len(crashes)} images, 0 violations")
    assert len(crashes) > stage.fs.calls


@pytest.mark.parametrize("script", scripts.ALL, ids=lambda script: script.__name__)
def test_after_any_crash_the_store_goes_on_and_keeps_both_what_was_and_what_comes(script: Script):
    crashes, stage = crashes_of(script, SimFileSystem())
    for crash in crashes[::STRIDE]:
        check_going_on(crash, stage.moments)


@pytest.mark.parametrize("script", scripts.ALL, ids=lambda script: script.__name__)
def test_a_crash_while_recovering_from_a_crash_loses_nothing_either(script: Script):
    crashes, _ = crashes_of(script, SimFileSystem())
    for crash in crashes[:: 1 if EVERYTHING else max(1, len(crashes) // 6)]:
        for second, moments in _crashes_in_recovery(crash):
            check(second, moments)


def _crashes_in_recovery(crash: Crash) -> list[tuple[Crash, list[Moment]]]:
    """Images of crashes between opening what another crash left and the end of a first checkpoint."""
    fs, lock = SimFileSystem(crash.image), Lock(crash.seen)
    store = new_store(fs, lock)
    moments: list[Moment] = []
    acked = 0
    found: list[Crash] = []

    def watch() -> None:
        found.extend(
            Crash(image, fs.calls, acked, len(moments) - 1, lock.seen) for image in islice(fs.crash_images(), 9)
        )

    async def go_on() -> None:
        nonlocal acked
        scribe = Scribe(opened.state)
        scribe.rows = {key: list(store.page(key, None, 1000).rows) for key in opened.state.schedules}
        moments.append(Moment(durable(scribe.state), {key: list(rows) for key, rows in scribe.rows.items()}))
        events = scribe.epoch(opened.epoch)
        moments.append(Moment(durable(scribe.state), moments[0].rows))
        fs.watch = watch
        await store.commit(events)
        acked = 1
        await store.checkpoint(scribe.state)

    opened = store.open(Settings(), NOW)
    asyncio.run(go_on())
    store.close()
    return [(second, moments) for second in found]


# --- controls: each leaves one step out -------------------------------------------------------------------------------


class NoDataSync(SimFileSystem):
    """Answers before the batch is durable."""

    def fdatasync(self, fd: int) -> None:
        self._call("fdatasync", self._open[fd][1])


class NoSyncBeforeRename(SimFileSystem):
    """Renames files whose content is not durable."""

    def fsync(self, fd: int) -> None:
        self._call("fsync", self._open[fd][1])


class NoFolderSync(SimFileSystem):
    """Leaves it to chance whether a name is there."""

    def fsync_folder(self, path: str) -> None:
        self._call("fsync_folder", path)


class NoSyncOfHistories(SimFileSystem):
    """Takes a snapshot before the rows that it lets the journal drop are durable."""

    def syncfs(self, path: str) -> bool:
        self._call("syncfs", path)
        return True


@pytest.mark.parametrize("mutant", [NoDataSync, NoSyncBeforeRename, NoFolderSync, NoSyncOfHistories])
def test_a_filesystem_step_that_is_left_out_is_noticed(mutant):
    violation = _first_violation(mutant, scripts.ALL)
    print(f"{mutant.__name__}: {violation}")
    assert violation is not None


def _first_violation(make: type[SimFileSystem], among: Sequence[Script]) -> str | None:
    for script in among:
        crashes, stage = crashes_of(script, make())
        for crash in crashes:
            try:
                check(crash, stage.moments)
            except Violation as violation:
                return f"{script.__name__}: {violation}"
    return None


def test_trying_again_after_a_failed_sync_is_noticed(monkeypatch):
    def try_again(fs: SimFileSystem, fd: int, _what: str) -> None:
        try:
            fs.fdatasync(fd)
        except OSError:
            fs.fdatasync(fd)

    monkeypatch.setattr(journal, "sync_data", try_again)
    assert _lost_after_a_failed_sync()


def test_without_trying_again_a_failed_sync_loses_nothing():
    assert _lost_after_a_failed_sync() == []


def _lost_after_a_failed_sync() -> list[str]:
    lost: list[str] = []
    calls = play(scripts.first_light, SimFileSystem())[0].fs.log
    for failing in [number for number, (call, _) in enumerate(calls, 1) if call == "fdatasync"]:
        fs = SimFileSystem()
        fs.fault = lambda number, call, _path, failing=failing: errno.EIO if number == failing else None
        stage, _ = play(scripts.first_light, fs)
        for crash in crashes_now(stage):
            try:
                check(crash, stage.moments)
            except Violation as violation:
                lost.append(str(violation))
    return lost


def test_dropping_segments_before_the_snapshot_is_durable_is_noticed(monkeypatch):
    """The order of a checkpoint turned round: a rename without its sync, and the journal gone."""
    monkeypatch.setattr(steps, "sync_folder", lambda _fs, _path: None)
    monkeypatch.setattr(steps, "sync_file", lambda _fs, _fd, _what: None)
    assert _first_violation(SimFileSystem, [scripts.checkpoints, scripts.retention]) is not None


def test_a_batch_that_is_visible_before_it_is_whole_is_noticed(monkeypatch):
    """A reader that believes records without their commit line shows half a batch."""
    from scheduler_daemon.store import scan

    def believe(self: scan.Scan, rest: bytes, offset: int, segment: scan.Segment) -> scan.Found:
        return scan.Found.CLEAN if not rest or rest.endswith(b"\n") else original(self, rest, offset, segment)

    original = scan.Scan._judge_rest
    monkeypatch.setattr(scan.Scan, "_judge_rest", believe)
    assert _first_violation(SimFileSystem, [scripts.large_batches]) is not None


def test_a_stage_that_forgets_a_batch_is_noticed():
    """The check itself has teeth: an image is held against what was acknowledged when it was taken."""

    async def script(stage: Stage) -> None:
        await stage.commit(*stage.scribe.create("a"))
        await stage.commit(*stage.scribe.create("b"))

    crashes, stage = crashes_of(script, SimFileSystem())
    early = next(crash for crash in crashes if crash.acked == 1)
    with pytest.raises(Violation, match="3 batches were acknowledged"):
        check(Crash(early.image, early.call, 3, 3, early.seen), stage.moments)
