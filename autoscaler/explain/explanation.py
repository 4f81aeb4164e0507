"""Reasons of a plan as values: binding limits, rejected alternatives, benefits of looser limits,
and risks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejected:
    """An alternative that was not chosen. usd_per_h: its additional cost (0 = impossible)."""

    what: str
    why: str
    usd_per_h: float = 0.0


@dataclass(frozen=True, slots=True)
class Relief:
    """The benefit of a looser limit, found by planning again with the changed limit.

    kind: "tpot", "ttft", "slo", "spot", "nodes" or "budget". subject: the model or pool of the
    limit, "*" for the budget. saves_usd_per_h: reduction of the bill. serves_req_per_s: reduction
    of the unserved demand.
    """

    kind: str
    subject: str
    what: str
    saves_usd_per_h: float
    serves_req_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measuring:
    """The benefit of measuring a model on GPUs of type `gpu`, provided that they are as fast as
    predicted: a lower cost or less unserved demand, because plans use only a part of an unmeasured
    rate.
    """

    gpu: str
    saves_usd_per_h: float
    serves_req_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotLoss:
    """The share of demand that is still served if all spot nodes are lost at once, and the time to
    recover.

    recovery_s: predicted start time of the replacement.
    """

    model: str
    served_fraction: float
    recovery_s: float


@dataclass(frozen=True, slots=True)
class ModelReasons:
    """The reasons for the planned counts of a model.

    demand_req_per_s: arrivals. capacity_req_per_s: raw capacity, before utilization. load: demand /
    capacity. bound_by: the limits that determine the rate of one combo, as text. uncertain: some
    capacity was estimated, not measured. measuring: GPU types on which a measurement would reduce
    the cost or the unserved demand. prefix_hit: planned share of prompt tokens from prefix caches.
    prefix_gpus: GPUs that the planned combos would need in addition without hits.
    """

    model: str
    demand_req_per_s: float
    capacity_req_per_s: float
    bound_by: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    relief: tuple[Relief, ...]
    uncertain: bool
    measuring: tuple[Measuring, ...] = ()
    prefix_hit: float = 0.0
    prefix_gpus: float = 0.0

    @property
    def cached(self) -> str:
        """Text on the worth of prefix caches, "" without hits."""
        if not self.prefix_hit:
            return ""
        share, gpus = self.prefix_hit, self.prefix_gpus
        return f"{share:.0%} of prompt tokens; {gpus:.1f} more GPUs without them"

    @property
    def load(self) -> float:
        """Share of the raw capacity that the demand takes; 0 without capacity."""
        if self.capacity_req_per_s <= 0.0:
            return 0.0
        return self.demand_req_per_s / self.capacity_req_per_s


@dataclass(frozen=True, slots=True)
class Saving:
    """A part of the difference between the current and the planned cost (negative: saved).

    what: "sizing" (cost of a plan without spot minus the current cost) or "spot" (planned cost
    minus the cost of that plan).
    """

    what: str
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """All reasons of one plan: by model, and the reliefs and risks of the whole plan.

    savings: empty if the plan uses no spot, or if no plan without spot serves as much demand.
    """

    models: tuple[ModelReasons, ...]
    relief: tuple[Relief, ...]
    spot_loss: tuple[SpotLoss, ...]
    savings: tuple[Saving, ...] = ()

    def of(self, model: str) -> ModelReasons | None:
        """Reasons of `model`; None if it was not planned."""
        return next((reasons for reasons in self.models if reasons.model == model), None)
