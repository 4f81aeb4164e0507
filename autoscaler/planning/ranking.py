"""Which candidate combos are worth keeping: dominance, one direction per GPU pair, the best few.

Owns the filters and orders of Cauchy sec. 3.3.1 ("Pareto filtering", "candidate ranking"), per
region and markets. Knows nothing of how offers were made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Market
from autoscaler.planning.instance_options import Part


@dataclass(frozen=True, slots=True)
class Offer:
    """So many of each of some parts, as the combo `id`, with what it is ranked by.

    group: its region and markets. gpus: that it takes, by pool. usd_per_h: with owned GPUs at 0.
    """

    id: str
    parts: tuple[tuple[int, Part], ...]
    group: tuple[str, frozenset[Market]]
    gpu_pair: frozenset[str]
    gpus: Mapping[str, int]
    req_per_s: float
    usd_per_h: float
    tokens_per_usd: float
    usd_per_req: float


def best_of_groups(offers: list[Offer], keep: int) -> list[Offer]:
    """Per region and markets: one direction per GPU pair, then the best few by three orders."""
    groups: dict[tuple[str, frozenset[Market]], list[Offer]] = {}
    for offer in _one_direction(offers):
        groups.setdefault(offer.group, []).append(offer)
    kept: dict[str, Offer] = {}
    for offered in groups.values():
        members = _undominated(offered)
        aggregated = [offer for offer in members if len(offer.parts) == 1]
        pairs = [offer for offer in members if len(offer.parts) > 1]
        for part in (aggregated, pairs):
            for order in (_by_efficiency, _by_price_of_a_request, _by_size):
                for offer in sorted(part, key=order)[:keep]:
                    kept[offer.id] = offer
    return sorted(kept.values(), key=_by_efficiency)


def _undominated(offers: list[Offer]) -> list[Offer]:
    """Offers of one region and market that no other beats: no more GPUs of any pool, no less rate.

    Slices pack without a rest, so GPUs per pool are all that a combo takes.
    """
    kept: list[Offer] = []
    # Only what has no less rate and no more GPUs can beat: in this order that came before.
    for offer in sorted(offers, key=lambda o: (-o.req_per_s, sum(o.gpus.values()), o.id)):
        mine = offer.gpus
        beaten = any(
            all(gpus <= mine.get(pool, 0) for pool, gpus in other.gpus.items()) for other in kept
        )
        if not beaten:
            kept.append(offer)
    return kept


def _one_direction(offers: list[Offer]) -> list[Offer]:
    """Cauchy's Pareto filter: of A prefills for B and B prefills for A the better one stays."""
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


def _direction(offer: Offer) -> str:
    return offer.parts[0][1].nodes[0][0].id


def _by_efficiency(offer: Offer) -> tuple[float, str]:
    return -offer.tokens_per_usd, offer.id


def _by_price_of_a_request(offer: Offer) -> tuple[float, str]:
    return offer.usd_per_req, offer.id


def _by_size(offer: Offer) -> tuple[float, str]:
    return offer.usd_per_h, offer.id
