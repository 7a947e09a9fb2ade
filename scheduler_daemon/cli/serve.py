"""`scheduler-daemon serve`: the daemon itself.

Owns: its command line.  Must never know: how the daemon is put together; `wiring` does that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from scheduler_daemon import errors
from scheduler_daemon.cli.exits import epilog, examples, listed
from scheduler_daemon.cli.options import effective, settings

_EXITS = (
    errors.EXIT_OK,
    errors.EXIT_STORAGE_FAILED,
    errors.EXIT_HELD,
    errors.EXIT_OWNERSHIP_LOST,
    errors.EXIT_UNUSABLE,
)


@click.command(
    epilog=epilog(
        "Flags win over the environment, the environment wins over the file. `scheduler-daemon check` with the same flags"
        " shows what comes of it. SIGTERM and SIGINT stop in order; a second one cuts the drain short, equally safely.",
        examples(
            "scheduler-daemon serve --embedded deployments.toml --store-root store",
            "scheduler-daemon serve --server http://127.0.0.1:8765/rpc --store-root /var/lib/scheduler-daemon",
            "scheduler-daemon serve --config server.json --enable-scheduler",
        ),
        listed(_EXITS),
    )
)
@settings
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run the daemon until it is told to stop."""
    config = effective(config_file, flags)
    for notice in config.notices:
        click.echo(f"scheduler-daemon: {notice}", err=True)
    # A refused setting, or a look at the help, should not have to wait until the whole daemon is loaded.
    from scheduler_daemon import wiring  # noqa: PLC0415

    sys.exit(wiring.serve(config))
