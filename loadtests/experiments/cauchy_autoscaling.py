"""Cauchy, sec. 4.6: a fixed plan compared with the control loop.

    python -m loadtests.experiments.cauchy_autoscaling [--minutes 60]

Cluster, model and lengths are those of the paper (`cauchy_allocation`). Arrivals are Poisson. Their
rate follows the Azure trace of 2023 (conversations, minute by minute), scaled to the paper's mean
requests/s of the workload. Lengths are lognormal around the paper's means. Both fleets start as the
controller's plan for that mean. One stays fixed, and the controller changes the other. Both serve
the same requests in the simulator. Latency is end to end, over the served requests.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Mode, Policy
from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Ending
from autoscaler.simulation.simulator import simulate
from autoscaler.simulation.timeline import Timeline
from loadtests.arrivals import Step, lognormal_lengths, poisson
from loadtests.experiments.cauchy_allocation import WORKLOADS, cluster_of
from loadtests.experiments.page import rows_of
from streams.files.user_errors import UserError
from streams.tools.replay.traces import load_trace

TRACE = Path(str(resources.files("streams").joinpath("data/azure2023_conv.csv.gz")))
PAPER = {"DailyMail": (25.57, 21.88), "ShareGPT": (11.16, 10.68), "LongWriter": (36.77, 32.83)}
"""P90 of end-to-end latency in s, without and with autoscaling."""
UTILIZATION = 0.8
_LEAD_S, _MINUTE_S = 240.0, 60.0
_SEED = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one fleet on one workload. p90_s: end to end; served: share of all requests; moves:
    number of changes of the fleet after the start."""

    p90_s: float
    served: float
    usd_per_h: float
    moves: int


def scenario_of(workload: str, rates: Sequence[float], seed: int) -> Scenario:
    """Return the scenario. rates: per minute, relative to their mean."""
    inputs, outputs, req_per_s = WORKLOADS[workload]
    declared = cluster_of(inputs, outputs)
    service = replace(
        declared.services[0], utilization=UTILIZATION, req_per_s=req_per_s, min_instances=1,
        mode=Mode.ACT,
    )  # fmt: skip
    cluster = Cluster(declared.pools, (service,), Policy())
    steps = [Step(_MINUTE_S * n, req_per_s * rate) for n, rate in enumerate(rates)]
    end_s = _MINUTE_S * len(rates)
    drawn = lognormal_lengths(inputs, outputs, most=service.max_len_tokens)
    arrivals = poisson(service.model, steps, end_s, drawn, np.random.default_rng(seed))
    return Scenario(cluster, arrivals, end_s, _LEAD_S)


def both(scenario: Scenario) -> tuple[Outcome, Outcome]:
    """Results of `scenario` with the fixed plan and with the control loop."""
    live = simulate(scenario, ControllerUnderTest())
    first = [one for one in live.ordered if one.at_s <= scenario.lead_s]
    if not first:
        raise InvalidValue("fleet", "none", "a plan before the first request")
    fixed = simulate(scenario, FixedFleet(first[-1].counts, scenario.cluster, {}))
    return outcome(fixed, scenario), outcome(live, scenario)


def outcome(timeline: Timeline, scenario: Scenario) -> Outcome:
    """Return the result of a run."""
    took_s = [
        row.end_s - row.arrival_s
        for row in timeline.requests
        if row.outcome == Ending.SERVED and row.end_s is not None
    ]
    usd = sum(span.usd for span in timeline.nodes)
    return Outcome(
        float(np.quantile(took_s, 0.9)) if took_s else float("nan"),
        len(took_s) / len(timeline.requests),
        usd / scenario.end_s * 3600.0,
        sum(
            new.at_s > scenario.lead_s and new.counts != old.counts
            for old, new in pairwise(timeline.ordered)
        ),
    )


def rates_of(path: Path, minutes: int) -> list[float]:
    """Requests per minute of the first `minutes` of a trace, relative to their mean."""
    at_s = np.array(load_trace(path).arrivals_ms) / 1000.0
    minutes = max(1, min(minutes, int(at_s[-1] // _MINUTE_S)))
    counts = Counter((at_s // _MINUTE_S).astype(int).tolist())
    found = [float(counts[n]) for n in range(minutes)]
    if not sum(found):
        raise UserError(f"{path}: no requests in the first {minutes} minutes")
    return [count * minutes / sum(found) for count in found]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.experiments.cauchy_autoscaling")
    parser.add_argument("--trace", type=Path, default=TRACE, help="whose rates to follow")
    parser.add_argument("--minutes", type=int, default=60, help="of it (60)")
    parser.add_argument("--seed", type=int, default=_SEED)
    args = parser.parse_args(argv)
    if not 1 <= args.minutes <= 1440:
        parser.error(f"--minutes {args.minutes}: allowed: 1 to 1440")
    try:
        rates = rates_of(args.trace, args.minutes)
        found = {name: both(scenario_of(name, rates, args.seed)) for name in WORKLOADS}
        print("\n".join(table(found)))
    except (InvalidValue, UserError) as error:
        print(f"cauchy_autoscaling: {error}", file=sys.stderr)
        return 2
    return 0


def table(found: dict[str, tuple[Outcome, Outcome]]) -> list[str]:
    """Format both fleets with the paper's figures."""
    heads = ["workload", "p90 fixed", "p90 control loop", "change", "paper", "served fixed / loop",
             "USD/h fixed / loop", "changes of the fleet"]  # fmt: skip
    rows = []
    for name, (fixed, live) in found.items():
        before_s, after_s = PAPER[name]
        rows.append([
            name, f"{fixed.p90_s:.2f} s", f"{live.p90_s:.2f} s",
            f"{live.p90_s / fixed.p90_s - 1.0:+.1%}",
            f"{before_s} to {after_s} s ({after_s / before_s - 1.0:+.1%})",
            f"{fixed.served:.1%} / {live.served:.1%}",
            f"{fixed.usd_per_h:.2f} / {live.usd_per_h:.2f}", str(live.moves),
        ])  # fmt: skip
    return rows_of(heads, rows)


if __name__ == "__main__":
    sys.exit(main())
