"""Who gets to a method at all: Host, browsers, tokens, content, sizes, slowness, crowds, and the unix socket."""

import asyncio
import gzip
import json
import os
import socket
import stat
import zlib

import aiohttp
import pytest

from scheduler_daemon import limits
from scheduler_daemon.api import auth, http_door
from scheduler_daemon.api.http import AddressUnusable, ApiServer
from scheduler_daemon.config import Address
from tests.unit.face import FaceOptions, FakeService, raw, running

HEALTH = {"jsonrpc": "2.0", "id": 1, "method": "workflow.health"}
BODY = json.dumps(HEALTH).encode()
SECRET = "correct-horse-battery-staple"


@pytest.fixture
async def face():
    async with running() as face:
        yield face


@pytest.fixture
async def guarded():
    async with running(FaceOptions(secret=SECRET)) as face:
        yield face


def head(**headers: str) -> bytes:
    whole = {"Host": "localhost", "Content-Type": "application/json", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in whole.items())
    return f"POST /rpc HTTP/1.1\r\n{lines}".encode()


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


# --- Host -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:8766", "LOCALHOST:9999", "[::1]:8766", "[::1]"])
async def test_a_host_of_this_machine_is_ours_on_any_port(face, host):
    assert (await face.post(HEALTH, {"Host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "evil.localhost.example.org",
        "127.0.0.1.nip.example",
        "localhost.",
        "10.0.0.1",
        "[::2]",
        "localhost:x",
        "[::1",
        "",
    ],
)
async def test_a_host_that_is_not_ours_is_421_on_every_path(face, host):
    for path in ("/healthz", "/readyz", "/metrics", "/openrpc.json"):
        assert (await face.get(path, {"Host": host})).status == 421
    assert (await face.post(HEALTH, {"Host": host})).status == 421
    assert face.service.calls == []


async def test_two_hosts_or_none_are_refused(face):
    two = await raw(face.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    none = await raw(face.port, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert status_of(two) in {400, 421}
    assert status_of(none) in {400, 421}


async def test_a_configured_host_is_ours_too():
    async with running(FaceOptions(allowed_hosts=("scheduler.example.org",))) as face:
        assert (await face.post(HEALTH, {"Host": "Scheduler.example.org:80"})).status == 200
        assert (await face.post(HEALTH, {"Host": "example.org"})).status == 421


def test_listening_everywhere_any_literal_address_is_ours_and_a_name_is_not():
    gate = auth.Gate(token=None, hosts=("0.0.0.0",), any_address=True)
    assert gate.judge(_headers(Host="192.0.2.7:8766")) is None
    assert gate.judge(_headers(Host="[2001:db8::1]:8766")) is None
    assert gate.judge(_headers(Host="example.org")).status == 421


def _headers(**headers: str):
    from multidict import CIMultiDict

    return CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})


# --- browsers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sign",
    [
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Origin": "http://localhost:8766"},
        {"Referer": "https://example.org/page"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_any_sign_of_a_browser_is_403(face, sign):
    assert (await face.post(HEALTH, sign)).status == 403
    assert (await face.get("/metrics", sign)).status == 403
    assert face.service.calls == []


async def test_the_question_a_browser_asks_first_is_refused(face):
    async with face.session.options(face.url + "/rpc", headers={"Origin": "https://example.org"}) as response:
        assert response.status == 403
        assert "Access-Control-Allow-Origin" not in response.headers


# --- content ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp",
     "application/json; charset=utf-16", "text/plain;application/json", ""],
)  # fmt: skip
async def test_any_content_type_but_json_is_415(face, kind):
    assert (await face.post(BODY, {"Content-Type": kind})).status == 415
    assert face.service.calls == []


@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;charset=UTF-8"],
)
async def test_json_in_any_spelling_is_taken(face, kind):
    assert (await face.post(BODY, {"Content-Type": kind})).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity"])
async def test_an_encoded_body_is_415_and_never_unpacked(face, encoding):
    bomb = gzip.compress(b" " * 50_000_000) if encoding == "gzip" else zlib.compress(b" " * 1000)
    answer = await raw(
        face.port, head(Content_Encoding=encoding, Content_Length=str(len(bomb)), Connection="close") + b"\r\n" + bomb
    )
    assert status_of(answer) == 415
    assert face.service.calls == []


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_the_right_token_opens_every_path(guarded):
    shown = {"Authorization": f"Bearer {SECRET}"}
    assert (await guarded.post(HEALTH, shown)).status == 200
    for path in ("/readyz", "/metrics", "/openrpc.json"):
        assert (await guarded.get(path, shown)).status == 200


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        SECRET,
        f"Basic {SECRET}",
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET.upper()}",
        "Bearer",
        "Bearer \u00e4",
    ],
)
async def test_without_the_token_nothing_but_the_sign_of_life_is_shown(guarded, value):
    shown = {} if value is None else {"Authorization": value}
    refused = await guarded.post(HEALTH, shown)
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    for path in ("/readyz", "/metrics", "/openrpc.json"):
        assert (await guarded.get(path, shown)).status == 401
    assert (await guarded.get("/healthz", shown)).status == 200
    assert guarded.service.calls == []


