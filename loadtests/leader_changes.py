"""Changes of leader change no decision: `python -m loadtests.leader_changes --seeds 300`.

Each seed is a random demand of the demo's three models, simulated twice in virtual time: under one
leader, and with leaders that change at random ticks. A new leader restores its state from records
that went through the codec, as on the topics. For a while after each change, the former leader goes
on deciding in the shadow, on the same observations: groups that only the new leader adds are
purchases whose cause is the change. Exits with 1 if there are any, or if the mean cost differs by
more than the limit. With `--ledger` the new leaders find a damaged ledger, or a leader is killed
between its writes; then the cost may differ, because a leader without memory removes nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from autoscaler.decide import ControllerState, restore
from autoscaler.domain.cluster import Cluster
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.simulation.rate_simulator import simulate_rates
from autoscaler.simulation.run_measures import cost_usd
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.timeline import Timeline
from autoscaler.simulation.virtual_planner import (
    PlanFunction,
    PlanTimes,
    VirtualPlanner,
    plan_in_process,
)
from loadtests.arrivals import Step, lognormal_lengths, poisson
from loadtests.decision_cases import acting
from loadtests.ledger_damage import DAMAGES, OLD_MS, Damage, Entries, intact
from streams.files.shoal_yaml import load_config
from topics.codec import decode, encode
from topics.decisions import Decision
from topics.fleet import Assignment, Status
from topics.routing import Routes
from topics.topic_table import topic_of

CONFIG = Path(__file__).parents[1] / "streams" / "data" / "demo.yaml"
LONG_S = 600.0
CHANGES = 2
EVERY_SECOND_S = 20
"""Time after a change with a tick in each second, because some estimates change more rarely."""
SHADOW_MS = 120_000
"""Time for which the former leader goes on deciding in the shadow."""
MOST_COST_DIFFERENCE = 0.005


@dataclass(frozen=True, slots=True)
class Purchase:
    """Groups of a combo that only the new leader added, because leaders changed at `changed_ms`."""

    changed_ms: int
    model: str
    combo: str
    groups: int


class SharedPlanner:
    """Plans for both runs of a seed; equal requests get equal plans."""

    def __init__(self) -> None:
        self._made: dict[tuple[PlanRequest, int], PlanAnswer] = {}

    def __call__(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        """The plan for `request`."""
        key = replace(request, number=0, at_ms=0), id(cluster)
        if key not in self._made:
            self._made[key] = plan_in_process(request, cluster)
        return replace(self._made[key], number=request.number)


class Kill(StrEnum):
    """The moment at which the former leader is killed: between two ticks, or in a tick with new
    assignments, of which only the ledger or only the other records were written."""

    BETWEEN_TICKS = "between_ticks"
    AFTER_LEDGER = "after_ledger"
    BEFORE_LEDGER = "before_ledger"


@dataclass(slots=True)
class _Shadow:
    """The former leader, which is not obeyed. ledger: its entries that the next leader finds.
    added: groups that each of the two leaders has added since the change, by combo."""

    changed_ms: int
    leader: ControllerUnderTest
    planner: VirtualPlanner
    ledger: Entries
    added: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))


class ChangingLeaders:
    """A controller whose leaders change at the first ticks after `changes_ms`. Each new leader
    begins after `gap_ms` without a leader. purchases: those whose cause is a change. changed:
    number of changes."""

    def __init__(
        self,
        changes_ms: Iterable[int],
        gap_ms: int = 6_000,
        plan: PlanFunction = plan_in_process,
        damage: Damage = intact,
        kill: Kill = Kill.BETWEEN_TICKS,
    ) -> None:
        self._plan = plan
        self._damage, self._kill = damage, kill
        self._changes_ms = sorted(changes_ms, reverse=True)
        self._gap_ms = gap_ms
        self._leader = ControllerUnderTest()
        self._ledgers: list[tuple[int, Entries]] = []
        self._assignments: dict[str, Assignment] = {}
        self._routes: dict[str, Routes] = {}
        self._decisions: list[Decision] = []
        self._shadow: _Shadow | None = None
        self._begins_ms = 0
        self.purchases: list[Purchase] = []
        self.changed = 0

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """As `ControllerUnderTest.decide`; nothing while no controller leads."""
        if self._shadow is not None:
            self._decide_in_shadow(inputs, now_ms)
        if now_ms < self._begins_ms:
            return DeciderOutput()
        self._take_over(inputs.cluster, inputs.statuses, now_ms)
        is_due = bool(self._changes_ms) and now_ms >= self._changes_ms[-1]
        if is_due and self._kill is Kill.BETWEEN_TICKS:
            self._end_lead(now_ms, self._leader.ledger)
            self._decide_in_shadow(inputs, now_ms)
            if self._gap_ms:
                return DeciderOutput()
            self._take_over(inputs.cluster, inputs.statuses, now_ms)
        before = dict(self._leader.ledger)
        output = self._leader.decide(inputs, now_ms)
        if is_due and self._kill is not Kill.BETWEEN_TICKS and output.assignments:
            if self._kill is Kill.AFTER_LEDGER:
                self._end_lead(now_ms, self._leader.ledger)
                self._count_in_shadow(output, inputs.cluster, now_ms)
                return DeciderOutput()
            self._end_lead(now_ms, before)
            output = replace(output, requests=())
        elif self._shadow is not None:
            self._shadow.added[0].update(_additions(output.decisions))
        self._ledgers.append((now_ms, dict(self._leader.ledger)))
        self._assignments |= {record.node: record for record in output.assignments}
        self._routes |= {record.model: record for record in output.routes}
        self._decisions += output.decisions
        return output

    def finish(self) -> None:
        """Judge the last change."""
        self._judge()

    def _end_lead(self, now_ms: int, ledger: Entries) -> None:
        self._changes_ms.pop()
        self._judge()
        self.changed += 1
        before = [made for at_ms, made in self._ledgers if at_ms <= now_ms - OLD_MS]
        left = self._damage(dict(ledger), before[-1] if before else {}, now_ms)
        planner = VirtualPlanner(PlanTimes(), self._plan)
        self._shadow = _Shadow(now_ms, self._leader, planner, left)
        self._begins_ms = now_ms + self._gap_ms

    def _take_over(self, cluster: Cluster, statuses: Mapping[str, Status], now_ms: int) -> None:
        """Let the next leader begin, unless it already has."""
        if self._shadow is None or self._leader is not self._shadow.leader:
            return
        before, after = self._leader, ControllerUnderTest()
        assert before.state is not None
        after.ledger = {key: _read_again(entry) for key, entry in self._shadow.ledger.items()}
        after.state = restore(
            cluster,
            {node: _read_again(record) for node, record in self._assignments.items()},
            {model: _read_again(record) for model, record in self._routes.items()},
            statuses,
            self._decisions,
            now_ms,
            leader_token=before.state.term.leader_token + 1,
            ledger=after.ledger.values(),
        )
        self._leader = after

    def _decide_in_shadow(self, inputs: DeciderInput, now_ms: int) -> None:
        shadow = self._shadow
        if shadow is None:
            return
        if now_ms - shadow.changed_ms > SHADOW_MS:
            self._judge()
            return
        answers = (*_own(inputs.answers, shadow), *shadow.planner.take_answers(now_ms))
        output = shadow.leader.decide(replace(inputs, answers=answers), now_ms)
        self._count_in_shadow(output, inputs.cluster, now_ms)

    def _count_in_shadow(self, output: DeciderOutput, cluster: Cluster, now_ms: int) -> None:
        assert self._shadow is not None
        self._shadow.added[1].update(_additions(output.decisions))
        for request in output.requests:
            self._shadow.planner.submit(request, cluster, now_ms)

    def _judge(self) -> None:
        """Compare the additions of both leaders since the last change."""
        shadow, self._shadow = self._shadow, None
        if shadow is None:
            return
        mine, theirs = shadow.added
        for combo, groups in sorted((mine - theirs).items()):
            model = combo.partition(":")[0]
            self.purchases.append(Purchase(shadow.changed_ms, model, combo, groups))


def _own(answers: Iterable[PlanAnswer], shadow: _Shadow) -> tuple[PlanAnswer, ...]:
    """Answers to requests that the former leader made before the change."""
    state: ControllerState | None = shadow.leader.state
    waiting = state.pending.values() if state is not None else ()
    asked: list[PlanRequest] = [one.request for one in waiting]
    return tuple(a for a in answers if any(r.number == a.number and r.at_ms <= shadow.changed_ms
                                           for r in asked))  # fmt: skip


def _additions(decisions: Iterable[Decision]) -> Counter[str]:
    found = Counter[str]()
    for decision in decisions:
        if decision.applied:
            found.update({combo: count for combo, count in decision.change if count > 0})
    return found


def _read_again(record: Any) -> Any:
    return decode(topic_of(record).name, encode(record))


@dataclass(frozen=True, slots=True)
class Seed:
    """A seed's two runs. usd: cost with one leader, and with changing leaders. changes: number of
    changes."""

    seed: int
    usd: tuple[float, float]
    attained: tuple[float, float]
    purchases: tuple[Purchase, ...]
    changes: int


def scenario_of(seed: int, long_s: float = LONG_S) -> Scenario:
    """A random demand of the demo's models: up to four rates, and lengths that differ from the
    declared ones by up to a factor of eight, and change once."""
    random = np.random.default_rng([seed, 51])
    cluster = acting(load_config(CONFIG, cautious=False).cluster)
    arrivals: list[Arrival] = []
    for service in cluster.services:
        base = service.req_per_s * random.uniform(0.3, 1.5)
        starts_s = [0.0, *sorted(random.uniform(0.0, long_s, random.integers(0, 4)))]
        steps = tuple(Step(at_s, base * 2.0 ** random.uniform(-1.0, 1.0)) for at_s in starts_s)
        changes_s = random.uniform(0.2, 1.5) * long_s
        for part in range(2):
            means = [
                max(4.0, mean * 2.0 ** random.uniform(-3.0, 0.5))
                for mean in (service.lengths.input_tokens, service.lengths.output_tokens)
            ]
            draw = lognormal_lengths(means[0], means[1], 1.0, service.max_len_tokens)
            made = poisson(service.model, steps, long_s, draw, random)
            arrivals += [one for one in made if (one.at_s >= changes_s) == bool(part)]
    arrivals.sort(key=lambda one: one.at_s)
    return Scenario(cluster, arrivals, long_s, lead_s=120.0, seed=seed)


def run(
    seed: int,
    long_s: float = LONG_S,
    changes: int = CHANGES,
    damage: Damage = intact,
    kill: Kill = Kill.BETWEEN_TICKS,
) -> Seed:
    """Simulate `seed` with one leader, and with `changes` changes of leader."""
    random = np.random.default_rng([seed, 52])
    scenario = scenario_of(seed, long_s)
    plan = SharedPlanner()
    at_s = [int(one) for one in random.uniform(1.0, scenario.end_s - SHADOW_MS / 1000, changes)]
    also_s = [second for one in at_s for second in range(one, one + EVERY_SECOND_S)]
    steady = simulate_rates(scenario, ControllerUnderTest(), plan, also_s=also_s)
    changes_ms = (steady.origin_ms + 1000 * one for one in at_s)
    gap_ms = int(random.choice([0, 6_000]))
    leaders = ChangingLeaders(changes_ms, gap_ms, plan, damage, kill)
    changed = simulate_rates(scenario, leaders, plan, also_s=also_s)
    leaders.finish()
    both = steady, changed
    usd = cost_usd(steady), cost_usd(changed)
    attained = _attained(both[0]), _attained(both[1])
    return Seed(seed, usd, attained, tuple(leaders.purchases), leaders.changed)


def _attained(timeline: Timeline) -> float:
    asked = sum(row.requests for row in timeline.flows)
    return sum(row.attained for row in timeline.flows) / asked if asked else math.nan


def summary(found: list[Seed]) -> str:
    """The result over all seeds, in one line."""
    ratios = [one.usd[1] / one.usd[0] - 1.0 for one in found]
    mean = statistics.fmean(ratios)
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    bought = sum(len(one.purchases) for one in found)
    hit = [statistics.fmean(one.attained[k] for one in found) for k in range(2)]
    return (
        f"{len(found)} seeds, {sum(one.changes for one in found)} changes of leader: "
        f"mean cost {100 * mean:+.3f}% (standard error {100 * error:.3f}%), "
        f"SLO met {100 * hit[0]:.2f}% and {100 * hit[1]:.2f}%, "
        f"{bought} purchases because of a change"
    )


def main() -> int:
    """Run the seeds, and print each difference and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=LONG_S / 60)
    parser.add_argument("--ledger", choices=DAMAGES, default="intact")
    parser.add_argument("--kill", choices=Kill, type=Kill, default=Kill.BETWEEN_TICKS)
    given = parser.parse_args()
    found = []
    for seed in range(given.first, given.first + given.seeds):
        one = run(seed, 60.0 * given.minutes, CHANGES, DAMAGES[given.ledger], given.kill)
        found.append(one)
        print(f"seed {seed}: {one.usd[0]:.4f} and {one.usd[1]:.4f} USD", *one.purchases, flush=True)
    print(summary(found))
    differs = abs(statistics.fmean(o.usd[1] / o.usd[0] - 1.0 for o in found))
    bought = any(one.purchases for one in found)
    return int(bought or (given.ledger == "intact" and differs > MOST_COST_DIFFERENCE))


if __name__ == "__main__":
    sys.exit(main())
