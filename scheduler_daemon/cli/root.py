"""The entry point, and which commands there are.

Owns: the list of commands.  Must never know: what they do; a command's module is imported when it is called for, so that
`scheduler-daemon next` does not pay for a web server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from scheduler_daemon import __version__, errors
from scheduler_daemon.cli.exits import epilog, examples, listed

# ruff: noqa: PLC0415  importing late is the purpose of these functions


def _serve() -> click.Command:
    from scheduler_daemon.cli.serve import serve

    return serve


def _check() -> click.Command:
    from scheduler_daemon.cli.check import check

    return check


def _next() -> click.Command:
    from scheduler_daemon.cli.calendar import coming

    return coming


def _schedules() -> click.Command:
    from scheduler_daemon.cli.schedules import schedules

    return schedules


def _occurrences() -> click.Command:
    from scheduler_daemon.cli.runs import occurrences

    return occurrences


def _runs() -> click.Command:
    from scheduler_daemon.cli.runs import runs

    return runs


def _status() -> click.Command:
    from scheduler_daemon.cli.runs import status

    return status


def _verify() -> click.Command:
    from scheduler_daemon.cli.store import verify

    return verify


def _backup() -> click.Command:
    from scheduler_daemon.cli.store import backup

    return backup


def _restore() -> click.Command:
    from scheduler_daemon.cli.store import restore

    return restore


_COMMANDS: dict[str, Callable[[], click.Command]] = {
    "serve": _serve,
    "check": _check,
    "next": _next,
    "status": _status,
    "schedules": _schedules,
    "occurrences": _occurrences,
    "runs": _runs,
    "verify": _verify,
    "backup": _backup,
    "restore": _restore,
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        load = _COMMANDS.get(cmd_name)
        return None if load is None else load()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=epilog(
        examples(
            "scheduler-daemon serve --embedded deployments.toml --store-root store",
            "scheduler-daemon next '0 9 * * 1-5' --timezone Europe/Berlin --count 5",
            "scheduler-daemon schedules create nightly --deployment report.default --cron '0 3 * * *'",
            "scheduler-daemon occurrences nightly",
        ),
        "\b\nCompletion, here for bash (also zsh, fish):\n"
        '  eval "$(_SCHEDULER_DAEMON_COMPLETE=bash_source scheduler-daemon)"',
        listed(errors.EXIT_MEANINGS),
    ),
)
@click.version_option(__version__, prog_name="scheduler-daemon")
def group() -> None:
    """Start the runs of a workflow server on time: cron and one-shot schedules, kept durably."""


def main(args: list[str] | None = None) -> Any:
    """Run the command line; ends the process with one of the codes in `errors`."""
    return group.main(args, prog_name="scheduler-daemon")
