"""`scheduler-daemon occurrences`, `runs` and `status`: what became of an instant, for people.

Owns: these commands and how rows and runs look on a terminal.  Must never know: what the daemon does about a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from rpc_client import App
from scheduler_daemon.cli.exits import epilog, examples, listed
from scheduler_daemon.cli.tables import table
from scheduler_daemon.cli.talking import EXITS, Talk, talks, told

_FOOT = listed(EXITS)


@click.command(epilog=epilog(examples("scheduler-daemon occurrences nightly --last 20"), _FOOT))
@click.argument("schedule_id")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest rows.")
@talks
def occurrences(talk: Talk, schedule_id: str, last: int | None) -> None:
    """Show the history of a schedule, oldest first."""

    async def ask(app: App) -> list[dict[str, Any]]:
        return [row async for row in app.occurrences(schedule_id)]

    rows = talk.call(ask)[-(last or 0) :]
    talk.show(rows, lambda: table(("instant", "status", "at", "run", "reason"), [_row(row) for row in rows]))
    if not rows:
        told(f"nothing was due yet; `scheduler-daemon schedules get {schedule_id}` shows the next instants")


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    instant = row["instant"]
    if row.get("first_instant") is not None:
        count = f"at least {row['count']}" if row.get("at_least") else row["count"]
        instant = f"{row['first_instant']} to {row['last_instant']} ({count})"
    reason = row["reason"]
    if row["blocking_run_id"] is not None:
        reason = f"{reason or 'blocked'} by {row['blocking_run_id']}"
    return instant, row["status"], row["at"], row["run_id"], reason


@click.group(epilog=_FOOT)
def runs() -> None:
    """Look at and answer single runs."""


@runs.command(epilog=epilog(examples("scheduler-daemon runs inspect run-000012"), _FOOT))
@click.argument("run_id")
@talks
def inspect(talk: Talk, run_id: str) -> None:
    """Show one run, by the daemon's id or the workflow server's."""
    _shown(talk, talk.call(lambda app: app.inspect_run(run_id)))


@runs.command(
    epilog=epilog(
        "Interrupting this command while it waits cancels the resume: the run is then judged by one look at the workflow"
        " server, and may end failed with its outcome unknown. --no-wait leaves the daemon to it.",
        examples("scheduler-daemon runs resume run-000012 --payload '{\"approved\": true}'"),
        _FOOT,
    )
)
@click.argument("run_id")
@click.option("--payload", metavar="JSON", default="{}", show_default=True, help="The answer to the interrupt.")
@click.option("--outcome", default="submitted", show_default=True, help="How it was answered.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the run stops again.")
@talks
def resume(talk: Talk, run_id: str, payload: str, outcome: str, *, wait: bool) -> None:
    """Answer an interrupted run."""
    try:
        answer = msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise click.BadParameter(str(error), param_hint="--payload") from None
    _shown(
        talk, talk.call(lambda app: app.resume_run(run_id, resume_payload=answer, resume_outcome=outcome, wait=wait))
    )


@runs.command(
    epilog=epilog(examples("scheduler-daemon runs abandon run-000012 --note 'nobody is left to answer'"), _FOOT)
)
@click.argument("run_id")
@click.option("--note", required=True, help="Who decided it, and why.")
@talks
def abandon(talk: Talk, run_id: str, note: str) -> None:
    """Give up an interrupted run that nobody will answer; the workflow server is not touched."""
    _shown(talk, talk.call(lambda app: app.abandon_run(run_id, note=note)))


def _shown(talk: Talk, run: Mapping[str, Any]) -> None:
    talk.show(run, lambda: table(("run", ""), list(run.items())))


@click.command(
    epilog=epilog(examples("scheduler-daemon status", "scheduler-daemon status --json | jq .blocked"), _FOOT)
)
@talks
def status(talk: Talk) -> None:
    """Show which daemon answers, and how its schedules stand."""

    async def ask(app: App) -> dict[str, Any]:
        health = await app.health()
        found = [schedule async for schedule in app.schedules(include_deleted=True, page_limit=1000)]
        return {
            **health,
            "schedules": dict(Counter(schedule["state"] for schedule in found)),
            "runs": dict(Counter(run["status"] for schedule in found for run in schedule["active_runs"])),
            "ambiguous": [run_id for schedule in found for run_id in schedule["ambiguous_runs"]],
            "blocked": [schedule["schedule_id"] for schedule in found if schedule["state"] == "blocked"],
        }

    found = talk.call(ask)
    talk.show(found, lambda: table(("daemon", ""), [(name, _words(value)) for name, value in found.items()]))


def _words(value: Any) -> Any:
    match value:
        case dict():
            return ", ".join(f"{count} {name}" for name, count in value.items()) or None  # pyright: ignore[reportUnknownVariableType]
        case list():
            return ", ".join(value) or None  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return value
