"""Cornserve, sec. 6: capacity of plans for a model of components in the simulator.

    python -m loadtests.experiments.cornserve_simulated --trace mm-image_rate_10min.csv.gz

Component rates are the paper's Table 1 (`loadtests.experiments.cornserve`), on 8 A100s. Arrivals
follow the scaled rates of ServeGen's recorded multimodal day; the number of images in a request
follows its histogram. The share of requests with images varies from none to all. The result is the
highest rate at which 95% of requests end within a limit, found by bisection. It is printed for the
planned paths, for all components in one deployment, and for each component in its own. All methods
get the same requests. The last column is for the planned instances with routing to the shortest
queue at every hop.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from autoscaler.domain.cluster import Market, Pool
from autoscaler.modes.components.component_graph import ComponentGraph
from autoscaler.modes.components.component_program import (
    ComponentPlan,
    component_problem,
    most_for_budget,
)
from loadtests.experiments.component_queues import (
    Carried,
    GraphRequest,
    carry,
    carry_by_queues,
    seconds_on,
)
from loadtests.experiments.cornserve import GPU, graph, only
from streams.files.csv_rows import read_rows
from streams.files.tables import read_lines
from topics.records import Endpoint, RouteGroup
from topics.routing import Hop, RoutePath, Stage

GPUS = 8
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
WITHIN_S, PERCENTILE = 20.0, 0.95
_STEPS = 9
Run = Callable[[list[GraphRequest]], Carried]


@dataclass(frozen=True, slots=True)
class Shape:
    """A recorded day: rates per window relative to their mean, and the number of images per
    request. images: (count, probability) for requests with images."""

    rates: tuple[float, ...]
    images: tuple[tuple[int, float], ...]

    @property
    def mean_images(self) -> float:
        """Mean number of images of a request with images."""
        return sum(count * p for count, p in self.images) / sum(p for _, p in self.images)


def load_shape(path: Path) -> Shape:
    """Read the rates of ServeGen's `*_rate_10min.csv` and the histogram in the same folder."""
    rates = [float(row["rate_rps"]) for row in read_rows(path) if row["rate_rps"].strip()]
    beside = path.with_name(path.name.replace("_rate_10min.csv", "_token_hist.json"))
    histogram = orjson.loads("\n".join(read_lines(beside, "a histogram")))["image_count"]
    images = tuple((int(n), float(p)) for n, p in histogram.items() if int(n) > 0)
    mean = sum(rates) / len(rates)
    return Shape(tuple(rate / mean for rate in rates), images)


def requests_at(
    shape: Shape, req_per_s: float, share: float, seconds: float, seed: int
) -> list[GraphRequest]:
    """Poisson arrivals whose rate follows the recorded day, compressed into `seconds`."""
    random = np.random.default_rng(seed)
    counts = np.array([count for count, _ in shape.images])
    odds = np.array([p for _, p in shape.images])
    width_s = seconds / len(shape.rates)
    found: list[GraphRequest] = []
    for window, rate in enumerate(shape.rates):
        n = random.poisson(req_per_s * rate * width_s)
        at_s = np.sort(random.uniform(window * width_s, (window + 1) * width_s, n))
        has = random.uniform(size=n) < share
        images = random.choice(counts, size=n, p=odds / odds.sum()) / shape.mean_images
        found += [
            GraphRequest(float(t), "image" if with_ else "text", float(size))
            for t, with_, size in zip(at_s, has, images, strict=True)
        ]
    return found


def routes_of(plan: ComponentPlan, model: ComponentGraph) -> RouteGroup:
    """Return the plan as routes for gateways."""
    rates = dict(zip((kind.name for kind in model.types), model.rates(), strict=True))
    stages = tuple(
        Stage(
            one.deployment.name,
            tuple(Endpoint(f"{one.deployment.name}-{n}", f"h:{n}") for n in range(count)),
        )
        for one, count in plan.instances
    )
    paths = []
    for route in plan.routes:
        left, hops = route.type.uses, []
        for placed in route.hops:
            runs = placed.deployment.components & left
            left -= runs
            hops.append(Hop(placed.deployment.name, tuple(sorted(runs))))
        rate = rates[route.type.name] * plan.multiple * route.fraction
        paths.append(RoutePath(route.type.name, rate, tuple(hops)))
    return RouteGroup("cell", plan.multiple, stages=stages, paths=tuple(paths))


def attained_rate(run: Run, made: Callable[[float], list[GraphRequest]], start: float) -> float:
    """The highest mean rate at which enough requests end within the limit."""
    low, high = 0.0, 2.0 * start
    for _ in range(_STEPS):
        rate = (low + high) / 2.0
        if run(made(rate)).share_within(WITHIN_S) >= PERCENTILE:
            low = rate
        else:
            high = rate
    return low


def row(shape: Shape, share: float, overhead: float, seconds: float, seed: int) -> dict[str, float]:
    """Return the capacity of each method for one mix, in requests/s."""
    mix: dict[str, tuple[float, tuple[str, ...]]] = {}
    if share < 1.0:
        mix["text"] = (1.0 - share, ("llm",))
    if share > 0.0:
        mix["image"] = (share, ("image", "llm"))
    model = graph(mix, overhead)
    names = [option.name for option in model.deployments]
    apart = [name for name in names if "+" not in name]
    whole = max(names, key=lambda name: name.count("+"))
    pool = Pool("cell", "a100", GPU, 1, GPUS, Market.ON_DEMAND, 1.0)
    sized = frozenset({"image"})
    times = seconds_on(model, GPU.name)
    found: dict[str, float] = {"images": share, "overhead": overhead}

    def made(rate: float) -> list[GraphRequest]:
        return requests_at(shape, rate, share, seconds, seed)

    options = {"monolithic": only(model, whole), "apart": only(model, *apart), "planned": model}
    for name, offered in options.items():
        plan = most_for_budget(component_problem((offered,), (pool,), math.inf))
        group = routes_of(plan, offered)

        def run(requests: list[GraphRequest], group: RouteGroup = group) -> Carried:
            return carry([group], times, requests, sized)

        found[name] = attained_rate(run, made, plan.multiple)
        found[f"{name} planned for"] = plan.multiple

    def by_queues(requests: list[GraphRequest]) -> Carried:
        return carry_by_queues([group], model, times, requests, sized)

    found["shortest queue"] = attained_rate(by_queues, made, plan.multiple)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", required=True, type=Path, help="ServeGen's mm-image rates")
    parser.add_argument("--seconds", type=float, default=1200.0, help="of one simulated day (1200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="", help="write the figures here")
    args = parser.parse_args()
    shape = load_shape(args.trace)
    print(f"requests/s on {GPUS} A100 of which {PERCENTILE:.0%} end within {WITHIN_S:g} s")
    print(
        f"{'images':>6} {'overhead':>8} {'monolithic':>10} {'apart':>7} {'planned':>8} {'gain':>7}"
        f"  {'planned for':>11} {'shortest queue':>14}"
    )
    rows: list[Mapping[str, float]] = []
    for share in SHARES:
        for overhead in (1.2, 1.5):
            one = row(shape, share, overhead, args.seconds, args.seed)
            rows.append(one)
            gain = one["planned"] / max(one["monolithic"], one["apart"]) - 1.0
            print(
                f"{share:6.0%} {overhead:8.1f} {one['monolithic']:10.2f} {one['apart']:7.2f} "
                f"{one['planned']:8.2f} {gain:+7.1%}  {one['planned planned for']:11.2f} "
                f"{one['shortest queue']:14.2f}",
                flush=True,
            )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
