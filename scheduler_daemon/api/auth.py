"""Who may speak to the face at all, judged by the head of a request.

Owns: the Host allow-list, the refusal of browsers, the bearer token, the content type.  Must never know: bodies, methods, sockets.

The daemon listens on a machine where other things run too, web browsers among them.  A page from anywhere can make a browser send
requests to 127.0.0.1, so a request that shows any sign of a browser is refused: it names an Origin, a Referer or Sec-Fetch-Site, or
it uses one of the content types that a page may send without asking first.  A page can also point a name of its own at 127.0.0.1
and then looks like the same origin to the browser; only the Host header still tells, hence the list of names that are ours.

HTTP statuses are chosen so that a client can tell "did not reach the method" from an answer: 401, 403, 415 and 421 prove it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from ipaddress import ip_address
from typing import Protocol

import msgspec

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_BROWSER_HEADERS = ("Origin", "Referer", "Sec-Fetch-Site")
_JSON = "application/json"


class Headers(Protocol):
    """Request headers, their names in any case."""

    def getall(self, key: str, default: list[str], /) -> list[str]: ...
    def get(self, key: str, /) -> str | None: ...


class Refusal(msgspec.Struct, frozen=True):
    """Why a request goes no further: an HTTP status and a sentence."""

    status: int
    reason: str


class Gate:
    """The checks of one face.  `token` None demands none; `any_address` lets every literal IP address pass as a Host.

    A literal address is nobody's name: no page can make a browser send it while believing to be at home.
    """

    def __init__(self, *, token: str | None, hosts: Iterable[str], any_address: bool = False) -> None:
        self._digest = None if token is None else _digest(token)
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}
        self._any_address = any_address

    def judge(self, headers: Headers, *, anonymous: bool = False) -> Refusal | None:
        """None lets the request pass.  `anonymous` asks for no token: the path tells nothing but that somebody is there."""
        if not self._is_ours(headers.getall("Host", [])):
            return Refusal(421, "this Host is not one of ours; see the setting allowed_hosts")
        for name in _BROWSER_HEADERS:
            if headers.get(name) is not None:
                return Refusal(403, f"requests with {name} are refused: this face is not for web pages")
        if not anonymous and not self._has_token(headers.getall("Authorization", [])):
            return Refusal(401, "a bearer token is needed")
        return None

    def _is_ours(self, hosts: list[str]) -> bool:
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None:
            return False
        return name in self._hosts or (self._any_address and _is_address(name))

    def _has_token(self, values: list[str]) -> bool:
        if self._digest is None:
            return True
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(" ")
        # Digests have one length, so neither the time nor the length of a guess tells anything about the token.
        return hmac.compare_digest(_digest(token.strip()), self._digest) and scheme.lower() == "bearer"


def judge_content(headers: Headers) -> Refusal | None:
    """Whether a body is what it must be: JSON, not encoded once more."""
    kinds = headers.getall("Content-Type", [])
    if len(kinds) != 1 or not _is_json(kinds[0]):
        return Refusal(415, "Content-Type must be application/json")
    if headers.get("Content-Encoding") is not None:
        return Refusal(415, "a Content-Encoding is not taken: a small body could become a large one")
    return None


def _is_json(kind: str) -> bool:
    essence, _, parameter = kind.partition(";")
    charset = parameter.replace(" ", "").lower()
    return essence.strip().lower() == _JSON and charset in {"", "charset=utf-8", 'charset="utf-8"'}


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port and brackets, in lower case; None if it is no Host at all.

    The port is not compared: a tunnel ends on another one, and the name alone tells whom a browser believes to visit.
    """
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or not (port == "" or _is_port(port)):
            return None
        return name.lower() if _is_address(name) else None
    name, colon, port = host.partition(":")
    if not name or (colon and not _is_port(":" + port)):
        return None
    return name.lower()


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdecimal()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
