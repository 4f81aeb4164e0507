"""All policies by name. A policy is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.hindsight.hindsight_cost import BOUND_NAME, NAME
from autoscaler.simulation.policies import (
    cauchy,
    fixed_fleets,
    hpa,
    knative,
    shoal_policy,
    skyserve,
)
from autoscaler.simulation.policies.policy import Policy

POLICIES: dict[str, Policy] = {
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
    )
}
VARIANTS = tuple(name for name in POLICIES if name.startswith("shoal-"))
DEFAULT = tuple(name for name in POLICIES if name not in VARIANTS)


def policies_by_name(names: Sequence[str]) -> tuple[Policy, ...]:
    """The policies called `names`, in this order.

    "variants" means all variants of Shoal that lack one part. The hindsight plan and its
    bound are skipped, because they are always computed. Raises InvalidValue for an unknown name.
    """
    found: list[Policy] = []
    for name in names:
        for one in VARIANTS if name == "variants" else (name,):
            if one in (NAME, BOUND_NAME):
                continue
            if one not in POLICIES:
                allowed = ", ".join((*POLICIES, "variants", NAME, BOUND_NAME))
                raise InvalidValue("--policies", one, f"one of {allowed}")
            if POLICIES[one] not in found:
                found.append(POLICIES[one])
    return tuple(found)
