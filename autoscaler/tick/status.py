"""The status of every model after a tick, for people and dashboards.

An unknown number is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Market, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.condition_level import Level, level
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND, ModelDemand
from autoscaler.estimate.windows import NoData, Stats, WindowStats
from autoscaler.explain.condition_texts import remedy
from autoscaler.explain.quantity_texts import kv_cache_text
from autoscaler.explain.reason_texts import text, texts
from autoscaler.model.unmanaged_servers import is_uncounted, unmanaged_counts
from autoscaler.planning.capacity_provenance import kv_cache, with_measured_rooms
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.combo_usage import is_spot
from autoscaler.planning.planning_problem import with_prices
from autoscaler.rollout.capacity_and_cost import billed_usd_per_h, by_model
from autoscaler.rollout.fleet_snapshot import FleetSnapshot, snapshot
from autoscaler.rollout.serving_group import Life, ServingGroup, ready_req_per_s
from autoscaler.sizing.prediction_drift import uncertainty
from autoscaler.state.controller_state import ControllerState, Observation
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import RATE_EPSILON
from autoscaler.tick.launch_templates import with_templates
from autoscaler.tick.rollout_status import RolloutStatus, rollout_status
from autoscaler.tick.verdict import Standing, conditions
from topics.lora_adapters import requests_by_adapter
from topics.reason_codes import ReasonCode
from topics.topic_table import STATUS

_MOST_SHOWN = 3
"""Number of conditions in the text of a model."""
Desired = tuple[str, str, str, int]
"""(region, pool, role, target number of instances)."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """Status of one model.

    mode: as declared. held: why Shoal does not change the model, "" if it may. The fields held,
    target_why, word, remedy and uncertain are text for people. demand_req_per_s: rate in the local
    window. target_req_per_s, target_why: planned demand and its evidence. wanted_req_per_s,
    ready_req_per_s: raw capacity of planned and of ready combos. ready, wanted: number of combos.
    unmanaged: servers that Shoal did not start, None = unknown; they count as ready if Shoal may
    not change the model. desired: instances by pool and role. p95 latencies in ms, and `attained`
    (share of requests): values of the local and the long window. attained_now: the same share in
    the local window. tokens_per_s: tokens read and written in the local window. telemetry_age_s:
    age of the newest reported second. usd_per_h: price of the GPUs of all groups, including
    starting and draining groups but not groups whose nodes are all lost. ended: requests of the
    long window that were answered, failed or refused. proposal: number of the decision that waits
    for approval, 0 for none. is_held: whether an operator paused or released the model. planned:
    whether a plan was made since the start. level, conditions: the verdict and the codes of the
    conditions from which it follows, most urgent first. word, remedy: the conditions as text, and
    what a person does about them. uncertain: measurements that differ much from their predictions,
    "" if none. adapters_req_per_s: demand of the local window by LoRA adapter, for all declared
    adapters; it is part of demand_req_per_s. capacity_factor: measured / planned capacity of
    instances, see `Capacity.derate`. prefix_hit: share of prompt tokens from prefix caches that
    plans count on; prefix_hit_measured: the same in the local window, None without data.
    spot_share: part of wanted_req_per_s on spot nodes; over_spot_limit: whether that part is larger
    than the model allows. kv_cache: KV cache of the planned slices as text, each as measured at a
    start or predicted, "" if there is none. pooling: whether the SLO limits only the whole answer,
    whose latency stands in the TTFT fields. rollout: progress of a rollout, or the version that was
    taken back; None without either.
    """

    model: str
    mode: str
    held: str
    demand_req_per_s: float | None
    target_req_per_s: float
    target_why: str
    wanted_req_per_s: float
    ready_req_per_s: float
    ready: int
    wanted: int
    desired: tuple[Desired, ...]
    ttft_p95_ms: float | None
    ttft_limit_ms: float
    tpot_p95_ms: float | None
    tpot_limit_ms: float
    attained: float | None
    telemetry_age_s: float | None
    usd_per_h: float
    proposal: int
    planned: bool
    unmanaged: int | None = None
    level: str = str(Level.OK)
    conditions: tuple[str, ...] = ()
    word: str = ""
    remedy: str = ""
    uncertain: str = ""
    is_held: bool = False
    adapters_req_per_s: Mapping[str, float] = field(default_factory=dict)
    capacity_factor: float = 1.0
    prefix_hit: float = 0.0
    prefix_hit_measured: float | None = None
    spot_share: float = 0.0
    over_spot_limit: bool = False
    kv_cache: str = ""
    pooling: bool = False
    rollout: RolloutStatus | None = None
    attained_now: float | None = None
    tokens_per_s: float | None = None
    ended: int = 0


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Status of the whole fleet. usd_per_h: price of all nodes on the bill."""

    models: tuple[ModelStatus, ...]
    usd_per_h: float

    @property
    def attained(self) -> float | None:
        """Share of all ended requests of the long window that met their SLO; None without any."""
        ended = sum(model.ended for model in self.models)
        met = sum((model.attained or 0.0) * model.ended for model in self.models)
        return met / ended if ended else None

    @property
    def verdict(self) -> dict[str, int]:
        """Number of models by level, most urgent first."""
        counts = Counter(model.level for model in self.models)
        return {str(one): counts[one] for one in reversed(Level)}


