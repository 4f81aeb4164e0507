"""With any order of declarations, controls and losses each tick ends, and no GPU has two owners."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market, Mode, Objective, Policy, Pool, Service
from autoscaler.domain.schedule import Weekly
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, WorkloadType
from autoscaler.planning.planner_messages import Urgency
from tests.unit.decide.decide_catalogue import (
    AGGREGATED,
    BUCKET,
    DECODE,
    PREFILL,
    combo,
    pool,
    service,
)
from tests.unit.decide.decide_world import World
from topics.alerts import Alert
from topics.supply import Availability, Price

MODELS = ("chat", "code", "mini")
TYPES = (
    WorkloadType("short", 0.4, Lengths(300.0, 500.0)),
    WorkloadType("long", 0.6, Lengths(2000.0, 50.0)),
)
ALWAYS = Weekly.parse("00:00-24:00")


def pools(random: random.Random) -> tuple[Pool, ...]:
    """Pools of all kinds; some of them have no free nodes."""
    found = []
    for region in ("us", "eu"):
        for name, per_node in (("one", 1), ("four", 4)):
            for market in Market:
                owned = market is Market.OWNED
                nodes, usd = random.choice([0, 1, 4, 8]), random.choice([1.0, 3.0, 20.0])
                named = f"own-{name}" if owned else name
                found.append(pool(named, nodes, per_node, market, region, usd))
    return tuple(random.sample(found, random.randint(1, len(found))))


def declared(random: random.Random, model: str) -> Service:
    """A random valid service."""
    one = random.choice
    while True:
        try:
            return service(
                model,
                mode=one([Mode.ACT, Mode.ACT, Mode.RECOMMEND, Mode.APPROVE]),
                min_instances=one([0, 1, 2, 5]),
                max_instances=one([0, 0, 1, 3, 8]),
                survive=one(["none", "none", "one-node", "all-spot"]),
                priority=one([0, 0, 5]),
                spot_share=one([0.0, 0.5, 1.0]),
                percentile=one([0.5, 0.95, 0.99]),
                regions=one([(), (), ("us",), ("eu",)]),
                scale_in_after_s=one([1.0, 60.0]),
                max_disruption=one([0.0, 0.34, 1.0]),
                zero_after_s=one([0.0, 30.0]),
                req_per_s=one([0.0, 5.0, 30.0]),
                lengths=one([BUCKET, BUCKET, Lengths(300.0, 600.0)]),
                types=one([(), (), TYPES]),
                floors=one([(), (), ((ALWAYS, 3),)]),
                freezes=one([(), (), (), (ALWAYS,)]),
            )
        except InvalidValue:
            continue


def anew(random: random.Random, before: Cluster) -> Cluster:
    """`before` with some services added, removed or changed, and sometimes with another policy."""
    known = {service.model: service for service in before.services}
    services = tuple(
        known[model] if model in known and random.random() < 0.4 else declared(random, model)
        for model in MODELS
        if random.random() < 0.8
    )
    policy = before.policy
    if random.random() < 0.3:
        budget = random.choice([0.0, 10.0, 60.0])
        objective = random.choice([*Objective]) if budget else Objective.COST
        policy = Policy(budget_usd_per_h=budget, objective=objective, drain_timeout_s=5.0)
    return replace(before, services=services, policy=policy)


def disturb(random: random.Random, w: World) -> None:
    """Inject one random event into `w`."""
    ids, nodes = [pool.id for pool in w.cluster.pools], sorted(w.statuses)
    match random.choice(
        ["declare", "restart", "price", "nodes", "node", "say", "planner", "alert"]
    ):
        case "declare":
            w.cluster = anew(random, w.cluster)
        case "restart" if random.random() < 0.3:
            w.restart_controller()
        case "price":
            where = random.choice(ids)
            w.prices[where] = Price(where, random.choice([0.01, 5.0, 1000.0]), w.now_ms)
        case "nodes":
            where = random.choice(ids)
            w.availability[where] = Availability(where, random.choice([0, 1, 5]), w.now_ms)
        case "node" if nodes:
            node = random.choice(nodes)
            random.choice([w.cut.add, w.cut.discard])(node)
            w.reclaimed[random.choice(nodes)] = w.now_ms + 20_000
        case "say":
            scope = random.choice([*MODELS, "*", "ghost"])
            w.say(scope, random.choice(["pause", "release"]), active=random.random() < 0.4)
        case "planner":
            w.planner.broken = set(random.sample([*Urgency], random.choice([0, 0, 1, 2])))
        case "alert":
            w.alerts.append(Alert("a", "slow", "firing", w.now_ms, random.choice([(), ("ghost",)])))


@pytest.mark.parametrize("seed", range(8))
def test_a_tick_always_ends(seed: int) -> None:
    r = random.Random(seed)
    where = pools(r)
    kinds = {
        model: tuple(
            combo(model, members)
            for one in where
            for members in (
                [(AGGREGATED, 1, one, 1, 10.0)],
                [(PREFILL, 1, one, 1, 15.0), (DECODE, 1, one, 2, 9.0)],
            )
        )
        for model in MODELS
    }
    rates = dict.fromkeys(MODELS, 10.0)
    w = World(anew(r, Cluster(where, ())), kinds, lambda model, _t_s: rates[model], start_s=5)
    for _ in range(150):
        if r.random() < 0.2:
            disturb(r, w)
        if r.random() < 0.05:
            rates[r.choice(MODELS)] = r.choice([0.0, 3.0, 40.0])
        w.tick()
        tenants: dict[tuple[str, int], str] = {}
        for node, assigned in w.applied.items():
            for instance in assigned.instances:
                for gpu in instance.gpus:
                    assert tenants.setdefault((node, gpu), instance.instance) == instance.instance
