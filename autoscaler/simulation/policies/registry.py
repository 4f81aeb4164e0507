"""All policies by name: those of Shoal itself, and those of installed packages."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.hindsight.hindsight_cost import BOUND_NAME, NAME
from autoscaler.simulation.policies.built_in import BUILT_IN
from autoscaler.simulation.policies.policy import Policy
from topics.extensions import Group, extensions

_ADDED = tuple(one.value for one in extensions(Group.POLICIES) if isinstance(one.value, Policy))
POLICIES: dict[str, Policy] = BUILT_IN | {policy.name: policy for policy in _ADDED}
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
