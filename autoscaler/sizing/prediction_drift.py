"""Compares measured start times and capacity with their predictions. If start times differ from the
prediction by more than a fifth, the measured time is used. `sizing.capacity_derating` measures
capacity. A model whose start time or capacity differs by more than a fifth is uncertain. After a
day below prediction, scale-in needs a person's approval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.rollout.serving_group import FleetView, ServingGroup
from autoscaler.sizing.capacity_derating import LOADED
from autoscaler.sizing.capacity_interval import update_interval
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import ModelState, PredictionDrift
from topics.decisions import Decision
from topics.fleet import InstanceState
from topics.reason_codes import ReasonCode

_OFF = 0.2
"""Relative difference from a prediction from which it is reported. Smaller ones are usual for the
performance model."""
_LEAST_STARTS = 3
"""Measured starts from which their median replaces the predicted time."""
_SUSPECT_MS = 86_400_000
"""Time in ms for which predictions must drift before scale-in needs approval. A day contains every
hour of the load."""


def update_drift(
    state: ModelState,
    groups: Collection[ServingGroup],
    fleet: FleetView,
    combos: Mapping[str, Combo],
    cluster: Cluster,
    now_ms: int,
) -> ModelState:
    """`state` with the measured start times of the model's instances, the interval of their
    predicted capacity, and the time since which measurements are worse than predicted.

    The measured start times are dropped once the model has groups, but none of the measured
    combos.
    """
    took = _measured_start(groups, fleet, combos, cluster)
    learnt = state.capacity.drift
    if groups and {*learnt.combos}.isdisjoint(group.combo_id for group in groups):
        learnt = replace(learnt, start_s=0.0, predicted_s=0.0, combos=())
    if len(took) >= _LEAST_STARTS:
        measured_s, predicted_s = median(s for _, s, _ in took), median(s for _, _, s in took)
        # A measured time is too long by at most the age of a status.
        little_s = max(_OFF * predicted_s, cluster.policy.node_silent_s)
        apart = abs(measured_s - predicted_s) > little_s
        measured_s = float(f"{measured_s:.2g}") if apart else predicted_s
        of = tuple(sorted({combo_id for combo_id, _, _ in took}))
        learnt = replace(learnt, start_s=measured_s, predicted_s=predicted_s, combos=of)
    known = update_interval(state.capacity, groups, combos, cluster)
    worse_ms = (learnt.worse_since_ms or now_ms) if _drift_reasons(learnt, known.derate) else 0
    off = bool(_capacity(known.derate) or _starts(learnt))
    learnt = replace(learnt, off=off, worse_since_ms=worse_ms)
    known = known if learnt == known.drift else replace(known, drift=learnt)
    return state if known == state.capacity else replace(state, capacity=known)


def start_times_s(combos: Iterable[Combo], models: Mapping[str, ModelState]) -> dict[str, float]:
    """Seconds from launch to ready of each model's slowest combo."""
    found: dict[str, float] = {}
    for combo in combos:
        found[combo.model] = max(found.get(combo.model, 0.0), combo.start_s)
    return {m: expected_s(models[m], s) if m in models else s for m, s in found.items()}


def expected_s(state: ModelState, predicted_s: float) -> float:
    """Expected start time in seconds of an instance with the prediction `predicted_s`.

    The result is `predicted_s` plus the measured difference. If `predicted_s` is below the
    prediction of the measured starts, only a proportional part of the difference is added, so that
    the result is never 0.
    """
    learnt = state.capacity.drift
    if learnt.start_s == learnt.predicted_s or predicted_s <= 0.0:
        return predicted_s
    share = min(1.0, predicted_s / learnt.predicted_s)
    return predicted_s + share * (learnt.start_s - learnt.predicted_s)


def basis(service: Service, cluster: Cluster) -> str:
    """Hash of the inputs of the model's predictions: weights, engine and engine profile."""
    known = cluster_profile(cluster).content_hash
    told = f"{service.architecture} {service.engine} {known}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def uncertainty(state: ModelState) -> tuple[Reason, ...]:
    """A reason for each measurement that differs by more than a fifth from its prediction."""
    return (*_capacity(state.capacity.derate), *_starts(state.capacity.drift))


def drift_veto(
    state: ModelState, now_ms: int, load_req_per_s: float, planned_req_per_s: float
) -> tuple[Reason, ...]:
    """The reasons why scale-in needs approval; empty if it needs none. Starts that are faster than
    predicted are no risk. Low measured capacity is a reason only under a load that can prove it;
    otherwise surplus capacity could never be removed.
    """
    since_ms = state.capacity.drift.worse_since_ms
    if not since_ms or now_ms - since_ms < _SUSPECT_MS:
        return ()
    shows = load_req_per_s >= LOADED * planned_req_per_s
    return _drift_reasons(state.capacity.drift, state.capacity.derate if shows else 1.0)


def drift_notices(
    before: Mapping[str, ModelState], after: Mapping[str, ModelState], now_ms: int
) -> Iterator[Decision]:
    """A decision for each model that became uncertain or is no longer uncertain."""
    for model, state in after.items():
        was = before[model].capacity.drift if model in before else PredictionDrift()
        now = state.capacity.drift
        if was.off == now.off:
            continue
        if now.off:
            why = Reason(ReasonCode.UNCERTAIN, model, because=uncertainty(state))
        elif was.combos and not now.combos:
            why = Reason(ReasonCode.NOT_MEASURED, model)
        else:
            why = Reason(ReasonCode.AS_PREDICTED, model)
        yield notice(model, why, now_ms)


def _measured_start(
    groups: Iterable[ServingGroup], fleet: FleetView, combos: Mapping[str, Combo], cluster: Cluster
) -> list[tuple[str, float, float]]:
    """(combo, measured, predicted) of each serving instance, in seconds from launch to ready.
    Restarted instances are left out, as are instances that may have switched roles or were taken
    over. No status shows whether a launch waited for a rented node. So the prediction may have any
    value between those with and without that wait, and the nearest to the measured time is used.
    """
    provision_s = {pool.id: pool.provision_s for pool in cluster.pools}
    found = []
    for group in groups:
        combo = combos.get(group.combo_id)
        pools = {placed.pool for placed in group.placed}
        if combo is None or len(pools) != 1:
            continue  # the prediction may belong to any of several pools
        least_s = combo.start_s - provision_s.get(pools.pop(), 0.0)
        longest_s = max(cluster.policy.start_timeout_s, 2.0 * combo.start_s)
        for placed in group.placed:
            seen = fleet.instances.get(placed.instance)
            if seen is None or seen.state is not InstanceState.READY or seen.restarts:
                continue
            took_s = (seen.since_ms - seen.launched_ms) / 1000.0
            if seen.launched_ms and least_s > 0.0 and 0.0 < took_s <= longest_s:
                found.append((combo.id, took_s, min(max(took_s, least_s), combo.start_s)))
    return found


def _drift_reasons(learnt: PredictionDrift, derate: float) -> tuple[Reason, ...]:
    late = learnt.start_s > learnt.predicted_s
    return (*_capacity(derate), *(_starts(learnt) if late else ()))


def _capacity(derate: float) -> tuple[Reason, ...]:
    if derate >= 1.0 - _OFF:
        return ()
    return (Reason(ReasonCode.LESS_CAPACITY, quantities=(derate,)),)


def _starts(learnt: PredictionDrift) -> tuple[Reason, ...]:
    if learnt.start_s == learnt.predicted_s:
        return ()
    times_s = learnt.start_s, learnt.predicted_s
    return (Reason(ReasonCode.START_TIMES, quantities=times_s),)
