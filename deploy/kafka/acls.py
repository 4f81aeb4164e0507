#!/usr/bin/env python3
"""Permissions of Shoal's users for each topic, on a Kafka with an authorizer.

    deploy/kafka/acls.py --print                            # as options of kafka-acls.sh
    deploy/kafka/acls.py --broker HOST:PORT [--prefix P]    # set them; SHOAL_KAFKA_* of an admin

Users are named after their role (--user gateway=NAME renames one). No permission is removed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ALL = "*"
CONTROL = ("leadership", "decisions", "names", "plans", "ledger", "assignments", "routes", "alerts",
           "dead-letters")  # fmt: skip
OPERATED = ("services", "controls", "supply.prices", "supply.availability")
# The leader deletes the keys of names that are gone (docs/reference/topics.md).
SWEPT = (*OPERATED, "status")

WRITES: Mapping[str, tuple[str, ...]] = {
    "controller": CONTROL + SWEPT,
    "windows": ("demand",),
    "executor": ("status",),
    "gateway": ("telemetry",),
    "operator": OPERATED,
}
READS: Mapping[str, tuple[str, ...]] = {
    "controller": (ALL,),
    "windows": ("telemetry",),
    "executor": ("assignments", "status", "leadership"),
    "gateway": ("routes", "leadership"),
    "operator": (ALL,),
}
"""Topics by the user that writes them (WRITES) or reads them (READS), without their prefix. No
other user writes to a topic. The controller has the cluster's key, so it may sign for all others.
"""
LOOKS = ("controller", "windows", "operator")
"""Users that check topics and their settings."""


@dataclass(frozen=True)
class Rule:
    """One permission. kind: topic, group or transactional-id. prefixed: whether it applies to all
    names with this prefix.
    """

    user: str
    operation: str
    kind: str
    name: str
    prefixed: bool = False


def rules(prefix: str) -> Iterator[Rule]:
    """Yields every permission that Shoal needs, for topics with this prefix."""
    for user, topics in WRITES.items():
        for topic in topics:
            yield Rule(user, "Write", "topic", prefix + topic)
    for user, topics in READS.items():
        for topic in topics:
            name = prefix if topic == ALL else prefix + topic
            yield Rule(user, "Read", "topic", name, topic == ALL)
    for user in LOOKS:
        for operation in ("Describe", "DescribeConfigs"):
            yield Rule(user, operation, "topic", prefix, True)
    for operation in ("Create", "AlterConfigs"):
        yield Rule("controller", operation, "topic", prefix, True)
    for operation in ("Write", "Describe"):
        yield Rule("controller", operation, "transactional-id", f"{prefix}leader")
    yield Rule("windows", "Read", "group", f"{prefix}windows")


def main() -> int:
    """Print or set the permissions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--broker", metavar="HOST:PORT")
    parser.add_argument("--prefix", default="shoal.")
    parser.add_argument("--user", action="append", default=[], metavar="ROLE=NAME")
    parser.add_argument("--print", dest="show", action="store_true", help="set nothing")
    given = parser.parse_args()
    names = {role: role for role in WRITES}
    for item in given.user:
        role, _, name = item.partition("=")
        if role not in names or not name:
            parser.error(f"--user {item}: ROLE=NAME, with ROLE one of {', '.join(names)}")
        names[role] = name
    if bool(given.broker) == given.show:
        parser.error("--print or --broker HOST:PORT, one of them")
    wanted = list(rules(given.prefix))
    if given.show:
        for rule in wanted:
            how = " --resource-pattern-type prefixed" if rule.prefixed else ""
            print(f"--add --allow-principal User:{names[rule.user]} --operation {rule.operation} "
                  f"--{rule.kind} {rule.name}{how}")  # fmt: skip
        return 0
    return _set(given.broker, wanted, names)


def _set(broker: str, wanted: list[Rule], names: Mapping[str, str]) -> int:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    operations = {
        "Write": AclOperation.WRITE, "Read": AclOperation.READ, "Create": AclOperation.CREATE,
        "Describe": AclOperation.DESCRIBE, "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
        "AlterConfigs": AclOperation.ALTER_CONFIGS,
    }  # fmt: skip
    kinds = {
        "topic": ResourceType.TOPIC, "group": ResourceType.GROUP,
        "transactional-id": ResourceType.TRANSACTIONAL_ID,
    }  # fmt: skip
    client = AdminClient({"bootstrap.servers": broker, **_security()})
    bindings = [
        AclBinding(
            kinds[rule.kind],
            rule.name,
            ResourcePatternType.PREFIXED if rule.prefixed else ResourcePatternType.LITERAL,
            f"User:{names[rule.user]}",
            "*",
            operations[rule.operation],
            AclPermissionType.ALLOW,
        )
        for rule in wanted
    ]
    try:
        for made in client.create_acls(bindings, request_timeout=20.0).values():
            made.result(30.0)
    except KafkaException as error:
        print(f"acls: {broker}: {error.args[0].str()}", file=sys.stderr)
        return 2
    print(f"{len(bindings)} permissions set at {broker}")
    return 0


def _security() -> dict[str, str]:
    """SHOAL_KAFKA_* as options of librdkafka."""
    named = {
        "PROTOCOL": "security.protocol", "CA_FILE": "ssl.ca.location",
        "CERT_FILE": "ssl.certificate.location", "KEY_FILE": "ssl.key.location",
        "MECHANISM": "sasl.mechanism", "USERNAME": "sasl.username",
    }  # fmt: skip
    found = {
        setting: value
        for name, setting in named.items()
        if (value := os.environ.get(f"SHOAL_KAFKA_{name}"))
    }
    password = os.environ.get("SHOAL_KAFKA_PASSWORD_FILE")
    if password:
        found["sasl.password"] = Path(password).read_text().strip()
    return found


if __name__ == "__main__":
    sys.exit(main())
