"""Combos as people read them, from their names alone.

Owns the words. Knows no rates and no prices: a name is enough.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.checks import InvalidValue
from autoscaler.planning.combo_names import parse_combo_id

_PHASES = {"prefill": " prefill", "decode": " decode", "aggregated": ""}


def combo_words(combo_id: str) -> str:
    """E.g. "2xl40s us-east spot", "4xh100 us owned prefill + 2 of 4xh100 us owned decode"; the name
    itself where it is none of ours."""
    try:
        _, members = parse_combo_id(combo_id)
    except InvalidValue:
        return combo_id
    parts = []
    for phase, gpus, pool, count in members:
        region, name, market = pool.split("/")
        several = f"{count} of " if count > 1 else ""
        parts.append(f"{several}{gpus}x{name} {region} {market}{_PHASES[phase.value]}")
    return " + ".join(parts)


def change_words(change: Iterable[tuple[str, int]]) -> str:
    """E.g. "+1 2xl40s us-east spot, -2 1xl4 eu-west on-demand"; empty for no change."""
    return ", ".join(f"{count:+d} {combo_words(combo)}" for combo, count in change)
