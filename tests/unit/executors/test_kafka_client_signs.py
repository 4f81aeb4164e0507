"""Records of gateways and executors are signed, and dated by the broker's clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from executors.kafka_client import KafkaClient
from topics.codec import encode
from topics.keys import Keys, Principal, credential
from topics.macs import MAX_SIGNATURE_AGE_MS, Verifier
from topics.records import Routes, Status, Telemetry
from topics.signing import Refusal

CLUSTER = "c" * 32
HOUR_MS = 3_600_000
TELEMETRY = Telemetry("m", "gw.w2", "b", 1, 1000, 1000, 0, 3, *[0] * 9)


class FakeProducer:
    """A producer whose acknowledgements have a time `ahead_ms` ahead of this host's clock.

    If `ahead_ms` is None, they have a fixed wrong time.
    """

    def __init__(self, ahead_ms: int | None = 0) -> None:
        self.ahead_ms = ahead_ms
        self.sent: list[tuple[bytes | None, bytes, Any]] = []

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + (self.ahead_ms or 0)

    async def send_and_wait(self, _topic: str, value: bytes, key: Any, headers: Any) -> Any:
        self.sent.append((key, value, headers))
        stamp = 1234 if self.ahead_ms is None else self.now_ms()
        return SimpleNamespace(timestamp=stamp, timestamp_type=1)


def client(keys: Keys, producer: FakeProducer) -> KafkaClient:
    made = KafkaClient("127.0.0.1:1", "gw", keys=keys, gateway="gw")
    made._producer = producer  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("ahead_ms", [None, 0, HOUR_MS, -HOUR_MS])
async def test_telemetry_is_dated_by_the_brokers_clock_from_the_second_record_on(
    ahead_ms: int | None,
) -> None:
    """The clock of this host does not matter. A wrong time in an
    acknowledgement changes nothing.
    """
    producer = FakeProducer(ahead_ms)
    kafka = client(Keys(gateway=credential(CLUSTER, Principal.GATEWAY, "gw")), producer)
    for _ in range(2):
        assert await kafka.publish("telemetry", "m", TELEMETRY)
    _, value, headers = producer.sent[-1]
    reader = Verifier(Keys(CLUSTER))
    assert reader.verify_telemetry([value], [tuple(headers)], [producer.now_ms()]) == ([b"gw"], {})
    late_ms = producer.now_ms() + MAX_SIGNATURE_AGE_MS + 1000
    assert reader.verify_telemetry([value], [tuple(headers)], [late_ms])[1] == {0: Refusal.STALE}


async def test_a_status_is_signed_with_the_key_of_its_node() -> None:
    producer = FakeProducer()
    status = Status("n1", "r/p/owned", "e", 0, 1000)
    kafka = client(Keys(node=credential(CLUSTER, Principal.NODE, "n1")), producer)
    assert await kafka.publish("status", "n1", status)
    key, value, headers = producer.sent[-1]
    assert value == encode(status)
    now_ms = producer.now_ms()
    assert Verifier(Keys(CLUSTER)).refusal("status", key, value, headers, now_ms) is None
    assert Verifier(Keys("x" * 32)).refusal("status", key, value, headers, now_ms) is not None


def message(topic: str, key: bytes, value: bytes | None, headers: Any = ()) -> Any:
    return SimpleNamespace(
        topic=f"shoal.{topic}", key=key, value=value, headers=headers, timestamp=0, offset=7
    )


@pytest.mark.parametrize(
    "keys", [Keys(CLUSTER), Keys(gateway=credential(CLUSTER, Principal.GATEWAY, "gw"))]
)
def test_an_unsigned_deletion_withdraws_no_routes(keys: Keys) -> None:
    """This holds for gateways with a key of their own and for those with the cluster's key."""
    gone: list[str] = []
    heard: list[object] = []
    kafka = KafkaClient("127.0.0.1:1", "gw", keys=keys, gateway="gw")
    for value in (None, encode(Routes("m", 3, 7, 1000, 500.0, 50.0))):
        kafka._deliver(
            message("routes", b"m", value),
            lambda _topic, _key, record, _ms: heard.append(record),
            lambda _topic, key: gone.append(key),
        )
    assert (gone, heard, kafka.forged) == ([], [], 2)
