"""The run store of the embedded server: what survives which crash, and what damage may not do."""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from scheduler_daemon.embedded import executions as executing
from scheduler_daemon.embedded.deployments import Deployment, Step
from scheduler_daemon.embedded.executions import Broken, Ended, Executions, NotDone, Resume, ResumeOf, Start
from scheduler_daemon.embedded.runs import (
    Asked,
    Claim,
    Identity,
    Intent,
    Interrupt,
    Place,
    Run,
    RunDamaged,
    RunStore,
    Stop,
    StoreUnusable,
    run_id_of,
)

AT = datetime(2026, 11, 30, 9, tzinfo=UTC)
LATER_AT = datetime(2026, 11, 30, 10, tzinfo=UTC)
PLACE = Place(steps=(Step(argv=("true",), name="s"),), index=0, value={})


def asked(request="start", key=None, digest="d"):
    return Asked(request=request, key=key, digest=digest, started_at=AT)


def identity(run_id):
    return Identity(run_id=run_id, deployment_id="d.default", artifact_id="d", artifact_version=1)


def interrupted(run_id, key=None):
    stop = Stop(asked=asked(key=key), status="interrupted", interrupt=Interrupt("s", {}), trace_count=1, stopped_at=AT)
    return Run(identity=identity(run_id), stops=(stop,), place=PLACE)


@pytest.fixture
def opened(tmp_path):
    stores = []

    def open_store():
        for store in stores:
            store.close()
        store = RunStore(tmp_path / "data")
        store.open(lambda: LATER_AT)
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        store.close()


def test_a_start_that_began_and_did_not_end_is_failed_when_the_store_is_opened_again(opened):
    run_id = run_id_of("k")
    opened().begin(Intent(identity=identity(run_id), asked=asked(key="k"), stops_before=0))
    store = opened()
    run = store.run(run_id)
    assert (run.last.status, run.last.error, run.last.stopped_at) == ("failed", "server-restarted", LATER_AT)
    assert (store.known("k").stop, store.known("k").began) == (run.last, True)
    assert opened().run(run_id) == run


def test_a_resume_that_began_and_did_not_end_fails_its_run_and_keeps_the_earlier_answers(opened):
    store, run_id = opened(), run_id_of("k")
    store.finish(interrupted(run_id, "k"))
    store.claim(Claim(key="r", run_id=run_id, digest="rd"))
    store.begin(Intent(identity=identity(run_id), asked=asked("resume", "r", "rd"), stops_before=1))
    store = opened()
    run = store.run(run_id)
    assert [stop.status for stop in run.stops] == ["interrupted", "failed"]
    assert (run.place, run.last.error, run.last.trace_count) == (None, "server-restarted", 1)
    assert store.known("k").stop.status == "interrupted"
    assert store.known("r").stop == run.last


def test_an_intent_that_outlived_its_recorded_end_changes_nothing(opened):
    store, run_id = opened(), run_id_of("k")
    run = interrupted(run_id, "k")
    store.finish(run)
    store.begin(Intent(identity=identity(run_id), asked=asked(key="k"), stops_before=0))
    assert opened().run(run_id) == run


def test_a_claim_without_an_intent_is_spent_but_never_executed(opened):
    store, run_id = opened(), run_id_of("k")
    store.finish(interrupted(run_id, "k"))
    store.claim(Claim(key="r", run_id=run_id, digest="rd"))
    known = opened().known("r")
    assert (known.digest, known.began, known.stop) == ("rd", False, None)
    assert opened().run(run_id).last.status == "interrupted"


def test_half_a_file_is_not_seen(opened, tmp_path):
    store, run_id = opened(), run_id_of("k")
    store.finish(interrupted(run_id, "k"))
    (tmp_path / "data" / "executing" / f".{run_id}.json").write_text("{")
    (tmp_path / "data" / "runs" / run_id[4:6] / f".{run_id}.json").write_text("{")
    assert opened().run(run_id) == interrupted(run_id, "k")
    assert opened().page(None, 0, 10)[1] == 1


def test_a_damaged_intent_still_says_that_its_key_was_spent(opened, tmp_path):
    run_id = run_id_of("k")
    opened().begin(Intent(identity=identity(run_id), asked=asked(key="k"), stops_before=0))
    (tmp_path / "data" / "executing" / f"{run_id}.json").write_text('{"identity"')
    store = opened()
    assert (store.run(run_id).last.status, store.run(run_id).last.error) == ("failed", "server-restarted")
    assert store.known("k").began


def test_a_damaged_run_is_damaged_and_not_unknown_and_stops_no_other(opened, tmp_path):
    store, run_id, other = opened(), run_id_of("k"), run_id_of("other")
    store.finish(interrupted(run_id, "k"))
    store.finish(interrupted(other))
    store.begin(Intent(identity=identity(run_id), asked=asked(key="k"), stops_before=0))
    file = tmp_path / "data" / "runs" / run_id[4:6] / f"{run_id}.json"
    file.write_bytes(file.read_bytes()[:-10])
    store = opened()
    with pytest.raises(RunDamaged, match=run_id):
        store.run(run_id)
    with pytest.raises(RunDamaged):
        store.known("k")
    assert store.run(other) == interrupted(other)
    assert [row.identity.run_id for row in store.page(None, 0, 10)[0]] == [other]


