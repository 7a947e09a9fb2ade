"""The frame: what is accepted is exactly what was written."""

import json

import pytest

from scheduler_daemon.store.framing import BODY_AT, SECTOR, frame, lines, unframe, unmerge, unwritten

BODY = b'{"v":1,"seq":7,"note":"caf\xc3\xa9"}'


def test_a_frame_is_one_line_of_json_that_other_tools_can_read():
    line = frame(BODY)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["r"] == json.loads(BODY)


def test_what_was_framed_comes_back_byte_for_byte():
    assert unframe(frame(BODY)[:-1]) == BODY


def test_the_checksum_is_eight_lower_case_digits_also_when_it_begins_with_zeros():
    bodies = [b'{"n":%d}' % number for number in range(2_000)]
    sums = [frame(body)[6:14] for body in bodies]
    assert any(each.startswith(b"00") for each in sums)
    assert all(unframe(frame(body)[:-1]) == body for body in bodies)


def test_every_flip_of_any_bit_is_found():
    line = frame(BODY)[:-1]
    for bit in range(len(line) * 8):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        assert unframe(bytes(flipped)) is None, bit


def test_a_checksum_in_capitals_is_not_the_same_bytes():
    line = next(
        frame(b'{"n":%d}' % n)[:-1]
        for n in range(100)
        if frame(b'{"n":%d}' % n)[6:14].upper() != frame(b'{"n":%d}' % n)[6:14]
    )
    assert unframe(line[:6] + line[6:14].upper() + line[14:]) is None


@pytest.mark.parametrize("line", [b"", b"{}", b"\0" * 100, BODY, frame(BODY)[:20], frame(BODY)])
def test_what_is_no_whole_frame_has_no_body(line):
    assert unframe(line) is None


def test_lines_tell_where_they_begin_and_whether_they_end():
    assert list(lines(b"a\nbc\nd")) == [(0, b"a", True), (2, b"bc", True), (5, b"d", False)]
    assert list(lines(b"")) == []
    assert list(lines(b"\n")) == [(0, b"", True)]


@pytest.mark.parametrize("foreign", [b"\x0b", b"{", b"\xff", b"x"])
def test_two_frames_run_together_by_a_damaged_newline_are_told_apart(foreign):
    one, two = frame(BODY), frame(b'{"seq":8}')
    assert unmerge(one[:-1] + foreign + two[:-1]) == [BODY, b'{"seq":8}']


def test_frames_are_told_apart_although_a_body_looks_like_the_beginning_of_a_frame():
    nested = b'{"input":{"c":"00000000","r":1}}'
    assert unmerge(frame(nested)[:-1] + b"x" + frame(nested)[:-1]) == [nested, nested]
    assert unmerge(frame(nested)[:-1]) == []


def test_nothing_is_made_of_frames_of_which_one_is_damaged():
    one, two = frame(BODY)[:-1], frame(b'{"seq":8}')[:-1]
    assert unmerge(one + b"x" + two[:-1] + b"!") == []
    assert unmerge(one[:BODY_AT] + b"!" + one[BODY_AT + 1 :] + b"x" + two) == []
    assert unmerge(one + b"xx" + two) == []


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (frame(BODY) + b"\0" * 3, 0),
        (b"\0" * 24 + frame(BODY), SECTOR - 24),
        (frame(BODY) + b"\0" * SECTOR + frame(BODY), 100),
        (b"x" * SECTOR + b"\0" * SECTOR + b"x", 0),
    ],
    ids=["zeros at the end", "the shared first sector", "a long run", "a whole sector"],
)
def test_blocks_that_never_reached_the_disk_are_recognised(data, offset):
    assert unwritten(data, offset)


@pytest.mark.parametrize(
    ("data", "offset"),
    [(frame(BODY), 0), (frame(BODY) + b"a\0b\n", 0), (b"x" * 10 + b"\0" * 100 + b"x", 0), (b"", 0)],
    ids=["none", "a single zero", "a run inside a sector", "nothing"],
)
def test_other_zeros_are_damage(data, offset):
    assert not unwritten(data, offset)