def fleet_status(
    state: ControllerState, observation: Observation, cluster: Cluster, now_ms: int
) -> FleetStatus:
    """The status at `now_ms` after a tick whose result is `state`."""
    cluster = with_templates(cluster, observation.statuses)
    priced = with_prices(cluster, state.supply.prices_usd_per_h())
    read_ms = now_ms - observation.lag_ms.get(STATUS.name, 0)
    sight = snapshot(
        state.groups,
        observation.statuses,
        state.evaluated.combos,
        priced,
        read_ms,
        state.term.listens_since_ms,
    )
    groups, unpaid = by_model(state.groups), sight.unpaid(state.groups)
    models = tuple(
        _model_status(service, state.models[service.model], groups.get(service.model, []), sight,
            unpaid, state, observation, cluster, now_ms)
        for service in cluster.services
        if service.model in state.models
    )  # fmt: skip
    bill = billed_usd_per_h(state.groups, sight, priced.prices_usd_per_h())
    return FleetStatus(models, bill)


def _model_status(
    service: Service,
    state: ModelState,
    groups: list[ServingGroup],
    sight: FleetSnapshot,
    unpaid: Collection[str],
    whole: ControllerState,
    observation: Observation,
    cluster: Cluster,
    now_ms: int,
) -> ModelStatus:
    demand = observation.demand.get(service.model, UNKNOWN_DEMAND)
    local, long = demand.local, demand.long
    counting = [group for group in groups if sight.counts(group)]
    wanted: Mapping[str, int] = Counter(group.combo_id for group in counting)
    if not service.managed:
        wanted = dict(state.advisory.recommended)
    combos = whole.evaluated.combos
    rates = [
        (group, ready_req_per_s(combos[group.combo_id], sight.views[group.name]))
        for group in groups
        if group.combo_id in combos and group.life in (Life.ACTIVE, Life.RETIRING)
    ]
    seen_ms = demand.reported_ms
    if seen_ms is None and isinstance(local, NoData):
        seen_ms = local.last_ms
    known = {i: n for i, n in wanted.items() if i in combos}
    planned = sum(combos[i].req_per_s * n for i, n in known.items())
    on_spot = sum(combos[i].req_per_s * n for i, n in known.items() if is_spot(combos[i]))
    theirs = {} if service.managed else unmanaged_counts(service, state)
    stands = Counter(g.combo_id for g in groups if any(p.node not in unpaid for p in g.placed))
    stands.update(theirs)
    unmanaged_req_per_s = sum(combos[i].req_per_s * n for i, n in theirs.items() if i in combos)
    counted = observation.unmanaged.get(service.model)
    proposal = state.advisory.proposal
    held = _active_control(service.model, whole.declared.controls)
    made = ModelStatus(
        model=service.model,
        mode=str(service.mode),
        held=text(held) if held is not None else "",
        is_held=held is not None,
        demand_req_per_s=local.req_per_s if isinstance(local, Stats) else None,
        target_req_per_s=state.target.req_per_s,
        target_why=text(state.target.why) if state.target.why is not None else "",
        wanted_req_per_s=planned,
        ready_req_per_s=sum(rate for _, rate in rates) + unmanaged_req_per_s,
        ready=sum(sight.views[group.name].all_ready for group in counting) + sum(theirs.values()),
        wanted=sum(wanted.values()),
        desired=_desired(wanted),
        ttft_p95_ms=local.ttft_p95_ms if isinstance(local, Stats) else None,
        ttft_limit_ms=service.slo.ttft_ms,
        tpot_p95_ms=local.tpot_p95_ms if isinstance(local, Stats) else None,
        tpot_limit_ms=service.slo.tpot_ms,
        attained=_attained(long),
        attained_now=_attained(local),
        ended=_ended(long),
        tokens_per_s=_tokens_per_s(local),
        telemetry_age_s=None if seen_ms is None else max(0, now_ms - seen_ms) / 1000.0,
        usd_per_h=sum(combos[i].usd_per_h * n for i, n in stands.items() if i in combos),
        proposal=proposal.number if proposal is not None and not proposal.rejected else 0,
        planned=service.model in whole.evaluated.demands,
        unmanaged=None if counted is None else sum(counted.values()),
        uncertain=", ".join(texts(uncertainty(state))),
        adapters_req_per_s=_adapters(service, demand),
        capacity_factor=state.capacity.derate,
        prefix_hit=state.estimate.lengths.prefix_hit,
        prefix_hit_measured=_prefix_hit(demand),
        spot_share=on_spot / planned if planned > 0.0 else 0.0,
        over_spot_limit=_over_spot_limit(service, state, cluster, planned, on_spot),
        pooling=service.architecture.pooling,
        kv_cache=_kv_cache(service, state, cluster, [combos[i] for i in known]),
        rollout=rollout_status(service, state, counting, now_ms),
    )
    # The floor in force may exceed the declared minimum, because of a schedule.
    in_force = whole.declared.services.get(service.model, service)
    leaving = sum(group.life is not Life.ACTIVE for group in groups if group not in counting)
    standing = _standing(made, in_force, state, leaving, held)
    found = conditions(service, demand, standing)
    return replace(
        made,
        level=str(level(one.code for one in found)),
        conditions=tuple(str(one.code) for one in found),
        word="; ".join(texts(_to_show(found))),
        remedy=remedy(found),
    )


