"""The rules that `loadtests.ablation` takes out, one at a time, and how each is taken out.

A rule is a function of the product. It is replaced, in each module that uses it, by a function that
lacks the rule. All these functions are pure, so one run with every rule can also tell which rules
ever made a difference: `watching` compares both results of each call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from autoscaler.estimate.overdispersion import POISSON
from autoscaler.modes import mix_changed
from autoscaler.replan import (
    availability_changed,
    excess_capacity,
    fragmentation,
    launch_failed,
    lengths_changed,
    nodes_changed,
    period_elapsed,
    price_changed,
    slo_missed,
    switchable_roles_changed,
    unapplied_plan,
)
from autoscaler.sizing import (
    burst_headroom,
    engine_counts,
    forecast_increase,
    queue_growth,
    rate_increase,
)

Function = Callable[..., Any]
WITH_ALL = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the product. group: the part of the product. targets: the names that refer to it,
    as module:name. without: called like the rule, returns the value without it. listed: the rule
    itself, if the targets are tuples of rules from which it is taken."""

    name: str
    group: str
    targets: tuple[str, ...]
    without: Function | None = None
    listed: Function | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One run. rule: the rule taken out, or WITH_ALL."""

    trace: str
    seed: int
    rule: str


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of a run. attained: share of the requests. changed: instances that a decision
    added or removed. made_a_difference: rules, in a run with all rules."""

    usd: float
    attained: float
    changed: int
    made_a_difference: tuple[str, ...] = ()


def _constant(value: object) -> Function:
    return lambda *args, **kwargs: value


def _raising(name: str, rule: Function) -> Rule:
    return Rule(name, "sizing", ("autoscaler.sizing.rules:RAISING",), listed=rule)


def _trigger(name: str, rule: Function) -> Rule:
    return Rule(name, "trigger", ("autoscaler.replan.triggers:TRIGGERS",), listed=rule)


def _rule(name: str, group: str, without: Function, *targets: str) -> Rule:
    return Rule(name, group, targets, without)


_SCALE_IN = "autoscaler.sizing.scale_in"
_CHECKS = "autoscaler.sizing.scale_in_conditions"
_REQUEST = "autoscaler.replan.plan_request"

