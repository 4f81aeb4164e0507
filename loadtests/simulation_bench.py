"""Speed of the simulator: requests per CPU-second, and a day of three models.

usage: python -m loadtests.simulation_bench [--nodes 16] [--requests N]
      [--day | --week M_LARGE_RATES] [--hours H]

The serving benchmark has a fixed fleet at 75% of its planned load, so decisions cost almost
nothing. The decider's time is measured and subtracted. --day has three models with 20 requests/s
together under the production controller, simulated as requests (one tick per second) and as rates.
--week has ServeGen's windows, simulated as rates. CPU time is shown by part. --hours simulates only
the first hours.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue, finite
from autoscaler.domain.workload import Lengths
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from autoscaler.simulation.arrivals import Arrival, measured_lengths
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.decider import Decider, DeciderInput, DeciderOutput
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import Score, score
from autoscaler.simulation.rate_simulator import simulate_rates
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import ORIGIN_MS, simulate
from autoscaler.simulation.timeline import Timeline
from autoscaler.simulation.virtual_planner import PlanFunction, plan_in_process
from loadtests.arrivals import Draw, Step, Swing, poisson, resampled_lengths, swinging
from loadtests.decision_bench import BUNDLED_TRACE
from loadtests.decision_cases import acting
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.garbage_collection import freeze_objects
from streams.tools.backtest.backtest_demand import DEFAULT_CONFIG
from streams.tools.backtest.backtest_runs import prepared
from streams.tools.backtest.demand_options import Demand
from streams.tools.replay.traces import load_trace

_LEAD_S = 240.0
_PARTS = 12
_COMBO = "mini:a1@us-east/l40s/on-demand"
_REQ_PER_S = 7.0  # requests/s per L40S node in the serving benchmark
_DAY = {"chat": 5.0, "code": 6.0, "mini": 9.0}
_WEEK_MODEL = "mini"


@dataclass(slots=True)
class Timed:
    """A decider and a planner whose CPU time is counted. span_s: length of the run. Progress is
    shown on stderr at each twelfth of it; 0: no progress.
    """

    inner: Decider
    span_s: float = 0.0
    decide_s: float = 0.0
    plan_s: float = 0.0
    ticks: int = 0
    plans: int = 0
    plan_with: PlanFunction = field(default=plan_in_process)
    told: int = 0

    def decide(self, seen: DeciderInput, now_ms: int) -> DeciderOutput:
        """Call the decider and add its CPU time to `decide_s`."""
        begin = time.process_time()
        output = self.inner.decide(seen, now_ms)
        self.decide_s += time.process_time() - begin
        self.ticks += 1
        if self.span_s:
            self._tell((now_ms - ORIGIN_MS) / 1000.0)
        return output

    def _tell(self, at_s: float) -> None:
        part = int(_PARTS * at_s / self.span_s)
        if part > self.told:
            self.told = part
            print(
                f"  {at_s / 3600:.1f} h of {self.span_s / 3600:.1f}: {self.ticks} ticks, "
                f"{self.plans} plans, {time.process_time():.0f} CPU s so far",
                file=sys.stderr,
                flush=True,
            )

    def plan(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        """Call the planner and add its CPU time to `plan_s`."""
        begin = time.process_time()
        found = self.plan_with(request, cluster)
        self.plan_s += time.process_time() - begin
        self.plans += 1
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.simulation_bench")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--requests", type=int, default=100_000)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--day", action="store_true")
    what.add_argument("--week", type=Path, metavar="FILE", help="NAME_rate_10min.csv.gz")
    parser.add_argument("--hours", type=float, help="of the day or week (default: all)")
    args = parser.parse_args(argv)
    try:
        if args.hours is not None:
            finite("--hours", args.hours, 0.1, 168.0 if args.week else 24.0)
        return _run(args)
    except (InvalidValue, UserError) as error:
        print(f"simulation_bench: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    draw = _lengths()
    if args.week:
        week(args.week, args.hours or math.inf)
    elif args.day:
        day(3600.0 * (args.hours or 24.0), draw)
    else:
        serving(args.nodes, args.requests, draw)
    return 0


def serving(nodes: int, requests: int, draw: Draw) -> None:
    """Measure a fixed fleet of `nodes` nodes."""
    cluster = acting(load_config(DEFAULT_CONFIG, cautious=False).cluster)
    service = cluster.service("mini")
    pools = tuple(p for p in cluster.pools if p.id == _COMBO.split("@")[1])
    cluster = replace(cluster, services=(service,), pools=pools)
    rate = _REQ_PER_S * nodes
    span_s = requests / rate
    simulate_timed("warm-up", cluster, _even(rate, 10.0, draw), 10.0, {_COMBO: nodes})
    simulate_timed("serving", cluster, _even(rate, span_s, draw), span_s, {_COMBO: nodes})


def simulate_timed(
    what: str, cluster: Cluster, arrivals: list[Arrival], span_s: float, counts: dict[str, int]
) -> None:
    """Simulate a fixed fleet and print its figures."""
    lengths = measured_lengths(arrivals)
    timed = Timed(FixedFleet(counts, cluster, lengths))
    begin = time.process_time()
    found = simulate(Scenario(cluster, arrivals, span_s, _LEAD_S), timed, timed.plan)
    cpu_s = time.process_time() - begin - timed.decide_s
    served = sum(row.outcome == "served" for row in found.requests)
    print(
        f"{what}: {len(arrivals)} requests on {sum(counts.values())} nodes, {served} served, "
        f"{cpu_s:.2f} CPU s without deciding ({timed.decide_s:.2f}): "
        f"{len(arrivals) / cpu_s:.0f} requests per CPU-second",
        flush=True,
    )


def day(span_s: float, draw: Draw) -> None:
    """Simulate three models whose rates swing 3:1 in a day under the production controller, as
    single requests and as rates."""
    scenario = _swings(_DAY, span_s, draw)
    lengths = measured_lengths(scenario.arrivals)
    freeze_objects()
    scores = []
    for name, run in (("requests", simulate), ("rates", simulate_rates)):
        timed = Timed(ControllerUnderTest(), scenario.end_s)
        timeline, took = under(timed, partial(run, scenario, timed, timed.plan))
        scores.append(
            _print_score(f"{name}: {span_s / 3600:.1f} h", timeline, scenario, lengths, took)
        )
    one, other = scores
    points = 100.0 * (other.slo_attainment - one.slo_attainment)
    print(
        f"rates against requests: cost {other.cost_usd / one.cost_usd - 1.0:+.2%}, "
        f"attainment {points:+.2f} points"
    )


def week(path: Path, hours: float) -> None:
    """Simulate ServeGen's windows in `path`, or their first `hours`, as rates."""
    demand = Demand((f"{_WEEK_MODEL}={path}",), to_s=3600.0 * hours, fluid=True)
    workload, setting = prepared(demand, seed=1)
    trial = POLICIES["shoal"].build(setting, POLICIES["shoal"].default)
    timed = Timed(trial.decider, trial.scenario.end_s, plan_with=trial.plan)
    timeline, took = under(timed, partial(simulate_rates, trial.scenario, timed, timed.plan))
    days = workload.scenario.duration_s / 86_400
    _print_score(
        f"{path.name}: {days:.2f} days", timeline, workload.scenario, setting.lengths, took
    )


