"""The rights of each user on a real Kafka equal those of deploy/kafka/acls.py.

The broker has an authorizer. It is the one of test_secure_contract.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import KafkaError, Producer

from executors.kafka_client import KafkaClient
from streams.broker.topic_admin import ensure_topics
from streams.controller.leader_producer import LeaderProducer
from tests.contract.test_secure_contract import Secure, listener, secure
from tests.hang_limit import HANG_S
from topics.edge.kafka_clients import consumer
from topics.keys import SIGNER, Keys, Principal
from topics.name_life import KEYS
from topics.records import Status
from topics.topic_table import TABLE

pytestmark = pytest.mark.kafka
__all__ = ["listener", "secure"]

_ACLS = Path(__file__).parents[2] / "deploy" / "kafka" / "acls.py"
PREFIX = "acl."
_READ_S = 8.0
MAY_WRITE = {
    "controller": {"leadership", "decisions", "names", "plans", "ledger", "assignments", "routes",
                   "alerts", "dead-letters", "services", "controls", "supply.prices",
                   "supply.availability", "status"},
    "windows": {"demand"},
    "executor": {"status"},
    "gateway": {"telemetry"},
    "operator": {"services", "controls", "supply.prices", "supply.availability"},
}  # fmt: skip
MAY_READ = {
    "controller": {topic.name for topic in TABLE},
    "windows": {"telemetry"},
    "executor": {"assignments", "status", "leadership"},
    "gateway": {"routes", "leadership"},
    "operator": {topic.name for topic in TABLE},
}


@pytest.fixture
async def permitted(secure: Secure) -> Secure:
    """A broker with topics. The user with all rights has set the permissions."""
    await ensure_topics(secure.address, PREFIX)
    for topic in TABLE:  # records for the readers
        writer = Producer(settings("shoal", secure))
        writer.produce(topic.wire_name(PREFIX), b"{}", b"k", 0)
        assert writer.flush(20.0) == 0
    command = [sys.executable, str(_ACLS), "--broker", secure.address, "--prefix", PREFIX]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0)
    assert done.returncode == 0, done.stderr
    return secure


def become(user: str, kafka: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_KAFKA_USERNAME", user)
    monkeypatch.setenv("SHOAL_KAFKA_PASSWORD_FILE", str(kafka.folder / f"password.{user}"))


def settings(user: str, kafka: Secure) -> dict[str, str]:
    """Settings of librdkafka, because it reports a missing right at once and aiokafka does not."""
    return {
        "bootstrap.servers": kafka.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(kafka.folder / "ca.pem"),
        "ssl.certificate.location": str(kafka.folder / "client.pem"),
        "ssl.key.location": str(kafka.folder / "client.key"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": (kafka.folder / ("password" if user == "shoal" else f"password.{user}"))
        .read_text()
        .strip(),
    }


@pytest.mark.parametrize("user", MAY_WRITE)
async def test_a_user_can_write_and_read_only_its_own_topics(
    user: str, permitted: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses all others, such as `assignments` from an executor or `routes` from a
    gateway.
    """
    written, outcomes = set(), dict[str, object]()
    writer = Producer({**settings(user, permitted), "message.timeout.ms": 20_000})
    for topic in TABLE:
        name = topic.wire_name(PREFIX)
        writer.produce(
            name, b"{}", b"k", 0, lambda error, message: outcomes.update({message.topic(): error})
        )
    assert writer.flush(30.0) == 0
    for topic in TABLE:
        error = outcomes[topic.wire_name(PREFIX)]
        if error is None:
            written.add(topic.name)
        else:
            assert isinstance(error, KafkaError)
            assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    assert written == MAY_WRITE[user]
    become(user, permitted, monkeypatch)
    names = [topic.name for topic in TABLE]
    came = await asyncio.gather(*(_reads(permitted.address, f"{PREFIX}{n}") for n in names))
    assert {name for name, read in zip(names, came, strict=True) if read} == MAY_READ[user]


async def _reads(address: str, name: str) -> bool:
    """Whether the record in the first partition arrives.

    The broker does not answer a user who may not know that the topic exists.
    """
    reader = consumer(address, "reader", group_id=None)
    await reader.start()
    try:
        reader.assign([TopicPartition(name, 0)])
        async with asyncio.timeout(_READ_S):
            while not await reader.getmany(timeout_ms=200):
                pass
        return True
    except (TopicAuthorizationFailedError, TimeoutError):
        return False
    finally:
        await reader.stop()


async def test_the_controllers_user_can_create_topics_and_lead(
    permitted: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rights are enough for topics below the prefix, their settings, and transactions."""
    become("controller", permitted, monkeypatch)
    found = await ensure_topics(permitted.address, PREFIX)
    assert not found.created and not found.changed
    leader = LeaderProducer(permitted.address, "controller", PREFIX, transactional=True)
    await leader.open()
    try:
        async with leader.batch():
            await (await leader.send(f"{PREFIX}assignments", b"{}", b"n1", ()))
    finally:
        await leader.close()


async def test_the_executors_user_can_only_report_its_status(
    permitted: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor uses an idempotent producer and signs its status. The broker refuses its
    `assignments`.
    """
    become("executor", permitted, monkeypatch)
    async with KafkaClient(permitted.address, "e", PREFIX, Keys("c" * 32)) as kafka:
        async with asyncio.timeout(HANG_S):
            while not kafka.connected:
                await asyncio.sleep(0.05)
        status = Status("n1", "r/p/owned", "e", 0, 1000)
        assert await kafka.publish("status", "n1", status)
        assert not await kafka.publish("assignments", "n1", status)


def test_the_writers_of_a_topic_are_its_signers() -> None:
    """ACLs and signatures protect the same topics. A controller signs records for nodes and
    gateways, which check them, and deletes keys of others that nothing uses any more.
    """
    roles = {
        Principal.NODE: "executor",
        Principal.GATEWAY: "gateway",
        Principal.OPERATOR: "operator",
    }
    for topic, principal in SIGNER.items():
        role = roles.get(principal, "windows" if topic == "demand" else "controller")
        if topic == "assignments":
            role = "controller"
        writers = {user for user, topics in MAY_WRITE.items() if topic in topics}
        assert writers == ({role, "controller"} if topic in KEYS else {role}), topic
