"""What happens in a simulation, whoever decides: demand, fleet, script.

Owns the value and its checks. Knows nothing of how it is run (`world`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.supply_script import Happening
from autoscaler.simulation.virtual_planner import SolveTimes


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, whoever decides.

    arrivals: by rising time, which counts from `lead_s` after the controller's start; a later turn
    of a session comes when the turn before has ended, and its time is an estimate. duration_s: from
    then on; it is what is billed and judged. Requests under way at its end get 10 min more.
    script: in any order. gateways: how many share the requests in turn. weight: requests that each
    arrival stands for; only flows (`fluid`) know others than 1, and draw counts by `seed` then.
    """

    cluster: Cluster
    arrivals: Sequence[Arrival]
    duration_s: float
    lead_s: float = 0.0
    script: tuple[Happening, ...] = ()
    gateways: int = 1
    weight: float = 1.0
    seed: int = 1
    solve: SolveTimes = field(default_factory=SolveTimes)
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    def __post_init__(self) -> None:
        finite("scenario: duration_s", self.duration_s, 1.0, 366 * 86_400.0)
        finite("scenario: lead_s", self.lead_s, 0.0, 86_400.0)
        whole("scenario: gateways", self.gateways, 1, 100)
        finite("scenario: weight", self.weight, 1.0, 1e6)
        whole("scenario: seed", self.seed, 0, 2**31)
        models = {service.model for service in self.cluster.services}
        models |= {route.name for route in self.cluster.routes}
        for arrival in self.arrivals:
            if arrival.model not in models:
                raise InvalidValue("arrival: model", arrival.model, " or ".join(sorted(models)))

    @property
    def requests(self) -> int:
        """How many requests the arrivals stand for."""
        return round(self.weight * len(self.arrivals))

    @property
    def end_s(self) -> float:
        """The last second that is billed, on the simulation's axis."""
        return self.lead_s + self.duration_s
