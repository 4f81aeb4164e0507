"""A controller's state from the topics: after a start, a crash or a change of leader.

Owns reading groups back from assignments. Windows are rebuilt by their owner from telemetry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.controller_state import ControllerState, ModelState
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Phase
from autoscaler.performance.profile import Profile, default_profile
from autoscaler.scaling.turns import Turns, moved
from autoscaler.transitions.groups import Group, Life, Placed, combo_id_of, serial_of
from topics.decisions import Decision
from topics.fleet import Assignment, DesiredInstance, Status
from topics.routing import Routes

_ACTIONS = ("scale_out", "scale_in", "refine", "replace")
_MOVES = {"scale_out": "out", "replace": "out", "scale_in": "in"}


def rebuild(
    cluster: Cluster,
    assignments: Mapping[str, Assignment],
    routes: Mapping[str, Routes],
    statuses: Mapping[str, Status],
    decisions: Iterable[Decision],
    now_ms: int,
    *,
    leader_token: int = 0,
    profile: Profile | None = None,
    plan_number: int = 0,
) -> ControllerState:
    """The state from which `decide` goes on. assignments and statuses by node, routes by model.

    What was on its way out and not yet told to drain is wanted again: scale-in starts from new
    evidence. The cool-down and the numbers of decisions go on. All empty: a first start.
    """
    groups = _groups(assignments, statuses, now_ms)
    models: dict[str, ModelState] = {}
    last: dict[str, Decision] = {}
    turns: dict[str, Turns] = {}
    number = 0
    for decision in sorted(decisions, key=lambda d: (d.at_ms, d.number)):
        number = max(number, decision.number)
        known = last.get(decision.model)
        acted = decision.applied and decision.kind in _ACTIONS
        if acted and decision.kind in _MOVES:
            turns[decision.model] = moved(
                turns.get(decision.model, Turns()), _MOVES[decision.kind], decision.at_ms
            )
        if acted and (known is None or decision.at_ms > known.at_ms):
            last[decision.model] = decision
    for service in cluster.services:
        decision_ = last.get(service.model)
        acted_ms = min(decision_.at_ms, now_ms) if decision_ else 0
        missing = 0.0
        if decision_ and decision_.kind in ("scale_out", "replace"):
            raw = decision_.capacity_req_per_s * service.utilization
            missing = max(0.0, decision_.demand_req_per_s - raw)
        models[service.model] = ModelState(
            lengths=service.lengths,
            last_action_ms=acted_ms,
            last_added_req_per_s=missing,
            stable_since_ms=now_ms,
            turns=turns.get(service.model, Turns()),
        )
    serials = [serial_of(group.name) for group in groups]
    serials += [serial_of(route.group) for record in routes.values() for route in record.groups]
    serials += [serial_of(seen.group) for status in statuses.values() for seen in status.instances]
    return ControllerState(
        started_ms=now_ms,
        leader_token=leader_token,
        profile=profile if profile is not None else default_profile(),
        groups=groups,
        assignments=dict(assignments),
        routes=dict(routes),
        models=models,
        next_serial=max(serials, default=0) + 1,
        decision_number=number,
        plan_number=plan_number,
        announce=_announcement(cluster, groups) if groups or number else "",
    )


def _groups(
    assignments: Mapping[str, Assignment], statuses: Mapping[str, Status], now_ms: int
) -> tuple[Group, ...]:
    launched = {
        seen.instance: seen.launched_ms
        for status in statuses.values()
        for seen in status.instances
        if seen.launched_ms
    }
    parts: dict[str, list[tuple[Assignment, DesiredInstance]]] = {}
    for node in sorted(assignments):
        for instance in assignments[node].instances:
            parts.setdefault(instance.group, []).append((assignments[node], instance))
    groups = []
    for name, members in parts.items():
        first = members[0][1]
        placed = tuple(
            Placed(i.instance, Phase(i.phase), a.node, a.pool, i.gpus)
            for a, i in sorted(members, key=lambda pair: pair[1].instance)
        )
        created = min((launched[p.instance] for p in placed if p.instance in launched), default=0)
        draining = any(instance.drain for _, instance in members)
        groups.append(
            Group(
                name=name,
                model=first.model,
                combo_id=combo_id_of(name),
                engine=first.engine,
                placed=placed,
                # A start that is under way gets its whole time-out again.
                created_ms=min(created or now_ms, now_ms),
                life=Life.DRAINING if draining else Life.ACTIVE,
                since_ms=now_ms,
            )
        )
    return tuple(sorted(groups, key=lambda group: (group.created_ms, group.name)))


def _announcement(cluster: Cluster, groups: tuple[Group, ...]) -> str:
    models = {group.model for group in groups}
    instances = sum(len(group.placed) for group in groups)
    return (
        f"rebuilt from the topics: {instances} instances of {len(models)} models taken over, "
        f"{len(cluster.services)} declared"
    )
