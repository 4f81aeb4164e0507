"""How a changed version of a model replaces the running one."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import InvalidValue, finite, one_of

SPARES = ("rent", "none")
COMPARED = ("errors", "ttft", "tpot", "tokens")
"""Properties by which a canary may be compared: failed requests, time to the first token, time per
token, and the length of answers."""


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """How the first instance of a new version is compared with the former version.

    share: most of the model's requests that it gets; never more than its share of the capacity.
    compare: of `COMPARED`. within_s: time after which the rollout continues without a verdict.
    """

    share: float = 0.5
    compare: tuple[str, ...] = COMPARED
    within_s: float = 3600.0

    def __post_init__(self) -> None:
        finite("rollout: canary: share", self.share, 0.001, 0.5)
        finite("rollout: canary: within", self.within_s, 0.0, 30 * 86_400.0)
        for name in self.compare:
            one_of("rollout: canary: compare", name, COMPARED)
        if not self.compare:
            raise InvalidValue("rollout: canary: compare", [], f"at least one of {COMPARED}")


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """Limits of a rollout.

    step: share of the model's combos that one wave replaces, at least one combo. watch_s: time that
    a wave must serve before the next wave begins. within_s: time after which waves no longer wait
    for free capacity, if `max_disruption` permits them. spare: "rent" starts replacements on
    further rented nodes if no GPU is free; "none" rents nothing and replaces in place. canary: None
    = the first instance proves its version by serving for watch_s.
    """

    step: float = 0.25
    watch_s: float = 60.0
    within_s: float = 21_600.0
    spare: str = "rent"
    canary: CanaryPolicy | None = None

    def __post_init__(self) -> None:
        finite("rollout: step", self.step, 0.0, 1.0)
        finite("rollout: watch", self.watch_s, 0.0, 86_400.0)
        finite("rollout: within", self.within_s, 0.0, 30 * 86_400.0)
        one_of("rollout: spare", self.spare, SPARES)
