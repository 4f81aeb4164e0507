"""Progress of one model's rollout, for people and dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from autoscaler.explain.reason_texts import text
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.versions import declared_version, runs
from autoscaler.state.model_state import ROLLOUT_PROPOSAL, ModelState


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """state: "rolling", "waiting", "returning" (to the former version), "asks" (for an approval) or
    "taken back". engine: of the version that all instances get; former: of the version before.
    done, total: combos of that version, and all combos. waves: number of waves so far. since_s:
    seconds since the begin, or since the version was taken back. why: the reason to wait or to take
    back, as text, "" for none.
    """

    state: str
    engine: str
    former: str
    done: int
    total: int
    waves: int
    since_s: float
    why: str


def rollout_status(
    service: Service, state: ModelState, groups: Sequence[ServingGroup], now_ms: int
) -> RolloutStatus | None:
    """The status of a rollout, or of the declared version if it was taken back; None without
    either. groups: planned groups of the model."""
    rollout, declared = state.rollout, declared_version(service)
    is_refused = rollout.base is not None and rollout.refused == declared.digest
    if not rollout.target and not is_refused:
        return None
    goal = rollout.goal(declared)
    proposal = state.advisory.proposal
    asks = proposal is not None and proposal.kind == ROLLOUT_PROPOSAL and not proposal.rejected
    why = rollout.why if is_refused else rollout.waits
    if is_refused:
        word = "returning" if rollout.target else "taken back"
    elif asks:
        word = "asks"
    else:
        word = "waiting" if rollout.waits is not None else "rolling"
    since_ms = rollout.began_ms if rollout.target else rollout.refused_ms
    former = declared if is_refused else rollout.base
    return RolloutStatus(
        state=word,
        engine=goal.engine,
        former=former.engine if former is not None else "",
        done=sum(runs(group, goal) for group in groups),
        total=len(groups),
        waves=rollout.waves,
        since_s=max(0, now_ms - since_ms) / 1000.0,
        why=text(why) if why is not None else "",
    )
