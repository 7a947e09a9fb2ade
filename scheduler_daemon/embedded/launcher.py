"""A process of its own that starts the steps, so that no step outlives its server.

Owns: fork, process groups, the parent-death signal, reaping.  Must never know: runs, timeouts, output.  It imports the standard
library only and is started as a file, by `processes`, with the two descriptors that it is told on its command line.

Why another process.  The parent-death signal can only be asked for in the child, between fork and exec; Python code there is safe
in a process with one thread and not in the daemon, which has many.  The signal also follows the *thread* that forked, and it
reaches the child but not its children.  A wrapper program for each step would cost an interpreter's start each time.  This process
is started once, has one thread, forks quickly because it is small, and holds the other end of the server's socket: when
the server ends in any way, `kill -9` included, the socket closes and every group is killed whole.  If this process is killed
itself, the parent-death signal still ends the steps.

Invariant: a leader is reaped only after its group was killed, so that a group id can never be someone else's when it is signalled.

Each message is four bytes of length and a JSON object.  From the server: `start` (with three descriptors for stdin, stdout and
stderr), `term` (SIGTERM to the group), `end` (SIGKILL to the group; reap).  To the server: `started` or `refused`, then `exited`,
once or twice.  Ids are the server's.  What this cannot reach is a process that left its group by setsid; the control group of a
systemd unit is for those.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
LENGTH_BYTES: Final = 4
STEP_DESCRIPTORS: Final = 3

_libc = ctypes.CDLL(None, use_errno=True)


class Launcher:
    """The groups that run, by the server's id."""

    def __init__(self, commands: socket.socket, events: socket.socket) -> None:
        self._commands = commands
        self._events = events
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._exited: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: dict[int, subprocess.Popen[bytes]] = {}

    def serve(self) -> None:
        """Obey until the server is gone; then leave nothing behind."""
        woken = _child_signals()
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            try:
                while self._step(selector, woken):
                    pass
            finally:
                for child in (*self._running.values(), *self._exited.values()):
                    _signal_group(child, signal.SIGKILL)

    def _step(self, selector: selectors.BaseSelector, woken: socket.socket) -> bool:
        ready = {key.fileobj for key, _ in selector.select()}
        if woken in ready:
            woken.recv(4096)
            self._look_at_children()
        return self._commands not in ready or self._obey()

    def _obey(self) -> bool:
        header, descriptors, _, _ = socket.recv_fds(self._commands, LENGTH_BYTES, STEP_DESCRIPTORS)
        rest = _received(self._commands, LENGTH_BYTES - len(header)) if header else None
        if rest is None:
            return False
        body = _received(self._commands, int.from_bytes(header + rest))
        if body is None:
            return False
        command: dict[str, Any] = json.loads(body)
        match command["do"]:
            case "start":
                self._start(command, descriptors)
            case "term":
                if child := self._running.get(command["id"]):
                    _signal_group(child, signal.SIGTERM)
            case _:
                self._end(command["id"])
        return True

    def _start(self, command: dict[str, Any], descriptors: list[int]) -> None:
        number = command["id"]
        try:
            stdin, stdout, stderr = descriptors
            child = subprocess.Popen(
                command["argv"],
                cwd=command["cwd"],
                env=command["env"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 -- safe with one thread; see the module's head
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._tell(id=number, event="refused", reason=getattr(error, "strerror", None) or str(error))
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._running[number] = child
        self._tell(id=number, event="started", pid=child.pid)
        # It may have ended while fork returned, and its signal may have been read before it was listed.
        self._look_at_children()

    def _end(self, number: int) -> None:
        child = self._exited.pop(number, None) or self._running.pop(number, None)
        if child is not None:
            _signal_group(child, signal.SIGKILL)
            self._ended[number] = child
            self._look_at_children()

    def _look_at_children(self) -> None:
        for number, child in list(self._running.items()):
            if (status := _status_unreaped(child.pid)) is not None:
                self._exited[number] = self._running.pop(number)
                self._tell(id=number, event="exited", status=status)
        for number, child in list(self._ended.items()):
            if (status := child.poll()) is not None:
                del self._ended[number]
                self._tell(id=number, event="exited", status=status)

    def _tell(self, **event: object) -> None:
        data = json.dumps(event).encode()
        # A server that is gone is noticed at the other socket.
        with contextlib.suppress(OSError):
            self._events.sendall(len(data).to_bytes(LENGTH_BYTES) + data)


def _child_signals() -> socket.socket:
    """A socket that becomes readable when a child changes; the signals that end a service are left to the server."""
    woken, wakes = socket.socketpair()
    woken.settimeout(0)
    wakes.settimeout(0)
    signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
    # A handler and not SIG_IGN: what is ignored stays ignored in the steps, what is handled is reset by exec.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _noted)
    return woken


def _noted(_number: int, _frame: object) -> None:
    pass


def _die_with(parent: int) -> Any:
    def ask() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the signal could be asked for

    return ask


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # Not there any more, or run by another user by now: either way nobody here can do more.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _status_unreaped(pid: int) -> int | None:
    """The exit status of a child that has exited (negative: the signal), leaving it a zombie; None while it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _received(source: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = source.recv(min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


if __name__ == "__main__":
    Launcher(socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))).serve()
