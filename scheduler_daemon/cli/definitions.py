"""A schedule's definition on the command line.

Owns: the options of `schedules create` and `update`, and the way from them to the daemon's params.  Must never know: what a good
definition is; the daemon judges it and says which field is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

C = TypeVar("C", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--cron", metavar="EXPRESSION", help="Five fields, such as '0 9 * * 1-5'."),
    click.option("--timezone", metavar="ZONE", help="IANA name of the zone of --cron; UTC without it."),
    click.option("--at", metavar="INSTANT", help="Once, at this RFC 3339 time with an offset."),
    click.option(
        "--input", "inputs", metavar="NAME=TEXT", multiple=True,
        help="An input of the workflow: NAME=TEXT, or NAME:=JSON.  Repeatable.",
    ),
    click.option(
        "--from", "facts", metavar="NAME=FACT", multiple=True,
        help="An input taken from a fact, such as as_of=occurrence.instant.  Repeatable.",
    ),
    click.option(
        "--input-file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="The whole input as a JSON file, bindings and all.",
    ),
    click.option("--overlap", type=click.Choice(["skip", "parallel"]), help="skip without it."),
    click.option("--max-active-runs", type=int, metavar="COUNT", help="With --overlap parallel."),
    click.option("--misfire", type=click.Choice(["skip", "latest"]), help="skip without it."),
    click.option("--lateness-s", type=int, metavar="SECONDS", help="How late a start may be."),
    click.option("--max-steps", type=int, metavar="COUNT", help="Step budget of each run."),
    click.option("--hold-unknown-s", type=float, metavar="SECONDS", help="How long an unknown outcome holds overlap."),
    click.option("--run-timeout-s", type=float, metavar="SECONDS", help="After which the wait for a run is given up."),
)  # fmt: skip


def definition(command: C) -> C:
    """Give a command the options of a definition."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def params(
    *,
    cron: str | None,
    timezone: str | None,
    at: str | None,
    inputs: Sequence[str],
    facts: Sequence[str],
    input_file: Path | None,
    **plain: Any,
) -> dict[str, Any]:
    """The daemon's params for these options; what was not given is left out."""
    given = {
        "trigger": _trigger(cron, timezone, at),
        "input": _input(inputs, facts, input_file),
        **plain,
    }
    return {name: value for name, value in given.items() if value is not None}


def _trigger(cron: str | None, timezone: str | None, at: str | None) -> dict[str, str] | None:
    if cron is not None and at is not None:
        raise click.UsageError("--cron and --at exclude each other: a schedule has one trigger")
    if timezone is not None and cron is None:
        raise click.UsageError("--timezone is the zone of --cron; the time of --at has an offset of its own")
    if cron is not None:
        return {"kind": "cron", "expression": cron, "timezone": timezone or "UTC"}
    return None if at is None else {"kind": "oneshot", "at": at}


def _input(inputs: Sequence[str], facts: Sequence[str], input_file: Path | None) -> dict[str, Any] | None:
    if not inputs and not facts and input_file is None:
        return None
    whole: dict[str, Any] = {} if input_file is None else _read(input_file)
    for text in inputs:
        name, value = _literal(text)
        whole[name] = {"value": value}
    for text in facts:
        name, sign, fact = text.partition("=")
        if not sign:
            raise click.BadParameter(f"{text!r} is not NAME=FACT", param_hint="--from")
        whole[name] = {"from": fact}
    return whole


def _literal(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.BadParameter(f"{text!r} is neither NAME=TEXT nor NAME:=JSON", param_hint="--input")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{name[:-1]}: {error}", param_hint="--input") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--input-file") from None
