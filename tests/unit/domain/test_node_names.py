"""The cache of node names."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.node_names import node_ids
from tests.unit.decide.decide_catalogue import pool


def test_node_names_are_cached_whatever_the_price() -> None:
    """The cache ignores prices. They change often, and each change would add a thousand names."""
    cheap = pool("h100", nodes=1000, usd=8.0)
    names = node_ids(cheap)
    assert node_ids(replace(cheap, price_usd_per_h=9.0)) is names
    assert (names[7], len(names)) == ("us.h100.on-demand.7", 1000)
    assert node_ids(replace(cheap, max_nodes=2)) == names[:2]
