"""How a call ends: each ending is produced over a real socket by a server that misbehaves in exactly one way."""

import asyncio
import errno
import gzip
import random
import shutil
import socket
import ssl
import subprocess

import aiohttp
import pytest

import rpc_client.exchange
from rpc_client.errors import TOO_LARGE, Ambiguous, Answered, NotSent, Refused
from rpc_client.transport import CallProbe, Limits, Transport
from tests.fakes.raw import answers, http_answer, listening, raw_server, read_request

SHORT = Limits(connect_s=10.0, read_s=10.0)


async def call(url, *, blocking=True, method="workflow.runs.start", params=None, limits=SHORT, **how):
    async with Transport(url, limits=limits) as transport:
        return await transport.call(method, {} if params is None else params, blocking=blocking, **how)


async def never_answer(reader, _writer, _request):
    await reader.read()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


# -- answered and refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_result_is_answered_as_decoded_json(blocking):
    async with raw_server(answers()) as server:
        assert await call(server.url, blocking=blocking) == Answered(True)


async def test_the_request_carries_the_params_the_key_and_nothing_compressed():
    async with raw_server(answers()) as server:
        await call(server.url, params={"deployment_id": "d"}, idempotency_key="store:run-000001")

        request, head = server.request(), server.head()
        assert request["jsonrpc"] == "2.0"
        assert request["method"] == "workflow.runs.start"
        assert request["params"] == {"deployment_id": "d"}
        assert head["idempotency-key"] == "store:run-000001"
        assert head["content-type"] == "application/json"
        assert head["accept-encoding"] == "identity"
        assert "connection" not in head


async def test_a_request_is_one_head_and_one_body_byte_for_byte():
    arrived = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        arrived.set_result(await reader.readuntil(b"}"))
        writer.close()

    async with listening(take) as port:
        async with Transport(f"http://127.0.0.1:{port}/a%20b/rpc?c=d", token="secret") as transport:
            await transport.call("workflow.runs.start", {}, blocking=True, idempotency_key="store:run-000001")
        assert (await arrived).decode() == "\r\n".join(
            [
                "POST /a%20b/rpc?c=d HTTP/1.1",
                f"Host: 127.0.0.1:{port}",
                "Accept: application/json",
                "Accept-Encoding: identity",
                "Content-Type: application/json",
                "User-Agent: rpc-client",
                "Idempotency-Key: store:run-000001",
                "Authorization: Bearer secret",
                "Content-Length: 67",
                "",
                '{"jsonrpc":"2.0","method":"workflow.runs.start","params":{}',
            ]
        )


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 3]
)
async def test_what_comes_before_the_final_answer_is_passed_over(first):
    async def say(_reader, writer, request):
        writer.write(first)
        await writer.drain()
        writer.write(http_answer(b'{"jsonrpc":"2.0","id":%d,"result":true}' % request["id"]))

    async with raw_server(say) as server:
        assert await call(server.url) == Answered(True)


async def test_a_json_rpc_error_is_refused_with_its_code_and_data():
    async def refuse(_reader, writer, request):
        body = (
            b'{"jsonrpc":"2.0","id":%d,"error":{"code":5000,"message":"m","data":{"code":"KeyError"}}}' % request["id"]
        )
        writer.write(http_answer(body))

    async with raw_server(refuse) as server:
        assert await call(server.url) == Refused(5000, "m", {"code": "KeyError"})


async def test_a_parse_error_without_an_id_is_refused_since_the_server_could_not_know_it():
    async with raw_server(answers(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"bad"}}')) as server:
        assert await call(server.url) == Refused(-32700, "bad")


async def test_http_413_is_refused_as_too_large():
    async with raw_server(answers(b"", status="413 Content Too Large")) as server:
        assert await call(server.url) == Refused(TOO_LARGE, "HTTP 413 Content Too Large")


async def test_a_request_over_the_limit_is_refused_without_being_sent():
    async with raw_server(answers()) as server:
        ending = await call(server.url, params={"x": "y" * 5_000}, limits=Limits(request_bytes_max=1_000))

        assert isinstance(ending, Refused)
        assert ending.code == TOO_LARGE
        assert server.received == []


# -- not sent ---------------------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_not_sent_and_the_server_is_down():
    ending = await call(f"http://127.0.0.1:{closed_port()}")

    assert isinstance(ending, NotSent)
    assert ending.server_down
    assert ending.http_status is None


