"""The reasons of a plan as values: binding limits, rejected alternatives, reliefs and risks."""

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
    """A change of a limit and its benefit, found by planning again with it.

    kind: "tpot", "ttft", "slo", "spot", "nodes" or "budget"; subject: the model or pool of the
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
    """The benefit of measuring a model on GPUs of type `gpu` if they prove as fast as predicted.

    The plan counts on less there. Benefits: a lower cost, and less unserved demand.
    """

    gpu: str
    saves_usd_per_h: float
    serves_req_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotLoss:
    """The share of demand still served if all spot nodes were lost at once, and the time to
    recover.

    recovery_s: predicted start time of the replacement.
    """

    model: str
    served_fraction: float
    recovery_s: float


@dataclass(frozen=True, slots=True)
class ModelReasons:
    """The reasons for a model's targets.

    demand_req_per_s: arrivals. capacity_req_per_s: raw, before utilization. load: demand /
    capacity. bound_by: the limits that set the rate of one combo, as text. uncertain: some capacity
    was estimated, not measured. measuring: GPUs on which a measurement would pay.
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
    """A part of the difference between the current and the planned cost (negative: saved).

    what: "sizing" (the plan without any spot, against the current cost) or "spot" (the further
    reduction by spot).
    """

    what: str
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """All reasons of one plan, by model, with the reliefs and risks of the whole.

    savings: empty if the plan uses no spot, or if no plan without spot serves as much.
    """

    models: tuple[ModelReasons, ...]
    relief: tuple[Relief, ...]
    spot_loss: tuple[SpotLoss, ...]
    savings: tuple[Saving, ...] = ()

    def of(self, model: str) -> ModelReasons | None:
        """Reasons of `model`; None if it was not planned."""
        return next((reasons for reasons in self.models if reasons.model == model), None)
