"""What the end of a step means, as a table, and what a step is given."""

import json

import pytest

from scheduler_daemon.embedded.deployments import Deployment, Step
from scheduler_daemon.embedded.processes import Ended
from scheduler_daemon.embedded.steps import (
    VARIABLE_BYTES_MAX,
    Failed,
    Finished,
    Interrupted,
    Resume,
    base_environment,
    command_of,
    diagnose,
    judge,
    resume_fits,
)

STEP = Step(argv=("x",), name="s", cwd="/", timeout_s=5)


def ended(stdout=b"", *, status=0, stderr=b"", cut=False, timed_out=False):
    return Ended(status=status, timed_out=timed_out, stdout=stdout, stdout_cut=cut, stderr=stderr)


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (ended(b'{"a": 1}\n'), Finished({"a": 1})),
        (ended(b'noise\n{"a": 1}'), Finished({"a": 1})),
        (ended(b'{"a": 1}\r\n\n  \n'), Finished({"a": 1})),
        (ended(b'{"a": 1}\nnoise'), Finished({})),
        (ended(b'"text"'), Finished({"result": "text"})),
        (ended(b"null"), Finished({"result": None})),
        (ended(b"0"), Finished({"result": 0})),
        (ended(b"NaN"), Finished({})),
        (ended(b""), Finished({})),
        (ended(b"\xff"), Finished({})),
        (ended(b"[" * 24 + b"]" * 24), Finished({"result": json.loads("[" * 24 + "]" * 24)})),
        (ended(b"[" * 25 + b"]" * 25), Finished({})),
        (ended(b'{"a": 1}', cut=True), Failed("step 's': its last line of output is longer than 1048576 bytes")),
        (ended(b'...\n{"a": 1}', cut=True), Finished({"a": 1})),
        (ended(b'{"a": 1}', status=75), Interrupted({"a": 1})),
        (ended(b"{}", status=75), Interrupted({})),
        (ended(b"1", status=75), Failed("step 's' exited with status 75 and no JSON object on its last line")),
        (
            ended(b"", status=75, stderr=b"why\n"),
            Failed("step 's' exited with status 75 and no JSON object on its last line: why"),
        ),
        (ended(b'{"a": 1}', status=1, stderr=b" a\nb \n"), Failed("a\nb")),
        (ended(b'{"a": 1}', status=1), Failed("step 's' exited with status 1")),
        (ended(status=1, stderr=b"\xffx"), Failed("\ufffdx")),
        (ended(status=-15, stderr=b"bye"), Failed("step 's' was ended by signal 15: bye")),
        (ended(b'{"a": 1}', timed_out=True), Failed("step 's' was stopped after 5 s")),
        (ended(status=75, stdout=b"{}", timed_out=True), Failed("step 's' was stopped after 5 s")),
    ],
)
def test_an_end_means(end, verdict):
    assert judge(STEP, end) == verdict


def test_a_step_is_given_its_input_twice_its_run_and_its_own_variables():
    step = Step(argv=("x", "y"), name="s", cwd="/tmp", env={"A": "2"}, timeout_s=3)
    command = command_of(step, "run_1", {"who": "ö"}, None, {"A": "1", "B": "1"})
    assert (command.argv, command.cwd, command.timeout_s) == (("x", "y"), "/tmp", 3)
    assert command.stdin == '{"who":"ö"}'.encode()
    assert command.env == {"A": "2", "B": "1", "WORKFLOW_INPUT": '{"who":"ö"}', "WORKFLOW_RUN_ID": "run_1"}


def test_a_resumed_step_is_given_the_answer():
    command = command_of(STEP, "r", {}, Resume("submitted", {"ok": True}), {})
    assert command.env["WORKFLOW_RESUME"] == '{"outcome":"submitted","payload":{"ok":true}}'


def test_what_does_not_fit_a_variable_is_left_out_to_the_byte():
    room = VARIABLE_BYTES_MAX - len('WORKFLOW_INPUT={"x":""}')
    assert "WORKFLOW_INPUT" in command_of(STEP, "r", {"x": "y" * room}, None, {}).env
    assert "WORKFLOW_INPUT" not in command_of(STEP, "r", {"x": "y" * (room + 1)}, None, {}).env


def test_a_resume_that_does_not_fit_is_said_before_and_refused_here():
    large = Resume("submitted", {"x": "y" * VARIABLE_BYTES_MAX})
    assert not resume_fits(large)
    with pytest.raises(ValueError, match="does not fit"):
        command_of(STEP, "r", {}, large, {})


def test_steps_do_not_inherit_what_is_meant_for_the_daemon(monkeypatch):
    for name in (
        "SCHEDULER_TOKEN",
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "LISTEN_FDS",
        "CREDENTIALS_DIRECTORY",
        "WORKFLOW_RESUME",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("COLOR", "blue")
    inherited = base_environment()
    assert inherited["COLOR"] == "blue"
    assert not [name for name in inherited if name.startswith(("SCHEDULER_", "NOTIFY_", "WATCHDOG_", "LISTEN_"))]
    assert not inherited.keys() & {"CREDENTIALS_DIRECTORY", "WORKFLOW_RESUME"}


@pytest.mark.parametrize(
    ("argv0", "path", "found"),
    [
        ("tool", "{folder}/bin", True),
        ("tool", "bin", True),
        ("tool", "/nowhere:{folder}/bin", True),
        ("tool", "/nowhere", False),
        ("bin/tool", "/nowhere", True),
        ("{folder}/bin/tool", "", True),
        ("data", "{folder}/bin", False),
        ("bin", "{folder}", False),
    ],
)
def test_a_program_is_looked_for_where_it_would_be_started(tmp_path, argv0, path, found):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").touch(0o755)
    (tmp_path / "bin" / "data").touch(0o644)
    step = Step(
        argv=(argv0.format(folder=tmp_path),), name="s", cwd=str(tmp_path), env={"PATH": path.format(folder=tmp_path)}
    )
    faults = diagnose(Deployment(id="d", steps=(step,)), {"PATH": "/usr/bin:/bin"})
    assert [fault.code for fault in faults] == ([] if found else ["program_missing"])
