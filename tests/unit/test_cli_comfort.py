"""What the command line does for people at a terminal: examples, completion, and a sign of life while they wait."""

import asyncio
import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from scheduler_daemon.cli import progress as telling
from scheduler_daemon.cli.progress import progress
from scheduler_daemon.cli.root import group
from tests.fakes.raw import listening
from tests.unit.test_cli import COMMANDS, daemon, run

# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [path for path, one in COMMANDS.items() if not isinstance(one, click.Group)], ids=" ".join
)
def test_every_command_has_an_example_that_is_its_own(path):
    shown = run(*path, "--help").stdout.partition("Examples:")[2].partition("Exit codes:")[0]
    assert f"scheduler-daemon {' '.join(path)}" in shown


@pytest.mark.parametrize(
    "path", [path for path, one in COMMANDS.items() if not isinstance(one, click.Group)], ids=" ".join
)
def test_the_options_of_an_example_exist(path):
    shown = run(*path, "--help").stdout.partition("Examples:")[2].partition("Exit codes:")[0]
    known = {option for parameter in COMMANDS[path].params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in shown.split() if word.startswith("--")} <= known


# --- completion -------------------------------------------------------------------------------------------------------


def completed(line: str, shell: str = "bash") -> list[str]:
    """What the shell would offer for the last word of this line."""
    environment = {
        "_SCHEDULER_DAEMON_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    said = CliRunner().invoke(group, [], env=environment, prog_name="scheduler-daemon")
    return [word.rpartition(",")[2] for word in said.stdout.split()]


def test_commands_options_and_choices_are_completed():
    assert completed("scheduler-daemon sch") == ["schedules"]
    assert completed("scheduler-daemon schedules un") == ["unblock"]
    assert completed("scheduler-daemon schedules create --over") == ["--overlap"]
    assert completed("scheduler-daemon schedules list --state p") == ["paused"]
    assert "--store-root" in completed("scheduler-daemon serve --st")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_line_that_the_help_page_gives_makes_a_script_for_the_shell(shell):
    if (
        shell == "bash"
        and subprocess.run(["bash", "-c", "echo version $BASH_VERSION"], capture_output=True, check=True).stdout
        < b"version 4.3"
    ):
        pytest.skip("SKIP: completion needs bash 4.4")
    environment = {**os.environ, "_SCHEDULER_DAEMON_COMPLETE": f"{shell}_source"}
    # By its name: the script calls the program that it was made by.
    program = "import sys; from scheduler_daemon.cli import main; sys.argv[0] = 'scheduler-daemon'; main()"
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"_SCHEDULER_DAEMON_COMPLETE={shell}_complete" in said.stdout


# --- a sign of life ---------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch):
    """Somebody watches; what they see is written down, and a second passes quickly."""
    seen: list[str] = []
    monkeypatch.setattr(telling.os, "isatty", lambda _number: True)
    monkeypatch.setattr(telling, "EVERY_S", 0.01)
    monkeypatch.setattr(telling, "_write", seen.append)
    return seen


def until_seen(seen: list[str], count: int) -> None:
    deadline = telling.threading.Event()
    for _ in range(2000):
        if len(seen) >= count:
            return
        deadline.wait(0.01)
    pytest.fail(f"only {seen}")


def test_what_takes_long_is_told_of_again_and_again_and_wiped_away_at_its_end(terminal):
    with progress("reading the store"):
        until_seen(terminal, 3)
    assert all(line.startswith("reading the store, ") for line in terminal[:-1])
    assert terminal[-1] == ""


def fail_after(terminal: list[str]) -> None:
    with progress("copying"):
        until_seen(terminal, 1)
        raise ValueError("no")


def threads_of_progress() -> list[str]:
    return [one.name for one in telling.threading.enumerate() if "_tell" in one.name]


def test_what_fails_is_not_told_of_any_more(terminal):
    with pytest.raises(ValueError, match="no"):
        fail_after(terminal)
    assert terminal[-1] == ""
    assert threads_of_progress() == []


def test_what_is_quick_says_nothing(terminal, monkeypatch):
    monkeypatch.setattr(telling, "EVERY_S", 60.0)
    with progress("asking"):
        pass
    assert terminal == []


def test_a_pipe_sees_nothing_of_it(terminal, monkeypatch):
    monkeypatch.setattr(telling.os, "isatty", lambda _number: False)
    with progress("asking"):
        assert threads_of_progress() == []
    assert terminal == []


async def test_a_command_that_waits_for_the_daemon_says_so_on_a_terminal_and_keeps_its_output_clean():
    asked, go = asyncio.Event(), asyncio.Event()

    async def silent(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await go.wait()

    ours, theirs = os.openpty()
    try:
        async with listening(silent) as port:
            command = [sys.executable, "-m", "scheduler_daemon", "status", "--url", f"http://127.0.0.1:{port}"]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=theirs)
            async with asyncio.timeout(60):
                await asked.wait()
                told = b""
                while b"waiting for the daemon, 1 s" not in told:
                    told += await asyncio.to_thread(os.read, ours, 4096)
                go.set()
                out, _ = await process.communicate()
        assert out == b""
        assert process.returncode in {3, 69}
    finally:
        os.close(ours)
        os.close(theirs)


# --- what to do next --------------------------------------------------------------------------------------------------


def test_where_no_daemon_answers_the_line_says_where_it_was_looked_for_and_how_to_say_another_place(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("rpc_client.schedules._RETRY_DELAYS_S", ())
    said = run("schedules", "list", "--url", "http://127.0.0.1:9/rpc")
    assert "cannot connect to 127.0.0.1:9: Connection refused" in said.stderr
    assert "is it at http://127.0.0.1:9/rpc? --url" in said.stderr
    path = str(tmp_path / "none.sock")
    assert f"is it at {path}?" in run("status", "--socket-path", path).stderr


def test_an_empty_answer_says_why_beside_the_table_and_not_in_it():
    with daemon() as (_, face):
        at = {"SCHEDULER_URL": f"{face.url}/rpc"}
        listed = run("schedules", "list", env=at)
        assert (listed.stdout.count("\n"), "no schedule matches" in listed.stderr) == (1, True)
        assert json.loads(run("schedules", "list", "--json", env=at).stdout) == []
        run("schedules", "create", "nightly", "--deployment", "report.default", "--cron", "0 9 * * *", env=at)
        assert "schedules get nightly" in run("occurrences", "nightly", env=at).stderr
        shown = run("schedules", "get", "nightly", env=at).stdout.splitlines()
        assert [line.split()[0] for line in shown[:4]] == ["nightly", "state", "trigger", "next"]
