"""What tasks run on: the standard event loop, or a faster one where it is installed.

Owns: the only import of the faster one.  Must never know: what runs on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from scheduler_daemon.errors import ConfigRefused


def loop_factory(name: Literal["asyncio", "uvloop"]) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop of that name.  Raises `ConfigRefused` where it is not installed."""
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        import uvloop  # noqa: PLC0415  an extra: only who asks for it has to have it
    except ImportError as error:
        raise ConfigRefused("uvloop is not installed: pip install 'scheduler-daemon[uvloop]'", "event_loop") from error
    return uvloop.new_event_loop
