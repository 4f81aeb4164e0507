"""What is on the wire: frozen records, checked when they are made.

Owns the meaning of every field. Knows nothing of JSON (`topics.codec`), of topic names
(`topics.table`) or of what anyone does with a record. Times ending in `_ms` since the epoch are
domain time (`topics.timebase`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from topics import checks
from topics.sketch import HIGHEST, LOWEST


class InstanceState(StrEnum):
    """Where an instance is in its life (the table of legal steps: `autoscaler.serving`)."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


PHASES = ("prefill", "decode", "aggregated")
MARKETS = ("owned", "on-demand", "spot")


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What one gateway saw of one model in one span of its time (usually a second).

    (gateway, boot, sequence) names the record for ever, so that a second copy is known as one.
    age_ms: domain ms from the end of the span to the sending, on the gateway's monotonic clock;
    the event time is the broker's append time minus it. Counts are of the span: arrivals of
    requests, completions (answered in full), failures (answered with an error after it was
    accepted, or broken off), refused (429 or no route), attained (within both limits).
    Token sums are of requests that completed in the span, except input_tokens_arrived.
    ttft_ms / tpot_ms: latency sketches of `topics.sketch` as {bucket: count}.
    in_flight: now, at the end of the span. route_generation: of the routes applied now.
    """

    model: str
    gateway: str
    boot: str
    sequence: int
    end_ms: int
    span_ms: int
    age_ms: int
    arrivals: int
    completions: int
    failures: int
    refused: int
    attained: int
    input_tokens_arrived: int
    input_tokens: int
    output_tokens: int
    in_flight: int
    route_generation: int
    ttft_ms: dict[int, int] = field(default_factory=dict)
    tpot_ms: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("model", "gateway", "boot"):
            checks.name(key, getattr(self, key))
        checks.time_ms("end_ms", self.end_ms)
        checks.count("span_ms", self.span_ms, 3_600_000)
        for key in (
            "sequence",
            "age_ms",
            "arrivals",
            "completions",
            "failures",
            "refused",
            "attained",
            "input_tokens_arrived",
            "input_tokens",
            "output_tokens",
            "in_flight",
            "route_generation",
        ):
            checks.count(key, getattr(self, key))
        for key in ("ttft_ms", "tpot_ms"):
            for bucket, seen in getattr(self, key).items():
                checks.number(f"{key} bucket", bucket, LOWEST, HIGHEST)
                checks.count(f"{key}[{bucket}]", seen)


@dataclass(frozen=True, slots=True)
class Availability:
    """How many nodes of a pool can be had. pool: "region/name/market"."""

    pool: str
    nodes: int
    observed_ms: int

    def __post_init__(self) -> None:
        checks.name("pool", self.pool)
        checks.count("nodes", self.nodes, 1_000_000)
        checks.time_ms("observed_ms", self.observed_ms)


@dataclass(frozen=True, slots=True)
class Price:
    """What a node of a pool costs. pool: "region/name/market"."""

    pool: str
    usd_per_node_h: float
    observed_ms: int

    def __post_init__(self) -> None:
        checks.name("pool", self.pool)
        checks.number("usd_per_node_h", self.usd_per_node_h, 0.0, 100_000.0)
        checks.time_ms("observed_ms", self.observed_ms)


@dataclass(frozen=True, slots=True)
class DesiredInstance:
    """One instance that a node should run.

    group: the combo it belongs to (affinity group of routes). gpus: indices on the node.
    engine: name of an engine in the operator's configuration. drain: it should finish what it
    has and then stop; it stays in the assignment until it is gone.
    """

    instance: str
    model: str
    phase: str
    group: str
    gpus: tuple[int, ...]
    engine: str = "default"
    drain: bool = False

    def __post_init__(self) -> None:
        for key in ("instance", "model", "group", "engine"):
            checks.name(key, getattr(self, key))
        checks.one_of("phase", self.phase, PHASES)
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise checks.InvalidRecord("gpus", self.gpus, "at least one GPU index, each once")
        for index in self.gpus:
            checks.count("gpus", index, 63)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one node should run: desired state, not an order.

    generation counts changes of this node; leader_token orders leaders: an executor refuses
    a lower (leader_token, generation) than it has seen.
    """

    node: str
    pool: str
    generation: int
    leader_token: int
    issued_ms: int
    instances: tuple[DesiredInstance, ...] = ()

    def __post_init__(self) -> None:
        checks.name("node", self.node)
        checks.name("pool", self.pool)
        checks.count("generation", self.generation)
        checks.count("leader_token", self.leader_token)
        checks.time_ms("issued_ms", self.issued_ms)
        used = [gpu for instance in self.instances for gpu in instance.gpus]
        if len(used) != len(set(used)):
            raise checks.InvalidRecord("instances.gpus", used, "each GPU of the node once")


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """One instance as its executor sees it. endpoint: "host:port", empty before it listens.

    since_ms: when it entered its state. launched_ms: when its process was started. restarts:
    how often it was started again. in_flight: requests it holds. held_kv: prefill KV leases.
    """

    instance: str
    model: str
    phase: str
    group: str
    state: InstanceState
    gpus: tuple[int, ...]
    endpoint: str = ""
    since_ms: int = 0
    launched_ms: int = 0
    restarts: int = 0
    in_flight: int = 0
    held_kv: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        for key in ("instance", "model", "group"):
            checks.name(key, getattr(self, key))
        checks.one_of("phase", self.phase, PHASES)
        checks.one_of("state", self.state, tuple(InstanceState))
        if self.endpoint:
            checks.name("endpoint", self.endpoint)
        for index in self.gpus:
            checks.count("gpus", index, 63)
        for key in ("restarts", "in_flight", "held_kv"):
            checks.count(key, getattr(self, key))
        checks.time_ms("since_ms", self.since_ms)
        checks.time_ms("launched_ms", self.launched_ms)
        checks.text("reason", self.reason)


