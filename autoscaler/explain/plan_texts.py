"""Sentences for the limits and violated constraints of a plan."""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.domain.reason import Reason
from autoscaler.explain.combo_labels import pool_words
from autoscaler.planning.memory_fit import FP8
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]


def promise(reason: Reason) -> str:
    """A constraint in short form, e.g. "spot <= 25%"."""
    if reason.code is Code.PROMISED_SURVIVAL:
        return f"survive {reason.names[0]}"
    promised = reason.quantities[0]
    if reason.code is Code.PROMISED_FLOOR:
        return f"floor of {promised:.0f} instances"
    if reason.code is Code.PROMISED_USEFUL_FLOOR:
        return (
            f"a floor of {promised:.0f} instances that can serve one request at a time "
            "without pauses"
        )
    if reason.code is Code.PROMISED_SPOT:
        return f"spot <= {promised:.0%}"
    return f"budget of {promised:.2f} USD/h"


def _broken(reason: Reason, text: Text) -> str:
    return " ".join([promise(reason), *map(text, reason.because)])


def _instances_planned(reason: Reason, _: Text) -> str:
    return f"{reason.quantities[0]:.0f} planned"


def _off_spot(reason: Reason, _: Text) -> str:
    firm, needed = reason.quantities
    return f"only {firm:.3g} of {needed:.3g} req/s not on spot nodes"


def _loss_leaves(reason: Reason, _: Text) -> str:
    lost = f"a node of {pool_words(reason.names[0])}" if reason.names else "all spot"
    return f"the loss of {lost} leaves capacity for {reason.quantities[0]:.0%} of demand"


def _nodes_cost(reason: Reason, _: Text) -> str:
    return f"whole nodes cost {reason.quantities[0]:.2f}"


def _not_possible(_reason: Reason, _: Text) -> str:
    return "is violated: the available capacity allows no plan that keeps it"


def _not_planned(_reason: Reason, _: Text) -> str:
    return "is violated by every plan that was found"


def _not_kept(reason: Reason, text: Text) -> str:
    strategy, (broken,) = reason.names[0], reason.because
    detail = "; ".join(map(text, broken.because))
    return f"{promise(broken)} is violated by the plan of {strategy}: {detail}"


def _pool_full(reason: Reason, _: Text) -> str:
    nodes = reason.quantities[0]
    which = "the only node" if nodes == 1 else f"all {nodes:.0f} nodes"
    return f"{which} of {pool_words(reason.subject)} in use"


def _pools_full(reason: Reason, _: Text) -> str:
    where = pool_words(reason.subject, market=False)
    nodes = f"all {reason.quantities[0]:.0f} nodes of {where}"
    return f"{nodes} in use, on-demand and spot together"


def _too_few_gpus(reason: Reason, _: Text) -> str:
    return f"{pool_words(reason.subject)}: {reason.quantities[0]:.0f} GPUs left"


def _without_nodes(reason: Reason, _: Text) -> str:
    return f"{pool_words(reason.subject)}: no nodes available"


def _ceiling(reason: Reason, _: Text) -> str:
    return f"at most {reason.quantities[0]:.0f} instances"


def _spot_limit(reason: Reason, _: Text) -> str:
    return f"spot <= {reason.quantities[0]:.0%}"


def _budget(reason: Reason, _: Text) -> str:
    return f"budget {reason.quantities[0]:.2f} USD/h"


def _outside_slo(reason: Reason, _: Text) -> str:
    if not reason.quantities:
        return "its planned GPUs cannot meet the SLO"
    ttft_ms, ttft_limit_ms, tpot_ms, tpot_limit_ms = reason.quantities
    return (
        "its planned GPUs cannot meet the SLO at the present request lengths "
        f"(predicted TTFT {ttft_ms:.0f} ms of {ttft_limit_ms:g} ms, "
        f"TPOT {tpot_ms:.0f} ms of {tpot_limit_ms:g} ms)"
    )


def _slo_out_of_reach(reason: Reason, _: Text) -> str:
    ttft_limit_ms, ttft_ms, tpot_limit_ms, tpot_ms = reason.quantities
    ttft_on, tpot_on = reason.names
    missed = []
    if ttft_ms > ttft_limit_ms:
        missed.append(_cannot("TTFT", ttft_limit_ms, ttft_ms, ttft_on))
    if tpot_ms > tpot_limit_ms:
        missed.append(_cannot("TPOT", tpot_limit_ms, tpot_ms, tpot_on))
    if missed:
        return "; ".join(missed)
    return (
        f"too few requests meet both TTFT {_ms(ttft_limit_ms)} and TPOT {_ms(tpot_limit_ms)}; "
        f"the best of each is TTFT {_ms(ttft_ms)} on {ttft_on} and TPOT {_ms(tpot_ms)} on {tpot_on}"
    )


def _cannot(what: str, limit_ms: float, best_ms: float, where: str) -> str:
    return f"{what} {_ms(limit_ms)} cannot be met; fastest here {_ms(best_ms)} on {where}"


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000.0 else f"{value / 1000.0:.3g} s"


def _no_usable_node(_reason: Reason, _: Text) -> str:
    return "no usable node is left in the pools it may use"


