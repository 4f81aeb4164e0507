"""The checks of causes find contradictions between a sentence, its cost and the fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market, Policy
from loadtests.cause_checks import Moment, contradictions
from tests.unit.decide.decide_catalogue import pool, service, simple
from topics.decisions import Decision
from topics.reason_codes import ReasonCode as Code

RENTED, SPOT = pool(nodes=4), pool("cheap", nodes=4, market=Market.SPOT)
FIRM, LOOSE = simple("chat", RENTED)[0], simple("chat", SPOT)[0]
CLUSTER = Cluster((RENTED, SPOT), (service("chat"),), Policy())
COMBOS = {FIRM.id: FIRM, LOOSE.id: LOOSE}
TWO = Moment(CLUSTER, {FIRM.id: 2}, COMBOS)
NONE = Moment(CLUSTER, {}, COMBOS)
TRUE = Decision(
    1, 1, "chat", "scale_out", 1_700_000_000_000, True,
    "demand of 20.0 req/s is over 80% of capacity 20.0; +7.20 USD/h",
    demand_req_per_s=20.0, capacity_req_per_s=20.0, cost_delta_usd_per_h=7.2,
    change=((FIRM.id, 1),), cause=Code.SURGE,
)  # fmt: skip
EXCHANGE = replace(
    TRUE, kind="replan", change=((FIRM.id, 1), (LOOSE.id, -1)), cause=Code.PROMISED_SPOT,
    reason="required by spot <= 0%; +7.20 USD/h; plan trigger: chat has excess capacity",
)  # fmt: skip


@pytest.mark.parametrize("one", [TRUE, EXCHANGE])
def test_a_true_sentence_has_no_contradiction(one: Decision) -> None:
    assert list(contradictions(one, TWO)) == []


@pytest.mark.parametrize(
    ("one", "at"),
    [
        (replace(TRUE, cause=""), TWO),
        (replace(EXCHANGE, cause=Code.EXCESS), TWO),
        (replace(EXCHANGE, reason="chat has excess capacity; +7.20 USD/h"), TWO),
        (replace(EXCHANGE, cause=Code.CHEAPER), TWO),
        (replace(EXCHANGE, change=((FIRM.id, -1), (LOOSE.id, 1))), TWO),
        (replace(TRUE, cost_delta_usd_per_h=5.0), TWO),
        (replace(TRUE, demand_req_per_s=5.0), TWO),
        (replace(TRUE, reason="demand of 9.0 req/s, and no instance is running; +7.20 USD/h"), TWO),
        (replace(TRUE, reason="its instances can serve 9.0 of 10 req/s; +7.20 USD/h"), NONE),
        (replace(TRUE, kind="scale_in", change=((FIRM.id, -1),)), TWO),
        (replace(TRUE, cause=Code.FLOOR), TWO),
        (replace(TRUE, cause=Code.CAPACITY_LOST), TWO),
        (replace(TRUE, cause=Code.WAKE), TWO),
        (replace(TRUE, cause=Code.CEILING), TWO),
        (replace(TRUE, cause=Code.PRICE), TWO),
        (replace(TRUE, cause=Code.MAKES_ROOM), TWO),
        (replace(TRUE, kind="hold", reason="code waits"), TWO),
    ],
)
def test_each_contradiction_is_found(one: Decision, at: Moment) -> None:
    assert list(contradictions(one, at))
