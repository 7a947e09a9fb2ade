"""The wall clock of the real process is set back an hour, then ahead a day: libfaketime moves it, the monotonic one goes on."""

import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.integration.process import rows_of, until
from tests.integration.scenes import HELLO, FakeScene, records

LIBRARY = next((str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
EVERY_MINUTE = {"kind": "cron", "expression": "* * * * *", "timezone": "UTC"}
HOUR_S, DAY_S = 3600, 86_400

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="SKIP: libfaketime is missing (Debian: libfaketime)")


class Wall:
    """The clock that the daemon sees: the machine's, moved by seconds."""

    def __init__(self, file):
        self._file = file
        self.offset_s = 0.0
        # Five seconds before a full minute, so that the test does not wait for one.
        self.move(55 - time.time() % 60)

    def move(self, by_s):
        self.offset_s += by_s
        replacement = self._file.with_suffix(".new")
        replacement.write_text(f"{self.offset_s:+.3f}")
        replacement.rename(self._file)

    @property
    def environment(self):
        return {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


async def _stepped(daemon, least_s, most_s):
    async def there():
        steps = [line["step_s"] for line in daemon.log() if line.get("action") == "clock_stepped"]
        return [step for step in steps if least_s <= step <= most_s]

    return await until(there, seconds=30)


async def test_a_clock_that_is_set_starts_nothing_twice_and_is_recorded(tmp_path):
    wall = Wall(tmp_path / "faketime")
    async with AsyncExitStack() as stack:
        scene = FakeScene(tmp_path, stack)
        scene.environment = wall.environment
        await scene.start(())
        daemon = scene.daemon
        async with daemon.app() as app:
            for misfire in ("skip", "latest"):
                await app.create_schedule(
                    schedule_id=misfire, deployment_id=HELLO, trigger=EVERY_MINUTE, misfire=misfire
                )

            async def both_ran():
                rows = [await rows_of(app, one) for one in ("skip", "latest")]
                return all(any(row["status"] == "completed" for row in history) for history in rows)

            await until(both_ran, seconds=90)
            ran = len(scene.fake.execution_log)

            wall.move(-HOUR_S)
            await _stepped(daemon, -HOUR_S - 5, -HOUR_S + 5)
            left_s = 59 - (time.time() + wall.offset_s) % 60  # over the next full minute, which ran an hour ago
            wall.move(left_s if left_s > 3 else left_s + 60)
            await _stepped(daemon, 3, 63)

            async def the_minute_is_over():
                return (time.time() + wall.offset_s) % 60 < 30

            await until(the_minute_is_over, seconds=30)
            assert len(scene.fake.execution_log) == ran
            ready = (await app.get_schedule("skip"))["diagnostics"]
            assert [diagnostic["code"] for diagnostic in ready] == ["clock-behind"]

            wall.move(DAY_S)
            await _stepped(daemon, DAY_S - 60, DAY_S + 120)

            async def latest_caught_up():
                return sum(row["status"] == "completed" for row in await rows_of(app, "latest")) >= 2

            await until(latest_caught_up, seconds=60)
            skipped = [row for row in await rows_of(app, "skip") if row["status"] == "skipped-misfire"]
            assert skipped[0]["reason"] == "late"
            assert skipped[0]["count"] == 1000
            assert skipped[0]["at_least"] is True
            assert sum(row["status"] == "coalesced" for row in await rows_of(app, "latest")) == 1
        keys = Counter(one.key for one in scene.fake.execution_log)
        assert set(keys.values()) == {1}
        assert len(records(daemon, "ClockStepped")) >= 2
