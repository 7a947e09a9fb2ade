"""What lines say, versions of the format, and a store that was written by format 1 and must open for ever."""

import asyncio
import inspect
import shutil
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.model import Checkpoint, Diagnostic, Mark, Result, Settings
from scheduler_daemon.store import schema
from scheduler_daemon.store.framing import frame, lines, unframe
from scheduler_daemon.store.schema import (
    Accepted,
    Commit,
    Damage,
    Judged,
    NewerVersion,
    Record,
    Unreadable,
    decode_journal,
    encode_batch,
)
from scheduler_daemon.store.store import Store
from tests.builders import definition
from tests.scribe import NOON, NOW, SERVER, Scribe, durable, server_id
from tests.shelf import Shelf

GOLDEN = Path(__file__).parent / "golden_store_1"

OF_RUN = {"at": NOON, "schedule_id": "a", "n": 7, "run_id": "run-000001", "instant": NOON, "revision": 2}
MARK = Mark(
    kind="resume",
    key="k",
    marked_at=NOON,
    server=SERVER,
    attempt=1,
    checkpoint=Checkpoint("interrupted", 3),
    payload={"x": None},
)
ONE_OF_EACH = [
    ev.EpochStarted(at=NOON, epoch=3),
    ev.Decided(at=NOON, until=NOON + timedelta(seconds=1)),
    ev.ClockStepped(at=NOON, step_s=-3.5),
    ev.ScheduleCreated(at=NOON, schedule_id="a", n=1, definition=definition("a", input={"who": {"value": "wörld\n"}})),
    ev.ScheduleUpdated(
        at=NOON, schedule_id="a", n=2, definition=definition("a", at=NOON), revision=2, trigger_changed=True
    ),
    ev.SchedulePaused(at=NOON, schedule_id="a", n=3, revision=3, note="because"),
    ev.ScheduleResumed(at=NOON, schedule_id="a", n=4, revision=4),
    ev.ScheduleDeleted(at=NOON, schedule_id="a", n=5, revision=5),
    ev.ScheduleBlocked(at=NOON, schedule_id="a", n=6, revision=6, diagnostic=Diagnostic("c", "m", NOON, {"k": [1]})),
    ev.ScheduleUnblocked(at=NOON, schedule_id="a", n=7, revision=7, note="ok", rewound=True, taken=(NOON,)),
    ev.CandidateHeld(at=NOON, schedule_id="a", n=8, instant=NOON, waiting="no-slot"),
    ev.OccurrenceClosed(
        at=NOON, schedule_id="a", n=9, instant=NOON, status="skipped-misfire", reason="late", revision=1
    ),
    ev.RangeClosed(
        at=NOON,
        schedule_id="a",
        n=10,
        first_instant=NOON,
        last_instant=NOON,
        count=2,
        status="coalesced",
        reason="r",
        revision=1,
    ),
    ev.RunAdmitted(
        at=NOON,
        schedule_id="a",
        n=11,
        instant=NOON,
        run_id="run-000001",
        number=1,
        key="k",
        revision=1,
        deployment_id="d",
        input={},
    ),
    ev.DispatchMarked(**OF_RUN, mark=MARK),
    ev.DispatchNotSent(**OF_RUN, reason="refused"),
    ev.CallLost(**OF_RUN, reason="cut", mark_kind="start"),
    ev.AttemptMarked(**OF_RUN, mark=MARK),
    ev.AttemptReverted(**OF_RUN, reason="not-sent"),
    ev.RunInterrupted(**OF_RUN, server_run_id="run_1", checkpoint=Checkpoint("interrupted", 1), interrupt={"ask": 1}),
    ev.CheckpointSeen(**OF_RUN, checkpoint=Checkpoint("interrupted", 2)),
    ev.RunSettled(**OF_RUN, status="completed", result=Result(status="completed", output={"deep": [{"er": 1.5}]})),
    ev.OutcomeObserved(at=NOON, schedule_id="a", n=12, run_id="run-000001", result=Result(status="failed")),
]


def decoded(data):
    bodies = [unframe(line) for _, line, _ in lines(data)]
    return [decode_journal(body) for body in bodies if body is not None]


# --- records ----------------------------------------------------------------------------------------------------------


