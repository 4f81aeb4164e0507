"""Sentences for the limits and violated constraints of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.combo_labels import pool_words
from autoscaler.explain.sentences import Sentence, Text
from autoscaler.planning.memory_fit import FP8
from topics.reason_codes import ReasonCode as Code

_PROMISES = {
    Code.PROMISED_FLOOR: "floor of {0:.0f} instances",
    Code.PROMISED_USEFUL_FLOOR: (
        "a floor of {0:.0f} instances that can serve one request at a time without pauses"
    ),
    Code.PROMISED_SPOT: "spot <= {0:.0%}",
    Code.PROMISED_SURVIVAL: "survive {names[0]}",
    Code.PROMISED_BUDGET: "budget of {0:.2f} USD/h",
}


def promise(reason: Reason) -> str:
    """A constraint in short form, e.g. "spot <= 25%"."""
    return _PROMISES[reason.code].format(*reason.quantities, names=reason.names)


def _broken(reason: Reason, text: Text) -> str:
    return " ".join([promise(reason), *map(text, reason.because)])


def _loss_leaves(reason: Reason, _: Text) -> str:
    lost = f"a node of {pool_words(reason.names[0])}" if reason.names else "all spot"
    return f"the loss of {lost} leaves capacity for {reason.quantities[0]:.0%} of demand"


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


def _budget_stuck(reason: Reason, _: Text) -> str:
    models = "" if reason.subject else f"{', '.join(reason.names)}: "
    return f"{models}a better plan exists, but all running instances would have to stop first"


def _solver_failed(reason: Reason, _: Text) -> str:
    return reason.quoted or "the solver returned no plan"


def _no_plan(reason: Reason, _: Text) -> str:
    return reason.quoted or "no plan was found"


PLAN_TEXTS: Mapping[Code, Sentence] = {
    **dict.fromkeys(_PROMISES, _broken),
    Code.INSTANCES_PLANNED: "{0:.0f} planned",
    Code.OFF_SPOT: "only {0:.3g} of {1:.3g} req/s not on spot nodes",
    Code.LOSS_LEAVES: _loss_leaves,
    Code.NODES_COST: "whole nodes cost {0:.2f}",
    Code.NOT_POSSIBLE: "is violated: the available capacity allows no plan that keeps it",
    Code.NOT_PLANNED: "is violated by every plan that was found",
    Code.NOT_KEPT: _not_kept,
    Code.POOL_FULL: _pool_full,
    Code.POOLS_FULL: _pools_full,
    Code.POOL_LIMIT: "{0:.0f} usable nodes in {subject}",
    Code.POOL_TOO_FEW_GPUS: _too_few_gpus,
    Code.POOL_WITHOUT_NODES: _without_nodes,
    Code.CEILING: "at most {0:.0f} instances",
    Code.SPOT_LIMIT: "spot <= {0:.0%}",
    Code.BUDGET: "budget {0:.2f} USD/h",
    Code.OUTSIDE_SLO: _outside_slo,
    Code.SLO_OUT_OF_REACH: _slo_out_of_reach,
    Code.NO_USABLE_NODE: "no usable node is left in the pools it may use",
    Code.NO_POOL: (
        "it may use no pool: its regions have none, or only spot pools and its spot share is 0"
    ),
    Code.SPLITS_NOWHERE: "no engine can split it over any slice of its pools: {quoted}",
    Code.TOO_LARGE: _too_large,
    Code.NOTHING_SERVES_IT: "no pool that it may use can hold and serve it",
    Code.ONE_AFTER_ANOTHER: (
        "no instance can serve one request at a time without pauses within the SLO; the best"
        " sustains {0:.2g} req/s"
    ),
    Code.PREFIX_HITS: "{0:.0%} of its prompt tokens count as held by prefix caches",
    Code.ROUGH_BOUND: (
        "survive one-node: with this many models and pools the bound leaves out most of its cost, "
        "so the true gap may be much smaller"
    ),
    Code.BUDGET_STUCK: _budget_stuck,
    Code.NOT_IN_TIME: "no plan was found in time",
    Code.SOLVER_FAILED: _solver_failed,
    Code.SOLVER_REFUTED: "the solver's plan failed its check: {quoted}",
    Code.SOLVER_TIMEOUT: "no answer within {0:g} s",
    Code.SOLVER_GONE: "the solver process ended: {quoted}",
    Code.SOLVER_GARBLED: "the solver's answer cannot be read: {quoted}",
    Code.SOLVER_ERROR: "{quoted}",
    Code.SOLVER_AWAY: "the solver is not available",
    Code.SUPERSEDED: "replaced by a newer request",
    Code.REQUEST_REFUSED: "{quoted}",
    Code.NO_PLAN: _no_plan,
}
