"""The controller's decisions and plans.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from topics import checks

DECISION_KINDS = (
    "scale_out",
    "scale_in",
    "replan",
    "replace",
    "hold",
    "infeasible",
    "rebuilt",
)
_CODE = partial(checks.machine_text, limit=64)
_RATE = partial(checks.number, low=0.0, high=checks.MOST_REQ_PER_S)
_COST = partial(checks.number, low=0.0, high=checks.MOST_USD_PER_H)
_DECISION: checks.FieldChecks = {
    "number": checks.count,
    "leader_token": checks.count,
    "model": checks.name_or_all,
    "kind": partial(checks.one_of, allowed=DECISION_KINDS),
    "at_ms": checks.time_ms,
    "demand_req_per_s": _RATE,
    "capacity_req_per_s": _RATE,
    "cost_delta_usd_per_h": partial(
        checks.number, low=-checks.MOST_USD_PER_H, high=checks.MOST_USD_PER_H
    ),
    "over_since_ms": checks.time_ms,
    "expires_ms": checks.time_ms,
    "proposal": checks.count,
    "codes": checks.names,
    "triggers": checks.names,
    "cause": _CODE,
    "trace": _CODE,
    "change": checks.combo_changes,
}
_PLANNED_COMBO: checks.FieldChecks = {
    "model": checks.name,
    "combo": checks.combo,
    "count": partial(checks.count, high=1_000_000),
    "req_per_s": _RATE,
    "usd_per_h": _COST,
}
_PLAN: checks.FieldChecks = {
    "number": checks.count,
    "next_serial": checks.count,
    "leader_token": checks.count,
    "at_ms": checks.time_ms,
    "strategy": checks.name,
    "cost_usd_per_h": _COST,
    "gap": partial(checks.number, low=-1.0, high=1e9),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the controller, with its reason.

    model: Name of a model, or "*" for all models. number: Serial number among the decisions of a
    leader. applied: Whether the decision was applied (mode act) or only recommended. change: Combos
    added (+) or removed (-) as (combo, count). cost_delta_usd_per_h: Change of the cost of billed
    nodes. over_since_ms: First second of demand above the threshold, 0 = none. expires_ms: Time
    until which the proposal can be approved, 0 = no proposal. reason: A sentence for people. codes:
    Its reason codes, see `topics.reason_codes`. A later version may write unknown codes. cause: The
    code of the demand, limit, loss or cost without which the change would not be made, "" = none.
    triggers: The codes of the triggers of the full plan that contains the change. trace:
    Traceparent of the decision's span, "" = none. proposal: Number of the proposal that this
    decision ends, 0 = none.
    """

    number: int
    leader_token: int
    model: str
    kind: str
    at_ms: int
    applied: bool
    reason: str
    demand_req_per_s: float = 0.0
    capacity_req_per_s: float = 0.0
    cost_delta_usd_per_h: float = 0.0
    over_since_ms: int = 0
    change: tuple[tuple[str, int], ...] = ()
    expires_ms: int = 0
    codes: tuple[str, ...] = ()
    trace: str = ""
    proposal: int = 0
    cause: str = ""
    triggers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.fields(self, _DECISION)
        checks.free_text(self, "reason")


@dataclass(frozen=True, slots=True)
class PlannedCombo:
    """The planned count of one combo. combo: its id in the library of combos."""

    model: str
    combo: str
    count: int
    req_per_s: float
    usd_per_h: float

    def __post_init__(self) -> None:
        checks.fields(self, _PLANNED_COMBO)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The planned target of the whole fleet.

    gap: Proven optimality gap as a fraction, -1 if none was proven. next_serial: Serial number of
    the next group, so that a later leader does not use a group name again.
    """

    number: int
    leader_token: int
    at_ms: int
    strategy: str
    cost_usd_per_h: float
    gap: float
    targets: tuple[PlannedCombo, ...] = ()
    shortfall_req_per_s: dict[str, float] = field(default_factory=dict)
    next_serial: int = 1

    def __post_init__(self) -> None:
        checks.fields(self, _PLAN)
        for model, missing in self.shortfall_req_per_s.items():
            checks.name("shortfall_req_per_s", model)
            field = f"shortfall_req_per_s[{model}]"
            checks.number(field, missing, 0.0, checks.MOST_REQ_PER_S)
