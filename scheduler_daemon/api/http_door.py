"""Connections: who gets one, for how long, and which is given up when there are too many.

Owns: the listening sockets, the bound on connections, the identity of a peer on a unix socket.  Must never know: requests, methods.

A connection is cheap to open and costs a descriptor to keep, so an attacker opens many.  Refusing the newest would let him shut
everybody out; instead the connection that has been idle for longest is closed.  Idle means: no call is being carried out for
it.  A caller that connects and asks is served within milliseconds, long before its connection is the oldest one; one whose call is
being carried out is never given up, and calls are bounded separately and lower (`limits.CALLS_MAX`), so that an idle one exists.

A unix socket is a file.  It gets its mode before it has a name, lies in a folder that nobody else may enter, and a peer of another
user is turned away even so.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any, cast

from aiohttp import hdrs, web

from scheduler_daemon import limits

_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid

HANDLER: dict[str, Any] = {
    "access_log": None,
    "auto_decompress": False,
    "keepalive_timeout": limits.HEAD_READ_S,
    "lingering_time": limits.LINGER_S,
    "max_field_size": limits.HEADER_BYTES_MAX,
    "max_headers": limits.HEADERS_MAX,
    "max_line_size": limits.LINE_BYTES_MAX,
    "tcp_keepalive": True,
}
"""How each connection is handled.  The keep-alive timer also ends a connection whose first request head does not arrive."""

HEADERS: dict[str, str] = {
    hdrs.SERVER: "scheduler-daemon",
    hdrs.CACHE_CONTROL: "no-store",
    "X-Content-Type-Options": "nosniff",
}
"""What every response says of itself."""


class AddressUnusable(Exception):
    """An address that cannot be listened on: in use, not ours, not safe."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address
        self.reason = reason


class Door:
    """Makes the handler of each new connection; `busy` are those whose call is being carried out."""

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        self.busy: set[web.RequestHandler] = set()
        self._server = server
        self._loop = loop

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._server.connections)

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self, self._server, self._loop)

    def make_room(self) -> None:
        """Close the connection that has been idle for longest, when all places are taken."""
        connections = self._server.connections
        if len(connections) < limits.CONNECTIONS_MAX:
            return
        # The server keeps them in the order in which they came.
        for handler in connections:
            if handler not in self.busy and handler.transport is not None:
                handler.force_close()
                return


class _Connection(web.RequestHandler):
    """aiohttp's handler of one connection, which lets in only whom the door lets in and keeps what went wrong to itself."""

    def __init__(self, door: Door, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop=loop, **HANDLER)
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not is_same_user(transport.get_extra_info("socket")):
            cast("asyncio.Transport", transport).abort()
            return
        self._door.make_room()
        super().connection_made(transport)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002  the library's signature
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """The plain status: what the library would say quotes the exception, or the bytes that it choked on."""
        response = web.Response(status=status, headers=HEADERS)
        response.force_close()
        return response


def is_same_user(peer: socket.socket) -> bool:
    """Whether the other end of a unix socket is this user or root; other sockets tell nothing and pass."""
    if peer.family != socket.AF_UNIX:
        return True
    _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in {os.geteuid(), 0}


# --- listening --------------------------------------------------------------------------------------------------------


async def listen_tcp(door: Door, host: str, port: int) -> tuple[asyncio.Server, str]:
    """Listen on an address; port 0 takes a free one.  Returns the server and the URL.  Raises `AddressUnusable`."""
    shown = f"[{host}]" if ":" in host else host
    try:
        server = await asyncio.get_running_loop().create_server(
            door, host, port, backlog=limits.BACKLOG, reuse_address=True
        )
    except OSError as error:
        raise AddressUnusable(f"{shown}:{port}", _reason(error)) from error
    return server, f"http://{shown}:{server.sockets[0].getsockname()[1]}"


async def listen_unix(door: Door, path: Path) -> tuple[asyncio.AbstractServer, str]:
    """Listen on a unix socket, 0600 in a folder of 0700.  The store's lock must be held: an old socket there is removed."""
    try:
        _check_folder(path.parent, path)
        await _remove_dead(path)
        listening = _bound(path)
        server = await asyncio.get_running_loop().create_unix_server(door, sock=listening, backlog=limits.BACKLOG)
    except OSError as error:
        raise AddressUnusable(str(path), _reason(error)) from error
    return server, f"unix:{path}"


async def listen_on(door: Door, given: socket.socket) -> tuple[asyncio.AbstractServer, str]:
    """Listen on a socket that somebody else opened.  Its name is theirs to remove.  Raises `AddressUnusable`."""
    name = given.getsockname()
    if given.type != socket.SOCK_STREAM or not given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise AddressUnusable(str(name), "the socket that was handed over does not listen")
    loop = asyncio.get_running_loop()
    if given.family == socket.AF_UNIX:
        return await loop.create_unix_server(door, sock=given, backlog=limits.BACKLOG), f"unix:{name}"
    host, port = name[:2]
    server = await loop.create_server(door, sock=given, backlog=limits.BACKLOG)
    return server, f"http://{f'[{host}]' if ':' in host else host}:{port}"


def forget_unix(path: Path) -> None:
    """Remove the name of a socket that is not listened on any more."""
    path.unlink(missing_ok=True)


def _check_folder(folder: Path, path: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in {os.geteuid(), 0} or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise AddressUnusable(str(path), f"the folder {folder} must belong to this user alone: chmod 700")


async def _remove_dead(path: Path) -> None:
    """Remove the socket that a daemon left when it was killed; one that answers, and any other kind of file, stay."""
    if not _is_socket(path):
        return
    try:
        _, writer = await asyncio.open_unix_connection(str(path))
    except ConnectionRefusedError:
        forget_unix(path)
        return
    writer.close()
    raise AddressUnusable(str(path), _reason(OSError(errno.EADDRINUSE, "")))


def _is_socket(path: Path) -> bool:
    """Whether there is a socket of that name; False when there is nothing, refused when it is something else."""
    if not path.exists():
        return False
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise AddressUnusable(str(path), "there is a file of that name which is no socket")
    return True


def _bound(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # On Linux the name gets the mode of the socket: no moment in which somebody else could connect.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(str(path))
    except BaseException:
        listening.close()
        raise
    return listening


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "somebody else listens there; stop that one, or choose another address"
    return error.strerror or str(error)
