"""The one context of a tick: its constant inputs, and the fleet with its views at one moment.

Each step of a tick takes a `TickFleet` and returns what it changed; `changed` then builds the fleet
of the next step, with new views only for the models that changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Phase
from autoscaler.estimate.engine_rate import engine_rates
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.estimate.queue_model import queue_drains
from autoscaler.model.unmanaged_servers import unmanaged_counts
from autoscaler.rollout.backoff import Backoff
from autoscaler.rollout.capacity_and_cost import by_model, raw_req_per_s
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.supply import Supply
from autoscaler.rollout.versions import Version, declared_version
from autoscaler.state.controller_state import ControllerState, Observation
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView, ObservedServing
from autoscaler.state.quality_state import RoutedTraffic


@dataclass(frozen=True, slots=True)
class TickInputs:
    """Values that stay the same during a tick.

    state: before the tick. declared: the present declaration; cluster: the same with the present
    prices. combos: as the planner last evaluated them, for the demand `evaluated_at`. supply: known
    prices and offers. backoff: pools and nodes on which launches failed. frozen: by model, the
    reason why nothing may be removed. routed: by model, its traffic through a service that routes
    to several models. retained_models: models that are no longer declared, with groups that Shoal
    may not change.
    """

    now_ms: int
    state: ControllerState
    observation: Observation
    declared: Cluster
    cluster: Cluster
    combos: Mapping[str, Combo] = field(default_factory=dict)
    evaluated_at: Mapping[str, Demand] = field(default_factory=dict)
    supply: Supply = field(default_factory=Supply)
    backoff: Mapping[str, Backoff] = field(default_factory=dict)
    frozen: Mapping[str, Reason] = field(default_factory=dict)
    routed: Mapping[str, RoutedTraffic] = field(default_factory=dict)
    retained_models: frozenset[str] = frozenset()
    managed: frozenset[str] = field(init=False)
    """Models whose instances Shoal may change, at once or after an approval."""

    def __post_init__(self) -> None:
        managed = frozenset(one.model for one in self.declared.services if one.managed)
        object.__setattr__(self, "managed", managed)


@dataclass(frozen=True, slots=True)
class TickFleet:
    """The fleet at one moment of a tick. groups: of all models; models: their states; views: one of
    each declared model; sight: the observed groups and nodes."""

    inputs: TickInputs
    groups: tuple[ServingGroup, ...]
    models: Mapping[str, ModelState]
    views: Mapping[str, ModelView]
    sight: FleetSnapshot
    now_ms: int = field(init=False)
    cluster: Cluster = field(init=False)
    """The declaration with the present prices."""
    combos: Mapping[str, Combo] = field(init=False)
    """Combos as the planner last evaluated them, by id."""
    managed: frozenset[str] = field(init=False)
    """Models whose instances Shoal may change, at once or after an approval."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "managed", self.inputs.managed)
        object.__setattr__(self, "now_ms", self.inputs.now_ms)
        object.__setattr__(self, "cluster", self.inputs.cluster)
        object.__setattr__(self, "combos", self.inputs.combos)

    def launch_version(self, model: str) -> Version:
        """The version of launches that a plan for `model` requests."""
        view = self.views[model]
        declared = declared_version(view.service)
        return view.state.rollout.for_launches(declared, view.groups > 0)

    def with_states(self, models: Mapping[str, ModelState]) -> TickFleet:
        """This fleet with the states `models`. Capacity stays the same."""
        views = {
            model: view if view.state is models[model] else replace(view, state=models[model])
            for model, view in self.views.items()
        }
        return replace(self, models=models, views=views)

    def changed(
        self,
        groups: tuple[ServingGroup, ...],
        models: Mapping[str, ModelState],
        sight: FleetSnapshot,
    ) -> TickFleet:
        """The fleet after a step, with new views for the models whose groups or states changed."""
        unchanged = all(view.state is models[model] for model, view in self.views.items())
        if groups is self.groups and unchanged:
            return replace(self, models=models, sight=sight)
        old = {group.name: group for group in self.groups}
        touched = {group.model for group in groups if old.pop(group.name, None) is not group}
        touched |= {group.model for group in old.values()}
        touched |= {m for m, view in self.views.items() if view.state is not models[m]}
        of = by_model([group for group in groups if group.model in touched])
        views = {
            model: _view(self.inputs, view.service, models[model], of.get(model, []), sight)
            if model in touched
            else view
            for model, view in self.views.items()
        }
        return TickFleet(self.inputs, groups, models, views, sight)


