"""States of a fleet, each made by the real core from what gateways, executors and people do.

expected of each state: the level of the model "chat", whether `doctor` finds a fault, whether
`status` ends with exit code 1, and words that the page shows outside of the table of models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Market, Mode
from autoscaler.domain.condition_level import Level
from autoscaler.estimate.model_demand import observe_demand
from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import FleetStatus, fleet_status
from streams.loop.tick_loop import TickResult
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import World, world
from topics.supply import Price

NODES = pool(nodes=3, per_node=1)
SPOT = pool(nodes=6, per_node=1, market=Market.SPOT, usd=3.0)
OLD_MS = 3_600_000
HUNDRED = tuple(f"m{k:02d}" for k in range(99))


@dataclass(frozen=True, slots=True)
class State:
    """One state. is_led: whether this controller leads. late_s: seconds since its last tick.
    refused: by model, why its last declaration cannot be used."""

    made: Callable[[], World]
    level: Level = Level.OK
    is_fault: bool = False
    is_failure: bool = False
    shown: str = ""
    is_led: bool = True
    late_s: float = 0.0
    refused: Mapping[str, str] | None = None


def tick_of(w: World) -> tuple[TickResult, FleetStatus]:
    """The last tick of a simulated fleet, and its status."""
    models = [service.model for service in w.cluster.services]
    seen = Observation(
        observe_demand(w.windows, models, w.cluster.policy, w.now_ms),
        dict(w.statuses),
        prices=dict(w.prices),
        unmanaged=w.unmanaged_servers(),
        lag_ms={topic: seconds * 1000 for topic, seconds in w.lag_s.items()},
    )
    done = TickResult(w.state, w.state, seen, w.cluster, w.now_ms, (), 0.0)
    return done, fleet_status(w.state, seen, w.cluster, w.now_ms)


def usual(rate: float = 5.0, run_s: int = 400, **switches: object) -> World:
    return world(rate, pools=(NODES,), **switches).run(run_s)


def approve(run_s: int = 400) -> World:
    return world(5.0, service(mode=Mode.APPROVE), pools=(NODES,), missing={"chat": 1.0}).run(run_s)


def recommend(counted: int | None, **switches: object) -> World:
    """counted: number of servers that Shoal did not start, None = not known yet."""
    theirs = service(mode=Mode.RECOMMEND, unmanaged=simple("chat", NODES)[0].id)
    counts = {} if counted is None else {"chat": counted}
    return world(5.0, theirs, pools=(NODES,), unmanaged=counts, **switches).run(400)


def ordered(kind: str, run_s: int = 60, **switches: object) -> World:
    w = usual(**switches)
    w.say("chat", kind)
    return w.run(run_s)


def later(change: str, run_s: int, **switches: object) -> World:
    """A well fleet, some seconds after a fault. change: the switch of the world for it."""
    w = usual(**switches)
    getattr(w, change).update({"chat": 0.5} if change == "missing" else {"chat"})
    return w.run(run_s)


def a_little_below() -> World:
    w = usual()
    w.missing["chat"] = 0.1
    return w.run(300)


def after_a_broken_promise() -> World:
    w = later("missing", 200)
    w.missing.clear()
    return w.run(330)


def starting() -> World:
    w = world(lambda _, t: 5.0 if t < 400 else 12.0, pools=(NODES,)).run(400)
    while not any(s.ready < s.wanted for s in tick_of(w)[1].models):
        w.run(2)
    return w


def leaving() -> World:
    w = world(lambda _, t: 15.0 if t < 400 else 1.0, pools=(NODES,), drain_s=60).run(400)
    for _ in range(2000):
        if "leaving" in tick_of(w)[1].models[0].conditions:
            break
        w.run(2)
    return w


def growth_waits() -> World:
    """One instance, which the operator approved, is enough; the second one is only proposed."""
    w = world(lambda _, t: 5.0 if t < 600 else 8.5, service(mode=Mode.APPROVE), pools=(NODES,))
    w.run(60)
    proposal = w.state.models["chat"].advisory.proposal
    assert proposal is not None
    w.say("chat", "verdict", proposal=proposal.number, leader_token=proposal.leader_token)
    return w.run(1200)


def spot_limit() -> World:
    both = (*simple("chat", NODES), *simple("chat", SPOT))
    small = replace(NODES, max_nodes=1)
    return world(30.0, service(spot_share=0.5), pools=(small, SPOT), catalogue={"chat": both}).run(
        400
    )


def one_of_a_hundred() -> World:
    many = pool(nodes=120, per_node=1)
    services = (*(service(name) for name in HUNDRED), service())
    return world(2.0, *services, pools=(many,), missing={"chat": 0.5}).run(200)


def dead_price_feed() -> World:
    w = usual()
    w.prices[NODES.id] = Price(NODES.id, 8.0, w.now_ms - 2 * OLD_MS)
    return w.run(10)


def lost_node() -> World:
    w = world(12.0, pools=(NODES,)).run(400)
    w.cut.add(next(iter(w.rented(NODES.id))))
    return w.run(40)


def broken(made: Callable[[], World], shown: str = "") -> State:
    return State(made, Level.BROKEN, is_fault=True, is_failure=True, shown=shown)


def at_risk(made: Callable[[], World]) -> State:
    return State(made, Level.AT_RISK, is_fault=True)


STATES: dict[str, State] = {
    "steady": State(usual),
    "outage in act": broken(lambda: usual(failing={NODES.id})),
    "outage in approve": broken(approve),
    "outage in recommend": broken(lambda: recommend(1, missing={"chat": 1.0})),
    "outage behind a pause": broken(
        lambda: ordered("pause", failing={NODES.id}), shown="incident 7"
    ),
    "paused": State(lambda: ordered("pause"), Level.ATTENTION, shown="incident 7"),
    "frozen": State(lambda: ordered("freeze"), shown="incident 7"),
    "released": State(lambda: ordered("release"), Level.ATTENTION, shown="incident 7"),
    "recommend": State(lambda: recommend(1)),
    "recommend, servers not counted": State(lambda: recommend(None), Level.ATTENTION),
    "no telemetry any more": at_risk(lambda: later("silent", 90)),
    "never telemetry": at_risk(lambda: usual(silent={"chat"})),
    "short of nodes": at_risk(lambda: usual(60.0)),
    "short by the spot limit": at_risk(spot_limit),
    "starting": State(starting),
    "draining": State(leaving),
    "a proposal waits": State(growth_waits, Level.ATTENTION, shown="Waiting for approval"),
    "far below its promise": broken(lambda: later("missing", 200)),
    "a little below its promise": broken(a_little_below),
    "was below its promise": State(after_a_broken_promise, Level.ATTENTION),
    "one of a hundred below its promise": broken(one_of_a_hundred),
    "dead price feed": State(dead_price_feed, is_fault=True, shown="stale"),
    "telemetry is read late": State(
        lambda: usual(lag_s={"telemetry": 90}), is_fault=True, shown="telemetry 90 s late"
    ),
    "a declaration is refused": State(
        usual, is_fault=True, shown="slo.ttft", refused={"chat": "slo.ttft: 0 is not allowed"}
    ),
    "no decision any more": State(
        usual, is_fault=True, is_failure=True, shown="no decision for", late_s=600.0
    ),
    "a lost node": State(lost_node, shown="lost"),
    "standby": State(usual, shown="stands by", is_led=False),
}
