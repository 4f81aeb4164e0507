"""Values about services that route to several models: the thresholds that last from tick to tick,
and the traffic of a model through such a service."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.quality_route import Cuts, ScoreMix
from autoscaler.planning.planner_messages import ChosenSplit


@dataclass(frozen=True, slots=True)
class SplitState:
    """Thresholds of a service that routes to several models.

    cuts: in effect at gateways, () = none yet. chosen: last planned thresholds, for the score
    distribution `mix`; they take effect when their fleet is ready. changed_ms: time of the last
    change. planned: rate in requests/s of each of the service's models in that plan.
    """

    cuts: Cuts = ()
    chosen: ChosenSplit | None = None
    mix: ScoreMix | None = None
    changed_ms: int = 0
    planned: tuple[tuple[str, float], ...] = ()

    @property
    def target_cuts(self) -> Cuts:
        """The planned thresholds."""
        return self.chosen.cuts if self.chosen is not None else self.cuts


@dataclass(frozen=True, slots=True)
class RoutedTraffic:
    """Requests to a model through a service that routes to several models. by: name of the service.
    least_req_per_s: lower bound of the present rate. planned_req_per_s: rate that the model must be
    able to serve before the service's thresholds change; 0 if they do not change.
    """

    by: str
    least_req_per_s: float
    planned_req_per_s: float
