"""The story of a run for its end: each event of the scenario with the decisions that followed, and
what was saved and why. Pure: events, decisions and the summary are input, texts are output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.serving.billing import NodeSpan
from streams.plain_text import several
from streams.text_layout import wrapped
from streams.tools.up.event_log import Event, clock
from streams.tools.up.observed_demand import DemandSeen

TOGETHER = "all models together"
"""Name of the comparison in which all models are planned together."""
ALONE = "each model alone"
"""Name of the comparison in which each model has nodes of its own."""
_FOLLOWS_MS = 240_000
"""Domain ms in which a decision counts as an answer to the last event."""
_MOST_DECISIONS = 3
_CENT = 0.005
_UNSERVED = 0.005
_POINTS = 0.05
"""Percentage points of the share within the SLO that the text shows as a difference."""
_WHY = {
    "one GPU type": "each model runs on the GPU that serves it cheapest",
    "one rented GPU type": "each model runs on the GPU that serves it cheapest",
    ALONE: "models share nodes",
}
_NO_CAUSE = "all models planned together would have cost as much"


@dataclass(frozen=True, slots=True)
class Chapter:
    """An event of the scenario, and the decisions that followed it before the next event.

    at_ms: domain time. what: what happened. then: the decisions as text with their times since the
    start of the run, in order.
    """

    at_ms: int
    what: str
    then: tuple[str, ...]


def chapters(story: Iterable[Event], began_ms: int = 0) -> list[Chapter]:
    """The chapters of the log. Events of the same second are one chapter. began_ms: domain time of
    the start of the run."""
    found: list[tuple[int, list[str], list[str]]] = []
    for event in sorted(story, key=lambda one: one.at_ms):
        if event.scripted:
            if found and event.at_ms - found[-1][0] < 1000 and not found[-1][2]:
                found[-1][1].append(event.text)
            else:
                found.append((event.at_ms, [event.text], []))
        elif event.decision and found and event.at_ms - found[-1][0] < _FOLLOWS_MS:
            found[-1][2].append(f"{clock(event.at_ms - began_ms)} {event.text}")
    return [Chapter(at_ms, "; ".join(what), tuple(then)) for at_ms, what, then in found]


def story_lines(story: Sequence[Mapping[str, Any]]) -> list[str]:
    """The summary's `story` as wrapped lines: each event, then at most three decisions."""
    lines: list[str] = []
    for one in story:
        lines += wrapped(f"{clock(1000.0 * one['at_s'])} {one['what']}")
        decisions = one["then"]
        for text in decisions[:_MOST_DECISIONS]:
            lines += wrapped(text, " " * 4)
        more = len(decisions) - _MOST_DECISIONS
        lines += wrapped(f"and {several(more, 'more decision')}", " " * 4) if more > 0 else []
    return lines


def mean_share_of_peak(seen: DemandSeen) -> float | None:
    """The mean demand of a run as a share of the sum of all models' busiest minutes; None without
    demand."""
    totals = seen.totals()
    peak = sum(demand.req_per_s for demand in seen.peak(totals))
    return min(1.0, fmean(totals.values()) / peak) if peak else None


def spot_saving_usd(spans: Iterable[NodeSpan], cluster: Cluster) -> float:
    """How much less the spot nodes of `spans` cost than on-demand nodes of the same kind."""
    pools = {pool.id: pool for pool in cluster.pools}
    listed = {
        (pool.region, pool.name): pool.price_usd_per_h
        for pool in cluster.pools
        if pool.market is Market.ON_DEMAND
    }
    found = 0.0
    for span in spans:
        pool = pools[span.pool]
        dear = listed.get((pool.region, pool.name))
        if pool.market is Market.SPOT and dear is not None:
            found += (dear - span.usd_per_h) * span.hours
    return found


def _is_lesson(other: Mapping[str, Any], cost_usd: float) -> bool:
    """Whether a comparison shows what the run paid for not knowing the demand."""
    served = other["what"] == TOGETHER and other["unserved"] < _UNSERVED
    return served and bool(other["usd"] <= cost_usd - _CENT)


def _equals(other: Mapping[str, Any], together: Mapping[str, Any] | None) -> bool:
    """Whether each model alone costs and serves as much as all together: no nodes were shared, so
    the sentence about all together says enough."""
    return (
        other["what"] == ALONE
        and together is not None
        and abs(other["usd"] - together["usd"]) < _CENT
        and abs(other["unserved"] - together["unserved"]) < _UNSERVED
    )


def _hindsight_line(together: Mapping[str, Any], cost_usd: float) -> str:
    return (
        f"all models together would have cost {together['usd']:.2f} USD with demand known in "
        "advance and nodes that start at once; the other "
        f"{cost_usd - together['usd']:.2f} USD paid for start-ups, drains, reserves and lost nodes"
    )


def policy_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Each simulated policy compared with the run: cost, share within the SLO, and whether it would
    have been the better one."""
    cost, met = summary["cost_usd"], summary["slo_attainment"]
    for other in summary["simulated"] if met is not None else ():
        saved, points = other["usd"] - cost, 100.0 * (met - other["slo_attainment"])
        usd = f"{abs(saved):.2f} USD {'less' if saved >= 0.0 else 'more'} than {other['policy']}"
        share = f"{abs(points):.1f} points {'more' if points >= 0.0 else 'fewer'} within the SLO"
        is_better = saved <= -_CENT and points <= -_POINTS
        yield f"{usd}, {share}{': it would have been better' if is_better else ''}"


def saving_lines(summary: Mapping[str, Any]) -> list[str]:
    """The savings and their reasons as sentences. Empty without a comparison."""
    if not summary["otherwise"]:
        return []
    cost, spot = summary["cost_usd"], summary["spot_saving_usd"]
    lines = []
    together = next((one for one in summary["otherwise"] if one["what"] == TOGETHER), None)
    for other in summary["otherwise"]:
        if other["what"] == TOGETHER:
            continue
        what, why = other["what"], _WHY[other["what"]]
        name = f"{what} ({other['gpu']})" if "gpu" in other else what
        difference = other["usd"] - cost
        if other["unserved"] >= _UNSERVED:
            lines.append(
                f"{name} would have served {1.0 - other['unserved']:.0%} of the demand, for "
                f"{other['usd']:.2f} USD"
            )
        elif difference >= _CENT:
            saved = f"{difference:.2f} USD ({difference / other['usd']:.0%}) less than {name}"
            is_cause = together is None or together["usd"] <= other["usd"] - _CENT
            lines.append(f"{saved}: {why}" if is_cause else f"{saved}; {_NO_CAUSE}")
        elif difference <= -_CENT and not _equals(other, together):
            lines.append(
                f"{-difference:.2f} USD more than {name}, which has demand known in advance and "
                "nodes that start at once"
            )
    lines += [_hindsight_line(one, cost) for one in summary["otherwise"] if _is_lesson(one, cost)]
    if spot >= _CENT:
        lines.append(f"spot nodes cost {spot:.2f} USD less than on-demand nodes of the same kind")
    return lines
