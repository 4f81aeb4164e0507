"""The global loop: when to re-solve everything, and whether the answer is worth it.

Owns the period, the check of an answer against the fleet as it is by then, and its cost against
its saving. Knows nothing of how it is solved. Source: Cauchy sec. 3.5.2 and Algorithm 1, lines
22-27, with a request and an answer in place of a call.
"""

from __future__ import annotations

import math
from collections import Counter

from autoscaler.controller_state import Refinement
from autoscaler.demand.windows import Stats
from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand
from autoscaler.effects import RefinementRequested
from autoscaler.explain import reasons
from autoscaler.planning.combos import combo_named
from autoscaler.scaling.scale_in import COVERED, is_stale
from autoscaler.scaling.shrink import doubt
from autoscaler.scaling.tick import Tick
from autoscaler.transitions.groups import Group, Life
from autoscaler.transitions.waves import retire

ANSWER_WITHIN_MS = 300_000


def request_refinement(tick: Tick) -> list[RefinementRequested]:
    """Ask for a re-solve of the models that were stable for a whole global window."""
    period_ms = tick.cluster.policy.global_window_s * 1000
    last_ms = max(tick.refined_ms, tick.state.started_ms)
    waiting = tick.refinement_asked_ms and tick.now_ms - tick.refinement_asked_ms < ANSWER_WITHIN_MS
    if waiting or tick.now_ms - last_ms < period_ms:
        return []
    demands, scope = [], []
    for service in tick.cluster.services:
        rate = planning_rate(tick, service)
        demands.append(Demand(service.model, rate, tick.models[service.model].lengths))
        if _stable(tick, service, period_ms):
            scope.append(service.model)
    if not scope:
        return []
    running = Counter(
        (group.model, group.combo_id)
        for service in tick.cluster.services
        for group in tick.counting(service.model)
    )
    tick.refinement_asked_ms = tick.now_ms
    return [
        RefinementRequested(
            tick.state.refinement_request + 1,
            tick.now_ms,
            tuple(demands),
            tuple((model, combo, count) for (model, combo), count in sorted(running.items())),
            tuple(sorted(tick.seen.obtainable.items())),
            tuple(sorted(tick.scarce_pools())),
            tuple(scope),
        )
    ]


def planning_rate(tick: Tick, service: Service) -> float:
    """Requests/s to plan `service` for: the mean of the long window, or of the local if higher.

    Algorithm 1 takes the mean; the local window keeps a rise at the end from being averaged away.
    """
    demand = tick.demand(service.model)
    long_rate = demand.long.req_per_s if isinstance(demand.long, Stats) else 0.0
    return max(long_rate, demand.req_per_s)


def watch_steadiness(tick: Tick, service: Service) -> None:
    """Start the stable period anew when demand leaves the rate that it kept to.

    It leaves where the local window's mean is off by more than `ratio`, and by more than chance
    (three standard deviations of a Poisson count).
    """
    seen = tick.demand(service.model).local
    if not isinstance(seen, Stats):
        return
    steady = tick.models[service.model].steady_req_per_s
    chance = 3.0 * math.sqrt(max(steady, seen.req_per_s) / max(seen.covered_s, 1))
    if abs(seen.req_per_s - steady) > max(tick.cluster.policy.ratio * steady, chance):
        tick.update(service.model, steady_req_per_s=seen.req_per_s, stable_since_ms=tick.now_ms)


def _stable(tick: Tick, service: Service, period_ms: int) -> bool:
    demand = tick.demand(service.model)
    seen = isinstance(demand.long, Stats) and (
        demand.long.covered_s >= COVERED * tick.cluster.policy.global_window_s
    )
    groups = tick.of(service.model)
    settled = all(g.life is Life.ACTIVE and tick.views[g.name].all_ready for g in groups)
    quiet = tick.now_ms - tick.models[service.model].stable_since_ms >= period_ms
    return seen and settled and quiet and not is_stale(demand) and service.model in tick.tables


