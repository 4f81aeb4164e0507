"""How a changed version of a model replaces the running one."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import finite, one_of

SPARES = ("rent", "none")


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """Limits of a rollout.

    step: share of the model's combos that one wave replaces, at least one combo. watch_s: time that
    a wave must serve before the next wave begins. within_s: time after which waves no longer wait
    for free capacity, if `max_disruption` permits them. spare: "rent" starts replacements on
    further rented nodes if no GPU is free; "none" rents nothing and replaces in place.
    """

    step: float = 0.25
    watch_s: float = 60.0
    within_s: float = 21_600.0
    spare: str = "rent"

    def __post_init__(self) -> None:
        finite("rollout: step", self.step, 0.0, 1.0)
        finite("rollout: watch", self.watch_s, 0.0, 86_400.0)
        finite("rollout: within", self.within_s, 0.0, 30 * 86_400.0)
        one_of("rollout: spare", self.spare, SPARES)
