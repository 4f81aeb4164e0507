"""Read `policy` of a file: keys, units and allowed combinations."""

from __future__ import annotations

from autoscaler.domain.cluster import FORECASTS, Objective, Policy
from autoscaler.domain.validation import InvalidValue
from streams.files import units
from streams.files.yaml_tree import Section


def read_policy(section: Section | None) -> Policy:
    """The policy of `section`; the defaults if there is none. ConfigError names line and key."""
    if section is None:
        return Policy()
    base = Policy()

    def whole_seconds(value: object) -> int:
        seconds = units.duration_between("1s", "1d")(value)
        if seconds != int(seconds):
            raise InvalidValue("", value, "whole seconds")
        return int(seconds)

    surge_s = section.take("surge_window", whole_seconds, base.surge_window_s)
    local_s = section.take("local_window", whole_seconds, base.local_window_s)
    global_s = section.take("global_window", whole_seconds, base.global_window_s)
    for key, shorter_s, other, longer_s in (
        ("local_window", surge_s, "surge_window", local_s),
        ("global_window", local_s, "local_window", global_s),
    ):
        if shorter_s > longer_s:
            at = key if key in section else other
            raise section.error(at, f"{other} is {shorter_s}s, {key} {longer_s}s; allowed: "
                                "surge_window <= local_window <= global_window")  # fmt: skip
    up_to_a_day = units.duration_between("1ms", "1d")
    try:
        policy = Policy(
            surge_window_s=surge_s,
            local_window_s=local_s,
            global_window_s=global_s,
            replan_every_s=section.take(
                "replan_every", units.duration_between("10s", "7d"), base.replan_every_s
            ),
            ratio=section.take("ratio", units.number(0.01, 10.0), base.ratio),
            min_samples=section.take("min_samples", units.count(1, 10_000), base.min_samples),
            significance=section.take("significance", units.number(1e-15, 0.5), base.significance),
            cooldown_s=section.take("cooldown", up_to_a_day, base.cooldown_s),
            reversals_per_h=section.take(
                "reversals_per_h", units.count(1, 60), base.reversals_per_h
            ),
            start_timeout_s=section.take("start_timeout", up_to_a_day, base.start_timeout_s),
            drain_timeout_s=section.take("drain_timeout", up_to_a_day, base.drain_timeout_s),
            approve_within_s=section.take(
                "approve_within", units.duration_between("10s", "7d"), base.approve_within_s
            ),
            node_silent_s=section.take(
                "node_silent", units.duration_between("5s", "1h"), base.node_silent_s
            ),
            k_start=section.take("k_start", units.number(0.0, 100.0), base.k_start),
            k_load=section.take("k_load", units.number(0.0, 100.0), base.k_load),
            k_switch=section.take("k_switch", units.number(0.0, 100.0), base.k_switch),
            budget_usd_per_h=section.take("budget", units.number(0.0, 1e9), base.budget_usd_per_h),
            objective=Objective(section.take("objective", units.word(*Objective), base.objective)),
            forecast=section.take("forecast", units.word(*FORECASTS), base.forecast),
        )
    except InvalidValue as error:
        problem = f"{error.value!r} is not allowed; allowed: {error.allowed}"
        raise section.error(error.field.removeprefix("policy."), problem) from error
    section.finish()
    return policy
