"""The command line: what it prints, where, and the exit code that says what to do next."""

import asyncio
import json
import threading
from contextlib import contextmanager
from importlib.metadata import entry_points

import click
import pytest
from click.testing import CliRunner

from scheduler_daemon import __version__, errors
from scheduler_daemon.cli.root import group, main
from scheduler_daemon.cli.tables import printable, table
from scheduler_daemon.config import SETTINGS
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Row
from tests.unit.face import NOW, Face, FaceOptions, FakeService, running

AFTER = "2026-03-01T12:00:00Z"


def run(*argv: str, env: dict[str, str] | None = None, stdin: str = ""):
    return CliRunner().invoke(group, argv, env=env, input=stdin, prog_name="scheduler-daemon")


# --- help and version -------------------------------------------------------------------------------------------------


def test_version_says_which():
    result = run("--version")
    assert result.stdout.strip().endswith(__version__)
    assert result.exit_code == 0


def test_help_lists_the_commands_the_exit_codes_and_how_to_complete():
    text = run("--help").stdout
    for command in ("serve", "check", "next", "status", "schedules", "occurrences", "runs"):
        assert f"\n  {command} " in text
    for code, meaning in errors.EXIT_MEANINGS.items():
        assert f"{code:>3}  {meaning.split(';', maxsplit=1)[0][:20]}" in text
    assert "_SCHEDULER_DAEMON_COMPLETE=bash_source" in text


def every_command(command: click.Command, path: tuple[str, ...] = ()):
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from every_command(inner, (*path, name))


COMMANDS = dict(every_command(group))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_page_with_its_exit_codes(path):
    result = run(*path, "--help")
    assert result.exit_code == 0
    listed = result.stdout.partition("Exit codes:")[2].splitlines()[1:]
    assert listed[0].split() == ["0", *errors.EXIT_MEANINGS[0].split()]
    assert {int(line.split()[0]) for line in listed} <= errors.EXIT_MEANINGS.keys()


@pytest.mark.parametrize("command", ["serve", "check"])
def test_every_setting_has_a_flag_that_names_its_variable(command):
    text = " ".join(run(command, "--help").stdout.split())
    for setting in SETTINGS:
        assert f"{setting.flag} " in text
        assert f"[{setting.variable}" in text


def test_the_installed_script_is_this_entry_point():
    found = [script.value for script in entry_points(group="console_scripts") if script.name == "scheduler-daemon"]
    assert found in ([], ["scheduler_daemon.cli:main"])
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0


def test_an_unknown_command_or_flag_is_a_usage_error():
    assert run("explode").exit_code == errors.EXIT_USAGE
    assert run("next", "* * * * *", "--zone", "UTC").exit_code == errors.EXIT_USAGE


# --- next -------------------------------------------------------------------------------------------------------------


def test_next_lists_local_time_and_utc():
    result = run("next", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--count", "3", "--after", AFTER)
    assert result.stdout.splitlines() == [
        "2026-03-02T09:00:00+01:00  2026-03-02T08:00:00Z  Mon",
        "2026-03-03T09:00:00+01:00  2026-03-03T08:00:00Z  Tue",
        "2026-03-04T09:00:00+01:00  2026-03-04T08:00:00Z  Wed",
    ]
    assert (result.stderr, result.exit_code) == ("", 0)


def test_next_as_json_is_a_list_of_instants():
    result = run("next", "0 0 1 1 *", "--count", "2", "--after", AFTER, "--json")
    assert json.loads(result.stdout) == ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]


def test_next_begins_now_and_in_utc_unless_told_otherwise():
    result = run("next", "* * * * *")
    assert len(result.stdout.splitlines()) == 5
    assert "+00:00" in result.stdout


def test_next_warns_on_stderr_and_answers_on_stdout():
    result = run("next", "0 9 1 * 1", "--after", AFTER)
    assert result.stderr.startswith("warning: ")
    assert len(result.stdout.splitlines()) == 5
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("argv", "field"),
    [
        (["0 0 9 * * *"], "expression: "),
        (["61 * * * *"], "minute: "),
        (["5-5 * * * *"], "minute: "),
        (["0 0 31 2 *"], "day_of_month: "),
        (["* * * * *", "--timezone", "Mars/Olympus"], "timezone: "),
    ],
)
def test_next_refuses_with_field_and_reason(argv, field):
    result = run("next", *argv)
    assert result.exit_code == errors.EXIT_REJECTED
    assert result.stderr.startswith(f"scheduler-daemon: {field}")
    assert result.stdout == ""


@pytest.mark.parametrize(
    "argv", [["--count", "0"], ["--count", "1001"], ["--after", "2026-03-01"], ["--after", "2026-03-01T12:00:00"]]
)
def test_next_refuses_bad_options_as_usage(argv):
    assert run("next", "* * * * *", *argv).exit_code == errors.EXIT_USAGE


