"""One command as one process group, from its start to its end, without blocking the loop.

Owns: the launcher's process, the pipes of a command, the bounds on time and output.  Must never know: steps, runs, what an exit
status means.  The head of `launcher` says why another process does the forking.

Invariants.  `run` returns or raises only after the group's end was asked for, cancellation included.  Output is kept as a
bounded tail.  When a leader has exited, what still writes to its pipes gets OUTPUT_GRACE_S, then the rest of its group is killed:
what a step leaves behind in the background does not outlive it, and cannot hold a run open.

Input is a sealed-off file in memory and not a pipe, so that a command that reads nothing, or late, makes nobody wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

STDOUT_BYTES_MAX: Final = 1 << 20
STDERR_BYTES_MAX: Final = 8 << 10
TERM_GRACE_S: Final = 1.0
OUTPUT_GRACE_S: Final = 1.0
LAUNCHER_END_S: Final = 5.0

T = TypeVar("T")

_LENGTH_BYTES: Final = 4
_LAUNCHER: Final = Path(__file__).with_name("launcher.py")


class CannotStart(Exception):
    """The command did not start; the text is the system's reason.  Nothing of it ran."""


class LauncherLost(Exception):
    """The launcher was ended by someone else, and took the command with it at an unknown point."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to start.  `argv[0]` is looked up on the PATH of `env`; `stdin` is all that can be read."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes
    timeout_s: float | None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended: `status` is the exit status, or the negated signal; `stdout_cut` says that only the tail is there."""

    status: int
    timed_out: bool
    stdout: bytes
    stdout_cut: bool
    stderr: bytes


class Processes:
    """Runs commands through one launcher, which it starts when first needed and again when it was lost."""

    def __init__(self) -> None:
        self._link: _Link | None = None
        self._linking = asyncio.Lock()

    async def run(self, command: Command) -> Ended:
        """Start the command and wait for its end.  Raises CannotStart and LauncherLost; a cancellation ends the group."""
        link = await self._linked()
        async with contextlib.AsyncExitStack() as stack:
            stdout = await _captured(stack, STDOUT_BYTES_MAX)
            stderr = await _captured(stack, STDERR_BYTES_MAX)
            child = link.expect()
            stack.callback(link.end, child)
            await link.start(child, command, [_in_memory(command.stdin), stdout.hand_over(), stderr.hand_over()])
            timed_out = await _waited(link, child, command.timeout_s)
            tails = [stdout.ended, stderr.ended]
            if child.exited.done():
                await asyncio.wait(tails, timeout=OUTPUT_GRACE_S)
            link.end(child)
            await asyncio.wait([child.exited, *tails], timeout=OUTPUT_GRACE_S)
            status = child.exited.result() if child.exited.done() else None
            if status is None:
                raise LauncherLost
            return Ended(
                status=status,
                timed_out=timed_out,
                stdout=stdout.data(),
                stdout_cut=stdout.cut,
                stderr=stderr.data(),
            )

    async def stop(self) -> None:
        """End the launcher, and with it every command.  Idempotent."""
        async with self._linking:
            if self._link is not None:
                link, self._link = self._link, None
                await link.close()

    async def _linked(self) -> _Link:
        async with self._linking:
            if self._link is not None and self._link.lost:
                link, self._link = self._link, None
                await link.close()
            if self._link is None:
                self._link = await _Link.open()
            return self._link


