"""The controller starts instances before an hourly burst, including right after a restart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.state.effects import PublishLedger
from autoscaler.state.ledger import ArrivalsHour, read_part, write_part
from tests.unit.decide.decide_catalogue import service
from tests.unit.decide.decide_world import T0, World, world
from topics.reason_codes import ReasonCode

HOUR_S = 3600
BURST_AT_S = 900
"""Seconds from T0 to the next burst."""


def rate(_model: str, t_s: int) -> float:
    return 40.0 if (t_s - BURST_AT_S) % HOUR_S < 360 else 8.0


def remembering(forecast: str) -> World:
    """A world 15 minutes before a burst, with six hours of history: the controller has just taken
    over.
    """
    w = world(rate)
    policy = replace(w.cluster.policy, forecast=forecast)
    w.cluster = replace(w.cluster, policy=policy)
    minute0, first = T0 // 60_000, T0 // 3_600_000 - 6
    for hour in range(first, T0 // 3_600_000 + 1):
        minutes = range(hour * 60, hour * 60 + 60)
        arrivals = tuple(round(60 * rate("", (m - minute0) * 60)) if m < minute0 else -1
                         for m in minutes)  # fmt: skip
        entry = write_part("chat", ArrivalsHour(hour, arrivals), 1, T0)
        w.ledger[entry.key] = entry
    w.restart_controller()
    return w


def test_a_burst_that_comes_each_hour_finds_its_instances_ready() -> None:
    ahead, late = remembering("auto").run(BURST_AT_S - 1), remembering("none").run(BURST_AT_S - 1)
    assert ahead.ready("chat") > late.ready("chat")
    assert any(ReasonCode.FORECAST in d.codes for d in ahead.of_kind("scale_out"))


def test_the_rate_history_is_known_again_after_a_restart() -> None:
    w = remembering("auto").run(700)
    before = w.state.models["chat"].estimate.forecast.history
    w.restart_controller()
    w.run(15)
    after = w.state.models["chat"].estimate.forecast.history
    known = min(len(before.rates()), len(after.rates()))
    assert known > 360
    assert np.array_equal(before.rates()[:known], after.rates()[:known], equal_nan=True)


def test_rates_are_published_once_in_ten_minutes() -> None:
    w = world(rate)
    w.run(1250)
    entries = [e.record for e in w.effects if isinstance(e, PublishLedger)]
    written = [entry for entry in entries if entry.kind == "arrivals"]
    assert 2 <= len(written) <= 4
    part = read_part(written[-1])
    assert isinstance(part, ArrivalsHour)
    known = [count for count in part.arrivals if count >= 0]
    assert known and all(count > 0 for count in known)


def test_every_model_is_forecast_if_ticks_are_ten_seconds_apart() -> None:
    """Each model is forecast in its own second of ten. With ticks ten seconds apart, no tick may
    fall on that second.
    """
    w = world(1.0, *(service(model) for model in "abcdefghij"))
    for _ in range(10):
        w.t_s += 9
        w.tick()
    assert all(model.estimate.forecast.history.end_minute for model in w.state.models.values())
