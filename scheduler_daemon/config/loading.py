"""Flags over environment over a file over defaults, and the combinations that cannot stand.

Owns: which source wins, what the effective configuration is, and the refusals that need more than one setting.
Must never know: how a flag or a file is read.

`load` looks at files that it names (a token must be readable now, not at the first call of the night) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from scheduler_daemon.config import files
from scheduler_daemon.config.files import FileSettings
from scheduler_daemon.config.settings import BY_NAME, SETTINGS, Config, Setting, read_token
from scheduler_daemon.errors import ConfigRefused

FLAG, ENVIRONMENT, FILE, SERVER_FILE, PLATFORM, DEFAULT = range(6)
"""Ranks of the sources, the strongest first.  PLATFORM is what systemd says in variables of its own."""

CLIENT_VARIABLES: Final = ("SCHEDULER_URL", "SCHEDULER_CA_FILE")
"""Variables of the commands that talk to a daemon."""

_OTHER_VARIABLES: Final = ("SCHEDULER_CONFIG", "SCHEDULER_ENABLE_SCHEDULER", *CLIENT_VARIABLES)
_CREDENTIALS: Final = {"token_file": "token", "server_token_file": "server-token"}


class _Given(msgspec.Struct, frozen=True):
    """One raw value with the strength of its source, the key it stands under, and that source in words."""

    rank: int
    key: str
    origin: str
    value: Any


def load(
    *, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, path: Path | None = None
) -> Config:
    """The effective configuration.  Raises `ConfigRefused`.

    `flags` are by setting name, None for those not given, and `enable_scheduler`.  `path` is the configuration file; without it
    `SCHEDULER_CONFIG` may name one.
    """
    flags, environ = flags or {}, environ or {}
    notices = tuple(_odd_variables(environ))
    file = _file(environ, path)
    if file is not None and file.enabled is False and not _enabled(flags, environ):
        reason = "scheduling is not enabled in this file: set it to true, or pass --enable-scheduler"
        raise ConfigRefused(reason, "server.scheduler.enabled")
    sources = _platform(environ) if file is None else {**_platform(environ), **_from_file(file)}
    sources |= _from_environment(environ) | _from_flags(flags)
    _choose_server(sources)
    values = {setting.name: _value(setting, sources.get(setting.name)) for setting in SETTINGS}
    origins = {setting.name: _origin(setting, sources) for setting in SETTINGS}
    if values["embedded"] is not None:
        values["server_url"] = None
        origins["server_url"] = "not used with embedded"
    values["store_root"] = values["store_root"].absolute()
    config = Config(**values, origins=origins, notices=notices)
    _check(config, sources)
    return config


# --- sources ----------------------------------------------------------------------------------------------------------


def _file(environ: Mapping[str, str], path: Path | None) -> FileSettings | None:
    named = path if path is not None else environ.get("SCHEDULER_CONFIG")
    return None if not named else files.read(Path(named))


def _enabled(flags: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    given = flags.get("enable_scheduler")
    return bool(given) or (
        given is None and environ.get("SCHEDULER_ENABLE_SCHEDULER", "").lower() in {"1", "true", "yes", "on"}
    )


def _from_flags(flags: Mapping[str, Any]) -> dict[str, _Given]:
    return {
        name: _Given(FLAG, BY_NAME[name].flag, f"flag {BY_NAME[name].flag}", value)
        for name, value in flags.items()
        if value is not None and name in BY_NAME
    }


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    """An empty variable counts as absent, as in a unit file that clears one."""
    return {
        setting.name: _Given(
            ENVIRONMENT, setting.variable, f"environment {setting.variable}", environ[setting.variable]
        )
        for setting in SETTINGS
        if environ.get(setting.variable)
    }


def _from_file(file: FileSettings) -> dict[str, _Given]:
    derived = {
        name: _Given(SERVER_FILE, key, f"file {file.path}: {key}", value) for name, (key, value) in file.derived.items()
    }
    given = {name: _Given(FILE, key, f"file {file.path}: {key}", value) for name, (key, value) in file.given.items()}
    return {**derived, **given}


def _platform(environ: Mapping[str, str]) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    if state := environ.get("STATE_DIRECTORY"):
        # With several directories systemd separates them by colons; the first one is ours.
        found["store_root"] = _Given(PLATFORM, "STATE_DIRECTORY", "systemd STATE_DIRECTORY", state.partition(":")[0])
    if credentials := environ.get("CREDENTIALS_DIRECTORY"):
        for name, credential in _CREDENTIALS.items():
            path = Path(credentials) / credential
            if path.is_file():
                found[name] = _Given(PLATFORM, "CREDENTIALS_DIRECTORY", f"systemd credential {credential}", str(path))
    return found


def _odd_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that look like ours and are not: said, not refused, since an orchestrator sets some by its own rules."""
    known = [*(setting.variable for setting in SETTINGS), *_OTHER_VARIABLES]
    for name in sorted(environ):
        if not name.startswith("SCHEDULER_") or name in known:
            continue
        bare = name.removeprefix("SCHEDULER_").lower()
        if bare in files.SECRETS:
            reason = f"a secret is never given in the environment: put it into a file and name that in {name}_FILE"
            raise ConfigRefused(reason, name)
        yield f"the variable {name} is not a setting{files.nearest(name, known, alike=0.85)}"


# --- decisions --------------------------------------------------------------------------------------------------------


def _choose_server(sources: dict[str, _Given]) -> None:
    """A workflow server is reached or brought along, not both; the stronger source decides which."""
    embedded, url = sources.get("embedded"), sources.get("server_url")
    if embedded is None or url is None:
        return
    if embedded.rank == url.rank:
        raise ConfigRefused(
            f"cannot be given together with {url.key}: a server is reached, or brought along", embedded.key
        )
    del sources["server_url" if embedded.rank < url.rank else "embedded"]


def _value(setting: Setting, given: _Given | None) -> Any:
    if given is None:
        return setting.default
    try:
        return setting.read(given.value)
    except ValueError as error:
        raise ConfigRefused(str(error), given.key) from None


def _origin(setting: Setting, sources: Mapping[str, _Given]) -> str:
    given = sources.get(setting.name)
    return "default" if given is None else given.origin


def _check(config: Config, sources: Mapping[str, _Given]) -> None:
    def refuse(name: str, reason: str) -> ConfigRefused:
        return ConfigRefused(reason, sources[name].key if name in sources else name)

    if config.listen is None and config.socket_path is None:
        raise refuse("listen", "with none a socket_path is needed, or nobody could reach the daemon")
    if config.listen is not None and not config.listen.is_loopback and config.token_file is None:
        raise refuse("listen", f"{config.listen} can be reached from other machines: a token_file is needed")
    for name, path in (("token_file", config.token_file), ("server_token_file", config.server_token_file)):
        if path is not None:
            read_token(path, sources[name].key)
    if config.embedded is not None and not config.embedded.is_file():
        raise refuse("embedded", f"{config.embedded}: no such file")
    if config.server_ca_file is not None and config.server_url is not None:
        if not config.server_url.startswith("https:"):
            raise refuse("server_ca_file", f"needs a server URL with https://, not {config.server_url}")
        if not config.server_ca_file.is_file():
            raise refuse("server_ca_file", f"{config.server_ca_file}: no such file")
