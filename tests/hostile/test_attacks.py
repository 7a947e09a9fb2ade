"""The attack list against the real process: each by its name, each beside a caller of good will who goes on being served.

`tests/unit/test_api_doors.py` has the same doors in detail; here stand the daemon's own configuration, sockets, process and log.
"""

import asyncio
import contextlib
import gzip
import json
import os
import sys
import time
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from rpc_client import App
from scheduler_daemon import errors, limits
from tests.hostile.siege import rss_kib
from tests.integration.process import HELLO, Daemon, until
from tests.unit.face import raw

SECRET = "correct-horse-battery-staple"
HEALTH = b'{"jsonrpc":"2.0","id":1,"method":"workflow.health"}'
CREATE = {
    "schedule_id": "planted",
    "deployment_id": "scheduled_hello.default",
    "trigger": {"kind": "cron", "expression": "* * * * *"},
}

# One daemon for the whole list: what it survives, it survives in a row.
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Target:
    """The daemon under attack: a token, TCP and a unix socket."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.port = daemon.port
        self.socket_path = folder / "run" / "rpc.sock"
        self.token_file = folder / "token"

    async def serves(self) -> None:
        """A caller of good will is answered."""
        async with self.daemon_app() as app:
            assert (await app.health())["status"] == "ok"

    async def has_nothing_planted(self) -> None:
        async with self.daemon_app() as app:
            assert (await app.list_schedules(include_deleted=True))["schedules"] == []

    def daemon_app(self):
        return App(self.daemon.url, token_file=self.token_file)

    async def metrics(self) -> str:
        headers, url = {"Authorization": f"Bearer {SECRET}"}, f"http://127.0.0.1:{self.port}/metrics"
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as response:
            return await response.text()

    async def send(self, body: bytes = HEALTH, *, path: str = "/rpc", **headers: str) -> bytes:
        """The whole answer to one request with these headers beside what is needed."""
        whole = {
            "Host": f"127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            "Authorization": f"Bearer {SECRET}",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in whole.items() if value)
        return await raw(self.port, f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    (folder / "token").write_text(SECRET + "\n")
    (folder / "token").chmod(0o600)
    options = ("--token-file", str(folder / "token"), "--socket-path", str(folder / "run" / "rpc.sock"))
    async with Daemon(folder, deployments=HELLO, options=options) as daemon:
        yield Target(daemon, folder)
        assert await daemon.stop() == 0
        printed = daemon.log_path.read_text()
        assert "Traceback" not in printed
        assert SECRET not in printed
        assert [line for line in daemon.log() if line["action"] == "bug" or line["level"] == "error"] == []


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def call(method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


PLANT = call("workflow.schedules.create", **CREATE)


# --- who asks ---------------------------------------------------------------------------------------------------------


async def test_the_request_that_these_attacks_change_is_answered(target):
    assert status(await target.send()) == 200
    await target.serves()


@pytest.mark.parametrize(
    "host", ["scheduler.example", "example.com:8766", "127.0.0.1.example.com", "0.0.0.0", "", "127.0.0.1, x"]
)
async def test_other_host(target, host):
    assert status(await target.send(PLANT, Host=host)) in {400, 421}
    await target.has_nothing_planted()


async def test_dns_rebinding_name(target):
    """A page at this name, which now points at 127.0.0.1: same origin for the browser, so nothing but Host tells."""
    name = f"rebound.example:{target.port}"
    assert status(await target.send(PLANT, Host=name)) == 421
    for path in ("/healthz", "/readyz", "/metrics", "/openrpc.json"):
        said = await raw(
            target.port, f"GET {path} HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode()
        )
        assert status(said) == 421, path
        assert b"scheduler_" not in said
    await target.has_nothing_planted()


async def test_browser_style_cross_origin_post(target):
    """What a form or `fetch` of another page sends without asking first, and what it asks when it must."""
    browser = {"Origin": "https://evil.example", "Referer": "https://evil.example/", "Sec_Fetch_Site": "cross-site"}
    simple = await target.send(PLANT, **browser, Content_Type="text/plain;charset=UTF-8")
    assert status(simple) == 403
    for name, value in browser.items():
        assert status(await target.send(PLANT, **{name: value})) == 403
    asked = b"OPTIONS /rpc HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nAccess-Control-Request-Method: POST\r\n\r\n"
    answer = await raw(target.port, asked)
    assert status(answer) == 403
    assert b"access-control" not in (simple + answer).lower()
    await target.has_nothing_planted()


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_text_plain(target, kind):
    assert status(await target.send(PLANT, Content_Type=kind)) == 415
    await target.has_nothing_planted()


@pytest.mark.parametrize(
    "value", ["Bearer wrong", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", f"Basic {SECRET}", SECRET, ""]
)
async def test_wrong_token(target, value):
    refused = await target.send(PLANT, Authorization=value)
    assert status(refused) == 401
    assert SECRET.encode() not in refused
    for path in ("/readyz", "/metrics", "/openrpc.json"):
        lines = f"Authorization: {value}\r\n" if value else ""
        assert status(await raw(target.port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())) == 401
    await target.has_nothing_planted()


@pytest.mark.parametrize("command", ["serve", "check", "status"])
async def test_token_on_argv_refused(target, command):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_daemon", command, "--token", SECRET, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == errors.EXIT_UNUSABLE
    assert b"--token-file" in said
    assert SECRET.encode() not in said


async def test_the_token_is_in_no_list_of_processes(target):
    pid = target.daemon.process.pid
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


# --- what is asked ----------------------------------------------------------------------------------------------------

TRAVERSALS = [
    "../../../etc/passwd",
    "..",
    ".",
    "a/b",
    "/etc/passwd",
    "..\\..\\x",
    "a\x00",
    "%2e%2e%2f",
    "-rf",
    "a\nb",
    "~root",
    "",
    "\uff41",
]


@pytest.mark.parametrize("schedule_id", TRAVERSALS)
async def test_path_traversal_ids(target, schedule_id):
    before = sorted(target.daemon.folder.rglob("*"))
    one = {"schedule_id": schedule_id}
    calls = [
        call("workflow.schedules.create", **{**CREATE, **one}),
        call("workflow.schedules.get", **one),
        call("workflow.schedules.update", **one, expected_revision=1),
        call("workflow.schedules.occurrences.list", **one),
        *(call(f"workflow.schedules.{verb}", **one, note="n") for verb in ("pause", "resume", "delete", "unblock")),
    ]
    for each in calls:
        error = json.loads((await target.send(each)).partition(b"\r\n\r\n")[2])["error"]
        assert error["data"]["code"] == "InvalidScheduleId"
    assert sorted(target.daemon.folder.rglob("*")) == before
    await target.has_nothing_planted()


async def test_path_traversal_run_ids_and_cursors_reach_no_file(target):
    for given in ({"run_id": "run-../../x"}, {"run_id": "../schedules/FORMAT.json"}, {"run_id": "run-000001\x00"}):
        error = json.loads((await target.send(call("workflow.runs.inspect", **given))).partition(b"\r\n\r\n")[2])[
            "error"
        ]
        assert error.get("data", {}).get("code") in {"RunNotFound", "KeyError", None}
    for path in ("/rpc/../metrics", "/../../etc/passwd", "/%2e%2e/rpc", "//rpc", "/rpc;x", "/rpc%00"):
        assert status(await target.send(path=path)) in {400, 404, 405}


async def test_gzip_bomb(target):
    bomb = gzip.compress(bytes(200 << 20), 9)
    assert len(bomb) < limits.BODY_BYTES_MAX
    before = rss_kib(target.daemon)
    for encoding in ("gzip", "deflate", "br", "gzip, gzip"):
        assert status(await target.send(bomb, Content_Encoding=encoding)) == 415
    assert status(await target.send(bomb)) == 200
    assert rss_kib(target.daemon) - before < 16 << 10
    await target.serves()


async def test_smuggled_requests(target):
    """Two lengths, or one that two readers read differently, would let a second request ride in the body of the first."""
    body = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for twice in (
        {"Transfer_Encoding": "chunked"},
        {"Transfer_Encoding": "chunked, identity", "Content_Length": ""},
        {"Content_Length": "+5"},
        {"Content_Length": "5, 5"},
        {"Content_Length": "-1"},
        {"Transfer_Encoding": "x\r\nContent-Length: 3"},
    ):
        answer = await target.send(body, **twice)
        assert status(answer) == 400, twice
        assert answer.count(b"HTTP/1.") == 1, twice


# --- how it is asked --------------------------------------------------------------------------------------------------


async def drip(port: int, text: bytes, pause_s: float) -> tuple[bytes, float]:
    """Send byte after byte until the daemon ends the connection; what it said, and after how long."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        for byte in text:
            writer.write(bytes([byte]))
            await writer.drain()
            if (await asyncio.wait({reading}, timeout=pause_s))[0]:
                break
    said = b""
    with contextlib.suppress(ConnectionError):
        said = await asyncio.wait_for(reading, 60)
    writer.close()
    return said, time.monotonic() - began


