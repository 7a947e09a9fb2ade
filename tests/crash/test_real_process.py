"""Lost locks, failed syncs, full disks and network filesystems, met by the real process: what it still answers, and how it ends."""

import json
import os
import shutil
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from rpc_client.errors import RpcError
from tests.crash import launch
from tests.crash.daemons import (
    END_S,
    GATED,
    Stopwatch,
    create,
    daemon_on,
    ended,
    failing,
    injected,
    need_strace,
    ready,
    refusal_of,
    refused_start,
    schedule_ids,
    traced,
    verified,
    workflow_server,
)
from tests.crash.disks import tmpfs
from tests.integration.process import rows_of, until
from tests.integration.scenes import last_row

EXIT_STORAGE_FAILED, EXIT_HELD, EXIT_LOST, EXIT_UNUSABLE = 74, 75, 76, 78
SOON_S = 10.0
"""Much longer than an end takes, on a machine with much else to do, and much shorter than a drain."""

DUE_S = 3.0


@pytest.fixture
async def served():
    async with workflow_server() as pair:
        yield pair


def journal_of(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "schedules" / "journal").iterdir()))


# --- the lock ---------------------------------------------------------------------------------------------------------


def _deleted(store: Path):
    (store / "scheduler.lock").unlink()


def _replaced(store: Path):
    other = store / "other.lock"
    other.write_bytes((store / "scheduler.lock").read_bytes())
    other.rename(store / "scheduler.lock")


def _linked(store: Path):
    os.link(store / "scheduler.lock", store / "second-name.lock")


@pytest.mark.parametrize("meddle", [_deleted, _replaced, _linked], ids=lambda each: each.__name__.strip("_"))
async def test_a_daemon_whose_lock_file_is_gone_commits_nothing_more_and_keeps_a_second_one_out_while_it_lives(
    tmp_path, served, meddle
):
    face, _ = served
    store = tmp_path / "store"
    first = daemon_on(tmp_path / "first", store, face.url)
    second = daemon_on(tmp_path / "second", store, face.url)
    async with first, first.app() as app:
        await create(app, "before")
        first.process.send_signal(signal.SIGSTOP)  # it lives, and has no chance to notice by itself yet
        meddle(store)
        code, said = await refused_start(second)
        assert code == EXIT_HELD, said
        # What a second one may have left under that name does not fool the first.
        before = journal_of(store)
        first.process.send_signal(signal.SIGCONT)
        with pytest.raises(RpcError):
            await create(app, "after")
        assert await ended(first) == EXIT_LOST
        assert journal_of(store) == before
        assert first.log()[-1]["action"] == "ownership_lost"
    if meddle is _linked:
        (store / "second-name.lock").unlink()
    async with second, second.app() as app:
        assert await schedule_ids(app) == {"before"}
        assert await second.stop() == 0
    verified(store)


async def test_an_instant_that_comes_after_the_lock_is_gone_is_not_dispatched(tmp_path, served):
    """Nobody calls: it is the daemon's own next commit that must not happen."""
    face, _ = served
    store = tmp_path / "store"
    first = daemon_on(tmp_path / "first", store, face.url)
    async with first, first.app() as app:
        await create(app, "due", DUE_S)
        before = journal_of(store)
        _deleted(store)
        assert await ended(first) == EXIT_LOST
        assert journal_of(store) == before
    assert face.fake.execution_log == []


async def test_when_folder_and_lock_file_are_both_replaced_the_first_daemon_ends_before_its_next_commit(
    tmp_path, served
):
    """The only way in for a second one: everything that the first holds was moved away.  Its own copy takes nothing more."""
    face, _ = served
    store = tmp_path / "store"
    first = daemon_on(tmp_path / "first", store, face.url)
    second = daemon_on(tmp_path / "second", store, face.url)
    async with first, first.app() as app:
        await create(app, "before")
        (store / "schedules").rename(store / "moved")
        (store / "scheduler.lock").unlink()
        async with second, second.app() as other:
            await create(other, "second")
            moved = {path.name: path.read_bytes() for path in (store / "moved" / "journal").iterdir()}
            with pytest.raises(RpcError):
                await create(app, "after")
            assert await ended(first) == EXIT_LOST
            assert {path.name: path.read_bytes() for path in (store / "moved" / "journal").iterdir()} == moved
            assert await schedule_ids(other) == {"second"}
            assert await second.stop() == 0