def tick_fleet(
    inputs: TickInputs,
    groups: tuple[ServingGroup, ...],
    models: Mapping[str, ModelState],
    sight: FleetSnapshot,
) -> TickFleet:
    """The fleet at the start of a tick."""
    of = by_model(groups)
    views = {
        service.model: _view(
            inputs, service, models[service.model], of.get(service.model, []), sight
        )
        for service in inputs.cluster.services
    }
    return TickFleet(inputs, groups, models, views, sight)


def _view(
    inputs: TickInputs,
    service: Service,
    state: ModelState,
    groups: list[ServingGroup],
    sight: FleetSnapshot,
) -> ModelView:
    combos = inputs.combos
    counting = sight.counting(groups)
    managed = service.model in inputs.managed
    if managed:
        count, raw = len(counting), raw_req_per_s(counting, combos)
        proposal = state.advisory.proposal
        if proposal is not None and not proposal.rejected:
            # An open proposal counts as approved, so that the planner plans only what it does not
            # cover.
            change = [(i, n) for i, n in proposal.change if i in combos]
            count += sum(n for _, n in change)
            raw += sum(combos[i].req_per_s * n for i, n in change)
    else:
        count = sum(n for _, n in state.advisory.recommended)
        raw = sum(combos[i].req_per_s * n for i, n in state.advisory.recommended if i in combos)
    ready = [g for g in counting if sight.views[g.name].all_ready]
    theirs = {} if managed else unmanaged_counts(service, state)
    settled = len(ready) == len(counting)
    instances = sight.fleet.instances
    held = sum(
        instances[p.instance].in_flight for g in groups for p in g.placed if p.instance in instances
    )
    routes = inputs.state.published.routes.get(service.model)
    demand = inputs.observation.demand.get(service.model, UNKNOWN_DEMAND)
    since_ms = _settled_ms(state, settled, demand.in_flight, inputs.now_ms)
    moments = state.estimate.moments
    doubted = demand.counted_by_engines or any(then.groups for then in moments)
    counts = sight.accepted(groups) if doubted else {}
    rated = {
        group.name: combos[group.combo_id].req_per_s
        for group in groups
        if group.name in counts and group.combo_id in combos
    }
    accepting = {
        group.name: sum(placed.phase is not Phase.PREFILL for placed in group.placed)
        for group in groups
        if group.name in counts
    }
    view = ModelView(
        serving=ObservedServing(
            ready=(
                *(combos[g.combo_id] for g in ready if g.combo_id in combos),
                *(combos[i] for i, n in theirs.items() if i in combos for _ in range(n)),
            ),
            nothing_starting=settled,
            requests_in_engines=held,
            group_counts=counts,
            engine_rates=engine_rates(moments, inputs.now_ms, counts, rated, accepting)
            if counts
            else (),
            route_generation=routes.generation if routes else 0,
            counting=counting,
        ),
        service=service,
        policy=inputs.cluster.policy,
        now_ms=inputs.now_ms,
        started_ms=inputs.state.term.started_ms,
        state=replace(state, capacity=replace(state.capacity, settled_ms=since_ms))
        if since_ms != state.capacity.settled_ms
        else state,
        demand=demand,
        groups=count,
        raw_req_per_s=raw,
        frozen=inputs.frozen.get(service.model),
        routed=inputs.routed.get(service.model),
    )
    if not state.capacity.lost_ms or not view.covers or count < service.min_instances:
        return view
    if any(group.counts and sight.views[group.name].lost for group in groups):
        return view
    capacity = replace(view.state.capacity, lost_ms=0, lost_nodes=())
    return replace(view, state=replace(view.state, capacity=capacity))


def _settled_ms(state: ModelState, all_ready: bool, in_flight: int, now_ms: int) -> int:
    """Time since which all planned instances are ready and the queue of no shortage drains. While
    such a queue is served, requests miss their SLO although the capacity is as planned."""
    if not all_ready:
        return 0
    moments, since_ms = state.estimate.moments, state.capacity.settled_ms or now_ms
    if queue_drains(moments, in_flight):
        return max(since_ms, moments[-1].at_ms)  # changes only every few seconds
    return since_ms
