"""Supply records: available nodes and prices of pools.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks


@dataclass(frozen=True, slots=True)
class Availability:
    """The number of available nodes of a pool. pool: As "region/name/market".

    observed_ms: Time of the observation, which only identifies it. Its age is computed from the
    broker's append time.
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
    """The price of a node of a pool.

    pool, observed_ms: As in `Availability`.
    """

    pool: str
    usd_per_node_h: float
    observed_ms: int

    def __post_init__(self) -> None:
        checks.name("pool", self.pool)
        checks.number("usd_per_node_h", self.usd_per_node_h, 0.0, 100_000.0)
        checks.time_ms("observed_ms", self.observed_ms)
