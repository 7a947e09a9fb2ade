"""System calls of the real process that fail, or that it does not survive: what was acknowledged is there, nothing runs twice.

`make test` takes a few points, other ones each time `CRASH_SEED` is another; the long form takes every n-th call of every sort.
"""

import os
from collections import Counter

import pytest

from tests.crash.daemons import need_strace, workflow_server
from tests.crash.straced import FAULTS, every_point, some_points, suffer

SEED = int(os.environ.get("CRASH_SEED", "1"))
FEW = 3


async def _suffer_all(tmp_path, points):
    stories = []
    async with workflow_server() as (face, _):
        for number, point in enumerate(points):
            story = await suffer(tmp_path / f"p{number}", face, point)
            print(f"{point}: {story.sort}; {len(story.acknowledged)} acknowledged", flush=True)
            stories.append(story)
    met = sum(story.met for story in stories)
    print(f"{len(stories)} points, {met} of them met: {dict(Counter(story.sort for story in stories))}")
    return stories


@pytest.mark.timeout(600)
async def test_a_few_system_calls_of_the_process_fail_and_nothing_acknowledged_is_lost(tmp_path):
    need_strace()
    stories = await _suffer_all(tmp_path, some_points(FEW, SEED))
    assert sum(story.met for story in stories) >= FEW // 2


@pytest.mark.long
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("call", FAULTS)
async def test_each_system_call_of_the_process_fails_in_turn_and_nothing_acknowledged_is_lost(tmp_path, call):
    need_strace()
    stories = await _suffer_all(tmp_path, [point for point in every_point() if point.call == call])
    assert sum(story.met for story in stories) > len(stories) // 3
