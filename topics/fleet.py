"""What nodes should run and what they do run.

Owns the meaning of these records. Knows nothing of JSON, topic names or what anyone does with them.
Times ending in `_ms` since the epoch are domain time (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topics import checks
from topics.instance_ranks import GangRank


class InstanceState(StrEnum):
    """Where an instance is in its life (the table of legal steps: `autoscaler.serving`)."""

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


@dataclass(frozen=True, slots=True)
class DesiredInstance:
    """One instance that a node should run.

    phase: another one than the instance serves asks it to switch roles. group: the combo it belongs
    to (affinity group of routes). gpus: indices on the node. engine: name of an engine in the
    operator's configuration. drain: it should finish what it has and then stop; it stays in the
    assignment until it is gone. gang: of which it is a part, None for an instance on one node.
    """

    instance: str
    model: str
    phase: str
    group: str
    gpus: tuple[int, ...]
    engine: str = "default"
    drain: bool = False
    gang: GangRank | None = None

    def __post_init__(self) -> None:
        for key in ("instance", "model", "engine"):
            checks.name(key, getattr(self, key))
        checks.combo("group", self.group)
        checks.one_of("phase", self.phase, PHASES)
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise checks.InvalidRecord("gpus", self.gpus, "at least one GPU index, each once")
        for index in self.gpus:
            checks.count("gpus", index, 63)
        if self.gang is not None and self.gang.stages[self.gang.rank].gpus != len(self.gpus):
            raise checks.InvalidRecord("gpus", self.gpus, f"as many as {self.gang.place} holds")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one node should run: desired state, not an order.

    generation counts changes of this node; leader_token orders leaders: an executor refuses
    a lower (leader_token, generation) than it has seen. said_ms: when it was said last, by the
    leader's clock; a copy that was said later is valid anew. valid_ms: for how long, counted from
    when the broker took it; then it starts nothing new, and never stops anything; 0 = for ever.
    drain_timeout_ms: how long a drain may wait for requests and KV leases; 0 = the executor's own
    limit. signature: see `topics.signing`.
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

    def __post_init__(self) -> None:
        checks.name("node", self.node)
        checks.name("pool", self.pool)
        checks.count("drain_timeout_ms", self.drain_timeout_ms, 86_400_000)
        checks.count("generation", self.generation)
        checks.count("leader_token", self.leader_token)
        checks.time_ms("issued_ms", self.issued_ms)
        checks.time_ms("said_ms", self.said_ms)
        checks.count("valid_ms", self.valid_ms)
        checks.machine_text("signature", self.signature, 64)
        used = [gpu for instance in self.instances for gpu in instance.gpus]
        if len(used) != len(set(used)):
            raise checks.InvalidRecord("instances.gpus", used, "each GPU of the node once")


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """One instance as its executor sees it. endpoint: "host:port" under which gateways reach it,
    empty before it listens and for what serves nobody. phase: the one it serves, whatever is
    desired. gang: of which it is a part; rank 0 tells where it waits for the others.

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
    gang: GangRank | None = None

    def __post_init__(self) -> None:
        for key in ("instance", "model"):
            checks.name(key, getattr(self, key))
        checks.combo("group", self.group)
        checks.one_of("phase", self.phase, PHASES)
        checks.one_of("state", self.state, _STATES)
        if self.endpoint:
            checks.name("endpoint", self.endpoint)
        for index in self.gpus:
            checks.count("gpus", index, 63)
        for key in ("restarts", "in_flight", "held_kv"):
            checks.count(key, getattr(self, key))
        checks.time_ms("since_ms", self.since_ms)
        checks.time_ms("launched_ms", self.launched_ms)
        checks.free_text(self, "reason")


@dataclass(frozen=True, slots=True)
class Status:
    """One node as its executor sees it; observed_generation, observed_token: of the assignment
    acted upon, the generation and its leader's token.

    boot: of the executor's process; place: the machine and state folder it runs from, so that two
    executors of one node notice each other. refused: assignments refused since they were first
    counted. reclaim_ms: when the node will be taken away (spot), 0 = nobody said so. faults: what
    is wrong with the node and does not stop it from serving, for people. load_feed: where it tells
    gateways how busy its engines are, "" = nowhere. address: host under which all its endpoints
    lie, "" of an older executor, whose endpoints share one host all the same.
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

    def __post_init__(self) -> None:
        for key in ("node", "pool", "executor"):
            checks.name(key, getattr(self, key))
        checks.count("observed_generation", self.observed_generation)
        checks.count("observed_token", self.observed_token)
        checks.time_ms("at_ms", self.at_ms)
        checks.machine_text("boot", self.boot, 200)
        checks.free_text(self, "place", 200)
        checks.machine_text("load_feed", self.load_feed, 300)
        checks.count("refused", self.refused)
        checks.time_ms("reclaim_ms", self.reclaim_ms)
        checks.free_text(self, "faults")
        self._check_address()

    def _check_address(self) -> None:
        """A node serves on its own address and nowhere else, so it sends requests nowhere else."""
        if self.address:
            checks.name("address", self.address)
            feed = self.load_feed.partition(" ")[0]
            if feed and host_of(feed) != host_of(self.address, False):
                allowed = f"a port of {self.address}, the node's address"
                raise checks.InvalidRecord("load_feed", self.load_feed, allowed)
        home = host_of(self.address, False)
        for at, seen in enumerate(self.instances):
            rendezvous = seen.gang.rendezvous if seen.gang and seen.gang.leads else ""
            for field, place in (("endpoint", seen.endpoint), ("gang.rendezvous", rendezvous)):
                if not place:
                    continue
                host = host_of(place)
                home = home or host
                if host != home:
                    allowed = f"a port of {home}, the node's address"
                    raise checks.InvalidRecord(f"instances[{at}].{field}", place, allowed)


def host_of(place: str, with_port: bool = True) -> str:
    """The host in "host:port", or in "host" alone; of an IPv6 address without brackets."""
    return (place.rpartition(":")[0] if with_port else place).strip("[]")
