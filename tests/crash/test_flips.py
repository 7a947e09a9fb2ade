"""A flip of any one bit of a store never changes what is served."""

import os

import pytest

from tests.crash.flips import build, judge, tally
from tests.shelf import rot

EVERYTHING = "CRASH_EVERYTHING" in os.environ


def _report(found, flips):
    at_most_one = sum(count for what, count in found.items() if what in {"harmless", "diagnostic row", "1 blocked"})
    print(f"{flips} flips: {dict(found)}; {100 * at_most_one / flips:.1f} in 100 block one schedule or none")
    assert "refused without a reason" not in found
    assert at_most_one >= 0.85 * flips


def test_a_flipped_bit_blocks_one_schedule_or_none_and_nothing_wrong_is_served():
    flips = 1_000 if EVERYTHING else 120
    _report(tally(build(20, 900), flips, seed=1), flips)


@pytest.mark.long
def test_a_thousand_flips_in_a_store_of_200_schedules_and_20000_rows():
    _report(tally(build(200, 20_000), 1_000, seed=2), 1_000)


def test_the_judgement_has_teeth():
    """A row that is changed together with its checksum is noticed: it is the checksum that the store relies on."""
    from scheduler_daemon.store.framing import frame, unframe

    truth = build(3, 60)
    path = next(path for path in truth.image if path.endswith("schedule-001.jsonl"))
    content = truth.image[path]
    assert content is not None
    lines = content.splitlines()
    body = unframe(lines[2])
    assert body is not None
    lines[2] = frame(body.replace(b'"revision":1', b'"revision":2'))[:-1]
    with pytest.raises(AssertionError, match="is another"):
        judge(truth, {**truth.image, path: b"\n".join(lines) + b"\n"}, path)
    lines[2] = rot(lines[2])
    assert judge(truth, {**truth.image, path: b"\n".join(lines) + b"\n"}, path) in {"diagnostic row", "1 blocked"}
