"""One deployment, or the server's health, that accepts and never answers: everybody else notices nothing.

Lateness is measured and printed as a ratio, since absolute times measure the machine.  What is asserted is that all others start and
settle while the stuck call is still stuck.
"""

import time
from datetime import UTC, datetime, timedelta

import pytest

from scheduler_daemon.runtime.dispatcher import ASKS_MAX
from tests.fakes.proxy import DropResponse
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer
from tests.integration.matrix import EVERYBODY, HEALTH, INSPECT, START, VALIDATE, Bench, Stuck
from tests.integration.process import rows_of, until

HELLO, STUCK, MUTE, ASK = "hello.default", "stuck.default", "mute.default", "ask.default"
FOR_EVER = Stuck(hold_s=3600)
SHORT_TTL = {"SCHEDULER_PREFLIGHT_TTL_S": "3"}
"""Answers are asked for again while a test runs."""

OTHERS, OTHERS_PER_S = 120, 40


def _server() -> FakeWorkflowServer:
    done = [Deployment(deployment_id=one, script=Complete()) for one in (HELLO, STUCK, MUTE)]
    return FakeWorkflowServer([*done, Deployment(deployment_id=ASK, script=Interrupt())])


async def _others(bench: Bench, name: str) -> list[float]:
    """Let many one-shots of the healthy deployment come due, and answer how late each was dispatched, in seconds."""
    began = time.monotonic()
    await bench.due_in(86_400, f"{name}-another-day", HELLO)
    each_s = time.monotonic() - began
    first = datetime.now(UTC) + timedelta(seconds=4 + 2 * OTHERS * each_s)  # all are created before the first is due
    dues = {f"{name}-{n}": first + timedelta(seconds=n / OTHERS_PER_S) for n in range(OTHERS)}
    for schedule_id, due in dues.items():
        await bench.app.create_schedule(
            schedule_id=schedule_id, deployment_id=HELLO, trigger={"kind": "oneshot", "at": due.isoformat()}
        )
    late_s = []
    for schedule_id, due in dues.items():
        assert (await bench.row_of(schedule_id))["status"] == "completed"
        (running,) = [row for row in await rows_of(bench.app, schedule_id) if row["status"] == "running"]
        late_s.append((datetime.fromisoformat(running["at"]) - due).total_seconds())
    return sorted(late_s)


def _p99(sorted_s: list[float]) -> float:
    return sorted_s[int(0.99 * len(sorted_s))]


def _compare(what: str, before_s: list[float], beside_s: list[float]) -> None:
    one, other = _p99(before_s) * 1000, _p99(beside_s) * 1000
    print(f"\n{what}: lateness p99 {one:.1f} ms alone, {other:.1f} ms beside it, ratio {other / one:.2f}")


@pytest.mark.timeout(180)
async def test_a_deployment_that_accepts_and_never_answers_delays_nobody_else(tmp_path):
    """Its start holds a slot, another's validate is asked again and again; three of four slots are left."""
    async with Bench(tmp_path, _server(), options=("--max-concurrent-runs", "4"), environment=SHORT_TTL) as bench:
        before_s = await _others(bench, "before")
        bench.proxy.plan(START, STUCK, FOR_EVER)
        await bench.due_in(1.0, "stuck", STUCK)
        await until(_met(bench, START, STUCK), seconds=30)
        await bench.due_in(5.0, "mute", MUTE)
        bench.proxy.plan(VALIDATE, MUTE, *[FOR_EVER] * 100)
        await until(_met(bench, VALIDATE, MUTE), seconds=30)

        beside_s = await _others(bench, "beside")
        (run,) = (await bench.app.get_schedule("stuck"))["active_runs"]
        assert (run["status"], run["ambiguous"]) == ("running", False)
        assert bench.runs("stuck") == [], "the server never got it"
        assert (await bench.app.get_schedule("mute"))["candidate"]["waiting"] == "preflight-pending"
        assert (await bench.figures())["scheduler_slots_used"] == 1
        _compare("a stuck deployment", before_s, beside_s)


@pytest.mark.timeout(180)
async def test_a_health_that_never_answers_delays_nobody(tmp_path):
    async with Bench(tmp_path, _server(), options=("--max-concurrent-runs", "4")) as bench:
        before_s = await _others(bench, "before")
        bench.proxy.plan(HEALTH, EVERYBODY, FOR_EVER)
        await until(_met(bench, HEALTH, EVERYBODY), seconds=30)
        stuck_at = datetime.now(UTC)
        beside_s = await _others(bench, "beside")
        downs = [datetime.fromisoformat(one["ts"]) for one in bench.log.records if one["action"] == "server_down"]
        assert [down for down in downs if down - stuck_at < timedelta(seconds=9)] == [], (
            "a question may take ten seconds"
        )
        _compare("a stuck health", before_s, beside_s)


