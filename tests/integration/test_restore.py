"""A live store is copied, the copy is restored elsewhere, and nothing of the span between is started again."""

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from tests.integration.process import Daemon, rows_of, until
from tests.integration.scenes import FakeScene, due_soon, last_row

BATCH = 50
PATIENCE_S = 240.0


async def _cli(*argv):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_daemon", *map(str, argv), stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_restored_copy_admits_nothing_until_accepted_and_starts_nothing_twice(tmp_path):
    async with AsyncExitStack() as stack:
        scene = await FakeScene(tmp_path, stack).start(())
        async with scene.daemon.app() as app:
            await due_soon(app, "before", "hello.default")
            await last_row(app, "before", "completed")
            begun = time.monotonic()
            assert (await _cli("verify", scene.daemon.store))[0] == 0
            command_s = time.monotonic() - begun  # the copy must be taken before it is due, however busy the machine
            due = datetime.now(UTC) + timedelta(seconds=3 + 3 * command_s)
            await app.create_schedule(
                schedule_id="between",
                deployment_id="hello.default",
                trigger={"kind": "oneshot", "at": due.isoformat()},
                lateness_s=3600,
            )
            code, said = await _cli("backup", scene.daemon.store, tmp_path / "copy")
            assert code == 0, said
            assert (await _cli("verify", tmp_path / "copy"))[0] == 0
            await until(lambda: _ended(app, "between"), seconds=PATIENCE_S)
        assert await scene.daemon.stop() == 0
        assert len(scene.fake.execution_log) == 2

        second = Daemon(tmp_path, server=scene.face.url)
        second.store = tmp_path / "second"
        second.argv = ("serve", "--store-root", str(second.store), *scene.daemon.argv[3:])
        second.port, second.url = scene.daemon.port, scene.daemon.url
        code, said = await _cli("restore", tmp_path / "copy", second.store)
        assert code == 0, said
        code, said = await _cli(*second.argv)
        assert code == 78, said
        assert "accept" in said

        second.argv = (*second.argv, "--accept-restore")
        async with second, second.app() as app:
            missed = (await until(lambda: rows_of(app, "between")))[-1]
            assert (missed["status"], missed["reason"]) == ("skipped-misfire", "restored")
            await due_soon(app, "after", "hello.default")
            await last_row(app, "after", "completed")
            assert await second.stop() == 0
        assert len(scene.fake.execution_log) == 3

        second.argv = second.argv[:-1]
        async with second, second.app() as app:
            assert (await rows_of(app, "between"))[-1]["reason"] == "restored"


# --- under load -------------------------------------------------------------------------------------------------------


async def _create_all(url, wanted):
    """One-shots in batches; each tells its server its own id and instant.  Those that came too late are not created."""

    async def send(session, batch):
        calls = [
            {"jsonrpc": "2.0", "id": name, "method": "workflow.schedules.create", "params": params}
            for name, params in batch
        ]
        async with session.post(url, data=json.dumps(calls), headers={"Content-Type": "application/json"}) as answer:
            return {said["id"] for said in await answer.json() if "result" in said}

    created = set()
    async with aiohttp.ClientSession() as session:
        for start in range(0, len(wanted), 4 * BATCH):
            parts = [wanted[each : each + BATCH] for each in range(start, min(start + 4 * BATCH, len(wanted)), BATCH)]
            for names in await asyncio.gather(*(send(session, part) for part in parts)):
                created |= names
    return created


def _oneshot(name, due):
    return name, {
        "schedule_id": name,
        "deployment_id": "hello.default",
        "trigger": {"kind": "oneshot", "at": due.isoformat()},
        "lateness_s": 3600,
        "input": {"id": {"from": "schedule.id"}, "instant": {"from": "occurrence.instant"}},
    }