async def test_slow_headers_and_slow_body(target):
    """Byte after byte, each in time to look alive: the whole has a bound (15 s and 10 s), not the pause."""
    head = f"POST /rpc HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n"
    body = f"{head}Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n".encode()

    async def slow_body():
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(body)
        began = time.monotonic()
        feeding = asyncio.create_task(_feed(writer))
        said = await asyncio.wait_for(reader.read(), 60)
        feeding.cancel()
        writer.close()
        return said, time.monotonic() - began

    slow = [asyncio.create_task(drip(target.port, (head + "X: y\r\n" * 1000).encode(), 0.3)) for _ in range(5)]
    slow += [asyncio.create_task(slow_body()) for _ in range(5)]
    while not all(task.done() for task in slow):
        await target.serves()
        await asyncio.wait(slow, timeout=0.5)
    for task in slow[:5]:
        said, took_s = task.result()
        assert b"200" not in said[:20]
        assert took_s < 30
    for task in slow[5:]:
        said, took_s = task.result()
        assert status(said) == 408
        assert 9 < took_s < 25


async def _feed(writer):
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.3)


async def test_five_hundred_half_open_connections(target):
    """From silent ones to one byte short of a request; a caller of good will is answered at every moment of it."""
    head = (
        f"POST /rpc HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\nContent-Type: application/json\r\n"
    )
    begun = (b"", b"P", head.encode(), f"{head}Content-Length: {len(HEALTH)}\r\n\r\n".encode() + HEALTH[:-1])
    crowd = []
    waits_s = []
    try:
        for number in range(500):
            _, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(begun[number % len(begun)])
            crowd.append(writer)
            if number % 20 == 19:
                began = time.monotonic()
                await target.serves()
                waits_s.append(time.monotonic() - began)
        page = await target.metrics()
        (line,) = [line for line in page.splitlines() if line.startswith("scheduler_http_connections ")]
        assert float(line.split()[1]) <= limits.CONNECTIONS_MAX
    finally:
        for writer in crowd:
            writer.transport.abort()
    print(f"500 half-open: another caller waited {max(waits_s) * 1000:.0f} ms at most over {len(waits_s)} calls")
    assert max(waits_s) < 5
    await until(lambda: _descriptors_are_few(target))


