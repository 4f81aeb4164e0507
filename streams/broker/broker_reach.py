"""Check that a broker is reachable: parse its address, read its metadata, explain a failure.

The check runs before the first Kafka client starts. A Kafka client would log several lines for a
refused connection and hide the reason.
"""

from __future__ import annotations

import asyncio

from aiokafka.errors import KafkaError

from autoscaler.domain.validation import InvalidValue
from topics.edge.kafka_clients import FilesUnreadable, ask, options, security


class BrokerUnreachable(ConnectionError):
    """No broker answers at `address`, or the broker refuses access."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"Kafka at {address} cannot be used: {why}")
        self.address = address


def parse_address(text: str) -> str:
    """The bootstrap servers in "kafka://HOST:PORT" (the scheme and further ",HOST:PORT" are
    optional).

    InvalidValue: no host, no port, a port outside 1..65535, another scheme, or a user and password.
    The message does not show the user and password.
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
    """Return once a server answers with its metadata, over TLS and after a login if configured.

    timeout_s: real seconds for each server. BrokerUnreachable gives the reason, including
    unreadable files. InvalidValue: the TLS or SASL settings are invalid.
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
                await ask(host.strip("[]"), int(port), more)
                return
        except (TimeoutError, KafkaError, OSError, UnicodeError) as error:
            why = settings.explain_failure(error, timeout_s)
    raise BrokerUnreachable(bootstrap, why)
