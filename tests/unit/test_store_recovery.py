"""The table *found at recovery*, a test a row; each damages a file by hand and starts the store again."""

import pytest

from scheduler_daemon.core.events import DispatchMarked, RunAdmitted
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.framing import frame, unframe
from scheduler_daemon.store.history import DAMAGED
from tests.scribe import durable
from tests.shelf import Shelf, rot

LAST = -1


@pytest.fixture
def shelf():
    """Two schedules, a run of each, an instant of one that did not run; nothing but a journal yet."""
    made = Shelf()
    made.start()
    s = made.scribe
    made.commit(*s.create("a"))
    made.commit(*s.create("b"))
    made.commit(*s.ran("a"), *s.ran("b"))
    made.commit(*s.skip("a"))
    yield made
    made.stop()


def blocked(opened):
    return {damage.schedule_id for damage in opened.damages}


def lines_of(shelf, part="/journal/"):
    return shelf.read(part).splitlines(keepends=True)


# --- the end of the last segment --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_last_segment_that_ends_without_a_newline_is_torn_and_cut_to_the_last_commit(shelf, cut):
    before, state = shelf.read("/journal/"), durable(shelf.scribe.state)
    shelf.stop()
    half = frame(b'{"v":1,"seq":999,"epoch":1,"kind":"Decided"}')[:-cut]
    shelf.edit("/journal/", lambda data: data + half)
    opened = shelf.open()
    assert opened.damages == ()
    assert [(torn.offset, torn.size) for torn in opened.torn] == [(len(before), len(half))]
    assert durable(opened.state) == state
    shelf.commit(*shelf.scribe.epoch(opened.epoch))
    assert shelf.read("/journal/").startswith(before)
    assert half not in shelf.read("/journal/")


def test_what_is_cut_is_kept_in_quarantine_with_the_reason(shelf):
    shelf.stop()
    shelf.edit("/journal/", lambda data: data + b'{"c":"half')
    shelf.start()
    copy, reason = shelf.files("quarantine/")
    assert reason == copy + ".json"
    assert shelf.fs.image()[copy] == b'{"c":"half'
    told = unframe(shelf.read(reason).rstrip(b"\n"))
    assert told is not None
    assert b"torn: the last line has no newline" in told
    assert b"journal/00000000000000000001.jsonl" in told


def test_valid_lines_that_no_commit_line_follows_are_torn(shelf):
    state = durable(shelf.scribe.state)
    whole = shelf.read("/journal/")
    shelf.commit(*shelf.scribe.ran("b"))
    batch = shelf.read("/journal/")[len(whole) :].splitlines(keepends=True)
    shelf.stop()
    shelf.edit("/journal/", lambda _: whole + b"".join(batch[:-1]))
    opened = shelf.open()
    assert [torn.reason for torn in opened.torn] == ["torn: valid lines that no commit line follows"]
    assert opened.damages == ()
    assert durable(opened.state) == state


@pytest.mark.parametrize("zeros", [1, 17, 4096])
def test_a_last_segment_that_ends_in_zeros_is_torn(shelf, zeros):
    state = durable(shelf.scribe.state)
    shelf.stop()
    shelf.edit("/journal/", lambda data: data + bytes(zeros))
    opened = shelf.open()
    assert [torn.size for torn in opened.torn] == [zeros]
    assert opened.damages == ()
    assert durable(opened.state) == state