async def test_a_store_on_a_network_filesystem_is_refused_with_78_until_that_is_allowed(tmp_path, served):
    face, _ = served
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw,relatime - ext4 /dev/root rw\n"
        f"40 21 0:40 / {tmp_path} rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2\n"
    )
    daemon = daemon_on(tmp_path / "logs", tmp_path / "store", face.url)
    daemon.prefix = launch.PREFIX
    daemon.environment["CRASH_MOUNTINFO"] = str(mounts)
    code, said = await refused_start(daemon)
    assert code == EXIT_UNUSABLE
    assert "nfs4" in said
    assert not (tmp_path / "store" / "schedules" / "FORMAT.json").exists()
    daemon.argv = (*daemon.argv, "--allow-network-fs")
    async with daemon, daemon.app() as app:
        await create(app, "a")
        assert await daemon.stop() == 0


# --- a sync that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "number"), [("fdatasync", 1), ("fdatasync", 4), ("fsync", 1)])
async def test_after_a_failed_sync_the_process_ends_at_once_and_a_restart_serves_what_was_durable(
    tmp_path, served, call, number
):
    need_strace()
    face, _ = served
    store, trace = tmp_path / "store", tmp_path / "trace"
    daemon = daemon_on(tmp_path / "logs", store, face.url)
    async with daemon, daemon.app() as app:
        await create(app, "earlier")
        assert await daemon.stop() == 0
    daemon.prefix = traced(trace, call, f"error=EIO:when={number}")
    acknowledged = {"earlier"}
    with suppress(RpcError, AssertionError):  # it may not even come up
        await daemon.start()
        async with daemon.app() as app:
            for each in range(8):
                watch = Stopwatch()
                await create(app, f"s{each}")
                acknowledged.add(f"s{each}")
    assert await ended(daemon) == EXIT_STORAGE_FAILED
    assert len(injected(trace)) == 1, trace.read_text()
    assert call == "fsync" or number == 1 or watch.seconds < SOON_S
    print(f"{call} {number}: {len(acknowledged)} acknowledged, gone {watch.seconds if number > 1 else 0:.2f} s after")
    daemon.prefix = ()
    async with daemon, daemon.app() as app:
        found = await schedule_ids(app)
        assert acknowledged <= found
        assert len(found - acknowledged) <= 1
        await create(app, "later", DUE_S)
        await last_row(app, "later", "completed")
        assert await daemon.stop() == 0
    verified(store)


async def test_a_sync_that_fails_while_a_stop_waits_for_the_last_run_is_no_stop_in_order(tmp_path, served):
    need_strace()
    face, gate = served
    daemon = daemon_on(tmp_path / "logs", tmp_path / "store", face.url)
    async with daemon, daemon.app() as app:
        await create(app, "open", DUE_S, GATED)
        await last_row(app, "open", "running")
        daemon.process.send_signal(signal.SIGTERM)
        await until(lambda: _said(daemon, "draining"), seconds=END_S)
        async with failing(daemon, "fdatasync"):
            gate.set()  # its result comes, and cannot be made durable
            assert await ended(daemon) == EXIT_STORAGE_FAILED
        assert daemon.log()[-1]["action"] == "storage_failed"
    async with daemon, daemon.app() as app:
        await last_row(app, "open", "completed")
        assert await daemon.stop() == 0
    assert len(face.fake.execution_log) == 1
    verified(daemon.store)


