"""Request classes with their own traffic shares: finds the class of a request, and the group for
it. Smooth weighted round robin keeps the planned shares: after any number of requests, each group
is within one request of its share. A full group is skipped and gets the skipped requests later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from topics.request_shapes import nearest_kind
from topics.routing import Routes

MOST_OWED = 64.0
"""Largest number of skipped requests of one class that a group gets later."""


@dataclass(slots=True)
class ClassShares:
    """The classes of one model.

    shares: class -> group -> share of the class's requests (above 0, sum 1). Requests of a class
    without shares are routed as in a model without classes.
    """

    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    _names: tuple[str, ...] = ()
    _lengths: tuple[tuple[float, float], ...] = ()
    _owed: dict[str, dict[str, float]] = field(default_factory=dict)

    def with_routes(self, routes: Routes) -> ClassShares:
        """The classes of `routes`. A group that was in use before keeps its surplus or deficit of
        requests."""
        shares = {}
        for kind in routes.types:
            total = sum(kind.shares)
            if total > 0.0:
                shares[kind.name] = {
                    group.group: share / total
                    for group, share in zip(routes.groups, kind.shares, strict=True)
                    if share > 0.0
                }
        return self.with_shares(
            shares,
            tuple(kind.name for kind in routes.types),
            tuple((kind.input_tokens, kind.output_tokens) for kind in routes.types),
        )

    def with_shares(
        self,
        shares: Mapping[str, Mapping[str, float]],
        names: tuple[str, ...] = (),
        lengths: tuple[tuple[float, float], ...] = (),
    ) -> ClassShares:
        """Classes with `shares` among groups or other named targets. A target that was in use
        before keeps its surplus or deficit of requests."""
        owed = {
            kind: {way: known for way, known in self._owed.get(kind, {}).items() if way in of}
            for kind, of in shares.items()
        }
        return ClassShares(shares, names, lengths, owed)

    def class_of(self, input_tokens: float, output_tokens: float) -> str:
        """The class of a request with these lengths; "" if there are no classes."""
        if not self._names:
            return ""
        return self._names[nearest_kind(self._lengths, input_tokens, output_tokens)]

    def next_group(self, kind: str, serving: Collection[str], free: Collection[str]) -> str:
        """The group for the next request of class `kind`.

        serving: groups that serve now. free: serving groups with room. At least one group of
        `serving` or `free` has a share of the class.
        """
        owed, best, most, total = self._owed[kind], "", -float("inf"), 0.0
        for group, share in self.shares[kind].items():
            if group not in serving:
                continue
            total += share
            now = owed[group] = min(MOST_OWED, owed.get(group, 0.0) + share)
            if group in free and now > most:
                best, most = group, now
        owed[best] -= total
        return best
