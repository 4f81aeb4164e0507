"""Read `policy` of a file: keys, units and allowed combinations."""

from __future__ import annotations

from autoscaler.domain.cluster import Objective, Policy
from autoscaler.domain.validation import InvalidValue
from streams.files import units
from streams.files.keys import Group, Key
from streams.files.yaml_tree import Section

SIGNIFICANCE = {"low": 5e-6, "normal": 5e-5, "high": 5e-4}
"""False-alarm probability of one test of the rate, by `sensitivity`."""

PENALTIES = {"off": (0.0, 0.0, 0.0), "normal": (0.1, 0.05, 0.02), "high": (0.2, 0.1, 0.04)}
"""k_start, k_load and k_switch of Coral (sec. 4.3), by `transition_cost`."""

_A_DAY = units.duration_between("1ms", "1d")

REPLAN_EVERY = Key(
    "replan_every",
    units.duration_between("10s", "7d"),
    "Period of full plans. A plan that would change little changes nothing.",
    "5m",
)
REPLAN_THRESHOLD = Key(
    "replan_threshold",
    units.number(0.01, 10.0),
    "Relative change of a price or of an offer of nodes that triggers a full plan.",
    "0.2",
)
SENSITIVITY = Key(
    "sensitivity",
    units.word(*SIGNIFICANCE),
    "How sensitive a scale-out is to a rising rate. `high` reacts sooner and has more "
    "false alarms.",
    "normal",
)
REVERSALS_PER_H = Key(
    "reversals_per_h",
    units.count(1, 60),
    "Most changes per hour of one model from adding to removing or back. Only removals wait.",
    "2",
)
TRANSITION_COST = Key(
    "transition_cost",
    units.word(*PENALTIES),
    "Penalty of a plan for each start, in addition to the rent. `off`: starts are free.",
    "normal",
)
ROLE_SWITCH = Key(
    "role_switch",
    units.flag,
    "Whether instances may change between prefill and decode in place.",
    "true",
)
FORECAST = Key(
    "forecast",
    units.flag,
    "Whether demand is forecast over the start time of instances.",
    "true",
)
BUDGET = Key(
    "budget",
    units.number(0.0, 1e9),
    "Highest cost of all rented nodes in USD/h, including nodes that start or drain.",
    otherwise="no limit",
)
OBJECTIVE = Key(
    "objective",
    units.word(*Objective),
    "`cost`: the least cost for the demand; otherwise the most work for `budget`.",
    "cost",
)
START_TIMEOUT = Key(
    "start_timeout",
    _A_DAY,
    "If an instance is not ready after this time (at least twice its expected start), it failed.",
    "10m",
)
DRAIN_TIMEOUT = Key(
    "drain_timeout",
    _A_DAY,
    "A draining instance is stopped after this time even if it still holds requests.",
    otherwise="the longest answer of the model within its SLO, at least 2m",
)
APPROVE_WITHIN = Key(
    "approve_within",
    units.duration_between("10s", "7d"),
    "How long a proposal waits for `shoal approve` before it expires.",
    "30m",
)
UNASKED_USD_PER_H = Key(
    "unasked_usd_per_h",
    units.number(0.0, 1e6),
    "Mode `approve`: a model's additions up to this cost in an hour need no approval.",
    "0",
)
UNASKED_INSTANCES = Key(
    "unasked_instances",
    units.count(0, 100_000),
    "Mode `approve`: that many added instances of a model in an hour need no approval.",
    "0",
)
NODE_SILENT = Key(
    "node_silent",
    units.duration_between("5s", "1h"),
    "If a node sends no status for this long, it is lost. An empty node has three times as long.",
    "15s",
)
LOCAL_WINDOW = Key(
    "local_window",
    units.whole_seconds_between("10s", "1d"),
    "Window of the present rate and lengths.",
    "2m",
    advanced=True,
)
LONG_WINDOW = Key(
    "long_window",
    units.whole_seconds_between("10s", "1d"),
    "Longest window of demand. `scale_in_after` and `zero_after` are at most this long.",
    "30m",
    advanced=True,
)
POLICY = Group(
    "How the control loop behaves.",
    (
        REPLAN_EVERY, REPLAN_THRESHOLD, SENSITIVITY, REVERSALS_PER_H, TRANSITION_COST, ROLE_SWITCH,
        FORECAST, BUDGET, OBJECTIVE, START_TIMEOUT, DRAIN_TIMEOUT, APPROVE_WITHIN,
        UNASKED_USD_PER_H, UNASKED_INSTANCES, NODE_SILENT,
        LOCAL_WINDOW, LONG_WINDOW,
    ),
    removed={
        "ratio": "write replan_threshold",
        "significance": "write sensitivity: low, normal or high",
        "min_samples": "remove it, or write sensitivity: low, normal or high",
        "surge_window": "remove it; the shortest window is 10s",
        "global_window": "write long_window",
        "cooldown": "remove it; scale_in_after replaces it",
        "k_start": "write transition_cost: off, normal or high",
        "k_load": "write transition_cost: off, normal or high",
        "k_switch": "write transition_cost, or role_switch: false",
    },
)  # fmt: skip


def read_policy(section: Section | None) -> Policy:
    """The policy of `section`; the defaults if there is none. ConfigError names line and key."""
    base = Policy()
    if section is None:
        return base
    local_s, long_s = LOCAL_WINDOW.take(section), LONG_WINDOW.take(section)
    if local_s > long_s:
        at = LONG_WINDOW.name if LONG_WINDOW.name in section else LOCAL_WINDOW.name
        problem = f"local_window is {local_s}s, long_window {long_s}s"
        raise section.error(at, f"{problem}; allowed: local_window <= long_window")
    k_start, k_load, k_switch = PENALTIES[TRANSITION_COST.take(section)]
    try:
        policy = Policy(
            local_window_s=local_s,
            global_window_s=long_s,
            replan_every_s=REPLAN_EVERY.take(section),
            ratio=REPLAN_THRESHOLD.take(section),
            significance=SIGNIFICANCE[SENSITIVITY.take(section)],
            reversals_per_h=REVERSALS_PER_H.take(section),
            start_timeout_s=START_TIMEOUT.take(section),
            drain_timeout_s=DRAIN_TIMEOUT.take_or(section, base.drain_timeout_s),
            approve_within_s=APPROVE_WITHIN.take(section),
            unasked_usd_per_h=UNASKED_USD_PER_H.take(section),
            unasked_instances=UNASKED_INSTANCES.take(section),
            node_silent_s=NODE_SILENT.take(section),
            k_start=k_start,
            k_load=k_load,
            k_switch=k_switch,
            role_switch=ROLE_SWITCH.take(section),
            budget_usd_per_h=BUDGET.take_or(section, base.budget_usd_per_h),
            objective=Objective(OBJECTIVE.take(section)),
            forecast="auto" if FORECAST.take(section) else "none",
        )
    except InvalidValue as error:
        problem = f"{error.value!r} is not allowed; allowed: {error.allowed}"
        raise section.error(error.field.removeprefix("policy."), problem) from error
    POLICY.finish(section)
    return policy
