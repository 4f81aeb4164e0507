"""Rows of models for the page: the status of each model with its declared limits.

Keys are stable because a page may be older than its controller. An unknown number is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autoscaler.domain.cluster import Service
from autoscaler.explain.combo_labels import change_words, combo_words
from autoscaler.explain.reason_texts import texts
from autoscaler.state.model_state import PendingApproval
from autoscaler.tick.rollout_status import RolloutStatus
from autoscaler.tick.status import ModelStatus
from streams.console.rounding import rounded

Row = dict[str, Any]


def model_row(status: ModelStatus, service: Service, guards: Sequence[str]) -> Row:
    """The row of one model. guards: active restrictions on its changes, as text."""
    return {
        "mode": status.mode,
        "held": status.held,
        "demand": rounded(status.demand_req_per_s),
        "target": rounded(status.target_req_per_s),
        "target_why": status.target_why,
        "wanted_rate": rounded(status.wanted_req_per_s),
        "ready_rate": rounded(status.ready_req_per_s),
        "ready": status.ready,
        "wanted": status.wanted,
        "where": [list(one) for one in status.desired],
        "ttft": rounded(status.ttft_p95_ms),
        "ttft_limit": rounded(status.ttft_limit_ms),
        "tpot": rounded(status.tpot_p95_ms),
        "tpot_limit": rounded(status.tpot_limit_ms),
        "attained": rounded(status.attained),
        "attained_now": rounded(status.attained_now),
        "percentile": service.percentile,
        "utilization": service.utilization,
        "spot_share": service.spot_share,
        "spot_now": rounded(status.spot_share),
        "spot_over": status.over_spot_limit,
        "min": service.min_instances,
        "max": service.max_instances,
        "usd": rounded(status.usd_per_h),
        "proposal": status.proposal,
        "word": status.word,
        "level": status.level,
        "conditions": list(status.conditions),
        "remedy": status.remedy,
        "uncertain": status.uncertain,
        "rollout": rollout_row(status.rollout),
        "silent_s": _silence_s(status.telemetry_age_s),
        "guards": list(guards),
    }


def proposal_row(model: str, waiting: PendingApproval) -> Row:
    """The row of a proposal that waits for approval."""
    return {
        "number": waiting.number,
        "token": waiting.leader_token,
        "model": model,
        "kind": waiting.kind,
        "change": change_words(waiting.change),
        "base": [[combo_words(combo), count] for combo, count in waiting.base],
        "reasons": list(texts(waiting.reasons)),
        "at": waiting.at_ms,
        "expires": waiting.expires_ms,
    }


def rollout_row(rollout: RolloutStatus | None) -> Row | None:
    """The rollout of a model, with times in steps of 10 s, so that a row changes seldom; None
    without one."""
    if rollout is None:
        return None
    row = asdict(rollout)
    row["since_s"] = int(rollout.since_s) // 10 * 10
    if rollout.canary is not None:
        row["canary"]["remaining_s"] = int(rollout.canary.remaining_s) // 10 * 10
    return row


def _silence_s(age_s: float | None) -> int | None:
    """Age of the telemetry in steps of 10 s, so that the row of a quiet model does not change."""
    return None if age_s is None else int(age_s) // 10 * 10
