"""Demystifying Cost-Efficiency (ICML '25), Table 7: planning again after a shift and after a loss.

    python -m loadtests.experiments.replanning [--budget 30] [--model 8b] [--seed 1] [--json OUT]

The product's controller and planner run in the simulator, in virtual time and in budget mode, with
the paper's nine request types in its mix 2 (Table 5) and GPUs of its Table 4 on nodes of four. Each
of two events is simulated twice: with the planner, and without it from the event on.

    workload   from the event on, 90% of the requests have the short output
    GPU drop   a node of four H100 is lost

The offered load is the throughput of the best plan for the present mix. The GPU drop leaves it
unchanged. The shift adds a quarter, because the simulated engines are faster than planned. The
printed throughput counts requests that waited for at most a minute. The share in brackets is that
of the worst-served request type, because a plan that starves a type does not serve the mix. The
paper measured rented GPUs and has no SLO, so the limits here are too loose to have an effect. Our
rates come from the performance model, so only the changes are comparable.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Market, Mode, Objective, Policy, Pool, Service
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand, Lengths, Slo, WorkloadType
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.planner_messages import Urgency
from autoscaler.planning.planning_problem import make_problem
from autoscaler.planning.strategies.registry import BUDGET_STRATEGY
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Call, Ending
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import (
    AvailabilityChanged,
    NodeLost,
    PlannerDown,
    ScriptEvent,
)
from loadtests.experiments.demystifying import AVAILABLE, GPUS, MIXES, MODELS, PRICES, TYPES
from topics.fleet import Assignment

PER_NODE = 4
LEAD_S, EVENT_S, SETTLED_S, END_S = 420.0, 360.0, 800.0, 1200.0
WAIT_MS = 60_000.0
SHORT = 0.9
SURGE = 1.25
PAPER = {
    "workload": (26.89, 23.70, 29.61),
    "GPU drop": (26.89, 20.80, 22.85),
}
LOST = "cloud/h100/on-demand"
_NONE = Assignment("none", "none", 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Row:
    """Requests/s served before the event, after it, and after the new plan, each with the share of
    the worst-served request type.

    offered: requests/s offered after the event.
    """

    event: str
    offered: float
    before: tuple[float, float]
    after: tuple[float, float]
    replanned: tuple[float, float]
    replans: int


def mix_of(weights: Sequence[float]) -> tuple[float, ...]:
    """Shares of the nine request types."""
    return tuple(weight / sum(weights) for weight in weights)


BEFORE = mix_of(MIXES[1])


def surged() -> tuple[float, ...]:
    """The mix BEFORE, changed so that the share SHORT of all requests has the shortest output.

    Ratios among types with the shortest output stay, and so do ratios among the other types.
    """
    least = min(o for _, o in TYPES)
    short = sum(s for s, (_, o) in zip(BEFORE, TYPES, strict=True) if o == least)
    return tuple(
        share * (SHORT / short if o == least else (1.0 - SHORT) / (1.0 - short))
        for share, (_, o) in zip(BEFORE, TYPES, strict=True)
    )


def cluster_of(model: str, budget: float, req_per_s: float) -> Cluster:
    """The paper's GPUs (Table 4, first column) on nodes of four, for one model in budget mode."""
    pools = tuple(
        Pool(
            "cloud", name.lower(), catalog.gpu(name), PER_NODE, count // PER_NODE,
            Market.ON_DEMAND, PER_NODE * price,
        )
        for name, count, price in zip(GPUS, AVAILABLE[0], PRICES, strict=True)
        if count >= PER_NODE
    )  # fmt: skip
    types = tuple(
        WorkloadType(f"{i}-{o}", share, Lengths(i, o))
        for (i, o), share in zip(TYPES, BEFORE, strict=True)
    )
    service = Service(
        model=model, architecture=catalog.model(MODELS[model]), slo=Slo(60_000.0, 500.0),
        max_len_tokens=4096, types=types, utilization=1.0, mode=Mode.ACT, min_instances=1,
        req_per_s=req_per_s,
        lengths=Lengths(
            sum(s * i for s, (i, _) in zip(BEFORE, TYPES, strict=True)),
            sum(s * o for s, (_, o) in zip(BEFORE, TYPES, strict=True)),
        ),
    )  # fmt: skip
    policy = Policy(budget_usd_per_h=budget, objective=Objective.THROUGHPUT)
    return Cluster(pools, (service,), policy)


def planned_req_per_s(cluster: Cluster, mix: Sequence[float]) -> float:
    """Requests/s of `mix` that the planner expects from the budget."""
    service = cluster.services[0]
    named = tuple((kind.name, share) for kind, share in zip(service.types, mix, strict=True))
    demand = Demand(service.model, 1.0, service.lengths, mix=named)
    made = BUDGET_STRATEGY.solve(make_problem(cluster, {service.model: demand}, default_profile()))
    return made.work.multiple if made.work else 0.0