# --- serve ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """What `serve` was called with; it returns the code in `code`."""
    seen = type("Seen", (), {"config": None, "code": 0})()

    def serve(config):
        seen.config = config
        return seen.code

    monkeypatch.setattr("scheduler_daemon.wiring.serve", serve)
    return seen


def test_serve_hands_the_effective_settings_to_the_daemon_and_ends_with_its_code(served, tmp_path):
    served.code = errors.EXIT_HELD
    result = run(
        "serve", "--store-root", str(tmp_path / "s"), "--server", "http://127.0.0.1:1/rpc", "--listen", "127.0.0.1:0",
        "--gateway", "--drain-grace-s", "2.5", env={"SCHEDULER_LATENESS_S": "7"},
    )  # fmt: skip
    assert result.exit_code == errors.EXIT_HELD
    config = served.config
    assert (config.store_root, config.server_url) == (tmp_path / "s", "http://127.0.0.1:1/rpc")
    assert (config.gateway, config.drain_grace_s, config.lateness_s) == (True, 2.5, 7.0)


def test_serve_reads_a_file_and_says_what_looks_odd(served, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("lateness_s = 9\n")
    result = run("serve", "--config", str(path), env={"SCHEDULER_LATENES_S": "1"})
    assert served.config.lateness_s == 9
    assert "SCHEDULER_LATENES_S is not a setting" in result.stderr


def test_serve_refuses_a_setting_with_78_and_its_name(served):
    result = run("serve", "--poll-interval-s", "nan")
    assert result.exit_code == errors.EXIT_UNUSABLE
    assert result.stderr.startswith("scheduler-daemon: --poll-interval-s: must be")
    assert served.config is None


def test_serve_needs_the_opt_in_of_the_servers_file_or_the_flag(served, tmp_path):
    path = tmp_path / "server.json"
    path.write_text('{"server": {"scheduler": {}}}')
    assert run("serve", "--config", str(path)).exit_code == errors.EXIT_UNUSABLE
    assert run("serve", "--config", str(path), "--enable-scheduler").exit_code == 0


@pytest.mark.parametrize("command", [["serve"], ["check"], ["status"], ["schedules", "list"]])
@pytest.mark.parametrize("flag", ["--token", "--server-token"])
def test_a_token_on_the_command_line_is_refused_without_repeating_it(served, command, flag):
    result = run(*command, flag, "hunter2")
    assert result.exit_code == errors.EXIT_UNUSABLE
    assert f"use {flag}-file" in result.stderr
    assert "hunter2" not in result.output
    assert served.config is None


# --- check ------------------------------------------------------------------------------------------------------------


def test_check_prints_every_value_with_its_origin():
    result = run("check", "--offline", "--lateness-s", "5", env={"SCHEDULER_DRAIN_GRACE_S": "6"})
    rows = [line.split("  ") for line in result.stdout.splitlines()]
    shown = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert shown["lateness_s"] == ["5", "flag --lateness-s"]
    assert shown["drain_grace_s"] == ["6", "environment SCHEDULER_DRAIN_GRACE_S"]
    assert shown["token_file"] == ["-", "default"]
    assert {setting.name for setting in SETTINGS} <= shown.keys()
    assert result.exit_code == 0


def test_check_as_json_is_for_scripts():
    report = json.loads(run("check", "--offline", "--json").stdout)
    assert report["settings"]["listen"] == {"value": "127.0.0.1:8766", "origin": "default"}
    assert report["settings"]["poll_interval_s"]["value"] == 1.0


def test_check_says_when_nobody_answers():
    result = run("check", "--server", "http://127.0.0.1:9/rpc")
    assert result.exit_code == errors.EXIT_UNAVAILABLE
    assert "no: " in result.stdout


def test_check_reads_the_deployments_of_the_embedded_server(tmp_path):
    path = tmp_path / "deployments.toml"
    path.write_text('[deployments."hello.default"]\n[[deployments."hello.default".steps]]\nargv = ["true"]\n')
    shown = run("check", "--embedded", str(path))
    assert (shown.exit_code, "hello.default" in shown.stdout) == (0, True)
    path.write_text("[deployments.a]\nstepps = 1\n")
    refused = run("check", "--embedded", str(path))
    assert refused.exit_code == errors.EXIT_UNUSABLE
    assert str(path) in refused.stderr


# --- talking to a daemon ----------------------------------------------------------------------------------------------


@contextmanager
def daemon(options: FaceOptions | None = None):
    """A face in a thread of its own, for commands that bring their own event loop."""
    service = FakeService()
    ready, done = threading.Event(), threading.Event()
    found: list[Face] = []

    async def live():
        async with running(options, service) as face:
            found.append(face)
            ready.set()
            await asyncio.to_thread(done.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield service, found[0]
    finally:
        done.set()
        thread.join(20)


@pytest.fixture
def talking():
    """The service behind a daemon that answers, and a way to call commands on it."""
    with daemon() as (service, face):

        def talk(*argv: str, **more):
            return run(*argv, env={"SCHEDULER_URL": f"{face.url}/rpc"}, **more)

        yield service, talk


def created(talk, *more: str):
    return talk("schedules", "create", "nightly", "--deployment", "report.default", "--cron", "0 9 * * *", *more)


def test_a_schedule_is_created_shown_listed_changed_and_deleted(talking):
    service, talk = talking
    made = created(
        talk,
        "--timezone",
        "Europe/Berlin",
        "--input",
        "who=world",
        "--input",
        "limit:=5",
        "--from",
        "as_of=occurrence.instant",
    )
    assert made.exit_code == 0, made.output
    definition = service.calls[0][1]
    assert definition.input == {
        "who": {"value": "world"},
        "limit": {"value": 5},
        "as_of": {"from": "occurrence.instant"},
    }
    assert "0 9 * * * (Europe/Berlin)" in made.stdout
    assert made.stdout.count("next ") == 5

    listed = talk("schedules", "list")
    assert listed.stdout.splitlines()[1].split() == [
        "nightly", "active", "1", "0", "9", "*", "*", "*", "(Europe/Berlin)", "2026-03-02T08:00:00Z", "report.default", "0",
    ]  # fmt: skip
    assert json.loads(talk("schedules", "get", "nightly", "--json").stdout)["revision"] == 1

    changed = talk("schedules", "update", "nightly", "--lateness-s", "5")
    assert changed.exit_code == 0
    assert service.calls[-1] == ("update", "nightly", 1, {"lateness_s": 5})
    assert talk("schedules", "pause", "nightly", "--note", "maintenance").stdout.count("maintenance") == 1
    assert talk("schedules", "resume", "nightly").exit_code == 0
    assert talk("schedules", "unblock", "nightly", "--note", "n").exit_code == 0
    assert talk("schedules", "delete", "nightly", stdin="n\n").exit_code == errors.EXIT_REJECTED
    assert service.views["nightly"].state == "active"
    assert talk("schedules", "delete", "nightly", "--yes").exit_code == 0
    assert service.views["nightly"].state == "deleted"


def test_a_one_shot_is_created_with_at(talking):
    _, talk = talking
    result = talk("schedules", "create", "once", "--deployment", "d", "--at", "2030-01-31T09:00:00+01:00", "--json")
    assert json.loads(result.stdout)["trigger"] == {"kind": "oneshot", "at": "2030-01-31T08:00:00Z"}


def test_warnings_of_a_new_schedule_go_to_stderr(talking):
    _, talk = talking
    made = talk("schedules", "create", "a", "--deployment", "d", "--cron", "0 9 1 * 1", "--json")
    assert made.stderr.startswith("warning: ")
    assert json.loads(made.stdout)["schedule_id"] == "a"


def test_a_stale_revision_is_refused_and_the_present_one_shown(talking):
    _, talk = talking
    created(talk)
    result = talk("schedules", "update", "nightly", "--revision", "7", "--lateness-s", "5")
    assert result.exit_code == errors.EXIT_REJECTED
    assert "RevisionConflict" in result.stderr
    assert "  revision: 1" in result.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ["schedules", "create", "a", "--deployment", "d"],
        ["schedules", "create", "a", "--cron", "* * * * *"],
        ["schedules", "create", "a", "--deployment", "d", "--cron", "* * * * *", "--at", "2030-01-31T09:00:00Z"],
        ["schedules", "create", "a", "--deployment", "d", "--at", "2030-01-31T09:00:00Z", "--timezone", "UTC"],
        ["schedules", "create", "a", "--deployment", "d", "--cron", "* * * * *", "--input", "who"],
        ["schedules", "create", "a", "--deployment", "d", "--cron", "* * * * *", "--input", "who:={"],
        ["schedules", "create", "a", "--deployment", "d", "--cron", "* * * * *", "--from", "who"],
        ["schedules", "update", "a"],
        ["schedules", "unblock", "a"],
        ["runs", "resume", "run-000001", "--payload", "[]"],
        ["runs", "abandon", "run-000001"],
    ],
)
def test_a_command_line_that_cannot_be_meant_is_a_usage_error_and_nothing_is_sent(argv):
    assert run(*argv, env={"SCHEDULER_URL": "http://127.0.0.1:9/rpc"}).exit_code == errors.EXIT_USAGE