async def test_the_word_bearer_is_taken_in_any_case(guarded):
    assert (await guarded.post(HEALTH, {"Authorization": f"bearer  {SECRET}"})).status == 200


async def test_two_tokens_are_refused(guarded):
    double = head(Content_Length=str(len(BODY)), Connection="close")
    double += f"Authorization: Bearer {SECRET}\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode() + BODY
    assert status_of(await raw(guarded.port, double)) in {400, 401}


async def test_the_token_is_judged_before_a_byte_of_the_body_is_waited_for(guarded):
    answer = await raw(guarded.port, head(Content_Length="1000") + b"\r\n", until=lambda got: b"\r\n\r\n" in got)
    assert status_of(answer) == 401


# --- sizes ------------------------------------------------------------------------------------------------------------


async def test_a_body_of_a_mebibyte_is_read(face):
    body = json.dumps({**HEALTH, "id": "x" * (limits.BODY_BYTES_MAX - len(BODY) - 1)}).encode()
    assert limits.BODY_BYTES_MAX - 4 <= len(body) <= limits.BODY_BYTES_MAX
    assert (await face.post(body)).status == 200


async def test_a_body_that_says_it_is_larger_is_413_before_it_is_sent(face):
    said = head(Content_Length=str(limits.BODY_BYTES_MAX + 1))
    assert status_of(await raw(face.port, said + b"\r\n", until=lambda got: b"\r\n\r\n" in got)) == 413


async def test_a_body_in_chunks_that_grows_larger_is_413(face):
    async def chunks():
        for _ in range(20):
            yield b" " * 65536

    answer = await face.post(chunks())
    assert answer.status == 413
    assert face.service.calls == []


async def test_long_lines_and_many_headers_are_400_without_the_librarys_words(face):
    for text in (
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
    ):
        answer = await raw(face.port, text)
        assert status_of(answer) == 400
        assert b"Content-Length: 0" in answer
        assert b"aiohttp" not in answer


# --- slowness ---------------------------------------------------------------------------------------------------------


async def test_a_body_that_does_not_arrive_is_408(face, monkeypatch):
    monkeypatch.setattr(limits, "BODY_READ_S", 0.1)
    answer = await raw(face.port, head(Content_Length=str(len(BODY))) + b"\r\n" + BODY[:5])
    assert status_of(answer) == 408
    assert face.service.calls == []


async def test_a_head_that_does_not_arrive_ends_the_connection(monkeypatch):
    monkeypatch.setitem(http_door.HANDLER, "keepalive_timeout", 0.2)
    async with running() as face:
        assert await raw(face.port, b"POST /rpc HTTP/1.1\r\nHost: local") == b""
        assert await raw(face.port, b"") == b""


async def test_an_idle_connection_ends_after_its_answer(monkeypatch):
    monkeypatch.setitem(http_door.HANDLER, "keepalive_timeout", 0.2)
    async with running() as face:
        answer = await raw(face.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_of(answer) == 200


async def test_a_caller_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind(face):
    _, writer = await asyncio.open_connection("127.0.0.1", face.port)
    writer.write(head(Content_Length="1000") + b"\r\n{")
    await writer.drain()
    writer.close()
    for _ in range(200):
        if b"scheduler_http_connections 1.0" in (await face.get("/metrics")).body:
            break
    else:
        pytest.fail("the connection of the caller that left is still counted")
    assert face.service.calls == []


# --- crowds -----------------------------------------------------------------------------------------------------------


async def test_five_hundred_half_open_connections_do_not_keep_a_caller_out(face):
    crowd = []
    try:
        for _ in range(500):
            reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
            writer.write(b"POST /rpc HTTP/1.1\r\nHost: localhost\r\n")
            crowd.append((reader, writer))
            if len(crowd) % 100 == 0:
                assert (await face.post(HEALTH, {"Connection": "close"})).status == 200
        metrics = (await face.get("/metrics")).body.decode()
        open_now = next(
            float(line.split()[1]) for line in metrics.splitlines() if line.startswith("scheduler_http_connections ")
        )
        assert open_now <= limits.CONNECTIONS_MAX
    finally:
        for _, writer in crowd:
            writer.transport.abort()


async def test_a_call_that_is_being_carried_out_is_never_given_up(face, monkeypatch):
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 3)
    resume = {"jsonrpc": "2.0", "id": 1, "method": "workflow.runs.resume", "params": {"run_id": "run-000001"}}
    waiting = asyncio.create_task(face.post(resume))
    await asyncio.wait_for(face.service.entered.wait(), 10)
    for _ in range(10):
        assert (await face.post(HEALTH, {"Connection": "close"})).status == 200
        _, writer = await asyncio.open_connection("127.0.0.1", face.port)
        writer.close()
    face.service.gate.set()
    assert (await asyncio.wait_for(waiting, 10)).json["result"]["status"] == "completed"


