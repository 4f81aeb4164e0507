"""Mode budget: the most work for a fixed budget. Registers its hook."""

from __future__ import annotations

from autoscaler.modes.budget.budget_strategy import BudgetStrategy
from autoscaler.planning.strategies.registry import BUDGET_STRATEGY

BUDGET_STRATEGY.provide(BudgetStrategy)
