"""TLS and SASL settings reach every Kafka client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executors.kafka_client import KafkaClient
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import ensure_topics
from streams.controller.control_topics import ControlTopics
from streams.controller.leader_producer import LeaderProducer
from streams.windows.faust_app import make_app
from tests.hang_limit import HANG_S
from topics.checks import InvalidValue
from topics.edge.kafka_clients import FilesUnreadable, admin, consumer, producer

_CLIENT_HELLO = 0x16


@pytest.fixture
async def listener() -> AsyncIterator[tuple[str, asyncio.Queue[int]]]:
    """A listener that records the first byte of each connection and then closes it."""
    first: asyncio.Queue[int] = asyncio.Queue()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        byte = await reader.read(1)
        if byte:
            first.put_nowait(byte[0])
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    yield f"{host}:{port}", first
    server.close()


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin", "serving plane"])
async def test_a_client_with_tls_settings_starts_with_a_tls_hello(
    kind: str, listener: tuple[str, asyncio.Queue[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first byte is that of a TLS hello, so neither data nor a password is
    sent in plain text.
    """
    bootstrap, first = listener
    monkeypatch.setenv("SHOAL_KAFKA_PROTOCOL", "SSL")
    if kind == "serving plane":
        async with KafkaClient(bootstrap, "g") as client:
            client.follow(("routes",), lambda *_: None)
            async with asyncio.timeout(HANG_S):
                assert await first.get() == _CLIENT_HELLO
        return
    made: Any = {"consumer": consumer, "producer": producer, "admin": admin}[kind](bootstrap, "x")
    starting = asyncio.create_task(made.start())
    async with asyncio.timeout(HANG_S):
        assert await first.get() == _CLIENT_HELLO
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    with contextlib.suppress(Exception):
        await (made.close() if kind == "admin" else made.stop())


def test_faust_gets_sasl_over_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The password comes from the file that the settings name."""
    (tmp_path / "password").write_text("secret\n")
    monkeypatch.setenv("SHOAL_KAFKA_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("SHOAL_KAFKA_USERNAME", "shoal")
    monkeypatch.setenv("SHOAL_KAFKA_PASSWORD_FILE", str(tmp_path / "password"))
    credentials = make_app("127.0.0.1:1", "x.").conf.broker_credentials
    assert (credentials.username, credentials.password) == ("shoal", "secret")
    assert credentials.ssl_context is not None


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PROTOCOL", "TLS"), ("PROTOCOL", "SASL_SSL"), ("MECHANISM", "GSSAPI"), ("CERT_FILE", "a")],
)
def test_invalid_settings_are_refused_by_name(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes before any connection attempt."""
    monkeypatch.setenv(f"SHOAL_KAFKA_{variable}", value)
    with pytest.raises(InvalidValue, match=f"SHOAL_KAFKA_{variable}"):
        consumer("127.0.0.1:1", "x")


@pytest.fixture
def renewing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set TLS variables that name missing files, as during the replacement of a certificate."""
    monkeypatch.setenv("SHOAL_KAFKA_PROTOCOL", "SSL")
    monkeypatch.setenv("SHOAL_KAFKA_CERT_FILE", str(tmp_path / "tls.crt"))
    monkeypatch.setenv("SHOAL_KAFKA_KEY_FILE", str(tmp_path / "tls.key"))


@pytest.mark.usefixtures("renewing")
async def test_missing_tls_files_count_as_an_unreachable_broker() -> None:
    """A running process waits for the files. A starting process prints one line that names them."""
    with pytest.raises(FilesUnreadable, match=r"tls\.crt, .*tls\.key"):
        consumer("127.0.0.1:1", "x")
    with pytest.raises(OSError):
        await LeaderProducer("127.0.0.1:1", "x", "x.", transactional=True).open()
    with pytest.raises(BrokerUnreachable, match=r"tls\.crt, .*tls\.key"):
        await ensure_topics("127.0.0.1:1")


@pytest.mark.usefixtures("renewing")
async def test_a_controller_reads_again_once_its_tls_files_are_renewed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    control = ControlTopics("127.0.0.1:1", "x.", {}, print, print, print)
    following = asyncio.create_task(control.follow())
    async with asyncio.timeout(HANG_S):
        while "tls.crt" not in caplog.text:
            await asyncio.sleep(0)
    assert not following.done()
    following.cancel()
