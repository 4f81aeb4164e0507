"""Derives time limits from the declarations, and finds contradictions among declared time limits.
All checks of one limit against another are here; docs/reference/time-limits.md lists every limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Mode, Policy, Pool, Service
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Lengths
from topics.reason_codes import ReasonCode

LEAST_DRAIN_S = 120.0
MOST_S = 86_400.0
GATEWAY_REQUEST_S = 1_800.0
"""Default of a gateway's `--request-s`."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A time limit that is too short for other declarations.

    key: the key in shoal.yaml, or an option. model, pool: "" if the limit concerns none. harmless:
    only a warning, because Shoal works with it or cannot check whether it was corrected.
    """

    code: ReasonCode
    key: str
    model: str
    limit_s: float
    needs_s: float
    harmless: bool = False
    pool: str = ""

    @property
    def reason(self) -> Reason:
        """The contradiction as a `Reason`."""
        subject = self.model or self.pool or "*"
        return Reason(self.code, subject, quantities=(self.limit_s, self.needs_s))


def longest_answer_s(service: Service, measured: Lengths | None = None) -> float:
    """Seconds that the longest answer of the model may take within its SLO.

    It is the TTFT limit, plus the TPOT limit for each token of the longest answers (99.5% of all
    answers are shorter). The number of tokens is the larger of two estimates (declared workload,
    measured lengths), but at most `max_len`.
    """
    lengths = [service.lengths, *(kind.lengths for kind in service.types)]
    if measured is not None:
        lengths.append(measured)
    tokens = max(max((one.output_tokens, *one.outputs[-1:])) for one in lengths)
    tokens = min(tokens, float(service.max_len_tokens))
    return (service.slo.ttft_ms + tokens * service.slo.tpot_ms) / 1000.0


def drain_timeout_s(service: Service, policy: Policy, measured: Lengths | None = None) -> float:
    """Seconds that a draining instance of the model may take to finish its requests: the declared
    time-out, or else the duration of the longest answer."""
    if policy.drain_timeout_s > 0.0:
        return policy.drain_timeout_s
    return min(MOST_S, max(LEAST_DRAIN_S, longest_answer_s(service, measured)))


def request_limit_s(cluster: Cluster) -> float:
    """The `--request-s` that a gateway needs for the longest answers of all models, but at least
    its default."""
    longest = (longest_answer_s(service) for service in cluster.services)
    return min(MOST_S, max(GATEWAY_REQUEST_S, *longest, 0.0))


def drain_contradiction(
    service: Service, policy: Policy, measured: Lengths | None = None
) -> Contradiction | None:
    """The contradiction between the declared drain time-out and the answers of this model; None if
    the time-out is long enough."""
    needs_s = longest_answer_s(service, measured)
    if not 0.0 < policy.drain_timeout_s < needs_s:
        return None
    return Contradiction(
        ReasonCode.DRAIN_TOO_SHORT,
        "policy.drain_timeout",
        service.model,
        policy.drain_timeout_s,
        needs_s,
    )


def contradictions(cluster: Cluster) -> tuple[Contradiction, ...]:
    """All contradictions in `cluster`, by model and then by pool."""
    policy = cluster.policy
    drains = (drain_contradiction(service, policy) for service in cluster.services)
    return (
        *(wrong for wrong in drains if wrong is not None),
        *(_long_answers(service) for service in cluster.services if _is_cut(service)),
        *_approvals(cluster),
        *(
            _slow_pool(pool, policy)
            for pool in cluster.pools
            if pool.provision_s > policy.start_timeout_s
        ),
    )


def _is_cut(service: Service) -> bool:
    return longest_answer_s(service) > GATEWAY_REQUEST_S


def _long_answers(service: Service) -> Contradiction:
    needs_s = longest_answer_s(service)
    return Contradiction(
        ReasonCode.REQUEST_LIMIT_TOO_SHORT,
        "--request-s",
        service.model,
        GATEWAY_REQUEST_S,
        needs_s,
        harmless=True,
    )


def _approvals(cluster: Cluster) -> Iterator[Contradiction]:
    policy = cluster.policy
    asks = any(service.mode is Mode.APPROVE for service in cluster.services)
    if asks and policy.approve_within_s < policy.replan_every_s:
        yield Contradiction(
            ReasonCode.APPROVAL_TOO_SHORT,
            "policy.approve_within",
            "",
            policy.approve_within_s,
            policy.replan_every_s,
        )


def _slow_pool(pool: Pool, policy: Policy) -> Contradiction:
    return Contradiction(
        ReasonCode.START_BELOW_PROVISION,
        "policy.start_timeout",
        "",
        policy.start_timeout_s,
        pool.provision_s,
        harmless=True,
        pool=pool.id,
    )


def window_violation(service: Service, policy: Policy) -> tuple[str, str] | None:
    """(key, error) for a declared duration that exceeds the demand window; None if there is
    none."""
    for key, declared_s in (
        ("zero_after", service.zero_after_s),
        ("scale_in_after", service.scale_in_after_s),
    ):
        if declared_s > policy.global_window_s:
            allowed = f"at most policy.long_window, {policy.global_window_s}s"
            return key, f"{declared_s:g}s is not allowed; allowed: {allowed}"
    return None


def drain_warnings(
    services: Mapping[str, Service], policy: Policy, measured: Mapping[str, Lengths]
) -> dict[str, Reason]:
    """Warnings, keyed as in `ActiveControls.reasons`, for models whose drain time-out is too short
    for their longest answers."""
    found: dict[str, Reason] = {}
    for model, service in services.items():
        wrong = drain_contradiction(service, policy, measured.get(model))
        if wrong is not None:
            # Rounded to the minute, because the notice is repeated whenever this figure changes.
            needs_s = 60.0 * math.ceil(wrong.needs_s / 60.0)
            found[f"{model}/{wrong.code}"] = replace(wrong, needs_s=needs_s).reason
    return found
