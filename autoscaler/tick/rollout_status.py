"""Progress of one model's rollout, for people and dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.explain.reason_texts import text
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.version_comparison import LEVEL, Metric, VersionComparison, value_of
from autoscaler.rollout.versions import declared_version, runs
from autoscaler.state.model_state import ROLLOUT_PROPOSAL, ModelState
from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class PropertyStatus:
    """One property of a canary. property: "errors", "ttft", "tpot", or "longer" and "shorter" of
    answers. new, former: its mean in both versions, in ms, tokens or as a share of requests. worse,
    fit: comparisons in which the new version is worse than a small margin, and not worse than a
    larger one; worse_of, fit_of: comparisons in total. verdict: "worse", "fit" or "open".
    """

    property: str
    new: float
    former: float
    worse: int
    worse_of: int
    fit: int
    fit_of: int
    verdict: str


@dataclass(frozen=True, slots=True)
class CanaryStatus:
    """answers, former_answers: compared answers of the new and of the former version. level:
    probability with which an equal version is called worse, at most. remaining_s: seconds until
    the rollout continues without a verdict. speed: measured speed relative to the former version,
    the end of its interval nearer to 1.
    """

    answers: int
    former_answers: int
    level: float
    remaining_s: float
    speed: float
    properties: tuple[PropertyStatus, ...]


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """state: "rolling", "comparing" (a canary), "waiting", "paused" (by an operator), "returning"
    (to the former version), "asks" (for an approval) or "taken back". engine: of the version that
    all instances get; former: of the version before. done, total: combos of that version, and all
    combos. waves: number of waves so far. since_s: seconds since the begin, or since the version
    was taken back. why: the reason to wait or to take back, as text, "" for none. canary: its
    comparison, None without one.
    """

    state: str
    engine: str
    former: str
    done: int
    total: int
    waves: int
    since_s: float
    why: str
    canary: CanaryStatus | None = None


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
    is_compared = rollout.comparison is not None and rollout.comparison.serves_ms > 0
    why = rollout.why if is_refused else rollout.waits
    if is_refused:
        word = "returning" if rollout.target else "taken back"
    elif asks:
        word = "asks"
    else:
        word = _waiting(rollout.waits) if rollout.waits is not None else "rolling"
        word = "comparing" if word == "rolling" and is_compared else word
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
        canary=_canary_status(service, rollout.comparison, now_ms) if is_compared else None,
    )


def _waiting(why: Reason) -> str:
    return "paused" if why.code is ReasonCode.PAUSED else "waiting"


def _canary_status(
    service: Service, known: VersionComparison | None, now_ms: int
) -> CanaryStatus | None:
    policy = service.rollout.canary
    if policy is None or known is None:
        return None
    new, old = known.total.new, known.total.old
    properties = tuple(
        PropertyStatus(
            property=one.name,
            new=round(value_of(one.name, new), 4),
            former=round(value_of(one.name, old), 4),
            worse=one.worse.above,
            worse_of=one.worse.trials,
            fit=one.fit.above,
            fit_of=one.fit.trials,
            verdict=_verdict(one, known.level),
        )
        for one in known.metrics
    )
    left_s = policy.within_s - (now_ms - known.serves_ms) / 1000.0
    return CanaryStatus(
        new.completed, old.completed, LEVEL, max(0.0, left_s), round(known.speed, 3), properties
    )


def _verdict(metric: Metric, level: float) -> str:
    if metric.worse.rejects(level):
        return "worse"
    return "fit" if metric.fit.rejects(LEVEL) else "open"
