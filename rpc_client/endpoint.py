"""Where a server is and how this side shows who it is: URL or unix socket, CA, bearer token.

Owns: the only URLs that are accepted, the reading of the token file, the TLS context.
Must never know: requests, answers, the HTTP library.

Invariants
- Credentials never travel in a URL: userinfo is refused, because URLs end in logs, in records and in process lists.
- A token file is read off the event loop, once, and again after the server has refused the token: a rotated token is
  picked up by the next call without a restart and without a clock.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

DEFAULT_PATH = "/rpc"
TokenSource: TypeAlias = Callable[[], str]
"""Called in a thread; returns the token, or raises OSError or ValueError when there is none to be had."""

_UNIX_SCHEME = "http+unix"


class Endpoint(msgspec.Struct, frozen=True):
    """A server's address: `url` to post to, and the unix socket to reach it by (None for TCP)."""

    url: str
    socket_path: str | None = None


def parse_endpoint(url: str, socket_path: str | None = None) -> Endpoint:
    """The address that `url` names: `http://`, `https://`, or `http+unix://%2Frun%2Fs.sock/rpc`.

    A URL without a path means `/rpc`. With `socket_path` the URL's host is only what the Host header says.
    Raises ValueError, naming what is wrong, for any other scheme, userinfo, a fragment, or no host.
    """
    if not url.isprintable() or " " in url:
        raise ValueError("server URL must not contain spaces or control characters")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("server URL must not contain userinfo: give the token in a file")
    if parts.fragment:
        raise ValueError("server URL must not contain a fragment")
    if parts.scheme == _UNIX_SCHEME:
        return _unix_endpoint(parts, socket_path)
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"server URL must begin with http://, https:// or {_UNIX_SCHEME}://, not {parts.scheme!r}")
    if not parts.hostname:
        raise ValueError("server URL names no host")
    # A host that no name server could be asked for, and a port out of range, raise here and not at the first call.
    _ = parts.hostname.encode("idna"), parts.port
    return Endpoint(parts._replace(path=_path(parts)).geturl(), socket_path)


def _unix_endpoint(parts: SplitResult, socket_path: str | None) -> Endpoint:
    if socket_path is not None:
        raise ValueError(f"a {_UNIX_SCHEME}:// URL already names its socket")
    named = unquote(parts.netloc)
    if not named.startswith("/"):
        raise ValueError(f"{_UNIX_SCHEME}:// needs an absolute socket path with each / written %2F")
    return Endpoint(SplitResult("http", "localhost", _path(parts), parts.query, "").geturl(), named)


def _path(parts: SplitResult) -> str:
    return DEFAULT_PATH if parts.path in {"", "/"} else parts.path


def tls_context(url: str, ca_file: str | None) -> ssl.SSLContext | bool:
    """What TLS to the server trusts: with `ca_file` (PEM) that file alone, else the system's CAs.

    Raises OSError or ssl.SSLError for a file that cannot be used, ValueError for a CA beside a URL without TLS.
    """
    if ca_file is None:
        return True
    if not url.startswith("https:"):
        raise ValueError("a CA file needs an https:// URL")
    return ssl.create_default_context(cafile=ca_file)


def token_from_file(path: Path | str) -> TokenSource:
    """A source that reads the bearer token from a file, surrounding whitespace removed."""

    def read() -> str:
        return Path(path).read_text(encoding="utf-8").strip()

    return read


class Credentials:
    """The bearer token as it is now. Without a source there is none, and asking costs nothing."""

    def __init__(self, source: TokenSource | None) -> None:
        self._source = source
        self._token: str | None = None

    async def current(self) -> str | None:
        """The token to send.

        Raises OSError or ValueError when the source has none: nothing may be sent then, since a call without its token
        would be judged as somebody else's.
        """
        if self._source is None or self._token is not None:
            return self._token
        token = await asyncio.to_thread(self._source)
        if not token or not is_header_safe(token):
            raise ValueError("the bearer token is empty or not printable ASCII")
        self._token = token
        return token

    def refused(self) -> None:
        """The server did not accept the token: ask the source again at the next call."""
        if self._source is not None:
            self._token = None


def is_header_safe(value: str) -> bool:
    """Whether a header may carry the value as it is: printable ASCII only."""
    return value.isascii() and value.isprintable()
