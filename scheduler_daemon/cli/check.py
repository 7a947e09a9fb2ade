"""`scheduler-daemon check`: what would `serve` do with these settings, and what does the workflow server say?

Owns: the report.  Must never know: how a setting is found or a server judged; the daemon's own code does both, so that the report cannot
promise what the daemon then refuses.  Nothing is written, and the store is not opened: it may be in use.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from rpc_client.transport import Transport
from rpc_client.workflow import WorkflowClient
from scheduler_daemon import errors
from scheduler_daemon.cli.exits import end, epilog, examples, listed
from scheduler_daemon.cli.options import effective, settings
from scheduler_daemon.cli.progress import progress
from scheduler_daemon.cli.tables import printable, table
from scheduler_daemon.config import SETTINGS, Config
from scheduler_daemon.core.commands import Probe, ServerMissed, ServerSeen
from scheduler_daemon.embedded import deployments
from scheduler_daemon.runtime.questions import Questions


class Verdict(msgspec.Struct, frozen=True):
    """What became of the question to the server: facts for people, and the exit code."""

    facts: dict[str, str]
    exit_code: int


@click.command(
    epilog=epilog(
        examples(
            "scheduler-daemon check --config scheduler.toml",
            "SCHEDULER_LISTEN=127.0.0.1:9000 scheduler-daemon check --server http://127.0.0.1:8765/rpc --json",
        ),
        listed((errors.EXIT_OK, errors.EXIT_UNAVAILABLE, errors.EXIT_UNUSABLE)),
    )
)
@settings
@click.option("--offline", is_flag=True, help="Do not ask the workflow server.")
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
def check(config_file: Path | None, *, offline: bool, as_json: bool, **flags: Any) -> None:
    """Show every effective setting with its origin, and ask the workflow server."""
    config = effective(config_file, flags)
    verdict = Verdict({"asked": "no"}, errors.EXIT_OK) if offline else _verdict(config)
    click.echo(_as_json(config, verdict) if as_json else _for_people(config, verdict))
    for notice in config.notices:
        click.echo(f"scheduler-daemon: {notice}", err=True)
    sys.exit(verdict.exit_code)


def _verdict(config: Config) -> Verdict:
    if config.embedded is not None:
        return _embedded(config.embedded)
    with progress("waiting for the workflow server"):
        return asyncio.run(_ask(config, config.server_url or ""))


def _embedded(file: Path) -> Verdict:
    try:
        found = deployments.load(file)
    except deployments.DeploymentsInvalid as invalid:
        end(str(invalid), errors.EXIT_UNUSABLE)
    return Verdict({"embedded": str(file), "deployments": ", ".join(sorted(found))}, errors.EXIT_OK)


async def _ask(config: Config, url: str) -> Verdict:
    """The daemon's own first contact, with nothing behind it."""
    ca_file = None if config.server_ca_file is None else str(config.server_ca_file)
    try:
        transport = Transport(url, token_file=config.server_token_file, ca_file=ca_file)
    except (ValueError, OSError) as error:
        end(f"{url}: {error}", errors.EXIT_UNUSABLE)
    async with transport:
        questions = Questions(WorkflowClient(transport), url, config.nesting)
        seen = (await questions.probe(Probe(seq=0, first_contact=True)))[0]
    match seen:
        case ServerSeen():
            return _seen(url, seen)
        case ServerMissed():
            return Verdict({"url": url, "answers": f"no: {seen.reason}"}, errors.EXIT_UNAVAILABLE)
        case _:
            raise AssertionError(f"a probe ends with {type(seen).__name__}")


def _seen(url: str, seen: ServerSeen) -> Verdict:
    facts = {
        "url": url,
        "answers": "yes",
        "store_root": seen.facts.store_root or "not told",
        "instance_id": seen.facts.instance_id or "not told",
        "features": ", ".join(seen.facts.features) or "none",
        "usable": "yes" if seen.refusal is None else f"no: {seen.refusal}",
    }
    return Verdict(facts, errors.EXIT_OK if seen.refusal is None else errors.EXIT_UNUSABLE)


def _for_people(config: Config, verdict: Verdict) -> str:
    values = [
        (setting.name, _shown(getattr(config, setting.name)), config.origins[setting.name]) for setting in SETTINGS
    ]
    server = [(name, value) for name, value in verdict.facts.items()]
    return f"{table(('setting', 'value', 'origin'), values)}\n\n{table(('workflow server', ''), server)}"


def _as_json(config: Config, verdict: Verdict) -> str:
    values = {
        setting.name: {"value": _plain(getattr(config, setting.name)), "origin": config.origins[setting.name]}
        for setting in SETTINGS
    }
    report = {"settings": values, "server": verdict.facts, "notices": config.notices}
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode()


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else _shown(value)


def _shown(value: Any) -> str:
    match value:
        case float():
            return f"{value:g}"
        case tuple():
            return ", ".join(cast("tuple[str, ...]", value)) or "-"
        case _:
            return printable(value)
