"""The instances of a model by region and GPU, as text: "3×L40S eu-west, 1 spot +1".

Pure: statuses of nodes are input, values and texts are output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.validation import InvalidValue
from autoscaler.planning.combo_names import parse_combo_id
from topics.records import InstanceState, Status

_PHASE_LETTER = {"prefill": "p ", "decode": "d ", "aggregated": ""}


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs in one region that serve one phase of a model.

    All counts are by GPU type. ready: GPUs of ready instances. spot, owned: those of them on spot
    or owned nodes. starting, draining: GPUs of instances that start or drain.
    """

    phase: str
    region: str
    ready: tuple[tuple[str, int], ...] = ()
    spot: int = 0
    owned: int = 0
    starting: tuple[tuple[str, int], ...] = ()
    draining: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        letter = _PHASE_LETTER.get(self.phase, "")
        coming, going = sum(n for _, n in self.starting), sum(n for _, n in self.draining)
        if not self.ready:
            sign, kinds, rest = ("+", self.starting, going) if coming else ("-", self.draining, 0)
            leaving = f" -{rest}" if rest else ""
            return f"{letter}{sign}{_gpus(kinds)} {self.region}{leaving}"
        total = sum(n for _, n in self.ready)
        spot = f", {self.spot} spot" if self.spot else ""
        owned = f", {self.owned} owned" if self.owned else ""
        owned = ", owned" if self.owned == total else owned
        change = (f" +{coming}" if coming else "") + (f" -{going}" if going else "")
        return f"{letter}{_gpus(self.ready)} {self.region}{spot}{owned}{change}"


def _gpus(kinds: Iterable[tuple[str, int]]) -> str:
    return "+".join(f"{count}×{gpu}" for gpu, count in kinds)


def placements(
    statuses: Iterable[Status], pools: Mapping[str, Pool], model: str
) -> tuple[Placement, ...]:
    """The current placements of `model`, most GPUs first. Pools that are not declared are left
    out."""
    found: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for status in statuses:
        pool = pools.get(status.pool)
        if pool is None:
            continue
        for instance in status.instances:
            if instance.model != model:
                continue
            counts = found.setdefault((instance.phase, pool.region), Counter())
            gpus = len(instance.gpus)
            counts[str(instance.state), pool.gpu.name] += gpus
            if instance.state is InstanceState.READY:
                counts[str(pool.market), ""] += gpus
    made = [
        Placement(
            phase,
            region,
            ready=_kinds(counts, InstanceState.READY),
            spot=counts[Market.SPOT, ""],
            owned=counts[Market.OWNED, ""],
            starting=_kinds(counts, InstanceState.STARTING),
            draining=_kinds(counts, InstanceState.DRAINING),
        )
        for (phase, region), counts in found.items()
    ]
    live = [place for place in made if place.ready or place.starting or place.draining]
    return tuple(sorted(live, key=lambda p: (p.phase, -sum(n for _, n in p.ready), p.region)))


def _kinds(counts: Counter[tuple[str, str]], state: str) -> tuple[tuple[str, int], ...]:
    found = [(gpu, n) for (what, gpu), n in counts.items() if what == state and n]
    return tuple(sorted(found, key=lambda kind: (-kind[1], kind[0])))


def where_text(found: Iterable[Placement]) -> str:
    """All of a model's placements; "none" if there are none."""
    return "; ".join(str(place) for place in found) or "none"


def change_text(change: Iterable[tuple[str, int]], pools: Mapping[str, Pool]) -> str:
    """The added and removed instances of a decision: "+2×L40S eu-west, 1 spot; -1×L4 eu-west".

    A name that is not the id of a combo is copied unchanged.
    """
    counts: dict[tuple[int, str, str], Counter[str]] = {}
    others = []
    for combo, count in change:
        try:
            _, members = parse_combo_id(combo)
        except InvalidValue:  # Other writers may use any name.
            others.append(f"{count:+d}×{combo}")
            continue
        for _, gpus, pool_id, each in members:
            pool = pools.get(pool_id)
            sign = 1 if count > 0 else -1
            gpu, region = (pool.gpu.name, pool.region) if pool else (pool_id, "")
            kind = counts.setdefault((sign, gpu, region), Counter())
            kind["all"] += gpus * each * abs(count)
            if pool and pool.market is Market.SPOT:
                kind["spot"] += gpus * each * abs(count)
    parts = []
    for (sign, gpu, region), kind in sorted(counts.items(), key=lambda item: -item[0][0]):
        spot = f", {kind['spot']} spot" if kind["spot"] else ""
        parts.append(f"{'+' if sign > 0 else '-'}{kind['all']}×{gpu} {region}{spot}".strip())
    return "; ".join((*parts, *others))
