"""Tables for the reactive loop: what to add for a deficit, computed before it is needed.

Owns building them with the combo ILP over a grid of deficits, and the look-up, which re-checks
against what is free at that moment. Knows nothing of when to scale.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from autoscaler.domain.checks import InvalidValue, finite
from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from autoscaler.performance.profile import Profile
from autoscaler.planning.combo_ilp import Column, Cover, CoverProblem, cheapest_cover
from autoscaler.planning.combos import candidate_combos, ranking_usd_per_h
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd
from autoscaler.planning.room import (
    NO_BLOCKS,
    Blocks,
    PoolRoom,
    Room,
    cluster_room,
    fits,
    new_nodes_needed,
    occupied,
)
from autoscaler.planning.usage import is_spot, slices_by_pool, total_slices

_GRID_RATIO = 1.4
_GRID_POINTS = 14
_LOOK_AT = 12
_NO_LIMIT = 1e12


@dataclass(frozen=True, slots=True)
class Choice:
    """What to add. counts: (combo id, how many), req_per_s: raw capacity that they hold.

    usd_per_h: price of the GPUs they take; billed_usd_per_h: price of the nodes to be rented for
    them (0 when they fit on nodes paid for already). shortfall_req_per_s: what they do not cover.
    """

    counts: tuple[tuple[str, int], ...]
    req_per_s: float
    usd_per_h: float
    billed_usd_per_h: float
    shortfall_req_per_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One cover of the table: counts by index of the combo, and what it holds and takes."""

    counts: tuple[tuple[int, int], ...]
    req_per_s: float
    spot_req_per_s: float
    weight: float
    usd_per_h: float
    slices: tuple[tuple[str, Blocks], ...]


@dataclass(frozen=True, slots=True)
class ModelTable:
    """Covers of one model at given lengths, by rising capacity.

    combos: all candidates, best cost efficiency first; entries refer to them by index.
    """

    model: str
    lengths: Lengths
    combos: tuple[Combo, ...]
    entries: tuple[Entry, ...] = ()
    by_id: Mapping[str, Combo] = field(default_factory=dict)

    def combo(self, combo_id: str) -> Combo:
        """The candidate called `combo_id`, else InvalidValue."""
        found = self.by_id.get(combo_id)
        if found is None:
            raise InvalidValue(f"combo of {self.model}", combo_id, "a candidate of its table")
        return found

    def choose(self, deficit_req_per_s: float, free: Room, spot_req_per_s: float = 0.0) -> Choice:
        """What to add for a deficit of raw capacity (demand / utilization - capacity).

        free: what each pool has at this moment. spot_req_per_s: how much more capacity may be on
        spot. Of the entries that cover the deficit the one with the smallest bill for new nodes
        wins, so half-empty nodes are filled first. Where none fits any more, the cheapest cover by
        combos of one kind is taken, and where even that does not fit, combos are added one by one,
        best cost efficiency first. What remains uncovered is stated.
        """
        finite("deficit_req_per_s", deficit_req_per_s, 0.0, 1e9)
        if deficit_req_per_s <= 0.0:
            return Choice((), 0.0, 0.0, 0.0, 0.0)
        best: tuple[float, float, Entry] | None = None
        looked = 0
        start = bisect_left(self.entries, deficit_req_per_s, key=lambda entry: entry.req_per_s)
        for entry in self.entries[start:]:
            if looked >= _LOOK_AT:
                break
            if entry.spot_req_per_s > spot_req_per_s + 1e-9:
                continue
            billed = _billed_usd_per_h(dict(entry.slices), free)
            if billed is None:
                continue
            looked += 1
            if best is None or (billed, entry.weight) < best[:2]:
                best = billed, entry.weight, entry
        if best is None:
            one_kind = self._of_one_kind(deficit_req_per_s, free, spot_req_per_s)
            return one_kind or self._one_by_one(deficit_req_per_s, free, spot_req_per_s)
        billed, _, entry = best
        counts = tuple((self.combos[index].id, count) for index, count in entry.counts)
        return Choice(counts, entry.req_per_s, entry.usd_per_h, billed, 0.0)

    def _of_one_kind(self, deficit: float, free: Room, spot: float) -> Choice | None:
        """The cheapest cover by combos of one kind, for moments that no entry foresaw."""
        best: tuple[float, float, int, int] | None = None
        for index, combo in enumerate(self.combos):
            count = max(1, math.ceil(deficit / combo.req_per_s - 1e-9))
            if is_spot(combo) and count * combo.req_per_s > spot + 1e-9:
                continue
            billed = _billed_usd_per_h(total_slices([combo], [count]), free)
            key = None if billed is None else (billed, count * combo.usd_per_h, index, count)
            if key is not None and (best is None or key < best):
                best = key
        if best is None:
            return None
        _, _, index, count = best
        return self._stated([(self.combos[index], count)], deficit, free)

    def _one_by_one(self, deficit: float, free: Room, spot: float) -> Choice:
        """Greedy: the best combo that fits and covers what is missing, else the best that fits."""
        left = dict(free)
        counts: dict[int, int] = {}
        missing = deficit
        while missing > 1e-9:
            possible = [
                index
                for index, combo in enumerate(self.combos)
                if (not is_spot(combo) or combo.req_per_s <= spot + 1e-9)
                and _billed_usd_per_h(slices_by_pool(combo), left) is not None
            ]
            if not possible:
                break
            enough = [i for i in possible if self.combos[i].req_per_s >= missing]
            added = min(enough, key=lambda i: (self.combos[i].usd_per_h, i), default=possible[0])
            combo = self.combos[added]
            counts[added] = counts.get(added, 0) + 1
            missing -= combo.req_per_s
            spot -= combo.req_per_s if is_spot(combo) else 0.0
            for pool, wanted in slices_by_pool(combo).items():
                left[pool] = occupied(left[pool], wanted)
        chosen = [(self.combos[index], count) for index, count in sorted(counts.items())]
        return self._stated(chosen, deficit, free)

    def _stated(self, chosen: list[tuple[Combo, int]], deficit: float, free: Room) -> Choice:
        slices = total_slices([combo for combo, _ in chosen], [count for _, count in chosen])
        held = sum(combo.req_per_s * count for combo, count in chosen)
        return Choice(
            counts=tuple((combo.id, count) for combo, count in chosen),
            req_per_s=held,
            usd_per_h=sum(combo.usd_per_h * count for combo, count in chosen),
            billed_usd_per_h=_billed_usd_per_h(slices, free) or 0.0,
            shortfall_req_per_s=max(0.0, deficit - held),
        )


