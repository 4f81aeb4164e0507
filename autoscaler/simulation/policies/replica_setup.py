"""The set-up that policies of equal replicas share.

Owns nothing but that: hardware by `best_kind`, one rule per model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autoscaler.simulation.policies.policy import Setting, Trial
from autoscaler.simulation.replicas import (
    Replica,
    ReplicaFleet,
    Scaler,
    best_kind,
    combo_of,
    replica_of,
)

FIRST_LOAD = 0.8
"""Share of a replica's capacity that the first fleet is sized for."""

Rule = Callable[[Replica, float, int], Scaler]
"""A replica, the knob and how many replicas to begin with."""


def replicas(setting: Setting, knob: float, rule: Rule, why: str) -> Trial:
    """A run in which `rule` scales each model on its best single kind of instance."""
    cluster = setting.scenario.cluster
    chosen, rules = {}, {}
    for service in cluster.services:
        lengths = setting.lengths_of(service)
        mean = setting.means.get(service.model, service.req_per_s)
        kind = best_kind(cluster, service, lengths, mean, setting.peak_of(service))
        combo = combo_of(cluster, service, setting.lengths, kind, kind.pools[0].id)
        replica = replica_of(combo, lengths)
        first = max(1, math.ceil(service.req_per_s / (FIRST_LOAD * replica.req_per_s) - 1e-9))
        chosen[service.model], rules[service.model] = kind, rule(replica, knob, first)
    return Trial(setting.scenario, ReplicaFleet(cluster, setting.lengths, chosen, rules, why))
