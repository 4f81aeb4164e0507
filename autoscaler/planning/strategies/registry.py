"""The strategies of the product: one for demand, one for a budget. Baselines are in
`simulation.strategies`."""

from __future__ import annotations

from autoscaler.domain.cluster import Policy
from autoscaler.domain.mode_hook import ModeHook
from autoscaler.planning.plan import Strategy
from autoscaler.planning.strategies.shoal import ShoalStrategy

DEMAND_STRATEGY: Strategy = ShoalStrategy()
BUDGET_STRATEGY: ModeHook[[], Strategy] = ModeHook("budget")


def strategy_for(policy: Policy) -> Strategy:
    """The strategy for the objective of `policy`."""
    return BUDGET_STRATEGY() if policy.spends_budget else DEMAND_STRATEGY
