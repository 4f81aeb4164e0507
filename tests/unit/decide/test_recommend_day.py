"""Mode recommend over 24 simulated hours with many kinds of events sends no effect to any port."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from autoscaler.decide import decide
from autoscaler.domain.cluster import Mode
from autoscaler.estimate.model_demand import observe_demand
from autoscaler.state.controller_state import Observation
from autoscaler.state.effects import Effect, PublishDecision, SolveRequested
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, world
from topics.alerts import Alert
from topics.supply import Availability, Price

ONE = pool("one", nodes=12, per_node=1)
_EVERY_S = 60


class Recording:
    """All ports in one object. It counts their effects."""

    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        self.heard.update(type(effect).__name__ for effect in effects)


def day(w: World, t: int) -> None:
    """Prices, offers and alerts that appear and disappear during the day."""
    if t % 3600 == 0:
        usd = 8.0 * (1.5 if t % 7200 else 1.0)
        w.prices[ONE.id] = Price(ONE.id, usd, w.now_ms)
        w.availability[ONE.id] = Availability(ONE.id, (t // 3600) % 12, w.now_ms)
    if t % 5000 == 0:
        w.alerts.append(Alert(f"a{t}", "HighLatency", "firing", w.now_ms, ("chat",)))


@pytest.mark.slow
def test_a_day_in_mode_recommend_has_no_effects() -> None:
    """Load varies between 2 and 38 req/s, gateways are silent at times, and ticks are a minute
    apart. The controller makes recommendations all day.
    """
    w = world(
        lambda _m, t: 20.0 + 18.0 * math.sin(t / 86_400 * 2 * math.pi),
        service(mode=Mode.RECOMMEND, min_instances=2),
        pools=(ONE,),
        seed=3,
    )
    ports, applied = Recording(), []
    recommended = 0
    for _ in range(86_400 // _EVERY_S):
        w.t_s += _EVERY_S
        w.silent = {"g1"} if w.t_s % 7000 > 6900 else set()
        w._gateways(w.t_s - _EVERY_S)
        day(w, w.t_s)
        ready = [request for at_s, request in w.due if at_s <= w.t_s]
        w.due = [item for item in w.due if item[0] > w.t_s]
        seen = Observation(
            observe_demand(w.windows, ["chat"], w.cluster.policy, w.now_ms),
            availability=dict(w.availability),
            prices=dict(w.prices),
            answers=tuple(w.planner.answer(request, w.cluster) for request in ready),
            alerts=tuple(w.alerts),
        )
        w.alerts.clear()
        w.state, effects = decide(w.state, seen, w.cluster, w.now_ms)
        ports.carry_out(effects)
        for effect in effects:
            if isinstance(effect, PublishDecision):
                applied.append(effect.record.applied and effect.record.model != "*")
                recommended += bool(effect.record.change)
            elif isinstance(effect, SolveRequested):
                w.due.append((w.t_s + 1, effect.request))
    assert set(ports.heard) <= {"PublishDecision", "PublishLedger", "SolveRequested"}
    assert recommended >= 5 and not any(applied)
    assert (
        w.state.groups == ()
        and dict(w.state.published.assignments) == {}
        and dict(w.state.published.routes) == {}
    )