def test_there_is_one_of_each_event_here():
    assert {type(event).__name__ for event in ONE_OF_EACH} == schema.EVENT_KINDS


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_every_event_comes_back_as_it_was(event):
    data, commit = encode_batch(41, 3, NOON, [event])
    record, end = decoded(data)
    assert end == commit
    assert isinstance(record, Record)
    assert record.content == event
    assert (record.seq, record.epoch) == (41, 3)
    assert (record.schedule_id, record.n) == (getattr(event, "schedule_id", None), getattr(event, "n", 0))


@pytest.mark.parametrize(
    "own",
    [Judged((Damage("a", "f", 3, "r"), Damage(None, "f", 4, "r")), {"a": 7}, 12), Accepted()],
    ids=["Judged", "Accepted"],
)
def test_the_stores_own_records_come_back_as_they_were(own):
    data, _ = encode_batch(1, 2, NOON, [], [own])
    record = decoded(data)[0]
    assert isinstance(record, Record)
    assert record.content == own


def test_no_field_of_an_event_is_taken_for_one_of_the_record():
    for name in schema.EVENT_KINDS:
        fields = {field.name for field in msgspec.structs.fields(getattr(ev, name))}
        assert not fields & {"v", "seq"}, name
        assert "epoch" not in fields or name == "EpochStarted"


def test_a_commit_line_names_first_and_last_and_what_must_not_be_given_out_again():
    scribe = Scribe()
    events = [*scribe.create("a"), *scribe.create("b"), *scribe.admit("a"), *scribe.decided(), *scribe.admit("b")]
    _, commit = encode_batch(10, 1, NOON, events)
    assert commit == Commit(1, 10, 16, NOON, {"a": 3, "b": 3}, scribe.state.globals.decided_until, run_number=2)


def test_a_record_is_readable_by_other_tools():
    data, _ = encode_batch(1, 1, NOON, [ev.Decided(at=NOON, until=NOON)])
    assert msgspec.json.decode(data.splitlines()[0]) == {
        "c": data[6:14].decode(),
        "r": {
            "v": 1,
            "seq": 1,
            "epoch": 1,
            "kind": "Decided",
            "at": "2026-01-05T12:00:00Z",
            "until": "2026-01-05T12:00:00Z",
        },
    }


# --- what is not understood -------------------------------------------------------------------------------------------


def test_a_kind_that_nobody_knows_is_told_with_its_schedule():
    record = decode_journal(b'{"v":1,"seq":4,"epoch":1,"kind":"ScheduleCloned","schedule_id":"a","n":3}')
    assert record == Record(4, 1, "a", 3, Unreadable("record kind 'ScheduleCloned' is unknown"))


def test_an_event_that_does_not_fit_its_kind_is_told_with_its_schedule():
    record = decode_journal(
        b'{"v":1,"seq":4,"epoch":1,"kind":"SchedulePaused","schedule_id":"a","n":3,"revision":"two"}'
    )
    assert isinstance(record, Record)
    assert isinstance(record.content, Unreadable)
    assert record.schedule_id == "a"


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b'"x"', b"{}", b'{"v":"1"}', b'{"v":1}', b"not json", b'{"kind":"commit"}']
)
def test_what_is_no_record_at_all_is_an_error(body):
    with pytest.raises(msgspec.MsgspecError):
        decode_journal(body)


def test_a_higher_version_is_refused_and_never_read_as_ours():
    with pytest.raises(NewerVersion, match="version 2 is newer"):
        decode_journal(
            b'{"v":2,"seq":4,"epoch":1,"kind":"Decided","at":"2026-01-05T12:00:00Z","until":"2026-01-05T12:00:00Z"}'
        )


# --- migration --------------------------------------------------------------------------------------------------------


@pytest.fixture
def version_3(monkeypatch):
    """A later program, in which `reason` of a closed occurrence became `why`, and then `cause`."""

    def renamed(old, new):
        return lambda body: {new if key == old else key: value for key, value in body.items()}

    monkeypatch.setattr(schema, "VERSION", 3)
    monkeypatch.setitem(schema.MIGRATIONS, 1, renamed("reason_of_old", "reason_of_two"))
    monkeypatch.setitem(schema.MIGRATIONS, 2, renamed("reason_of_two", "reason"))


def test_an_older_body_is_brought_up_to_date_step_by_step(version_3):
    old = (
        b'{"v":1,"seq":4,"epoch":1,"kind":"OccurrenceClosed","at":"2026-01-05T12:00:00Z","schedule_id":"a","n":3,'
        b'"instant":"2026-01-05T12:00:00Z","status":"superseded","reason_of_old":"paused","revision":1}'
    )
    record = decode_journal(old)
    assert isinstance(record, Record)
    assert isinstance(record.content, ev.OccurrenceClosed)
    assert record.content.reason == "paused"