async def test_an_unknown_name_is_not_sent_and_the_server_is_down():
    ending = await call("http://xn--/rpc")

    assert isinstance(ending, NotSent)
    assert ending.server_down


async def test_a_missing_unix_socket_is_not_sent_and_the_server_is_down(tmp_path):
    async with Transport("http://localhost", socket_path=str(tmp_path / "none")) as transport:
        ending = await transport.call("m", {}, blocking=True)

    assert isinstance(ending, NotSent)
    assert ending.server_down


async def test_a_failed_tls_handshake_is_not_sent():
    async def speak_plainly(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with listening(speak_plainly) as port:
        ending = await call(f"https://127.0.0.1:{port}")

    assert isinstance(ending, NotSent)
    assert ending.reason.startswith("ClientConnectorSSLError")
    assert ending.server_down


async def test_the_reason_of_a_failed_connection_is_told_without_the_librarys_words(tmp_path):
    port = closed_port()
    assert (await call(f"http://127.0.0.1:{port}")).reason == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert (await call("http://xn--/rpc")).reason.startswith("cannot connect to xn--:80: ")
    path = tmp_path / "none"
    async with Transport("http://localhost/rpc", socket_path=str(path)) as transport:
        ending = await transport.call("m", {}, blocking=True)
    assert ending.reason == f"cannot connect to {path}: No such file or directory"


async def test_a_connection_that_is_never_accepted_is_not_sent_after_the_connect_timeout():
    with socket.socket() as full, socket.socket() as one, socket.socket() as two, socket.socket() as three:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (one, two, three):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())

        ending = await call(f"http://127.0.0.1:{full.getsockname()[1]}", limits=Limits(connect_s=0.2))

    assert isinstance(ending, NotSent)
    assert ending.reason.startswith("ConnectionTimeoutError")


async def test_a_lack_of_descriptors_is_not_sent_and_says_nothing_about_the_server(monkeypatch):
    def no_socket(*_args):
        raise OSError(errno.EMFILE, "Too many open files")

    transport = Transport("http://127.0.0.1:1")
    async with transport:
        monkeypatch.setattr(socket, "socket", no_socket)
        ending = await transport.call("m", {}, blocking=True)

    assert isinstance(ending, NotSent)
    assert not ending.server_down
    assert ending.http_status is None


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 401, 403, 404, 405, 415, 421, 429])
async def test_a_status_from_before_the_method_is_not_sent_with_that_status(status):
    async with raw_server(answers(b"", status=f"{status} Nope")) as server:
        assert await call(server.url) == NotSent(f"HTTP {status} Nope", status, server_down=False)


async def test_a_redirect_is_not_followed():
    async with raw_server(answers()) as elsewhere:
        to = (f"Location: {elsewhere.url}",)
        async with raw_server(answers(b"", status="307 Temporary Redirect", headers=to)) as server:
            ending = await call(server.url)

        assert isinstance(ending, NotSent)
        assert ending.http_status == 307
        assert len(server.received) == 1
        assert elsewhere.received == []


async def test_a_status_is_believed_although_its_body_never_ends():
    async def half(reader, writer, _request):
        writer.write(http_answer(b"x", status="401 Unauthorized", length=1_000))
        await reader.read()

    async with raw_server(half) as server:
        assert await call(server.url) == NotSent("HTTP 401 Unauthorized", 401, server_down=False)


# -- ambiguous --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [201, 204, 400, 402, 406, 408, 409, 410, 422, 500, 502, 503, 504])
async def test_any_other_status_is_ambiguous(status):
    async with raw_server(answers(b"", status=f"{status} Hm")) as server:
        assert await call(server.url) == Ambiguous(f"HTTP {status} Hm", status)


