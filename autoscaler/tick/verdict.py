"""The verdict on a model, from its conditions: whether it serves, keeps its promise, has telemetry,
and waits for an operator.

Measurements count before predictions. Status, doctor, console, metrics and alerts only show this
verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.condition_level import level
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.slo_evidence import ended, is_broken, is_kept
from autoscaler.estimate.windows import Stats
from topics.reason_codes import ReasonCode as Code

SILENT_S = 30.0
"""Age in seconds from which telemetry counts as missing."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The figures of a model from which its verdict follows.

    ready, wanted, leaving: number of combos. unserved_req_per_s: planned demand that the plan does
    not serve, 0 while this is not noticed. floor: least number of combos in force, 0 while it is
    met or not noticed. telemetry_age_s: None = never reported. proposal: its number, 0 for none.
    held: the pause or release in force. spot: share of capacity on spot nodes and the allowed
    share, if the former is larger. servers: number of servers that Shoal did not start, None =
    unknown. uncounted: whether recommendations wait for that number.
    """

    ready: int
    wanted: int
    leaving: int
    unserved_req_per_s: float
    floor: int
    telemetry_age_s: float | None
    proposal: int
    held: Reason | None
    spot: tuple[float, float] | None
    servers: int | None
    uncounted: bool


def conditions(service: Service, demand: ModelDemand, now: Standing) -> tuple[Reason, ...]:
    """The conditions of the model, most urgent first; at least one."""
    model = service.model
    found = [*_served(service, demand, now)]
    if now.unserved_req_per_s > 0.0:
        found.append(Reason(Code.CAPACITY_SHORT, model, quantities=(now.unserved_req_per_s,)))
    elif now.floor:
        found.append(Reason(Code.FLOOR_SHORT, model, quantities=(now.wanted, now.floor)))
    if now.telemetry_age_s is None:
        found.append(Reason(Code.NO_TELEMETRY, model))
    elif now.telemetry_age_s > SILENT_S:
        found.append(Reason(Code.NO_TELEMETRY, model, quantities=(now.telemetry_age_s,)))
    if now.spot is not None:
        found.append(Reason(Code.OVER_SPOT_LIMIT, model, quantities=now.spot))
    if now.proposal:
        found.append(Reason(Code.PROPOSAL_WAITS, model, quantities=(now.proposal,)))
    if now.held is not None:
        found.append(now.held)
    found.append(_progress(service, now))
    return tuple(sorted(found, key=lambda one: -level([one.code]).urgency))


def _served(service: Service, demand: ModelDemand, now: Standing) -> Iterable[Reason]:
    """Conditions by the requests of the local and the long window."""
    local, long = demand.local, demand.long
    if isinstance(local, Stats):
        failed = local.failures + local.refused
        # The first requests wait for a start; nothing was served before.
        waits = now.wanted > 0 and not failed and not local.completions
        if service.managed and not now.ready and local.arrivals and not waits:
            yield Reason(Code.NOTHING_READY, service.model, quantities=(local.req_per_s,))
        if not local.completions and failed and is_broken(local, service.percentile):
            yield Reason(
                Code.NOT_SERVED, service.model, quantities=(failed, float(local.covered_s))
            )
        elif is_broken(local, service.percentile):
            yield _promise(Code.PROMISE_BROKEN, service, local)
        elif isinstance(long, Stats) and is_broken(long, service.percentile):
            is_over = is_kept(local, service.percentile)
            code = Code.PROMISE_WAS_BROKEN if is_over else Code.PROMISE_BROKEN
            yield _promise(code, service, long)


def _progress(service: Service, now: Standing) -> Reason:
    """The progress of the instances of the model."""
    if service.mode is Mode.RECOMMEND:
        if now.servers is None and now.uncounted:
            return Reason(Code.SERVERS_UNCOUNTED, service.model)
        counted = () if now.servers is None else (float(now.servers),)
        return Reason(Code.RECOMMENDED_ONLY, service.model, quantities=counted)
    if now.wanted > now.ready:
        return Reason(Code.STARTING, service.model, quantities=(now.wanted - now.ready,))
    if now.leaving:
        return Reason(Code.LEAVING, service.model, quantities=(now.leaving,))
    return Reason(Code.STEADY if now.wanted else Code.AT_ZERO, service.model)


def _promise(code: Code, service: Service, window: Stats) -> Reason:
    requests = ended(window)
    shares = window.attained / requests, float(requests)
    return Reason(
        code, service.model,
        quantities=(*shares, float(window.covered_s), 100.0 * service.percentile),
    )  # fmt: skip
