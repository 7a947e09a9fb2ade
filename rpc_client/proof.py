"""The proof that a request never left, taken in the moment in which it would.

Owns: the writing of a request, and what is known of a call that nobody waited for to the end.
Must never know: JSON-RPC, the HTTP library, how an answer is judged.

A request is handed to its connection in one piece, and `CallProbe.sent` is set just before: the flag can be early, never late.

In that moment a connection that was kept since an earlier call is looked at as well. If the server has closed it,
answered on it unasked, or does not take what was sent before, it is not written to: nothing has left, and the call is
free to take another. What a server closes after this look may have been read by it, on a kept connection as on a new
one. A server that does so has broken its word to keep the connection, or is ending; it is not taken at its word again.
"""

import select
from asyncio import BaseTransport, WriteTransport
from collections.abc import Callable
from weakref import WeakSet


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
    """The connections of one pool that have carried a request; `trusted` False: none of them is to carry another."""

    def __init__(self) -> None:
        self.trusted = True
        self._used: WeakSet[BaseTransport] = WeakSet()

    def send(self, transport: WriteTransport | None, request: bytes, probe: CallProbe, *, spoken: bool) -> None:
        """Write one request, unless the connection is closed, or was kept and is not to be relied on.

        `spoken` says that something came in on it that was read already, where looking at the socket cannot show it.
        Raises ConnectionResetError, with `probe.stale` set, when nothing was written for that reason.
        """
        if transport is not None and not transport.is_closing():
            probe.reused = transport in self._used
            if not probe.reused:
                self._used.add(transport)
            elif spoken or not self.trusted or not _is_quiet(transport):
                transport = None
        else:
            transport = None
        if transport is None:
            probe.stale = True
            raise ConnectionResetError("the server closed the connection before anything was sent")
        probe.sent = True
        transport.write(request)
        if probe.on_sent is not None:
            probe.on_sent()


def _is_quiet(transport: BaseTransport) -> bool:
    """Whether the peer has sent nothing, its goodbye included, since it was our turn, and takes bytes.

    Bytes of an earlier request that it did not take may lie below TLS, where no transport counts them.
    """
    opened = transport.get_extra_info("socket")
    if opened is None:
        return True
    look = select.poll()
    look.register(opened.fileno(), select.POLLIN | select.POLLOUT)
    return look.poll(0) == [(opened.fileno(), select.POLLOUT)]