class _Child:
    """One command at the launcher: `started` answers why not (empty: it did), `exited` the status (None: unknown)."""

    def __init__(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.started: asyncio.Future[str] = loop.create_future()
        self.exited: asyncio.Future[int | None] = loop.create_future()

    def hear(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                _settle(self.started, "")
            case "refused":
                _settle(self.started, event["reason"])
            case _:
                _settle(self.exited, event["status"])

    def lose(self) -> None:
        _settle(self.started, "the launcher of steps ended")
        _settle(self.exited, None)


class _Link:
    """The launcher's process and the two sockets to it.  Commands are sent in order by one thread, since a send may block."""

    def __init__(self, process: subprocess.Popen[bytes], commands: socket.socket, events: socket.socket) -> None:
        self.lost = False
        self._process = process
        self._commands = commands
        self._events = events
        self._numbers = itertools.count(1)
        self._children: dict[int, _Child] = {}
        self._sender = ThreadPoolExecutor(1, "embedded-launcher")
        self._listener = asyncio.ensure_future(self._listen())

    @classmethod
    async def open(cls) -> _Link:
        commands, their_commands = socket.socketpair()
        events, their_events = socket.socketpair()
        events.settimeout(0)
        with their_commands, their_events:
            theirs = (their_commands.fileno(), their_events.fileno())
            process = await asyncio.to_thread(_launched, theirs)
        return cls(process, commands, events)

    def expect(self) -> _Child:
        child = _Child(next(self._numbers))
        self._children[child.number] = child
        if self.lost:
            child.lose()
        return child

    async def start(self, child: _Child, command: Command, descriptors: list[int]) -> None:
        """Have it started; the descriptors belong to the sending thread from here on.  Raises CannotStart."""
        message = {
            "do": "start",
            "id": child.number,
            "argv": command.argv,
            "cwd": command.cwd,
            "env": dict(command.env),
        }
        self._post(child, message, descriptors)
        if reason := await child.started:
            raise CannotStart(reason)

    def terminate(self, child: _Child) -> None:
        self._post(child, {"do": "term", "id": child.number}, [])

    def end(self, child: _Child) -> None:
        """Have the group killed and the leader reaped, now or as soon as it has started.  Asking again does no harm."""
        self._post(child, {"do": "end", "id": child.number}, [])

    async def close(self) -> None:
        """Close the sockets, by which the launcher ends every group and itself."""
        self.lost = True
        await asyncio.to_thread(self._close)
        await self._listener

    def _close(self) -> None:
        # Also wakes a send that blocks. What is still queued asks for less than the closed socket does.
        with contextlib.suppress(OSError):
            self._commands.shutdown(socket.SHUT_RDWR)
        self._sender.shutdown()
        self._commands.close()
        try:
            self._process.wait(LAUNCHER_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _post(self, child: _Child, message: dict[str, Any], descriptors: list[int]) -> None:
        if self.lost:
            _close_all(descriptors)
            child.lose()
        else:
            self._sender.submit(self._send, message, descriptors)

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            data = json.dumps(message).encode()
            header = len(data).to_bytes(_LENGTH_BYTES)
            # A launcher that is gone is heard of by the listener, which answers for it.
            with contextlib.suppress(OSError):
                socket.send_fds(self._commands, [header], descriptors)
                self._commands.sendall(data)
        finally:
            _close_all(descriptors)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        received = bytearray()
        with self._events:
            while part := await _part_of(loop, self._events):
                received += part
                while (event := _taken(received)) is not None:
                    if child := self._children.get(event["id"]):
                        child.hear(event)
                        if child.exited.done() or child.started.result():
                            del self._children[child.number]
        self.lost = True
        for child in self._children.values():
            child.lose()
        self._children.clear()


class _Tail(asyncio.Protocol):
    """The last bytes that a pipe carried; `ended` is settled when nobody can write to it any more."""

    def __init__(self, bytes_max: int, write_end: int) -> None:
        self.cut = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._write_end = write_end

    def hand_over(self) -> int:
        """The write end; whoever takes it closes it."""
        write_end, self._write_end = self._write_end, -1
        return write_end

    def close_write_end(self) -> None:
        if self._write_end >= 0:
            os.close(self.hand_over())

    def data(self) -> bytes:
        return bytes(self._kept[-self._bytes_max :])

    def data_received(self, data: bytes) -> None:
        self._kept += data
        self.cut = self.cut or len(self._kept) > self._bytes_max
        # Trimmed at twice the bound, so that a long output is copied once and not at every read.
        if len(self._kept) > 2 * self._bytes_max:
            del self._kept[: -self._bytes_max]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- the protocol's signature
        _settle(self.ended, None)


async def _captured(stack: contextlib.AsyncExitStack, bytes_max: int) -> _Tail:
    read_end, write_end = os.pipe()
    tail = _Tail(bytes_max, write_end)
    stack.callback(tail.close_write_end)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: tail, io.FileIO(read_end))
    stack.callback(transport.close)
    return tail


async def _waited(link: _Link, child: _Child, timeout_s: float | None) -> bool:
    """Wait for the leader's exit, and say whether its time ran out; then, or when cancelled, it is asked to end first."""
    try:
        done, _ = await asyncio.wait([child.exited], timeout=timeout_s)
    except asyncio.CancelledError:
        await _terminated(link, child)
        raise
    if not done:
        await _terminated(link, child)
    return not done


async def _terminated(link: _Link, child: _Child) -> None:
    link.terminate(child)
    await asyncio.wait([child.exited], timeout=TERM_GRACE_S)


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("workflow-input", os.MFD_CLOEXEC)
    with io.FileIO(descriptor, "r+", closefd=False) as file:
        file.write(data)  # whole: nothing bounds it but memory
        file.seek(0)
    return descriptor


def _launched(descriptors: tuple[int, int]) -> subprocess.Popen[bytes]:
    # -I -S: neither the operator's PYTHON… variables nor site packages change what this small program is. UTF-8, because
    # JSON reaches the steps' variables. A session of its own, so that a terminal's Ctrl-C is the server's to hear.
    argv = [sys.executable, "-I", "-S", "-X", "utf8", str(_LAUNCHER), *map(str, descriptors)]
    return subprocess.Popen(argv, pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def _part_of(loop: asyncio.AbstractEventLoop, source: socket.socket) -> bytes:
    try:
        return await loop.sock_recv(source, 1 << 16)
    except ConnectionError:
        return b""


def _taken(received: bytearray) -> dict[str, Any] | None:
    """The first whole message, taken off the front; None when there is none."""
    end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES])
    if len(received) < max(end, _LENGTH_BYTES + 1):
        return None
    event: dict[str, Any] = json.loads(received[_LENGTH_BYTES:end])
    del received[:end]
    return event


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)
