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
    assert "mini: the last declaration is refused" in text and "service mini:1: no" in text


def test_adapters_are_shown_by_demand_and_only_the_busiest() -> None:
    rates = {f"a{n:02}": float(n) for n in range(14)}
    line = adapters_line({"model": "chat", "adapters_req_per_s": rates})
    assert line.startswith("chat by adapter, req/s: a13 13.0, a12 12.0")
    assert line.endswith("a04 4.0, and 4 more")
