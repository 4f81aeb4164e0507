"""No record ends a controller.

Whatever the topics contain, the controller starts, follows and decides. Another one can take over,
and all displays still work.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtests.extreme import Pick, extreme, plain
from streams.cli.apply import declared_texts
from tests.property.controller.extreme_world import Controller, Fleet, drawn, fleet_of
from topics.checks import MAX_MS
from topics.codec import decode, encode
from topics.topic_table import TABLE

FILE = Path(__file__).parent / "fleet.yaml"
TEXTS = {
    **declared_texts(FILE),
    "far too short": "{source: openai/gpt-oss-20b, slo: {ttft: 1ms, tpot: 1ms}, min: 100000}",
    "far too long": "{source: openai/gpt-oss-20b, slo: {ttft: 99999s, tpot: 99999s}, "
    "min: 0, max: 1, utilization: 0.05, percentile: 50}",
    "a million": "{source: openai/gpt-oss-20b, slo: {ttft: 1s, tpot: 50ms}, max_len: 16, "
    "workload: {req_per_s: 1000000, input: 1, output: 1}}",
    "nothing at a time": "{source: openai/gpt-oss-20b, slo: {ttft: 1s, tpot: 50ms}, "
    "max_disruption: 0, scale_in_after: 1s, share: 0, spot: 1, survive: all-spot}",
}
STEPS_S = ((1, 1), (1, 15, 60), (1, 700), (1, 4000, 1))


def picking(data: st.DataObject) -> Pick:
    def pick(several: Sequence[Any]) -> Any:
        return several[data.draw(st.integers(0, len(several) - 1))]

    return pick


@cache
def settled() -> Fleet:
    """A fleet that has run for some seconds."""
    fleet = fleet_of(FILE)
    first = Controller(fleet, 1)
    first.begin()
    fleet.executors()
    for _ in range(6):
        first.tick()
        fleet.now_ms += 1000
        fleet.gateways()
        fleet.executors()
    assert any(entry.topic == "assignments" for entry in fleet.entries)
    return fleet


def copy() -> Fleet:
    fleet = settled()
    return dataclasses.replace(
        fleet, entries=[*fleet.entries], offsets=Counter(fleet.offsets), raised=[]
    )


def survived(fleet: Fleet, seconds: Sequence[int], merged: bool = False) -> Controller:
    """Let two controllers follow and decide one after the other; return the second."""
    for token in (2, 3):
        controller = Controller(fleet, token, merged)
        controller.begin()
        for second in seconds:
            fleet.now_ms += second * 1000
            fleet.gateways()
            controller.tick()
    drawn(fleet)
    assert not fleet.raised, "plans are still made"
    return controller


def test_every_topic_has_a_valid_record_to_change() -> None:
    """An unchanged record of each topic is valid, so only changed values are tested."""
    fleet = copy()
    names = fleet.names(TEXTS)
    for topic in TABLE:
        made = plain(lambda several: several[0], names, topic.name)
        assert decode(topic.name, encode(made)) == made


@given(st.data())
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_no_content_of_the_topics_ends_a_controller(data: st.DataObject) -> None:
    """Records come before the start of a controller and while it runs, in any order. Some have
    forged tokens.
    """
    fleet, pick = copy(), picking(data)
    names = dataclasses.replace(fleet.names(TEXTS), token=pick((1, 2, 3, 10**6)))
    for _ in range(pick((1, 2, 5, 12))):
        fleet.put(*extreme(pick, names))
    controller = Controller(fleet, 2)
    controller.begin()
    for _ in range(pick((1, 3))):
        fleet.put(*extreme(pick, names))
        fleet.now_ms += 1000
        controller.tick()
    survived(fleet, pick(STEPS_S), merged=pick((False, False, True)))


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("decisions", {"number": 10**12}),
        ("plans", {"number": 10**12, "next_serial": 10**12}),
        ("assignments", {"generation": 10**12, "leader_token": 1}),
        ("routes", {"generation": 10**12, "leader_token": 1}),
        ("leadership", {"kind": "renewal", "token": 10**12}),
        ("telemetry", {"arrivals": 10**7, "in_flight": 10**9}),
        ("status", {"at_ms": 0}),
        ("ledger", {"at_ms": MAX_MS}),
    ],
)
def test_a_leader_continues_a_count_at_its_maximum(topic: str, changes: dict[str, Any]) -> None:
    """A leader adds to the recorded count. Its own records stay within the limits."""
    fleet = copy()
    made = plain(lambda several: several[-1], fleet.names(TEXTS), topic)
    fleet.write(dataclasses.replace(made, **changes))
    after = survived(fleet, (1, 1, 30))
    assert not after.poison
    assert after.loop.state.term.ticked_ms == fleet.now_ms
