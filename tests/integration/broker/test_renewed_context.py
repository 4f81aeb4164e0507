"""Kafka clients on a broker whose certificate, and theirs, are renewed while they run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.broker.child_broker import own_broker
from streams.broker.tls_listener import server_context, tls_listener
from tests.certificates import make_certificate
from tests.hang_limit import HANG_S
from tests.integration.broker.test_tls_listener import ask, echo
from topics.edge.kafka_clients import consumer, options, producer, security
from topics.topic_table import LEADERSHIP, PREFIX

__all__ = ["echo"]


def show(folder: Path, certificate: Path, key: Path) -> None:
    """Make `folder`/now the files of a certificate and a key, as a renewed Secret does."""
    new = folder / f"files-{len(list(folder.iterdir()))}"
    new.mkdir()
    (new / "tls.crt").write_bytes((certificate / "tls.crt").read_bytes())
    (new / "tls.key").write_bytes((key / "tls.key").read_bytes())
    (folder / "next").symlink_to(new)
    (folder / "next").replace(folder / "now")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the client's files are, in `now`."""
    made = tmp_path / "client"
    made.mkdir()
    monkeypatch.setenv("SHOAL_KAFKA_PROTOCOL", "SSL")
    for name, file in (("CA", "tls.crt"), ("CERT", "tls.crt"), ("KEY", "tls.key")):
        monkeypatch.setenv(f"SHOAL_KAFKA_{name}_FILE", str(made / "now" / file))
    return made


async def test_a_renewed_pair_counts_once_it_is_whole(
    echo: str, folder: Path, tmp_path: Path
) -> None:
    old, new = (make_certificate(tmp_path / name) for name in ("old", "new"))
    show(folder, old, old)
    context = options(security())["ssl_context"]
    former, next_ = (server_context(one / "tls.crt", one / "tls.key") for one in (old, new))
    async with (
        tls_listener("127.0.0.1", 0, former, echo) as before,
        tls_listener("127.0.0.1", 0, next_, echo) as after,
    ):
        for pair, admitted in (((old, old), before), ((new, old), before), ((new, new), after)):
            show(folder, *pair)
            answers = {port: await ask(port, context) for port in (before, after)}
            assert [port for port, answer in answers.items() if answer == b"hello"] == [admitted]


@pytest.mark.timeout(300)
async def test_a_running_consumer_presents_the_renewed_certificate(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker closes all connections, and then admits only the new certificate."""
    topic, port = PREFIX + LEADERSHIP.name, 0
    async with own_broker(PREFIX) as broker:
        with monkeypatch.context() as plain:
            plain.setenv("SHOAL_KAFKA_PROTOCOL", "PLAINTEXT")
            writer = producer(broker, "w")
        await writer.start()
        reader = None
        try:
            for number in range(2):
                pair = make_certificate(tmp_path / f"{number}")
                show(folder, pair, pair)
                tls = server_context(pair / "tls.crt", pair / "tls.key")
                async with tls_listener("127.0.0.1", port, tls, broker) as port:
                    if reader is None:
                        reader = consumer(f"127.0.0.1:{port}", "r", [topic])
                        await reader.start()
                    await writer.send_and_wait(topic, b"%d" % number)
                    async with asyncio.timeout(HANG_S):
                        assert (await reader.getone()).value == b"%d" % number
        finally:
            await writer.stop()
            if reader is not None:
                await reader.stop()