def test_a_list_that_was_read_before_stays_true(opened):
    store = opened()
    first, second = run_id_of("1"), run_id_of("2")
    store.finish(interrupted(first))
    assert store.page(None, 0, 10)[1] == 1
    store.finish(interrupted(second))
    done = msgspec.structs.replace(interrupted(first).last, status="completed", stopped_at=LATER_AT)
    store.finish(msgspec.structs.replace(interrupted(first), stops=(*interrupted(first).stops, done), place=None))
    for seen in (store, opened()):
        rows, total = seen.page(None, 0, 10)
        assert [(row.identity.run_id, row.status) for row in rows] == [(first, "completed"), (second, "interrupted")]
        assert (rows[0].created_at, rows[0].updated_at, total) == (AT, LATER_AT, 2)
        assert [row.identity.run_id for row in seen.page("interrupted", 0, 10)[0]] == [second]


@pytest.mark.parametrize("text", ['{"format":"scheduler-daemon embedded runs","version":2}', '{"format":"x"}', "{"])
def test_a_format_that_is_not_ours_or_later_is_refused(opened, tmp_path, text):
    opened()
    (tmp_path / "data" / "FORMAT.json").write_text(text)
    with pytest.raises(StoreUnusable, match="FORMAT"):
        opened()


@pytest.fixture
def doings(monkeypatch):
    """What is done to files that matters after a power cut, in order, each with the name that it is done to."""
    seen = []
    names = {}
    real_open, real_fsync, real_replace = os.open, os.fsync, Path.replace

    def open_(path, *args, **kwargs):
        descriptor = real_open(path, *args, **kwargs)
        names[descriptor] = Path(path).name
        return descriptor

    def fsync(descriptor):
        seen.append(f"fsync {names[descriptor]}")
        real_fsync(descriptor)

    def replace(self, target):
        seen.append(f"rename {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    return seen


def test_a_record_is_on_disk_before_its_name_is_and_the_name_before_the_call_returns(opened, doings):
    store, run_id = opened(), "run_" + "ab" * 16
    doings.clear()
    store.begin(Intent(identity=identity(run_id), asked=asked(), stops_before=0))
    assert doings == [f"fsync .{run_id}.json", f"rename {run_id}.json", "fsync executing"]
    doings.clear()
    store.finish(interrupted(run_id))
    assert doings == ["fsync runs", f"fsync .{run_id}.json", f"rename {run_id}.json", "fsync ab"]


# --- when the disk fails under an execution ---

ECHO = Deployment(id="d.default", steps=(Step(argv=("true",), name="s", cwd="/"),))
START = Start(deployment_id="d.default", workflow_input={}, max_steps=None)


class Faults:
    """Makes the next writes of one kind fail."""

    def __init__(self, store, name, error, times):
        self.calls = 0
        self._real = getattr(store, name)
        self._error = error
        self._times = times
        setattr(store, name, self)

    def __call__(self, record):
        self.calls += 1
        if self.calls <= self._times:
            raise OSError(self._error, "as the test wants")
        return self._real(record)


@pytest.fixture
async def executions(opened, monkeypatch):
    monkeypatch.setattr(executing, "FULL_DISK_PAUSE_S", 0.01)
    bugs = []
    executions = Executions(
        opened(), {"d.default": ECHO}, {"PATH": "/usr/bin:/bin"}, now=lambda: AT, on_bug=lambda *bug: bugs.append(bug)
    )
    executions.bugs = bugs
    yield executions
    await executions.stop()


async def test_an_end_that_finds_the_disk_full_is_kept_until_there_is_room(executions):
    finish = Faults(executions._store, "finish", errno.ENOSPC, 3)
    ended = await executions.ask(START, "k")
    assert isinstance(ended, Ended)
    assert (ended.stop.status, finish.calls, executions.bugs) == ("completed", 4, [])


async def test_an_end_that_cannot_be_recorded_spends_the_key_without_an_answer(executions):
    finish = Faults(executions._store, "finish", errno.EIO, 1)
    for _ in range(2):
        with pytest.raises(Broken):
            await executions.ask(START, "k")
    assert finish.calls == 1
    assert len(executions.bugs) == 2


async def test_an_intent_that_cannot_be_written_executes_nothing_and_the_key_stays_good(executions):
    Faults(executions._store, "begin", errno.ENOSPC, 1)
    with pytest.raises(Broken):
        await executions.ask(START, "k")
    assert executions._store.known("k") is None
    assert (await executions.ask(START, "k")).stop.status == "completed"


async def test_a_run_whose_resume_could_not_be_recorded_is_not_resumed_again(executions):
    executions._store.finish(interrupted(run_id_of("x")))
    resume = ResumeOf(run_id=run_id_of("x"), answer=Resume("submitted", {}))
    Faults(executions._store, "finish", errno.EIO, 1)
    with pytest.raises(Broken):
        await executions.ask(resume, None)
    with pytest.raises(NotDone, match="already being resumed"):
        await executions.ask(resume, None)