@dataclass(frozen=True, slots=True)
class Status:
    """One node as its executor sees it; observed_generation: of the assignment acted upon."""

    node: str
    pool: str
    executor: str
    observed_generation: int
    at_ms: int
    instances: tuple[ObservedInstance, ...] = ()

    def __post_init__(self) -> None:
        for key in ("node", "pool", "executor"):
            checks.name(key, getattr(self, key))
        checks.count("observed_generation", self.observed_generation)
        checks.time_ms("at_ms", self.at_ms)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One instance that requests may be sent to. address: "host:port"."""

    instance: str
    address: str

    def __post_init__(self) -> None:
        checks.name("instance", self.instance)
        checks.name("address", self.address)


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """One combo: either `aggregated` instances, or `prefill` and `decode` ones that belong together.

    weight: its goodput in requests/s, for the weighted round robin between groups.
    """

    group: str
    weight: float
    aggregated: tuple[Endpoint, ...] = ()
    prefill: tuple[Endpoint, ...] = ()
    decode: tuple[Endpoint, ...] = ()

    def __post_init__(self) -> None:
        checks.name("group", self.group)
        checks.number("weight", self.weight, 0.0, 1e9)
        if bool(self.prefill) != bool(self.decode):
            raise checks.InvalidRecord("prefill", self.prefill, "prefill and decode together")
        if not self.aggregated and not self.prefill:
            raise checks.InvalidRecord("aggregated", (), "at least one instance in a group")


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the requests of one model go; generation counts changes of this model's routes.

    ttft_limit_ms / tpot_limit_ms: the model's SLO, by which gateways count attained requests.
    """

    model: str
    generation: int
    leader_token: int
    issued_ms: int
    ttft_limit_ms: float
    tpot_limit_ms: float
    groups: tuple[RouteGroup, ...] = ()

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.count("generation", self.generation)
        checks.count("leader_token", self.leader_token)
        checks.time_ms("issued_ms", self.issued_ms)
        checks.number("ttft_limit_ms", self.ttft_limit_ms, 0.0, 1e9)
        checks.number("tpot_limit_ms", self.tpot_limit_ms, 0.0, 1e9)


