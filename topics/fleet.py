"""Assignments and statuses: the desired and the observed state of a node.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from topics import checks
from topics.engine_start import EngineStart
from topics.instance_ranks import GangRank


class LaunchCode(StrEnum):
    """Why the launch of an instance in a cluster waits, or failed. Also the reasons of Events."""

    QUOTA = "QuotaExceeded"
    REFUSED = "PodRefused"
    NO_RIGHT = "NoRight"
    ADMISSION_AWAY = "AdmissionUnavailable"
    NO_ANSWER = "NoAnswer"
    GATED = "SchedulingGated"
    NO_SCHEDULER = "NoScheduler"
    UNSCHEDULABLE = "Unschedulable"
    PREEMPTING = "Preempting"
    NO_NODE = "NoNode"
    CONTAINER = "ContainerNotStarted"
    NO_PODS = "PodsNotCreated"
    AT_MAXIMUM = "AtMaximum"
    NOT_SCALED = "NotScaled"


class InstanceState(StrEnum):
    """The state of an instance. The transitions are in `autoscaler.serving.lifecycle`."""

    STARTING = "starting"
    READY = "ready"
    SWITCHING = "switching"
    DRAINING = "draining"
    STOPPING = "stopping"
    ASLEEP = "asleep"
    STOPPED = "stopped"
    FAILED = "failed"


PHASES = ("prefill", "decode", "aggregated")
_STATES = tuple(InstanceState)
_MOST_ADDRESSES = 64

NO_DEADLINE_MS = checks.MAX_MS
"""Reclaim time of a node that stays until it is empty, such as a cordoned one."""


_TEXT = partial(checks.machine_text, limit=64)
_DESIRED: checks.FieldChecks = {
    "instance": checks.name,
    "model": checks.name,
    "engine": checks.name,
    "group": checks.combo,
    "version": _TEXT,
    "phase": partial(checks.one_of, allowed=PHASES),
    "gpus": partial(checks.counts, high=63),
}
_ASSIGNMENT: checks.FieldChecks = {
    "node": checks.name,
    "pool": checks.name,
    "trace": _TEXT,
    "drain_timeout_ms": partial(checks.count, high=86_400_000),
    "generation": checks.count,
    "leader_token": checks.count,
    "issued_ms": checks.time_ms,
    "said_ms": checks.time_ms,
    "valid_ms": checks.count,
    "signature": _TEXT,
}


@dataclass(frozen=True, slots=True)
class DesiredInstance:
    """One instance that a node should run.

    phase: desired phase; if it differs from the instance's phase, the instance switches roles.
    group: name of the placed combo that the instance belongs to, which is a group of the routes.
    gpus: GPU indices on the node. engine: name of an engine in the operator's configuration. drain:
    the instance finishes its requests and then stops; it stays in the assignment until it is gone.
    gang: its rank in a multi-node instance, None for an instance on one node. version: see
    `topics.launch_version`, "" from an older controller.
    """

    instance: str
    model: str
    phase: str
    group: str
    gpus: tuple[int, ...]
    engine: str = "default"
    drain: bool = False
    gang: GangRank | None = None
    version: str = ""

    def __post_init__(self) -> None:
        checks.fields(self, _DESIRED)
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise checks.InvalidValue("gpus", self.gpus, "at least one GPU index, each once")
        if self.gang is not None and self.gang.stages[self.gang.rank].gpus != len(self.gpus):
            raise checks.InvalidValue("gpus", self.gpus, f"as many as {self.gang.place} holds")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The desired state of one node. An executor refuses an assignment whose (leader_token,
    generation) is lower than that of its current assignment.

    generation: Counts changes of this node. leader_token: Orders leaders. said_ms: Time of the last
    publication, by the leader's clock. Each publication extends the validity. valid_ms: Validity
    from the broker's append time, 0 = unlimited. After an assignment expires, the executor starts
    nothing new and stops nothing. drain_timeout_ms: Longest wait of a drain for requests and KV
    leases, 0 = the executor's own limit. signature: See `topics.signing`. trace: Traceparent of the
    decision that this assignment carries out, "" = none.
    """

    node: str
    pool: str
    generation: int
    leader_token: int
    issued_ms: int
    instances: tuple[DesiredInstance, ...] = ()
    said_ms: int = 0
    valid_ms: int = 0
    drain_timeout_ms: int = 0
    signature: str = ""
    trace: str = ""

    def __post_init__(self) -> None:
        checks.fields(self, _ASSIGNMENT)
        used = [gpu for instance in self.instances for gpu in instance.gpus]
        if len(used) != len(set(used)):
            raise checks.InvalidValue("instances.gpus", used, "each GPU of the node once")


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """One instance as its executor observes it.

    endpoint: "host:port" for gateways, empty before the instance listens and for ranks that serve
    no requests. phase: the phase that the instance serves now, even if another phase is desired.
    gang: its rank in a multi-node instance; the gang of rank 0 holds the rendezvous.

    since_ms: time at which the instance entered its state. launched_ms: start of its process.
    restarts: number of restarts. in_flight: number of requests in the instance. finished: number of
    requests that its process has finished since its start, 0 from an older executor. held_kv:
    number of prefill KV leases. pool_full: whether the instance failed because its pool has no room
    for any further node. engine, version: see `DesiredInstance`. start: the memory of its engine,
    None = unknown. template: digest of the executor's template from which it was launched, "" =
    unknown or none. code: the kind of `reason`, a `LaunchCode`, "" = another one.
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
    gang: GangRank | None = None
    pool_full: bool = False
    engine: str = "default"
    finished: int = 0
    start: EngineStart | None = None
    version: str = ""
    template: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        for key in ("instance", "model", "engine"):
            checks.name(key, getattr(self, key))
        checks.combo("group", self.group)
        checks.one_of("phase", self.phase, PHASES)
        checks.one_of("state", self.state, _STATES)
        if self.endpoint:
            checks.name("endpoint", self.endpoint)
        for index in self.gpus:
            checks.count("gpus", index, 63)
        for key in ("restarts", "in_flight", "held_kv", "finished"):
            checks.count(key, getattr(self, key))
        checks.time_ms("since_ms", self.since_ms)
        checks.time_ms("launched_ms", self.launched_ms)
        checks.free_text(self, "reason")
        checks.flag("pool_full", self.pool_full)
        checks.machine_text("version", self.version, 64)
        checks.machine_text("template", self.template, 16)
        checks.machine_text("code", self.code, 64)


@dataclass(frozen=True, slots=True)
class Status:
    """One node as its executor observes it. Different values of boot or place reveal two executors
    on one node.

    observed_generation: Generation of the current assignment. observed_token: Leader token of the
    current assignment. boot: Id of the executor's process. place: Machine and state folder of the
    executor. refused: Number of refused assignments. reclaim_ms: Time at which the node is
    reclaimed, `NO_DEADLINE_MS` = when it is empty, 0 = no notice. faults: Faults of the node that
    do not stop serving, as text. load_feed: Address at which the executor publishes the load of its
    engines, "" = none. address: Host of all endpoints of the node, "" from an older executor.
    addresses: Further hosts of endpoints, if each instance has its own (pods). launch_basis:
    Derived from the settings on which launches on this node depend, "" = unknown. If it changes, a
    failed launch may now succeed. templates: By engine, the digest of the template from which the
    executor launches it on this node now; empty without templates. release: Version of Shoal that
    the executor runs, "" from an older executor.
    """

    node: str
    pool: str
    executor: str
    observed_generation: int
    at_ms: int
    instances: tuple[ObservedInstance, ...] = ()
    boot: str = ""
    place: str = ""
    refused: int = 0
    reclaim_ms: int = 0
    faults: tuple[str, ...] = ()
    load_feed: str = ""
    observed_token: int = 0
    address: str = ""
    addresses: tuple[str, ...] = ()
    launch_basis: str = ""
    templates: Mapping[str, str] = field(default_factory=dict, hash=False)
    release: str = ""

    def __post_init__(self) -> None:
        for key in ("node", "pool", "executor"):
            checks.name(key, getattr(self, key))
        checks.count("observed_generation", self.observed_generation)
        checks.count("observed_token", self.observed_token)
        checks.time_ms("at_ms", self.at_ms)
        checks.machine_text("boot", self.boot, 200)
        checks.free_text(self, "place", 200)
        checks.machine_text("load_feed", self.load_feed, 300)
        checks.machine_text("launch_basis", self.launch_basis, 64)
        checks.machine_text("release", self.release, 64)
        checks.count("templates", len(self.templates), _MOST_ADDRESSES)
        for engine, digest in self.templates.items():
            checks.name("templates", engine)
            checks.machine_text(f"templates.{engine}", digest, 16)
        checks.count("refused", self.refused)
        checks.time_ms("reclaim_ms", self.reclaim_ms)
        checks.free_text(self, "faults")
        self._check_address()

    def _check_address(self) -> None:
        """Check that all endpoints are on hosts that the node names as its own, so that a node
        cannot direct requests to other hosts."""
        for host in self.addresses:
            checks.name("addresses", host)
        if len(self.addresses) > _MOST_ADDRESSES:
            raise checks.InvalidValue(
                "addresses", len(self.addresses), f"at most {_MOST_ADDRESSES}"
            )
        own = {host_of(host, False) for host in self.addresses}
        if self.address:
            checks.name("address", self.address)
            feed = self.load_feed.partition(" ")[0]
            if feed and host_of(feed) != host_of(self.address, False):
                allowed = f"a port of {self.address}, the node's address"
                raise checks.InvalidValue("load_feed", self.load_feed, allowed)
        home = host_of(self.address, False)
        for at, seen in enumerate(self.instances):
            rendezvous = seen.gang.rendezvous if seen.gang and seen.gang.leads else ""
            for key, place in (("endpoint", seen.endpoint), ("gang.rendezvous", rendezvous)):
                if not place:
                    continue
                host = host_of(place)
                if host in own:
                    continue
                home = home or host
                if host != home:
                    allowed = f"a port of {home}, the node's address"
                    raise checks.InvalidValue(f"instances[{at}].{key}", place, allowed)


def host_of(place: str, with_port: bool = True) -> str:
    """The host in `place`; an IPv6 address is returned without its brackets. with_port: whether
    `place` is "host:port" instead of "host"."""
    return (place.rpartition(":")[0] if with_port else place).strip("[]")
