"""Planned and actual routes of requests by kind, over a whole run.

Plans change during a run, so each second of telemetry is compared with the routes that were in
force in that second. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoscaler.rollout.serving_group import combo_id_of, serial_of
from autoscaler.serving.component_paths import planned_shares
from topics.records import Routes, Telemetry
from topics.scoring import ALL_REQUESTS

_MOST_ROUTES = 1000


@dataclass(frozen=True, slots=True)
class WayRow:
    """One route of one kind of a model's requests. planned, served: shares of the kind's
    requests."""

    model: str
    kind: str
    way: str
    requests: int
    planned: float
    served: float


class WaysSeen:
    """Collects routes and telemetry, in any order."""

    def __init__(self) -> None:
        self._planned: dict[tuple[str, int], Mapping[str, Mapping[str, float]]] = {}
        self._sent: dict[tuple[str, int], dict[str, Counter[str]]] = {}

    def plan(self, routes: Routes) -> None:
        """Add one record of planned routes."""
        key = routes.model, routes.generation
        self._planned[key] = shares_of(routes)
        if len(self._planned) > _MOST_ROUTES:
            del self._planned[next(iter(self._planned))]

    def add(self, record: Telemetry) -> None:
        """Add the requests that a gateway sent in a second (each record once)."""
        if record.sent:
            sent = self._sent.setdefault((record.model, record.route_generation), {})
            for kind, ways in record.sent.items():
                sent.setdefault(kind, Counter()).update(ways)

    def rows(self) -> list[WayRow]:
        """Every route that was planned or used, by model and kind."""
        expected: dict[tuple[str, str], Counter[str]] = {}
        served: dict[tuple[str, str], Counter[str]] = {}
        for (model, generation), kinds in self._sent.items():
            planned = self._planned.get((model, generation), {})
            for kind, ways in kinds.items():
                shares = planned.get(kind)
                if not shares:
                    continue  # The routes of this kind are unknown, so no planned shares exist.
                total = sum(ways.values())
                went = served.setdefault((model, kind), Counter())
                for way, count in ways.items():
                    went[_of(way)] += count
                due = expected.setdefault((model, kind), Counter())
                for way, share in shares.items():
                    due[_of(way)] += share * total  # type: ignore[assignment]
        return list(_rows(expected, served))


def _of(way: str) -> str:
    """The name of a route without the number of its copy, because all copies of a combo are one
    route.
    """
    return combo_id_of(way) if serial_of(way) else way


def shares_of(routes: Routes) -> Mapping[str, Mapping[str, float]]:
    """Planned share by kind and route.

    Routes are paths of a model of components, groups of workload types, or the models of a service.
    """
    found: dict[str, Mapping[str, float]] = dict(planned_shares(routes.groups))
    if routes.split is not None:
        found[ALL_REQUESTS] = dict(zip(routes.split.models, routes.split.shares, strict=False))
    for kind in routes.types:
        total = sum(kind.shares)
        if total > 0.0:
            groups = zip(routes.groups, kind.shares, strict=True)
            found[kind.name] = {g.group: share / total for g, share in groups if share > 0.0}
    return found


def _rows(
    expected: Mapping[tuple[str, str], Counter[str]], served: Mapping[tuple[str, str], Counter[str]]
) -> Iterator[WayRow]:
    for (model, kind), ways in sorted(served.items()):
        due = expected[model, kind]
        total = sum(ways.values())
        for way in sorted(set(ways) | set(due), key=lambda name: (-due[name], name)):
            yield WayRow(model, kind, way, ways[way], due[way] / total, ways[way] / total)
