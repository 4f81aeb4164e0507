"""Carrying out what the planner answered: the fleet may have moved on since it was asked.

Owns which parts of an answer are carried out. A part that no longer fits is left out, not the
whole answer, and is planned for again. Removals need evidence at the moment they begin; additions
do not. Pure: groups and states come in and go out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoscaler.demand.freshness import paused, strain
from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.combo import Combo
from autoscaler.explain import reasons
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.request import Outcome, PlanAnswer, Urgency
from autoscaler.scene import Scene
from autoscaler.state import ModelState, Pending
from autoscaler.targets.excess import doubt
from autoscaler.targets.view import ModelView
from autoscaler.transitions.accounts import billed_usd_per_h, by_model, raw_req_per_s
from autoscaler.transitions.apply import Site, difference, leaving, start
from autoscaler.transitions.groups import Group
from autoscaler.transitions.turns import may_go_in, moved
from autoscaler.transitions.waves import retire
from autoscaler.unmet import out_of_reach, unmet
from topics.decisions import Decision

_MAKE_ROOM_MS = 60_000
_LEAST = 1e-6
_EXCHANGE = 0.1


@dataclass(frozen=True, slots=True)
class Carried:
    """What came of an answer. replan: models of which a part was left out ("" for all of them),
    with the reason."""

    groups: tuple[Group, ...]
    site: Site
    models: Mapping[str, ModelState]
    decisions: tuple[Decision, ...] = ()
    replan: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Change:
    """What an answer changes for one model: combos to add and to remove, and why not more."""

    adds: Counter[str]
    removes: Counter[str]
    left_out: str = ""


def carry_out(
    answer: PlanAnswer,
    pending: Pending,
    groups: tuple[Group, ...],
    site: Site,
    models: Mapping[str, ModelState],
    scene: Scene,
) -> Carried:
    """Carry `answer` to `pending` out, model by model, those of higher priority first."""
    if answer.outcome is Outcome.NONE:
        return Carried(groups, site, models)
    states = dict(models)
    decisions: list[Decision] = []
    replan: list[tuple[str, str]] = []
    wanted = _counts(answer.counts)
    asked = _counts(pending.request.fleet)
    shortfall = dict(answer.shortfall_req_per_s)
    sought = {demand.model: demand.req_per_s for demand in pending.request.demands}
    current = by_model(groups)
    order = sorted(
        (s for s in scene.cluster.services if s.model in answer.scope),
        key=lambda s: (-s.priority, s.model),
    )
    now = {group.name: group for group in groups}
    prices = {pool.id: pool.price_usd_per_h for pool in scene.cluster.pools}
    for service in order:
        model = service.model
        said, states[model] = out_of_reach(answer, states[model], service, scene)
        decisions += said
        state = states[model]
        short = shortfall.get(model, 0.0)
        target, base = wanted.get(model, Counter()), asked.get(model, Counter())
        if service.mode is not Mode.ACT:
            said, states[model] = _recommend(answer, pending, service, target, scene, state)
            decisions += said
            continue
        counting = [g for g in current.get(model, ()) if scene.sight.counts(g)]
        change = _change(answer, service, counting, target, base, short, scene)
        before_usd = billed_usd_per_h(now.values(), scene.sight, prices)
        placed = start(change.adds, scene.combos, service, site, scene.now_ms)
        site = placed.site
        change = _affordable(change, placed.groups, placed.unplaced, counting, service, scene)
        going = leaving(change.removes, counting, scene.sight)
        after = tuple(group.name for group in placed.groups)
        now.update({group.name: group for group in placed.groups})
        gone = {group.name for group in going}
        staying = {name: group for name, group in now.items() if name not in gone}
        delta_usd = billed_usd_per_h(staying.values(), scene.sight, prices) - before_usd
        makes_room = bool(going and placed.unplaced)
        yields = short > _LEAST or makes_room
        now.update({g.name: replace(retire(g, scene.now_ms, after), yields=yields) for g in going})
        if change.left_out:
            replan.append((model, f"{model}: {change.left_out}"))
        if makes_room:
            until_ms = scene.now_ms + _MAKE_ROOM_MS
            states[model] = replace(states[model], making_room_until_ms=until_ms)
        if placed.groups or going:
            decisions.append(
                _decision(answer, pending, state, scene, service, placed.groups, going, delta_usd)
            )
            net = raw_req_per_s(placed.groups, scene.combos) - raw_req_per_s(going, scene.combos)
            share = net / max(scene.views[model].raw_req_per_s, _LEAST)
            exchange = bool(placed.groups and going) and abs(share) <= _EXCHANGE
            states[model] = _moved(states[model], 0.0 if exchange else share, scene.now_ms)
        below_floor = not placed.groups and len(counting) < service.min_instances
        if short > _LEAST or placed.unplaced or below_floor:
            said, states[model] = unmet(answer, short, sought[model], states[model], service, scene)
            decisions += said
            if said and answer.urgency is Urgency.URGENT:
                replan.append(("", f"{model}: additions alone do not serve it"))
    return Carried(tuple(now.values()), site, states, tuple(decisions), tuple(replan))


def _change(
    answer: PlanAnswer,
    service: Service,
    counting: list[Group],
    wanted: Counter[str],
    asked: Counter[str],
    short: float,
    scene: Scene,
) -> _Change:
    """What the answer still means for the model as it is now."""
    view = scene.views[service.model]
    if answer.urgency is Urgency.URGENT:
        # What came meanwhile, by a full plan say, need not be bought twice.
        have = Counter(group.combo_id for group in counting)
        enough = view.covers and len(counting) >= service.min_instances
        return _Change(Counter() if enough else wanted - (have | asked), Counter())
    have = Counter(group.combo_id for group in counting)
    if have != asked:
        return _Change(Counter(), Counter(), "the fleet changed while it was planned")
    adds, removes = difference(counting, wanted)
    if not removes:
        return _Change(adds, removes)
    why = _keep_all(view, adds, removes, short, scene)
    if not why:
        return _Change(adds, removes)
    is_short = view.planned_req_per_s < view.state.target_req_per_s * (1 - _LEAST)
    return _Change(adds if is_short else Counter(), Counter(), "" if not is_short else why)


def _keep_all(
    view: ModelView, adds: Counter[str], removes: Counter[str], short: float, scene: Scene
) -> str:
    """Why nothing of the model may be removed now; empty if it may."""
    change = _raw(adds, scene.combos) - _raw(removes, scene.combos)
    target = view.state.target_req_per_s / (view.service.utilization * view.state.derate)
    if short <= _LEAST and view.raw_req_per_s + change < target * (1 - _LEAST):
        return "demand rose while it was planned"
    if change >= -_LEAST:
        return ""  # a move, not a removal
    since_s = (scene.now_ms - view.state.last_out_ms) / 1000
    if view.state.last_out_ms and since_s < view.policy.cooldown_s:
        return paused(f"something was added {reasons.duration(since_s).removeprefix('~')} ago")
    if not may_go_in(view.state.turns, scene.now_ms):
        return paused("the fleet was scaled out and in too often in the last two hours")
    return paused(doubt(view) or strain(view.demand, view.service))


def _affordable(
    change: _Change,
    placed: Iterable[Group],
    unplaced: Counter[str],
    counting: list[Group],
    service: Service,
    scene: Scene,
) -> _Change:
    """Removals that capacity allows where some additions found no room.

    Where the plan gives the model more than it has, room must be made first: then as much leaves
    beforehand as its disruption budget allows, once, and no more until that room was used.
    """
    if not unplaced:
        return change
    view = scene.views[service.model]
    names = ", ".join(sorted(unplaced))
    left_out = f"no room yet for {names}"
    raw = raw_req_per_s(counting, scene.combos)
    spare = raw + raw_req_per_s(placed, scene.combos)
    spare -= view.state.target_req_per_s / (service.utilization * view.state.derate)
    grows = _raw(change.adds, scene.combos) > _raw(change.removes, scene.combos)
    budget = max(0.0, spare)
    if grows and scene.now_ms >= view.state.making_room_until_ms:
        budget = max(budget, service.max_disruption * raw)
    allowed: Counter[str] = Counter()
    for combo_id, count in sorted(change.removes.items()):
        rate = _raw({combo_id: 1}, scene.combos)
        for _ in range(count):
            if rate <= budget + _LEAST:
                allowed[combo_id] += 1
                budget -= rate
    return _Change(change.adds, allowed, left_out)


def _decision(
    answer: PlanAnswer,
    pending: Pending,
    state: ModelState,
    scene: Scene,
    service: Service,
    started: tuple[Group, ...],
    going: tuple[Group, ...],
    delta_usd: float,
) -> Decision:
    view = scene.views[service.model]
    change = Counter(group.combo_id for group in started)
    change.subtract(group.combo_id for group in going)
    kind = "replan" if started and going else "scale_in" if going else "scale_out"
    if kind == "scale_out" and state.lost_ms:
        kind = "replace"
    parts = [_why(answer, pending, view, kind), reasons.money(delta_usd)]
    if started:
        start_s = max(scene.combos[group.combo_id].start_s for group in started)
        parts.append(f"serving in {reasons.duration(start_s)}")
    switched = sum(s.count for s in answer.switches if s.source in change or s.target in change)
    if switched:
        parts.append(f"{switched} role switches carried out as start-beside")
    if answer.urgency is Urgency.FULL and answer.gap >= 0.0:
        parts.append(f"plan within {answer.gap:.1%} of the best")
    return Decision(
        number=0,
        leader_token=0,
        model=service.model,
        kind=kind,
        at_ms=scene.now_ms,
        applied=True,
        reason="; ".join(part for part in parts if part),
        demand_req_per_s=round(state.target_req_per_s, 4),
        capacity_req_per_s=round(view.raw_req_per_s, 4),
        cost_delta_usd_per_h=round(delta_usd, 4),
        over_since_ms=state.over_since_ms if kind in ("scale_out", "replace") else 0,
        change=tuple(sorted((c, n) for c, n in change.items() if n)),
    )


def _why(answer: PlanAnswer, pending: Pending, view: ModelView, kind: str) -> str:
    state = view.state
    if answer.urgency is Urgency.FULL:
        triggers = ", ".join(dict.fromkeys(words for _, words in pending.reasons))
        lowered = kind == "scale_in" and any(name == "excess" for name, _ in pending.reasons)
        own = state.target_why if lowered else ""
        return "; ".join(part for part in (own, f"re-solve: {triggers}") if part)
    if kind == "replace":
        return "capacity was lost"
    if view.groups < view.service.min_instances and view.groups:
        return f"floor of {view.service.min_instances}"
    if view.groups and not state.over_since_ms and state.derate == 1.0:
        planned = reasons.rate(view.planned_req_per_s)
        target = reasons.rate(state.target_req_per_s)
        return f"at the present request lengths the fleet is good for {planned} of {target} req/s"
    return state.target_why or f"floor of {view.service.min_instances}"


def _moved(state: ModelState, share: float, now_ms: int) -> ModelState:
    """Remember a change of the capacity by `share` of it; 0: an exchange, which is no move."""
    turns = state.turns
    out, into = share > 0.0, share < 0.0
    if out or into:
        turns = moved(turns, "out" if out else "in", now_ms)
    return replace(
        state,
        turns=turns,
        last_out_ms=now_ms if out else state.last_out_ms,
        last_in_ms=now_ms if into else state.last_in_ms,
        over_since_ms=0 if out else state.over_since_ms,
        lost_ms=0 if out else state.lost_ms,
    )


def _recommend(
    answer: PlanAnswer,
    pending: Pending,
    service: Service,
    wanted: Counter[str],
    scene: Scene,
    state: ModelState,
) -> tuple[list[Decision], ModelState]:
    """Say what would be done. What was recommended is what the next plan starts from."""
    before = Counter(dict(state.recommended))
    change = Counter(wanted)
    change.subtract(before)
    change = Counter({combo: n for combo, n in change.items() if n})
    view = scene.views[service.model]
    adds, removes = +change, -change
    if removes and _keep_all(view, adds, removes, 0.0, scene):
        change = adds if view.planned_req_per_s < state.target_req_per_s else Counter()
        removes = Counter()
    short = dict(answer.shortfall_req_per_s).get(service.model, 0.0)
    said: list[Decision] = []
    if change:
        outward = bool(+change)
        kind = "replan" if outward and removes else "scale_out" if outward else "scale_in"
        usd = sum(scene.combos[i].usd_per_h * n for i, n in change.items() if i in scene.combos)
        said.append(
            Decision(
                number=0,
                leader_token=0,
                model=service.model,
                kind=kind,
                at_ms=scene.now_ms,
                applied=False,
                reason=f"{_why(answer, pending, view, kind)}; {reasons.money(usd)}",
                demand_req_per_s=round(state.target_req_per_s, 4),
                capacity_req_per_s=round(view.raw_req_per_s, 4),
                cost_delta_usd_per_h=round(usd, 4),
                over_since_ms=state.over_since_ms if outward else 0,
                change=tuple(sorted(change.items())),
            )
        )
        after = before + change if not removes else Counter(wanted)
        share = _raw(change, scene.combos) / max(view.raw_req_per_s, _LEAST)
        exchange = outward and bool(removes) and abs(share) <= _EXCHANGE
        state = replace(
            _moved(state, 0.0 if exchange else share, scene.now_ms),
            recommended=tuple(sorted((+after).items())),
            recommended_ms=scene.now_ms,
        )
    if short > _LEAST:
        sought = {demand.model: demand.req_per_s for demand in pending.request.demands}
        more, state = unmet(answer, short, sought[service.model], state, service, scene)
        said += more
    return said, state


def _counts(named: Iterable[tuple[str, int]]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for combo_id, count in named:
        model, _ = parse_combo_id(combo_id)
        found.setdefault(model, Counter())[combo_id] += count
    return found


def _raw(counts: Mapping[str, int], combos: Mapping[str, Combo]) -> float:
    return sum(combos[i].req_per_s * count for i, count in counts.items() if i in combos)
