"""BOute, Table 3: cost of a quality and a latency limit with four methods.

    python -m loadtests.experiments.boute [--steps N] [--json OUT]
    python -m loadtests.experiments.boute --scale [--steps N] [--json OUT]

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

--scale measures the time to compute the whole front at the sizes of Table 2, with one eight-GPU
server of each type. The time includes making candidates. BOute's times include simulating
candidates.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.modes.quality.answer_quality import (
    PricedSplit,
    Split,
    pareto_front,
    price_splits,
    splits,
)
from autoscaler.modes.quality.quality_route import QualityRoute
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.simulation.strategies.registry import strategy

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
MORE_PRICES = {**PRICES, "A100": 1.75, "L40S": 1.20}  # Table 1 of Demystifying, with market prices
TABLE_2 = ((3, "23.5 s"), (4, "32.5 s"), (6, "1.2 min"))


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
            8 * MORE_PRICES[name],
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


def route(at_least: float, steps: int, seed: int = 1, n: int = 4000) -> QualityRoute:
    """Generate scores and answers as the module's docstring describes."""
    rng = np.random.default_rng(seed)
    difficulty = rng.random(n)
    scores = difficulty + rng.normal(0.0, 0.15, n)
    right = np.column_stack([0.93 - 0.28 * difficulty, 0.96 - 0.07 * difficulty])
    quality = 100.0 * (rng.random((n, 2)) < right)
    return QualityRoute.from_sample("auto", tuple(MODELS), scores, quality, at_least, RATE, steps)


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


def case(quality: float, latency_s: float, steps: int, profile: Profile) -> dict[str, float]:
    """Costs of one case in USD/h by method, and CPU seconds of ours."""
    grid = splits(route(quality, steps))
    homes = [Prices(cluster_of((gpu,), latency_s), profile) for gpu in PRICES]
    mixed = Prices(cluster_of(tuple(PRICES), latency_s), profile)
    whole = next(s for s in grid if s.fractions[-1] == 1.0)
    started = time.process_time()
    ours = least(list(price_splits(grid, mixed.of)), quality)
    seconds = time.process_time() - started
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
        "cpu_s": seconds,
    }


def scale(steps: int, profile: Profile) -> list[dict[str, float]]:
    """Measure CPU seconds of the exact front and of the paper's search at the sizes of Table 2."""
    found = []
    print(f"front of {steps + 1} splits; one server of eight GPUs per type; 60 req/s, 12 s")
    for kinds, paper in TABLE_2:
        gpus = tuple(MORE_PRICES)[:kinds]
        grid = splits(route(CASES[1][0], steps))
        started = time.process_time()
        prices = Prices(cluster_of(gpus, CASES[1][1], 1), profile, 60.0)
        kept = pareto_front(list(price_splits(grid, prices.of)))
        seconds = time.process_time() - started
        found.append({"types": kinds, "gpus": 8 * kinds, "cpu_s": seconds, "points": len(kept)})
        best = kept[-1] if kept else None
        most = f"{best.split.quality:.2f} for {best.usd_per_h:.2f} USD/h" if best else "none"
        print(
            f"  {kinds} types, {8 * kinds} GPUs: {seconds:5.1f} CPU s, {len(kept)} points on the "
            f"front, best quality {most}   paper {paper}"
        )
    return found


def main() -> None:
    """Print both cases with the paper's figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="parts of the sample (20)")
    parser.add_argument("--json", default="", help="write the figures here")
    parser.add_argument("--scale", action="store_true", help="time the front at Table 2's sizes")
    args = parser.parse_args()
    profile = default_profile()
    found = scale(args.steps, profile) if args.scale else []
    for quality, latency_s in () if args.scale else CASES:
        rows = case(quality, latency_s, args.steps, profile)
        found.append({"quality": quality, "latency_s": latency_s} | rows)
        print(f"quality {quality:g}, P95 latency {latency_s:g} s: USD/h, and of it ours saves")
        paper = PAPER[quality, latency_s]
        for name, usd in paper.items():
            saves, theirs = 1.0 - rows["ours"] / rows[name], 1.0 - paper["ours"] / usd
            print(f"  {name:22} {rows[name]:8.2f} {saves:6.1%}   paper {usd:6.2f} {theirs:6.1%}")
        print(f"  front of {args.steps + 1} splits on four GPU types: {rows['cpu_s']:.1f} CPU s")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