def test_the_input_may_come_from_a_file_and_be_overruled(talking, tmp_path):
    service, talk = talking
    path = tmp_path / "input.json"
    path.write_text('{"a": {"value": 1}, "b": {"value": 2}}')
    assert created(talk, "--input-file", str(path), "--input", "b=x").exit_code == 0
    assert service.calls[0][1].input == {"a": {"value": 1}, "b": {"value": "x"}}


def test_occurrences_are_a_table_of_what_became_of_each_instant(talking):
    service, talk = talking
    created(talk)
    service.rows = [
        Row(
            n=2,
            schedule_id="nightly",
            status="skipped-misfire",
            at=NOW,
            first_instant=NOW,
            last_instant=NOW,
            count=9,
            at_least=True,
        ),
        Row(n=3, schedule_id="nightly", status="skipped-overlap", at=NOW, instant=NOW, blocking_run_id="run-000001"),
        Row(n=4, schedule_id="nightly", status="completed", at=NOW, instant=NOW, run_id="run-000002"),
    ]
    text = talk("occurrences", "nightly").stdout
    assert "2026-03-01T12:00:00Z to 2026-03-01T12:00:00Z (at least 9)" in text
    assert "blocked by run-000001" in text
    assert "run-000002" in text
    assert [row["n"] for row in json.loads(talk("occurrences", "nightly", "--last", "1", "--json").stdout)] == [4]


