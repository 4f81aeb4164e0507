"""Strategies by name: the product's strategy for a demand, and baselines to compare it with."""

from __future__ import annotations

from autoscaler.domain.validation import InvalidValue
from autoscaler.planning.plan import Strategy
from autoscaler.planning.strategies.registry import DEMAND_STRATEGY
from autoscaler.simulation.strategies.cauchy import (
    CauchyStrategy,
    cheapest,
    eq16,
    most_efficient,
)
from autoscaler.simulation.strategies.homo import HomoStrategy

STRATEGIES: dict[str, Strategy] = {
    DEMAND_STRATEGY.name: DEMAND_STRATEGY,
    "cauchy": CauchyStrategy("cauchy", eq16),
    "mce-lp": CauchyStrategy("mce-lp", most_efficient),
    "mc-lp": CauchyStrategy("mc-lp", cheapest),
    "homo": HomoStrategy(),
}


def strategy(name: str) -> Strategy:
    """The strategy with this name. Raises InvalidValue if there is none."""
    found = STRATEGIES.get(name)
    if found is None:
        raise InvalidValue("strategy", name, " or ".join(STRATEGIES))
    return found