def test_a_version_that_nobody_can_bring_up_to_date_is_an_error(version_3):
    with pytest.raises(msgspec.MsgspecError, match="format version 0"):
        decode_journal(b'{"v":0,"kind":"commit"}')


def test_a_store_of_an_older_version_opens_goes_on_and_is_then_of_both(version_3, monkeypatch):
    monkeypatch.setattr(schema, "VERSION", 1)
    shelf = Shelf()
    shelf.start()
    shelf.commit(*shelf.scribe.create("a"), *shelf.scribe.ran("a"))
    shelf.checkpoint()
    shelf.commit(*shelf.scribe.skip("a"))
    monkeypatch.setattr(schema, "VERSION", 3)
    shelf.restart()
    shelf.commit(*shelf.scribe.ran("a"))
    assert shelf.rows("a") == shelf.scribe.rows["a"]
    truth = durable(shelf.scribe.state)
    shelf.checkpoint()
    shelf.stop()
    assert durable(shelf.open().state) == truth
    assert shelf.rows("a") == shelf.scribe.rows["a"]
    shelf.stop()


# --- the golden store -------------------------------------------------------------------------------------------------


def write_golden(root: Path) -> None:
    """How the golden store was made, once, by format 1: `python -m tests.unit.test_store_schema`.  Never write it anew."""
    store = Store(root, mint=lambda: "golden")
    opened = store.open(Settings(), NOW)
    scribe = Scribe(opened.state)

    async def live() -> None:
        await store.commit(scribe.epoch(1))
        await store.commit([*scribe.create("a"), *scribe.create("b", overlap="parallel", max_active_runs=3)])
        await store.commit([*scribe.ran("a"), *scribe.admit("b")])
        await store.commit(scribe.interrupt("b"))
        await store.checkpoint(scribe.state)
        await store.commit([*scribe.admit("b"), *scribe.skip("a"), *scribe.decided()])
        await store.commit(scribe.settle("b", "run-000003", status="failed", reason="outcome-unknown"))
        await store.commit(scribe.pause("a", "golden"))

    asyncio.run(live())
    store.close()
    (root / "scheduler.lock").unlink()


def test_a_store_of_format_1_opens_and_says_what_it_always_said(tmp_path):
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    store = Store(tmp_path)
    opened = store.open(Settings(), NOW)
    state = opened.state
    try:
        assert (state.store_id, opened.epoch, opened.damages, opened.torn, opened.harmless) == ("golden", 2, (), (), ())
        assert {key: (each.n, each.paused, each.revision) for key, each in state.schedules.items()} == {
            "a": (6, True, 2),
            "b": (7, False, 1),
        }
        assert [(run.run_id, run.phase, run.server_run_id) for run in state.schedules["b"].runs] == [
            ("run-000002", "interrupted", server_id("run-000002"))
        ]
        assert list(state.unknown) == ["run-000003"]
        assert (state.globals.run_number, state.globals.slots_used) == (3, 0)
        assert state.globals.decided_until == NOON + timedelta(seconds=4)
        assert [(row.n, row.status) for row in store.page("a", None, 10).rows] == [
            (2, "admitted"),
            (3, "running"),
            (4, "completed"),
            (5, "skipped-misfire"),
        ]
        assert [(row.n, row.status, row.reason) for row in store.page("b", None, 10).rows] == [
            (2, "admitted", None),
            (3, "running", None),
            (4, "interrupted", None),
            (5, "admitted", None),
            (6, "running", None),
            (7, "failed", "outcome-unknown"),
        ]
        found = store.find_run(server_id("run-000001"))
        assert found is not None
        assert found.run_id == "run-000001"
    finally:
        store.close()


def test_the_golden_store_is_as_it_was_written():
    """Its files may never change: they stand for stores that are out there."""
    for path in GOLDEN.rglob("*.jsonl"):
        for _, line, whole in lines(path.read_bytes()):
            assert whole
            assert unframe(line) is not None
            assert frame(unframe(line) or b"") == line + b"\n"
            assert line[20:].startswith(b'{"v":1,')


def test_bodies_of_every_sort_begin_with_their_version():
    structs = [value for _, value in inspect.getmembers(schema, inspect.isclass) if issubclass(value, msgspec.Struct)]
    assert all("v" not in {field.name for field in msgspec.structs.fields(each)} for each in structs)


if __name__ == "__main__":
    write_golden(GOLDEN)