def under(timed: Timed, run: Callable[[], Timeline]) -> tuple[Timeline, str]:
    """Return the timeline of `run`, and its CPU time by part as text."""
    begin, begin_wall = time.process_time(), time.monotonic()
    found = run()
    cpu_s, wall_s = time.process_time() - begin, time.monotonic() - begin_wall
    rest_s = cpu_s - timed.decide_s - timed.plan_s
    return found, (
        f"{cpu_s:.0f} CPU s ({wall_s:.0f} s): deciding {timed.decide_s:.0f} ({timed.ticks} ticks, "
        f"{1000 * timed.decide_s / timed.ticks:.2f} ms each), planning {timed.plan_s:.0f} "
        f"({timed.plans} plans), the rest {rest_s:.0f}"
    )


def _print_score(
    what: str, timeline: Timeline, scenario: Scenario, lengths: Mapping[str, Lengths], took: str
) -> Score:
    found = score(timeline, scenario, lengths)
    print(
        f"{what}, {found.requests} requests: {took}; {found.cost_usd:.2f} USD, "
        f"{found.slo_attainment:.2%} attained",
        flush=True,
    )
    return found


def _swings(means: Mapping[str, float], span_s: float, draw: Draw) -> Scenario:
    """Models whose rates swing 3:1 in a day, each around its mean in requests/s."""
    cluster = acting(load_config(DEFAULT_CONFIG, cautious=False).cluster)
    services, arrivals = [], []
    for index, service in enumerate(cluster.services):
        if service.model not in means:
            continue
        swing = Swing(means[service.model], 3.0, 86_400.0)
        random = np.random.default_rng(index)
        arrivals += swinging(service.model, swing, span_s, draw, random)
        services.append(replace(service, req_per_s=swing.req_per_s(0.0)))
    arrivals.sort(key=lambda arrival: arrival.at_s)
    return Scenario(replace(cluster, services=tuple(services)), arrivals, span_s, _LEAD_S)


def _lengths() -> Draw:
    trace = load_trace(BUNDLED_TRACE)
    return resampled_lengths(list(zip(trace.input_tokens, trace.output_tokens, strict=True)))


def _even(rate: float, span_s: float, draw: Draw) -> list[Arrival]:
    return poisson("mini", [Step(0.0, rate)], span_s, draw, np.random.default_rng(1))


if __name__ == "__main__":
    sys.exit(main())
