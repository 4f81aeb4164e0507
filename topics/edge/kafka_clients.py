"""Factory for all Kafka clients, so that TLS and SASL settings apply to every client.

An embedded broker advertises an address of its own host. Clients on other hosts reach it at their
bootstrap address instead, through `streams.broker.tls_listener`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import BrokerMetadata

from topics.connection import KafkaSecurity
from topics.edge.renewed_context import RenewedContext

EMBEDDED_CLUSTER = "mockCluster"  # its ids begin with it


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
        return settings.client_options(lambda path: Path(path).read_text(), RenewedContext)
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
    made = AIOKafkaConsumer(
        *topics, bootstrap_servers=bootstrap, client_id=client_id, **{**defaults, **shared, **more}
    )
    _Cluster.of(made._client)
    return made


def producer(bootstrap: str, client_id: str, **more: Any) -> AIOKafkaProducer:
    """A producer whose records are acknowledged by all replicas."""
    shared = options(security())
    made = AIOKafkaProducer(
        bootstrap_servers=bootstrap, client_id=client_id, acks="all", **{**shared, **more}
    )
    _Cluster.of(made.client)
    return made


async def abandon(made: AIOKafkaProducer) -> None:
    """Close an idempotent producer without the records that it holds. Its `stop` would wait for
    them, even if its certificate is no longer accepted."""
    await made._sender.close()
    made._closed = True
    await made.client.close()


def cluster_of(reader: AIOKafkaConsumer) -> str:
    """Name of the cluster that `reader` reads, "" if an embedded broker does not answer. If the
    name has changed, offsets mean other records."""
    return _Cluster.of(reader._client).id


class _Cluster(ClusterMetadata):  # type: ignore[misc]  # untyped
    """A client's metadata of its cluster. id: see `cluster_of`. That of an embedded broker contains
    its port, because processes may choose the same id. hosts: the bootstrap addresses."""

    id = ""
    embedded = False
    hosts: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, client: AIOKafkaClient) -> _Cluster:
        """That of `client`, which makes it itself and shares it with its parts."""
        if not isinstance(client.cluster, cls):
            client.cluster.__class__ = cls
            client.cluster.hosts = tuple((host, port) for host, port, _ in client.hosts)
        cluster: _Cluster = client.cluster
        return cluster

    def update_metadata(self, metadata: Any) -> None:
        """Take an answer of a broker."""
        super().update_metadata(metadata)
        found = getattr(metadata, "cluster_id", None) or ""
        self.embedded = found.startswith(EMBEDDED_CLUSTER)
        if self.embedded:
            found += "".join(f":{broker.port}" for broker in self._brokers.values())
        self.id = found

    def failed_update(self, exception: Any) -> None:
        """Note that no broker answers. A next embedded broker has none of the present records."""
        super().failed_update(exception)
        if self.embedded:
            self.id = ""

    def broker_metadata(self, broker_id: Any) -> BrokerMetadata | None:
        """Where to connect for `broker_id`."""
        found = super().broker_metadata(broker_id)
        if found is not None and self.embedded:
            host, port = self.hosts[0]
            return found._replace(host=host, port=port)
        return found


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
