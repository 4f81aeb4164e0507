"""Reasons as values: what binds, what was rejected, what would help, what a loss would do.

Owns these values. Knows nothing of how they are found or printed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejected:
    """An alternative that was not chosen. usd_per_h: what it would cost more (0 = impossible)."""

    what: str
    why: str
    usd_per_h: float = 0.0


@dataclass(frozen=True, slots=True)
class Relief:
    """A change of a limit and what it would bring, found by planning again with it.

    kind: "tpot", "ttft", "slo", "spot", "nodes" or "budget"; subject: the model or pool whose limit
    it is, "*" for the budget.
    saves_usd_per_h: of the bill. serves_req_per_s: how much less demand would go unserved.
    """

    kind: str
    subject: str
    what: str
    saves_usd_per_h: float
    serves_req_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measuring:
    """What measuring a model on GPUs of type `gpu` would bring if they prove as fast as predicted,
    where the plan counts on less: off the bill, and of demand that goes unserved."""

    gpu: str
    saves_usd_per_h: float
    serves_req_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotLoss:
    """If all spot nodes were lost at once: the share of demand still served, and for how long.

    recovery_s: predicted start of what would replace them.
    """

    model: str
    served_fraction: float
    recovery_s: float


@dataclass(frozen=True, slots=True)
class ModelReasons:
    """Why a model's targets are what they are.

    demand_req_per_s: arrivals. capacity_req_per_s: raw, before utilization.
    load: demand / capacity. bound_by: the limits that set the rate of one combo, in words.
    uncertain: some capacity was estimated, not measured. measuring: GPUs on which it would pay.
    """

    model: str
    demand_req_per_s: float
    capacity_req_per_s: float
    bound_by: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    relief: tuple[Relief, ...]
    uncertain: bool
    measuring: tuple[Measuring, ...] = ()

    @property
    def load(self) -> float:
        """Share of the raw capacity that the demand takes; 0 without capacity."""
        if self.capacity_req_per_s <= 0.0:
            return 0.0
        return self.demand_req_per_s / self.capacity_req_per_s


@dataclass(frozen=True, slots=True)
class Saving:
    """A part of the difference between the bill now and the bill planned (negative: saved).

    what: "sizing" (the plan without any spot, against now) or "spot" (what spot takes off that).
    """

    what: str
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """All reasons of one plan, by model, with what would relieve the whole or a loss do.

    savings: empty where no spot is used, or where not as much can be had without it.
    """

    models: tuple[ModelReasons, ...]
    relief: tuple[Relief, ...]
    spot_loss: tuple[SpotLoss, ...]
    savings: tuple[Saving, ...] = ()

    def of(self, model: str) -> ModelReasons | None:
        """Reasons of `model`, None when it was not planned."""
        return next((reasons for reasons in self.models if reasons.model == model), None)
