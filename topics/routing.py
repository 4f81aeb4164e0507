"""Routes: the endpoints of a model, and the distribution of requests over them.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from topics import checks
from topics.scoring import ScoreSplit

_ENDPOINT: checks.FieldChecks = {
    "instance": checks.name,
    "address": checks.name,
    "slots": partial(checks.count, high=1_000_000),
}
_TEXT = partial(checks.machine_text, limit=64)
_GROUP: checks.FieldChecks = {
    "group": checks.combo,
    "version": _TEXT,
    "weight": partial(checks.number, low=0.0, high=checks.MOST_REQ_PER_S),
}
_LIMIT_MS = partial(checks.number, low=0.0, high=1e9)
_ROUTES: checks.FieldChecks = {
    "model": checks.name,
    "withdrawn": checks.flag,
    "aliases": checks.names,
    "adapters": checks.names,
    "start_s": partial(checks.number, low=0.0, high=86_400.0),
    "generation": checks.count,
    "leader_token": checks.count,
    "issued_ms": checks.time_ms,
    "said_ms": checks.time_ms,
    "valid_ms": checks.count,
    "signature": _TEXT,
    "ttft_limit_ms": _LIMIT_MS,
    "tpot_limit_ms": _LIMIT_MS,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One instance to which requests may be sent. address: "host:port".

    slots: maximum requests in flight, 0 = unbounded. A gateway counts its own requests and, from
    load feeds, those of other gateways. Without feeds, G gateways may send up to G x slots
    requests, because the limit only prevents long queues in the engine. A decode instance accepts
    all requests that were prefilled for it. For decode instances, `slots` only defines when they
    are busy (0: with any request), so that idle prefill instances may serve whole requests.
    """

    instance: str
    address: str
    slots: int = 0

    def __post_init__(self) -> None:
        checks.fields(self, _ENDPOINT)

    def __hash__(self) -> int:
        # Gateways hash endpoints about ten times per request, so the hash must be fast.
        return hash(self.address)


@dataclass(frozen=True, slots=True)
class Stage:
    """Instances of a group that process one part of a request: one deployment of components."""

    name: str
    endpoints: tuple[Endpoint, ...]

    def __post_init__(self) -> None:
        checks.name("stage", self.name)
        if not self.endpoints:
            raise checks.InvalidValue("endpoints", (), "at least one instance in a stage")


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a path: `stage` runs these components for the request."""

    stage: str
    runs: tuple[str, ...]

    def __post_init__(self) -> None:
        checks.name("stage", self.stage)
        if not self.runs:
            raise checks.InvalidValue("runs", (), "at least one component")
        for component in self.runs:
            checks.name("runs", component)


@dataclass(frozen=True, slots=True)
class RoutePath:
    """A path through the stages of a group for requests of `type`. req_per_s: planned rate of the
    path, which determines its share among all paths of the type."""

    type: str
    req_per_s: float
    hops: tuple[Hop, ...]

    def __post_init__(self) -> None:
        checks.name("type", self.type)
        checks.number("req_per_s", self.req_per_s, 0.0, checks.MOST_REQ_PER_S)
        if not self.hops:
            raise checks.InvalidValue("hops", (), "at least one stage in a path")


@dataclass(frozen=True, slots=True)
class RequestKind:
    """A type of request, identified by its media: media in its content (image, video, audio), and
    audio-out for requested audio output."""

    name: str
    media: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.name("type", self.name)
        for medium in self.media:
            checks.one_of("media", medium, MEDIA)


MEDIA = ("image", "video", "audio", "audio-out")


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """One combo: `aggregated` instances, or `prefill` and `decode` instances, or, for a model of
    components, `stages` and the `paths` of requests through them.

    weight: goodput of the group in requests/s, for the weighted round robin between groups.
    version: while the model's versions are compared, the version for which gateways count the
    requests of the group; "" = none.
    """

    group: str
    weight: float
    aggregated: tuple[Endpoint, ...] = ()
    prefill: tuple[Endpoint, ...] = ()
    decode: tuple[Endpoint, ...] = ()
    stages: tuple[Stage, ...] = ()
    paths: tuple[RoutePath, ...] = ()
    version: str = ""

    def __post_init__(self) -> None:
        checks.fields(self, _GROUP)
        if bool(self.prefill) != bool(self.decode):
            raise checks.InvalidValue("prefill", self.prefill, "prefill and decode together")
        known = {stage.name for stage in self.stages}
        for path in self.paths:
            for hop in path.hops:
                if hop.stage not in known:
                    raise checks.InvalidValue("paths", hop.stage, "stages of the group")
        if not self.aggregated and not self.prefill and not self.stages:
            raise checks.InvalidValue("aggregated", (), "at least one instance in a group")


@dataclass(frozen=True, slots=True)
class TypeRoute:
    """The traffic split of one type of requests.

    A request belongs to the type with the nearest lengths (`topics.request_shapes.nearest_kind`);
    its output length is an estimate. shares: one per group of the routes, in order; only their
    ratios count. If all are 0, requests are split by the groups' weights.
    """

    name: str
    input_tokens: float
    output_tokens: float
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        checks.name("name", self.name)
        checks.number("input_tokens", self.input_tokens, 0.0, 1e7)
        checks.number("output_tokens", self.output_tokens, 0.0, 1e7)
        for share in self.shares:
            checks.number("shares", share, 0.0, 1e9)


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one model.

    generation: Counts changes of this model's routes. ttft_limit_ms, tpot_limit_ms: The model's
    SLO, by which gateways count attained requests. said_ms, valid_ms: As in `Assignment`, but
    gateways continue to use expired routes. signature: See `topics.signing`. start_s: Seconds from
    launch to ready of the model's slowest combo, 0 = unknown. Requests for a model at zero wait at
    least this long. aliases: Other names that clients may use (the full Hugging Face name). types:
    Types of requests with their own traffic split. If empty, the groups' weights split all
    requests. kinds: Types of requests of a model of components, whose groups have paths. split: Set
    if this name is a service that routes to several models. Only these models then have instances.
    feeds: Load feeds of the model's executors (`executors.load_feed`), "host:port KEY". advised:
    Whether the model is declared in mode recommend. Existing instances keep their routes, even
    after the declaration is withdrawn. adapters: Names of the model's LoRA adapters, which clients
    may use like models. An instance has those that were declared when it started. withdrawn:
    Whether the name is no longer declared. Gateways finish its requests in flight and answer 404 to
    new ones.
    """

    model: str
    generation: int
    leader_token: int
    issued_ms: int
    ttft_limit_ms: float
    tpot_limit_ms: float
    groups: tuple[RouteGroup, ...] = ()
    said_ms: int = 0
    valid_ms: int = 0
    signature: str = ""
    start_s: float = 0.0
    aliases: tuple[str, ...] = ()
    types: tuple[TypeRoute, ...] = ()
    split: ScoreSplit | None = None
    feeds: tuple[str, ...] = ()
    kinds: tuple[RequestKind, ...] = ()
    advised: bool = False
    adapters: tuple[str, ...] = ()
    withdrawn: bool = False

    def __post_init__(self) -> None:
        checks.fields(self, _ROUTES)
        for feed in self.feeds:
            checks.machine_text("feeds", feed, 300)
        for kind in self.types:
            if len(kind.shares) != len(self.groups):
                allowed = f"one per group, {len(self.groups)}"
                raise checks.InvalidValue("types.shares", len(kind.shares), allowed)
