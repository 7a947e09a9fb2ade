"""Resuming an interrupted run through the daemon, when something goes wrong: over real HTTP, with the real process.

`max_concurrent_runs` is 1 throughout, so that a slot that is not given back stops everything.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from rpc_client.errors import RpcError
from tests.fakes.params import RpcFault
from tests.integration.process import rows_of, until
from tests.integration.scenes import (
    HELLO,
    EmbeddedScene,
    FakeScene,
    due_soon,
    interrupted_run,
    last_row,
    records,
)

ONE_SLOT = ("--max-concurrent-runs", "1")


@pytest.fixture(params=["plain", "embedded"])
async def scene(request, tmp_path):
    async with AsyncExitStack() as stack:
        made = FakeScene(tmp_path, stack) if request.param == "plain" else EmbeddedScene(tmp_path, stack)
        yield await made.start(ONE_SLOT)


@pytest.fixture
async def plain(tmp_path):
    async with AsyncExitStack() as stack:
        yield await FakeScene(tmp_path, stack).start(ONE_SLOT)


async def _desert_a_resume(scene, run_id):
    """Resume, and close the connection while the server is busy with it."""
    async with scene.daemon.app() as caller:
        call = asyncio.create_task(caller.resume_run(run_id, resume_payload={"approved": True}))
        await scene.begun()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def _refusal(call):
    with pytest.raises(RpcError) as refused:
        await call
    return refused.value.code


async def test_cancelled_live_resume_fails_closed_frees_slot_and_is_never_repeated(scene):
    async with scene.daemon.app() as app:
        run_id = await interrupted_run(app)
        await _desert_a_resume(scene, run_id)
        failed = await last_row(app, "approve", "failed")
        assert failed["reason"] == "outcome-unknown"
        assert "may already have happened" in failed["detail"]["message"]
        shown = await app.get_schedule("approve")
        assert (shown["active_runs"], shown["ambiguous_runs"], shown["diagnostics"]) == ([], [], [])
        (settled,) = records(scene.daemon, "RunSettled")
        assert settled["attempt"] == 1

        await due_soon(app, "sibling", HELLO)
        await last_row(app, "sibling", "completed")

        finals = [row for row in await rows_of(app, "approve") if row["status"] == "failed"]
        assert [row["run_id"] for row in finals] == [run_id]
        assert [row["status"] for row in await rows_of(app, "sibling")] == ["admitted", "running", "completed"]
        begun = await scene.resumes_begun()
        assert await _refusal(app.resume_run(run_id)) == "AttemptAmbiguous"
        assert await scene.resumes_begun() == begun == 1
        scene.release()


async def test_an_ambiguous_attempt_is_still_refused_after_a_restart(scene):
    async with scene.daemon.app() as app:
        run_id = await interrupted_run(app)
        await _desert_a_resume(scene, run_id)
        await last_row(app, "approve", "failed")
    await scene.daemon.kill()
    await scene.daemon.start()
    async with scene.daemon.app() as app:
        assert await _refusal(app.resume_run(run_id)) == "AttemptAmbiguous"
    scene.release()


async def test_when_the_reconciliation_fails_mark_and_slot_stay_and_the_error_is_reported(plain):
    real_call = plain.fake.call

    async def no_inspect(method, params, *, key=None):
        if method == "workflow.runs.inspect":
            raise RpcFault(-32603, "Internal error")
        return await real_call(method, params, key=key)

    async with plain.daemon.app() as app:
        run_id = await interrupted_run(app)
        async with plain.daemon.app() as caller:
            call = asyncio.create_task(caller.resume_run(run_id))
            await plain.begun()
            plain.fake.call = no_inspect
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: _logged(plain.daemon, "reconcile_failed"))
        assert (await app.get_schedule("approve"))["ambiguous_runs"] == [run_id]
        await due_soon(app, "sibling", HELLO)
        assert (await last_pending(app, "sibling"))["reason"] == "no-slot"
        plain.fake.call = real_call
        assert (await last_row(app, "approve", "failed"))["reason"] == "outcome-unknown"
        await last_row(app, "sibling", "completed")


async def _logged(daemon, action):
    return any(record.get("action") == action for record in daemon.log())


async def last_pending(app, schedule_id):
    async def there():
        page = await app.list_schedule_occurrences(schedule_id)
        first = next(iter(page["occurrences"]), None)
        return first if first is not None and first["status"] == "pending" else None

    return await until(there)


async def test_a_shutdown_during_a_resume_is_fenced_and_judged_once_by_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDULER_RECONCILE_GRACE_S", "1")
    async with AsyncExitStack() as stack:
        scene = await FakeScene(tmp_path, stack).start((*ONE_SLOT, "--drain-grace-s", "0.2"))
        async with scene.daemon.app() as app:
            run_id = await interrupted_run(app)
            call = asyncio.create_task(app.resume_run(run_id))
            await scene.begun()
            assert await scene.daemon.stop() == 0
            with pytest.raises(RpcError):
                await call
        assert records(scene.daemon, "RunSettled") == []
        assert len(records(scene.daemon, "AttemptMarked")) == 1
        await scene.daemon.start()
        async with scene.daemon.app() as app:
            assert (await last_row(app, "approve", "failed"))["reason"] == "outcome-unknown"
            assert await _refusal(app.resume_run(run_id)) == "AttemptAmbiguous"
        assert await scene.resumes_begun() == 1


async def test_a_shutdown_during_a_resume_at_a_keyed_server_ends_in_the_true_outcome(tmp_path):
    async with AsyncExitStack() as stack:
        features = ("idempotent-start",)
        scene = await FakeScene(tmp_path, stack, features).start((*ONE_SLOT, "--drain-grace-s", "0.2"))
        async with scene.daemon.app() as app:
            run_id = await interrupted_run(app)
            call = asyncio.create_task(app.resume_run(run_id))
            await scene.begun()
            assert await scene.daemon.stop() == 0
            with pytest.raises(RpcError):
                await call
        await scene.daemon.start()
        scene.release()
        async with scene.daemon.app() as app:
            await last_row(app, "approve", "completed")
        assert await scene.resumes_begun() == 1


async def test_of_two_callers_who_resume_the_same_run_at_once_one_wins_and_one_is_refused(scene):
    async with scene.daemon.app() as app, scene.daemon.app() as other:
        run_id = await interrupted_run(app)
        calls = [asyncio.create_task(one.resume_run(run_id)) for one in (app, other)]
        await scene.begun()
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert [call.exception().code for call in done] == ["ResumeInProgress"]
        scene.release()
        (winner,) = await asyncio.gather(*waiting)
        assert winner["status"] == "completed"
        assert await scene.resumes_begun() == 1


async def test_a_daemon_that_drains_refuses_a_new_resume(plain):
    async with plain.daemon.app() as app:
        first, second = await interrupted_run(app, "one"), await interrupted_run(app, "two")
        call = asyncio.create_task(app.resume_run(first))
        await plain.begun()
        plain.daemon.process.terminate()
        await until(lambda: _logged(plain.daemon, "draining"))
        assert await _refusal(app.resume_run(second)) == "Draining"
        plain.release()
        assert (await call)["status"] == "completed"


async def test_an_answer_by_either_id_and_an_outcome_that_the_caller_sees(plain):
    plain.release()
    async with plain.daemon.app() as app:
        run_id = await interrupted_run(app)
        server_run_id = (await app.inspect_run(run_id))["server_run_id"]
        assert (await app.inspect_run(server_run_id))["run_id"] == run_id
        done = await app.resume_run(server_run_id, resume_payload={"approved": True})
        assert (done["run_id"], done["status"]) == (run_id, "completed")
        assert await _refusal(app.resume_run(run_id)) == "RunNotResumable"


async def test_an_abandoned_interrupt_releases_overlap_and_leaves_the_server_alone(plain):
    async with plain.daemon.app() as app:
        run_id = await interrupted_run(app)
        asked = len(plain.fake.execution_log)
        abandoned = await app.abandon_run(run_id, note="nobody will answer")
        assert (abandoned["status"], abandoned["reason"]) == ("failed", "abandoned")
        assert (await app.get_schedule("approve"))["active_runs"] == []
        assert len(plain.fake.execution_log) == asked
        assert (await app.abandon_run(run_id, note="again"))["reason"] == "abandoned"
