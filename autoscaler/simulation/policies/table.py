"""All policies by name. Owns the table, nothing else: a policy is one file and one line here."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.policies import cauchy, fixed, hpa, knative, oracle, ours, skyserve
from autoscaler.simulation.policies.policy import Policy

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        ours.SHOAL,
        knative.POLICY,
        hpa.UTILIZATION,
        hpa.QUEUE,
        skyserve.POLICY,
        cauchy.POLICY,
        ours.HOMO,
        fixed.BEST,
        fixed.PEAK,
        ours.NO_TRANSITIONS,
        ours.NO_SURGE,
        ours.NO_FORECAST,
        ours.NO_MIXED,
        ours.NO_PAIRS,
        ours.NO_SWITCH,
    )
}
VARIANTS = tuple(name for name in POLICIES if name.startswith("shoal-"))
DEFAULT = tuple(name for name in POLICIES if name not in VARIANTS)


def named(names: Sequence[str]) -> tuple[Policy, ...]:
    """The policies called so, in this order; "variants" stands for ours without each part.
    InvalidValue for a name that nobody has. The oracle is always computed."""
    found: list[Policy] = []
    for name in names:
        for one in VARIANTS if name == "variants" else (name,):
            if one == oracle.NAME:
                continue
            if one not in POLICIES:
                allowed = ", ".join((*POLICIES, "variants", oracle.NAME))
                raise InvalidValue("--policies", one, f"one of {allowed}")
            if POLICIES[one] not in found:
                found.append(POLICIES[one])
    return tuple(found)