async def _descriptors_are_few(target):
    return len(list(Path(f"/proc/{target.daemon.process.pid}/fd").iterdir())) < 64


PEER = """
import json, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(20)
try:
    peer.connect(sys.argv[1])
    peer.sendall(sys.argv[2].encode())
    said = peer.recv(65536)
except OSError as error:
    said = type(error).__name__.encode()
print(said.decode())
"""


async def as_user(uid: int, path: Path, request: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "python3", "-c", PEER, str(path), request, user=uid, group=uid, extra_groups=[], stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return said.decode().strip()


@pytest.mark.root
async def test_another_uid_on_the_unix_socket(target):
    """Kept out by the folder; where an operator opened folder and socket to all, by the identity that the kernel vouches for."""
    if os.geteuid() != 0:
        pytest.skip("SKIP: needs root: only root can become somebody else")
    path = target.socket_path
    request = f"GET /readyz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\nConnection: close\r\n\r\n"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    opened = [one for one in (path, *path.parents) if one != one.parent and one.stat().st_mode & 0o007 != 0o007]
    modes = {one: one.stat().st_mode for one in opened}
    try:
        for one in opened:
            if one not in (path, path.parent):
                one.chmod(0o777)
        assert await as_user(65534, path, request) == "PermissionError"
        for one in opened:
            one.chmod(0o777)
        assert await as_user(65534, path, request) in {"", "ConnectionResetError", "BrokenPipeError"}
        assert "200 OK" in await as_user(0, path, request) or "503" in await as_user(0, path, request)
    finally:
        for one, mode in modes.items():
            one.chmod(mode & 0o7777)
    await target.serves()
