"""Keeps the planned shares of the request types of a model, which budget mode and models of
components plan with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.component_graph import RequestType
from autoscaler.domain.workload import WorkloadType
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.workload_mix import Mix, declared_mix, estimate_kind_mix, estimate_mix
from autoscaler.state.model_state import ModelState


def with_planned_mix(
    state: ModelState, service: Service, policy: Policy, demand: ModelDemand, due: bool
) -> ModelState:
    """`state` with updated shares of the request types, without shares if plans use none. due:
    whether measured shares may change the planned ones now."""
    types: Sequence[WorkloadType | RequestType] = ()
    if service.graph is not None:
        types = service.graph.types
    elif policy.spends_budget:
        types = service.types
    known = state.estimate.mix
    if [name for name, _ in known] != [kind.name for kind in types]:
        return _with_mix(state, declared_mix(types))
    if not types or not due:
        return state
    if service.graph is not None:
        return _with_mix(state, estimate_kind_mix(known, demand, policy.significance))
    return _with_mix(state, estimate_mix(known, service.types, demand, policy.significance))


def _with_mix(state: ModelState, mix: Mix) -> ModelState:
    if mix == state.estimate.mix:
        return state
    return replace(state, estimate=replace(state.estimate, mix=mix))
