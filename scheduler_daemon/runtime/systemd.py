"""Telling the service manager how the process stands.

Owns: the notification datagram, and the sockets that the manager opened for us.  Must never know: what healthy means, what is served.
Without a manager every call does nothing.
"""

from __future__ import annotations

import os
import socket
from typing import Final

_FIRST_SOCKET: Final = 3
"""Where a manager puts the first socket.  Source: sd_listen_fds(3)."""


def notify(state: str) -> None:
    """Send one `sd_notify` state such as `READY=1`, `WATCHDOG=1` or `STOPPING=1`."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError:
            return  # the manager is gone or deaf; that must never stop the daemon


def watchdog_s() -> float | None:
    """How often the manager wants a sign of life: half of what it allows; None when it wants none."""
    allowed_us = os.environ.get("WATCHDOG_USEC", "")
    return int(allowed_us) / 2_000_000 if allowed_us.isdecimal() and int(allowed_us) > 0 else None


def take_sockets() -> list[socket.socket]:
    """The listening sockets that the manager opened for this very process; a second call has none.

    They begin at descriptor 3.  Their variables are removed: a child must not take the sockets for its own.
    """
    ours = os.environ.pop("LISTEN_PID", "") == str(os.getpid())
    count = os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if not ours or not count.isdecimal():
        return []
    taken = [socket.socket(fileno=descriptor) for descriptor in range(_FIRST_SOCKET, _FIRST_SOCKET + int(count))]
    for one in taken:
        one.settimeout(0)
        one.set_inheritable(False)
    return taken