@pytest.mark.timeout(180)
async def test_an_unanswered_question_about_one_deployment_leaves_its_own_schedule_waiting_and_no_other(tmp_path):
    async with Bench(tmp_path, _server(), environment=SHORT_TTL) as bench:
        await bench.due_in(5.0, "mute", MUTE)
        bench.proxy.plan(VALIDATE, MUTE, FOR_EVER)
        await until(_met(bench, VALIDATE, MUTE), seconds=30)
        await bench.due_in(3.0, "other", HELLO)
        assert (await bench.row_of("other"))["status"] == "completed"
        assert (await bench.app.get_schedule("mute"))["candidate"]["waiting"] == "preflight-pending"
        await bench.logged(action="preflight_failed", deployment_id=MUTE)
        assert (await bench.row_of("mute"))["status"] == "completed"


@pytest.mark.timeout(180)
async def test_watched_runs_that_nobody_answers_about_keep_no_other_deployment_waiting(tmp_path):
    """More of them than questions may be open at once, each for as long as a question may take."""
    async with Bench(tmp_path, _server(), options=("--max-concurrent-runs", "50"), environment=SHORT_TTL) as bench:
        bench.proxy.plan(INSPECT, ASK, *[FOR_EVER] * 1000)
        for n in range(ASKS_MAX + 4):
            await bench.due_in(1.0, f"ask-{n}", ASK)
        await until(_met(bench, INSPECT, ASK, times=ASKS_MAX), seconds=60)
        due = datetime.now(UTC) + timedelta(seconds=5)
        await bench.due_in(5.0, "other", HELLO)
        assert (await bench.row_of("other"))["status"] == "completed"
        (running,) = [row for row in await rows_of(bench.app, "other") if row["status"] == "running"]
        assert datetime.fromisoformat(running["at"]) - due < timedelta(seconds=3)


@pytest.mark.timeout(180)
async def test_watched_runs_that_nobody_answers_about_keep_no_lost_call_from_being_judged(tmp_path):
    """A lost call keeps its slot until it is judged, by a question of its own."""
    options = ("--max-concurrent-runs", f"{ASKS_MAX + 4}")
    async with Bench(tmp_path, _server(), options=options) as bench:
        bench.proxy.plan(INSPECT, ASK, *[FOR_EVER] * 1000)
        for n in range(ASKS_MAX + 4):
            await bench.due_in(1.0, f"ask-{n}", ASK)
        await until(_met(bench, INSPECT, ASK, times=ASKS_MAX), seconds=60)
        bench.proxy.plan(START, HELLO, DropResponse())
        await bench.due_in(1.0, "lost", HELLO)
        lost = await bench.logged(action="call_lost", schedule_id="lost")
        judged = await bench.logged(action="outcome_unknown", schedule_id="lost")
        assert datetime.fromisoformat(judged["ts"]) - datetime.fromisoformat(lost["ts"]) < timedelta(seconds=5)


async def test_slots_that_are_all_held_show_in_the_metrics_and_so_does_who_waits_for_one(tmp_path):
    async with Bench(tmp_path, _server(), options=("--max-concurrent-runs", "3")) as bench:
        bench.proxy.plan(START, STUCK, *[Stuck(hold_s=3600)] * 3)
        for n in range(3):
            await bench.due_in(0.7, f"stuck-{n}", STUCK)
        await until(_met(bench, START, STUCK, times=3), seconds=30)
        await bench.due_in(0.7, "other", HELLO)

        async def waiting():
            return (await bench.app.get_schedule("other"))["candidate"]

        assert (await until(waiting, seconds=30))["waiting"] == "no-slot"
        figures = await bench.figures()
        assert figures["scheduler_slots_used"] == figures["scheduler_slots_max"] == 3
        assert figures['scheduler_runs{phase="running"}'] == 3
        assert figures['scheduler_candidates{waiting="no-slot"}'] == 1

        await bench.proxy.sever()
        assert (await bench.row_of("other"))["status"] == "completed"
        for n in range(3):
            assert (await bench.row_of(f"stuck-{n}"))["reason"] == "outcome-unknown"
        figures = await bench.figures()
        assert (figures["scheduler_slots_used"], figures["scheduler_slots_max"]) == (0, 3)
        assert "scheduler_candidates" not in {name.partition("{")[0] for name in figures}


def _met(bench: Bench, method: str, deployment_id: str, times: int = 1):
    async def met() -> bool:
        return bench.proxy.met[method, deployment_id] >= times

    return met