def _executed(fake):
    return Counter((each.input["id"], each.input["instant"]) for each in fake.execution_log)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("per_s", "seconds", "ahead_s"),
    [
        pytest.param(40, 4, 6, id="40-a-second"),
        pytest.param(500, 20, 60, id="500-a-second", marks=[pytest.mark.long, pytest.mark.alone]),
    ],
)
async def test_a_copy_taken_while_hundreds_are_admitted_is_clean_and_starts_nothing_twice(
    tmp_path, per_s, seconds, ahead_s
):
    async with AsyncExitStack() as stack:
        scene = await FakeScene(tmp_path, stack).start(("--max-concurrent-runs", "200"))
        begun = time.monotonic()
        assert (await _cli("verify", scene.daemon.store))[0] == 0
        seconds = max(seconds, round(4 * (time.monotonic() - begun)))  # a busy machine takes its time to copy, too
        begin = datetime.now(UTC) + timedelta(seconds=max(ahead_s, ahead_s * seconds * per_s / 20_000))
        wanted = [_oneshot(f"s{each:05d}", begin + timedelta(seconds=each / per_s)) for each in range(per_s * seconds)]
        created = await _create_all(scene.daemon.url, wanted)
        fake, half = scene.fake, len(created) // 2
        await until(lambda: _true(len(fake.execution_log) >= len(created) // 8), seconds=PATIENCE_S)
        before, begun = len(fake.execution_log), time.monotonic()
        code, said = await _cli("backup", scene.daemon.store, tmp_path / "copy")
        took_s, meanwhile = time.monotonic() - begun, len(fake.execution_log) - before
        assert code == 0, said
        await until(
            lambda: _true(len(fake.execution_log) >= min(len(created), max(half, before + meanwhile + 1))),
            seconds=PATIENCE_S,
        )
        assert await scene.daemon.stop() == 0
        first = _executed(fake)
        print(f"{len(created)} created, {before} started before the copy, {meanwhile} while it was taken")
        print(f"copy in {took_s:.2f} s at {meanwhile / took_s:.0f} starts a second, {len(first)} started in all")
        assert set(first.values()) == {1}
        second = await _put_back_elsewhere(tmp_path, scene)
        assert _executed(fake) == first

        second.argv = (*second.argv, "--accept-restore")
        async with second, second.app() as app:
            there = {schedule["schedule_id"] async for schedule in app.schedules()}
            assert there == created
            due = datetime.now(UTC) + timedelta(seconds=3)
            after = await _create_all(second.url, [_oneshot(f"later{each:02d}", due) for each in range(20)])
            await until(lambda: _true(after <= {name for name, _ in _executed(fake)}), seconds=PATIENCE_S)
            ends = Counter()
            for name in created:
                row = await until(lambda name=name: _ended(app, name), seconds=PATIENCE_S)
                ends[row["status"], row.get("reason")] += 1
            assert await second.stop() == 0
        print(f"what became of them in the copy: {dict(ends)}")
        both = _executed(fake)
        assert set(both.values()) == {1}
        anew = {name for name, _ in both - first}
        assert after <= anew  # and whatever of the load was due only after the acceptance
        assert anew.isdisjoint({name for name, _ in first})
        assert ends["skipped-misfire", "restored"] > 0
        assert ends["completed", None] + ends["failed", "outcome-unknown"] > 0
        assert set(ends) <= {("completed", None), ("skipped-misfire", "restored"), ("failed", "outcome-unknown")}
        assert (await _cli("verify", second.store))[0] == 0


async def _put_back_elsewhere(tmp_path, scene):
    """A daemon on the restored copy, which does not start until that is accepted."""
    assert (await _cli("verify", tmp_path / "copy"))[0] == 0
    second = Daemon(tmp_path, server=scene.face.url)
    second.store = tmp_path / "elsewhere" / "store"
    second.argv = ("serve", "--store-root", str(second.store), *scene.daemon.argv[3:])
    second.port, second.url = scene.daemon.port, scene.daemon.url
    code, said = await _cli("restore", tmp_path / "copy", second.store)
    assert code == 0, said
    assert (await _cli("verify", second.store))[0] == 0
    code, said = await _cli(*second.argv)
    assert (code, "accept" in said) == (78, True)
    return second


async def _true(value):
    return value


async def _ended(app, schedule_id):
    rows = await rows_of(app, schedule_id)
    final = bool(rows) and rows[-1]["status"] in {"completed", "failed", "skipped-misfire"}
    return rows[-1] if final else None