DECISION_KINDS = (
    "scale_out",
    "scale_in",
    "refine",
    "replace",
    "hold",
    "infeasible",
    "rebuilt",
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Something the controller decided, with its reason. model: its name or "*".

    number counts decisions of a leader. applied: whether it was carried out (mode act) or only
    recommended. change: combos added (+) or removed (-) as (combo, count). cost_delta_usd_per_h:
    of billed nodes. over_since_ms: first second over the threshold (0 where it does not apply).
    """

    number: int
    leader_token: int
    model: str
    kind: str
    at_ms: int
    applied: bool
    reason: str
    demand_req_per_s: float = 0.0
    capacity_req_per_s: float = 0.0
    cost_delta_usd_per_h: float = 0.0
    over_since_ms: int = 0
    change: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        checks.count("number", self.number)
        checks.count("leader_token", self.leader_token)
        if self.model != "*":
            checks.name("model", self.model)
        checks.one_of("kind", self.kind, DECISION_KINDS)
        checks.time_ms("at_ms", self.at_ms)
        checks.text("reason", self.reason)
        for key in ("demand_req_per_s", "capacity_req_per_s"):
            checks.number(key, getattr(self, key), 0.0, 1e9)
        checks.number("cost_delta_usd_per_h", self.cost_delta_usd_per_h, -1e9, 1e9)
        checks.time_ms("over_since_ms", self.over_since_ms)
        for combo, change in self.change:
            checks.name("change", combo)
            checks.number("change", change, -1_000_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class PlannedCombo:
    """How many of one combo a plan wants. combo: its id, as the library of combos names it."""

    model: str
    combo: str
    count: int
    req_per_s: float
    usd_per_h: float

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.name("combo", self.combo)
        checks.count("count", self.count, 1_000_000)
        checks.number("req_per_s", self.req_per_s, 0.0, 1e9)
        checks.number("usd_per_h", self.usd_per_h, 0.0, 1e9)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The target of the whole fleet. gap: proven, as a fraction; -1 where none was proven."""

    number: int
    leader_token: int
    at_ms: int
    strategy: str
    cost_usd_per_h: float
    gap: float
    targets: tuple[PlannedCombo, ...] = ()
    shortfall_req_per_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.count("number", self.number)
        checks.count("leader_token", self.leader_token)
        checks.time_ms("at_ms", self.at_ms)
        checks.name("strategy", self.strategy)
        checks.number("cost_usd_per_h", self.cost_usd_per_h, 0.0, 1e9)
        checks.number("gap", self.gap, -1.0, 1e9)
        for model, missing in self.shortfall_req_per_s.items():
            checks.name("shortfall_req_per_s", model)
            checks.number(f"shortfall_req_per_s[{model}]", missing, 0.0, 1e9)


@dataclass(frozen=True, slots=True)
class Leadership:
    """A controller's claim to lead. The claim's offset is the leader token."""

    controller: str
    claim: str
    kind: str
    at_ms: int

    def __post_init__(self) -> None:
        checks.name("controller", self.controller)
        checks.name("claim", self.claim)
        checks.one_of("kind", self.kind, ("claim", "renewal"))
        checks.time_ms("at_ms", self.at_ms)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What could not be understood, where it came from, and why. payload: base64, cut at 64 KiB."""

    topic: str
    partition: int
    offset: int
    reason: str
    payload: str
    reader: str

    def __post_init__(self) -> None:
        checks.name("topic", self.topic)
        checks.count("partition", self.partition)
        checks.count("offset", self.offset)
        checks.text("reason", self.reason)
        checks.text("payload", self.payload, 90_000)
        checks.name("reader", self.reader)
