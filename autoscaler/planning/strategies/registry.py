"""All strategies by name."""

from __future__ import annotations

from autoscaler.domain.cluster import Policy
from autoscaler.domain.validation import InvalidValue
from autoscaler.planning.plan import Strategy
from autoscaler.planning.strategies.budget import BudgetStrategy
from autoscaler.planning.strategies.cauchy import (
    CauchyStrategy,
    cheapest,
    eq16,
    most_efficient,
)
from autoscaler.planning.strategies.homo import HomoStrategy
from autoscaler.planning.strategies.shoal import ShoalStrategy

STRATEGIES: dict[str, Strategy] = {
    "shoal": ShoalStrategy(),
    "cauchy": CauchyStrategy("cauchy", eq16),
    "mce-lp": CauchyStrategy("mce-lp", most_efficient),
    "mc-lp": CauchyStrategy("mc-lp", cheapest),
    "homo": HomoStrategy(),
}
"""Strategies that plan for a demand."""

BUDGET_STRATEGY: Strategy = BudgetStrategy()


def strategy_for(policy: Policy) -> Strategy:
    """The strategy for the objective of `policy`."""
    return BUDGET_STRATEGY if policy.spends_budget else STRATEGIES["shoal"]


def strategy(name: str) -> Strategy:
    """The strategy with this name. Raises InvalidValue if there is none."""
    found = STRATEGIES.get(name)
    if found is None:
        raise InvalidValue("strategy", name, " or ".join(STRATEGIES))
    return found
