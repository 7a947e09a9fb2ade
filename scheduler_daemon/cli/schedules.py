"""`scheduler-daemon schedules …`: what the methods `workflow.schedules.*` do, for people.

Owns: these commands and how a schedule looks on a terminal.  Must never know: what the daemon does about a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rpc_client import App
from scheduler_daemon.cli.definitions import definition, params
from scheduler_daemon.cli.exits import epilog, examples, listed
from scheduler_daemon.cli.tables import table
from scheduler_daemon.cli.talking import EXITS, Talk, talks, told

_FOOT = listed(EXITS)
_HIDDEN = frozenset(
    {"schedule_id", "state", "trigger", "next_instants", "warnings", "diagnostics", "active_runs", "candidate"}
)


@click.group(epilog=_FOOT)
def schedules() -> None:
    """Create, look at and change schedules."""


@schedules.command(name="list", epilog=epilog(examples("scheduler-daemon schedules list --state blocked"), _FOOT))
@click.option("--include-deleted", is_flag=True, help="Deleted ones too.")
@click.option("--deployment", "deployment_id", metavar="ID", help="Only of this deployment.")
@click.option(
    "--state", type=click.Choice(["active", "finished", "paused", "blocked", "deleted"]), help="Only in this state."
)
@talks
def list_(talk: Talk, *, include_deleted: bool, deployment_id: str | None, state: str | None) -> None:
    """List schedules in order of id."""

    async def ask(app: App) -> list[dict[str, Any]]:
        found = app.schedules(include_deleted=include_deleted or None, deployment_id=deployment_id, state=state)
        return [schedule async for schedule in found]

    found = talk.call(ask)
    talk.show(
        found, lambda: table(("schedule", "state", "rev", "trigger", "next", "deployment", "runs"), map_rows(found))
    )
    if not found:
        told("no schedule matches; `scheduler-daemon schedules create --help` has examples")


def map_rows(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """One row a schedule."""
    return [
        (
            one["schedule_id"],
            one["state"],
            one["revision"],
            trigger_text(one["trigger"]),
            next(iter(one["next_instants"]), None) if one["state"] == "active" else None,
            one["deployment_id"],
            len(one["active_runs"]),
        )
        for one in found
    ]


@schedules.command(epilog=epilog(examples("scheduler-daemon schedules get nightly"), _FOOT))
@click.argument("schedule_id")
@talks
def get(talk: Talk, schedule_id: str) -> None:
    """Show everything about one schedule."""
    shown(talk, talk.call(lambda app: app.get_schedule(schedule_id)))


@schedules.command(
    epilog=epilog(
        examples(
            "scheduler-daemon schedules create nightly --deployment report.default --cron '0 3 * * *' --timezone Europe/Berlin",
            "scheduler-daemon schedules create once --deployment hello.default --at 2030-01-31T09:00:00+01:00 --input who=world",
            "scheduler-daemon schedules create report --deployment report.default --cron '*/15 * * * *' \\",
            "    --from as_of=occurrence.instant --input limit:=100 --misfire latest",
        ),
        _FOOT,
    )
)
@click.argument("schedule_id")
@click.option("--deployment", "deployment_id", metavar="ID", required=True, help="What to run.")
@definition
@talks
def create(talk: Talk, schedule_id: str, deployment_id: str, **options: Any) -> None:
    """Create a schedule."""
    given = params(**options)
    if "trigger" not in given:
        raise click.UsageError("one of --cron and --at is needed")
    shown(
        talk, talk.call(lambda app: app.create_schedule(schedule_id=schedule_id, deployment_id=deployment_id, **given))
    )


@schedules.command(
    epilog=epilog(
        examples(
            "scheduler-daemon schedules update nightly --cron '30 3 * * *'",
            "scheduler-daemon schedules update nightly --revision 4 --overlap parallel --max-active-runs 2",
        ),
        _FOOT,
    )
)
@click.argument("schedule_id")
@click.option("--revision", type=int, metavar="N", help="The revision you decided on; without it, the present one.")
@click.option("--deployment", "deployment_id", metavar="ID", help="What to run.")
@definition
@talks
def update(talk: Talk, schedule_id: str, revision: int | None, deployment_id: str | None, **options: Any) -> None:
    """Change what is given, for future admissions; the input is replaced whole."""
    given = params(**options)
    if deployment_id is not None:
        given["deployment_id"] = deployment_id
    if not given:
        raise click.UsageError("nothing to change was given")

    async def ask(app: App) -> dict[str, Any]:
        expected = revision if revision is not None else (await app.get_schedule(schedule_id))["revision"]
        return await app.update_schedule(schedule_id=schedule_id, expected_revision=expected, **given)

    shown(talk, talk.call(ask))


@schedules.command(
    epilog=epilog(examples("scheduler-daemon schedules pause nightly --note 'the move, until Friday'"), _FOOT)
)
@click.argument("schedule_id")
@click.option("--note", help="Why; shown by get.")
@talks
def pause(talk: Talk, schedule_id: str, note: str | None) -> None:
    """Stop admission; runs go on, and the paused span is not replayed."""
    shown(talk, talk.call(lambda app: app.pause_schedule(schedule_id, note=note)))


@schedules.command(epilog=epilog(examples("scheduler-daemon schedules resume nightly"), _FOOT))
@click.argument("schedule_id")
@click.option("--note", help="Why; shown by get.")
@talks
def resume(talk: Talk, schedule_id: str, note: str | None) -> None:
    """Admit again, from the next future instant on."""
    shown(talk, talk.call(lambda app: app.resume_schedule(schedule_id, note=note)))


@schedules.command(
    epilog=epilog(examples("scheduler-daemon schedules delete nightly --yes --note 'replaced by reports'"), _FOOT)
)
@click.argument("schedule_id")
@click.option("--note", help="Why; shown by get.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks
def delete(talk: Talk, schedule_id: str, note: str | None, *, yes: bool) -> None:
    """Delete a schedule; runs and history stay, the id is never free again."""
    if not yes:
        click.confirm(f"Delete {schedule_id} for good?", abort=True, err=True)
    shown(talk, talk.call(lambda app: app.delete_schedule(schedule_id, note=note)))


@schedules.command(
    epilog=epilog(
        examples("scheduler-daemon schedules unblock nightly --note 'looked at the run by hand, it did nothing'"), _FOOT
    )
)
@click.argument("schedule_id")
@click.option("--note", required=True, help="Who decided it, and why.")
@talks
def unblock(talk: Talk, schedule_id: str, note: str) -> None:
    """Take responsibility for a blocked schedule, and let it admit again."""
    shown(talk, talk.call(lambda app: app.unblock_schedule(schedule_id, note=note)))


def shown(talk: Talk, schedule: Mapping[str, Any]) -> None:
    """One schedule, with its warnings on stderr."""
    talk.show(schedule, lambda: _text(schedule))
    for warning in schedule.get("warnings") or ():
        click.echo(f"warning: {warning}", err=True)


def _text(schedule: Mapping[str, Any]) -> str:
    """What somebody looks for first stands first."""
    rows: list[tuple[str, Any]] = [("state", schedule["state"]), ("trigger", trigger_text(schedule["trigger"]))]
    rows += [("next", instant) for instant in schedule["next_instants"]]
    rows += [(name, value) for name, value in schedule.items() if name not in _HIDDEN]
    if schedule["candidate"] is not None:
        rows.append(("candidate", f"{schedule['candidate']['instant']}, waiting: {schedule['candidate']['waiting']}"))
    rows += [("run", f"{run['run_id']} {run['status']} of {run['instant']}") for run in schedule["active_runs"]]
    rows += [("diagnostic", f"{one['code']}: {one['message']}") for one in schedule["diagnostics"]]
    return table((schedule["schedule_id"], ""), rows)


def trigger_text(trigger: Mapping[str, Any]) -> str:
    """A trigger in one cell."""
    return f"{trigger['expression']} ({trigger['timezone']})" if trigger["kind"] == "cron" else f"once {trigger['at']}"
