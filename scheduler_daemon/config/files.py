"""Configuration files: the daemon's own, and the workflow server's with what it says about scheduling.

Owns: reading JSON and TOML strictly, telling the two kinds of file apart, and the unknown keys.  Must never know: the environment, flags,
which value wins.

A file with a table `server` is the workflow server's: it holds much that is none of our business and is not judged, but its
`server.scheduler` is ours, and judged.  Every other file is the daemon's own, and each key in it must be a setting.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from scheduler_daemon import limits
from scheduler_daemon.config.settings import BY_NAME
from scheduler_daemon.errors import ConfigRefused

SECRETS: Final = frozenset({"token", "server_token", "password"})
_PORT: Final = 8765
_PATH: Final = "/rpc"
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104  where a server listens, not we

Table = dict[str, Any]


class FileSettings(msgspec.Struct, frozen=True):
    """What a file says: `given` settings by name, each with the key it stands under; `derived` ones give way to them.

    `enabled` is None in a file of the daemon's own, where being there is the opt-in.
    """

    path: Path
    given: dict[str, tuple[str, Any]] = {}
    derived: dict[str, tuple[str, Any]] = {}
    enabled: bool | None = None


def read(path: Path) -> FileSettings:
    """The settings in a file.  Raises `ConfigRefused`."""
    document = _parsed(path)
    if "server" in document:
        return _of_server(path, _table(document["server"], "server"), document)
    refuse_unknown(document, BY_NAME, "")
    return FileSettings(path, {name: (name, value) for name, value in document.items()})


def refuse_unknown(names: Iterable[str], known: Iterable[str], prefix: str) -> None:
    """Refuse the first name that is not known, and say which known one is nearest."""
    known = sorted(known)
    for name in names:
        if name in SECRETS:
            raise ConfigRefused(
                f"a secret is never written here: put it into a file and name that with {name}_file", prefix + name
            )
        if name not in known:
            raise ConfigRefused(f"is not a setting{nearest(name, known)}", prefix + name)


def nearest(name: str, known: Iterable[str], *, alike: float = 0.6) -> str:
    """The nearest known name as the end of a sentence, or nothing; `alike` is how near, from 0 to 1."""
    near = difflib.get_close_matches(name.replace("-", "_"), list(known), n=1, cutoff=alike)
    return f"; did you mean {near[0]}?" if near else ""


# --- bytes to a document ----------------------------------------------------------------------------------------------


def _parsed(path: Path) -> Table:
    try:
        with path.open("rb") as file:
            raw = file.read(limits.CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigRefused(f"{path}: {error.strerror}", "config") from None
    if len(raw) > limits.CONFIG_BYTES_MAX:
        raise ConfigRefused(f"{path} is larger than {limits.CONFIG_BYTES_MAX} bytes", "config")
    try:
        text = raw.decode()
        document = _json(text) if _is_json(path, text) else tomllib.loads(text)
    except RecursionError:
        raise ConfigRefused(f"{path} is nested too deeply", "config") from None
    except ValueError as error:  # of the decoders and of _json alike
        raise ConfigRefused(f"{path}: {error}", "config") from None
    return _table(document, "config")


def _is_json(path: Path, text: str) -> bool:
    return path.suffix == ".json" or (path.suffix != ".toml" and text.lstrip().startswith("{"))


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once, parse_constant=_not_a_number)


def _once(pairs: list[tuple[str, Any]]) -> Table:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return table


def _not_a_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _table(value: Any, key: str) -> Table:
    if not isinstance(value, dict):
        raise ConfigRefused("must be a table (an object)", key)
    return cast("Table", value)


# --- the workflow server's file ---------------------------------------------------------------------------------------


def _of_server(path: Path, server: Table, document: Table) -> FileSettings:
    _refuse_mcp(document, server)
    scheduler = _table(server.get("scheduler", {}), "server.scheduler")
    refuse_unknown(scheduler, {*BY_NAME, "enabled"}, "server.scheduler.")
    enabled = scheduler.get("enabled", False)
    if not isinstance(enabled, bool):
        raise ConfigRefused("must be true or false", "server.scheduler.enabled")
    given = {name: (f"server.scheduler.{name}", value) for name, value in scheduler.items() if name != "enabled"}
    return FileSettings(path, given, dict(_derived(server)), enabled)


def _derived(server: Table) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Where the server's store and address are, in its own words."""
    store = server.get("store")
    if isinstance(store, dict) and "root" in store:
        yield "store_root", ("server.store.root", cast("Table", store)["root"])
    for key, transport in _named(server.get("transports"), "server.transports"):
        kind = transport.get("kind", transport.get("type", key.rpartition(".")[2]))
        if kind == "rpc_http" and transport.get("enabled", True) is not False:
            yield "server_url", (key, _url(transport))
            return


def _named(value: Any, key: str) -> Iterator[tuple[str, Table]]:
    """The tables of a list or of a table of tables, each with its key."""
    found: Mapping[Any, Any] = {}
    if isinstance(value, list):
        found = dict(enumerate(cast("list[Any]", value)))
    elif isinstance(value, dict):
        found = cast("Table", value)
    for name, inner in found.items():
        if isinstance(inner, dict):
            yield f"{key}[{name}]" if isinstance(name, int) else f"{key}.{name}", cast("Table", inner)


def _url(transport: Table) -> str:
    host = str(transport.get("host", ""))
    host = _EVERYWHERE.get(host, host)
    path = str(transport.get("path", _PATH))
    return f"http://{f'[{host}]' if ':' in host else host}:{transport.get('port', _PORT)}/{path.removeprefix('/')}"


def _refuse_mcp(document: Table, server: Table) -> None:
    """Such a source opens connections of its own for every run; scheduling over them is not supported yet."""
    for place, sources in (("sources", document.get("sources")), ("server.sources", server.get("sources"))):
        for key, source in _named(sources, place):
            if source.get("kind") == "mcp":
                raise ConfigRefused("a server with a source of kind mcp cannot be scheduled for now", key)
