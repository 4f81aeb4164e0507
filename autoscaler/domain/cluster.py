"""The declared cluster: pools, services and policy, with checks.

The values come from `shoal.yaml` (`streams.files.shoal_yaml`) or from the `services` topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.measurement import Measurement
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.rollout_policy import RolloutPolicy
from autoscaler.domain.schedule import Weekly
from autoscaler.domain.validation import InvalidValue, finite, one_of, whole
from autoscaler.domain.workload import Lengths, Slo, WorkloadType
from topics.launch_version import launch_version, model_digest, with_template
from topics.lora_adapters import Adapter


class Market(StrEnum):
    """How the nodes of a pool are paid for. Owned nodes have no marginal cost and are never
    released."""

    OWNED = "owned"
    ON_DEMAND = "on-demand"
    SPOT = "spot"


class Mode(StrEnum):
    """Permissions of Shoal for a model: only recommend, act after an approval, or act at once."""

    RECOMMEND = "recommend"
    APPROVE = "approve"
    ACT = "act"


class Objective(StrEnum):
    """Goal of plans: the least cost for a demand, or the most work for a budget. The work is either
    a rate to sustain, or a batch to finish as early as possible."""

    COST = "cost"
    THROUGHPUT = "throughput"
    MAKESPAN = "makespan"


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one kind in one region and market.

    name: as declared, unique in its region. per_node: GPUs in a node. max_nodes: maximum number of
    nodes. price_usd_per_h: price of a node (0 for owned). `id` = "region/name/market". max_of_both:
    maximum number of nodes over all pools with this region and name, i.e. over all markets (0 = no
    such limit). between_gb_s: bandwidth between nodes in 1e9 bytes/s per direction (0 = not
    declared); inside a node, the GPU's interconnect applies. provision_s: seconds from renting a
    node until it can start an engine.
    """

    region: str
    name: str
    gpu: GpuSpec
    per_node: int
    max_nodes: int
    market: Market
    price_usd_per_h: float
    max_of_both: int = 0
    between_gb_s: float = 0.0
    provision_s: float = 0.0
    id: str = field(init=False, compare=False)
    """The pool's key on topics and in plans."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{self.region}/{self.name}/{self.market}")
        who = f"pool {self.region}/{self.name}"
        whole(f"{who}: per_node", self.per_node, 1, 16)
        whole(f"{who}: max_nodes", self.max_nodes, 0, 1_000_000)
        finite(f"{who}: price_usd_per_h", self.price_usd_per_h, 0.0, 1e6)
        whole(f"{who}: max_of_both", self.max_of_both, 0, 1_000_000)
        finite(f"{who}: between_gb_s", self.between_gb_s, 0.0, 1e6)
        finite(f"{who}: provision_s", self.provision_s, 0.0, 86400.0)

    @property
    def largest_slice(self) -> int:
        """GPUs of the largest slice: the largest power of two that divides `per_node`, so that
        slices of a node never leave a rest that is too small for another one."""
        return self.per_node & -self.per_node


@dataclass(frozen=True, slots=True)
class Service:
    """One served model, as its owner declares it. architecture: the model's architecture, with the
    quantization of the engine. percentile: share of requests, in (0, 1], that must attain the SLO.
    utilization: target share of capacity, in (0, 1]. spot_share: maximum share of the capacity on
    spot nodes (of the needed capacity or, if the plan cannot meet the need, of the planned
    capacity). max_len_tokens: longest request (input and output) that an instance must be able to
    hold, vLLM's --max-model-len. min_instances, max_instances: minimum and maximum number of combos
    (max 0 = no maximum). survive: "none", "one-node" or "all-spot".

    scale_in_after_s: how long an excess must last before a scale-in. max_disruption: share of
    capacity that may leave at the same time. traffic_share: weight of the service in a replayed
    trace. lengths, req_per_s: the declared workload, used until telemetry windows have data.
    rate_declared: whether a req_per_s of 0 is declared, so that no default rate replaces it.
    scale_targets: pool name -> external scale target ("counts
    only"); empty = Shoal's executors act. floors: scheduled minimum numbers in addition to
    min_instances. freezes: weekly windows in which no instance is removed, moved or replaced.
    zero_after_s: time without requests after which the last combo leaves (0 = scale_in_after_s);
    used only if min_instances is 0.

    pipelines: which nodes one instance may span: "none", "same-slice", "same-size" (equal number of
    GPUs per node) or "any". disaggregate: whether prefill and decode may run in separate instances.
    cautious: whether plans use the lower end of a prediction's interval if the interval is wide.
    types: kinds of requests in the declared workload; empty = one kind. graph: set for a model of
    components, whose combos are cells. unmanaged: the combo that corresponds to one server of the
    model that Shoal does not manage ("" = none declared). served_as: declared names under which
    engines serve the model, as their metrics label it; empty = none declared. metric_labels: values
    that further labels of their metrics must have. adapters: LoRA adapters that each instance loads
    when it starts. weights: path or repository that engines load, "" = the model's source. rollout:
    how a changed version replaces the running one. version: of the settings with which an instance
    is launched (`topics.launch_version`). template: digest of the templates from which executors
    launch it now, which is part of the version; "" = none.
    """

    model: str
    architecture: ModelSpec
    slo: Slo
    engine: str = "default"
    percentile: float = 0.95
    utilization: float = 0.85
    spot_share: float = 0.0
    max_len_tokens: int = 32_768
    min_instances: int = 0
    max_instances: int = 0
    regions: tuple[str, ...] = ()
    survive: str = "none"
    priority: int = 0
    mode: Mode = Mode.RECOMMEND
    lengths: Lengths = field(default_factory=lambda: Lengths.expected(1024.0, 256.0))
    req_per_s: float = 0.0
    rate_declared: bool = False
    scale_in_after_s: float = 600.0
    max_disruption: float = 0.1
    traffic_share: float = 1.0
    demand_query: str = ""
    floors: tuple[tuple[Weekly, int], ...] = ()
    freezes: tuple[Weekly, ...] = ()
    zero_after_s: float = 0.0
    scale_targets: tuple[tuple[str, str], ...] = ()
    pipelines: str = "none"
    types: tuple[WorkloadType, ...] = ()
    disaggregate: bool = True
    graph: ComponentGraph | None = None
    cautious: bool = False
    unmanaged: str = ""
    served_as: tuple[str, ...] = ()
    metric_labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    adapters: tuple[Adapter, ...] = ()
    weights: str = ""
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    template: str = field(default="", compare=False)
    version: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        version = launch_version(self.engine, self.architecture.max_seqs, self.launched_model)
        object.__setattr__(self, "version", with_template(version, self.template))
        who = f"model {self.model}"
        finite(f"{who}: percentile", self.percentile, 0.5, 1.0)
        finite(f"{who}: utilization", self.utilization, 0.05, 1.0)
        finite(f"{who}: spot", self.spot_share, 0.0, 1.0)
        whole(f"{who}: max_len", self.max_len_tokens, 16, 100_000_000)
        whole(f"{who}: min", self.min_instances, 0, 100_000)
        whole(f"{who}: max", self.max_instances, 0, 100_000)
        if self.max_instances and self.max_instances < self.min_instances:
            raise InvalidValue(
                f"{who}: max", self.max_instances, f"0 (none) or >= min {self.min_instances}"
            )
        one_of(f"{who}: survive", self.survive, ("none", "one-node", "all-spot"))
        one_of(f"{who}: pipelines", self.pipelines, ("none", "same-slice", "same-size", "any"))
        finite(f"{who}: scale_in_after", self.scale_in_after_s, 1.0, 7 * 86400.0)
        finite(f"{who}: max_disruption", self.max_disruption, 0.0, 1.0)
        finite(f"{who}: zero_after", self.zero_after_s, 0.0, 7 * 86400.0)
        for window, least in self.floors:
            high = self.max_instances or 100_000
            if not 0 <= least <= high:
                raise InvalidValue(f"{who}: floors: {window}", least, f"0 to {high}")
        finite(f"{who}: share", self.traffic_share, 0.0, 1e6)
        finite(f"{who}: workload.req_per_s", self.req_per_s, 0.0, 1e6)
        total = sum(kind.share for kind in self.types)
        if self.types and abs(total - 1.0) > 1e-6:
            raise InvalidValue(f"{who}: shares of workload types", total, "a sum of 1")

    @property
    def launched_model(self) -> str:
        """Digest of the model's part of the version."""
        source = self.architecture.name
        return model_digest(source, self.weights, self.adapters, self.max_len_tokens)

    def max_leaving_req_per_s(self, rates_req_per_s: Iterable[float]) -> float:
        """Capacity in requests/s that may leave at the same time: the disruption budget, but at
        least one instance (the largest one with at most half of the total). rates_req_per_s:
        capacity of each instance.
        """
        rates = tuple(rates_req_per_s)
        total = sum(rates)
        single = max((rate for rate in rates if 2.0 * rate <= total), default=0.0)
        return max(self.max_disruption * total, single)

    def start_penalty(self, policy: Policy, start_s: float) -> float:
        """K_start of a combo that takes `start_s` to start, as a share of the combo's price.

        While a combo starts, it is paid for in addition to the capacity that it replaces; it then
        stays for at least `scale_in_after_s`. So K_start is start_s / scale_in_after_s, at most 1
        and at least the policy's k_start. 0 if k_start is 0.
        """
        if policy.k_start <= 0.0:
            return 0.0
        return max(policy.k_start, min(1.0, start_s / self.scale_in_after_s))

    @property
    def hugging_face_name(self) -> str:
        """The Hugging Face name of the model, if clients and alerts may use it in addition to the
        declared name.

        "" if the names are equal, or if the architecture was read from a file (its name is a path).
        """
        found = self.architecture.name
        return "" if found == self.model or found.endswith(".json") else found

    @property
    def managed(self) -> bool:
        """Whether Shoal may change the model's instances, at once or after an approval."""
        return self.mode is not Mode.RECOMMEND


FORECASTS = ("auto", "none", "last", "seasonal", "smoothing")
"""Forecast methods, see `estimate.forecast`."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Parameters of the control loop.

    surge_window_s, local_window_s, global_window_s: lengths of the three sliding windows of demand.
    replan_every_s: period of full plans. ratio: relative change of a price, or of the number of
    available nodes, that triggers a plan. min_samples: arrivals needed for a decision.
    significance: false-alarm probability of one test of the rate. reversals_per_h: maximum number
    of times per hour that one model changes from adding to removing or back, as a mean over two
    hours. start_timeout_s, drain_timeout_s: deadlines of rollout steps; if drain_timeout_s is 0, it
    is computed from each model's workload (`planning.time_limits`). approve_within_s: time
    after which a proposal without approval expires. unasked_usd_per_h, unasked_instances:
    additions of a model within an hour that need no approval in mode approve. node_silent_s:
    silence after which a node counts as lost and leaves capacity, routes and the bill. k_start,
    k_load, k_switch: initialization penalties, as shares of a plan interval's cost (Coral sec.
    4.3), see `Service.start_penalty`. role_switch: whether combos may switch roles in place.
    budget_usd_per_h: maximum cost of nodes (0 = no limit). objective: minimise cost, or
    maximise a quantity within the budget. forecast: method to predict demand at the time when a
    new instance would be ready (`estimate.forecast`), or "none".
    """

    surge_window_s: int = 10
    local_window_s: int = 120
    global_window_s: int = 1800
    replan_every_s: float = 300.0
    ratio: float = 0.2
    min_samples: int = 3
    significance: float = 5e-5
    reversals_per_h: int = 2
    start_timeout_s: float = 600.0
    drain_timeout_s: float = 0.0
    approve_within_s: float = 1800.0
    unasked_usd_per_h: float = 0.0
    unasked_instances: int = 0
    node_silent_s: float = 15.0
    k_start: float = 0.1
    k_load: float = 0.05
    k_switch: float = 0.02
    role_switch: bool = True
    budget_usd_per_h: float = 0.0
    objective: Objective = Objective.COST
    forecast: str = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.surge_window_s <= self.local_window_s <= self.global_window_s <= 86400:
            raise InvalidValue(
                "policy windows",
                (self.surge_window_s, self.local_window_s, self.global_window_s),
                "0 < surge <= local <= global <= 86400 s",
            )
        finite("policy.ratio", self.ratio, 0.01, 10.0)
        finite("policy.significance", self.significance, 1e-15, 0.5)
        finite("policy.replan_every_s", self.replan_every_s, 10.0, 7 * 86400.0)
        for name in ("start_timeout_s", "drain_timeout_s"):
            finite(f"policy.{name}", getattr(self, name), 0.0, 86400.0)
        whole("policy.reversals_per_h", self.reversals_per_h, 1, 60)
        finite("policy.approve_within_s", self.approve_within_s, 10.0, 7 * 86400.0)
        finite("policy.unasked_usd_per_h", self.unasked_usd_per_h, 0.0, 1e6)
        whole("policy.unasked_instances", self.unasked_instances, 0, 100_000)
        finite("policy.node_silent_s", self.node_silent_s, 5.0, 3600.0)
        for name in ("k_start", "k_load", "k_switch"):
            finite(f"policy.{name}", getattr(self, name), 0.0, 100.0)
        finite("policy.budget_usd_per_h", self.budget_usd_per_h, 0.0, 1e9)
        one_of("policy.forecast", self.forecast, FORECASTS)
        if self.spends_budget and self.budget_usd_per_h <= 0.0:
            allowed = f"above 0 with objective {self.objective}"
            raise InvalidValue("policy.budget", self.budget_usd_per_h, allowed)

    @property
    def switches_roles(self) -> bool:
        """Whether plans may switch roles of combos in place: allowed, and at most as dear as a
        start on running nodes."""
        return self.role_switch and self.k_switch <= self.k_load

    @property
    def spends_budget(self) -> bool:
        """Whether plans maximise work within the budget, instead of minimising the cost of a
        demand."""
        return self.objective is not Objective.COST


def pools_by_shared_limit(pools: Iterable[Pool]) -> dict[tuple[str, str], tuple[Pool, ...]]:
    """The pools that share a limit on nodes (`max_of_both`), by region and name."""
    found: dict[tuple[str, str], tuple[Pool, ...]] = {}
    for pool in pools:
        if pool.max_of_both:
            key = (pool.region, pool.name)
            found[key] = (*found.get(key, ()), pool)
    return found


@dataclass(frozen=True, slots=True)
class Cluster:
    """The whole declaration: pools, services and policy. `content_hash` identifies its version.

    routes: services that route requests to several of the other services. measurements: the user's
    own measurements of models on GPUs. withdrawn: models that an operator withdrew and whose
    names are not finalized. withdrawn_in_file: those that the file declares; their names are never
    finalized, because a gateway may know them from the file.
    """

    pools: tuple[Pool, ...]
    services: tuple[Service, ...]
    policy: Policy = field(default_factory=Policy)
    content_hash: str = ""
    routes: tuple[QualityRoute, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    withdrawn: tuple[str, ...] = ()
    withdrawn_in_file: tuple[str, ...] = ()
    _services: dict[str, Service] = field(init=False, repr=False, compare=False)
    _pools: dict[str, Pool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_services", {s.model: s for s in self.services})
        object.__setattr__(self, "_pools", {pool.id: pool for pool in self.pools})
        for what, names in (
            ("pool", [pool.id for pool in self.pools]),
            ("model", [service.model for service in self.services]),
        ):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InvalidValue(what, twice, "each name once")

    @property
    def may_change(self) -> bool:
        """Whether Shoal may change instances or routes: some model is managed or withdrawn, or none
        is declared."""
        managed = any(service.managed for service in self.services)
        return managed or bool(self.withdrawn) or not self.services

    @property
    def max_total_nodes(self) -> int:
        """Maximum number of nodes of the fleet, over all pools and markets."""
        shared = self.pools_by_shared_limit().values()
        alone = sum(pool.max_nodes for pool in self.pools if not pool.max_of_both)
        return alone + sum(pools[0].max_of_both for pools in shared)

    def pools_by_shared_limit(self) -> dict[tuple[str, str], tuple[Pool, ...]]:
        """The pools of the cluster that share a limit on nodes (`max_of_both`), by region and
        name."""
        return pools_by_shared_limit(self.pools)

    def service(self, model: str) -> Service:
        """The service of `model`. Raises InvalidValue if there is none."""
        found = self._services.get(model)
        if found is None:
            raise InvalidValue("model", model, " or ".join(s.model for s in self.services))
        return found

    def prices_usd_per_h(self) -> dict[str, float]:
        """Price of a node by pool."""
        return {pool.id: pool.price_usd_per_h for pool in self.pools}

    def pool(self, pool_id: str) -> Pool:
        """The pool with this id. Raises InvalidValue if there is none."""
        found = self._pools.get(pool_id)
        if found is None:
            raise InvalidValue("pool", pool_id, " or ".join(p.id for p in self.pools))
        return found
