"""A replica fleet follows its rule: the number of replicas, their markets, and no needless
restarts.
"""

from __future__ import annotations

from collections import Counter

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.performance import catalog
from autoscaler.rollout.serving_group import Life
from autoscaler.simulation.fleet_options import instance_kinds
from autoscaler.simulation.replicas import ReplicaFleet, Signals, best_instance_kind
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import NodesLimited
from tests.unit.simulation.simulation_builders import LENGTHS, OD, SPOT, cluster, evenly, service


class Script:
    """A rule that sets a fixed number of replicas from each given second on."""

    def __init__(self, replicas: dict[int, int]) -> None:
        self._replicas = replicas

    def desired_replicas(self, signals: Signals) -> int:
        return self._replicas[max(s for s in self._replicas if s <= signals.now_s)]


def test_replicas_follow_the_rule_half_of_them_on_spot() -> None:
    """The rule asks for 1, 5 and then 2 replicas. That takes five starts; nine
    would be needless.
    """
    where = cluster(service(spot_share=0.5))
    (kind,) = instance_kinds(where, where.services[0], LENGTHS)
    rule = Script({0: 1, 100: 5, 400: 2})
    fleet = ReplicaFleet(where, {"mini": LENGTHS}, {"mini": kind}, {"mini": rule}, "scripted")
    simulator = Simulator(Scenario(where, evenly(200, 2.0, first_s=120.0), 600.0), fleet)
    simulator.advance(50.0)
    assert pools(fleet) == {OD: 1}
    simulator.advance(390.0)
    assert pools(fleet) == {OD: 3, SPOT: 2}
    found = simulator.run()
    assert pools(fleet) == {OD: 1, SPOT: 1}
    assert found.launches == 5
    assert [d.kind for d in found.decisions] == ["scale_out", "scale_out", "scale_in"]
    assert all(row.outcome == "served" for row in found.requests)


def test_on_demand_replaces_spot_that_is_not_offered_until_spot_serves_again() -> None:
    """Two of four replicas may be on spot, none is offered, and one is from second 300 on. The
    replica on demand leaves when that spot replica serves, and not before."""
    where = cluster(service(spot_share=0.5))
    (kind,) = instance_kinds(where, where.services[0], LENGTHS)
    fleet = ReplicaFleet(
        where, {"mini": LENGTHS}, {"mini": kind}, {"mini": Script({0: 4})}, "scripted"
    )
    script = (NodesLimited(0.0, SPOT, 0), NodesLimited(300.0, SPOT, 1))
    simulator = Simulator(
        Scenario(where, evenly(200, 2.0, first_s=120.0), 600.0, 0.0, script), fleet
    )
    simulator.advance(290.0)
    assert pools(fleet) == {OD: 4}
    simulator.advance(310.0)
    assert pools(fleet) == {OD: 4, SPOT: 1}
    simulator.run()
    assert pools(fleet) == {OD: 3, SPOT: 1}


def test_a_full_pool_limits_the_replicas() -> None:
    where = cluster(service(spot_share=0.0), nodes=2)
    (kind,) = instance_kinds(where, where.services[0], LENGTHS)
    fleet = ReplicaFleet(
        where, {"mini": LENGTHS}, {"mini": kind}, {"mini": Script({0: 50})}, "scripted"
    )
    Simulator(Scenario(where, evenly(10, 1.0), 60.0), fleet).run()
    assert pools(fleet) == {OD: 2}


def test_hardware_is_chosen_by_the_price_of_whole_nodes() -> None:
    """A GPU on a node of four is a tenth cheaper, but a single replica pays for the whole node."""
    gpu = catalog.gpu("L40S")
    shared = Pool("eu", "quad", gpu, 4, 4, Market.ON_DEMAND, 4 * 1.8)
    alone = Pool("us", "single", gpu, 1, 40, Market.ON_DEMAND, 2.0)
    where = Cluster((shared, alone), (service(spot_share=0.0),))
    found = [
        best_instance_kind(where, where.services[0], LENGTHS, rate, rate).pools
        for rate in (0.5, 90.0)
    ]
    assert [pools[0].name for pools in found] == ["single", "quad"]


def pools(fleet: ReplicaFleet) -> Counter[str]:
    groups = fleet._fleet.active_groups("mini")
    assert all(group.life is Life.ACTIVE for group in groups)
    return Counter(group.placed[0].pool for group in groups)
