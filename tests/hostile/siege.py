"""Many connections that send bodies to a running daemon as fast as it answers, and what is noticed meanwhile.

HTTP is written by hand: a client library would refuse to send half of this, and costs more than the daemon.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.bodies import Body, body
from tests.hostile.judging import complaint
from tests.integration.process import Daemon

HEAD = b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
HEALTH = b'{"jsonrpc":"2.0","id":1,"method":"workflow.health"}'
ANSWER_S = 30.0
CONNECTIONS = 8


class Connection:
    """One connection, opened again whenever the daemon ended it."""

    def __init__(self, port: int) -> None:
        self.stale = 0
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, text: bytes) -> tuple[int, bytes]:
        """Status and body of the answer.  A kept connection that ended without a byte is opened again, once, like any client does."""
        kept = self._streams is not None
        try:
            return await self._ask(text)
        except asyncio.IncompleteReadError as error:
            self.close()
            if not kept or error.partial:
                raise
            self.stale += 1
            return await self._ask(text)

    async def _ask(self, text: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
        reader, writer = self._streams
        async with asyncio.timeout(ANSWER_S):
            # A refusal that came before the whole body was sent stands in the way of sending it.
            with contextlib.suppress(ConnectionError):
                writer.write(HEAD % len(text) + text)
                await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
            answer = await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return int(head.split()[1]), answer

    def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()


class Siege:
    """What was sent, how it was answered, and how the daemon looked meanwhile."""

    def __init__(self, daemon: Daemon, seed: int, count: int) -> None:
        self.daemon = daemon
        self.seed = seed
        self.count = count
        self.kinds: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.codes: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.rss_kib: list[int] = []
        self.waits_s: list[float] = []
        self.took_s = 0.0
        self.stale = 0

    async def run(self) -> None:
        """Send everything; the first few complaints end it."""
        numbers = iter(range(self.count))
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            senders = [group.create_task(self._send(numbers)) for _ in range(CONNECTIONS)]
            await asyncio.wait(senders)
            watch.cancel()
        self.took_s = time.monotonic() - began

    async def _send(self, numbers: Iterator[int]) -> None:
        connection = Connection(self.daemon.port)
        for index in numbers:
            if len(self.complaints) >= 10:
                break
            sent = body(self.seed, index)
            try:
                status, answer = await connection.ask(sent.text)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.complaints.append(f"{index} {sent.kind}: {type(error).__name__} {error}")
                connection.close()
                continue
            self._note(index, sent, status, answer)
            if index % max(1, self.count // 200) == 0:
                self.rss_kib.append(rss_kib(self.daemon))
        connection.close()
        self.stale += connection.stale

    def _note(self, index: int, sent: Body, status: int, answer: bytes) -> None:
        self.kinds[sent.kind] += 1
        self.statuses[status] += 1
        wrong = complaint(sent.text, status, answer)
        if wrong is not None:
            self.complaints.append(f"{index} {sent.kind}: {wrong}: {sent.text[:300]!r} -> {answer[:300]!r}")
        elif status == 200:
            said = json.loads(answer)
            for one in said if isinstance(said, list) else [said]:
                error = one.get("error")
                self.codes["result" if error is None else str(error.get("data", {}).get("code", error["code"]))] += 1

    async def _watch(self) -> None:
        """A caller like any other, who notes how long an answer takes."""
        connection = Connection(self.daemon.port)
        try:
            while True:
                began = time.monotonic()
                status, _ = await connection.ask(HEALTH)
                self.waits_s.append(time.monotonic() - began)
                assert status == 200
                await asyncio.sleep(0.05)
        finally:
            connection.close()

    def told(self) -> str:
        """The figures, for a person."""
        waits = sorted(self.waits_s)
        median, p99, most = (waits[at] * 1000 for at in (len(waits) // 2, len(waits) * 99 // 100, -1))
        thirds = [kib >> 10 for kib in self.thirds()]
        first, last, peak = self.rss_kib[0] >> 10, self.rss_kib[-1] >> 10, peak_kib(self.daemon) >> 10
        lines = (
            f"{sum(self.kinds.values())} bodies, seed {self.seed}, {self.took_s:.0f} s",
            f"kinds {dict(sorted(self.kinds.items()))}",
            f"statuses {dict(sorted(self.statuses.items()))}",
            f"answers {dict(self.codes.most_common())}",
            f"RSS MiB: first {first}, median of each third {thirds}, last {last}, peak {peak}",
            f"{self.stale} kept connections had ended",
            f"another caller waited {median:.1f} ms at the median, {p99:.1f} ms at p99, {most:.1f} ms at most",
        )
        return "\n".join(lines)

    def thirds(self) -> list[int]:
        """The median of the resident memory in each third, in KiB."""
        size = max(1, len(self.rss_kib) // 3)
        parts = (self.rss_kib[:size], self.rss_kib[size : 2 * size] or self.rss_kib, self.rss_kib[-size:])
        return [sorted(part)[len(part) // 2] for part in parts]


def rss_kib(daemon: Daemon) -> int:
    return _status(daemon, "VmRSS")


def peak_kib(daemon: Daemon) -> int:
    return _status(daemon, "VmHWM")


def _status(daemon: Daemon, name: str) -> int:
    assert daemon.process is not None
    lines = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
