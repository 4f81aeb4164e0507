"""The policies of Shoal itself by name. A policy is one file in this folder and one line here."""

from __future__ import annotations

from autoscaler.simulation.policies import (
    cauchy,
    fixed_fleets,
    hpa,
    knative,
    shoal_policy,
    skyserve,
)
from autoscaler.simulation.policies.policy import Policy

BUILT_IN: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        shoal_policy.SHOAL,
        knative.POLICY,
        hpa.UTILIZATION,
        hpa.QUEUE,
        hpa.RATE,
        skyserve.POLICY,
        cauchy.POLICY,
        shoal_policy.HOMO,
        fixed_fleets.BEST,
        fixed_fleets.PEAK,
        shoal_policy.NO_TRANSITIONS,
        shoal_policy.NO_SURGE,
        shoal_policy.NO_FORECAST,
        shoal_policy.NO_MIXED,
        shoal_policy.NO_PAIRS,
        shoal_policy.NO_SWITCH,
        shoal_policy.NO_HITS_PLANNED,
    )
}
