"""Names that nothing uses any more (`topics.name_life`): the leader deletes their keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from autoscaler.domain.cluster import Pool
from autoscaler.domain.node_names import NodeNames
from topics.fleet import Assignment, InstanceState, Status
from topics.name_life import NameLife, life_of

GIVEN_UP_MS = 86_400_000
"""Silence in ms after which an undeclared node counts as removed. Until then its executor may
return, and it stops its instances only if it reads an assignment."""
_ENDED = (InstanceState.STOPPED, InstanceState.FAILED)


def finalized_models(
    undeclared: Iterable[str], models_with_groups: Collection[str], in_file: Collection[str]
) -> tuple[str, ...]:
    """The models of `undeclared` without a serving group. in_file: withdrawn models that the
    configuration file declares."""
    return tuple(
        model
        for model in undeclared
        if life_of(False, model in models_with_groups or model in in_file, True)
        is NameLife.FINALIZED
    )


def finalized_nodes(
    assignments: Mapping[str, Assignment],
    statuses: Mapping[str, Status],
    pools: Iterable[Pool],
    now_ms: int,
) -> tuple[str, ...]:
    """The nodes of `assignments` that no pool declares and that have no instances."""
    declared = NodeNames(pools)
    return tuple(
        node
        for node, assignment in sorted(assignments.items())
        if life_of(node in declared, _in_use(assignment, statuses.get(node), now_ms), has_keys=True)
        is NameLife.FINALIZED
    )


def _in_use(assignment: Assignment, status: Status | None, now_ms: int) -> bool:
    """Whether the node has instances, or its executor has not yet confirmed that it has none."""
    if assignment.instances:
        return True
    heard_ms = status.at_ms if status is not None else assignment.issued_ms
    if now_ms - heard_ms >= GIVEN_UP_MS:
        return False
    if status is None or status.observed_generation < assignment.generation:
        return True
    follows = status.observed_token in (0, assignment.leader_token)  # 0: an older executor
    return not follows or any(seen.state not in _ENDED for seen in status.instances)
