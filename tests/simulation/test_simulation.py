"""The invariants of DESIGN.md hold in every seed; and the simulation itself is what it claims to be.

`SIM_SEEDS` says how many seeds (200 by default), `SIM_FROM` the first of them.
"""

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from tests.simulation.loop import Process, SimLoop, VirtualClock
from tests.simulation.script import play
from tests.simulation.world import run_seed
from tests.tidy.tree import ROOT

FIRST, SEEDS = int(os.environ.get("SIM_FROM", "0")), int(os.environ.get("SIM_SEEDS", "200"))
CHUNK = 10
STORY_LINES = 60


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_every_invariant_holds_while_everything_goes_wrong_and_all_is_well_after_it_was_healed(first):
    for seed in range(first, min(first + CHUNK, FIRST + SEEDS)):
        report = run_seed(seed, play)
        if report.violations:
            story = "\n".join(run_seed(seed, play, traced=True).trace[-STORY_LINES:])
            again = f"python -m tests.simulation --seed {seed} --trace"
            pytest.fail(f"seed {seed}: {report.violations[0]}\n\nreplay with: {again}\n\n{story}", pytrace=False)


def test_the_same_seed_tells_the_same_story_whatever_the_order_of_hashes():
    told = [_story(seed=3, hash_seed=hash_seed) for hash_seed in ("1", "2")]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) > 200


def _story(seed: int, hash_seed: str) -> str:
    asked = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--trace", "--lines", "100000"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(asked, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def test_an_hour_of_virtual_time_is_one_jump():
    loop = SimLoop()
    clock = VirtualClock(loop, datetime(2030, 1, 1, tzinfo=UTC))
    loop.run_until_complete(asyncio.sleep(3600.0))
    assert clock.now().at == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert loop.iterations < 10
    loop.close()


def test_a_suspended_machine_moves_the_wall_clock_alone():
    loop = SimLoop()
    clock = VirtualClock(loop, datetime(2030, 1, 1, tzinfo=UTC))
    before = clock.now()
    clock.step(90.0)
    assert (clock.now().at - before.at).total_seconds() == 90.0
    assert clock.now().mono == before.mono
    loop.close()


def test_a_killed_process_takes_no_further_step_and_finishes_nothing():
    loop, told = SimLoop(), []
    process = Process(loop, "victim", lambda victim: told.append(f"{victim.name} died"))

    async def live() -> None:
        try:
            await asyncio.sleep(1.0)
            told.append("lived on")
        finally:
            told.append("tidied up")

    process.spawn(live())
    loop.call_later(0.5, process.kill)
    loop.run_until_complete(asyncio.sleep(2.0))
    assert told == ["victim died"]
    process.bury()
    loop.close()


def test_a_process_can_be_killed_at_any_step():
    reached = []
    for step in range(1, 6):
        loop = SimLoop()
        process = Process(loop, "victim", lambda _: None)
        process.kill_at = step
        seen: list[int] = []

        async def count(seen=seen) -> None:
            for number in range(4):
                seen.append(number)
                await asyncio.sleep(0)

        process.spawn(count())
        loop.run_until_complete(asyncio.sleep(1.0))
        reached.append(len(seen))
        process.bury()
        loop.close()
    assert reached == [0, 1, 2, 3, 4]
