"""A node may receive requests only at its own host, whichever process wrote its status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.instance_ranks import GangRank, GangStage
from topics.records import InstanceState, ObservedInstance, Status

READY = InstanceState.READY
SEEN = ObservedInstance("i", "m", "aggregated", "g:1", READY, (0,), "10.0.0.5:8000")
STATUS = Status("n1", "r/p/owned", "e", 1, 1000, (SEEN,), address="10.0.0.5")
STAGES = (GangStage("L4", 1, 16), GangStage("L4", 1, 16))


def other(endpoint: str = "10.0.0.5:8001", rendezvous: str = "") -> ObservedInstance:
    gang = GangRank("j", 0, STAGES, rendezvous) if rendezvous else None
    return ObservedInstance("j", "m", "aggregated", "g:2", READY, (1,), endpoint, gang=gang)


def test_all_ports_of_its_host_belong_to_a_node() -> None:
    good = replace(STATUS, instances=(SEEN, other(rendezvous="10.0.0.5:29500")))
    good = replace(good, load_feed=f"10.0.0.5:4000 {'k' * 40}")
    assert decode("status", encode(good)) == good
    six = replace(SEEN, endpoint="fe80::5:8000")
    assert replace(STATUS, instances=(six,), address="fe80::5").instances == (six,)


@pytest.mark.parametrize(
    ("address", "instance", "field"),
    [
        ("10.0.0.5", other("169.254.169.254:80"), "endpoint"),
        ("10.0.0.5", other("10.0.0.55:8000"), "endpoint"),
        ("10.0.0.5", other("10.0.0.5.evil.example:8000"), "endpoint"),
        ("10.0.0.5", other(rendezvous="10.0.0.9:29500"), "gang.rendezvous"),
        ("", other("10.0.0.9:8000"), "endpoint"),  # The executor names no address.
    ],
)
def test_a_node_serves_only_at_its_own_address(
    address: str, instance: ObservedInstance, field: str
) -> None:
    with pytest.raises(InvalidValue, match=rf"^instances\[1\]\.{field}: .*10\.0\.0\.5"):
        replace(STATUS, address=address, instances=(SEEN, instance))


def test_a_load_feed_at_another_address_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^load_feed: "):
        replace(STATUS, load_feed=f"10.0.0.9:4000 {'k' * 40}")
