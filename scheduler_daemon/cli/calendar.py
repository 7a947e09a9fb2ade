"""`scheduler-daemon next`: when would it run?

Owns: the words around the calendar's answer.  Must never know: how an instant is found.  Needs no daemon and no configuration.
"""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec

from scheduler_daemon import errors, limits
from scheduler_daemon.cli.exits import end, epilog, examples, listed
from scheduler_daemon.core import calendar
from scheduler_daemon.core.calendar import CalendarBroken, CronRefused
from scheduler_daemon.core.zones import zone
from scheduler_daemon.runtime.clock import SystemClock


@click.command(
    name="next",
    epilog=epilog(
        "Warnings go to stderr. A line is the local time in the zone, and the same instant in UTC.",
        examples(
            "scheduler-daemon next '0 9 * * 1-5' --timezone Europe/Berlin --count 5",
            "scheduler-daemon next '30 2 * * *' --timezone America/New_York --after 2027-03-13T00:00:00Z",
        ),
        listed((errors.EXIT_OK, errors.EXIT_REJECTED, errors.EXIT_USAGE)),
    ),
)
@click.argument("expression")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="IANA name of the time zone.")
@click.option("--count", type=click.IntRange(1, limits.NEXT_COUNT_MAX), default=5, show_default=True, help="How many.")
@click.option("--after", metavar="INSTANT", help="Begin later than this RFC 3339 time, instead of now.")
@click.option("--json", "as_json", is_flag=True, help="A list of RFC 3339 instants in UTC.")
def coming(expression: str, timezone: str, count: int, after: str | None, *, as_json: bool) -> None:
    """Show the next instants of a five-field cron EXPRESSION."""
    after_at = SystemClock().now().at if after is None else _instant(after)
    try:
        warnings = calendar.check_expression(expression, timezone, after_at)
        instants = calendar.upcoming(expression, timezone, after_at, count)
    except CronRefused as refused:
        end(f"{refused.field}: {refused.reason}", errors.EXIT_REJECTED)
    except CalendarBroken as broken:
        end(f"expression: {broken}", errors.EXIT_REJECTED)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        click.echo(msgspec.json.encode(instants).decode())
        return
    place = zone(timezone)
    for instant in instants:
        click.echo(
            f"{instant.astimezone(place).isoformat()}  {instant:%Y-%m-%dT%H:%M:%SZ}  {instant.astimezone(place):%a}"
        )


def _instant(text: str) -> datetime:
    try:
        at = msgspec.convert(text, datetime)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        pass
    raise click.BadParameter("needs a time with an offset, such as 2030-01-31T09:00:00+01:00", param_hint="--after")
