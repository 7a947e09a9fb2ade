"""The deployments file: TOML in, checked deployments out.

Owns: the file's keys, their limits, and the sentence that refuses a wrong one with the file and the key.  Must never know:
processes, runs or HTTP.  Nothing is guessed: an unknown key is refused by name with the nearest known one, since a misspelled
`timeout_s` would otherwise be a step without a timeout.

    [deployments."report.nightly"]             # the id; the artifact is what stands before its first dot
    title = "Nightly report"                   # optional
    version = 3                                # of the artifact; optional, 1
    input_schema = { type = "object" }         # optional JSON Schema (2020-12) of the workflow input
    [[deployments."report.nightly".steps]]     # one or more, in order
    name = "collect"                           # optional, "step-1" and so on
    argv = ["python3", "collect.py"]           # no shell; argv[0] is looked up on the step's PATH
    cwd = "reports"                            # optional; relative to this file's folder, which is also the default
    env = { LC_ALL = "C.UTF-8" }               # optional; on top of the daemon's environment
    timeout_s = 600                            # optional; without it a step may take as long as it likes
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

from scheduler_daemon.embedded.schemas import Schema, fault_of_schema

FILE_BYTES_MAX: Final = 1 << 20
DEPLOYMENTS_MAX: Final = 1_000
STEPS_MAX: Final = 100
ARGV_MAX: Final = 1_000
TIMEOUT_S_MAX: Final = 30 * 86_400.0

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS: Final = "WORKFLOW_"
_ID_RULE: Final = "1 to 128 letters, digits, '_', '.' or '-', not beginning with '.' or '-'"


class DeploymentsInvalid(ValueError):
    """The file cannot be used: `file`, the `key` at fault (as TOML names it; empty for the whole file), and the `reason`."""

    def __init__(self, file: Path, key: str, reason: str) -> None:
        super().__init__(f"{file}: {key}: {reason}" if key else f"{file}: {reason}")
        self.file: Path = file
        self.key: str = key
        self.reason: str = reason


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command.  After loading, `name` and an absolute `cwd` are always there."""

    argv: Annotated[tuple[str, ...], Meta(min_length=1, max_length=ARGV_MAX)]
    name: str = ""
    cwd: str = "."
    env: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(gt=0, le=TIMEOUT_S_MAX)] | None = None


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One deployment of the file, its steps in order.  `id` is the name of its table, and no key in it."""

    id: str = ""
    title: str | None = None
    version: Annotated[int, Meta(ge=1, le=2**31)] = 1
    input_schema: dict[str, Any] | None = None
    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=STEPS_MAX)]

    @property
    def artifact_id(self) -> str:
        """What the id says before its first dot."""
        return self.id.partition(".")[0]

    @property
    def schema(self) -> Schema:
        """The schema that every input satisfies: the file's, or any object."""
        return {"type": "object"} if self.input_schema is None else self.input_schema


_DEPLOYMENT_KEYS: Final = tuple(name for name in Deployment.__struct_fields__ if name != "id")


class _Fault(Exception):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


def load(file: Path) -> Mapping[str, Deployment]:
    """The deployments of a file by id, in its order.  Blocks on the file.  Raises DeploymentsInvalid."""
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise DeploymentsInvalid(file, "", f"cannot be read: {error.strerror}") from error
    try:
        return _parsed(data, file.resolve().parent)
    except _Fault as fault:
        raise DeploymentsInvalid(file, fault.key, fault.reason) from fault


def _parsed(data: bytes, folder: Path) -> Mapping[str, Deployment]:
    if len(data) > FILE_BYTES_MAX:
        raise _Fault("", f"larger than {FILE_BYTES_MAX} bytes")
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Fault("", f"not TOML: {error}") from error
    _refuse_unknown_keys(document)
    tables: dict[str, Any] = document.get("deployments", {})
    found: dict[str, Deployment] = {}
    for deployment_id, table in tables.items():
        key = _key_of(deployment_id)
        deployment = _converted(deployment_id, table, key)
        _check(deployment, key)
        _check_beside(deployment, found, key)
        found[deployment_id] = _completed(deployment, folder)
    return found


