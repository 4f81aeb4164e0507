"""The controller's endpoint under slow clients, many clients, and web pages from other origins."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from streams.files.user_errors import UserError
from streams.health.alert_webhook import Webhook
from streams.health.controller_facts import Identity
from streams.health.guard import HttpLimits
from streams.health.status_server import HealthServer
from streams.health.tokens import NO_TOKEN, BearerToken, read_token
from tests.hang_limit import HANG_S
from topics.records import Alert

TOKEN = "a-token-of-sixteen-or-more"
ALERT_TOKEN = BearerToken(text="secret")


class Facts:
    """The values that the endpoint reads from a controller, and metrics of a chosen size."""

    identity = Identity("ctl", "b:1", "shoal.", embedded=True)
    text_bytes = b"shoal_leader 1\n"

    def leader(self) -> tuple[bool, int, str]:
        return True, 1, "ctl"

    def tick_age_s(self) -> float:
        return 0.0

    def status(self) -> dict[str, object]:
        return {"controller": "ctl", "models": []}

    def explain(self, model: str) -> None:
        return None

    def text(self) -> bytes:
        return self.text_bytes


@contextlib.asynccontextmanager
async def serving(
    limits: HttpLimits | None = None,
    read: BearerToken = NO_TOKEN,
    names: frozenset[str] = frozenset(),
    facts: Facts | None = None,
    address: str = "127.0.0.1:0",
) -> AsyncIterator[int]:
    async def publish(_: Alert) -> None:
        raise AssertionError("no alert of these tests is good")

    facts = facts or Facts()
    webhook = Webhook(publish, ALERT_TOKEN, lambda: Cluster((), ()), lambda: 0.0, body_s=0.3)
    server = HealthServer(
        address, facts, facts, webhook, lambda: True, read, names, limits or HttpLimits()  # type: ignore[arg-type]
    )  # fmt: skip
    await server.start()
    try:
        yield int(server.url.rpartition(":")[2])
    finally:
        await server.close()


async def ask(port: int, *lines: str, host: str = "127.0.0.1") -> bytes:
    """The complete response to a request with these lines, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (lines[0], *([f"Host: {host}"] if host else []), *lines[1:], "Connection: close", "", "")
    writer.write("\r\n".join(head).encode("latin-1"))
    try:
        return await asyncio.wait_for(reader.read(), HANG_S)
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


@pytest.mark.parametrize("sent", [b"", b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
async def test_a_connection_without_a_whole_head_is_closed(sent: bytes) -> None:
    async with serving(HttpLimits(idle_s=0.2)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), HANG_S) == b""
        writer.close()


async def test_a_missing_body_is_refused_and_the_connection_closed() -> None:
    async with serving() as port:
        answer = await ask(
            port, "POST /alerts HTTP/1.1", "Authorization: Bearer secret", "Content-Length: 100"
        )
        assert status(answer) == 408 and b"did not arrive within" in answer


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    facts = Facts()
    facts.text_bytes = b"x" * (64 * 1024 * 1024)  # far more than socket buffers can take
    async with serving(HttpLimits(request_s=0.3), facts=facts) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await asyncio.sleep(0)
        await asyncio.wait_for(_lost(writer), HANG_S)
        assert len(reader._buffer) < len(facts.text_bytes)  # type: ignore[attr-defined]


async def _lost(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not writer.transport.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.05)


async def test_connections_of_one_loop_iteration_keep_to_the_limit() -> None:
    async with serving(HttpLimits(connections=5)) as port:
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        async with asyncio.timeout(HANG_S):  # At first all connections wait in the backlog.
            while sum(not closed(each) for each in sockets) > 5:
                await asyncio.sleep(0)
        assert status(await ask(port, "GET /v1/status HTTP/1.1")) == 200
        for each in sockets:
            each.close()


def closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_many_idle_connections_do_not_lock_out_other_clients() -> None:
    async with serving(HttpLimits(connections=5)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        assert status(await ask(port, "GET /v1/status HTTP/1.1")) == 200
        async with asyncio.timeout(HANG_S):
            while sum(not reader.at_eof() for reader, _ in held) > 5:
                await asyncio.sleep(0)
        assert not held[-1][0].at_eof()
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "LOCALHOST", "a.localhost",
                                  "192.0.2.7", "controller.example", ""])  # fmt: skip
async def test_requests_to_addresses_and_declared_names_are_answered(host: str) -> None:
    async with serving(names=frozenset({"controller.example"})) as port:
        shown = f"{host}:{port}" if host else ""
        protocol = "HTTP/1.1" if host else "HTTP/1.0"
        assert status(await ask(port, f"GET /v1/status {protocol}", host=shown)) == 200


@pytest.mark.parametrize("host", ["attacker.example", "127.0.0.1.attacker.example", "localhost.x",
                                  "x@127.0.0.1", "2130706433", "a b"])  # fmt: skip
async def test_a_foreign_name_that_resolves_to_loopback_is_refused(host: str) -> None:
    async with serving() as port:
        for path in ("/v1/status", "/metrics", "/healthz"):
            assert status(await ask(port, f"GET {path} HTTP/1.1", host=host)) == 421


