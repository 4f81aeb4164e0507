"""Output of `shoal status` for a controller that has not made a decision."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli.status import adapters_line, lines

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
