"""Check that the modes in one file can be combined.

The modes are lowest cost, highest throughput for a budget, answer quality, and component graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.cluster import Objective, Policy, Service
from autoscaler.domain.quality_route import QualityRoute
from streams.files.user_errors import UserError


def refuse_mixed(
    file: str, policy: Policy, services: Sequence[Service], routes: Sequence[QualityRoute]
) -> None:
    """UserError if the objective of `policy` does not support the declared services."""
    if not policy.spends_budget:
        return
    what = [f"models of components ({s.model})" for s in services if s.graph is not None]
    what += [f"a service that stands for several models ({route.name})" for route in routes]
    if what:
        raise UserError(
            f"{file}: policy.objective: {policy.objective} is not allowed with {what[0]}; "
            f"allowed: {Objective.COST}"
        )
