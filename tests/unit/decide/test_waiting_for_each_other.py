"""Two models that wait for each other's node: one of them gets an additional node."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.planning.named_change import full_change
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency
from tests.unit.decide.decide_catalogue import Planner, pool, service, simple
from tests.unit.decide.decide_world import World, world

HERE, THERE, APART = (pool(name, per_node=1) for name in ("here", "there", "apart"))
(A_HERE,), (B_HERE,) = simple("a", HERE), simple("b", HERE)
(A_THERE,), (B_THERE,) = simple("a", THERE), simple("b", THERE)
NOW = {"a": (A_HERE,), "b": (B_THERE,), "c": simple("c", APART)}


class Swapping(Planner):
    """A planner whose full plans exchange the nodes of a and b."""

    def answer(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        found = super().answer(request, cluster)
        if request.urgency is Urgency.URGENT:
            return found
        rest = [(name, n) for name, n in found.counts if name.startswith("c")]
        wanted = ((A_THERE.id, 1), (B_HERE.id, 1), *rest)
        known = {one.id: one for one in (*found.combos, A_THERE, B_HERE)}
        change = full_change(request.groups, dict(request.fleet), dict(wanted), ())
        return replace(found, counts=wanted, change=change, combos=tuple(known.values()))


def swapped(mode: Mode, dead: bool) -> tuple[World, int]:
    """(world after the exchange, most nodes rented for a and b at the same time).

    mode: mode of c once all instances run. dead: the instance of c fails a minute before the
    exchange.
    """
    w = world(
        5.0,
        *(service(model) for model in "abc"),
        pools=(HERE, THERE, APART),
        catalogue=NOW,
    ).run(150)
    assert [len(w.rented(p.id)) for p in (HERE, THERE, APART)] == [1, 1, 1]
    w.cluster = replace(w.cluster, services=(*w.cluster.services[:2], service("c", mode=mode)))
    if dead:
        w.failing.add(APART.id)
        w.run(60)
    w.planner = Swapping({**NOW, "a": (A_HERE, A_THERE), "b": (B_HERE, B_THERE)})
    most = 0

    def observe(now: World) -> None:
        nonlocal most
        most = max(most, len(now.rented(HERE.id)) + len(now.rented(THERE.id)))

    w.run(1100, observe)
    return w, most


def changed_places(w: World) -> bool:
    runs = {(i.model, n.pool) for n in w.applied.values() for i in n.instances if not i.drain}
    return {("a", THERE.id), ("b", HERE.id)} <= runs


def test_only_one_of_two_waiting_models_gets_an_additional_node() -> None:
    w, most = swapped(Mode.ACT, dead=False)
    assert changed_places(w)
    assert most == 3


def test_no_model_waits_for_an_instance_that_shoal_may_not_replace() -> None:
    w, _ = swapped(Mode.RECOMMEND, dead=True)
    assert changed_places(w)
