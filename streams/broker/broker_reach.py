"""Reaching a broker: its address, one connection as far as its metadata, and why that failed.

Owns the words for an address that cannot be used. Early and quiet: a Kafka client logs several
lines for a connection that is refused, and hides why.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from autoscaler.domain.validation import InvalidValue
from streams.broker.kafka_clients import FilesUnreadable, options, security


class BrokerUnreachable(ConnectionError):
    """No broker answers at `address`, or none that lets us in."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"Kafka at {address} cannot be used: {why}")
        self.address = address


def parse_address(text: str) -> str:
    """The bootstrap servers in "kafka://HOST:PORT" (the scheme and further ",HOST:PORT" optional).

    InvalidValue: no host, no port, a port outside 1..65535, another scheme, or a user and password,
    which are not repeated.
    """
    servers = text.removeprefix("kafka://")
    for server in servers.split(","):
        host, colon, port = server.rpartition(":")
        ok = colon and host and not {"/", "@"} & set(host) and port.isascii() and port.isdigit()
        if not ok or not 0 < int(port) < 65536:
            shown = text.rpartition("@")[2]
            raise InvalidValue("broker", shown, "kafka://HOST:PORT or HOST:PORT")
    return servers


async def greet(bootstrap: str, timeout_s: float) -> None:
    """One of the servers answers with its metadata, over TLS and after a login where these are set.

    timeout_s: real seconds for each server. BrokerUnreachable says why none does, files that cannot
    be read included. InvalidValue: settings of TLS and SASL that cannot be used.
    """
    settings = security()
    try:
        more = options(settings)
    except FilesUnreadable as error:
        raise BrokerUnreachable(bootstrap, str(error)) from None
    why = "no address given"
    for server in bootstrap.split(","):
        host, _, port = server.rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                await _ask(host.strip("[]"), int(port), more)
                return
        except (TimeoutError, KafkaError, OSError, UnicodeError) as error:
            why = settings.explain_failure(error, timeout_s)
    raise BrokerUnreachable(bootstrap, why)


async def _ask(host: str, port: int, more: dict[str, Any]) -> None:
    connection = await create_conn(host, port, client_id="shoal", **more)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()
