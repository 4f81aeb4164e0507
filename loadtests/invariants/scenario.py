"""Scenario of a seed: a cluster, its load, and the faults with their times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Market, Mode, Policy, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.performance import catalog

QUIET_S = 180.0
"""Seconds without faults at the end of each run, by which everything must have converged."""
_AFTER_S = 60.0
_MODELS = (
    ("chat", "meta-llama/Llama-3.1-8B-Instruct"),
    ("code", "meta-llama/Llama-3.2-3B-Instruct"),
    ("tiny", "meta-llama/Llama-3.2-1B-Instruct"),
)

KINDS = (
    "telemetry gap", "false zero", "strain", "gateway cut", "gateway killed", "gateway age wrong",
    "leader killed", "leader stopped", "leader cut", "standby killed", "broker away",
    "broker clock", "slow network", "copies", "read again", "lost writes", "no acknowledgement",
    "executor clock", "executor killed", "node lost", "node cut", "region cut", "launches fail",
    "launches stuck", "engine killed", "prices absurd", "poison", "stale leader", "forged",
    "solver away", "solver slow", "alert storm", "stray", "reclaim", "pause",
    "leadership deleted", "extreme records", "compaction", "keys deleted", "topic deleted",
    "wrong partitions", "leader changes", "disk full",
)  # fmt: skip
SUBJECTS = (
    "telemetry gap", "false zero", "strain", "pause", "stray", "prices absurd", "solver away",
    "alert storm", "forged", "leader changes", "disk full", "node lost",
)  # fmt: skip
"""Faults that a line of the table of promises is about. Each of `KINDS` is drawn with each of them
within `COVER` consecutive seeds."""
_BETWEEN = frozenset((
    "broker away", "leader cut", "slow network", "node cut", "region cut", "executor killed",
    "node lost", "lost writes", "leader stopped", "reclaim", "topic deleted",
))  # fmt: skip
"""Faults that can cut off executors from the leader."""
_OTHERS = 4
COVER = len(SUBJECTS) * -(-len(KINDS) // _OTHERS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault from at_s until until_s. pick: selects the target, in [0, 1)."""

    kind: str
    at_s: float
    until_s: float
    pick: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.0f} s until {self.until_s:.0f} s"


@dataclass(frozen=True, slots=True)
class Load:
    """Requests/s of one model.

    The rate is `base` until at_s, `base` x `factor` until until_s, then `base` x `after`.
    """

    base: float
    at_s: float
    until_s: float
    factor: float
    after: float

    def rate(self, now_s: float) -> float:
        """Requests/s at `now_s`."""
        if now_s < self.at_s:
            return self.base
        return self.base * (self.factor if now_s < self.until_s else self.after)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scenario of one seed. start_s: shortest and longest time from a launch to ready. skew_s:
    clock errors of the two controllers' hosts. records: whether controllers write a decision log.
    """

    seed: int
    cluster: Cluster
    loads: dict[str, Load]
    faults: tuple[Fault, ...]
    end_s: float
    gateways: int
    start_s: tuple[float, float]
    transactional: bool
    skew_s: tuple[float, float]
    records: bool

    def calm(self, since_s: float, until_s: float) -> bool:
        """Whether no fault cut off executors from the leader between these seconds."""
        return not any(
            f.kind in _BETWEEN and f.at_s <= until_s and since_s <= f.until_s for f in self.faults
        )

    def kinds_at(self, now_s: float) -> set[str]:
        """Kinds of the faults at `now_s` or in the minute before; all kinds at the end."""
        since_s = now_s - _AFTER_S if now_s < self.end_s - 1.0 else 0.0
        return {f.kind for f in self.faults if f.at_s <= now_s and f.until_s >= since_s}


def _drawn(seed: int, rng: random.Random) -> list[str]:
    """The kinds of a seed: one of the subjects, four in turn, and up to two at random."""
    turn, subject = divmod(seed, len(SUBJECTS))
    at = turn * _OTHERS
    kinds = [SUBJECTS[subject], *(KINDS[(at + n) % len(KINDS)] for n in range(_OTHERS))]
    return list(dict.fromkeys([*kinds, *rng.sample(KINDS, rng.randint(0, 2))]))


def scenario(seed: int, kinds: Sequence[str] = ()) -> Scenario:
    """The scenario of `seed`. It is equal on every machine.

    kinds: faults to use instead of drawn ones, each as often as it is listed. Their times are
    drawn.
    """
    rng = random.Random(f"shoal invariants {seed}")
    models = _MODELS[: rng.choice((1, 2, 2, 3))]
    l4, l40s = catalog.gpu("L4"), catalog.gpu("L40S")
    pools = (
        Pool("us", "l4", l4, 4, rng.randint(4, 8), Market.ON_DEMAND, 4.0),
        Pool("us", "l4", l4, 4, rng.randint(2, 6), Market.SPOT, 1.6),
        Pool("eu", "l40s", l40s, rng.choice((1, 2, 4)), rng.randint(4, 8), Market.ON_DEMAND, 8.0),
    )
    services = tuple(
        Service(
            model=name,
            architecture=catalog.model(source),
            slo=Slo(2000.0, 100.0),
            min_instances=rng.choice((1, 1, 2)),
            mode=Mode.ACT,
            lengths=Lengths(512.0, 128.0),
            spot_share=rng.choice((0.0, 0.5)),
            scale_in_after_s=rng.choice((40.0, 60.0, 90.0)),
            max_disruption=rng.choice((0.1, 0.34)),
            priority=rng.randint(0, 2),
        )
        for name, source in models
    )
    policy = Policy(
        local_window_s=40, global_window_s=300, start_timeout_s=120.0,
        drain_timeout_s=60.0, replan_every_s=rng.choice((60.0, 120.0, 300.0)),
    )  # fmt: skip
    end_s = rng.choice((330.0, 400.0, 470.0))
    loads = {
        service.model: Load(
            base=rng.uniform(1.0, 15.0),
            at_s=rng.uniform(60.0, 110.0),
            until_s=rng.uniform(120.0, end_s - QUIET_S),
            factor=rng.choice((0.1, 0.5, 1.0, 1.0, 3.0, 10.0)),
            after=rng.choice((0.1, 0.3, 1.0, 1.0, 2.0)),
        )
        for service in services
    }
    faults = []
    for kind in kinds or _drawn(seed, rng):
        at_s = rng.uniform(45.0, end_s - QUIET_S - 30.0)
        last_s = min(rng.choice((10.0, 30.0, 60.0, 120.0)), end_s - QUIET_S - at_s)
        faults.append(Fault(kind, at_s, at_s + last_s, rng.random()))
    low = rng.uniform(5.0, 30.0)
    return Scenario(
        seed,
        Cluster(pools, services, policy),
        loads,
        tuple(sorted(faults, key=lambda f: f.at_s)),
        end_s,
        rng.choice((1, 2, 3)),
        (low, low + rng.uniform(0.0, 20.0)),
        rng.random() < 0.7,
        (rng.choice((0.0, 0.0, 90.0, -300.0, 3600.0)), rng.choice((0.0, 0.0, 300.0, -90.0))),
        any(fault.kind == "disk full" for fault in faults),
    )