def build_tables(
    cluster: Cluster,
    lengths: Mapping[str, Lengths],
    free: Room | None,
    profile: Profile,
) -> dict[str, ModelTable]:
    """Tables of every model in `lengths`, for deficits up to what `free` holds (None = all)."""
    room = cluster_room(cluster) if free is None else free
    return {
        model: build_table(cluster, cluster.service(model), lengths, room, profile)
        for model, lengths in lengths.items()
    }


def build_table(
    cluster: Cluster, service: Service, lengths: Lengths, room: Room, profile: Profile
) -> ModelTable:
    """The table of one service: eq. 16 over a geometric grid of deficits.

    Each deficit is solved by eq. 16's weight and by the bill for new nodes, without spot and with
    the service's share of it, with and without the owned pools (other models may have filled
    them), so that a look-up finds covers for tight and for ample moments.
    """
    combos = candidate_combos(cluster, service, lengths, profile)
    columns = tuple(Column(combo, eq16_weight(combo, cluster, lengths)) for combo in combos)
    shares = (0.0, service.spot_share) if service.spot_share > 0.0 else (0.0,)
    found: dict[tuple[int, ...], Entry] = {}
    rented = {pool: free for pool, free in room.items() if free.node_usd_per_h > 0.0}
    rooms = [room] if len(rented) in (0, len(room)) else [room, rented]
    for deficit in _grid(combos, room):
        for share, node_weight, usable in product(shares, (0.0, 1.0), rooms):
            problem = CoverProblem(
                columns=columns,
                demand_req_per_s={service.model: deficit},
                room=usable,
                spot_limit_req_per_s={service.model: share * deficit},
                node_usd_per_h_weight=node_weight,
                relative_gap=0.01,
                time_limit_s=2.0,
            )
            cover = cheapest_cover(problem)
            if cover is not None and any(cover.counts):
                found[cover.counts] = _entry(columns, cover)
    entries = sorted(found.values(), key=lambda e: (e.req_per_s, e.weight, e.counts))
    by_id = {combo.id: combo for combo in combos}
    return ModelTable(service.model, lengths, combos, tuple(entries), by_id)


def eq16_weight(combo: Combo, cluster: Cluster, lengths: Lengths) -> float:
    """P_n / C_n of eq. 16, scaled by 1e6: USD/h over tokens per USD; owned GPUs at a trifle."""
    usd_per_h = ranking_usd_per_h(combo, {p.id: p for p in cluster.pools})
    return 1e6 * usd_per_h / combo_tokens_per_usd(lengths, combo.req_per_s, usd_per_h)


def _grid(combos: tuple[Combo, ...], room: Room) -> list[float]:
    """Deficits from below the smallest combo up to what the room could hold of any one combo."""
    if not combos:
        return []
    low = 0.5 * min(combo.req_per_s for combo in combos)
    high = max(_most(combo, room) * combo.req_per_s for combo in combos)
    points: list[float] = []
    ratio = max(_GRID_RATIO, (high / low) ** (1.0 / _GRID_POINTS)) if high > low else _GRID_RATIO
    deficit = low
    while deficit <= high and len(points) <= _GRID_POINTS:
        points.append(deficit)
        deficit *= ratio
    return points


def _most(combo: Combo, room: Room) -> int:
    """How many of `combo` the pools hold at most, by their GPUs."""
    nothing = PoolRoom(1, NO_BLOCKS, 0, 0.0)
    return min(
        room.get(pool, nothing).free_gpus // gpus for pool, gpus in combo.gpus_by_pool().items()
    )


def _entry(columns: tuple[Column, ...], cover: Cover) -> Entry:
    chosen = [(i, count) for i, count in enumerate(cover.counts) if count]
    combos = [columns[i].combo for i, _ in chosen]
    counts = [count for _, count in chosen]
    return Entry(
        counts=tuple(chosen),
        req_per_s=sum(c.req_per_s * n for c, n in zip(combos, counts, strict=True)),
        spot_req_per_s=sum(
            c.req_per_s * n for c, n in zip(combos, counts, strict=True) if is_spot(c)
        ),
        weight=sum(columns[i].weight * count for i, count in chosen),
        usd_per_h=sum(c.usd_per_h * n for c, n in zip(combos, counts, strict=True)),
        slices=tuple(sorted(total_slices(combos, counts).items())),
    )


def _billed_usd_per_h(slices: Mapping[str, Blocks], free: Room) -> float | None:
    """USD/h of the nodes to be rented for `slices`; None when they do not fit."""
    bill = 0.0
    for pool, wanted in slices.items():
        room = free.get(pool)
        if room is None or not fits(wanted, room.all_blocks()):
            return None
        bill += room.node_usd_per_h * new_nodes_needed(wanted, room)
    return bill


__all__ = [
    "Choice",
    "Entry",
    "ModelTable",
    "build_table",
    "build_tables",
    "eq16_weight",
    "slices_by_pool",
]
