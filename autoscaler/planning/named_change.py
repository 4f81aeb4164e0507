"""Names the running groups that switch, leave and stay under a plan, and the combos that start.

The solver counts combos, because groups of one combo are alike to it. The groups are chosen here,
once: the rollout carries out this choice or leaves a part out, with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from autoscaler.planning.planner_messages import FleetChange, RunningGroup, Switch


def full_change(
    groups: Iterable[RunningGroup],
    now: Mapping[str, int],
    after: Mapping[str, int],
    switches: Iterable[Switch],
) -> FleetChange:
    """The change from the counts `now` to the counts `after` (combo id -> count)."""
    arrives, departs = Counter[str](), Counter[str]()
    for switch in switches:
        arrives[switch.target] += switch.count
        departs[switch.source] += switch.count
    starts, leaves = Counter[str](), Counter[str]()
    for combo_id in {*now, *after}:
        there = now.get(combo_id, 0) - departs[combo_id]
        needed = after.get(combo_id, 0) - arrives[combo_id]
        starts[combo_id] = max(0, needed - there)
        leaves[combo_id] = max(0, there - needed)
    free = tuple(groups)
    named = _switching(free, switches)
    taken = {name for name, _ in named}
    rest = (group for group in free if group.name not in taken)
    return FleetChange(tuple(sorted((+starts).items())), named, _leaving(rest, leaves))


def urgent_change(
    groups: Iterable[RunningGroup],
    now: Mapping[str, int],
    after: Mapping[str, int],
    replaced: Mapping[str, int],
) -> FleetChange:
    """The additions from the counts `now` to the counts `after`. replaced: combo id -> number of
    groups that leave once the additions serve."""
    starts = Counter(after) - Counter(now)
    return FleetChange(tuple(sorted(starts.items())), (), _leaving(groups, replaced))


def _switching(
    groups: Iterable[RunningGroup], switches: Iterable[Switch]
) -> tuple[tuple[str, str], ...]:
    """(group, new combo) of each switch, the oldest groups first."""
    oldest = sorted(groups, key=lambda group: (group.created_ms, group.name))
    free = [group for group in oldest if group.may_switch]
    named: dict[str, str] = {}
    for switch in switches:
        alike = (g for g in free if g.combo_id == switch.source and g.name not in named)
        for group, _ in zip(alike, range(switch.count), strict=False):
            named[group.name] = switch.target
    return tuple(sorted(named.items()))


def _leaving(groups: Iterable[RunningGroup], leaves: Mapping[str, int]) -> tuple[str, ...]:
    """The groups that leave: first groups of a version that a rollout replaces, because it would
    start the others again. Then groups that do not serve yet, then groups whose removal empties a
    node, then the youngest."""

    def rank(group: RunningGroup) -> tuple[bool, bool, int, int, str]:
        current = not group.outdated
        return current, group.is_ready, group.neighbours, -group.created_ms, group.name

    ranked = sorted(groups, key=rank)
    named: list[str] = []
    for combo_id, count in sorted(leaves.items()):
        named += [group.name for group in ranked if group.combo_id == combo_id][:count]
    return tuple(named)
