"""BOute, Table 3: cost of a quality and a latency limit with four methods.

Two models (Llama 3.1 8B and 70B) share 100 req/s on the paper's four kinds of eight-GPU servers
(sec. 7.1). Prices are the middle of its ranges, and GPUs are rented one by one. Scores and answers
are generated. Difficulty d is uniform, and the router's score is d with noise. The small model is
right with probability 0.93 - 0.28 d, the large one with 0.96 - 0.07 d. That is 79% and 92.5% on
average, about the paper's GSM8K range. P95 latency limits are read as limits of TTFT and TPOT at
256 output tokens. Costs, per quality:

stand-alone     every request to the large model, on one GPU type or on mixed ones
uniform         the split of least cost when both models get the same money (the paper: RouteLLM)
homogeneous     splits and fleets optimised on the best single GPU type (BOute-Homo)
ours            splits and fleets optimised together
"""

from __future__ import annotations

import numpy as np

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.modes.quality.answer_quality import (
    PricedSplit,
    Split,
    pareto_front,
    price_splits,
    splits,
)
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.simulation.strategies.registry import strategy
from loadtests.results.entry import Figures

PRICES = {"H100": 2.86, "RTXPRO6000-Blackwell-Server": 1.97, "RTX5090": 0.89, "RTX4090": 0.59}
MODELS = {"8b": "meta-llama/Llama-3.1-8B-Instruct", "70b": "meta-llama/Llama-3.3-70B-Instruct"}
CASES = ((87.0, 8.0), (91.0, 12.0))
PAPER = {
    (87.0, 8.0): {"stand-alone, one type": 61.83, "stand-alone, mixed": 56.24, "uniform": 53.55,
                  "homogeneous": 38.41, "ours": 32.25},
    (91.0, 12.0): {"stand-alone, one type": 41.21, "stand-alone, mixed": 37.50, "uniform": 52.38,
                   "homogeneous": 36.07, "ours": 32.18},
}  # fmt: skip
RATE, OUTPUT = 100.0, 256.0
STEPS = 20
"""Parts of the sample that may go to another model."""


def cluster_of(gpus: tuple[str, ...], latency_s: float, most: int = 40) -> Cluster:
    """Return a cluster with at most `most` servers of each of `gpus`, and the two models with this
    latency limit."""
    pools = tuple(
        Pool(
            "cloud",
            name.lower(),
            catalog.gpu(name),
            8,
            most,
            Market.ON_DEMAND,
            8 * PRICES[name],
        )
        for name in gpus
    )
    ttft_ms = 250.0 * latency_s
    slo = Slo(ttft_ms, (1000.0 * latency_s - ttft_ms) / OUTPUT)
    services = tuple(
        Service(
            model=name,
            architecture=catalog.model(source),
            slo=slo,
            max_len_tokens=4096,
            lengths=Lengths.expected(300.0, OUTPUT, 0.5),
        )
        for name, source in MODELS.items()
    )
    return Cluster(pools, services, Policy(k_start=0.0, k_load=0.0, k_switch=0.0))


def route(at_least: float, seed: int, n: int = 4000) -> QualityRoute:
    """Generate scores and answers as the module's docstring describes."""
    rng = np.random.default_rng(seed)
    difficulty = rng.random(n)
    scores = difficulty + rng.normal(0.0, 0.15, n)
    right = np.column_stack([0.93 - 0.28 * difficulty, 0.96 - 0.07 * difficulty])
    quality = 100.0 * (rng.random((n, 2)) < right)
    return QualityRoute.from_sample("auto", tuple(MODELS), scores, quality, at_least, RATE, STEPS)


class Prices:
    """Prices of fleets of one cluster, by the share of requests that the large model gets."""

    def __init__(self, cluster: Cluster, profile: Profile, req_per_s: float = RATE) -> None:
        self.cluster, self.profile, self.req_per_s = cluster, profile, req_per_s
        self.known: dict[tuple[str, ...] | None, dict[tuple[float, ...], Plan]] = {}

    def of(self, split: Split) -> tuple[Plan, float, bool]:
        """Plan both models together: (plan, USD/h, whether demand is unserved)."""
        return self._planned(split.fractions, None)

    def alone(self, split: Split, model: str) -> float:
        """Cost in USD/h of a plan for only one model's share of the requests; inf if no plan serves
        it.
        """
        _, usd, short = self._planned(split.fractions, (model,))
        return float("inf") if short else usd

    def _planned(
        self, fractions: tuple[float, ...], only: tuple[str, ...] | None
    ) -> tuple[Plan, float, bool]:
        known = self.known.setdefault(only, {})
        if fractions not in known:
            demands = {
                s.model: Demand(s.model, f * self.req_per_s, s.lengths)
                for s, f in zip(self.cluster.services, fractions, strict=True)
                if only is None or s.model in only
            }
            options = PlanOptions(gap=1e-3, time_limit_s=10.0)
            problem = make_problem(self.cluster, demands, self.profile, options=options)
            known[fractions] = strategy("shoal").solve(problem)
        made = known[fractions]
        return made, made.cost_usd_per_h, bool(made.shortfall_req_per_s)


def least(options: list[PricedSplit[Plan]], quality: float) -> float:
    """Cost in USD/h of the cheapest option with this quality."""
    good = [o.usd_per_h for o in pareto_front(options) if o.split.quality >= quality]
    return min(good, default=float("inf"))


def case(quality: float, latency_s: float, profile: Profile, seed: int) -> dict[str, float]:
    """Costs of one case in USD/h by method."""
    grid = splits(route(quality, seed))
    homes = [Prices(cluster_of((gpu,), latency_s), profile) for gpu in PRICES]
    mixed = Prices(cluster_of(tuple(PRICES), latency_s), profile)
    whole = next(s for s in grid if s.fractions[-1] == 1.0)
    ours = least(list(price_splits(grid, mixed.of)), quality)
    uniform = min(
        (
            2.0 * max(mixed.alone(s, model) for model in MODELS)
            for s in grid
            if s.quality >= quality
        ),
        default=float("inf"),
    )
    return {
        "stand-alone, one type": min(home.alone(whole, "70b") for home in homes),
        "stand-alone, mixed": mixed.alone(whole, "70b"),
        "uniform": uniform,
        "homogeneous": min(least(list(price_splits(grid, home.of)), quality) for home in homes),
        "ours": ours,
    }


def measure(seed: int) -> Figures:
    """USD/h of each method at each target. seed: of the generated scores and answers."""
    profile = default_profile()
    return {
        f"{quality:g}": {
            "ours": case(quality, latency_s, profile, seed),
            "paper": PAPER[quality, latency_s],
        }
        for quality, latency_s in CASES
    }