def arrivals(
    model: str, before: float, after: float, mix: Sequence[float], seed: int
) -> list[Arrival]:
    """Poisson arrivals at the rate `before`.

    From EVENT_S on, they have the rate `after` and the mix `mix`.
    """
    random = np.random.default_rng(seed)
    found: list[Arrival] = []
    for rate, shares, from_s, to_s in (
        (before, BEFORE, 0.0, EVENT_S),
        (after, mix, EVENT_S, END_S),
    ):
        count = random.poisson(rate * (to_s - from_s))
        times = np.sort(random.uniform(from_s, to_s, count))
        kinds = random.choice(len(TYPES), count, p=shares)
        found += [
            Arrival(float(at), model, *TYPES[kind]) for at, kind in zip(times, kinds, strict=True)
        ]
    return found


def served(calls: Sequence[Call], from_s: float, to_s: float) -> tuple[float, float]:
    """(requests/s, smallest served share of a request type) of the arrivals in this period.

    Types with fewer than a hundred requests are left out of the smallest share.
    """
    came: dict[tuple[int, int], list[int]] = {}
    for call in calls:
        if from_s <= call.arrival_ms / 1000.0 - LEAD_S < to_s:
            seen = came.setdefault((call.input_tokens, call.output_tokens), [0, 0])
            seen[0] += 1
            seen[1] += call.ending is Ending.SERVED
    rate = sum(done for _, done in came.values()) / (to_s - from_s)
    return rate, min(done / of for of, done in came.values() if of >= 100)


def run(
    event: str, cluster: Cluster, offered: float, replans: bool, seed: int
) -> tuple[tuple[float, float], tuple[float, float], int]:
    """(result before, result after, number of full plans requested after the event) of one run."""
    service = cluster.services[0]
    at_s = LEAD_S + EVENT_S
    script: list[ScriptEvent] = [] if replans else [PlannerDown(at_s - 1.0, LEAD_S + END_S)]
    if event == "GPU drop":
        lost = node_ids(cluster.pool(LOST))[0]
        script += [NodeLost(at_s, lost), AvailabilityChanged(at_s, LOST, 0)]
    mix = surged() if event == "workload" else BEFORE
    scenario = Scenario(
        cluster,
        arrivals(service.model, service.req_per_s, offered, mix, seed),
        END_S,
        LEAD_S,
        tuple(script),
        limits=GatewayLimits(queue_ms=WAIT_MS, max_waiting=100_000),
    )
    simulator = Simulator(scenario, ControllerUnderTest())
    simulator.advance(at_s)
    if event == "GPU drop" and not simulator.assignments.get(lost, _NONE).instances:
        raise InvalidValue("budget", cluster.policy.budget_usd_per_h, "one that buys an H100 node")
    simulator.advance(scenario.end_s)
    calls = simulator.finish().calls
    asked = simulator.timeline.plan_requests
    return (
        served(calls, EVENT_S / 3.0, EVENT_S),
        served(calls, SETTLED_S, END_S - WAIT_MS / 1000.0),
        sum(at > at_s and ask.urgency is Urgency.FULL for at, ask in asked),
    )


def table(model: str, budget: float, seed: int) -> list[Row]:
    """The rows of both events."""
    plain = cluster_of(model, budget, 1.0)
    rate = planned_req_per_s(plain, BEFORE)
    cluster = cluster_of(model, budget, rate)
    rows = []
    for event in PAPER:
        shift = event == "workload"
        offered = SURGE * planned_req_per_s(plain, surged()) if shift else rate
        before, after, _ = run(event, cluster, offered, False, seed)
        _, replanned, plans = run(event, cluster, offered, True, seed)
        rows.append(Row(event, offered, before, after, replanned, plans))
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--budget", type=float, default=30.0, help="USD/h")
    parser.add_argument("--model", default="70b", choices=list(MODELS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="", help="write the figures here")
    args = parser.parse_args()
    rows = table(args.model, args.budget, args.seed)
    print(
        f"{MODELS[args.model]}, {args.budget:g} USD/h, seed {args.seed}; req/s served (worst type)"
    )
    print("event       before       after, same plan     planned again        paper: the same")
    for row in rows:
        was, fell, rose = PAPER[row.event]
        shown = "  ".join(
            f"{rate:6.2f} ({share:4.0%}){f' {rate / base - 1.0:+4.0%}' if base else ''}"
            for (rate, share), base in (
                (row.before, 0.0),
                (row.after, row.before[0]),
                (row.replanned, row.after[0]),
            )
        )
        paper = f"{was:.2f}  {fell:.2f} {fell / was - 1:+.0%}  {rose:.2f} {rose / fell - 1:+.0%}"
        print(f"{row.event:10s}{shown}    {paper}")
    if args.json:
        found = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
        Path(args.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