@pytest.mark.parametrize(
    "answer",
    {
        "closed before a byte": b"",
        "closed inside the head": b"HTTP/1.1 200 OK\r\nContent-Le",
        "closed after the head": http_answer(b"", length=40),
        "closed inside the body": http_answer(b'{"jsonrpc":"2.0","id":1,', length=200),
        "a chunk cut short": http_answer(b"", headers=("Transfer-Encoding: chunked",)).replace(
            b"Content-Length: 0\r\n", b""
        )
        + b'20\r\n{"jsonrpc":',
        "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
        "not JSON": http_answer(b"<html>busy</html>"),
        "not UTF-8": http_answer(b'{"jsonrpc":"2.0","id":1,"result":"\xff"}'),
        "an empty body": http_answer(b""),
        "a batch": http_answer(b'[{"jsonrpc":"2.0","id":1,"result":1}]'),
        "another protocol": http_answer(b'{"jsonrpc":"1.0","id":1,"result":1}'),
        "neither result nor error": http_answer(b'{"jsonrpc":"2.0","id":1}'),
        "both result and error": http_answer(b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}'),
        "another id": http_answer(b'{"jsonrpc":"2.0","id":2,"result":1}'),
        "our id as text": http_answer(b'{"jsonrpc":"2.0","id":"1","result":1}'),
        "no id": http_answer(b'{"jsonrpc":"2.0","result":1}'),
        "an internal error without an id": http_answer(
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":""}}'
        ),
        "compressed": http_answer(
            gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":1}'), headers=("Content-Encoding: gzip",)
        ),
        "too deep": http_answer(b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    }.items(),
    ids=lambda pair: pair[0],
)
@pytest.mark.parametrize("blocking", [True, False])
async def test_an_answer_that_proves_nothing_is_ambiguous(answer, blocking):
    async def say(_reader, writer, _request):
        writer.write(answer[1])
        await writer.drain()

    async with raw_server(say) as server:
        ending = await call(server.url, blocking=blocking)

        assert isinstance(ending, Ambiguous), ending
        assert ending.reason.isprintable()
        assert len(server.received) == 1


async def test_a_connection_reset_after_the_request_is_ambiguous():
    async def reset(_reader, writer, _request):
        writer.transport.abort()

    async with raw_server(reset) as server:
        assert isinstance(await call(server.url), Ambiguous)


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_server_that_never_answers_is_ambiguous_after_the_timeout(blocking):
    async with raw_server(never_answer) as server:
        ending = await call(server.url, blocking=blocking, timeout_s=0.1)

        assert isinstance(ending, Ambiguous)
        assert server.request()["method"] == "workflow.runs.start"


async def test_a_read_has_a_bound_in_time_of_its_own():
    async with raw_server(never_answer) as server:
        assert isinstance(await call(server.url, blocking=False, limits=Limits(read_s=0.1)), Ambiguous)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_huge_answer_is_ambiguous_and_is_not_read_to_its_end(announced):
    written = 0

    async def flood(_reader, writer, _request):
        nonlocal written
        length = ("Content-Length: 1000000000",) if announced else ()
        writer.write("\r\n".join(["HTTP/1.1 200 OK", *length, "", ""]).encode())
        while written < 50_000_000:
            writer.write(b" " * 65_536)
            await writer.drain()
            written += 65_536

    async with raw_server(flood) as server:
        ending = await call(server.url, limits=Limits(answer_bytes_max=100_000))

    assert ending == Ambiguous("answer larger than 100000 bytes", 200, beyond=True)
    assert written < 20_000_000


async def test_a_server_that_answers_early_and_reads_no_further_neither_holds_the_call_nor_gets_the_rest():
    answered = asyncio.Event()
    rest = asyncio.get_running_loop().create_future()

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        writer.write(http_answer(b"", status="413 Content Too Large"))
        await answered.wait()
        writer.transport.resume_reading()
        try:
            rest.set_result(len(await reader.read()))
        except ConnectionError:
            rest.set_result(0)

    large, limits = {"x": "y" * 30_000_000}, Limits(request_bytes_max=1 << 30)
    async with (
        asyncio.timeout(5),
        listening(early) as port,
        Transport(f"http://127.0.0.1:{port}", limits=limits) as transport,
    ):
        ending = await transport.call("m", large, blocking=True)
        answered.set()
        assert await rest < 30_000_000

    assert ending == Refused(TOO_LARGE, "HTTP 413 Content Too Large")


async def test_replies_mangled_at_random_never_raise_and_never_pass_for_not_sent():
    dice = random.Random(20_261_130)
    good = http_answer(b'{"jsonrpc":"2.0","id":1,"result":{"a":[1,2,3]}}')
    reply = good

    async def say(_reader, writer, _request):
        writer.write(reply)
        await writer.drain()

    async with raw_server(say) as server, Transport(server.url) as transport:
        for _ in range(300):
            mangled = bytearray(good)
            for _ in range(dice.randrange(1, 5)):
                at = dice.randrange(len(mangled))
                mangled[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(4))
            reply = bytes(mangled)
            ending = await transport.call("m", {}, blocking=True, timeout_s=2)
            assert not isinstance(ending, NotSent) or ending.http_status is not None, reply


# -- cancellation -----------------------------------------------------------------------------------------------------


async def test_a_call_cancelled_before_it_was_sent_leaves_no_byte_and_says_so():
    async with raw_server(never_answer) as server, Transport(server.url) as transport:
        probe = CallProbe()
        calling = asyncio.create_task(transport.call("m", {}, blocking=True, probe=probe))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

        assert not probe.sent
        assert all(not received for received in server.received)


async def test_a_call_cancelled_after_it_was_sent_says_so_and_closes_its_connection():
    gone = asyncio.Event()

    async def wait_for_the_end(reader, _writer, _request):
        await reader.read()
        gone.set()

    async with raw_server(wait_for_the_end) as server, Transport(server.url) as transport:
        probe = CallProbe()
        calling = asyncio.create_task(transport.call("m", {}, blocking=True, probe=probe))
        await asyncio.wait_for(server.arrived.wait(), 5)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

        assert probe.sent
        await asyncio.wait_for(gone.wait(), 5)


async def test_wherever_a_call_is_cancelled_nothing_arrived_unless_the_probe_says_sent():
    """The proof behind `NotSent`, at every step of the event loop that a call goes through."""
    arrived: set[str] = set()
    sent: dict[str, bool] = {}
    all_read = asyncio.Event()
    opened = closed = 0

    async def record(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter):
        nonlocal opened, closed
        opened += 1
        try:
            head = await reader.read(-1)
            if head:
                arrived.add(head.partition(b"Idempotency-Key: ")[2].partition(b"\r\n")[0].decode())
        finally:
            closed += 1
            if opened == closed:
                all_read.set()

    async with listening(record) as port, Transport(f"http://127.0.0.1:{port}") as transport:
        for trial in range(400):
            probe, key = CallProbe(), f"key-{trial}"
            calling = asyncio.create_task(transport.call("m", {}, blocking=True, idempotency_key=key, probe=probe))
            for _ in range(trial % 40):
                await asyncio.sleep(0)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            sent[key] = probe.sent
        while opened != closed:
            all_read.clear()
            await asyncio.wait_for(all_read.wait(), 10)

    assert {key for key in arrived if not sent[key]} == set()
    assert len(arrived) > 20, "the cancels all came too early to prove anything"
    assert not all(sent.values()), "the cancels all came too late to prove anything"


# -- connections ------------------------------------------------------------------------------------------------------


async def test_a_read_that_meets_a_stale_connection_is_sent_once_more():
    accepted = 0

    async def answer_once_then_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        nonlocal accepted
        accepted += 1
        request = await read_request(reader, bytearray())
        writer.write(http_answer(b'{"jsonrpc":"2.0","id":%d,"result":%d}' % (request["id"], accepted)))
        await read_request(reader, bytearray())
        writer.transport.abort()

    async with listening(answer_once_then_go) as port, Transport(f"http://127.0.0.1:{port}") as transport:
        assert await transport.call("m", {}, blocking=False) == Answered(1)
        assert await transport.call("m", {}, blocking=False) == Answered(2)
    assert accepted == 2


async def test_a_blocking_call_is_never_sent_twice():
    async def reset(_reader, writer, _request):
        writer.transport.abort()

    async with raw_server(reset) as server, Transport(server.url) as transport:
        await transport.call("m", {}, blocking=True)
        await transport.call("m", {}, blocking=True)

        assert len(server.received) == 2


async def connections_for_three_calls(*, reuse_s, answers_each=1):
    """How many connections three calls in a row open to a server that answers each request so many times."""
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        nonlocal accepted
        accepted += 1
        head = bytearray()
        while (request := await read_request(reader, head)) is not None:
            writer.write(http_answer(b'{"jsonrpc":"2.0","id":%d,"result":1}' % request["id"]) * answers_each)

    limits = Limits(reuse_s=reuse_s)
    async with listening(serve) as port, Transport(f"http://127.0.0.1:{port}", limits=limits) as transport:
        for _ in range(3):
            assert await transport.call("m", {}, blocking=True) == Answered(1)
    return accepted


@pytest.mark.parametrize(("reuse_s", "connections"), [(60.0, 1), (0.0, 3)])
async def test_a_blocking_call_takes_a_connection_that_was_used_a_moment_ago_and_no_older_one(reuse_s, connections):
    assert await connections_for_three_calls(reuse_s=reuse_s) == connections


async def test_a_connection_by_which_more_came_than_was_asked_for_is_not_used_again():
    assert await connections_for_three_calls(reuse_s=60.0, answers_each=2) == 3


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_that_of_the_next_call():
    """It comes while the connection rests, and is read by then: the socket shows nothing any more."""
    requests, unasked = [], asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        head = bytearray()
        while (request := await read_request(reader, head)) is not None:
            requests.append(request["id"])
            writer.write(http_answer(b'{"jsonrpc":"2.0","id":%d,"result":1}' % request["id"]))
            if len(requests) == 1:
                await unasked.wait()
                writer.write(http_answer(b"", status="408 Request Timeout"))

    async with listening(serve) as port, Transport(f"http://127.0.0.1:{port}") as transport:
        assert await transport.call("m", {}, blocking=True) == Answered(1)
        unasked.set()
        (rested,) = transport._blocking._connector._conns.values()
        async with asyncio.timeout(5):
            while not rested[0][0].should_close:  # noqa: ASYNC110  the library says nothing when it has read
                await asyncio.sleep(0)
        assert await transport.call("m", {}, blocking=True) == Answered(1)
    assert requests == [1, 2]


async def test_the_kernel_watches_the_peer_of_a_blocking_call(monkeypatch):
    opened: list[socket.socket] = []
    real = rpc_client.exchange._watched_socket

    def remembered(address):
        opened.append(real(address))
        return opened[-1]

    monkeypatch.setattr(rpc_client.exchange, "_watched_socket", remembered)
    async with raw_server(never_answer) as server, Transport(server.url) as transport:
        calling = asyncio.create_task(transport.call("m", {}, blocking=True))
        await asyncio.wait_for(server.arrived.wait(), 5)
        (connection,) = opened
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        calling.cancel()


async def test_a_unix_socket_is_reached_by_its_url_and_by_its_path(tmp_path):
    path = str(tmp_path / "s.sock")
    async with raw_server(answers(), unix_path=path) as server:
        assert await call("http+unix://" + path.replace("/", "%2F") + "/rpc") == Answered(True)
        async with Transport("http://daemon/rpc", socket_path=path) as transport:
            assert await transport.call("m", {}, blocking=False) == Answered(True)
        assert server.head()["host"] == "daemon"


async def test_proxies_of_the_environment_are_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    async with raw_server(answers()) as server:
        assert await call(server.url) == Answered(True)


@pytest.fixture
def certificate(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate to test with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*made.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


async def test_a_certificate_is_trusted_only_with_its_ca_file(certificate):
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def secure(reader, writer):
        await read_request(reader, bytearray())
        writer.write(http_answer(b'{"jsonrpc":"2.0","id":1,"result":true}'))
        await writer.drain()

    async with listening(secure, tls=context) as port:
        url = f"https://localhost:{port}"
        stranger = await call(url)
        async with Transport(url, ca_file=str(cert)) as transport:
            friend = await transport.call("m", {}, blocking=True)

    assert isinstance(stranger, NotSent)
    assert friend == Answered(True)


async def test_over_tls_a_request_does_not_wait_behind_one_that_was_not_taken(certificate):
    """The server answers early and reads no further; the rest lies below TLS, where the transport does not count it."""
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    over, accepted = asyncio.Event(), 0

    async def early(reader, writer):
        nonlocal accepted
        accepted += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        writer.write(http_answer(b'{"jsonrpc":"2.0","id":%d,"result":1}' % accepted))
        await over.wait()

    limits = Limits(reuse_s=60.0, request_bytes_max=1 << 30)
    async with (
        asyncio.timeout(20),
        listening(early, tls=context) as port,
        Transport(f"https://localhost:{port}", ca_file=str(cert), limits=limits) as transport,
    ):
        assert await transport.call("m", {"x": "y" * 8_000_000}, blocking=True) == Answered(1)
        assert await transport.call("m", {}, blocking=True) == Answered(1)
        over.set()
    assert accepted == 2


# -- credentials and addresses ----------------------------------------------------------------------------------------


async def test_the_token_file_is_read_again_after_the_server_refused_the_token(tmp_path):
    token_file = tmp_path / "token"

    async def check(_reader, writer, _request):
        if server.head()["authorization"] == "Bearer new":
            writer.write(http_answer(b'{"jsonrpc":"2.0","id":2,"result":true}'))
        else:
            writer.write(http_answer(b"", status="401 Unauthorized"))

    async with raw_server(check) as server, Transport(server.url, token_file=token_file) as transport:
        token_file.write_text("old\n")
        first = await transport.call("m", {}, blocking=True)
        token_file.write_text("new")
        second = await transport.call("m", {}, blocking=True)

    assert first == NotSent("HTTP 401 Unauthorized", 401, server_down=False)
    assert second == Answered(True)


async def test_without_a_readable_token_nothing_is_sent_and_the_server_is_not_called_down(tmp_path):
    async with raw_server(answers()) as server:
        async with Transport(server.url, token_file=tmp_path / "missing") as transport:
            ending = await transport.call("m", {}, blocking=True)

        assert isinstance(ending, NotSent)
        assert not ending.server_down
        assert server.received == []


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


async def test_reading_the_token_does_not_block_the_loop(token_file, blocking_the_loop_fails):
    async with raw_server(answers()) as server, Transport(server.url, token_file=token_file) as transport:
        assert await transport.call("m", {}, blocking=True) == Answered(True)
        assert server.head()["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://user:secret@127.0.0.1/rpc", "userinfo"),
        ("http://user@127.0.0.1/rpc", "userinfo"),
        ("ftp://127.0.0.1/rpc", "http://"),
        ("127.0.0.1:8765", "http://"),
        ("http:///rpc", "host"),
        ("http://127.0.0.1/rpc#x", "fragment"),
        ("http://127.0.0.1:99999/rpc", "(?i)port"),
        ("http://a..b/rpc", "idna"),
        ("http://127.0.0.1/rpc\n", "control"),
        ("http+unix://run%2Fs.sock/rpc", "absolute"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_with_the_reason(url, word):
    with pytest.raises(ValueError, match=word):
        Transport(url)


def test_a_url_without_a_path_means_the_rpc_path():
    assert Transport("http://127.0.0.1:8765").endpoint.url == "http://127.0.0.1:8765/rpc"
    assert Transport("http://127.0.0.1:8765/a?b=c").endpoint.url == "http://127.0.0.1:8765/a?b=c"


@pytest.mark.parametrize("key", ["", "a\r\nX-Evil: 1", "ä"])
async def test_an_idempotency_key_that_no_header_can_carry_is_a_fault_of_the_caller(key):
    async with raw_server(answers()) as server:
        with pytest.raises(ValueError, match="idempotency key"):
            await call(server.url, idempotency_key=key)
        assert server.received == []


async def test_params_without_a_json_form_are_a_fault_of_the_caller():
    with pytest.raises(TypeError):
        await call("http://127.0.0.1:1", params={"x": object()})


# -- lifecycle --------------------------------------------------------------------------------------------------------


async def test_closing_is_idempotent_and_may_come_before_opening():
    transport = Transport("http://127.0.0.1:1")
    await transport.close()
    await transport.open()
    await transport.open()
    await transport.close()
    await transport.close()
    with pytest.raises(RuntimeError, match="not open"):
        await transport.call("m", {}, blocking=True)


async def test_closing_ends_a_call_in_flight_as_ambiguous():
    async with raw_server(never_answer) as server:
        transport = Transport(server.url)
        await transport.open()
        calling = asyncio.create_task(transport.call("m", {}, blocking=True))
        await asyncio.wait_for(server.arrived.wait(), 5)
        await transport.close()

        assert isinstance(await asyncio.wait_for(calling, 5), Ambiguous)


async def test_closing_does_not_wait_for_a_server_that_takes_no_more_bytes():
    stuck = asyncio.Event()

    async def take_no_more(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        stuck.set()
        await asyncio.Event().wait()

    large = {"x": "y" * 30_000_000}
    async with listening(take_no_more) as port:
        transport = Transport(f"http://127.0.0.1:{port}", limits=Limits(request_bytes_max=1 << 30))
        await transport.open()
        calling = asyncio.create_task(transport.call("m", large, blocking=True))
        await asyncio.wait_for(stuck.wait(), 5)
        await asyncio.wait_for(transport.close(), 5)
        assert isinstance(await asyncio.wait_for(calling, 5), Ambiguous)


async def test_closing_during_a_name_lookup_ends_the_call_and_does_not_cancel_it(monkeypatch):
    looked_up = asyncio.Event()

    async def resolve(*_args, **_how):
        looked_up.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    transport = Transport("http://localhost:1")
    await transport.open()
    calling = asyncio.create_task(transport.call("m", {}, blocking=True))
    await asyncio.wait_for(looked_up.wait(), 5)
    await transport.close()
    assert isinstance(await asyncio.wait_for(calling, 5), NotSent)
