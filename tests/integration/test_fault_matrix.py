"""Every fault on the way to the server, at every call: what the daemon takes it for, what it does, and what becomes of the run.

`make test` runs a seeded subset (`MATRIX_SEED`), `make test-long` every cell.  The table of verdicts, letters, final rows and
executions is printed (`-s`).
"""

import asyncio
import os
import time
from typing import Any

import pytest

from tests.fakes.http import face_of
from tests.fakes.scripts import Complete, Deployment, Interrupt
from tests.fakes.server import FakeWorkflowServer
from tests.integration.cells import TTL_S, Cell, End, Kind, all_cells, run_cells, some_cells
from tests.integration.matrix import FINAL, INSPECT, KEYED, RESUME, START, Bench, LastWord
from tests.integration.process import rows_of

SEED = int(os.environ.get("MATRIX_SEED", "1"))
SLOTS = 100
KINDS: tuple[Kind, ...] = ("plain", "keyed")


@pytest.mark.timeout(180)
async def test_some_cells_end_as_they_must(tmp_path):
    print(f"\nMATRIX_SEED={SEED}")
    await asyncio.gather(*(_judge_matrix(tmp_path / kind, kind, some_cells(kind, SEED)) for kind in KINDS))


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_every_cell_ends_as_it_must(tmp_path):
    await asyncio.gather(*(_judge_matrix(tmp_path / kind, kind, all_cells(kind)) for kind in KINDS))


async def _judge_matrix(folder, kind: Kind, cells: list[Cell]) -> None:
    fake = FakeWorkflowServer([cell.deployment for cell in cells], features=KEYED if kind == "keyed" else ())
    environment = {"SCHEDULER_PREFLIGHT_TTL_S": str(TTL_S)}
    async with Bench(folder, fake, options=("--max-concurrent-runs", str(SLOTS)), environment=environment) as bench:
        began_at = time.monotonic()
        await run_cells(bench, cells)
        judged = [await _judge_cell(bench, cell) for cell in cells]
        table = "\n".join(line for _, line in judged)
        print(f"\n{table}\n{kind}: {len(cells)} cells in {time.monotonic() - began_at:.0f} s")
        assert [line for good, line in judged if not good] == []
        assert bench.twice() == {}, "a key was executed twice"
        await _slots_are_free(bench)


async def _judge_cell(bench: Bench, cell: Cell) -> tuple[bool, str]:
    """Whether the cell ended as it must, and its line of the table."""
    rows = await rows_of(bench.app, cell.name)
    finals = [row for row in rows if row["status"] in FINAL]
    begun = bench.executions(cell.name)
    found = End(finals[-1]["status"], finals[-1]["reason"], begun[START], begun[RESUME])
    verdicts, letters = bench.story(cell.name, cell.name, finals[-1]["run_id"])
    truth = [run.status for run in bench.runs(cell.name)]
    line = (
        f"{cell.kind:6}{cell.call:9}{cell.fault.name:18}{_said(verdicts):57}{' '.join(letters):5}"
        f"{found.status} {found.reason or '':16}starts {found.starts} resumes {found.resumes} server: {_said(truth)}"
    )
    good = (
        len(finals) == 1
        and rows[-1] is finals[0]
        and found == cell.end
        and (await bench.app.get_schedule(cell.name))["active_runs"] == []
        and (cell.kind == "plain" or cell.fails_closed_by_design or truth == [found.status])
        and (found.status != "completed" or truth == ["completed"])
        and (found.reason is None or _is_disclosed(bench, finals[0]))
    )
    return good, line


def _is_disclosed(bench: Bench, row: dict) -> bool:
    """The row says what may have happened, and which runs the server has stopped since, where it could be asked."""
    detail = row["detail"]
    stopped = {run.run_id for run in bench.runs(row["schedule_id"])} if detail["case"] == "I" else set()
    return "may already have happened" in detail["message"] and stopped <= set(detail.get("stopped_since", ()))


async def _slots_are_free(bench: Bench) -> None:
    figures = await bench.figures()
    assert figures["scheduler_slots_used"] == 0
    assert figures.get('scheduler_runs{phase="ambiguous"}', 0) == 0
    assert [one for one in bench.log.records if one["action"] == "bug"] == []


def _said(words: list[str]) -> str:
    counted = {word: words.count(word) for word in words}
    return ", ".join(word if n == 1 else f"{word} x{n}" for word, n in counted.items()) or "-"


# --- the server changes between the loss and the judgement ------------------------------------------------------------

ASK, WORK = "ask.default", "work.default"