RULES: tuple[Rule, ...] = (
    _raising("rate_increase", rate_increase.propose),
    _raising("burst_headroom", burst_headroom.propose),
    _raising("queue_growth", queue_growth.propose),
    _raising("engine_counts", engine_counts.propose),
    _raising("forecast_increase", forecast_increase.propose),
    _rule(
        "evidence of an increase below the plan's proof",
        "sizing",
        _constant([]),
        "autoscaler.sizing.rate_increase:_spans_of_increase",
    ),
    _rule(
        "first order of at least 3% more",
        "sizing",
        _constant(0.0),
        "autoscaler.sizing.rate_increase:_first_order",
    ),
    _rule(
        "dispersion of arrivals in tests",
        "sizing",
        _constant(POISSON),
        "autoscaler.sizing.rate_increase:dispersion",
        "autoscaler.estimate.change_point:dispersion",
    ),
    _rule(
        "derating after misses",
        "capacity",
        lambda view: view.state,
        "autoscaler.sizing.capacity_derating:update_derating",
    ),
    _rule(
        "derating of slow engines",
        "capacity",
        _constant(None),
        "autoscaler.sizing.engine_slowdown:token_time_ratio",
    ),
    _rule(
        "capacity above its plan, as measured",
        "capacity",
        _constant(0.0),
        "autoscaler.sizing.capacity_derating:learnt_gain",
    ),
    _rule(
        "burstiness of arrivals in the capacity",
        "capacity",
        _constant(1.0),
        "autoscaler.model.update:arrival_cv",
    ),
    _rule(
        "the highest span instead of the mean",
        "scale-in",
        _constant(0.0),
        f"{_SCALE_IN}:_highest_rate",
    ),
    _rule(
        "idle capacity worth its rent", "scale-in", _constant(0.0), f"{_SCALE_IN}:_worth_keeping"
    ),
    _rule("not below the forecast", "scale-in", _constant(0.0), f"{_SCALE_IN}:expected_req_per_s"),
    _rule("not while SLOs are missed", "scale-in", _constant(None), f"{_CHECKS}:slo_pressure"),
    _rule("limit of reversals", "scale-in", _constant(True), f"{_CHECKS}:scale_in_within_limit"),
    _rule("not while predictions drift", "scale-in", _constant(()), f"{_CHECKS}:drift_veto"),
    _rule("plans keep capacity that may not leave", "plan", _constant(()), f"{_REQUEST}:_keeps"),
    _rule("young instances stay", "plan", _constant(()), f"{_REQUEST}:_settling"),
    _rule("no exchange after an excess", "plan", _constant(False), f"{_REQUEST}:_removals_only"),
    _rule(
        "best fleet instead of additions only",
        "plan",
        _constant(None),
        "autoscaler.planning.planner:_lasting_plan",
    ),
    _rule(
        "running fleet within the gap stays",
        "plan",
        lambda arrays, problem, solved: solved,
        "autoscaler.planning.strategies.shoal:_prefer_running_fleet",
    ),
    _rule(
        "groups move to release a node",
        "plan",
        _constant(0),
        "autoscaler.apply.plan_answer:defragment",
    ),
    _rule(
        "no nodes beyond the plan",
        "plan",
        lambda site, limits, stays: site,
        "autoscaler.apply.plan_answer:within_plan",
    ),
    _rule(
        "partly applied plans wait for room",
        "plan",
        _constant(False),
        "autoscaler.tick.request_plans:waits_for_room",
    ),
    _rule(
        "an equal plan is not tried again soon",
        "plan",
        _constant(False),
        "autoscaler.tick.request_plans:already_tried",
    ),
    _rule(
        "plans a minute are limited",
        "plan",
        _constant(True),
        "autoscaler.tick.request_plans:plan_allowed",
    ),
    _trigger("period", period_elapsed.fire),
    _trigger("price", price_changed.fire),
    _trigger("availability", availability_changed.fire),
    _trigger("nodes", nodes_changed.fire),
    _trigger("launch_failed", launch_failed.fire),
    _trigger("slo_missed", slo_missed.fire),
    _trigger("mix", mix_changed.fire),
    _trigger("lengths", lengths_changed.fire),
    _trigger("roles", switchable_roles_changed.fire),
    _trigger("excess", excess_capacity.fire),
    _trigger("left_out", unapplied_plan.fire),
    _trigger("scattered", fragmentation.fire),
)


@contextmanager
def removed(rule: Rule) -> Iterator[set[str]]:
    """The product without `rule`. The set stays empty."""
    with _patched(rule, partial(_without, rule)):
        yield set()


@contextmanager
def watching(rules: Sequence[Rule]) -> Iterator[set[str]]:
    """The product with all `rules`; the set gets the names of the rules that made a difference."""
    seen: set[str] = set()
    with ExitStack() as all_rules:
        for rule in rules:
            all_rules.enter_context(_patched(rule, partial(_watched, rule, seen)))
        yield seen


@contextmanager
def _patched(rule: Rule, change: Callable[[Any], Any]) -> Iterator[None]:
    with ExitStack() as patches:
        for target in rule.targets:
            module, name = target.split(":")
            owner = importlib.import_module(module)
            patches.enter_context(mock.patch.object(owner, name, change(getattr(owner, name))))
        yield


def _without(rule: Rule, old: Any) -> Any:
    if rule.listed is None:
        return rule.without
    left = tuple(one for one in old if one is not rule.listed)
    if len(left) == len(old):
        raise LookupError(f"{rule.name} is not in the list")
    return left


def _watched(rule: Rule, seen: set[str], old: Any) -> Any:
    if rule.listed is None:

        def call(*args: Any, **kwargs: Any) -> Any:
            found = old(*args, **kwargs)
            if rule.name not in seen and _differ(found, rule.without(*args, **kwargs)):  # type: ignore[misc]
                seen.add(rule.name)
            return found

        return call

    def fire(*args: Any) -> Any:
        found = rule.listed(*args)  # type: ignore[misc]
        if isinstance(found, Iterator):
            found = list(found)
        if found:
            seen.add(rule.name)
        return found

    return tuple(fire if one is rule.listed else one for one in old)


def _differ(one: object, other: object) -> bool:
    try:
        return one != other
    except ValueError:  # arrays in two different results have no single truth value
        return True
