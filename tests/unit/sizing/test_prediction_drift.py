"""Corrections of predictions from observed start times and capacity, and the decisions that state
them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Mode
from autoscaler.domain.measurement import Measurement
from autoscaler.domain.reason import Reason
from autoscaler.rollout.serving_group import FleetView, ServingGroup
from autoscaler.sizing.capacity_derating import LEAST
from autoscaler.sizing.prediction_drift import (
    drift_notices,
    drift_veto,
    expected_s,
    uncertainty,
    update_drift,
)
from autoscaler.state.controller_state import Observation
from autoscaler.state.ledger import ModelMemory, read_part, write_part
from autoscaler.state.model_state import ModelState
from autoscaler.tick.status import fleet_status
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import World, world
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=12, per_node=1)
DAY_S = 86_400


def starting_in(start_s: int, mode: Mode = Mode.ACT) -> World:
    """A world whose instances start in `start_s` seconds; the catalogue predicts 60 s.

    38 req/s need five instances of 10.
    """
    w = world(38.0, service(mode=mode, scale_in_after_s=60.0), pools=(ONE,))
    w.start_s = start_s
    return w


def uncertainty_codes(w: World) -> list[tuple[str, ...]]:
    """The codes of the decisions about uncertain predictions, in order."""
    said = {ReasonCode.UNCERTAIN, ReasonCode.AS_PREDICTED}
    return [d.codes for d in w.decisions if said.intersection(d.codes)]


@pytest.mark.parametrize("start_s", [50, 60, 70])
def test_a_start_within_a_fifth_of_its_prediction_changes_no_estimate(start_s: int) -> None:
    w = starting_in(start_s).run(400)
    assert expected_s(w.state.models["chat"], 60.0) == 60.0
    assert w.routes["chat"].start_s == 60.0
    assert uncertainty_codes(w) == []


def test_longer_starts_change_the_estimate_and_are_stated_once() -> None:
    """Starts take twice the predicted time. Gateways hold requests for the longer time, and the
    decision about the next start states it.
    """
    w = starting_in(120).run(400)
    assert expected_s(w.state.models["chat"], 60.0) == 120.0
    assert w.routes["chat"].start_s == 120.0
    assert uncertainty_codes(w) == [(ReasonCode.UNCERTAIN, ReasonCode.START_TIMES)]
    seen = Observation(statuses=dict(w.statuses))
    shown = fleet_status(w.state, seen, w.cluster, w.now_ms).models[0]
    assert shown.uncertain == "instances start in ~2 min instead of ~60 s"
    w.rate = lambda _m, _t: 70.0
    w.run(60)
    assert "serving in ~2 min" in w.of_kind("scale_out")[-1].reason


@pytest.mark.parametrize(("start_s", "late"), [(60, 0.0), (180, 0.0), (210, 0.0), (240, 60.0)])
def test_the_expected_start_includes_the_time_to_get_a_node(start_s: int, late: float) -> None:
    """60 s for the start and 120 s for the node are predicted. A start within their sum and a fifth
    of it is as predicted.
    """
    where = replace(ONE, provision_s=120.0)
    catalogue = {"chat": simple("chat", where, start_s=180.0)}
    w = world(38.0, service(), pools=(where,), catalogue=catalogue, start_s=start_s).run(700)
    assert expected_s(w.state.models["chat"], 180.0) == 180.0 + late


@pytest.mark.parametrize(("start_s", "late"), [(750, 350.0), (850, 0.0)])
def test_starts_of_more_than_twice_the_prediction_are_not_measured(
    start_s: int, late: float
) -> None:
    catalogue = {"chat": simple("chat", ONE, start_s=400.0)}
    w = world(38.0, service(), pools=(ONE,), catalogue=catalogue, start_s=start_s).run(1000)
    assert expected_s(w.state.models["chat"], 400.0) == 400.0 + late


def test_two_starts_are_too_few_and_a_repeated_start_does_not_count() -> None:
    w = world(10.0, service(), pools=(ONE,))
    w.start_s = 120
    w.run(400)
    assert w.ready("chat") == 2
    assert expected_s(w.state.models["chat"], 60.0) == 60.0


def in_a_minute_instead_of_five() -> World:
    """Five instances on a pool with a predicted start of 300 s; they take 60 s."""
    catalogue = {"chat": simple("chat", ONE, start_s=300.0)}
    w = world(38.0, service(scale_in_after_s=60.0), pools=(ONE,), catalogue=catalogue)
    return w.run(700)


@pytest.mark.parametrize(
    ("predicted_s", "then_s"), [(300.0, 60.0), (60.0, 12.0), (600.0, 360.0), (0.0, 0.0)]
)
def test_an_expected_start_takes_at_least_a_fifth_of_its_prediction(
    predicted_s: float, then_s: float
) -> None:
    """Earlier starts were four minutes faster than predicted, which is more than the next
    prediction of one minute.
    """
    chat = in_a_minute_instead_of_five().state.models["chat"]
    assert [reason.code for reason in uncertainty(chat)] == [ReasonCode.START_TIMES]
    assert expected_s(chat, predicted_s) == pytest.approx(then_s)


def test_start_estimates_are_dropped_once_only_other_combos_run() -> None:
    """The pool of the measured starts no longer runs instances. If no instance runs at all, the
    estimates stay.
    """
    w = in_a_minute_instead_of_five()
    chat, own = w.state.models["chat"], w.state.groups

    def after(groups: tuple[ServingGroup, ...]) -> ModelState:
        return update_drift(
            chat, groups, FleetView({}, {}), w.state.evaluated.combos, w.cluster, w.now_ms
        )

    elsewhere = (replace(own[0], combo_id="chat:a1@other"),)
    assert uncertainty(after(())) and uncertainty(after(own[:1]))
    assert uncertainty(after(elsewhere)) == ()
    (told,) = drift_notices({"chat": chat}, {"chat": after(elsewhere)}, w.now_ms)
    assert told.codes == (ReasonCode.NOT_MEASURED,)
    assert expected_s(after(elsewhere), 60.0) == 60.0


def test_faster_starts_are_marked_and_block_no_scale_in() -> None:
    w = in_a_minute_instead_of_five()
    w.run(60)
    later_ms = w.now_ms + 2 * DAY_S * 1000
    chat = w.state.models["chat"]
    assert uncertainty(chat) and not drift_veto(chat, later_ms, 38.0, 40.0)
    lower = update_drift(
        replace(chat, capacity=replace(chat.capacity, derate=0.5)),
        w.state.groups,
        FleetView({}, {}),
        w.state.evaluated.combos,
        w.cluster,
        w.now_ms,
    )
    assert drift_veto(lower, later_ms, 38.0, 40.0) == (
        Reason(ReasonCode.LESS_CAPACITY, quantities=(0.5,)),
    )


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.APPROVE])
def test_after_a_day_of_wrong_predictions_scale_in_needs_approval(mode: Mode) -> None:
    """Load falls to a tenth. After a minute of wrong predictions the fleet still shrinks. After a
    day it stays until starts are as predicted; mode approve proposes the removal.
    """
    shrunk = starting_in(120).run(400)
    shrunk.rate = lambda _m, _t: 3.8
    assert shrunk.run(1200).assigned_count("chat") < 5
    w = starting_in(120).run(400)
    _suspect_for_a_day(w)
    if mode is Mode.APPROVE:
        w.cluster = replace(
            w.cluster, services=tuple(replace(s, mode=mode) for s in w.cluster.services)
        )
    w.rate = lambda _m, _t: 3.8
    w.run(1200)
    assert w.assigned_count("chat") == 5
    proposed = [d for d in w.decisions if d.expires_ms]
    assert bool(proposed) == (mode is Mode.APPROVE)
    model = w.state.models["chat"]
    assert uncertainty(model)
    if mode is Mode.ACT:
        w.statuses.clear()
        w.start_s = 60
        w.launched = {name: at - 60_000 for name, at in w.launched.items()}
        w.run(1200)
        assert not uncertainty(w.state.models["chat"])
        assert uncertainty_codes(w)[-1] == (ReasonCode.AS_PREDICTED,)


@pytest.mark.parametrize(("load", "shrinks"), [(30.0, False), (2.0, True)])
def test_low_learnt_capacity_blocks_scale_in_only_at_informative_loads(
    load: float, shrinks: bool
) -> None:
    """A load below half of the planned load cannot raise the learnt capacity again. Without this
    rule the whole fleet would stay idle endlessly.
    """
    w = starting_in(60).run(400)
    model = w.state.models["chat"]
    day = replace(model.capacity.drift, worse_since_ms=w.now_ms - DAY_S * 1000)
    low = replace(
        model, capacity=replace(model.capacity, derate=0.6, derated_ms=w.now_ms, drift=day)
    )
    w.state = replace(w.state, models={"chat": low})
    before = w.run(100).assigned_count("chat")
    w.rate = lambda _m, _t: load
    after = w.run(1300).assigned_count("chat")
    assert (after < before) == shrinks


def test_capacity_far_below_its_prediction_is_marked_uncertain() -> None:
    w = starting_in(60).run(400)
    model = replace(
        w.state.models["chat"],
        capacity=replace(w.state.models["chat"].capacity, derate=0.72, derated_ms=w.now_ms),
    )
    w.state = replace(w.state, models={"chat": model})
    w.run(30)
    assert uncertainty_codes(w) == [(ReasonCode.UNCERTAIN, ReasonCode.LESS_CAPACITY)]


def test_a_new_leader_keeps_the_learnt_estimates() -> None:
    """It keeps the learnt capacity and the time since when starts are late. It
    repeats no decision.
    """
    w = starting_in(120).run(400)
    _suspect_for_a_day(w)
    model = replace(
        w.state.models["chat"],
        capacity=replace(w.state.models["chat"].capacity, derate=0.9, derated_ms=w.now_ms),
    )
    w.state = replace(w.state, models={"chat": model})
    w.run(610)
    before, told = w.state.models["chat"], uncertainty_codes(w)
    w.restart_controller()
    w.run(5)
    after = w.state.models["chat"]
    assert (after.capacity.derate, after.capacity.drift) == (
        before.capacity.derate,
        before.capacity.drift,
    )
    assert after.capacity.derate < 1.0 and drift_veto(after, w.now_ms, 38.0, 40.0)
    assert uncertainty_codes(w) == told


def learn(w: World, **capacity: float) -> None:
    """Write another measured capacity into the ledger."""
    entry = w.ledger["model/chat"]
    part = read_part(entry)
    assert isinstance(part, ModelMemory)
    state = replace(part.state, capacity=replace(part.state.capacity, **capacity))
    w.ledger[entry.key] = write_part("chat", replace(part, state=state), 1, entry.at_ms)


@pytest.mark.parametrize("changed", ["measurements", "weights", "engine", "nothing"])
def test_learnt_capacity_is_dropped_if_the_predictions_have_another_basis(changed: str) -> None:
    """The controller restarts with other measurements, weights or another engine."""
    w = starting_in(60).run(60)
    (chat,) = w.cluster.services
    spec = chat.architecture
    learn(w, derate=0.6)
    sizes = (spec.layers, spec.hidden, spec.vocab, spec.experts)
    own = Measurement(sizes, "bf16", "h100", 1, 1.5, 1.5, 0.1, 9, "2026-11-20")
    other = replace(chat, architecture=replace(spec, weight_dtype="fp8"))
    told = {
        "measurements": replace(w.cluster, measurements=(own,)),
        "weights": replace(w.cluster, services=(other,)),
        "engine": replace(w.cluster, services=(replace(chat, engine="other"),)),
        "nothing": w.cluster,
    }
    w.cluster = told[changed]
    w.restart_controller()
    assert w.state.models["chat"].capacity.derate == (0.6 if changed == "nothing" else 1.0)


def test_learnt_estimates_are_published_without_forecasts() -> None:
    w = starting_in(120)
    w.cluster = replace(w.cluster, policy=replace(w.cluster.policy, forecast="none"))
    w.run(400)
    w.restart_controller()
    assert w.state.models["chat"].capacity.drift.start_s == 120.0


def test_learnt_estimates_are_published_right_after_a_full_hour() -> None:
    """No minute of the next hour is counted yet."""
    w = starting_in(120)
    w.t_s = 2690  # the hour is over at 2800
    w.run(160)
    before = w.state.models["chat"]
    assert (
        before.estimate.forecast.history.end_minute % 60 == 0
        and before.capacity.drift.start_s == 120.0
    )
    w.restart_controller()
    assert w.state.models["chat"].capacity.drift == before.capacity.drift


def test_a_new_leader_corrects_times_from_the_future_and_impossible_capacity() -> None:
    """The forged capacity is below the least that a leader can learn."""
    w = starting_in(60).run(400)
    learn(w, derate=0.01, derated_ms=w.now_ms + 5 * 3_600_000)
    w.restart_controller()
    capacity = w.state.models["chat"].capacity
    assert (capacity.derate, capacity.derated_ms) == (LEAST, w.now_ms)


def _suspect_for_a_day(w: World) -> None:
    model = w.state.models["chat"]
    since_ms = model.capacity.drift.worse_since_ms - DAY_S * 1000
    model = replace(
        model,
        capacity=replace(
            model.capacity, drift=replace(model.capacity.drift, worse_since_ms=since_ms)
        ),
    )
    w.state = replace(w.state, models={"chat": model})
