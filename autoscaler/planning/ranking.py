"""Ranking of candidate combos: dominance, one direction per GPU pair, and the best few.

The filters and orders of Cauchy sec. 3.3.1 ("Pareto filtering", "candidate ranking"), per region
and set of markets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Market
from autoscaler.planning.instance_options import InstanceOption


@dataclass(frozen=True, slots=True)
class CandidateCombo:
    """A candidate with the figures by which it is ranked.

    options: instance options with their counts. group: its region and set of markets. gpus: by
    pool. usd_per_h: price of the rented GPUs; owned GPUs cost 0.
    """

    id: str
    options: tuple[tuple[int, InstanceOption], ...]
    group: tuple[str, frozenset[Market]]
    gpu_pair: frozenset[str]
    gpus: Mapping[str, int]
    req_per_s: float
    usd_per_h: float
    tokens_per_usd: float
    usd_per_req: float


def best_per_group(offers: list[CandidateCombo], keep: int) -> list[CandidateCombo]:
    """For each region and set of markets: one direction per GPU pair, then the best few candidates
    by three rankings."""
    groups: dict[tuple[str, frozenset[Market]], list[CandidateCombo]] = {}
    for offer in _one_direction(offers):
        groups.setdefault(offer.group, []).append(offer)
    kept: dict[str, CandidateCombo] = {}
    for offered in groups.values():
        members = _undominated(offered)
        aggregated = [offer for offer in members if len(offer.options) == 1]
        pairs = [offer for offer in members if len(offer.options) > 1]
        for part in (aggregated, pairs):
            for order in (_by_efficiency, _by_price_of_a_request, _by_size):
                for offer in sorted(part, key=order)[:keep]:
                    kept[offer.id] = offer
    return sorted(kept.values(), key=_by_efficiency)


def _undominated(offers: list[CandidateCombo]) -> list[CandidateCombo]:
    """The candidates of one group that no other candidate dominates. A dominating candidate uses no
    more GPUs of any pool and has at least the same rate.

    Slices pack without gaps, so the resources of a combo are its GPUs per pool.
    """
    kept: list[CandidateCombo] = []
    # In this order, a dominating candidate comes before the candidates that it dominates.
    for offer in sorted(offers, key=lambda o: (-o.req_per_s, sum(o.gpus.values()), o.id)):
        mine = offer.gpus
        beaten = any(
            all(gpus <= mine.get(pool, 0) for pool, gpus in other.gpus.items()) for other in kept
        )
        if not beaten:
            kept.append(offer)
    return kept


def _one_direction(offers: list[CandidateCombo]) -> list[CandidateCombo]:
    """Cauchy's Pareto filter: of the two directions "A prefills for B" and "B prefills for A", the
    more cost-efficient one remains."""
    best: dict[object, tuple[float, str]] = {}
    for offer in offers:
        key = (offer.group, offer.gpu_pair)
        order = (offer.tokens_per_usd, _direction(offer))
        if len(offer.gpu_pair) > 1 and (key not in best or order > best[key]):
            best[key] = order
    return [
        offer
        for offer in offers
        if len(offer.gpu_pair) == 1 or best[(offer.group, offer.gpu_pair)][1] == _direction(offer)
    ]


def _direction(offer: CandidateCombo) -> str:
    return offer.options[0][1].nodes[0][0].id


def _by_efficiency(offer: CandidateCombo) -> tuple[float, str]:
    return -offer.tokens_per_usd, offer.id


def _by_price_of_a_request(offer: CandidateCombo) -> tuple[float, str]:
    return offer.usd_per_req, offer.id


def _by_size(offer: CandidateCombo) -> tuple[float, str]:
    return offer.usd_per_h, offer.id
