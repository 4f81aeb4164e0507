"""The rollout that a Deployment's own controller makes of a changed pod template. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """active: whether pods of a former template exist. most, share: the pods that may be missing
    meanwhile, as a number and as a share of the replicas; the larger one counts."""

    active: bool = False
    most: int = 0
    share: float = 0.0

    def replicas_for(self, pods: int) -> int:
        """The fewest replicas of which `pods` remain, however many are missing. `pods` if more than
        half may be missing, because their owner then wants no capacity during a rollout."""
        if self.share > 0.5:
            return pods
        found = pods
        while found - max(self.most, math.floor(found * self.share + 1e-9)) < pods:
            found += 1
        return found


def parse_rolling_update(spec: Mapping[str, Any], status: Mapping[str, Any]) -> RollingUpdate:
    """The rollout of a Deployment with this spec and status."""
    strategy = spec.get("strategy") or {}
    active = int(status.get("updatedReplicas") or 0) < int(status.get("replicas") or 0)
    rolling = strategy.get("rollingUpdate")
    if not rolling:
        return RollingUpdate(active, share=1.0)  # all pods end before the new ones start
    missing, more = (rolling.get(name, "25%") for name in ("maxUnavailable", "maxSurge"))
    count, share = _bound(missing)
    # Without any surge, Kubernetes lets one pod be missing at least.
    return RollingUpdate(active, max(count, int(_bound(more) == (0, 0.0))), share)


def _bound(value: object) -> tuple[int, float]:
    """(number, share) of a bound such as 1 or "25%"."""
    text = str(value)
    if text.endswith("%"):
        return 0, int(text[:-1]) / 100
    return int(text), 0.0
