"""Duration of a tick on a large estate: `python -m loadtests.tick_bench`.

The first 20 models are declared, a few each second, until all run. The others are copies of them,
which a controller takes over as after a restart. Then it ticks without changes, and with surges of
one model at a time. Every node reports, and every assigned instance is ready at once. The output
has CPU seconds of the takeover, of ticks (windows and decisions), and of urgent plans, which a
second thread makes. Another process makes full plans (`loadtests.resolve_bench` measures them). At
the end the controller gets one full plan for other prices and half of the demand, so every model
changes. The longest tick that applies this plan is printed.
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
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import observe_demand
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.planner import OPTIONS, answer_request
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, no_plan_answer
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.state.controller_state import Term
from autoscaler.state.effects import PublishAssignment, SolveRequested
from autoscaler.tick.restore import restore
from loadtests.large_estate import POOLS_PER_REGION, Estate
from streams.garbage_collection import collect_rarely
from topics.reason_codes import ReasonCode

START_MS = 1_700_000_000_000
_KINDS = 20
_DECLARED_PER_S = 4
_SETTLES_S = 20
_ASKED_WITHIN_S = 600
_CARRIED_OUT_S = 30
_FULL_S = 60.0


class _Run:
    """A controller on an estate, second by second.

    ticks: CPU seconds of ticks, with a separate list for ticks that request an urgent plan or take
    an answer. plans: CPU seconds of urgent plans.
    """

    def __init__(self, estate: Estate, seed: int) -> None:
        self.estate = estate
        self.second = 0
        self.state = ControllerState(Term(START_MS))
        self.rates = {service.model: service.req_per_s for service in estate.services}
        self.ticks: dict[bool, list[float]] = {False: [], True: []}
        self.plans: list[float] = []
        self._random = np.random.default_rng(seed)
        self._answers: list[PlanAnswer] = []
        self._fulls: list[PlanRequest] = []

    @property
    def now_ms(self) -> int:
        """Present domain time."""
        return START_MS + self.second * 1000

    def take_over(self, block: _Run) -> float:
        """Start with copies of the fleet of `block`. Returns CPU seconds of
        rebuilding the state.
        """
        estate = self.estate
        self.second = block.second
        estate.copied(block.estate)
        estate.declare(len(estate.services))
        statuses = estate.statuses(self.now_ms)
        began = time.process_time()
        state = restore(estate.cluster, estate.assignments, {}, statuses, (), self.now_ms)
        took = time.process_time() - began
        # Without a ledger the models are held at first, and a surge would have no effect.
        models = {
            model: replace(known, target=replace(known.target, restart_hold=False))
            for model, known in state.models.items()
        }
        self.state = replace(state, models=models)
        return took

    def tick(self) -> None:
        """Run one second of the controller and the estate."""
        estate = self.estate
        self.second += 1
        now_ms = self.now_ms
        estate.report(now_ms, self.rates, self._random)
        statuses = estate.statuses(now_ms)
        began = time.process_time()
        models = [service.model for service in estate.cluster.services]
        demand = observe_demand(estate.windows, models, estate.cluster.policy, now_ms)
        answers = tuple(self._answers)
        seen = Observation(demand=demand, statuses=statuses, answers=answers)
        self.state, effects = decide(self.state, seen, estate.cluster, now_ms)
        took = time.process_time() - began
        urgent = bool(answers)
        self._answers = []
        for effect in effects:
            if isinstance(effect, PublishAssignment):
                estate.assignments[effect.record.node] = effect.record
            elif isinstance(effect, SolveRequested) and effect.request.urgency is Urgency.URGENT:
                urgent = True
                began = time.process_time()
                profile = default_profile()
                self._answers.append(
                    answer_request(effect.request, estate.cluster, profile, ShoalStrategy())
                )
                self.plans.append(time.process_time() - began)
            elif isinstance(effect, SolveRequested):
                self._fulls.append(effect.request)
        self.ticks[urgent].append(took)

    def carry_out_full(self) -> int:
        """Wait for the request of a full plan, and tick until its answer is applied. Returns the
        number of changed models.
        """
        # An earlier request may still be waiting.
        why = Reason(ReasonCode.SOLVER_AWAY)
        self._answers += [no_plan_answer(request, why) for request in self._fulls[-1:]]
        asked = len(self._fulls)
        for _ in range(_ASKED_WITHIN_S):
            self.tick()
            if len(self._fulls) > asked:
                break
        else:
            return 0
        cluster, request = self.estate.cluster, self._fulls[-1]
        prices = {p.id: p.price_usd_per_h * self._random.uniform(0.2, 5.0) for p in cluster.pools}
        demands = (replace(d, req_per_s=0.5 * d.req_per_s) for d in request.demands)
        request = replace(request, demands=tuple(demands), prices_usd_per_h=tuple(prices.items()))
        began = time.monotonic()
        options = replace(OPTIONS, time_limit_s=_FULL_S, elapsed_s=lambda: time.monotonic() - began)
        made = answer_request(request, cluster, default_profile(), ShoalStrategy(), options)
        before, after = dict(request.fleet), dict(made.counts)
        self._answers.append(made)
        self.ticks = {False: [], True: []}
        for _ in range(_CARRIED_OUT_S):
            self.tick()
        moved = (i for i in before.keys() | after.keys() if before.get(i) != after.get(i))
        return len({parse_combo_id(combo_id)[0] for combo_id in moved})

    def settle(self, seconds: int) -> None:
        """Tick for `seconds` without measuring."""
        for _ in range(seconds):
            self.tick()
        self.ticks, self.plans = {False: [], True: []}, []
        print(f"{self.second} s: {len(self.state.groups)} combos on {self.used} nodes", flush=True)

    @property
    def used(self) -> int:
        """Number of nodes with an assigned instance."""
        return sum(bool(a.instances) for a in self.estate.assignments.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100, help="beyond 20, a multiple of 20")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--regions", type=int, default=5)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--load", type=float, default=48.0, help="times 2 to 6 req/s a model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    copies = max(1, given.models // _KINDS)
    if given.models < 1 or (given.models > _KINDS and given.models % _KINDS):
        parser.error(f"--models {given.models}: 1 to {_KINDS}, or a multiple of {_KINDS}")
    least = max(1, given.regions) * POOLS_PER_REGION * copies
    if given.regions < 1 or given.nodes < least:
        parser.error(
            f"--nodes {given.nodes} --regions {given.regions}: at least 1 region, and {least} "
            f"nodes: {copies} in each of {POOLS_PER_REGION} pools a region"
        )
    collect_rarely()  # Garbage collection as in the controller
    models, nodes = given.models // copies, given.nodes // copies
    run = _Run(Estate(models, nodes, given.regions, given.load, models), given.seed)
    for declared in range(_DECLARED_PER_S, models + _DECLARED_PER_S, _DECLARED_PER_S):
        run.estate.declare(min(models, declared))
        run.tick()
    run.settle(_SETTLES_S)
    takeover_s = 0.0
    if copies > 1:
        block = run
        run = _Run(Estate(given.models, given.nodes, given.regions, given.load, models), given.seed)
        takeover_s = run.take_over(block)
        run.settle(_SETTLES_S)
    for number in range(given.ticks):
        if number % 4 == 0:
            run.rates[f"m{number // 4 % given.models}"] *= 1.5
        run.tick()
    every = run.ticks[False] + run.ticks[True]
    found = {
        "models": given.models,
        "declared_nodes": len(run.estate.nodes),
        "combos": len(run.state.groups),
        "nodes_in_use": run.used,
        "ticks": len(every),
        "ticks_with_surge": len(run.ticks[True]),
        "takeover_cpu_s": takeover_s,
        **_quantiles("tick", every),
        **_quantiles("quiet_tick", run.ticks[False]),
        **_quantiles("surge_tick", run.ticks[True]),
        **_quantiles("urgent_plan", run.plans),
    }
    changed = run.carry_out_full()
    every = run.ticks[False] + run.ticks[True]
    found |= {"models_of_full_plan": changed, "full_plan_tick_max_cpu_s": max(every)}
    for key, value in found.items():
        print(f"{key:22} {value if isinstance(value, int) else f'{value:.4f}'}")
    if given.json:
        given.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return 0


def _quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {
        f"{name}_p50_cpu_s": float(np.quantile(seconds, 0.5)),
        f"{name}_p99_cpu_s": float(np.quantile(seconds, 0.99)),
    }


if __name__ == "__main__":
    raise SystemExit(main())
