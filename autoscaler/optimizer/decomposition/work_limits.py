"""Work limits of a search by decomposition, and counters of its work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from autoscaler.optimizer.result import Limits

GROUPS = 24
"""Up to this number of groups, the work limits keep their base values."""
_KEPT_S = 0.2
_KEPT = 0.02
_TESTS_PER_S = 20_000_000


@dataclass(frozen=True, slots=True)
class SearchLimits(Limits):
    """Limits of a search, in addition to those of one MIP.

    `rounds` (neighbourhoods), `mip_columns` (over all MIPs) and `search_tests` (of one enumeration)
    are work limits, which keep the answer reproducible. `rounds` and `mip_columns` apply to up to
    `GROUPS` groups and grow with the square of the number of groups above that, like the number of
    pairs of groups. `mip_nodes`: node limit of one MIP.
    """

    mip_nodes: int = 200
    rounds: int = 80
    mip_columns: int = 30_000
    search_tests: int = 20_000_000
    seed: int = 0

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """Limits with the gap and clock of `limits` and the work limits of a decomposition."""
        return cls(limits.gap, limits.time_limit_s, limits.elapsed_s, on_step=limits.on_step)

    def out_of_time(self) -> bool:
        """Whether the search must stop, because the remaining time is needed to check the
        answer."""
        return self.search_s() < 0.0

    def search_s(self) -> float:
        """Seconds left for the search. The rest of the time is needed to check the answer, and
        because a MIP may end some time after its own limit."""
        kept_s = max(min(_KEPT_S, 0.1 * self.time_limit_s), _KEPT * self.time_limit_s)
        return self.left_s() - kept_s

    def tests(self, most: int) -> int:
        """The number of item tests of one enumeration: at most `most`, less if the time is
        short."""
        left_s = self.left_s()
        if left_s * _TESTS_PER_S >= most:
            return most
        return max(1000, int(max(0.0, left_s) * _TESTS_PER_S))

    def for_groups(self, groups: int) -> Self:
        """These limits, with work limits scaled to `groups` groups."""
        scale = max(1.0, groups / GROUPS)
        return replace(
            self, rounds=int(scale**2 * self.rounds), mip_columns=int(scale**2 * self.mip_columns)
        )


@dataclass(frozen=True, slots=True)
class Work:
    """The work done by a search, in units that do not depend on the machine."""

    pricing_rounds: int = 0
    search_tests: int = 0
    mips: int = 0
    mip_columns: int = 0
    mip_nodes: int = 0
    neighbourhoods: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.pricing_rounds + other.pricing_rounds,
            self.search_tests + other.search_tests,
            self.mips + other.mips,
            self.mip_columns + other.mip_columns,
            self.mip_nodes + other.mip_nodes,
            self.neighbourhoods + other.neighbourhoods,
        )
