"""Kinds of requests that go different ways: which kind a request is, and whose turn it is.

Owns the planned shares of each kind over the groups, and how they are kept: by smooth weighted
round robin and not by lot, so that after any number of requests each group has what it is due,
give or take one. A group that is full lets others go ahead and is owed those requests. Knows
nothing of instances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from topics.request_shapes import nearest
from topics.routing import Routes

MOST_OWED = 64.0
"""Requests of one kind that a group which was full may catch up on."""


@dataclass(slots=True)
class Ways:
    """Of one model. shares: of each kind, group -> share of its requests, those above 0 only;
    they sum to 1. A kind that is not named goes as all requests do."""

    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    _names: tuple[str, ...] = ()
    _lengths: tuple[tuple[float, float], ...] = ()
    _owed: dict[str, dict[str, float]] = field(default_factory=dict)

    def changed(self, routes: Routes) -> Ways:
        """The ways of `routes`. What groups that stay are owed is remembered."""
        shares = {}
        for kind in routes.types:
            total = sum(kind.shares)
            if total > 0.0:
                shares[kind.name] = {
                    group.group: share / total
                    for group, share in zip(routes.groups, kind.shares, strict=True)
                    if share > 0.0
                }
        return self.shared(
            shares,
            tuple(kind.name for kind in routes.types),
            tuple((kind.input_tokens, kind.output_tokens) for kind in routes.types),
        )

    def shared(
        self,
        shares: Mapping[str, Mapping[str, float]],
        names: tuple[str, ...] = (),
        lengths: tuple[tuple[float, float], ...] = (),
    ) -> Ways:
        """Ways with these shares, over groups or whatever else has names. What those that stay are
        owed is remembered."""
        owed = {
            kind: {way: known for way, known in self._owed.get(kind, {}).items() if way in of}
            for kind, of in shares.items()
        }
        return Ways(shares, names, lengths, owed)

    def kind_of(self, input_tokens: float, output_tokens: float) -> str:
        """Which kind a request of these lengths is; "" where there are no kinds."""
        if not self._names:
            return ""
        return self._names[nearest(self._lengths, input_tokens, output_tokens)]

    def next(self, kind: str, serving: Collection[str], free: Collection[str]) -> str:
        """The group that the next request of `kind` goes to.

        serving: the groups that serve now; free: those of them with room (at least one of either
        has a share of the kind).
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
