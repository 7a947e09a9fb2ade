"""A live store is copied, the copy is restored elsewhere, and nothing of the span between is started again."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from tests.integration.process import Daemon, rows_of, until
from tests.integration.scenes import FakeScene, due_soon, last_row


async def _cli(*argv):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_daemon", *map(str, argv), stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_restored_copy_admits_nothing_until_accepted_and_starts_nothing_twice(tmp_path):
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        scene = await FakeScene(tmp_path, stack).start(())
        async with scene.daemon.app() as app:
            await due_soon(app, "before", "hello.default")
            await last_row(app, "before", "completed")
            due = datetime.now(UTC) + timedelta(seconds=8)
            await app.create_schedule(
                schedule_id="between",
                deployment_id="hello.default",
                trigger={"kind": "oneshot", "at": due.isoformat()},
                lateness_s=3600,
            )
            code, said = await _cli("backup", scene.daemon.store, tmp_path / "copy")
            assert code == 0, said
            assert (await _cli("verify", tmp_path / "copy"))[0] == 0
            await last_row(app, "between", "completed")
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
