"""Length and cost of a rollout before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.domain.combo import Combo
from autoscaler.domain.rollout_policy import RolloutPolicy


@dataclass(frozen=True, slots=True)
class WavePreview:
    """combos: combos that run another version, of `total`. waves: number of waves. seconds: time
    until the last wave serves, if no wave waits. usd: rent of replacements while both versions run,
    at most. canary_s: longest comparison of the first combo with the former version, which is part
    of `seconds`; 0 without one.
    """

    combos: int
    total: int
    waves: int
    seconds: float
    usd: float
    canary_s: float = 0.0


def preview_waves(
    old: Sequence[Combo], total: int, policy: RolloutPolicy, drain_s: float
) -> WavePreview:
    """The preview of a rollout of `old`, the combos that run another version. total: number of all
    combos of the model. drain_s: longest drain of an instance in s.
    """
    step = max(1, int(policy.step * total))
    waves = 1 + math.ceil(max(0, len(old) - 1) / step)
    start_s = max((combo.start_s for combo in old), default=0.0)
    seconds = waves * (start_s + drain_s) + (waves - 1) * policy.watch_s
    overlap_h = (start_s + drain_s) / 3600.0
    canary_s = policy.canary.within_s if policy.canary is not None and old else 0.0
    usd = 0.0
    if policy.spare == "rent":
        usd = sum(combo.usd_per_h for combo in old) * overlap_h
        if total == 1:  # the former combo stays for the comparison
            usd += sum(combo.usd_per_h for combo in old) * canary_s / 3600.0
    return WavePreview(len(old), total, waves, seconds + canary_s, usd, canary_s)
