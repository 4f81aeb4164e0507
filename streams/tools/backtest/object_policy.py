"""Policies of a backtest by name: those of the registry, and files with a user's own objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from autoscaler.domain.cluster import Service
from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.policies.hpa_object import SYNC_S, Hpa, HpaObject
from autoscaler.simulation.policies.policy import Policy, PolicyContext, PolicyRun
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policies.replica_setup import ruled_trial
from autoscaler.simulation.replicas import ReplicaCapacity
from streams.files.hpa_manifest import MODEL, ScaledTarget, read_objects


@lru_cache(maxsize=16)
def policy_of(name: str) -> Policy:
    """The policy of the registry with this name, or that of the file with this path. UserError,
    InvalidValue: the file is invalid."""
    if name in POLICIES:
        return POLICIES[name]
    found = read_objects(Path(name))
    kinds = f"{len(found)} object{'' if len(found) == 1 else 's'} of {name}"
    return Policy(
        name,
        f"your own HorizontalPodAutoscaler or ScaledObject ({kinds}), best single GPU slice per "
        "model",
        "factor on the declared targets",
        1.0,
        (0.6, 0.8, 1.0, 1.25, 1.6),
        "kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale",
        partial(_build, name=name, found=found),
        tick_s=SYNC_S,
    )


def _build(
    context: PolicyContext, knob: float, name: str, found: Sequence[ScaledTarget]
) -> PolicyRun:
    declared = _by_model(name, found, context.scenario.cluster.services)
    rules = {model: partial(_rule, declared=one) for model, one in declared.items()}
    return ruled_trial(context, knob, rules, "declared metric")


def _rule(replica: ReplicaCapacity, knob: float, first: int, declared: HpaObject) -> Hpa:
    del replica
    return Hpa(declared.scaled(knob), first)


def _by_model(
    name: str, found: Sequence[ScaledTarget], services: Sequence[Service]
) -> Mapping[str, HpaObject]:
    """The object of each model. InvalidValue: a model has none or two."""
    if len(services) == len(found) == 1:
        return {services[0].model: found[0].declared}
    by_model: dict[str, HpaObject] = {}
    for service in services:
        mine = [one.declared for one in found if one.name == service.model]
        if len(mine) != 1:
            names = ", ".join(one.name for one in found)
            allowed = f"one for each model, by name or annotation {MODEL}"
            raise InvalidValue(f"{name}: objects of {service.model}", names, allowed)
        by_model[service.model] = mine[0]
    return by_model
