"""What a step is given, what its end means, and whether it could start at all.

Owns: the environment of a step, the exit rules, the diagnostics of an unrunnable deployment.  Must never know: files of runs, keys,
HTTP, or how a process is started.  `judge` is pure.

| exit | last line of stdout | the step |
|---|---|---|
| 0 | a JSON object | finished, with it as the output |
| 0 | any other JSON value | finished, with `{"result": value}` |
| 0 | nothing, or no JSON | finished, with `{}` |
| 75 | a JSON object | interrupted, with it as the payload |
| 75 | anything else | failed |
| any other, a signal, or out of time | | failed, with the tail of stderr |

JSON means what `jsonrpc.decode` reads, nested at most OUTPUT_DEPTH_MAX deep, so that what carries the output onwards can add levels of
its own.  A last line of which only the end was kept is a failure: to lose it silently would give the next step another input.

The input reaches a step twice, on stdin and in WORKFLOW_INPUT.  The kernel refuses a variable above 128 KiB, so a larger input
is on stdin only.  WORKFLOW_RESUME has no second way, and a step that misses it would begin anew: a larger resume is refused before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from scheduler_daemon.embedded.deployments import Deployment, Step
from scheduler_daemon.embedded.processes import STDOUT_BYTES_MAX, Command, Ended
from scheduler_daemon.jsonrpc import Unreadable, decode

EXIT_INTERRUPTED: Final = 75
OUTPUT_DEPTH_MAX: Final = 24
VARIABLE_BYTES_MAX: Final = 128 * 1024 - 1
"""Linux's MAX_ARG_STRLEN without the closing NUL: name, '=' and value together."""

# What speaks to the daemon alone: its settings and secrets, and what systemd gave to it.
_NOT_PASSED_ON: Final = ("SCHEDULER_", "WORKFLOW_", "LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_", "CREDENTIALS_DIRECTORY")

_NO_JSON: Final = object()

Value = dict[str, Any]


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The step went well; `output` is the next step's input."""

    output: Value


class Interrupted(msgspec.Struct, frozen=True, tag=True):
    """The step asks for an answer before it goes on."""

    payload: Value


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The step did not do its work."""

    error: str


Verdict = Finished | Interrupted | Failed


class Resume(msgspec.Struct, frozen=True):
    """The answer to an interrupt, as the repeated step reads it."""

    outcome: str
    payload: Value


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a deployment cannot run, in the recorded shape."""

    severity: str = "error"
    code: str
    logical_ref: str
    bound_source: str | None = None
    message: str
    repair_hint: str


def base_environment() -> Mapping[str, str]:
    """The daemon's own environment without what is meant for the daemon alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}


def command_of(step: Step, run_id: str, value: Value, resume: Resume | None, base: Mapping[str, str]) -> Command:
    """What to start for the step; raises ValueError when `resume` does not fit a variable (`resume_fits` says so before)."""
    stdin = msgspec.json.encode(value)
    env = {**base, **step.env, "WORKFLOW_RUN_ID": run_id}
    if _fits("WORKFLOW_INPUT", stdin):
        env["WORKFLOW_INPUT"] = stdin.decode()
    if resume is not None:
        if not resume_fits(resume):
            raise ValueError("the resume does not fit a variable")
        env["WORKFLOW_RESUME"] = msgspec.json.encode(resume).decode()
    return Command(argv=step.argv, cwd=step.cwd, env=env, stdin=stdin, timeout_s=step.timeout_s)


def resume_fits(resume: Resume) -> bool:
    """Whether the kernel would take it as a variable."""
    return _fits("WORKFLOW_RESUME", msgspec.json.encode(resume))


def judge(step: Step, ended: Ended) -> Verdict:
    """What the end of a step's process means, by the table above."""
    if ended.timed_out:
        return _failed(f"step {step.name!r} was stopped after {step.timeout_s:g} s", ended)
    if ended.status == EXIT_INTERRUPTED:
        payload = _last_json(ended)
        if isinstance(payload, dict):
            return Interrupted(cast("Value", payload))
        return _failed(f"step {step.name!r} exited with status 75 and no JSON object on its last line", ended)
    if ended.status < 0:
        return _failed(f"step {step.name!r} was ended by signal {-ended.status}", ended)
    if ended.status > 0:
        return Failed(_text(ended.stderr) or f"step {step.name!r} exited with status {ended.status}")
    if _last_line_is_cut(ended):
        return Failed(f"step {step.name!r}: its last line of output is longer than {STDOUT_BYTES_MAX} bytes")
    output = _last_json(ended)
    if output is _NO_JSON:
        return Finished({})
    return Finished(cast("Value", output) if isinstance(output, dict) else {"result": output})


def diagnose(deployment: Deployment, base: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """Why the deployment cannot run now; empty when it can.  Blocks on the file system."""
    return tuple(found for step in deployment.steps for found in _faults_of(step, base))


def _faults_of(step: Step, base: Mapping[str, str]) -> Iterator[Diagnostic]:
    if not os.path.isdir(step.cwd):  # noqa: PTH112 -- text in, text out
        yield Diagnostic(
            code="folder_missing",
            logical_ref=f"{step.name}.cwd",
            message=f"The folder {step.cwd!r} of step {step.name!r} does not exist.",
            repair_hint="Make the folder, or correct cwd in the deployments file.",
        )
    elif not _is_found(step.argv[0], step.cwd, {**base, **step.env}.get("PATH", os.defpath)):
        yield Diagnostic(
            code="program_missing",
            logical_ref=f"{step.name}.argv",
            message=f"The program {step.argv[0]!r} of step {step.name!r} is not an executable file on its PATH.",
            repair_hint="Install the program, or correct argv or env.PATH in the deployments file.",
        )


def _is_found(program: str, cwd: str, path: str) -> bool:
    folders = [""] if "/" in program else path.split(os.pathsep)
    return any(_is_program(os.path.join(cwd, folder, program)) for folder in folders)  # noqa: PTH118 -- text in, text out


def _is_program(file: str) -> bool:
    return os.path.isfile(file) and os.access(file, os.X_OK)  # noqa: PTH113 -- text in, text out


def _fits(variable: str, value: bytes) -> bool:
    return len(variable) + 1 + len(value) <= VARIABLE_BYTES_MAX


def _last_json(ended: Ended) -> object:
    """The JSON value on the last line that is not blank."""
    line = ended.stdout.rstrip().rpartition(b"\n")[2]
    try:
        return decode(line, depth_max=OUTPUT_DEPTH_MAX)
    except Unreadable:
        return _NO_JSON


def _last_line_is_cut(ended: Ended) -> bool:
    return ended.stdout_cut and b"\n" not in ended.stdout.rstrip()


def _failed(what: str, ended: Ended) -> Failed:
    said = _text(ended.stderr)
    return Failed(f"{what}: {said}" if said else what)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip()
