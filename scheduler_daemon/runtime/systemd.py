"""Telling the service manager how the process stands.

Owns: the notification datagram.  Must never know: what healthy means; whoever calls has checked.  Without a manager every call does
nothing.
"""

from __future__ import annotations

import os
import socket


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