def _no_pool(_reason: Reason, _: Text) -> str:
    return "it may use no pool: its regions have none, or only spot pools and its spot share is 0"


def _splits_nowhere(reason: Reason, _: Text) -> str:
    return f"no engine can split it over any slice of its pools: {reason.quoted}"


def _too_large(reason: Reason, _: Text) -> str:
    weights_gb, kv_gb, tokens, usable_gb, longest = reason.quantities
    where, largest, *larger = reason.names
    would_do = [f"max_len {longest:.0f}"] if longest else []
    would_do += ["an engine with --quantization=fp8" if name == FP8 else name for name in larger]
    hint = f"; {' or '.join(would_do)} would fit" if would_do else ""
    hint = f"; {reason.quoted}{hint}" if reason.quoted else hint
    return (
        f"no slice of its pools holds it: {weights_gb:.1f} GB of weights and "
        f"{kv_gb:.1f} GB of KV cache for {tokens:.0f} tokens; the largest slice, "
        f"{largest} of {where}, has {usable_gb:.1f} GB for both{hint}"
    )


def _nothing_serves_it(_reason: Reason, _: Text) -> str:
    return "no pool that it may use can hold and serve it"


def _one_after_another(reason: Reason, _: Text) -> str:
    return (
        "no instance can serve one request at a time without pauses within the SLO; "
        f"the best sustains {reason.quantities[0]:.2g} req/s"
    )


def _rough_bound(_reason: Reason, _: Text) -> str:
    return (
        "survive one-node: with this many models and pools the bound leaves out most of its cost, "
        "so the true gap may be much smaller"
    )


def _budget_stuck(reason: Reason, _: Text) -> str:
    models = "" if reason.subject else f"{', '.join(reason.names)}: "
    return f"{models}a better plan exists, but all running instances would have to stop first"


def _not_in_time(_reason: Reason, _: Text) -> str:
    return "no plan was found in time"


def _solver_failed(reason: Reason, _: Text) -> str:
    return reason.quoted or "the solver returned no plan"


def _solver_refuted(reason: Reason, _: Text) -> str:
    return f"the solver's plan failed its check: {reason.quoted}"


def _solver_timeout(reason: Reason, _: Text) -> str:
    return f"no answer within {reason.quantities[0]:g} s"


def _solver_gone(reason: Reason, _: Text) -> str:
    return f"the solver process ended: {reason.quoted}"


def _solver_garbled(reason: Reason, _: Text) -> str:
    return f"the solver's answer cannot be read: {reason.quoted}"


def _solver_error(reason: Reason, _: Text) -> str:
    return reason.quoted


def _solver_away(_reason: Reason, _: Text) -> str:
    return "the solver is not available"


def _superseded(_reason: Reason, _: Text) -> str:
    return "replaced by a newer request"


def _request_refused(reason: Reason, _: Text) -> str:
    return reason.quoted


def _no_plan(reason: Reason, _: Text) -> str:
    return reason.quoted or "no plan was found"


PLAN_TEXTS = {
    Code.PROMISED_FLOOR: _broken,
    Code.PROMISED_USEFUL_FLOOR: _broken,
    Code.PROMISED_SPOT: _broken,
    Code.PROMISED_SURVIVAL: _broken,
    Code.PROMISED_BUDGET: _broken,
    Code.INSTANCES_PLANNED: _instances_planned,
    Code.OFF_SPOT: _off_spot,
    Code.LOSS_LEAVES: _loss_leaves,
    Code.NODES_COST: _nodes_cost,
    Code.NOT_POSSIBLE: _not_possible,
    Code.NOT_PLANNED: _not_planned,
    Code.NOT_KEPT: _not_kept,
    Code.POOL_FULL: _pool_full,
    Code.POOLS_FULL: _pools_full,
    Code.POOL_TOO_FEW_GPUS: _too_few_gpus,
    Code.POOL_WITHOUT_NODES: _without_nodes,
    Code.CEILING: _ceiling,
    Code.SPOT_LIMIT: _spot_limit,
    Code.BUDGET: _budget,
    Code.OUTSIDE_SLO: _outside_slo,
    Code.SLO_OUT_OF_REACH: _slo_out_of_reach,
    Code.NO_USABLE_NODE: _no_usable_node,
    Code.NO_POOL: _no_pool,
    Code.SPLITS_NOWHERE: _splits_nowhere,
    Code.TOO_LARGE: _too_large,
    Code.NOTHING_SERVES_IT: _nothing_serves_it,
    Code.ONE_AFTER_ANOTHER: _one_after_another,
    Code.ROUGH_BOUND: _rough_bound,
    Code.BUDGET_STUCK: _budget_stuck,
    Code.NOT_IN_TIME: _not_in_time,
    Code.SOLVER_FAILED: _solver_failed,
    Code.SOLVER_REFUTED: _solver_refuted,
    Code.SOLVER_TIMEOUT: _solver_timeout,
    Code.SOLVER_GONE: _solver_gone,
    Code.SOLVER_GARBLED: _solver_garbled,
    Code.SOLVER_ERROR: _solver_error,
    Code.SOLVER_AWAY: _solver_away,
    Code.SUPERSEDED: _superseded,
    Code.REQUEST_REFUSED: _request_refused,
    Code.NO_PLAN: _no_plan,
}
