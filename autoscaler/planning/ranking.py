"""Which candidate combos are worth keeping: dominance, one direction per GPU pair, the best few.

Owns the filters and orders of Cauchy sec. 3.3.1 ("Pareto filtering", "candidate ranking"), per
region and markets. Knows nothing of how offers were made.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Phase


@dataclass(frozen=True, slots=True)
class Offer:
    """A combo with what it is ranked by. group: its region and markets."""

    combo: Combo
    group: tuple[str, frozenset[Market]]
    gpu_pair: frozenset[str]
    tokens_per_usd: float
    usd_per_req: float


def best_of_groups(offers: list[Offer], keep: int) -> tuple[Combo, ...]:
    """Per region and markets: one direction per GPU pair, then the best few by three orders."""
    groups: dict[tuple[str, frozenset[Market]], list[Offer]] = {}
    for offer in _one_direction(offers):
        groups.setdefault(offer.group, []).append(offer)
    kept: dict[str, Offer] = {}
    for offered in groups.values():
        members = _undominated(offered)
        aggregated = [o for o in members if o.combo.members[0].phase is Phase.AGGREGATED]
        pairs = [o for o in members if o.combo.members[0].phase is not Phase.AGGREGATED]
        for part in (aggregated, pairs):
            for order in (_by_efficiency, _by_price_of_a_request, _by_size):
                for offer in sorted(part, key=order)[:keep]:
                    kept[offer.combo.id] = offer
    return tuple(offer.combo for offer in sorted(kept.values(), key=_by_efficiency))


def _undominated(offers: list[Offer]) -> list[Offer]:
    """Offers of one region and market that no other beats: no more GPUs of any pool, no less rate.

    Slices pack without a rest, so GPUs per pool are all that a combo takes.
    """
    taken = {offer.combo.id: offer.combo.gpus_by_pool() for offer in offers}
    kept: list[Offer] = []
    # Only what has no less rate and no more GPUs can beat: in this order that came before.
    for offer in sorted(
        offers, key=lambda o: (-o.combo.req_per_s, sum(taken[o.combo.id].values()), o.combo.id)
    ):
        mine = taken[offer.combo.id]
        beaten = any(
            all(gpus <= mine.get(pool, 0) for pool, gpus in taken[other.combo.id].items())
            for other in kept
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
    return offer.combo.members[0].pool


def _by_efficiency(offer: Offer) -> tuple[float, str]:
    return -offer.tokens_per_usd, offer.combo.id


def _by_price_of_a_request(offer: Offer) -> tuple[float, str]:
    return offer.usd_per_req, offer.combo.id


def _by_size(offer: Offer) -> tuple[float, str]:
    return offer.combo.usd_per_h, offer.combo.id
