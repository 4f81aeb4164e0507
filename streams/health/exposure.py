"""Unauthenticated interfaces of a controller, as codes with explanations.

The codes are stable because other programs read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from topics.connection import KafkaSecurity
from topics.keys import ACCEPT_UNSIGNED, CLUSTER_KEY, Keys

Code = Literal["records_unsigned", "unsigned_accepted", "kafka_open"]
_HERE = ("127.", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class OpenPoint:
    """An interface that needs no authentication. code: stable code. said: the interface that is
    open, as text. mend: how to close it, as text."""

    code: Code
    said: str
    mend: str


def open_points(keys: Keys, security: KafkaSecurity, bootstrap: str) -> tuple[OpenPoint, ...]:
    """Unauthenticated interfaces of a controller with these keys and connection settings, whose
    broker is at `bootstrap`."""
    found = []
    if not keys.cluster:
        found.append(
            OpenPoint(
                "records_unsigned",
                "records are not signed: anyone who can write to Kafka can redirect prompts, take "
                "API keys and change the fleet",
                f"make keys with `shoal keys new` and set {CLUSTER_KEY}_FILE "
                "(docs/how-to/executors.md)",
            )
        )
    if keys.unsigned_accepted:
        found.append(
            OpenPoint(
                "unsigned_accepted",
                "records without a signature are accepted, as from an older version",
                f"unset {ACCEPT_UNSIGNED} once every process has its key",
            )
        )
    here = all(server.startswith(_HERE) for server in bootstrap.split(","))
    if not here and not (security.sasl or security.cert_file):
        found.append(
            OpenPoint(
                "kafka_open",
                "Kafka is reached without a login or a certificate, so it cannot tell who writes",
                "give each principal a login and its rights (docs/how-to/kafka.md)",
            )
        )
    return tuple(found)
