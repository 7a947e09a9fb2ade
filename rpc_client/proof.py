"""The proof that a request never left, taken in the moment in which it would.

Owns: the body of a request as the HTTP library sees it, and what is known of a call that nobody waited for to the end.
Must never know: JSON-RPC, how an answer is judged.

`CallProbe.sent` is set when the library asks for the body, before the first byte is handed out; head and body leave
together, and no method can begin before its params have arrived: the flag can be early, never late. (The library's
tracing tells the same moment, at five times the cost.)

In that moment a connection that was kept since an earlier call is looked at as well. If the server has closed it, or
said anything on it, in between, it is not written to: nothing has left, and the call is free to take another. What a
server closes after this look may have been read by it, on a kept connection as on a new one. A server that does so has
broken its word to keep the connection, or is ending; it is not taken at its word again.
"""

import select
from asyncio import BaseTransport
from collections.abc import Callable
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractStreamWriter


class CallProbe:
    """Filled in while a call runs, for a caller that cancels it and must know what it left behind.

    `sent` False after a cancellation proves that no byte of the request left; True means that it may have. `on_sent` is
    called in that moment, if it comes, and must not raise.
    """

    __slots__ = ("on_sent", "reused", "sent", "stale")

    def __init__(self, on_sent: Callable[[], None] | None = None) -> None:
        self.on_sent = on_sent
        self.sent = False
        self.reused = False
        self.stale = False


class Kept:
    """The connections of one session that have carried a request; `trusted` False: none of them is to carry another."""

    def __init__(self) -> None:
        self.trusted = True
        self._used: WeakSet[BaseTransport] = WeakSet()

    def has(self, transport: BaseTransport) -> bool:
        return transport in self._used

    def add(self, transport: BaseTransport) -> None:
        self._used.add(transport)

    def usable(self, transport: BaseTransport) -> bool:
        """Whether a request may leave on this one, which has carried another before."""
        return self.trusted and not _has_spoken(transport)


class Body(aiohttp.BytesPayload):
    """The bytes of a request, which say when they are asked for, and refuse a kept connection that is not usable."""

    def __init__(self, body: bytes, probe: CallProbe, kept: Kept) -> None:
        super().__init__(body, content_type="application/json")
        self._probe = probe
        self._kept = kept

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._leave(writer)
        await super().write(writer)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._leave(writer)
        await super().write_with_length(writer, content_length)

    def _leave(self, writer: AbstractStreamWriter) -> None:
        transport: BaseTransport | None = getattr(writer, "transport", None)
        if transport is not None:
            self._probe.reused = self._kept.has(transport)
            if not self._probe.reused:
                self._kept.add(transport)
        if transport is None or transport.is_closing() or (self._probe.reused and not self._kept.usable(transport)):
            self._probe.stale = True
            raise ConnectionResetError("the server closed the connection before anything was sent")
        self._probe.sent = True
        if self._probe.on_sent is not None:
            self._probe.on_sent()


def _has_spoken(transport: BaseTransport) -> bool:
    """Whether the peer sent something, its goodbye included, on a connection on which it is our turn."""
    opened = transport.get_extra_info("socket")
    if opened is None:
        return False
    look = select.poll()
    look.register(opened.fileno(), select.POLLIN)
    return bool(look.poll(0))