def refine(tick: Tick, answer: Refinement) -> None:
    """Carry `answer` out if it still fits the fleet and saves more than it costs."""
    if answer.request != tick.state.refinement_request or not tick.refinement_asked_ms:
        return  # an answer to a question that was given up
    tick.refinement_asked_ms = 0
    tick.refined_ms = tick.now_ms
    if answer.timed_out:
        tick.say("*", "hold", "re-solving did not end in time: the last good plan stands")
        return
    wanted: dict[str, Counter[str]] = {}
    for model, combo_id, count in answer.targets:
        wanted.setdefault(model, Counter())[combo_id] += count
    adds: list[tuple[Service, Combo]] = []
    leaving: dict[str, list[Group]] = {}
    for model in sorted(wanted):
        changes = _changes(tick, model, wanted[model])
        if changes is not None:
            adds += changes[0]
            leaving[model] = changes[1]
    going = [group.name for groups in leaving.values() for group in groups]
    if not adds and not going:
        return
    before_usd = tick.billed_usd_per_h()
    started: list[Group] = []
    for service, combo in adds:
        group = tick.start(combo, service)
        if group is None:
            tick.undo(started)
            tick.say(
                "*", "hold", f"a better plan needs room beside what runs: no place for {combo.id}"
            )
            return
        started.append(group)
    saving_usd = before_usd - tick.billed_usd_per_h(without=going)
    cost_usd = _transition_usd(tick, [combo for _, combo in adds])
    hours = tick.cluster.policy.global_window_s / 3600
    if saving_usd * hours <= cost_usd:
        tick.undo(started)
        return
    tick.gap = answer.gap
    for model, groups in leaving.items():
        names = tuple(group.name for group in started if group.model == model)
        for group in groups:
            tick.groups[group.name] = retire(group, tick.now_ms, after=names)
        change = Counter(group.combo_id for group in started if group.model == model)
        change.subtract(group.combo_id for group in groups)
        service = tick.cluster.service(model)
        raw = tick.raw_req_per_s(tick.counting(model))
        tick.say(
            model,
            "refine",
            f"{reasons.rate(planning_rate(tick, service))} of {reasons.rate(raw)} req/s; the fleet "
            f"{reasons.money(-saving_usd)}, changing it costs {cost_usd:.2f}",
            demand_req_per_s=planning_rate(tick, service),
            capacity_req_per_s=raw,
            cost_delta_usd_per_h=-saving_usd if model == min(leaving) else 0.0,
            change=tuple(sorted((c, n) for c, n in change.items() if n)),
        )
        tick.update(
            model, stable_since_ms=tick.now_ms, last_action_ms=tick.now_ms, excess_since_ms=0
        )


def _changes(
    tick: Tick, model: str, wanted: Counter[str]
) -> tuple[list[tuple[Service, Combo]], list[Group]] | None:
    """What `wanted` adds to and takes from `model` as it is now; None if it may not change.

    Capacity must cover demand as it is now, and taking away needs the evidence of scale-in.
    """
    service = tick.service(model)
    if service is None or service.mode is not Mode.ACT:
        return None
    have = tick.counting(model)
    lengths = tick.tables[model].lengths if model in tick.tables else tick.models[model].lengths
    combos: dict[str, Combo] = {}
    for combo_id in wanted:
        try:
            known = tick.combos.get(combo_id)
            combos[combo_id] = known or combo_named(
                combo_id, tick.cluster, service, lengths, tick.state.profile
            )
        except InvalidValue:
            return None
    raw = sum(combos[combo_id].req_per_s * count for combo_id, count in wanted.items())
    enough = raw * service.utilization >= tick.demand(model).req_per_s * (1 - 1e-6)
    if not enough or sum(wanted.values()) < service.min_instances:
        return None
    left = Counter(wanted)
    going: list[Group] = []
    for group in have:
        if left[group.combo_id] > 0:
            left[group.combo_id] -= 1
        else:
            going.append(group)
    if going and (is_stale(tick.demand(model)) or doubt(tick, service)):
        return None
    adds = [(service, combos[combo_id]) for combo_id, n in sorted(left.items()) for _ in range(n)]
    return adds, going


def _transition_usd(tick: Tick, adds: list[Combo]) -> float:
    """USD of starting `adds`: double running until they serve and the old ones drained, and the
    initialization penalty K of eq. 16's joint form over one global window."""
    policy = tick.cluster.policy
    double = sum(c.usd_per_h * (c.start_s + policy.drain_timeout_s) / 3600 for c in adds)
    penalty = sum(c.usd_per_h for c in adds) * policy.k_start * policy.global_window_s / 3600
    return double + penalty
