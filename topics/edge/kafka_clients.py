"""Factory for all Kafka clients, so that TLS and SASL settings apply to every client."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import create_conn
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.metadata import MetadataRequest

from topics.connection import KafkaSecurity


def security() -> KafkaSecurity:
    """TLS and SASL settings of this process. InvalidValue names the faulty setting."""
    return KafkaSecurity.from_environment(os.environ)


class FilesUnreadable(OSError):
    """A certificate, key or password cannot be read now. The caller retries, because files may be
    in the middle of a renewal: a file is missing, or a certificate and its key do not match yet.
    """


def options(settings: KafkaSecurity) -> dict[str, Any]:
    """`settings` as arguments of aiokafka. Raises FilesUnreadable."""
    try:
        return settings.client_options(lambda path: Path(path).read_text(), create_ssl_context)
    except OSError as error:
        named = (settings.ca_file, settings.cert_file, settings.key_file, settings.password_file)
        files = ", ".join(file for file in named if file)
        raise FilesUnreadable(f"Kafka's TLS and SASL files {files}: {error}") from None


def consumer(
    bootstrap: str, client_id: str, topics: Iterable[str] = (), **more: Any
) -> AIOKafkaConsumer:
    """A consumer that commits nothing and begins at the earliest record unless configured
    otherwise."""
    defaults = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    shared = options(security())
    return AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap, client_id=client_id, **{**defaults, **shared, **more}
    )


def producer(bootstrap: str, client_id: str, **more: Any) -> AIOKafkaProducer:
    """A producer whose records are acknowledged by all replicas."""
    shared = options(security())
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap, client_id=client_id, acks="all", **{**shared, **more}
    )


def admin(bootstrap: str, client_id: str, **more: Any) -> AIOKafkaAdminClient:
    """A client for topics and their settings."""
    shared = options(security())
    return AIOKafkaAdminClient(
        bootstrap_servers=bootstrap, client_id=client_id, **{**shared, **more}
    )


async def ask(host: str, port: int, more: dict[str, Any]) -> None:
    """Return once the server answers with its metadata. more: `options`."""
    connection = await create_conn(host, port, client_id="shoal", **more)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()
