"""The ports of this machine and the topics of a shared Kafka that a run uses."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

from streams.files.user_errors import UserError
from streams.tools.up.process_list import HOST

_BELOW_EPHEMERAL = range(20_000, 32_000)
_TRIES = 50


def free_port() -> int:
    """A free port of the loopback address.

    The port is below the ephemeral range. So no outgoing connection can take it before the part
    listens.
    """
    tried = random.sample(_BELOW_EPHEMERAL, _TRIES)
    for port in (*tried, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found: int = probe.getsockname()[1]
            return found
    raise UserError(f"no free port on {HOST}")


def check_port(port: int) -> None:
    """UserError if another process listens on `port`, the value of --port."""
    why = _refused(HOST, port)
    if why:
        raise UserError(
            f"--port {port}: {HOST}:{port} is in use ({why}); another port, or 0 for any free one"
        )


def check_listen(option: str, host: str, port: int) -> None:
    """UserError if this process cannot listen on `host` and `port`, the values of `option`."""
    why = _refused(host, port)
    if why:
        raise UserError(
            f"{option} {host}:{port}: {why}; another address, port 0 for any, or '' for none"
        )


def can_listen(host: str, port: int) -> bool:
    """Whether this process can listen on `host` and `port`."""
    return not _refused(host, port)


def _refused(host: str, port: int) -> str:
    """The reason why this process cannot listen on `host` and `port`; "" if it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: `host` is not a valid name.
        return getattr(error, "strerror", None) or str(error)
    return ""


async def remove_topics(bootstrap: str, prefix: str) -> None:
    """Delete the topics of a run from a shared Kafka."""
    from topics.edge.kafka_clients import admin as new_admin
    from topics.topic_table import TABLE

    with contextlib.suppress(Exception):
        async with asyncio.timeout(5.0):
            admin = new_admin(bootstrap, "shoal-up")
            await admin.start()
            try:
                await admin.delete_topics([topic.wire_name(prefix) for topic in TABLE])
            finally:
                await admin.close()