async def _said(daemon, action: str) -> bool:
    return any(line["action"] == action for line in daemon.log())


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("log_too", [False, True], ids=["log-elsewhere", "log-on-it-too"])
async def test_on_a_full_disk_calls_are_refused_reads_go_on_and_room_is_all_it_takes(tmp_path, served, log_too):
    face, gate = served
    with tmpfs(tmp_path / "small", "size=64k") as disk:
        daemon = daemon_on(disk / "logs" if log_too else tmp_path / "logs", disk / "store", face.url)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(daemon)
            app = await stack.enter_async_context(daemon.app())
            pid = daemon.process.pid
            await create(app, "done", DUE_S)
            done = await last_row(app, "done", "completed")
            await create(app, "open", DUE_S, GATED)
            await until(lambda: _asked(face, 2), seconds=END_S)
            await last_row(app, "open", "running")
            ballast = disk / "ballast"
            acknowledged = {"done", "open"} | await _fill_up(app, ballast)

            assert await refusal_of(app, "while-full") == "StorageFull"
            status, said = await ready(daemon)
            assert (status, "disk full" in said) == (503, True)
            assert await schedule_ids(app) == acknowledged
            assert (await rows_of(app, "done"))[-1] == done
            assert (await app.inspect_run(done["run_id"]))["status"] == "completed"
            gate.set()  # its result comes while nothing can be written
            assert (await rows_of(app, "open"))[-1]["status"] == "running"

            ballast.unlink()
            await until(lambda: _is_ready(daemon), seconds=END_S)
            assert daemon.process.pid == pid
            assert daemon.process.returncode is None
            await last_row(app, "open", "completed")
            await create(app, "after", DUE_S)
            await last_row(app, "after", "completed")
            assert await daemon.stop() == 0
        acknowledged |= {"after"}
        print(f"{len(acknowledged)} acknowledged on 64 KiB")
        async with daemon, daemon.app() as app:
            assert await schedule_ids(app) == acknowledged
            assert [(await rows_of(app, each))[-1]["status"] for each in ("done", "open", "after")] == ["completed"] * 3
            assert await daemon.stop() == 0
        verified(disk / "store")
    assert len(face.fake.execution_log) == 3


async def _fill_up(app, ballast: Path) -> set[str]:
    """Take every page of the disk but one, then create until there is no room."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    with ballast.open("rb+") as file:
        file.truncate(ballast.stat().st_size - 4096)
    made: set[str] = set()
    for number in range(200):
        refusal = await refusal_of(app, f"s{number:03d}")
        if refusal is not None:
            assert refusal == "StorageFull"
            return made
        made.add(f"s{number:03d}")
    raise AssertionError("the disk is never full")


async def _is_ready(daemon) -> bool:
    return (await ready(daemon))[0] == 200


async def _asked(face, count: int) -> bool:
    return len(face.fake.execution_log) == count


# --- a log that takes nothing -----------------------------------------------------------------------------------------


async def test_a_daemon_whose_log_cannot_be_written_goes_on_and_ends_with_its_own_code(tmp_path, served):
    """The log is often a file on the very disk that is full."""
    face, _ = served
    store = tmp_path / "store"
    daemon = daemon_on(tmp_path / "logs", store, face.url)
    daemon.log_path = Path("/dev/full")
    async with daemon, daemon.app() as app:
        await create(app, "a", DUE_S)
        await until(lambda: _asked(face, 1), seconds=END_S)
        await last_row(app, "a", "completed")
        _deleted(store)
        with suppress(RpcError):
            await create(app, "b")
        assert await ended(daemon) == EXIT_LOST


# --- a store that cannot be used --------------------------------------------------------------------------------------


def _segment_gone(folder: Path):
    next((folder / "journal").iterdir()).rename(folder / "journal" / f"{7:020d}.jsonl")


def _format_damaged(folder: Path):
    said = (folder / "FORMAT.json").read_bytes()
    (folder / "FORMAT.json").write_bytes(said.replace(b'"version":1', b'"version":3'))


def _format_gone(folder: Path):
    (folder / "FORMAT.json").unlink()


def _format_empty(folder: Path):
    (folder / "FORMAT.json").write_bytes(b"")


def _journal_gone(folder: Path):
    shutil.rmtree(folder / "journal")


def _a_file_in_place_of_the_folder(folder: Path):
    folder.rename(folder.parent / "moved")
    folder.write_bytes(b"")


REFUSED = [_segment_gone, _format_damaged, _format_gone, _format_empty, _journal_gone, _a_file_in_place_of_the_folder]


@pytest.mark.parametrize("harm", REFUSED, ids=lambda each: each.__name__.strip("_"))
async def test_a_store_that_is_refused_ends_the_process_with_78_and_the_reason_and_is_left_as_it_was(
    tmp_path, served, harm
):
    face, _ = served
    daemon = daemon_on(tmp_path / "logs", tmp_path / "store", face.url)
    async with daemon, daemon.app() as app:
        await create(app, "a")
        assert await daemon.stop() == 0
    harm(daemon.store / "schedules")
    before = {path: path.read_bytes() for path in daemon.store.rglob("*.json*") if path.is_file()}
    code, said = await refused_start(daemon)
    assert code == EXIT_UNUSABLE, said
    assert json.loads(said.splitlines()[-1])["reason"]
    assert {path: path.read_bytes() for path in daemon.store.rglob("*.json*") if path.is_file()} == before
