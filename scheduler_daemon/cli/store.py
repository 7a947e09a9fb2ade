"""`scheduler-daemon verify`, `backup`, `restore`: a store from outside, whether a daemon runs on it or not.

Owns: the words around what `store.tools` does.  Must never know: file formats.  None of them talks to a daemon.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from scheduler_daemon import errors
from scheduler_daemon.cli.exits import end, epilog, examples, listed
from scheduler_daemon.cli.progress import progress
from scheduler_daemon.store import tools
from scheduler_daemon.store.errors import StorageFailed, StorageFull, StoreUnusable

_CODES = (errors.EXIT_OK, errors.EXIT_REJECTED, errors.EXIT_USAGE)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_THERE = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(
    epilog=epilog(
        "Reads only. A line is a bad record: file, byte offset, schedule if known, and what is wrong with it.",
        examples("scheduler-daemon verify /var/lib/scheduler-daemon", "scheduler-daemon verify backup --json"),
        listed(_CODES),
    )
)
@click.argument("store", type=_THERE)
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
def verify(store: Path, *, as_json: bool) -> None:
    """Read a whole STORE root, and explain every record that is not as it should be."""
    with progress("reading the store"):
        report = tools.verify(store)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        for problem in report.problems:
            click.echo(f"{problem.file}:{problem.offset}: {problem.schedule_id or '-'}: {problem.reason}")
        for note in report.notes:
            click.echo(f"note: {note.file}:{note.offset}: {note.reason}", err=True)
        click.echo(
            f"store {report.store_id or '?'}: {report.schedules} schedules, {report.records} records, {report.rows} rows,"
            f" {report.files} files, {len(report.problems)} problems"
        )
    if report.problems:
        raise SystemExit(errors.EXIT_REJECTED)


@click.command(
    epilog=epilog(
        "Consistent and durable when it returns; a daemon that is running on STORE is not disturbed.",
        examples("scheduler-daemon backup /var/lib/scheduler-daemon /backup/scheduler-2030-01-31"),
        listed(_CODES),
    )
)
@click.argument("store", type=_THERE)
@click.argument("destination", type=_FOLDER)
def backup(store: Path, destination: Path) -> None:
    """Copy a STORE root, live or not, into DESTINATION, which must be empty or not exist."""
    try:
        with progress("copying the store"):
            copied = tools.backup(store, destination)
    except (StoreUnusable, StorageFull, StorageFailed) as failed:
        end(str(failed), errors.EXIT_REJECTED)
    click.echo(f"copied {copied.files} files, {copied.size} bytes, to {destination}")


@click.command(
    epilog=epilog(
        "A daemon starts on it only with `serve --accept-restore`: it then consumes the span since the copy as missed, and gives up"
        " what may have been sent since. Stop the daemon that the backup was taken from first.",
        examples("scheduler-daemon restore /backup/scheduler-2030-01-31 /var/lib/scheduler-daemon"),
        listed(_CODES),
    )
)
@click.argument("source", type=_THERE)
@click.argument("store", type=_FOLDER)
@click.option("--even-if-damaged", is_flag=True, help="Restore a backup in which `verify` finds problems.")
def restore(source: Path, store: Path, *, even_if_damaged: bool) -> None:
    """Put the backup SOURCE where a STORE root is to be."""
    try:
        with progress("copying the backup"):
            copied = tools.restore(source, store, even_if_damaged=even_if_damaged)
    except (StoreUnusable, StorageFull, StorageFailed) as failed:
        end(str(failed), errors.EXIT_REJECTED)
    click.echo(
        f"restored {copied.files} files, {copied.size} bytes; start it with: scheduler-daemon serve --accept-restore"
    )
