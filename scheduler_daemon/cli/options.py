"""The settings as options of a command.

Owns: the flags, made from the table of settings so that no setting lacks one, and the refusal of secrets on the command line.
Must never know: what a setting means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from scheduler_daemon.cli.exits import end
from scheduler_daemon.config import SETTINGS, Config, Setting, load
from scheduler_daemon.errors import EXIT_UNUSABLE, ConfigRefused

C = TypeVar("C", bound=Callable[..., Any])


def settings(command: C) -> C:
    """Give a command `--config`, `--enable-scheduler` and a flag for each setting."""
    for setting in reversed(SETTINGS):
        command = _option(setting)(command)
    command = click.option(
        "--enable-scheduler",
        is_flag=True,
        default=None,
        help="Schedule although the workflow server's file does not say so.",
    )(command)
    command = click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Settings in JSON or TOML, or the workflow server's own file.  [SCHEDULER_CONFIG]",
    )(command)
    return no_secrets(command)


def no_secrets(command: C) -> C:
    """Refuse what would put a secret into the list of processes, and say where it belongs."""
    for flag, instead in (("--token", "--token-file"), ("--server-token", "--server-token-file")):
        command = click.option(flag, hidden=True, expose_value=False, callback=_secret(flag, instead))(command)
    return command


def effective(config_file: Path | None, flags: Mapping[str, Any]) -> Config:
    """The configuration that these flags, the environment and the file make; refusals end the command."""
    try:
        return load(flags=flags, environ=os.environ, path=config_file)
    except ConfigRefused as refusal:
        end(str(refusal), EXIT_UNUSABLE)


def _option(setting: Setting) -> Callable[[C], C]:
    default = "" if setting.default in {None, ()} or setting.metavar is None else f"; default {_shown(setting.default)}"
    text = f"{setting.help}  [{setting.variable}{default}]"
    if setting.metavar is None:
        return click.option(f"{setting.flag}/--no-{setting.flag[2:]}", setting.name, default=None, help=text)
    return click.option(setting.flag, setting.name, metavar=setting.metavar, help=text)


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def _secret(flag: str, instead: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(_context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            reason = (
                f"{flag}: everybody on this machine can read command lines; put the token into a file and use {instead}"
            )
            end(reason, EXIT_UNUSABLE)

    return refuse