def _standing(
    made: ModelStatus, service: Service, state: ModelState, leaving: int, held: Reason | None
) -> Standing:
    planned = made.wanted_req_per_s * service.utilization * state.capacity.derate
    unserved = state.target.needed_req_per_s - planned
    is_noticed = state.infeasibility.shortage_noticed_ms > 0
    return Standing(
        ready=made.ready,
        wanted=made.wanted,
        leaving=leaving,
        unserved_req_per_s=unserved if is_noticed and unserved > RATE_EPSILON else 0.0,
        floor=service.min_instances if is_noticed and made.wanted < service.min_instances else 0,
        telemetry_age_s=made.telemetry_age_s,
        proposal=made.proposal,
        held=held,
        spot=(made.spot_share, service.spot_share) if made.over_spot_limit else None,
        servers=made.unmanaged,
        uncounted=is_uncounted(service, state),
    )


def _to_show(found: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """The conditions that a line has room for."""
    events = tuple(one for one in found if one.code is not ReasonCode.STEADY)
    return events[:_MOST_SHOWN] or found


def _kv_cache(service: Service, state: ModelState, cluster: Cluster, combos: list[Combo]) -> str:
    """The KV cache of the slices of `combos`, e.g. "448192 tokens on 1xH100 (predicted)"."""
    if service.architecture.pooling or service.graph is not None:
        return ""
    service = with_measured_rooms(service, state.learnt.rooms)
    pools = {pool.id: pool.gpu for pool in cluster.pools}
    slices = {
        (pools[member.pool], member.gpus)
        for combo in combos
        for member in combo.members
        if member.pool in pools and not member.stage
    }
    found = sorted(
        (kv_cache(service, gpu, gpus) for gpu, gpus in slices), key=lambda one: (one.gpu, one.gpus)
    )
    return ", ".join(kv_cache_text(*astuple(one)[1:]) for one in found)


def _over_spot_limit(
    service: Service, state: ModelState, cluster: Cluster, planned: float, on_spot: float
) -> bool:
    """Whether less capacity is off spot than the model's limit requires. As in plans, the limit is
    a share of the needed capacity, or of the planned capacity if that is smaller, and it does not
    apply to a model that may use only spot nodes."""
    pools = [p for p in cluster.pools if not service.regions or p.region in service.regions]
    if all(pool.market is Market.SPOT for pool in pools):
        return False
    needed = state.target.req_per_s / (service.utilization * state.capacity.derate)
    least = (1.0 - service.spot_share) * min(needed, planned)
    return planned - on_spot < least - RATE_EPSILON


def _adapters(service: Service, demand: ModelDemand) -> Mapping[str, float]:
    """Requests/s of the local window by declared adapter; empty without data."""
    if not service.adapters or not isinstance(demand.local, Stats):
        return {}
    counts = requests_by_adapter(demand.kinds)
    return {one.name: counts.get(one.name, 0) / demand.local.covered_s for one in service.adapters}


def _prefix_hit(demand: ModelDemand) -> float | None:
    hits = demand.prefix_hits
    return hits.local_hit / hits.local_queried if hits.local_queried else None


def _ended(window: WindowStats) -> int:
    if isinstance(window, NoData):
        return 0
    return window.completions + window.failures + window.refused


def _attained(window: WindowStats) -> float | None:
    ended = _ended(window)
    return window.attained / ended if isinstance(window, Stats) and ended else None


def _tokens_per_s(local: object) -> float | None:
    if not isinstance(local, Stats) or local.mean_input_tokens is None:
        return None
    return local.req_per_s * (local.mean_input_tokens + (local.mean_output_tokens or 0.0))


def _active_control(model: str, held: Mapping[str, Reason]) -> Reason | None:
    for scope in (model, "*"):
        for kind in ("release", "pause"):
            why = held.get(f"{scope}/{kind}")
            if why is not None:
                return why
    return None


def _desired(wanted: Mapping[str, int]) -> tuple[Desired, ...]:
    """Desired instances by region, pool (with its market) and role."""
    found: dict[tuple[str, str, str], int] = {}
    for combo_id, count in wanted.items():
        for phase, _, pool, each in parse_combo_id(combo_id)[1]:
            region, name, market = pool.split("/")
            # The pool's name must be a valid Kubernetes label, and spot nodes form a separate pool
            # in Kubernetes.
            key = region, f"{name}-spot" if market == Market.SPOT else name, phase.value
            found[key] = found.get(key, 0) + count * each
    return tuple((*key, count) for key, count in sorted(found.items()))
