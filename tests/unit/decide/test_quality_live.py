"""Quality mode through `decide` and the simulator: thresholds change only if the scores shift."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np

from autoscaler.decide import Observation, decide, restore
from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Ending
from autoscaler.simulation.simulator import ORIGIN_MS, Simulator
from autoscaler.simulation.timeline import Timeline
from autoscaler.state.effects import DeleteKey, PublishRoutes
from topics.controls import Control
from topics.routing import Routes
from topics.topic_table import ROUTES

LEAD_S, SHIFT_S = 200.0, 600.0
RATE = 8.0  # more than one large instance serves
SCORES = [(i + 0.5) / 400 for i in range(400)]
ROUTE = QualityRoute.from_sample(
    "auto", ("small", "large"), SCORES, [[100.0 * (1.0 - s), 90.0] for s in SCORES],
    80.0, RATE, 10, fallback=True,
)  # fmt: skip


def cluster() -> Cluster:
    pools = (
        Pool("r", "l40s", catalog.gpu("L40S"), 2, 20, Market.ON_DEMAND, 3.6),
        Pool("r", "l4", catalog.gpu("L4"), 1, 20, Market.ON_DEMAND, 0.7),
    )
    models = {"small": "meta-llama/Llama-3.1-8B-Instruct", "large": "Qwen/Qwen3-32B"}
    services = tuple(
        Service(
            model=name,
            architecture=catalog.model(source),
            slo=Slo(3000.0, 100.0),
            max_len_tokens=4096,
            mode=Mode.ACT,
            disaggregate=False,
            lengths=Lengths(400, 60),
        )
        for name, source in models.items()
    )
    return Cluster(pools, services, routes=(ROUTE,))


def run(seed: int, hard_from_s: float, until_s: float) -> Simulator:
    """A run with the scores of the sample. From `hard_from_s` on, only the harder half of the
    scores occurs.
    """
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(0.0, until_s, random.poisson(RATE * until_s)))
    found = [
        Arrival(float(t), "auto", 400, 60,
                score=float(random.uniform(0.5 if t >= hard_from_s else 0.0, 1.0)))
        for t in times
    ]  # fmt: skip
    world = Simulator(Scenario(cluster(), found, until_s, LEAD_S), ControllerUnderTest())
    world.run()
    return world


def moves_s(timeline: Timeline) -> list[float]:
    """The times of threshold changes, except the first choice."""
    chosen = [d for d in timeline.decisions if d.model == "auto" and d.kind == "replan"]
    return [timeline.second_of(d.at_ms) for d in chosen][1:]


def test_steady_scores_change_thresholds_at_most_once_in_ten_minutes() -> None:
    world = run(1, 1e9, 1800.0)
    moved = [0.0, *moves_s(world.timeline)]
    assert all(b - a >= 600.0 for a, b in pairwise(moved))
    assert {call.ending for call in world.timeline.calls} == {Ending.SERVED}


def test_a_shift_of_scores_changes_thresholds_within_two_minutes_and_quality_holds() -> None:
    world = run(1, SHIFT_S, 1300.0)
    timeline = world.timeline
    moved = [at for at in moves_s(timeline) if at >= LEAD_S + SHIFT_S]
    assert moved and moved[0] < LEAD_S + SHIFT_S + 120.0
    assert len(moved) <= 3
    split = world.routes["auto"].split
    assert split is not None
    last = [call for call in timeline.calls if call.arrival_ms / 1000.0 > LEAD_S + 1300.0 - 300.0]
    answered = Counter(call.model for call in last)
    for model, planned in zip(split.models, split.shares, strict=True):
        assert (
            abs(answered[model] / len(last) - planned) <= 0.06
        )  # three standard deviations of 1200 requests
    quality = [100.0 * (1.0 - c.score) if c.model == "small" else 90.0 for c in last if c.score]
    assert np.mean(quality) >= 79.0


def test_the_other_model_answers_and_fallbacks_are_counted_while_capacity_is_missing() -> None:
    """The small model answers until the large one serves."""
    small, large = cluster().services
    both = replace(
        cluster(),
        services=(replace(small, min_instances=1), large),
        routes=(replace(ROUTE, at_least=89.0),),
    )
    found = [Arrival(0.5 * i, "auto", 400, 60, score=0.9) for i in range(200)]
    world = Simulator(Scenario(both, found, 100.0, 80.0), ControllerUnderTest())
    world.run()
    assert {call.ending for call in world.timeline.calls} == {Ending.SERVED}
    by_small = Counter(call.model for call in world.timeline.calls)["small"]
    counted = world.windows.kinds("auto", ORIGIN_MS + 180_000, 120)
    assert 0 < by_small == counted["fell-back"] < counted["all"]


def test_the_routes_of_a_removed_service_are_deleted() -> None:
    """Its models are still declared. If everything is paused, the routes of the service stay the
    same.
    """
    routed = Routes("auto", 3, 1, 1000, 0.0, 0.0, split=ROUTE.split((5,), ROUTE.sample))
    left = replace(cluster(), routes=())
    t0 = 1_700_000_000_000
    for paused in (True, False):
        said = Control("*", "pause", paused, "ann", "", t0)
        state = restore(left, {}, {"auto": routed}, {}, [], t0, leader_token=2)
        seen = Observation(controls={said.key: said})
        state, effects = decide(state, seen, left, t0 + 1000)
        assert ("auto" in state.published.routes) is paused
        assert (DeleteKey((ROUTES.name, "auto")) in effects) is not paused
        assert "auto" not in [e.record.model for e in effects if isinstance(e, PublishRoutes)]