def test_runs_are_inspected_resumed_and_abandoned(talking):
    service, talk = talking
    assert '{"result":"hello"}' in talk("runs", "inspect", "run-000001").stdout
    resumed = talk("runs", "resume", "run-000001", "--payload", '{"approved": true}', "--no-wait", "--json")
    assert json.loads(resumed.stdout)["status"] == "running"
    assert service.calls[-1] == ("resume_run", "run-000001", {"approved": True}, "submitted", False)
    assert talk("runs", "abandon", "run-000001", "--note", "nobody answers").exit_code == 0


def test_status_counts_schedules_and_names_what_needs_somebody(talking):
    _, talk = talking
    created(talk)
    text = talk("status").stdout
    assert "1 active" in text
    assert "/srv/store" in text
    assert json.loads(talk("status", "--json").stdout)["schedules"] == {"active": 1}


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("ScheduleNotFound", errors.EXIT_REJECTED),
        ("ServerUnavailable", errors.EXIT_UNAVAILABLE),
        ("StorageFull", errors.EXIT_UNAVAILABLE),
        ("Draining", errors.EXIT_UNAVAILABLE),
    ],
)
def test_a_refusal_says_what_to_do_and_ends_with_the_code_for_it(talking, code, exit_code):
    service, talk = talking
    service.refusal = Rejected(code, "the reason")
    result = talk("schedules", "get", "nightly")
    assert result.exit_code == exit_code
    assert result.stderr.startswith(f"scheduler-daemon: {code}: the reason\n  hint: ")
    assert result.stdout == ""


def test_an_error_inside_the_daemon_leaves_the_outcome_open(talking):
    service, talk = talking
    service.refusal = RuntimeError("boom")
    assert talk("schedules", "pause", "nightly").exit_code == errors.EXIT_AMBIGUOUS


def test_no_daemon_is_69(monkeypatch):
    monkeypatch.setattr("rpc_client.schedules._RETRY_DELAYS_S", ())
    result = run("status", env={"SCHEDULER_URL": "http://127.0.0.1:9/rpc"})
    assert result.exit_code == errors.EXIT_UNAVAILABLE
    assert result.stderr.startswith("scheduler-daemon: NotReached: ")


def test_a_url_that_cannot_be_is_a_usage_error():
    assert run("status", "--url", "ftp://example.org").exit_code == errors.EXIT_USAGE


def test_a_token_file_and_a_unix_socket_lead_to_the_daemon(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    path = tmp_path / "run" / "face.sock"
    with daemon(FaceOptions(listen=None, socket_path=path, secret="s3cret")):
        assert run("status", "--socket-path", str(path), "--token-file", str(token)).exit_code == 0
        refused = run("status", env={"SCHEDULER_SOCKET_PATH": str(path)})
        assert refused.exit_code == errors.EXIT_UNAVAILABLE
        assert "401" in refused.stderr


# --- tables -----------------------------------------------------------------------------------------------------------


def test_columns_are_aligned_and_absence_is_a_dash():
    assert table(("a", "bb"), [("long", None), ("x", 1)]) == "a     bb\nlong  -\nx     1"


def test_values_read_as_people_write_them():
    assert [printable(value) for value in (True, False, [], {}, {"a": [1]}, 0, "")] == [
        "yes",
        "no",
        "-",
        "-",
        '{"a":[1]}',
        "0",
        "",
    ]


def test_nothing_unprintable_reaches_the_terminal():
    assert printable("a\x1b[2Jb\nc\u202e") == "a?[2Jb?c?"


def test_help_pages_are_wide_enough_for_their_examples():
    for path in COMMANDS:
        assert not [line for line in run(*path, "--help").stdout.splitlines() if line.rstrip().endswith("\\b")], path
