"""A chat model whose prompts stop sharing their beginnings within a minute, with hits counted in
its capacity and without.

    python -m loadtests.vanished_hits [--seeds 20] [--first 1] [--minutes 30]

One model, sized for 55% of hits at the start; three quarters of its prompt tokens hit until the
hits end. `planned at` is the second, from the beginning of that minute, at which the last instance
was ordered. `lost s` is what counting hits costs: requests that miss their SLO in addition, in
seconds of the whole load. The attainment of both runs is over all of their minutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.serving.routing_policies import RoutingPolicy, WithinCombo
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.policies.shoal_policy import without_hits
from autoscaler.simulation.run_measures import attains
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator

_MODEL = "chat"
_BLOCK_TOKENS, _BLOCKS, _SHARED_BLOCKS, _OUTPUT = 128, 32, 24, 100
_DOCUMENTS = 20
_REQ_PER_S = 8.0
_SLO = Slo(2000.0, 60.0)
_LEAD_S, _FADE_S = 180.0, 60.0
DECLARED = 0.55


@dataclass(frozen=True, slots=True)
class Run:
    """One run. attained: requests within the SLO. ordered: (seconds from the minute's beginning,
    instances) of each change."""

    requests: int
    attained: int
    usd: float
    ordered: tuple[tuple[float, int], ...]


def arrivals(seed: int, ends_s: float, to_s: float) -> list[Arrival]:
    """Prompts that begin with one of 20 documents, and from a minute after `ends_s` on with none
    of them."""
    rng, at_s, found = random.Random(seed), 0.0, list[Arrival]()
    while (at_s := at_s + rng.expovariate(_REQ_PER_S)) < to_s:
        own = 10_000 + 100 * len(found)
        is_alone = rng.random() < (at_s - ends_s) / _FADE_S
        first = own + 50 if is_alone else 100 * rng.randrange(_DOCUMENTS) + 1
        blocks = (*range(first, first + _SHARED_BLOCKS), *range(own, own + 7))
        found.append(Arrival(at_s, _MODEL, _BLOCKS * _BLOCK_TOKENS, _OUTPUT, blocks=blocks))
    return found


def scenario(seed: int, ends_s: float, to_s: float) -> Scenario:
    """The world, with a gateway that routes by prefix."""
    service = Service(
        _MODEL,
        catalog.model("openai/gpt-oss-20b"),
        _SLO,
        mode=Mode.ACT,
        req_per_s=_REQ_PER_S,
        min_instances=1,
        lengths=Lengths(_BLOCKS * _BLOCK_TOKENS, _OUTPUT, prefix_hit=DECLARED),
        utilization=0.8,
    )
    pool = Pool("eu", "l40s", catalog.gpu("L40S"), 1, 30, Market.ON_DEMAND, 2.0)
    return Scenario(
        Cluster((pool,), (service,)),
        arrivals(seed, ends_s, to_s),
        to_s,
        _LEAD_S,
        limits=GatewayLimits(policy=RoutingPolicy(inside=WithinCombo.PREFIX)),
        seed=seed,
        block_tokens={_MODEL: _BLOCK_TOKENS},
    )


def simulate(of: Scenario, counts_hits: bool, ends_s: float) -> Run:
    """Run the scenario. counts_hits: whether plans count hits, declared and measured ones."""
    if not counts_hits:
        services = tuple(
            replace(one, lengths=replace(one.lengths, prefix_hit=0.0))
            for one in of.cluster.services
        )
        of = replace(of, cluster=replace(of.cluster, services=services))
    decider = ControllerUnderTest() if counts_hits else ControllerUnderTest(without_hits)
    timeline = Simulator(of, decider).run()
    changes = tuple(
        (one.at_s - of.lead_s - ends_s, sum(one.counts.values())) for one in timeline.ordered
    )
    met = sum(attains(row, _SLO) for row in timeline.requests)
    return Run(len(timeline.requests), met, sum(span.usd for span in timeline.nodes), changes)


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row for each seed, and the worst and mean of all."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.vanished_hits")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0, help="half of them with hits")
    options = parser.parse_args(argv)
    to_s = 60.0 * options.minutes
    ends_s = to_s / 2
    print("seed  instances  planned at  attained: with hits  without  lost s  cost ratio")
    last, lost = [], []
    for seed in range(options.first, options.first + options.seeds):
        world = scenario(seed, ends_s, to_s)
        on, off = (simulate(world, counts_hits, ends_s) for counts_hits in (True, False))
        before = [count for at_s, count in on.ordered if at_s <= 0.0][-1]
        # If nothing was ordered after the beginning, all of it was planned by then.
        after = [(0.0, before), *(one for one in on.ordered if one[0] > 0.0)]
        most = max(count for _, count in after)
        last.append(next(at_s for at_s, count in after if count == most))
        lost.append((off.attained - on.attained) / _REQ_PER_S)
        print(
            f"{seed:4} {before:5} to {most:2} {last[-1]:10.1f}s {on.attained / on.requests:18.2%} "
            f"{off.attained / off.requests:9.2%} {lost[-1]:6.0f}s {on.usd / off.usd:9.2f}",
            flush=True,
        )
    print(
        f"all planned after {statistics.mean(last):.1f} s in the mean, {max(last):.1f} s at most; "
        f"lost {statistics.mean(lost):.0f} s in the mean, {max(lost):.0f} s at most"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
