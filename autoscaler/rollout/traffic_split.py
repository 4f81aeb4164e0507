"""Converts planned fractions to routes: the share of each group in each request class.

If an instance is not ready yet, the ready instances share its fraction in proportion to their
weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from autoscaler.planning.workload_types import types_of
from autoscaler.rollout.serving_group import combo_id_of
from topics.routing import RouteGroup, Routes, TypeRoute

_TOLD = 0.05
"""Difference of a share from which a new split is reported."""


@dataclass(frozen=True, slots=True)
class TrafficSplit:
    """The planned split of one model; empty without request classes.

    fractions: (type, combo, fraction) of every combo that can serve the type; the fraction is 0 if
    the plan sends it no such requests. copies: planned count of each combo.
    """

    fractions: tuple[tuple[str, str, float], ...] = ()
    copies: tuple[tuple[str, int], ...] = ()

    def differs(self, other: TrafficSplit) -> bool:
        """Whether this split and `other` both have fractions, and a fraction differs noticeably."""
        if not self.fractions or not other.fractions:
            return False
        before = {(kind, combo): part for kind, combo, part in self.fractions}
        after = {(kind, combo): part for kind, combo, part in other.fractions}
        return any(
            abs(before.get(key, 0.0) - after.get(key, 0.0)) > _TOLD for key in before | after
        )


def planned_split(
    shares: Iterable[tuple[str, str, float]], counts: Iterable[tuple[str, int]]
) -> TrafficSplit:
    """The split in the planner's answer. shares: (type, combo, fraction)."""
    fractions = tuple(shares)
    named = {combo for _, combo, _ in fractions}
    return TrafficSplit(fractions, tuple((i, count) for i, count in counts if i in named))


def type_routes(
    service: Service,
    ways: TrafficSplit,
    groups: tuple[RouteGroup, ...],
    published: Routes | None = None,
) -> tuple[TypeRoute, ...]:
    """Shares of each type among `groups`, which serve now.

    Without a plan since a restart, the `published` shares stay valid as long as the groups are the
    same.
    """
    if not ways.fractions:
        same = published is not None and [g.group for g in published.groups] == [
            g.group for g in groups
        ]
        return published.types if published is not None and same else ()
    here = Counter(combo_id_of(group.group) for group in groups)
    copies = dict(ways.copies)
    found = []
    for kind in types_of(service):
        fractions = {combo: part for name, combo, part in ways.fractions if name == kind.name}
        if not fractions:
            continue
        each, missing = {}, 1.0
        for combo, part in fractions.items():
            if here[combo]:
                each[combo] = part / max(copies.get(combo, 0), here[combo])
                missing -= each[combo] * here[combo]
        weights = sum(g.weight for g in groups if combo_id_of(g.group) in fractions)
        more = max(0.0, missing) / weights if weights > 0.0 and missing > 1e-6 else 0.0
        shares = []
        for group in groups:
            combo = combo_id_of(group.group)
            share = each.get(combo, 0.0) + more * group.weight if combo in fractions else 0.0
            shares.append(float(f"{share:.5g}"))
        lengths = kind.lengths
        found.append(
            TypeRoute(kind.name, lengths.input_tokens, lengths.output_tokens, tuple(shares))
        )
    return tuple(found)
