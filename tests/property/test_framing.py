"""Framing under arbitrary bodies and arbitrary damage."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scheduler_daemon.store.framing import frame, lines, unframe, unmerge

# Framing looks at bytes only, so shallow bodies try it as well as deep ones; the texts bring every sort of escape.
BODIES = st.dictionaries(st.text(max_size=6), st.text(max_size=12) | st.integers(-(2**53), 2**53), max_size=3).map(
    msgspec.json.encode
)


@given(st.lists(BODIES, max_size=6))
def test_any_bodies_written_in_a_row_are_read_back_in_a_row(bodies):
    data = b"".join(map(frame, bodies))
    assert [unframe(line) for _, line, whole in lines(data) if whole] == bodies


@given(BODIES, st.data())
def test_a_line_with_any_byte_changed_is_never_believed(body, data):
    line = frame(body)[:-1]
    at = data.draw(st.integers(0, len(line) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != line[at]))
    assert unframe(line[:at] + bytes([byte]) + line[at + 1 :]) is None


@given(BODIES, st.data())
def test_a_line_cut_or_extended_anywhere_is_never_believed(body, data):
    line = frame(body)[:-1]
    assert unframe(line[: data.draw(st.integers(0, len(line) - 1))]) is None
    assert unframe(line + data.draw(st.binary(min_size=1, max_size=5))) is None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_never_believed_and_never_raise(data):
    for _, line, _ in lines(data):
        assert unframe(line) is None
        assert unmerge(line) == []


@given(BODIES, BODIES, st.integers(0, 255).filter(lambda byte: byte != 10))
def test_a_damaged_newline_between_any_two_frames_costs_neither(first, second, byte):
    assert unmerge(frame(first)[:-1] + bytes([byte]) + frame(second)[:-1]) == [first, second]
