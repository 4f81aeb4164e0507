"""Set-up of all policies with equal replicas: `best_instance_kind` chooses the hardware, and each
model has its own rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from autoscaler.simulation.policies.policy import PolicyContext, PolicyRun
from autoscaler.simulation.replicas import (
    ReplicaCapacity,
    ReplicaFleet,
    Scaler,
    best_instance_kind,
    combo_in_pool,
    replica_capacity,
)

INITIAL_LOAD = 0.8
"""The first fleet is sized for this load of each replica, as a share of its capacity."""

Rule = Callable[[ReplicaCapacity, float, int], Scaler]
"""Arguments: a replica's capacity, the knob, and the first number of replicas."""


def replica_trial(context: PolicyContext, knob: float, rule: Rule, why: str) -> PolicyRun:
    """A run in which `rule` scales each model on its best single kind of instance."""
    models = [service.model for service in context.scenario.cluster.services]
    return ruled_trial(context, knob, dict.fromkeys(models, rule), why)


def ruled_trial(
    context: PolicyContext, knob: float, rule_of: Mapping[str, Rule], why: str
) -> PolicyRun:
    """As `replica_trial`, with a rule for each model."""
    cluster = context.scenario.cluster
    chosen, rules = {}, {}
    for service in cluster.services:
        lengths = context.lengths_of(service)
        mean = context.means.get(service.model, service.req_per_s)
        kind = best_instance_kind(cluster, service, lengths, mean, context.peak_of(service))
        combo = combo_in_pool(cluster, service, context.lengths, kind, kind.pools[0].id)
        replica = replica_capacity(combo, lengths)
        first = max(1, math.ceil(service.req_per_s / (INITIAL_LOAD * replica.req_per_s) - 1e-9))
        chosen[service.model] = kind
        rules[service.model] = rule_of[service.model](replica, knob, first)
    return PolicyRun(context.scenario, ReplicaFleet(cluster, context.lengths, chosen, rules, why))
