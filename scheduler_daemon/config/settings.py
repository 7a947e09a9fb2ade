"""The settings as one table, and the record of their effective values.

Owns: names, defaults, help texts and what a value may look like.  Must never know: where values come from.

Whatever the source, a value is read by the same function: a flag and an environment variable bring text, a file brings text or the
JSON type.  A reader raises `ValueError` whose text says what would be right, without naming the setting.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from scheduler_daemon import limits
from scheduler_daemon.errors import ConfigRefused

DEFAULT_SERVER_URL: Final = "http://127.0.0.1:8765/rpc"
_PORT_MAX: Final = 65_535
_SOCKET_BYTES_MAX: Final = 107
"""What fits into a `sockaddr_un`."""


class Address(msgspec.Struct, frozen=True):
    """A TCP address to listen on; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or ip_address(self.host).is_loopback


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings.  Paths are absolute.  `origins` says of each where it is from, `notices` what looks odd.

    Either `server_url` or `embedded` is None: the workflow server is reached, or brought along.
    """

    store_root: Path
    listen: Address | None
    socket_path: Path | None
    token_file: Path | None
    allowed_hosts: tuple[str, ...]
    server_url: str | None
    server_token_file: Path | None
    server_ca_file: Path | None
    embedded: Path | None
    gateway: bool
    poll_interval_s: float
    max_concurrent_runs: int
    drain_grace_s: float
    lateness_s: float
    preflight_ttl_s: float
    reconcile_grace_s: float
    retention_rows: int
    retention_days: int
    retention_bytes: int
    log_format: Literal["json", "console"]
    log_level: Literal["debug", "info", "warning", "error"]
    allow_network_fs: bool
    accept_restore: bool
    origins: dict[str, str] = {}
    notices: tuple[str, ...] = ()

    def token(self) -> str | None:
        """The bearer token that callers must show, read from its file now; None when none is demanded."""
        return None if self.token_file is None else read_token(self.token_file, "token_file")

    def nesting(self, server_root: str | None) -> str | None:
        """Why the store must not lie where it does beside the workflow server's; None when it may.

        It may be the server's own root, or lie elsewhere; in any other folder of the server's it would be taken for its data.
        """
        if server_root is None or not Path(server_root).exists():
            return None
        ours, theirs = self.store_root.resolve(), Path(server_root).resolve()
        if ours != theirs and ours.is_relative_to(theirs):
            return f"the store root {ours} lies inside the workflow server's store {theirs}"
        return None


def read_token(path: Path, key: str) -> str:
    """The token in a file, whitespace around it removed.  Raises `ConfigRefused` if there is none, or everybody can read it."""
    try:
        with path.open("rb") as file:
            raw, mode = file.read(limits.TOKEN_BYTES_MAX + 1), path.stat().st_mode
    except OSError as error:
        raise ConfigRefused(f"{path}: {error.strerror}", key) from None
    if mode & stat.S_IRWXO:
        raise ConfigRefused(f"{path} is open to every user of this machine: chmod o-rwx", key)
    token = raw.strip().decode("ascii", "replace")
    if not token or len(raw) > limits.TOKEN_BYTES_MAX or not (token.isascii() and token.isprintable()):
        raise ConfigRefused(
            f"{path} must hold one line of printable ASCII, at most {limits.TOKEN_BYTES_MAX} bytes", key
        )
    return token


# --- readers ----------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("must be a text that is not empty")
    return value.strip()


def _path(value: Any) -> Path:
    return Path(_text(value)).absolute()


def _socket_path(value: Any) -> Path:
    path = _path(value)
    if len(str(path).encode()) > _SOCKET_BYTES_MAX:
        raise ValueError(f"the path of a unix socket holds at most {_SOCKET_BYTES_MAX} bytes")
    return path


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    match value.strip().lower() if isinstance(value, str) else None:
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
        case _:
            raise ValueError("must be true or false")


def _duration(bounds: tuple[float, float]) -> Callable[[Any], float]:
    least, most = bounds

    def read(value: Any) -> float:
        number = _number(value)
        if not least <= number <= most:  # nan compares false, so it is refused here as well
            raise ValueError(f"must be a number of seconds between {least:g} and {most:g}")
        return number

    return read


def _whole(bounds: tuple[int, int]) -> Callable[[Any], int]:
    least, most = bounds

    def read(value: Any) -> int:
        number = _number(value)
        if not (math.isfinite(number) and number.is_integer() and least <= number <= most):
            raise ValueError(f"must be a whole number between {least} and {most}")
        return int(number)

    return read


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return read


def _listen(value: Any) -> Address | None:
    text = _text(value)
    if text == "none":
        return None
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.netloc != text or "@" in text:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8766 or [::1]:8766, or none")
    if host != "localhost":
        try:
            ip_address(host)
        except ValueError:
            raise ValueError(f"{host!r} is neither an IP address nor localhost") from None
    return Address(host, port)


def _hosts(value: Any) -> tuple[str, ...]:
    given = cast("list[Any]", value) if isinstance(value, list) else str(value).split(",")
    names = tuple(str(name).strip().lower() for name in given)
    if not all(name and name.isascii() and name.replace("-", "").replace(".", "").isalnum() for name in names):
        raise ValueError("must be a list of host names, without ports and without *")
    return names


def _server_url(value: Any) -> str:
    text = _text(value)
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https", "http+unix"} or not parts.netloc:
        raise ValueError("must be a URL that begins with http://, https:// or http+unix://")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user or password: URLs end in logs; name a file with server_token_file")
    if parts.query or parts.fragment:
        raise ValueError("must end with its path")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"the port must lie between 0 and {_PORT_MAX}") from None
    return text


# --- the table --------------------------------------------------------------------------------------------------------


class Setting(msgspec.Struct, frozen=True):
    """One setting: `read` makes its value of what a source gives, `metavar` is None for a flag without a value."""

    name: str
    read: Callable[[Any], Any]
    default: Any
    help: str
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--server" if self.name == "server_url" else f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"SCHEDULER_{self.name.upper()}"


def _switch(name: str, text: str) -> Setting:
    return Setting(name, _flag, default=False, help=text)


SETTINGS: Final = (
    Setting("store_root", _path, Path(".wf_store"), "Folder of the schedules; may be the workflow server's own.", "FOLDER"),
    Setting("listen", _listen, Address("127.0.0.1", 8766), "TCP address to serve on, or none.", "HOST:PORT"),
    Setting("socket_path", _socket_path, None, "Unix socket to serve on, in a folder of its own.", "FILE"),
    Setting("token_file", _path, None, "File with the bearer token that callers must show.", "FILE"),
    Setting("allowed_hosts", _hosts, (), "Names that callers may use for this machine, beside localhost.", "NAMES"),
    Setting("server_url", _server_url, DEFAULT_SERVER_URL, "The workflow server.", "URL"),
    Setting("server_token_file", _path, None, "File with the bearer token for the workflow server.", "FILE"),
    Setting("server_ca_file", _path, None, "CA certificates (PEM) that the workflow server's is checked with.", "FILE"),
    Setting("embedded", _path, None, "Bring a workflow server along, with the deployments of this file.", "FILE"),
    _switch("gateway", "Pass other workflow.* methods on to the workflow server."),
    Setting("poll_interval_s", _duration(limits.POLL_S), 1.0, "Longest pause between two looks.", "SECONDS"),
    Setting("max_concurrent_runs", _whole(limits.RUNS_AT_ONCE), 4, "Dispatched runs that execute at once.", "COUNT"),
    Setting("drain_grace_s", _duration(limits.DRAIN_S), 30.0, "How long open runs may still take at a stop.", "SECONDS"),
    Setting("lateness_s", _duration(limits.LATENESS_S), 60.0, "How late a start may be.", "SECONDS"),
    Setting("preflight_ttl_s", _duration(limits.PREFLIGHT_TTL_S), 30.0, "How long a preflight answer holds.", "SECONDS"),
    Setting("reconcile_grace_s", _duration(limits.RECONCILE_GRACE_S), 30.0,
            "How long the outcome of a lost call is looked for, at a server without idempotent-start.", "SECONDS"),
    Setting("retention_rows", _whole(limits.RETENTION_ROWS), 1000, "Rows of history kept for each schedule.", "COUNT"),
    Setting("retention_days", _whole(limits.RETENTION_DAYS), 90, "Age up to which history is kept.", "DAYS"),
    Setting("retention_bytes", _whole(limits.RETENTION_BYTES), 64 << 20, "History kept for each schedule.", "BYTES"),
    Setting("log_format", _one_of("json", "console"), "json", "How log records look: json or console.", "FORMAT"),
    Setting("log_level", _one_of("debug", "info", "warning", "error"), "info",
            "Least important records that are written.", "LEVEL"),
    _switch("allow_network_fs", "Accept a store on a network filesystem, whose locks may lie."),
    _switch("accept_restore", "Go on with a store that was restored from a backup."),
)  # fmt: skip
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
