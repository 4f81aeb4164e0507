"""Broker addresses that are unreachable, belong to no broker, or are malformed: each gives one
clear error line.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys

import pytest
from aiokafka.errors import KafkaError, NotControllerError, TopicAuthorizationFailedError

from autoscaler.domain.validation import InvalidValue
from streams.broker import topic_admin
from streams.broker.broker_reach import BrokerUnreachable, greet, parse_address
from streams.broker.topic_admin import TopicsUnusable, ensure_topics


@pytest.mark.parametrize("text", ["kafka://a:1", "a:1", "10.0.0.1:65535", "[::1]:9092", "a:1,b:2"])
def test_the_scheme_of_an_address_is_optional(text: str) -> None:
    """`kafka://HOST:PORT` and `HOST:PORT` mean the same broker."""
    assert parse_address(text) == text.removeprefix("kafka://")


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":9092", "a:0", "a:65536", "a:٩", "http://a:1", "a:1,", "a:-1", "a:1x"]
)
def test_a_malformed_address_is_refused_with_the_valid_form(text: str) -> None:
    """A mistyped address is refused before any process is started."""
    with pytest.raises(InvalidValue, match="kafka://HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("text", ["kafka://me:hush@h:9092", "me:hush@h:9092", "kafka://me:hush@h"])
def test_an_address_with_a_login_is_refused_without_printing_the_login(text: str) -> None:
    """Users and passwords come from variables. A parser would take a login in the address for a
    host.
    """
    with pytest.raises(InvalidValue, match=r"'h(:9092)?' is not allowed") as refused:
        parse_address(text)
    assert "hush" not in str(refused.value)


async def test_an_invalid_host_name_is_an_unreachable_broker() -> None:
    with pytest.raises(BrokerUnreachable, match=r"Kafka at a\.\.b:9092 cannot be used: "):
        await greet("a..b:9092", 1.0)


async def test_a_closed_port_is_an_unreachable_broker_named_by_its_address() -> None:
    """The error comes at once, because no process listens on the port."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(BrokerUnreachable, match="connection refused") as caught:
            await ensure_topics(address)
    assert caught.value.address == address
    assert address in str(caught.value)


async def test_a_server_that_never_answers_is_given_up_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that accepts connections but never answers must not block the start."""

    monkeypatch.setattr(topic_admin, "_TIMEOUT_S", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}"):
            await ensure_topics(f"127.0.0.1:{port}")
    finally:
        server.close()


async def test_an_embedded_broker_with_another_prefix_is_reported() -> None:
    """No metadata request is sent for unknown topics, because it would create them with one
    partition.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "streams.broker", "--prefix", "one."], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        bootstrap = json.loads(process.stdout.readline())["bootstrap"]
        assert (await ensure_topics(bootstrap, "one.")).embedded
        with pytest.raises(TopicsUnusable, match="another prefix"):
            await ensure_topics(bootstrap, "two.")
    finally:
        process.terminate()
        assert process.wait(3) == 0


def test_the_embedded_broker_ends_with_its_supervisor() -> None:
    """The broker reads a pipe from its supervisor. The pipe closes even if the supervisor is
    killed.
    """
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "streams.broker"],
        stdout=subprocess.PIPE,
        env={**os.environ, "SHOAL_SUPERVISION_FD": str(read_end)},
        pass_fds=[read_end],
    )
    os.close(read_end)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["ready"] is True
    assert process.poll() is None
    os.close(write_end)
    assert process.wait(3) == 0


async def test_a_request_is_retried_while_the_cluster_elects_a_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A temporary error does not prevent the start; a lasting one is reported at once."""
    monkeypatch.setattr(topic_admin, "_PAUSE_S", 0.0)
    failing: list[KafkaError] = [NotControllerError(), NotControllerError()]
    calls = 0

    async def ensure(*_: object) -> topic_admin.EnsuredTopics:
        nonlocal calls
        calls += 1
        if failing:
            raise failing.pop()
        return topic_admin.EnsuredTopics(False, ("c",), {})

    monkeypatch.setattr(topic_admin, "_ensure", ensure)
    assert (await topic_admin.ensure_patiently(object(), {}, "p.", ())).created == ("c",)
    assert calls == 3
    failing.append(TopicAuthorizationFailedError())
    with pytest.raises(TopicAuthorizationFailedError):
        await topic_admin.ensure_patiently(object(), {}, "p.", ())
    assert calls == 4
