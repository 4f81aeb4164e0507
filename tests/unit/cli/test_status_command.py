"""Output of `shoal status` for a controller that has not made a decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import fleet_status
from streams.cli.explain import _latency
from streams.cli.status import adapters_line, lines
from tests.unit.decide.decide_catalogue import LLAMA, service
from tests.unit.decide.decide_world import world

FACTS: dict[str, Any] = {
    "controller": "ctl-2",
    "leads": False,
    "leader": "ctl-1",
    "modes": [],
    "config": "",
    "tick_age_s": 2.0,
    "held": {},
    "models": [],
    "supply_age_s": {"prices": {}, "availability": {}},
    "writes": 0,
    "usd_per_h": None,
    "unhealthy": "",
}


@pytest.mark.parametrize(("leader", "said"), [("ctl-1", "ctl-1"), ("", "not known")])
def test_a_standby_shows_the_leader_and_no_facts_of_a_leader(leader: str, said: str) -> None:
    (line,) = lines({**FACTS, "leader": leader})
    assert str(line).endswith(f"ctl-2 stands by; leader: {said}")


def test_a_new_leader_shows_no_decision_before_its_first_one() -> None:
    head = next(lines({**FACTS, "leads": True, "leader": "ctl-2"}))
    assert "ctl-2 leads, no decision yet" in head


def test_a_refused_declaration_is_shown() -> None:
    facts = {**FACTS, "leads": True, "refused": {"mini": "service mini:1: no"}}
    text = " ".join(" ".join(map(str, lines(facts))).split())
    assert "mini: the last declaration cannot be used" in text and "service mini:1: no" in text


def test_servers_that_shoal_did_not_start_are_no_part_of_its_bill() -> None:
    model = {
        "model": "mini", "ready": 2, "wanted": 3, "demand_req_per_s": None, "attained": None,
        "ttft_p95_ms": None, "ttft_limit_ms": 2000.0, "tpot_p95_ms": None, "tpot_limit_ms": 120.0,
        "usd_per_h": 1.7, "word": "", "unmanaged": 2, "telemetry_age_s": None,
    }  # fmt: skip
    facts = {**FACTS, "leads": True, "usd_per_h": 0.0, "models": [model]}
    text = " ".join(" ".join(map(str, lines(facts))).split())
    others = "1.70 USD/h for servers that it did not start"
    assert f"cost 0.00 USD/h for nodes that Shoal assigned, {others}" in text


def test_adapters_are_shown_by_demand_and_only_the_busiest() -> None:
    rates = {f"a{n:02}": float(n) for n in range(14)}
    line = adapters_line({"model": "chat", "adapters_req_per_s": rates})
    assert line.startswith("chat by adapter, req/s: a13 13.0, a12 12.0")
    assert line.endswith("a04 4.0, and 4 more")


def test_a_pooling_model_has_no_time_per_token() -> None:
    model = {
        "model": "embed", "ready": 1, "wanted": 1, "demand_req_per_s": 9.0, "attained": 0.98,
        "ttft_p95_ms": 180.0, "ttft_limit_ms": 300.0, "tpot_p95_ms": None, "tpot_limit_ms": 300.0,
        "usd_per_h": 0.8, "word": "steady", "telemetry_age_s": 1.0,
    }  # fmt: skip
    generates = " ".join(map(str, lines({**FACTS, "leads": True, "models": [model]})))
    assert "-/300 ms" in generates
    model["pooling"] = True
    text = " ".join(map(str, lines({**FACTS, "leads": True, "models": [model]})))
    assert "0.2/0.3 s" in text and "300 ms" not in text
    assert _latency(model) == "whole answer p95 0.18 s (limit 0.3 s); 98.0% met the SLO"


def test_a_declared_pooling_model_is_one_in_the_status() -> None:
    encoder = replace(LLAMA, pooling=True)
    w = world(1.0, service(architecture=encoder, disaggregate=False)).run(2)
    shown = fleet_status(w.state, Observation(statuses=dict(w.statuses)), w.cluster, w.now_ms)
    assert shown.models[0].pooling and shown.models[0].kv_cache == ""
