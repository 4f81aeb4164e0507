"""Input of a simulation: demand, fleet and scripted events. It does not depend on the decider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.supply_script import ScriptEvent
from autoscaler.simulation.virtual_planner import PlanTimes


@dataclass(frozen=True, slots=True)
class Scenario:
    """Input of a simulation; it does not depend on the decider.

    arrivals: by rising time, counted from `lead_s` after the controller's start. A later turn of a
    session arrives when the previous turn has ended, so its time here is only an estimate.
    duration_s: length of the billed and evaluated span after lead_s; requests in flight at its end
    get 10 min more. script: events in any order. gateways: number of gateways, to which the
    requests go in turn. weights: requests per arrival, by model (1 if missing); above 1 only if
    rates are simulated (`rate_simulator`), which then draws counts by `seed`. block_tokens: tokens
    of a block in the prefix caches of a model's engines; a model without an entry has none.
    """

    cluster: Cluster
    arrivals: Sequence[Arrival]
    duration_s: float
    lead_s: float = 0.0
    script: tuple[ScriptEvent, ...] = ()
    gateways: int = 1
    weights: Mapping[str, float] = field(default_factory=dict)
    seed: int = 1
    solve: PlanTimes = field(default_factory=PlanTimes)
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    block_tokens: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finite("scenario: duration_s", self.duration_s, 1.0, 366 * 86_400.0)
        finite("scenario: lead_s", self.lead_s, 0.0, 86_400.0)
        whole("scenario: gateways", self.gateways, 1, 100)
        whole("scenario: seed", self.seed, 0, 2**31)
        models = {service.model for service in self.cluster.services}
        models |= {route.name for route in self.cluster.routes}
        for model, weight in self.weights.items():
            finite(f"scenario: weights: {model}", weight, 1.0, 1e6)
        for arrival in self.arrivals:
            if arrival.model not in models:
                raise InvalidValue("arrival: model", arrival.model, " or ".join(sorted(models)))

    @property
    def requests(self) -> int:
        """Number of requests that the arrivals represent."""
        counts = Counter(arrival.model for arrival in self.arrivals)
        return round(sum(self.weight_of(model) * count for model, count in counts.items()))

    def weight_of(self, model: str) -> float:
        """Requests per arrival of `model`."""
        return self.weights.get(model, 1.0)

    @property
    def end_s(self) -> float:
        """The last billed second, counted from the controller's start."""
        return self.lead_s + self.duration_s
