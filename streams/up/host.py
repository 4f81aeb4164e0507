"""What a run takes of this machine and of somebody's Kafka, and gives back: ports and topics."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from streams.files.errors import UserError
from streams.up.parts import HOST


def free_port() -> int:
    """A port of the loopback address on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    """UserError if somebody listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"--port {port}: {HOST}:{port} is in use ({error.strerror}); "
                "another port, or 0 for any free one"
            ) from None


async def remove_topics(bootstrap: str, prefix: str) -> None:
    """A run on somebody's Kafka takes its topics away again."""
    from streams.broker.clients import admin as new_admin
    from topics.table import TABLE

    with contextlib.suppress(Exception):
        async with asyncio.timeout(5.0):
            admin = new_admin(bootstrap, "shoal-up")
            await admin.start()
            try:
                await admin.delete_topics([topic.wire_name(prefix) for topic in TABLE])
            finally:
                await admin.close()
