"""Every Kafka client of the control plane is made here, so that TLS and SASL reach all of them.

Owns the options that all share. Knows nothing of topics or records.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.helpers import create_ssl_context

from autoscaler.domain.checks import InvalidValue
from topics.checks import InvalidRecord
from topics.connection import Security


def security() -> Security:
    """The settings of this process; InvalidValue names what is wrong with them."""
    try:
        return Security.from_environment(os.environ)
    except InvalidRecord as error:
        raise InvalidValue(error.field, error.value, error.allowed) from None


def options(settings: Security) -> dict[str, Any]:
    """`settings` as aiokafka takes them. InvalidValue: a file that cannot be read."""
    found: dict[str, Any] = {"security_protocol": settings.protocol}
    if settings.tls:
        try:
            found["ssl_context"] = create_ssl_context(
                cafile=settings.ca_file or None,
                certfile=settings.cert_file or None,
                keyfile=settings.key_file or None,
            )
        except OSError as error:
            files = ", ".join(f for f in (settings.ca_file, settings.cert_file) if f)
            raise InvalidValue("Kafka's TLS files", files, f"readable PEM ({error})") from None
    if settings.sasl:
        try:
            password = Path(settings.password_file).read_text().strip()
        except OSError as error:
            named = settings.password_file
            raise InvalidValue("SHOAL_KAFKA_PASSWORD_FILE", named, str(error.strerror)) from None
        found["sasl_mechanism"] = settings.mechanism
        found["sasl_plain_username"] = settings.username
        found["sasl_plain_password"] = password
    return found


def consumer(bootstrap: str, client_id: str, **more: Any) -> AIOKafkaConsumer:
    """A consumer that commits nothing and begins at the earliest record unless told otherwise."""
    defaults = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    shared = options(security())
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap, client_id=client_id, **{**defaults, **shared, **more}
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