async def test_one_call_too_many_is_429_and_the_connection_lives_on(face, monkeypatch):
    monkeypatch.setattr(limits, "CALLS_MAX", 1)
    resume = {"jsonrpc": "2.0", "id": 1, "method": "workflow.runs.resume", "params": {"run_id": "run-000001"}}
    waiting = asyncio.create_task(face.post(resume))
    await asyncio.wait_for(face.service.entered.wait(), 10)
    answer = await face.post(HEALTH)
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    assert (await face.get("/healthz")).status == 200
    face.service.gate.set()
    await asyncio.wait_for(waiting, 10)
    assert (await face.post(HEALTH)).status == 200


# --- addresses --------------------------------------------------------------------------------------------------------


async def test_an_address_in_use_is_named_and_nothing_is_left_open(face, tmp_path):
    path = tmp_path / "run" / "face.sock"
    taken = ApiServer(FakeService(), FaceOptions(listen=Address("127.0.0.1", face.port), socket_path=path))
    with pytest.raises(AddressUnusable, match=f"127.0.0.1:{face.port}: somebody else listens there"):
        await taken.start()
    assert not path.exists()


async def test_an_address_of_another_machine_is_named():
    with pytest.raises(AddressUnusable, match=r"192\.0\.2\.1:0"):
        await ApiServer(FakeService(), FaceOptions(listen=Address("192.0.2.1", 0))).start()


async def test_ipv6_is_listened_on_where_there_is_any():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with running(FaceOptions(listen=Address("::1", 0))) as face:
        assert face.url.startswith("http://[::1]:")
        assert (await face.post(HEALTH)).status == 200


# --- the unix socket --------------------------------------------------------------------------------------------------


async def over_unix(path, body=HEALTH) -> int:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.post("http://localhost/rpc", json=body) as response,
    ):
        return response.status


async def test_the_socket_is_for_this_user_alone_and_goes_away_with_the_face(tmp_path):
    path = tmp_path / "run" / "face.sock"
    async with running(FaceOptions(listen=None, socket_path=path)) as face:
        assert face.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert await over_unix(path) == 200
    assert not path.exists()


async def test_both_doors_lead_to_one_service(tmp_path):
    path = tmp_path / "run" / "face.sock"
    async with running(FaceOptions(socket_path=path)) as face:
        assert (await face.post(HEALTH)).status == 200
        assert await over_unix(path) == 200
        assert face.service.calls == [("health",), ("health",)]


async def test_the_socket_of_a_killed_daemon_is_replaced(tmp_path):
    path = tmp_path / "run" / "face.sock"
    path.parent.mkdir(mode=0o700)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    async with running(FaceOptions(listen=None, socket_path=path)):
        assert await over_unix(path) == 200


async def test_a_socket_that_answers_is_not_taken_over(tmp_path):
    path = tmp_path / "run" / "face.sock"
    async with running(FaceOptions(listen=None, socket_path=path)):
        with pytest.raises(AddressUnusable, match="somebody else listens there"):
            await ApiServer(FakeService(), FaceOptions(listen=None, socket_path=path)).start()
        assert await over_unix(path) == 200


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "run" / "face.sock"
    path.parent.mkdir(mode=0o700)
    path.write_text("precious")
    with pytest.raises(AddressUnusable, match="no socket"):
        await ApiServer(FakeService(), FaceOptions(listen=None, socket_path=path)).start()
    assert path.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
async def test_a_folder_that_others_may_enter_is_refused(tmp_path, mode):
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(AddressUnusable, match="chmod 700"):
        await ApiServer(FakeService(), FaceOptions(listen=None, socket_path=folder / "face.sock")).start()


async def test_a_peer_of_another_user_is_turned_away(tmp_path, monkeypatch):
    path = tmp_path / "run" / "face.sock"
    async with running(FaceOptions(listen=None, socket_path=path)) as face:
        monkeypatch.setattr(http_door, "is_same_user", lambda _peer: False)
        with pytest.raises(aiohttp.ClientError):
            await over_unix(path)
        assert face.service.calls == []


@pytest.mark.root
async def test_another_uid_gets_nowhere_even_where_the_folder_lets_it_in(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: only root can become somebody else")
    path = tmp_path / "run" / "face.sock"
    async with running(FaceOptions(listen=None, socket_path=path)) as face:
        for entered in (path, path.parent, *path.parent.parents):
            if entered != entered.parent and entered.stat().st_mode & 0o007 != 0o007:
                entered.chmod(0o777)
        process = await asyncio.create_subprocess_exec(
            "python3", "-c",
            "import socket, sys\n"
            "peer = socket.socket(socket.AF_UNIX)\n"
            "peer.connect(sys.argv[1])\n"
            "peer.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')\n"
            "sys.exit(len(peer.recv(100)))",
            str(path), user=65534, group=65534, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, error = await process.communicate()
        assert process.returncode == 0 or b"ConnectionReset" in error or b"BrokenPipe" in error, error
        assert await over_unix(path) == 200
        assert face.service.calls == [("health",)]


# --- the loop ---------------------------------------------------------------------------------------------------------


async def test_answering_does_not_block_the_loop(face, blocking_the_loop_fails):
    assert (await face.post(HEALTH)).status == 200
    assert (await face.get("/metrics")).status == 200
    assert (await face.get("/readyz")).status == 200
    assert (await face.get("/openrpc.json")).status == 200
