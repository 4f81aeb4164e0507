"""Staged decisions with their plans and alternatives, for tests of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoscaler.explain.combo_labels import combo_words
from topics.records import Decision

NOW_MS = 1_790_000_400_000


def staged_decisions(models: Sequence[str], pools: Sequence[str], count: int) -> list[Decision]:
    """Decisions over the last hours. The newest one is a proposal."""
    kinds = ("scale_out", "scale_in", "replan", "scale_out", "hold", "infeasible")
    reasons = {
        "scale_out": "demand of 15.1 req/s is over 80% of capacity 17.6; serving in ~6 min",
        "scale_in": "demand at most 3.1 req/s for 12 min; target is 80% of capacity 17.6",
        "replan": "price of us-east/l40s/spot fell 22%; 2 on-demand nodes become spot",
        "hold": "scale-in paused: scaled out and in too often in two hours",
        "infeasible": "short by 1.4 req/s: l40s has no free nodes in us-east",
    }
    found = []
    for number in range(1, count + 1):
        model = models[(number * 5) % len(models)]
        kind = kinds[number % len(kinds)]
        waits = number == count
        pool = pools[(number * 3) % len(pools)]
        if waits:
            model, kind = models[-1], "scale_in"
        combo = f"{model}:a1@{pool}"
        sign = {"scale_out": 1, "scale_in": -1, "replan": -2}.get(kind, 0)
        found.append(
            Decision(
                number,
                3,
                model,
                kind,
                NOW_MS - (count - number) * 7_200_000 // max(count, 1) - 300_000,
                not waits,
                reasons[kind],
                15.1,
                17.6,
                2.9 * sign,
                change=((combo, sign),) if sign else (),
                expires_ms=NOW_MS + 1_500_000 if waits else 0,
                codes=("demand_over_target",),
            )
        )
    return found


def context_of(decision: Decision) -> dict[str, Any]:
    """The instances before a staged decision, and the figures of its plan."""
    ((combo, count),) = decision.change
    return {
        "before": [[combo_words(combo), 3 if count > 0 else 5]],
        "prices": [{"pool": "us-east/l40s (spot)", "usd": 5.2, "declared": 0.76}]
        if decision.kind == "replan"
        else [],
        "gap": 0.004, "plan_usd": 312.4, "kept_usd": 305.2, "measured": 12.7,
        "planned_at": decision.at_ms - 4000,
    }  # fmt: skip


def reasons_of(model: str) -> dict[str, Any]:
    """Alternatives as `streams.solver.plan_reasons` answers them."""
    return {
        "model": model, "demand_req_per_s": 15.1, "capacity_req_per_s": 20.4,
        "bound_by": ["TPOT limit 60 ms"], "uncertain": False, "measuring": [],
        "rejected": [
            {"what": "2xL40S eu-west", "why": "+4.30 USD/h", "usd_per_h": 4.3},
            {"what": "one instance fewer of 1xL4", "why": "17.6 of 18.9 req/s needed",
             "usd_per_h": 0.0},
        ],
        "relief": [{"kind": "spot", "subject": model, "what": "spot up to 75%",
                    "saves_usd_per_h": 1.2, "serves_req_per_s": 0.0}],
    }  # fmt: skip
