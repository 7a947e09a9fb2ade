"""Let every call of a script fail in every way: only the store's own errors come out, and nothing acknowledged is lost.

What is refused for want of room is tried again and succeeds without a restart; everything else ends the store, and the next start
finds what was durable.
"""

from __future__ import annotations

import errno
import os

import pytest

from scheduler_daemon.store.errors import StorageFailed, StoreUnusable
from tests.crash import scripts
from tests.crash.simfs import SimFileSystem
from tests.crash.stage import Script, check, crashes_now, play

EVERYTHING = "CRASH_EVERYTHING" in os.environ
"""Set it to fail each call of the long script too, where the short suite takes every fourth."""

ERRORS = ["ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE"]
SYNCS = {"fsync", "fdatasync", "fsync_folder", "syncfs"}


def _calls(script: Script) -> list[tuple[int, str]]:
    log = play(script, SimFileSystem())[0].fs.log
    stride = 4 if script is scripts.retention and not EVERYTHING else 1
    return [(number, call) for number, (call, _) in enumerate(log, 1)][::stride]


def _play_failing(script: Script, first: int, last: int, code: int):
    fs = SimFileSystem()
    fs.fault = lambda number, _call, _path: code if first <= number <= last else None
    stage, error = play(script, fs)
    fs.fault = lambda _number, _call, _path: None
    assert error is None or isinstance(error, StorageFailed | StoreUnusable), (fs.log[first - 1], repr(error))
    for crash in crashes_now(stage, [fs.image(), *fs.extreme_images()]):
        check(crash, stage.moments)
    return stage, error


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("script", scripts.ALL, ids=lambda script: script.__name__)
def test_any_one_call_may_fail_and_nothing_acknowledged_is_lost(script: Script, name: str):
    for number, _ in _calls(script):
        _play_failing(script, number, number, getattr(errno, name))


@pytest.mark.parametrize("script", scripts.ALL, ids=lambda script: script.__name__)
def test_any_one_write_may_be_short_and_nobody_notices(script: Script):
    for number, call in _calls(script):
        if call == "write":
            stage, error = _play_failing(script, number, number, 0)
            assert error is None
            assert stage.refused == 0


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS"])
@pytest.mark.parametrize("script", [scripts.first_light, scripts.large_batches], ids=lambda script: script.__name__)
def test_a_disk_that_takes_nothing_for_a_while_is_waited_for(script: Script, name: str):
    """From any call on after the start, for some calls: batches are refused, tried again, and then all of them are there."""
    started = 12
    for number, call in _calls(script)[started:]:
        if call == "write":
            stage, error = _play_failing(script, number, number + 5, getattr(errno, name))
            assert error is None
            assert stage.refused >= 1
            assert stage.acked == stage.begun


@pytest.mark.parametrize("script", scripts.ALL, ids=lambda script: script.__name__)
def test_a_failed_sync_is_never_tried_again(script: Script):
    for number, call in _calls(script):
        if call in SYNCS:
            stage, error = _play_failing(script, number, number, errno.EIO)
            assert isinstance(error, StorageFailed), call
            assert not any(later in SYNCS for later, _ in stage.fs.log[number:] if later != "fsync_folder")
