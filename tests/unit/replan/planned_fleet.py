"""A fleet in the middle of a tick, for the tests of planner requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoscaler.domain.cluster import Cluster, Market, Policy, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.model.tick_fleet import TickFleet, TickInputs, tick_fleet
from autoscaler.rollout.backoff import Backoff
from autoscaler.rollout.fleet_snapshot import snapshot
from autoscaler.rollout.serving_group import Placed, ServingGroup
from autoscaler.rollout.supply import Supply
from autoscaler.state.controller_state import ControllerState, Observation, Term
from autoscaler.state.model_state import DemandEstimate, ModelState, Target
from tests.unit.decide.decide_catalogue import BUCKET, pool, service, simple
from topics.fleet import InstanceState, ObservedInstance, Status

NOW = 1_700_000_000_000
RENTED = pool(nodes=4)
OWNED = pool("own", nodes=2, market=Market.OWNED)
CHAT, CODE = (simple(model, RENTED)[0] for model in ("chat", "code"))
OWN = simple("chat", OWNED)[0]
"""Combos of one GPU that serve 10 requests/s, of which plans use 8."""


def node(number: int, where: str = "l40s.on-demand") -> str:
    """The name of a node of `RENTED`, or of the pool `where`."""
    return f"us.{where}.{number}"


def group(combo: Combo, serial: int, on: str, age_s: float = 3600.0) -> ServingGroup:
    """A group with one instance per member, assigned `age_s` ago."""
    name = f"{combo.id}:{serial}"
    placed = tuple(
        Placed(f"i-{combo.model}-{serial}-{k}", member.phase, on, member.pool, ((serial + k) % 4,))
        for k, member in enumerate(combo.members)
    )
    return ServingGroup(name, combo.model, combo.id, "", placed, NOW - int(age_s * 1000))


@dataclass
class Fleet:
    """rates: targets in requests/s. groups: report as ready, except those of `starting`, and those
    on `silent` nodes, which do not report. known: demand for which the planner evaluated combos."""

    groups: tuple[ServingGroup, ...] = ()
    rates: Mapping[str, float] = field(default_factory=lambda: {"chat": 8.0, "code": 8.0})
    services: tuple[Service, ...] = (service("chat"), service("code"))
    policy: Policy = field(default_factory=Policy)
    starting: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    reclaimed: frozenset[str] = frozenset()
    frozen: Mapping[str, Reason] = field(default_factory=dict)
    backoff: Mapping[str, Backoff] = field(default_factory=dict)
    supply: Supply = field(default_factory=Supply)
    demand: Mapping[str, ModelDemand] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluated: Mapping[str, Demand] | None = None
    combos: tuple[Combo, ...] = (CHAT, CODE, OWN)

    def build(self) -> TickFleet:
        """The fleet with its views."""
        cluster = Cluster((RENTED, OWNED), self.services, self.policy)
        models = {
            s.model: replace(
                ModelState(DemandEstimate(BUCKET), Target(self.rates[s.model])),
                **self.changes.get(s.model, {}),
            )
            for s in self.services
        }
        evaluated = self.evaluated
        if evaluated is None:
            evaluated = {m: Demand(m, rate, BUCKET, 1.0, ()) for m, rate in self.rates.items()}
        combos = {combo.id: combo for combo in self.combos}
        statuses = self._statuses()
        inputs = TickInputs(
            NOW,
            ControllerState(Term(NOW - 7_200_000), models=models),
            Observation(statuses=statuses, demand=self.demand),
            cluster,
            cluster,
            combos,
            evaluated,
            self.supply,
            self.backoff,
            self.frozen,
        )
        sight = snapshot(self.groups, statuses, combos, cluster, NOW, 0)
        return tick_fleet(inputs, self.groups, models, sight)

    def _statuses(self) -> dict[str, Status]:
        found: dict[str, Status] = {}
        for nodes in {placed.node: placed.pool for g in self.groups for placed in g.placed}.items():
            on, where = nodes
            seen = tuple(
                ObservedInstance(
                    placed.instance,
                    g.model,
                    placed.phase,
                    g.name,
                    InstanceState.STARTING if g.name in self.starting else InstanceState.READY,
                    placed.gpus,
                    endpoint="127.0.0.1:9000",
                )
                for g in self.groups
                for placed in g.placed
                if placed.node == on
            )
            at_ms = NOW - (60_000 if on in self.silent else 1000)
            reclaim_ms = NOW + 60_000 if on in self.reclaimed else 0
            found[on] = Status(on, where, "x", 1, at_ms, seen, reclaim_ms=reclaim_ms)
        return found
