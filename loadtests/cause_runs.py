"""Checks the causes of all decisions in the scenarios of `shoal up` and the scorecard.

usage: python -m loadtests.cause_runs [--only NAME,...] [--share X]

Each run is a simulation of the production controller in virtual time. The exit code is 1 if a cause
contradicts the cost of its change or the fleet (`loadtests.cause_checks`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from autoscaler.simulation.policies.policy import policy_context
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.rate_simulator import simulate_rates
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import simulate
from loadtests.cause_checks import CheckedController, Findings
from loadtests.scorecard import demand_of
from loadtests.scorecard_scenarios import SCENARIOS
from streams.files.shoal_yaml import load_config
from streams.tools.backtest.backtest_demand import load_workload
from streams.tools.backtest.supply_files import load_supply
from streams.tools.replay.traces import load_trace
from streams.tools.up.scenario_file import SHIPPED, open_scenario, read_events, read_settings
from streams.tools.up.simulated_policies import world
from streams.tools.up.trace_facts import Span

_LEAD_S, _AFTER_S = 160.0, 60.0  # as in runs of `shoal up` at speed 10
Run = tuple[str, Callable[[], tuple[Scenario, bool]]]


def main() -> int:
    """Run and print one line per run, and each contradiction. Return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.cause_runs")
    parser.add_argument("--only", default="", metavar="A,B")
    parser.add_argument("--share", type=float, default=1.0, help="of the length of every trace")
    args = parser.parse_args()
    wanted = set(args.only.split(",")) - {""}
    total = Findings()
    with tempfile.TemporaryDirectory() as folder:
        for name, made in runs(args.share, Path(folder)):
            if wanted and name not in wanted:
                continue
            found = checked(*made())
            causes = ", ".join(f"{code} {n}" for code, n in found.by_cause.most_common())
            print(
                f"{name}: {found.decisions} decisions, {found.changes} changes, "
                f"{len(found.wrong)} contradictions ({causes})",
                flush=True,
            )
            for text, one in found.wrong:
                print(f"  {text}: {one.model} {one.kind} {one.change} {one.reason}", flush=True)
            total.decisions += found.decisions
            total.changes += found.changes
            total.wrong += found.wrong
    print(
        f"{total.decisions} decisions, {total.changes} changes, {len(total.wrong)} contradictions"
    )
    return 1 if total.wrong else 0


def runs(share: float, folder: Path) -> Iterator[Run]:
    """The scenarios of `shoal up`, then the traces of the scorecard. The second value of each run
    tells whether rates are simulated."""
    for name in SHIPPED:
        yield name, lambda name=name: (scenario_of(name, share), False)
    for one in SCENARIOS:
        demand, _ = demand_of(one, 1, folder, share)
        yield (
            f"scorecard {one.name}",
            lambda demand=demand: (load_workload(demand, 1).scenario, demand.fluid),
        )


def scenario_of(name: str, share: float = 1.0, seed: int = 1) -> Scenario:
    """A scenario of `shoal up` in the simulation, with its events, and planned with predicted
    capacity as there. share: of the trace's length."""
    root = open_scenario(name)
    settings = read_settings(root)
    cluster = load_config(settings.config, cautious=False).cluster
    trace = load_trace(settings.trace)
    span = Span(_LEAD_S, share * trace.duration_s + _AFTER_S, len(trace.arrivals_ms))
    events = (
        *read_events(root, cluster),
        *load_supply(settings.supply, cluster, 0.0, 0.0),
    )
    found = world(cluster, trace, events, seed, span)
    assert found is not None, name
    arrivals = [one for one in found.arrivals if one.at_s <= share * trace.duration_s]
    return replace(found, arrivals=arrivals)


def checked(scenario: Scenario, fluid: bool = False) -> Findings:
    """The findings of one run."""
    policy = POLICIES["shoal"]
    trial = policy.build(policy_context(scenario, fluid), policy.default)
    controller = CheckedController()
    if fluid:
        simulate_rates(trial.scenario, controller, trial.plan, policy.tick_s)
    else:
        simulate(trial.scenario, controller, trial.plan)
    return controller.findings


if __name__ == "__main__":
    sys.exit(main())