def _slow_server(gate: asyncio.Event, **how: Any) -> FakeWorkflowServer:
    """One deployment that works until the gate opens, and one that asks first."""
    return FakeWorkflowServer(
        [
            Deployment(deployment_id=WORK, script=Complete(gate=gate)),
            Deployment(deployment_id=ASK, script=Interrupt(then=Complete(gate=gate, steps=3))),
        ],
        **how,
    )


def _received(fake: FakeWorkflowServer, *methods: str) -> list[str | None]:
    return [one.key for one in fake.received if one.method in methods]


@pytest.mark.parametrize("killed", [True, False], ids=["while it executes", "after it has stopped"])
async def test_a_plain_server_that_is_upgraded_to_a_keyed_one_gets_no_second_start(tmp_path, killed):
    gate = asyncio.Event()
    async with Bench(tmp_path, _slow_server(gate)) as bench:
        if not killed:
            gate.set()
            bench.proxy.plan(START, WORK, LastWord())
        await bench.due_in(0.7, "one", WORK)
        await bench.fake.until_executions(1, timeout_s=30)
        if not killed:
            await bench.logged(action="call_lost")
        await bench.face.restart(features=KEYED)
        await bench.proxy.reset()
        row = await bench.row_of("one")
        assert (row["status"], row["reason"], row["detail"]["case"]) == ("failed", "outcome-unknown", "I")
        assert len(_received(bench.fake, START)) == 1
        gate.set()
        await bench.due_in(0.7, "two", WORK)
        assert (await bench.row_of("two"))["status"] == "completed"
        assert bench.twice() == {}
        await _slots_are_free(bench)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_url_that_points_at_another_server_now_is_asked_nothing_and_gets_nothing(tmp_path, kind):
    gate, features = asyncio.Event(), KEYED if kind == "keyed" else ()
    other = _slow_server(gate, features=features, store_root="/srv/other/store")
    async with face_of(other) as elsewhere, Bench(tmp_path, _slow_server(gate, features=features)) as bench:
        waiting, resumed = await bench.interrupted("waiting", ASK), await bench.interrupted("resumed", ASK)
        resuming = asyncio.create_task(bench.resume(resumed))
        await bench.due_in(0.7, "started", WORK)
        await bench.fake.until_executions(4, timeout_s=30)
        bench.proxy.point_at(elsewhere.url)
        await bench.face.kill()
        started, resume = await bench.row_of("started"), await bench.row_of("resumed")
        assert (started["status"], started["reason"], started["detail"]["case"]) == ("failed", "outcome-unknown", "I")
        assert (resume["status"], resume["reason"], resume["detail"]["case"]) == ("failed", "outcome-unknown", "Q")
        assert await resuming == "failed"
        await bench.logged(action="schedule_blocked", schedule_id="waiting")
        shown = {one: await bench.app.get_schedule(one) for one in ("started", "resumed", "waiting")}
        codes = {one: [diagnostic["code"] for diagnostic in shown[one]["diagnostics"]] for one in shown}
        assert codes == {"started": [], "resumed": ["another-server"], "waiting": ["another-server"]}
        assert [run["run_id"] for run in shown["waiting"]["active_runs"]] == [waiting]
        assert shown["resumed"]["active_runs"] == shown["started"]["active_runs"] == []
        assert _received(other, START, RESUME, INSPECT) == []
        gate.set()
        await bench.due_in(0.7, "next", WORK)
        assert (await bench.row_of("next"))["status"] == "completed"
        await _slots_are_free(bench)


@pytest.mark.parametrize("call", [START, RESUME])
async def test_what_a_keyed_server_was_executing_when_it_crashed_is_failed_and_executed_once(tmp_path, call):
    gate = asyncio.Event()
    async with Bench(tmp_path, _slow_server(gate, features=KEYED)) as bench:
        if call == START:
            await bench.due_in(0.7, "one", WORK)
            await bench.fake.until_executions(1, timeout_s=30)
        else:
            run_id = await bench.interrupted("one", ASK)
            resuming = asyncio.create_task(bench.resume(run_id))
            await bench.fake.until_executions(2, timeout_s=30)
        await bench.face.kill()
        await bench.logged(action="server_down")
        await bench.face.restart()
        row = await bench.row_of("one")
        assert (row["status"], row["reason"]) == ("failed", None)
        assert row["detail"]["result"]["error"] == "server-restarted"
        if call == RESUME:
            assert await resuming == "failed"
        assert bench.executions("one")[call] == 1
        assert len(_received(bench.fake, call)) == 2, "the same request again, under the same key"
        assert len(set(_received(bench.fake, call))) == 1
        await _slots_are_free(bench)