@pytest.mark.parametrize(
    ("protocol", "hosts", "code"),
    [
        ("HTTP/1.1", (), 400),
        ("HTTP/1.1", ("127.0.0.1", "127.0.0.1"), 400),
        ("HTTP/1.1", ("attacker.example", "127.0.0.1"), 400),
        ("HTTP/1.1", ("127.0.0.1", "attacker.example"), 400),
        ("HTTP/1.0", ("127.0.0.1", "attacker.example"), 400),
        ("HTTP/1.0", (), 200),
        ("HTTP/1.1", ("127.0.0.1",), 200),
    ],
)
async def test_a_request_has_one_host_header(
    protocol: str, hosts: tuple[str, ...], code: int
) -> None:
    async with serving() as port:
        lines = [f"Host: {host}" for host in hosts]
        assert status(await ask(port, f"GET /v1/status {protocol}", *lines, host="")) == code


async def test_two_authorization_headers_are_refused() -> None:
    async with serving(read=BearerToken(text=TOKEN)) as port:
        lines = (f"Authorization: Bearer {TOKEN}", "Authorization: Bearer wrong")
        for order in (lines, lines[::-1]):
            assert status(await ask(port, "GET /v1/status HTTP/1.1", *order)) == 400


async def test_an_endpoint_on_all_interfaces_accepts_any_name_unless_names_are_declared() -> None:
    async with serving(address="0.0.0.0:0") as port:
        assert status(await ask(port, "GET /healthz HTTP/1.1", host="any.example")) == 200
    async with serving(address="0.0.0.0:0", names=frozenset({"its.example"})) as port:
        assert status(await ask(port, "GET /healthz HTTP/1.1", host="any.example")) == 421
        assert status(await ask(port, "GET /healthz HTTP/1.1", host="its.example")) == 200


@pytest.mark.parametrize(
    "line",
    [
        "Origin: http://attacker.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ],
)
async def test_a_post_from_another_site_is_refused(line: str) -> None:
    async with serving() as port:
        answer = await ask(port, "POST /alerts HTTP/1.1", "Authorization: Bearer secret", line)
        assert status(answer) == 403


@pytest.mark.parametrize(
    "line",
    ["Authorization: Bearer \xff\xfe", "Authorization: \xe9", "Content-Type: \xff",
     "Content-Encoding: \xff", "Origin: \xff", "Sec-Fetch-Site: \xff", "Content-Length: -1",
     "Content-Length: 9x", "Transfer-Encoding: \xff", "Expect: \xff", "bad header", ": x",
     "X: a\x00b", "X: \x1b[2J"],
)  # fmt: skip
async def test_malformed_headers_are_refused_without_a_traceback(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as port:
        answer = await ask(port, "POST /alerts HTTP/1.1", line, "Content-Type: x")
        assert 400 <= status(answer) < 500
    assert "Traceback" not in caplog.text and not [r for r in caplog.records if r.exc_info]


@pytest.mark.parametrize(
    "target",
    ["/\xff", "/v1/explain/%ff%00", "/v1/explain/\x1b[2J", "*", "http://x:99999/", "//x",
     "/../metrics", pytest.param("/" + "a" * 9000, id="long")],
)  # fmt: skip
async def test_malformed_targets_are_refused_without_a_traceback(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as port:
        assert 400 <= status(await ask(port, f"GET {target} HTTP/1.1")) < 500
    assert not [r for r in caplog.records if r.exc_info]


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with serving() as port:
        lines = ("Authorization: Bearer secret", "Expect: 100-continue", "Content-Length: 0")
        answer = await ask(port, "POST /alerts HTTP/1.1", *lines)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 ")


async def test_reads_need_the_token_and_probes_do_not() -> None:
    async with serving(read=BearerToken(text=TOKEN)) as port:
        for path in ("/metrics", "/v1/status", "/v1/explain/x"):
            assert status(await ask(port, f"GET {path} HTTP/1.1")) == 401
            wrong = await ask(port, f"GET {path} HTTP/1.1", "Authorization: Bearer secret")
            assert status(wrong) == 401
        good = await ask(port, "GET /metrics HTTP/1.1", f"Authorization: Bearer {TOKEN}")
        assert status(good) == 200
        for path in ("/healthz", "/readyz"):
            assert status(await ask(port, f"GET {path} HTTP/1.1")) == 200


def test_the_read_token_comes_from_the_environment_or_a_file_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    assert not read_token({})
    assert read_token({"SHOAL_READ_TOKEN": TOKEN}).read() == TOKEN
    from_file = read_token({"SHOAL_READ_TOKEN_FILE": str(path)})
    assert from_file.read() == TOKEN
    path.write_text("another-token-of-some-length")
    assert from_file.allows("Bearer another-token-of-some-length")
    with pytest.raises(UserError, match="SHOAL_READ_TOKEN: 5 characters"):
        read_token({"SHOAL_READ_TOKEN": "short"})
    with pytest.raises(UserError, match=r"SHOAL_READ_TOKEN_FILE .*cannot be read"):
        read_token({"SHOAL_READ_TOKEN_FILE": str(tmp_path / "none")})
