"""Builders of small clusters and fleets for tests of the simulation."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import ScriptEvent
from autoscaler.simulation.timeline import Timeline

OD = "eu/l40s/on-demand"
SPOT = "eu/l40s/spot"
ONE = f"mini:a1@{OD}"
LENGTHS = Lengths(1000.0, 100.0)


def service(model: str = "mini", **changes: object) -> Service:
    """A service of gpt-oss-20b in mode act."""
    values: dict[str, object] = {
        "architecture": catalog.model("openai/gpt-oss-20b"),
        "slo": Slo(1000.0, 50.0),
        "mode": Mode.ACT,
        "spot_share": 0.5,
        "lengths": LENGTHS,
        "utilization": 0.8,
        **changes,
    }
    return Service(model=model, **values)  # type: ignore[arg-type]


def cluster(*services: Service, nodes: int = 4, per_node: int = 1) -> Cluster:
    """A cluster with on-demand and spot nodes of L40S in one region."""
    gpu = catalog.gpu("L40S")
    pools = (
        Pool("eu", "l40s", gpu, per_node, nodes, Market.ON_DEMAND, 2.0),
        Pool("eu", "l40s", gpu, per_node, nodes, Market.SPOT, 0.8),
    )
    return Cluster(pools, services or (service(),))


def evenly(count: int, every_s: float, model: str = "mini", first_s: float = 0.0) -> list[Arrival]:
    """Evenly spaced requests of 1000 input and 100 output tokens."""
    return [Arrival(first_s + i * every_s, model, 1000, 100) for i in range(count)]


def simulator(
    counts: dict[str, int],
    arrivals: Sequence[Arrival],
    duration_s: float,
    lead_s: float = 120.0,
    script: tuple[ScriptEvent, ...] = (),
    on: Cluster | None = None,
    gateways: int = 1,
) -> Simulator:
    """A simulator with a fixed fleet."""
    where = on or cluster()
    scenario = Scenario(where, arrivals, duration_s, lead_s, script, gateways)
    lengths = {one.model: LENGTHS for one in where.services}
    return Simulator(scenario, FixedFleet(counts, where, lengths))


def run(*args: object, **kwargs: object) -> Timeline:
    """The timeline of a whole run. Arguments are as for `simulator`."""
    return simulator(*args, **kwargs).run()  # type: ignore[arg-type]
