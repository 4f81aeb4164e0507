"""A controller states each place where it accepts unauthenticated input."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli.doctor import of_status
from streams.health.exposure import open_points
from topics.connection import KafkaSecurity
from topics.keys import Keys

SAFE = KafkaSecurity("SASL_SSL", username="controller", password_file="p")


@pytest.mark.parametrize(
    ("keys", "security", "broker", "codes"),
    [
        (Keys("c" * 32), SAFE, "kafka.example:9093", ()),
        (Keys(), SAFE, "kafka.example:9093", ("records_unsigned",)),
        (Keys(operator="o" * 32), SAFE, "127.0.0.1:9092", ("records_unsigned",)),
        (Keys("c" * 32, unsigned_accepted=True), SAFE, "127.0.0.1:1", ("unsigned_accepted",)),
        (Keys("c" * 32), KafkaSecurity(), "kafka.example:9092", ("kafka_open",)),
        (Keys("c" * 32), KafkaSecurity(), "127.0.0.1:9092,[::1]:9092", ()),
    ],
)
def test_each_unauthenticated_input_has_its_code(
    keys: Keys, security: KafkaSecurity, broker: str, codes: tuple[str, ...]
) -> None:
    assert tuple(point.code for point in open_points(keys, security, broker)) == codes


def test_doctor_names_each_unauthenticated_input_and_its_fix() -> None:
    (point,) = open_points(Keys(), SAFE, "127.0.0.1:1")
    found: dict[str, Any] = {
        "controller": "c-1",
        "leads": False,
        "leader": "c-2",
        "open": [{"code": point.code, "said": point.said, "mend": point.mend}],
    }
    first = next(iter(of_status(found)))
    assert not first.ok and first.what == "records_unsigned" and "shoal keys new" in first.remedy
