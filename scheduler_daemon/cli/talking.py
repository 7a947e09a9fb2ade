"""Talking to a running daemon: how it is reached, how a call ends, how an answer is shown.

Owns: the options that say where the daemon is, and the way from an ending of a call to an exit code.  Must never know: methods.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from rpc_client import AmbiguousOutcome, App, RpcError, Unavailable
from scheduler_daemon import errors
from scheduler_daemon.cli.exits import end
from scheduler_daemon.cli.options import no_secrets
from scheduler_daemon.cli.progress import progress
from scheduler_daemon.cli.tables import printable

EXITS = (errors.EXIT_OK, errors.EXIT_REJECTED, errors.EXIT_USAGE, errors.EXIT_AMBIGUOUS, errors.EXIT_UNAVAILABLE)
"""How a command that talks can end."""

URL = "http://127.0.0.1:8766/rpc"
_DETAILS = ("hint", "revision", "diagnostics", "violations", "errors")

T = TypeVar("T")


class Talk(msgspec.Struct, frozen=True):
    """One conversation with a daemon: `call` makes it, `show` says what came of it."""

    url: str
    socket_path: str | None
    token_file: Path | None
    ca_file: str | None
    as_json: bool

    def call(self, ask: Callable[[App], Coroutine[Any, Any, T]]) -> T:
        """The result; every other ending ends the command with the exit code that says what to do next."""
        try:
            with progress("waiting for the daemon"):
                return asyncio.run(_answer(self, ask))
        except RpcError as error:
            _end(error, self)
        except KeyboardInterrupt:
            end("interrupted: the outcome is not known, look first", errors.EXIT_AMBIGUOUS)
        except (ValueError, OSError) as error:
            raise click.UsageError(str(error)) from None

    def show(self, result: Any, text: Callable[[], str]) -> None:
        """The answer as JSON when that was asked for, else as text for people."""
        if self.as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
        else:
            click.echo(text())


def talks(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where the daemon is, and a `Talk` as its first argument."""

    @functools.wraps(command)
    def with_talk(
        url: str, socket_path: str | None, token_file: Path | None, ca_file: str | None, *, as_json: bool, **rest: Any
    ) -> None:
        command(Talk(url, socket_path, token_file, ca_file, as_json), **rest)

    options = (
        click.option("--url", metavar="URL", default=URL, envvar="SCHEDULER_URL", help=f"The daemon.  [SCHEDULER_URL; default {URL}]"),
        click.option(
            "--socket-path", metavar="FILE", envvar="SCHEDULER_SOCKET_PATH", help="Its unix socket.  [SCHEDULER_SOCKET_PATH]"
        ),
        click.option(
            "--token-file", metavar="FILE", type=click.Path(path_type=Path), envvar="SCHEDULER_TOKEN_FILE",
            help="File with the bearer token.  [SCHEDULER_TOKEN_FILE]",
        ),
        click.option("--ca-file", metavar="FILE", envvar="SCHEDULER_CA_FILE", help="CA of https.  [SCHEDULER_CA_FILE]"),
        click.option("--json", "as_json", is_flag=True, help="The daemon's answer as JSON."),
    )  # fmt: skip
    wrapped: Callable[..., None] = with_talk
    for option in reversed(options):
        wrapped = option(wrapped)
    return no_secrets(wrapped)


def told(remark: str) -> None:
    """Something beside the answer, which scripts do not read."""
    click.echo(f"scheduler-daemon: {remark}", err=True)


async def _answer(talk: Talk, ask: Callable[[App], Coroutine[Any, Any, T]]) -> T:
    async with App(talk.url, socket_path=talk.socket_path, token_file=talk.token_file, ca_file=talk.ca_file) as app:
        return await ask(app)


def _end(error: RpcError, talk: Talk) -> NoReturn:
    lines = [printable(error)]
    if error.code == "NotReached":
        where = talk.socket_path or talk.url
        lines.append(
            f"  hint: is the daemon running, and is it at {printable(where)}? --url or --socket-path say where it is"
        )
    lines += [f"  {name}: {printable(error.data[name])}" for name in _DETAILS if error.data.get(name)]
    match error:
        case AmbiguousOutcome():
            code = errors.EXIT_AMBIGUOUS
        case Unavailable():
            code = errors.EXIT_UNAVAILABLE
        case _:
            code = errors.EXIT_REJECTED
    end("\n".join(lines), code)
