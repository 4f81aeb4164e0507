"""A fleet sized with hits of prefix caches, whose caches are flushed or whose nodes are killed.

    python -m loadtests.prefix_faults TRACE --config FILE

Runs the trace, which has block hashes, with a gateway that routes by prefix: without faults, with
the caches of all engines flushed once, in the middle, and with the newest node killed every ten
minutes. Prints attainment, cost and hit rate of each run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autoscaler.serving.batching import Batcher
from autoscaler.serving.kv_memory import BlockMemory
from autoscaler.serving.pipeline_stages import PipelinedBatcher
from autoscaler.serving.routing_policies import WithinCombo
from autoscaler.simulation.component_stage import AnyEngine
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.policies.registry import policies_by_name
from autoscaler.simulation.run_measures import attains
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import NodesLost
from streams.tools.backtest.backtest_runs import prepared
from streams.tools.backtest.demand_options import Demand

_FAULTS = ("none", "flush", "killed")
_EVERY_S, _AWAY_S = 600.0, 300.0


def flush(engine: AnyEngine) -> None:
    """Empty the prefix cache of `engine`, also the blocks that requests hold."""
    if isinstance(engine, SimEngine):
        batcher = engine._batcher
        for lane in batcher._lanes if isinstance(batcher, PipelinedBatcher) else (batcher,):
            if isinstance(lane, Batcher) and isinstance(lane._memory, BlockMemory):
                lane._memory.cache.flush()


def killed(scenario: Scenario) -> Scenario:
    """`scenario`, with the newest node of each pool lost every ten minutes."""
    script = tuple(
        NodesLost(at_s, pool.id, 1, at_s + _AWAY_S)
        for pool in scenario.cluster.pools
        for number in range(1, int(scenario.duration_s / _EVERY_S) + 1)
        if (at_s := scenario.lead_s + number * _EVERY_S) < scenario.end_s
    )
    return replace(scenario, script=(*scenario.script, *script))


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row for each fault and policy."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.prefix_faults")
    parser.add_argument("trace")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--policies", default="shoal,shoal-no-hits")
    parser.add_argument("--faults", nargs="+", choices=_FAULTS, default=_FAULTS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    demand = Demand((options.trace,), options.config, inside=WithinCombo.PREFIX)
    print("policy         faults   attained      USD    hits")
    for policy in policies_by_name(options.policies.split(",")):
        for fault in options.faults:
            _, context = prepared(demand, options.seed)
            trial = policy.build(context, policy.default)
            scenario = killed(trial.scenario) if fault == "killed" else trial.scenario
            simulator = Simulator(scenario, trial.decider, trial.plan)
            if fault == "flush":
                simulator.advance(scenario.lead_s + scenario.duration_s / 2)
                for engine in simulator.engines.values():
                    flush(engine)
            timeline = simulator.run()
            slos = {one.model: one.slo for one in scenario.cluster.services}
            met = sum(attains(row, slos[row.model]) for row in timeline.requests)
            tokens = sum(call.input_tokens for call in timeline.calls)
            hits = sum(call.cached_tokens for call in timeline.calls) / tokens
            usd = sum(span.usd for span in timeline.nodes)
            print(
                f"{policy.name:14} {fault:7} {met / len(timeline.requests):9.2%} {usd:8.2f} "
                f"{hits:7.1%}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
