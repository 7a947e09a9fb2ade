"""The curl scripts and the command line do the same things: each operation is done with both, to twins, and the effects compared.

An operation is one line of a table: the script with its arguments, and the command with its own.  `{s}` is the schedule of the one
who acts, `{r}` its run.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from scheduler_daemon import errors
from scheduler_daemon.cli.root import group
from scheduler_daemon.cli.runs import runs
from scheduler_daemon.cli.schedules import schedules
from scheduler_daemon.core.model import Settings
from scheduler_daemon.store.store import Store
from tests.integration.process import Daemon
from tests.integration.scenes import APPROVAL, EMBEDDED, HELLO, interrupted_run
from tests.integration.test_curl_scripts import NAMES, Ended, of, pytestmark  # noqa: F401  the skip without curl
from tests.scribe import NOW, Scribe

OWN = (
    "schedule_id",
    "run_id",
    "server_run_id",
    "created_at",
    "updated_at",
    "admitted_at",
    "watermark",
    "instant",
    "at",
    "n",
    "key",
)
"""What twins differ in, and when something happened."""


class Operation(NamedTuple):
    script: tuple[str, ...]
    command: tuple[str, ...]


CRON = ("create-cron", "{s}", HELLO, "0 3 * * *")
CREATE = ("schedules", "create", "{s}", "--deployment", HELLO, "--cron", "0 3 * * *")
BINDINGS = '{"misfire": "latest", "input": {"n": {"value": 1}, "at": {"from": "occurrence.instant"}}}'
BOUND = ("--timezone", "Europe/Berlin", "--misfire", "latest", "--input", "n:=1", "--from", "at=occurrence.instant")
EDITS = (
    Operation((*CRON, "Europe/Berlin", BINDINGS), (*CREATE, *BOUND)),
    Operation(("update", "{s}", "1", '{"lateness_s": 7, "overlap": "parallel", "max_active_runs": 2}'),
              ("schedules", "update", "{s}", "--revision", "1", "--lateness-s", "7", "--overlap", "parallel", "--max-active-runs", "2")),
    Operation(("pause", "{s}", 'the "big" move'), ("schedules", "pause", "{s}", "--note", 'the "big" move')),
    Operation(("resume", "{s}"), ("schedules", "resume", "{s}")),
    Operation(("delete", "{s}", "gone"), ("schedules", "delete", "{s}", "--note", "gone", "--yes")),
    Operation(("get", "{s}"), ("schedules", "get", "{s}")),
    Operation(("create-oneshot", "{s}-once", HELLO, "2060-01-01T00:00:00+01:00"),
              ("schedules", "create", "{s}-once", "--deployment", HELLO, "--at", "2060-01-01T00:00:00+01:00")),
)  # fmt: skip
RUNS = (
    Operation(("inspect-run", "{r}"), ("runs", "inspect", "{r}")),
    Operation(("resume-run", "{r}", '{"approved": true}', '{"resume_outcome": "agreed"}'),
              ("runs", "resume", "{r}", "--payload", '{"approved": true}', "--outcome", "agreed")),
    Operation(("occurrences", "{s}", '{"limit": 100}'), ("occurrences", "{s}")),
)  # fmt: skip
ABANDON = Operation(("abandon-run", "{r}", "nobody is left"), ("runs", "abandon", "{r}", "--note", "nobody is left"))
UNBLOCK = Operation(("unblock", "{s}", "seen"), ("schedules", "unblock", "{s}", "--note", "seen"))
LIST = Operation(("list", '{"state": "active"}'), ("schedules", "list", "--state", "active"))
HEALTH = Operation(("health",), ("status",))
PAGES = {"ready", "metrics", "discover"}
"""Scripts that show a page of the daemon; the command line leaves these to curl."""


async def command(daemon: Daemon, *arguments: str) -> Ended:
    """The command line, with its answer as JSON; in a thread, since a process for each costs more than the rest."""
    result = await asyncio.to_thread(
        CliRunner().invoke,
        group,
        [*arguments, "--json"],
        env={"SCHEDULER_URL": daemon.url},
        prog_name="scheduler-daemon",
    )
    return Ended(result.exit_code, result.stdout, result.stderr)


async def both(daemon: Daemon, operation: Operation, **names: tuple[str, str]) -> tuple[Any, Any]:
    """What the script and the command show, `names` giving each its own; both must end with 0."""
    ends = await both_end(daemon, operation, **names)
    assert [end.code for end in ends] == [0, 0], ends
    return json.loads(ends[0].out), json.loads(ends[1].out)


async def both_end(daemon: Daemon, operation: Operation, **names: tuple[str, str]) -> tuple[Ended, Ended]:
    first, second = ({name: pair[side] for name, pair in names.items()} for side in (0, 1))
    by_script = of(daemon).run(*(_filled(word, first) for word in operation.script))
    by_command = command(daemon, *(_filled(word, second) for word in operation.command))
    script_end, command_end = await asyncio.gather(by_script, by_command)
    return script_end, command_end


def _filled(word: str, names: dict[str, str]) -> str:
    return re.sub(r"\{([sr])\}", lambda found: names[found[1]], word)


def alike(value: Any) -> Any:
    """Without what twins differ in."""
    if isinstance(value, dict):
        return {name: alike(inner) for name, inner in value.items() if name not in OWN}
    return [alike(inner) for inner in value] if isinstance(value, list) else value


def embedded(folder: Path) -> Daemon:
    (folder / "gate").touch()
    return Daemon(folder, deployments=EMBEDDED.format(folder=folder, approval=APPROVAL, hello=HELLO))


async def test_every_change_of_a_schedule_is_the_same_by_script_and_by_command(tmp_path):
    async with embedded(tmp_path) as daemon, daemon.app() as app:
        for operation in EDITS:
            by_script, by_command = await both(daemon, operation, s=("one", "two"))
            assert alike(by_script) == alike(by_command), operation
            assert alike(await app.get_schedule("one")) == alike(await app.get_schedule("two")), operation
        assert (await app.get_schedule("one"))["state"] == "deleted"
        listed, rows = await both(daemon, LIST)
        assert [each["schedule_id"] for each in rows] == ["one-once", "two-once"]
        assert listed["schedules"] == rows
        health, status = await both(daemon, HEALTH)
        assert health.items() <= status.items()


async def test_every_answer_to_a_run_is_the_same_by_script_and_by_command(tmp_path):
    async with embedded(tmp_path) as daemon, daemon.app() as app:
        twins = [f"{name}-{side}" for name in ("answered", "given-up") for side in ("one", "two")]
        runs = await asyncio.gather(*(interrupted_run(app, schedule_id) for schedule_id in twins))
        answered, given_up = (runs[0], runs[1]), (runs[2], runs[3])
        for operation in RUNS:
            by_script, by_command = await both(daemon, operation, s=("answered-one", "answered-two"), r=answered)
            rows = by_script.get("occurrences", by_script)
            assert alike(rows) == alike(by_command), operation
        assert alike(rows)[-1]["status"] == "completed"
        by_script, by_command = await both(daemon, ABANDON, r=given_up)
        assert alike(by_script) == alike(by_command)
        assert (await app.get_schedule("given-up-one"))["active_runs"] == []
        assert (await app.get_schedule("given-up-two"))["active_runs"] == []


async def test_a_blocked_schedule_is_unblocked_the_same_by_script_and_by_command(tmp_path):
    store = Store(tmp_path / "store", mint=lambda: "store")
    opened = store.open(Settings(), NOW)
    scribe = Scribe(opened.state)
    made = [*scribe.create("one"), *scribe.create("two"), *scribe.block("one"), *scribe.block("two")]
    await store.commit([*scribe.epoch(opened.epoch), *made])
    store.close()
    async with embedded(tmp_path) as daemon:
        by_script, by_command = await both(daemon, UNBLOCK, s=("one", "two"))
        assert alike(by_script) == alike(by_command)
        assert (by_script["blocked"], by_script["note"]) == (False, "seen")


async def test_what_is_refused_ends_with_the_same_code_and_the_same_word(tmp_path):
    async with embedded(tmp_path) as daemon:
        for operation, word in (
            (Operation(("get", "nobody"), ("schedules", "get", "nobody")), "ScheduleNotFound"),
            (Operation(("pause", "../x"), ("schedules", "pause", "../x")), "InvalidScheduleId"),
            (Operation(("inspect-run", "run-999999"), ("runs", "inspect", "run-999999")), "RunNotFound"),
            (Operation((*CRON[:3], "0 0 3 * * *"), (*CREATE[:6], "0 0 3 * * *")), "InvalidTrigger"),
            (Operation((*CRON[:2], "x.y", CRON[3]), (*CREATE[:4], "x.y", *CREATE[5:])), "DeploymentNotFound"),
        ):  # fmt: skip
            ends = await both_end(daemon, operation, s=("one", "two"))
            assert [end.code for end in ends] == [errors.EXIT_REJECTED] * 2, ends
            assert all(word in end.err and end.out == "" for end in ends), ends
        usage = Operation(("unblock", "a"), ("schedules", "unblock", "a"))
        assert [end.code for end in await both_end(daemon, usage)] == [errors.EXIT_USAGE] * 2
        await daemon.stop()
        gone = Operation(("get", "a"), ("schedules", "get", "a"))
        assert [end.code for end in await both_end(daemon, gone)] == [errors.EXIT_UNAVAILABLE] * 2


async def test_without_the_workflow_server_both_say_that_nothing_was_done(tmp_path):
    async with Daemon(tmp_path, server="http://127.0.0.1:9/rpc") as daemon:
        ends = await both_end(daemon, Operation(CRON, CREATE), s=("one", "two"))
        assert [end.code for end in ends] == [errors.EXIT_UNAVAILABLE] * 2, ends
        assert all("ServerUnavailable" in end.err for end in ends)
        listed, rows = await both(daemon, LIST)
        assert listed["schedules"] == rows == []


def test_every_script_has_its_command():
    compared = {operation.script[0] for operation in (*EDITS, *RUNS, ABANDON, UNBLOCK, LIST, HEALTH)}
    assert compared == set(NAMES) - PAGES
    commands = {operation.command[:2] if operation.command[0] in {"schedules", "runs"} else operation.command[:1]
                for operation in (*EDITS, *RUNS, ABANDON, UNBLOCK, LIST, HEALTH)}  # fmt: skip
    known = {("schedules", name) for name in schedules.commands} | {("runs", name) for name in runs.commands}
    assert commands == known | {("occurrences",), ("status",)}
