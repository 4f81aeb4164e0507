"""What can be had and at which price.

Owns the meaning of these records. Knows nothing of JSON, topic names or what anyone does with them.
Times ending in `_ms` since the epoch are domain time (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks


@dataclass(frozen=True, slots=True)
class Availability:
    """How many nodes of a pool can be had. pool: "region/name/market".

    observed_ms: tells one reading from another; how old it is, the broker's append time says.
    """

    pool: str
    nodes: int
    observed_ms: int

    def __post_init__(self) -> None:
        checks.name("pool", self.pool)
        checks.count("nodes", self.nodes, 1_000_000)
        checks.time_ms("observed_ms", self.observed_ms)


@dataclass(frozen=True, slots=True)
class Price:
    """What a node of a pool costs. pool: "region/name/market". observed_ms: as above."""

    pool: str
    usd_per_node_h: float
    observed_ms: int

    def __post_init__(self) -> None:
        checks.name("pool", self.pool)
        checks.number("usd_per_node_h", self.usd_per_node_h, 0.0, 100_000.0)
        checks.time_ms("observed_ms", self.observed_ms)
