"""Output of `shoal status` for a controller that makes no decisions (yet)."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli.status import lines

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
def test_a_standby_says_who_leads_and_nothing_that_only_a_leader_knows(
    leader: str, said: str
) -> None:
    assert list(lines({**FACTS, "leader": leader})) == [f"ctl-2 stands by; leader {said}"]


def test_a_leader_that_has_just_taken_over_does_not_say_that_it_decided() -> None:
    head = next(lines({**FACTS, "leads": True, "leader": "ctl-2"}))
    assert head == "no decision yet | leader ctl-2 | config -"


def test_a_declaration_that_cannot_be_used_is_shown() -> None:
    facts = {**FACTS, "leads": True, "refused": {"mini": "service mini:1: no"}}
    assert any("mini" in line and "service mini:1: no" in line for line in lines(facts))
