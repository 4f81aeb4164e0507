"""Each rule of the ablation can be taken out of the product, and is watched in a run with it."""

from __future__ import annotations

import pytest

from autoscaler.sizing import rules
from loadtests.ablation_page import effects
from loadtests.ablation_rules import RULES, WITH_ALL, Case, Figures, Rule, removed, watching


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_is_found_and_comes_back(rule: Rule) -> None:
    before = rules.RAISING
    with removed(rule):
        assert (before != rules.RAISING) is (rule.group == "sizing" and rule.listed is not None)
    assert before == rules.RAISING


def test_a_rule_without_effect_is_not_named() -> None:
    with watching(RULES) as seen:
        assert rules.scale_in._highest_rate((), 12) == 0.0
        assert seen == set()
        assert rules.scale_in._highest_rate(((10, 900),) * 12, 12) > 0.0
    assert seen == {"the highest span instead of the mean"}


def test_a_removal_costs_if_it_exceeds_the_difference_between_seeds() -> None:
    rule = RULES[0]
    found = {
        Case("a", 1, WITH_ALL): Figures(100.0, 0.95, 1),
        Case("a", 2, WITH_ALL): Figures(102.0, 0.95, 1),
        Case("a", 1, rule.name): Figures(101.0, 0.95, 1),
        Case("b", 1, WITH_ALL): Figures(100.0, 0.95, 1),
        Case("b", 2, WITH_ALL): Figures(102.0, 0.95, 1),
        Case("b", 2, rule.name): Figures(112.0, 0.95, 1),
    }
    small, large = effects(rule, ("a", "b"), found)
    assert (small.costs, large.costs) == (False, True)
    assert large.usd == pytest.approx(5 / 102)