def test_a_zeroed_sector_in_the_last_batch_is_torn_although_its_commit_line_is_there(shelf):
    state = durable(shelf.scribe.state)
    start = len(shelf.read("/journal/"))
    shelf.commit(*shelf.scribe.ran("a"), *shelf.scribe.ran("b"))
    shelf.stop()
    sector = (start // 512 + 1) * 512
    shelf.edit("/journal/", lambda data: data[:sector] + bytes(512) + data[sector + 512 :])
    opened = shelf.open()
    assert [torn.offset for torn in opened.torn] == [start]
    assert opened.damages == ()
    assert durable(opened.state) == state


def test_zeros_in_a_batch_that_another_followed_are_damage_and_no_tear(shelf):
    start = len(shelf.read("/journal/"))
    shelf.commit(*shelf.scribe.ran("a"), *shelf.scribe.ran("b"))
    shelf.commit(*shelf.scribe.decided())
    shelf.stop()
    sector = (start // 512 + 1) * 512
    shelf.edit("/journal/", lambda data: data[:sector] + bytes(512) + data[sector + 512 :])
    opened = shelf.open()
    assert opened.torn == ()
    assert blocked(opened)


def test_a_commit_line_that_lacks_only_its_newline_is_a_commit_line(shelf):
    state = durable(shelf.scribe.state)
    whole = shelf.read("/journal/")
    shelf.stop()
    shelf.edit("/journal/", lambda data: data[:-1])
    assert durable(shelf.open().state) == state
    shelf.commit(*shelf.scribe.epoch(2))
    assert shelf.read("/journal/").startswith(whole)


@pytest.mark.parametrize("byte", [b"\x0b", b"J", b"\x8a"])
def test_a_flip_in_the_last_newline_of_all_costs_nothing(shelf, byte):
    state = durable(shelf.scribe.state)
    whole = shelf.read("/journal/")
    shelf.stop()
    shelf.edit("/journal/", lambda data: data[:-1] + byte)
    opened = shelf.open()
    assert durable(opened.state) == state
    assert (opened.damages, opened.torn) == ((), ())
    shelf.commit(*shelf.scribe.epoch(2))
    assert shelf.read("/journal/").startswith(whole)


# --- damage in the last batch -----------------------------------------------------------------------------------------


def test_a_damaged_commit_line_of_the_last_batch_blocks_the_schedules_of_that_batch(shelf):
    shelf.commit(*shelf.scribe.admit("b"))
    state = durable(shelf.scribe.state)
    shelf.stop()
    offset = shelf.edit_line("/journal/", LAST, rot)
    opened = shelf.open()
    assert [(damage.schedule_id, damage.offset) for damage in opened.damages] == [("b", offset)]
    assert opened.torn == ()
    assert durable(opened.state) == state, "it may have been dispatched, so its run is not forgotten"


def test_a_damaged_record_of_the_last_batch_blocks_the_schedule_that_its_commit_line_says_lacks_one(shelf):
    shelf.commit(*shelf.scribe.skip("a"), *shelf.scribe.skip("b"))
    shelf.stop()
    shelf.edit_line("/journal/", -3, rot)
    assert blocked(shelf.open()) == {"a"}


def test_a_last_batch_of_which_record_and_commit_line_are_damaged_stops_admission_for_all(shelf):
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.stop()
    shelf.edit_line("/journal/", -2, rot)
    shelf.edit_line("/journal/", -1, rot)
    opened = shelf.open()
    assert blocked(opened) == {None}
    assert opened.torn == ()


def test_a_damaged_newline_before_a_commit_line_costs_nothing(shelf):
    state = durable(shelf.scribe.state)
    shelf.stop()
    shelf.edit_line("/journal/", -2, lambda line: line[:-1] + b"\x0b")
    opened = shelf.open()
    assert durable(opened.state) == state
    assert opened.damages == ()
    assert len(opened.harmless) == 1


# --- damage with later commits ----------------------------------------------------------------------------------------


def test_a_bad_line_blocks_the_schedule_that_its_commit_line_names_and_that_lacks_its_record(shelf):
    shelf.commit(*shelf.scribe.skip("b"))
    shelf.stop()
    number = next(
        n for n, line in enumerate(lines_of(shelf)) if b'"RunSettled"' in line and b'"schedule_id":"a"' in line
    )
    offset = shelf.edit_line("/journal/", number, rot)
    opened = shelf.open()
    assert [(damage.schedule_id, damage.offset) for damage in opened.damages] == [("a", offset)]
    assert durable(opened.state)["schedules"]["b"] == durable(shelf.scribe.state)["schedules"]["b"]


def test_other_schedules_of_the_damaged_batch_lose_nothing(shelf):
    truth = durable(shelf.scribe.state)["schedules"]["b"]
    rows = shelf.rows("b")
    shelf.stop()
    number = next(
        n for n, line in enumerate(lines_of(shelf)) if b'"RunAdmitted"' in line and b'"schedule_id":"a"' in line
    )
    shelf.edit_line("/journal/", number, rot)
    opened = shelf.start()
    assert blocked(opened) == {"a"}
    assert shelf.rows("b") == rows
    assert durable(shelf.scribe.state)["schedules"]["b"] == truth


def test_later_records_of_a_damaged_schedule_count_as_far_as_they_fit(shelf):
    """The run was settled after the record that was lost, and that is true: it must not be settled a second time."""
    shelf.commit(*shelf.scribe.admit("a"))
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.commit(*shelf.scribe.settle("a"))
    shelf.stop()
    number = max(n for n, line in enumerate(lines_of(shelf)) if b'"OccurrenceClosed"' in line)
    shelf.edit_line("/journal/", number, rot)
    opened = shelf.open()
    assert blocked(opened) == {"a"}
    assert opened.state.schedules["a"].runs == ()
    assert opened.state.globals.slots_used == 0


def test_a_lost_record_of_no_schedule_is_repeated_by_its_commit_line_and_blocks_nobody(shelf):
    shelf.commit(*shelf.scribe.decided())
    state = durable(shelf.scribe.state)
    shelf.commit(*shelf.scribe.skip("b"))
    shelf.stop()
    number = max(n for n, line in enumerate(lines_of(shelf)) if b'"Decided"' in line)
    shelf.edit_line("/journal/", number, rot)
    opened = shelf.open()
    assert opened.damages == ()
    assert durable(opened.state)["decided_until"] == state["decided_until"]
    assert [damage.reason for damage in opened.harmless] == ["a record of no schedule, repeated in its commit line"]


def test_a_lost_beginning_of_an_epoch_is_told_by_the_records_of_that_epoch(shelf):
    shelf.commit(*shelf.scribe.admit("b"))
    shelf.restart()
    state = durable(shelf.scribe.state)
    shelf.stop()
    number = max(n for n, line in enumerate(lines_of(shelf)) if b'"EpochStarted"' in line)
    shelf.edit_line("/journal/", number, rot)
    opened = shelf.open()
    assert opened.damages == ()
    assert durable(opened.state) == state
    assert opened.epoch == 3


def test_a_damaged_commit_line_that_later_batches_follow_costs_nothing(shelf):
    state = durable(shelf.scribe.state)
    shelf.stop()
    number = [n for n, line in enumerate(lines_of(shelf)) if b'"commit"' in line][2]
    shelf.edit_line("/journal/", number, rot)
    opened = shelf.open()
    assert opened.damages == ()
    assert durable(opened.state) == state
    assert len(opened.harmless) == 1


def test_a_record_whose_commit_line_is_damaged_too_is_named_by_the_gap_in_its_schedule(shelf):
    shelf.commit(*shelf.scribe.skip("b"))
    shelf.commit(*shelf.scribe.skip("b"))
    shelf.stop()
    number = next(
        n for n, line in enumerate(lines_of(shelf)) if b'"OccurrenceClosed"' in line and b'"schedule_id":"b"' in line
    )
    shelf.edit_line("/journal/", number, rot)
    shelf.edit_line("/journal/", number + 1, rot)
    assert blocked(shelf.open()) == {"b"}


def test_a_record_that_nothing_names_stops_admission_for_all(shelf):
    shelf.commit(*shelf.scribe.skip("b"))
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.stop()
    number = next(
        n for n, line in enumerate(lines_of(shelf)) if b'"OccurrenceClosed"' in line and b'"schedule_id":"b"' in line
    )
    offset = shelf.edit_line("/journal/", number, rot)
    shelf.edit_line("/journal/", number + 1, rot)
    opened = shelf.open()
    assert [(damage.schedule_id, damage.offset) for damage in opened.damages] == [(None, offset)]


def test_a_run_number_of_a_lost_admission_is_not_given_out_again(shelf):
    number = shelf.scribe.state.globals.run_number + 1
    shelf.commit(*shelf.scribe.admit("b"))
    shelf.stop()
    for kind in (RunAdmitted.__name__, DispatchMarked.__name__):
        line = max(n for n, line in enumerate(lines_of(shelf)) if f'"{kind}"'.encode() in line)
        shelf.edit_line("/journal/", line, rot)
    opened = shelf.open()
    assert blocked(opened) == {"b"}
    assert opened.state.globals.run_number == number


def test_run_numbers_that_may_be_in_a_stretch_that_nobody_can_name_are_skipped(shelf):
    number = shelf.scribe.state.globals.run_number + 1
    shelf.commit(*shelf.scribe.admit("b"))
    shelf.stop()
    for line in (-3, -2, -1):
        shelf.edit_line("/journal/", line, rot)
    opened = shelf.open()
    assert None in blocked(opened)
    assert opened.state.globals.run_number >= number


def test_a_schedule_whose_creation_is_lost_keeps_its_id_and_its_history(shelf):
    rows = shelf.rows("b")
    shelf.stop()
    number = next(
        n for n, line in enumerate(lines_of(shelf)) if b'"ScheduleCreated"' in line and b'"schedule_id":"b"' in line
    )
    shelf.edit_line("/journal/", number, rot)
    opened = shelf.start()
    assert blocked(opened) == {"b"}
    placeholder = opened.state.schedules["b"]
    assert placeholder.definition.deployment_id == ""
    assert placeholder.note is not None
    assert placeholder.n == 4
    assert shelf.rows("b") == rows


# --- damage that was found before -------------------------------------------------------------------------------------


def test_damage_is_reported_at_every_start_until_its_schedule_is_blocked(shelf):
    shelf.stop()
    number = next(
        n for n, line in enumerate(lines_of(shelf)) if b'"RunSettled"' in line and b'"schedule_id":"a"' in line
    )
    shelf.edit_line("/journal/", number, rot)
    assert blocked(shelf.start()) == {"a"}
    assert blocked(shelf.restart()) == {"a"}
    shelf.commit(*shelf.scribe.block("a"))
    state = durable(shelf.scribe.state)
    opened = shelf.restart()
    assert opened.damages == ()
    state["epoch"] += 1
    assert durable(shelf.scribe.state) == state


def test_damage_that_was_judged_survives_a_checkpoint_that_drops_its_segment(shelf):
    shelf.stop()
    number = next(
        n for n, line in enumerate(lines_of(shelf)) if b'"RunSettled"' in line and b'"schedule_id":"a"' in line
    )
    shelf.edit_line("/journal/", number, rot)
    shelf.start()
    for _ in range(3):
        shelf.checkpoint()
        shelf.commit(*shelf.scribe.skip("b"))
    assert len(shelf.files("/journal/")) == 2
    assert blocked(shelf.restart()) == {"a"}


def test_damage_that_is_nobodys_is_reported_until_everybody_is_blocked(shelf):
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.stop()
    shelf.edit_line("/journal/", -2, rot)
    shelf.edit_line("/journal/", -1, rot)
    assert blocked(shelf.start()) == {None}
    shelf.commit(*shelf.scribe.block("a"))
    assert blocked(shelf.restart()) == {None}
    shelf.commit(*shelf.scribe.block("b"))
    assert blocked(shelf.restart()) == set()


def test_damage_that_is_nobodys_is_accepted_as_a_restore_is(shelf):
    shelf.commit(*shelf.scribe.skip("a"))
    shelf.stop()
    shelf.edit_line("/journal/", -2, rot)
    shelf.edit_line("/journal/", -1, rot)
    assert not shelf.start().restored
    shelf.options["mint"] = lambda: "another"
    opened = shelf.restart(accept_restore=True)
    assert (opened.restored, opened.damages, opened.state.store_id) == (True, (), "another")
    shelf.store.finish_restore()
    opened = shelf.restart()
    assert (opened.restored, opened.damages, opened.state.store_id) == (False, (), "another")


def test_what_follows_damage_is_replayed_to_the_same_state_as_it_was_lived(shelf):
    shelf.commit(*shelf.scribe.skip("b"))
    shelf.stop()
    number = max(n for n, line in enumerate(lines_of(shelf)) if b'"OccurrenceClosed"' in line)
    shelf.edit_line("/journal/", number, rot)
    shelf.start()
    shelf.commit(*shelf.scribe.block("b"))
    shelf.commit(*shelf.scribe.ran("a"), *shelf.scribe.skip("b"))
    lived = durable(shelf.scribe.state)
    shelf.stop()
    opened = shelf.open()
    assert opened.damages == ()
    assert durable(opened.state) == lived


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def long_shelf():
    """Many small segments, without a snapshot."""
    made = Shelf(segment_bytes_max=300)
    made.start()
    for name in ("a", "b", "c"):
        made.commit(*made.scribe.create(name))
        made.commit(*made.scribe.skip(name))
    yield made
    made.stop()


def test_a_missing_segment_is_refused(long_shelf):
    long_shelf.stop()
    missing = long_shelf.files("/journal/")[2]
    long_shelf.fs.unlink(missing)
    with pytest.raises(StoreUnusable, match="a segment is gone"):
        long_shelf.open()


def test_a_first_segment_that_is_missing_without_a_snapshot_is_refused(long_shelf):
    long_shelf.stop()
    long_shelf.fs.unlink(long_shelf.files("/journal/")[0])
    with pytest.raises(StoreUnusable, match="records from 1 on are missing"):
        long_shelf.open()


def test_a_last_segment_that_is_missing_after_a_snapshot_is_refused(long_shelf):
    long_shelf.checkpoint()
    long_shelf.stop()
    for path in long_shelf.files("/journal/")[-2:]:
        long_shelf.fs.unlink(path)
    with pytest.raises(StoreUnusable, match="before its snapshot"):
        long_shelf.open()


def test_a_gap_in_the_numbers_without_a_bad_line_is_refused(shelf):
    shelf.stop()
    lines = lines_of(shelf)
    shelf.edit("/journal/", lambda _: b"".join(lines[:4] + lines[6:]))
    with pytest.raises(StoreUnusable) as refused:
        shelf.open()
    assert refused.value.file.endswith("00000000000000000001.jsonl")
    assert refused.value.offset == sum(map(len, lines[:4]))


def test_an_epoch_that_goes_backwards_is_refused(shelf):
    shelf.restart()
    shelf.stop()
    lines = lines_of(shelf)
    shelf.edit("/journal/", lambda data: data + reframed(lines[2], b'"seq":2,"epoch":1', b'"seq":12,"epoch":1'))
    shelf.edit("/journal/", lambda data: data + reframed(lines[3], b'"first":2,"last":2', b'"first":12,"last":12'))
    with pytest.raises(StoreUnusable, match="epoch 1 follows epoch 2"):
        shelf.open()


def reframed(line, old, new):
    """A line of another content and a good checksum."""
    body = unframe(line[:-1])
    assert body is not None
    assert old in body, body
    return frame(body.replace(old, new))


def test_a_record_of_a_higher_format_version_is_refused(shelf):
    shelf.stop()
    shelf.edit_line("/journal/", 4, lambda line: reframed(line, b'{"v":1,', b'{"v":2,'))
    with pytest.raises(StoreUnusable, match="format version 2 is newer"):
        shelf.open()


def test_a_record_of_an_unknown_kind_blocks_the_schedule_it_names(shelf):
    shelf.stop()
    number = next(n for n, line in enumerate(lines_of(shelf)) if b'"OccurrenceClosed"' in line)
    offset = shelf.edit_line(
        "/journal/", number, lambda line: reframed(line, b'"OccurrenceClosed"', b'"OccurrenceDreamt"')
    )
    opened = shelf.open()
    assert [(damage.schedule_id, damage.offset) for damage in opened.damages] == [("a", offset)]
    assert "OccurrenceDreamt" in opened.damages[0].reason


def test_a_record_of_an_unknown_kind_and_of_no_schedule_is_refused(shelf):
    shelf.commit(*shelf.scribe.decided())
    shelf.stop()
    shelf.edit_line("/journal/", -2, lambda line: reframed(line, b'"Decided"', b'"Undecided"'))
    with pytest.raises(StoreUnusable, match="Undecided"):
        shelf.open()


def test_a_record_that_contradicts_the_lifecycle_blocks_its_schedule_and_no_other(shelf):
    shelf.commit(*shelf.scribe.admit("b"))
    shelf.stop()
    shelf.edit_line("/journal/", -2, lambda line: reframed(line, b'"run_id":"run-000003"', b'"run_id":"run-000001"'))
    opened = shelf.open()
    assert blocked(opened) == {"b"}
    assert "contradiction" in opened.damages[0].reason


# --- snapshots --------------------------------------------------------------------------------------------------------


@pytest.fixture
def snapped(shelf):
    """Two snapshots with batches before, between and after them."""
    shelf.checkpoint()
    shelf.commit(*shelf.scribe.create("c"), *shelf.scribe.admit("a"))
    shelf.checkpoint()
    shelf.commit(*shelf.scribe.ran("b"))
    return shelf


def test_a_bad_line_of_the_newest_snapshot_is_taken_from_the_older_one_and_the_journal(snapped):
    state = durable(snapped.scribe.state)
    snapped.stop()
    for number in range(1, len(lines_of(snapped, "/snapshot/")) - 1):
        snapped.edit_line("/snapshot/", number, rot)
    opened = snapped.open()
    assert opened.damages == ()
    assert durable(opened.state) == state
    assert opened.harmless


def test_either_head_of_a_snapshot_will_do(snapped):
    state = durable(snapped.scribe.state)
    snapped.stop()
    snapped.edit_line("/snapshot/", 0, rot)
    assert durable(snapped.open().state) == state
    snapped.stop()
    snapped.edit_line("/snapshot/", 0, rot)
    snapped.edit_line("/snapshot/", -1, rot)
    assert durable(snapped.open().state) == state, "without any head the older snapshot and the journal are taken"


def test_a_snapshot_line_that_both_snapshots_lack_stops_admission_for_all(snapped):
    snapped.stop()
    older, newer = snapped.files("/snapshot/")
    for path in (older, newer):
        number = next(n for n, line in enumerate(lines_of(snapped, path)) if b'"schedule_id":"a"' in line)
        snapped.edit_line(path, number, rot)
    opened = snapped.open()
    assert None in blocked(opened)
    assert durable(opened.state)["schedules"]["b"] == durable(snapped.scribe.state)["schedules"]["b"]


def test_without_a_readable_snapshot_a_journal_from_the_first_record_on_is_enough(shelf):
    shelf.checkpoint()
    state = durable(shelf.scribe.state)
    shelf.stop()
    shelf.edit("/snapshot/", lambda _: b"")
    assert durable(shelf.open().state) == state


def test_without_a_readable_snapshot_and_without_the_first_segment_the_store_is_refused(snapped):
    snapped.checkpoint()
    snapped.stop()
    for path in snapped.files("/snapshot/"):
        snapped.edit(path, lambda _: b"")
    with pytest.raises(StoreUnusable, match="no snapshot can be read"):
        snapped.open()


def test_a_snapshot_of_a_higher_format_version_is_refused(snapped):
    snapped.stop()
    snapped.edit_line("/snapshot/", 1, lambda line: reframed(line, b'{"v":1,', b'{"v":7,'))
    with pytest.raises(StoreUnusable, match="format version 7 is newer"):
        snapped.open()


def test_damage_in_a_stretch_that_the_snapshot_holds_harms_nobody(snapped):
    state = durable(snapped.scribe.state)
    snapped.stop()
    first = snapped.files("/journal/")[0]
    snapped.edit_line(first, 4, rot)
    opened = snapped.open()
    assert opened.damages == ()
    assert durable(opened.state) == state


# --- histories --------------------------------------------------------------------------------------------------------


def test_a_bad_history_line_shows_a_diagnostic_row_and_blocks_nobody_when_its_run_is_over(shelf):
    rows = shelf.rows("a")
    shelf.checkpoint()
    shelf.stop()
    offset = shelf.edit_line("/a.jsonl", 1, rot)
    opened = shelf.start()
    assert opened.damages == ()
    found = shelf.rows("a")
    assert [row for row in found if row.status != DAMAGED] == [rows[0], *rows[2:]]
    stand_in = next(row for row in found if row.status == DAMAGED)
    assert stand_in.detail is not None
    assert (stand_in.n, stand_in.detail["offset"]) == (rows[1].n, offset)
    assert stand_in.detail["file"].endswith("/a.jsonl")


def test_a_bad_history_line_of_an_unfinished_run_blocks_its_schedule_once(shelf):
    shelf.commit(*shelf.scribe.admit("b"))
    shelf.checkpoint()
    shelf.stop()
    offset = shelf.edit_line("/b.jsonl", -1, rot)
    opened = shelf.start()
    assert [(damage.schedule_id, damage.offset) for damage in opened.damages] == [("b", offset)]
    shelf.commit(*shelf.scribe.block("b"))
    assert shelf.restart().damages == ()
    shelf.checkpoint()
    assert shelf.restart().damages == ()


def test_rows_that_an_interrupted_checkpoint_left_are_shown_once(shelf):
    rows = shelf.rows("a")
    shelf.checkpoint()
    history = shelf.read("/a.jsonl")
    shelf.stop()
    for path in shelf.files("/snapshot/"):
        shelf.fs.unlink(path)
    shelf.edit("/a.jsonl", lambda data: data[: len(data) * 2 // 3])
    shelf.start()
    assert shelf.rows("a") == rows
    shelf.checkpoint()
    assert shelf.read("/a.jsonl") == history
    assert shelf.rows("a") == rows