def _converted(deployment_id: str, table: dict[str, Any], key: str) -> Deployment:
    try:
        return msgspec.convert({**table, "id": deployment_id}, Deployment)
    except msgspec.ValidationError as error:
        fault, _, path = str(error).partition(" - at `$")
        raise _Fault(key + path.removesuffix("`"), fault) from error


def _refuse_unknown_keys(document: dict[str, Any]) -> None:
    _refuse_unknown_in("", document, ("deployments",))
    tables = document.get("deployments", {})
    if not isinstance(tables, dict) or len(cast("dict[str, Any]", tables)) > DEPLOYMENTS_MAX:
        raise _Fault("deployments", f"must be at most {DEPLOYMENTS_MAX} tables, each named by an id")
    for deployment_id, table in cast("dict[str, Any]", tables).items():
        key = _key_of(deployment_id)
        if not isinstance(table, dict):
            raise _Fault(key, "must be a table; an id that has a dot is written in quotes")
        deployment = cast("dict[str, Any]", table)
        _refuse_unknown_in(key, deployment, _DEPLOYMENT_KEYS)
        steps = deployment.get("steps")
        for index, step in enumerate(cast("list[Any]", steps) if isinstance(steps, list) else ()):
            if isinstance(step, dict):
                _refuse_unknown_in(f"{key}.steps[{index}]", cast("dict[str, Any]", step), Step.__struct_fields__)


def _refuse_unknown_in(key: str, table: dict[str, Any], known: Sequence[str]) -> None:
    for name, value in table.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            # `[deployments.a.b]` without quotes is a table `b` inside the deployment `a`.
            quotes = "; an id that has a dot is written in quotes" if isinstance(value, dict) else ""
            raise _Fault(f"{key}.{name}".lstrip("."), f"unknown key; the nearest known one is {near[0]!r}{quotes}")


def _key_of(deployment_id: str) -> str:
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", deployment_id)
    return f"deployments.{deployment_id}" if bare else f"deployments.{json.dumps(deployment_id)}"


def _check(deployment: Deployment, key: str) -> None:
    if not _ID.fullmatch(deployment.id):
        raise _Fault(key, f"an id is {_ID_RULE}")
    if deployment.input_schema is not None and (fault := fault_of_schema(deployment.input_schema)):
        raise _Fault(f"{key}.input_schema", fault)
    names: set[str] = set()
    for index, step in enumerate(deployment.steps):
        _check_step(step, f"{key}.steps[{index}]")
        name = _named(step, index)
        if name in names:
            raise _Fault(f"{key}.steps[{index}].name", f"{name!r} is the name of an earlier step")
        names.add(name)


def _check_step(step: Step, key: str) -> None:
    if step.name and not _ID.fullmatch(step.name):
        raise _Fault(f"{key}.name", f"a name is {_ID_RULE}")
    if not step.argv[0]:
        raise _Fault(f"{key}.argv[0]", "must name a program")
    for text in (*step.argv, step.cwd, *step.env.values()):
        if "\0" in text:
            raise _Fault(key, "no argument, folder or variable may hold a NUL character")
    for name in step.env:
        if not _VARIABLE.fullmatch(name) or name.startswith(_OURS):
            raise _Fault(f"{key}.env.{name}", f"not a variable that a step may set; {_OURS}… is the server's own")


def _check_beside(deployment: Deployment, earlier: Mapping[str, Deployment], key: str) -> None:
    """One version of an artifact has one input schema, since callers ask for it by that version."""
    for other in earlier.values():
        same_version = (other.artifact_id, other.version) == (deployment.artifact_id, deployment.version)
        if same_version and other.schema != deployment.schema:
            artifact = f"artifact {other.artifact_id!r} version {other.version}"
            raise _Fault(
                f"{key}.input_schema", f"{artifact} has another one in {other.id!r}; give one of them a version"
            )


def _completed(deployment: Deployment, folder: Path) -> Deployment:
    steps = tuple(
        msgspec.structs.replace(step, name=_named(step, index), cwd=os.path.normpath(folder / step.cwd))
        for index, step in enumerate(deployment.steps)
    )
    return msgspec.structs.replace(deployment, steps=steps)


def _named(step: Step, index: int) -> str:
    return step.name or f"step-{index + 1}"
