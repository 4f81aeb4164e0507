"""How long a tick takes on a large estate: `python -m loadtests.tick_bench`.

Builds MODELS models on NODES nodes of twenty pools, a few more declared each second until all
run, then ticks: quiet ones, and surges of one model at a time. Every declared node reports; what
is assigned starts at once and is ready. Prints CPU seconds of windows and deciding (a tick), of the
urgent plans that a thread makes beside it, and of both together. Full plans are made by another
process (`loadtests.resolve_bench` measures them) and are not answered here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson

from autoscaler.decide import ControllerState, Observation, decide
from autoscaler.demand.observed import observe
from autoscaler.demand.windows import TelemetryWindows
from autoscaler.domain.cluster import Cluster, Market, Mode, Policy, Pool, Service
from autoscaler.domain.nodes import node_ids
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.effects import PublishAssignment, SolveRequested
from autoscaler.performance import catalog
from autoscaler.performance.profile import default_profile
from autoscaler.planning.answer import answer
from autoscaler.planning.request import PlanAnswer, Urgency
from autoscaler.planning.strategies.shoal import Shoal
from topics.fleet import Assignment, InstanceState, ObservedInstance, Status
from topics.telemetry import Telemetry

START_MS = 1_700_000_000_000
SOURCES = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "openai/gpt-oss-20b")
_DECLARED_PER_S = 10
_SETTLES_S = 20
GPUS = ("L40S", "A100-SXM-80GB", "H100-SXM", "L4")


class Estate:
    """Models, pools, and what would be there if every assignment were carried out at once."""

    def __init__(self, models: int, nodes: int, regions: int, load: float) -> None:
        pools = [
            Pool(f"r{r}", gpu.lower(), catalog.gpu(gpu), 4, nodes // (regions * len(GPUS)), market,
                 usd * (1.0 if market is Market.ON_DEMAND else 0.4))
            for r in range(regions)
            for gpu, usd in zip(GPUS, (7.2, 9.6, 14.0, 3.4), strict=True)
            for market in (Market.ON_DEMAND, Market.SPOT)
        ]  # fmt: skip
        services = [
            Service(
                model=f"m{k}",
                architecture=catalog.quantized(catalog.model(SOURCES[k % 3]), "fp8")
                if k % 3 != 2
                else catalog.model(SOURCES[2]),
                slo=Slo(2000.0, 80.0),
                mode=Mode.ACT,
                min_instances=1,
                spot_share=0.5,
                max_len_tokens=16_384,
                regions=(f"r{k % regions}",),
                lengths=Lengths.expected(1000.0 + 10.0 * (k % 7), 200.0),
                req_per_s=load * (2.0 + k % 5),
            )
            for k in range(models)
        ]
        self.services = tuple(services)
        self.cluster = Cluster(tuple(pools), (), Policy())
        self.idle = {
            node: Status(node, pool.id, "x", 0, 0) for pool in pools for node in node_ids(pool)
        }
        self.windows = TelemetryWindows()
        self.assignments: dict[str, Assignment] = {}
        self.sequence = 0

    def declare(self, models: int) -> None:
        """The first `models` models are declared."""
        self.cluster = replace(self.cluster, services=self.services[:models])

    def report(self, now_ms: int, rates: dict[str, float], random: np.random.Generator) -> None:
        """One second of telemetry of every model."""
        self.sequence += 1
        for service in self.cluster.services:
            n = int(random.poisson(rates[service.model]))
            self.windows.add(
                Telemetry(
                    model=service.model, gateway="g", boot="b", sequence=self.sequence,
                    end_ms=now_ms, span_ms=1000, age_ms=0, arrivals=n, completions=n, failures=0,
                    refused=0, attained=n, input_tokens_arrived=1000 * n, input_tokens=1000 * n,
                    output_tokens=200 * n, in_flight=n, route_generation=10**6,
                ),
                now_ms,
            )  # fmt: skip

    def statuses(self, now_ms: int) -> dict[str, Status]:
        """Every assigned instance is ready; nodes without an assignment report too."""
        used = {
            node: Status(
                node, a.pool, "x", a.generation, now_ms,
                tuple(
                    ObservedInstance(i.instance, i.model, i.phase, i.group, InstanceState.READY,
                                     i.gpus, "127.0.0.1:9000", now_ms, now_ms)
                    for i in a.instances
                    if not i.drain
                ),
            )
            for node, a in self.assignments.items()
        }  # fmt: skip
        idle = {node: replace(s, at_ms=now_ms) for node, s in self.idle.items() if node not in used}
        return {**idle, **used}


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--regions", type=int, default=5)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--load", type=float, default=48.0, help="times 2 to 6 req/s a model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    estate = Estate(given.models, given.nodes, given.regions, given.load)
    random = np.random.default_rng(given.seed)
    rates = {service.model: service.req_per_s for service in estate.services}
    state = ControllerState(started_ms=START_MS)
    answers: list[PlanAnswer] = []
    ticks: dict[bool, list[float]] = {False: [], True: []}
    plans: list[float] = []
    warm_up = -(-given.models // _DECLARED_PER_S) + _SETTLES_S
    for second in range(1, warm_up + 1 + given.ticks):
        now_ms = START_MS + second * 1000
        measured = second > warm_up
        estate.declare(min(given.models, second * _DECLARED_PER_S))
        if measured and second % 4 == 0:
            rates[f"m{(second // 4) % given.models}"] *= 1.5
        estate.report(now_ms, rates, random)
        statuses = estate.statuses(now_ms)
        began = time.process_time()
        models = [service.model for service in estate.cluster.services]
        demand = observe(estate.windows, models, estate.cluster.policy, now_ms)
        seen = Observation(demand=demand, statuses=statuses, answers=tuple(answers))
        urgent = bool(answers)
        state, effects = decide(state, seen, estate.cluster, now_ms)
        took = time.process_time() - began
        answers = []
        for effect in effects:
            if isinstance(effect, PublishAssignment):
                estate.assignments[effect.record.node] = effect.record
            elif isinstance(effect, SolveRequested) and effect.request.urgency is Urgency.URGENT:
                began = time.process_time()
                answers.append(answer(effect.request, estate.cluster, default_profile(), Shoal()))
                urgent = True
                if measured:
                    plans.append(time.process_time() - began)
        if measured:
            ticks[urgent].append(took)
        elif second % 10 == 0:
            print(f"{second} s: {len(state.groups)} combos on {_used(estate)} nodes", flush=True)
    every = ticks[False] + ticks[True]
    found = {
        "models": given.models,
        "declared_nodes": given.nodes,
        "combos": len(state.groups),
        "nodes_in_use": _used(estate),
        "ticks": len(every),
        "ticks_with_surge": len(ticks[True]),
        **_quantiles("tick", every),
        **_quantiles("quiet_tick", ticks[False]),
        **_quantiles("surge_tick", ticks[True]),
        **_quantiles("urgent_plan", plans),
    }
    for key, value in found.items():
        print(f"{key:18} {value if isinstance(value, int) else f'{value:.4f}'}")
    if given.json:
        given.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return 0


def _used(estate: Estate) -> int:
    return sum(bool(a.instances) for a in estate.assignments.values())


def _quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {
        f"{name}_p50_cpu_s": float(np.quantile(seconds, 0.5)),
        f"{name}_p99_cpu_s": float(np.quantile(seconds, 0.99)),
    }


if __name__ == "__main__":
    raise SystemExit(main())
