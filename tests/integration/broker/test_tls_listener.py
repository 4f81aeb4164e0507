"""The listener through which gateways on other hosts reach the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from executors.kafka_client import KafkaClient
from streams.broker.child_broker import own_broker
from streams.broker.tls_listener import server_context, tls_listener
from tests.certificates import make_certificate
from tests.hang_limit import HANG_S
from topics.records import Leadership
from topics.topic_table import PREFIX


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """The address of a server that returns what it gets."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def client(trusts: Path, shows: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusts / "tls.crt")
    if shows is not None:
        context.load_cert_chain(shows / "tls.crt", shows / "tls.key")
    return context


async def ask(port: int, tls: ssl.SSLContext | None, name: str | None = None) -> bytes:
    """The answer of the listener to "hello"; empty if a side refuses the other one."""
    try:
        async with asyncio.timeout(HANG_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls, server_hostname=name
            )
            writer.write(b"hello")
            found = await reader.read(1000)
            writer.transport.abort()
            return found
    except (ssl.SSLError, ConnectionError):
        return b""


async def test_only_holders_of_the_certificate_are_admitted(echo: str, tmp_path: Path) -> None:
    ours, theirs = (make_certificate(tmp_path / name) for name in ("ours", "theirs"))
    tls = server_context(ours / "tls.crt", ours / "tls.key")
    async with tls_listener("127.0.0.1", 0, tls, echo) as port:
        refused = (client(ours, None), client(ours, theirs), client(theirs, theirs), None)
        assert [await ask(port, one) for one in refused] == [b""] * 4
        assert await ask(port, client(ours, ours), "another.test") == b""
        assert await ask(port, client(ours, ours)) == b"hello"


async def test_its_end_ends_all_connections(echo: str, tmp_path: Path) -> None:
    ours = make_certificate(tmp_path / "ours")
    tls = server_context(ours / "tls.crt", ours / "tls.key")
    async with tls_listener("127.0.0.1", 0, tls, echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(ours, ours))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
    async with asyncio.timeout(HANG_S):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_broker_that_is_gone_ends_the_connection(tmp_path: Path) -> None:
    ours = make_certificate(tmp_path / "ours")
    tls = server_context(ours / "tls.crt", ours / "tls.key")
    async with tls_listener("127.0.0.1", 0, tls, "127.0.0.1:9") as port:
        assert await ask(port, client(ours, ours)) == b""


@pytest.mark.timeout(300)
async def test_a_renewed_certificate_reaches_clients_without_their_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The single pod restarts with the new Secret; the gateways keep running."""
    files = {"CA": "tls.crt", "CERT": "tls.crt", "KEY": "tls.key"}
    monkeypatch.setenv("SHOAL_KAFKA_PROTOCOL", "SSL")
    for name, file in files.items():
        monkeypatch.setenv(f"SHOAL_KAFKA_{name}_FILE", str(tmp_path / "now" / file))
    seen: list[str] = []
    record = Leadership("c", "boot", "claim", 0)
    port = 0
    async with contextlib.AsyncExitStack() as stack:
        client: KafkaClient | None = None
        for number in range(2):
            made = make_certificate(tmp_path / f"{number}")
            (tmp_path / "next").symlink_to(made)
            (tmp_path / "next").replace(tmp_path / "now")
            tls = server_context(made / "tls.crt", made / "tls.key")
            async with (
                own_broker(PREFIX) as broker,
                tls_listener("127.0.0.1", port, tls, broker) as port,
            ):
                if client is None:
                    client = KafkaClient(f"127.0.0.1:{port}", "g")
                    await stack.enter_async_context(client)
                    client.follow(("leadership",), lambda _t, key, *_: seen.append(key))
                async with asyncio.timeout(HANG_S):
                    while not await client.publish("leadership", f"{number}", record):
                        await asyncio.sleep(0.1)
                    while f"{number}" not in seen:
                        await asyncio.sleep(0.1)
            assert not await client.publish("leadership", "away", record)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    ours, theirs = (make_certificate(tmp_path / name) for name in ("ours", "theirs"))
    for key in (theirs / "tls.key", tmp_path / "missing"):
        with pytest.raises(OSError):
            server_context(ours / "tls.crt", key)
