"""A plan as JSON. Its keys are a stable interface: other programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autoscaler.domain.cluster import Mode
from autoscaler.domain.reason import Reason
from autoscaler.explain.explanation import Explanation, ModelReasons
from autoscaler.explain.plan_texts import promise
from autoscaler.explain.reason_texts import text, text_with_subject, texts
from autoscaler.performance.profile import Profile
from autoscaler.planning.binding_constraints import binding_kind
from autoscaler.planning.capacity_provenance import capacities, kv_caches, measurements_in
from autoscaler.planning.cost_attribution import usd_per_h_by_model
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.time_limits import Contradiction, contradictions
from streams.cli import plan_verify
from streams.cli.json_output import encoded
from streams.solver.plan_verification import Comparison


def encode(
    problem: PlanningProblem,
    plan: Plan,
    reasons: Explanation | None,
    mode: Mode,
    wall_s: float,
    profile: Profile,
    steps: list[dict[str, Any]] | None = None,
    checks: Sequence[Comparison] = (),
) -> bytes:
    """One JSON object and a newline. A gap of -1 means that there is no bound. steps: the steps of
    the search, if --stats requests them. checks: the second opinion, if --verify requests it."""
    shares = usd_per_h_by_model(
        ((target.combo, target.count) for target in plan.targets),
        {node.pool: node.usd_per_h for node in plan.nodes},
        problem.taken_gpus,
    )
    value = {
        "strategy": plan.strategy,
        "status": plan.status,
        "mode": mode,
        "applied": False,
        "config": problem.cluster.content_hash,
        "now_usd_per_h": plan.now_usd_per_h,
        "cost_usd_per_h": plan.cost_usd_per_h,
        "objective_usd_per_h": plan.objective_usd_per_h,
        "lower_bound_usd_per_h": plan.lower_bound_usd_per_h,
        "gap": plan.gap,
        "served_fraction_upper_bound": plan.served_fraction_bound,
        "demand_served": not plan.shortfall_req_per_s,
        "shortfall_req_per_s": dict(plan.shortfall_req_per_s),
        "broken_promises": [_broken(promise) for promise in plan.violations],
        "limits_hit": plan.limits_hit,
        "notes": [text_with_subject(note) for note in plan.notes],
        "time_limits": [_time_limit(wrong) for wrong in contradictions(problem.cluster)],
        "planned_in_s": wall_s,
        "capacity_90_req_per_s": {
            m: asdict(found) for m, found in capacities(problem, plan, profile).items()
        },
        "measured": [
            {"model": m, "gpu": f.gpu, "day": f.day, "error": f.error, "points": f.points}
            for m, f in measurements_in(problem, plan, profile)
        ],
        "kv_cache": [
            {
                "model": one.model,
                "gpu": one.gpu,
                "gpus": one.gpus,
                "tokens": one.tokens,
                "source": "measured" if one.is_measured else "predicted",
            }
            for one in kv_caches(problem, plan)
        ],
        "models": {
            model: _model(
                problem,
                plan,
                model,
                shares.get(model, 0.0),
                reasons.of(model) if reasons else None,
            )
            for model in problem.demands
        },
        "nodes": [
            {"pool": n.pool, "now": n.now, "proposed": n.count, "usd_per_h": n.usd_per_h}
            for n in plan.nodes
        ],
        "binding": [_binding(limit) for limit in plan.binding],
        "relief": reasons.relief if reasons else [],
        "savings": reasons.savings if reasons else [],
        "if_all_spot_is_lost": reasons.spot_loss if reasons else [],
    }
    if steps is not None:
        value["steps"] = steps
    if checks:
        value["verification"] = plan_verify.as_json(checks)
    return encoded(value)


def _broken(broken: Reason) -> dict[str, Any]:
    return {
        "subject": broken.subject,
        "what": promise(broken),
        "detail": "; ".join(texts(broken.because)),
        "codes": tuple(broken.codes()),
    }


def _time_limit(wrong: Contradiction) -> dict[str, Any]:
    return {
        "code": wrong.code,
        "key": wrong.key,
        "model": wrong.model,
        "limit_s": wrong.limit_s,
        "needs_s": wrong.needs_s,
        "text": text(wrong.reason),
        "harmless": wrong.harmless,
    }


def _binding(limit: Reason) -> dict[str, Any]:
    return {
        "what": binding_kind(limit.code),
        "subject": limit.subject,
        "detail": text(limit),
        "codes": tuple(limit.codes()),
    }


def _model(
    problem: PlanningProblem,
    plan: Plan,
    model: str,
    usd_per_h: float,
    reasons: ModelReasons | None,
) -> dict[str, Any]:
    demand = problem.demands[model]
    shown: dict[str, Any] = {
        "req_per_s": demand.req_per_s,
        "input_tokens": demand.lengths.input_tokens,
        "output_tokens": demand.lengths.output_tokens,
        "capacity_req_per_s": plan.capacity_req_per_s[model],
        "billed_usd_per_h": usd_per_h,
        "combos": [
            {
                "combo": target.combo.id,
                "now": target.now,
                "proposed": target.count,
                "req_per_s": target.combo.req_per_s,
                "usd_per_h": target.combo.usd_per_h,
                "ttft_ms": target.combo.ttft_ms,
                "tpot_ms": target.combo.tpot_ms,
                "start_s": target.combo.start_s,
                "uncertain": target.combo.uncertain,
                "meets_slo": target.combo.meets_slo,
            }
            for target in plan.targets_of(model)
        ],
    }
    if reasons is not None:
        shown["bound_by"] = reasons.bound_by
        shown["rejected"] = reasons.rejected
        shown["relief"] = reasons.relief
        shown["measuring"] = reasons.measuring
        shown["prefix_hit"] = reasons.prefix_hit
        shown["prefix_gpus"] = reasons.prefix_gpus
    return shown
