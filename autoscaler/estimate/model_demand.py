"""The demand for one model at one tick: its windows and its gateways' reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.arrival_counts import Blocks, Count
from autoscaler.estimate.request_kinds import VersionBlock
from autoscaler.estimate.window_stats import NO_REQUESTS, EndedRequests
from autoscaler.estimate.windows import (
    GatewayReport,
    NoData,
    PrefixHits,
    TelemetryWindows,
    TokenSums,
    WindowLengths,
    WindowStats,
)

_NEVER = NoData(None)
NO_HITS = PrefixHits()
HITS_RECENT_S = (10, 30)
"""Seconds in which a lower hit rate of prefix caches is noticed."""
SHIFT_SPANS_S = (20, 40, 80)
"""Spans in seconds, shorter than the local window, that are searched for a length shift."""
SILENT_MS = 10_000
"""A gateway reports every second; after 10 s without a report it counts as silent."""
STALE_MS = 2_000
"""Age in ms from which telemetry is stale: gateways report each second."""
_ENDED_S = 10
"""Seconds without arrivals after which requests in flight are the unserved rest of a past load."""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """The demand for one model at one tick.

    recent: (covered seconds, arrivals) of each span of `increase_spans_s`, shortest first; all
    spans end at reported_ms. reported_ms: end of the newest reported second, None without reports.
    local, long: windows of policy.local_window_s and policy.global_window_s; local_lengths,
    long_lengths: request lengths of these windows. recent_tokens: token sums of the last
    SHIFT_SPANS_S seconds. gateways: reports from the long window, without gateways that signed off.
    blocks: counts of each whole 10 s block of the long window. kinds: requests of the local window
    by kind, for models with several kinds. prefix_hits: tokens from prefix caches. versions: counts
    of versions that are compared. outcomes: requests that ended since the controller started.
    """

    recent: tuple[Count, ...] = ()
    local: WindowStats = _NEVER
    long: WindowStats = _NEVER
    gateways: tuple[GatewayReport, ...] = ()
    blocks: Blocks = ()
    long_lengths: WindowLengths = field(default_factory=WindowLengths)
    local_lengths: WindowLengths = field(default_factory=WindowLengths)
    reported_ms: int | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    recent_tokens: tuple[TokenSums, ...] = ()
    prefix_hits: PrefixHits = NO_HITS
    versions: tuple[VersionBlock, ...] = ()
    outcomes: EndedRequests = NO_REQUESTS

    @property
    def req_per_s(self) -> float:
        """Mean rate of the local window; 0 without telemetry."""
        return 0.0 if isinstance(self.local, NoData) else self.local.req_per_s

    @property
    def reporting_gateways(self) -> tuple[GatewayReport, ...]:
        """Gateways whose newest report is at most SILENT_MS old."""
        return tuple(seen for seen in self.gateways if seen.age_ms <= SILENT_MS)

    @property
    def in_flight(self) -> int:
        """Requests in flight at the reporting gateways."""
        return sum(seen.in_flight for seen in self.reporting_gateways)

    @property
    def is_stale(self) -> bool:
        """Whether the telemetry of the last seconds is missing. A tick with stale telemetry removes
        nothing."""
        return isinstance(self.local, NoData) or self.local.age_ms >= STALE_MS

    @property
    def shows_arrivals(self) -> bool:
        """Whether gateways reported arrivals in the last seconds."""
        local = self.local
        if isinstance(local, NoData) or not local.arrivals:
            return False
        return bool(next((n for s, n in self.recent if s >= _ENDED_S), local.arrivals))

    @property
    def counted_by_engines(self) -> bool:
        """Whether the counts of engines are needed: telemetry is missing, or shows no arrivals,
        which may be wrong."""
        return self.is_stale or not self.shows_arrivals


UNKNOWN_DEMAND = ModelDemand()


def increase_spans_s(policy: Policy) -> tuple[int, ...]:
    """Spans in seconds that are searched for a rate increase, all shorter than the local window.

    They are 1, 2, 3, ... seconds up to the surge window, then each a quarter longer than the
    previous one. A tenfold burst is significant within a second or two, but a doubling at 1 req/s
    only after half a minute, so short and long spans are needed.
    """
    spans = list(range(1, policy.surge_window_s + 1))
    while (longer := -(-spans[-1] * 5 // 4)) < policy.local_window_s:
        spans.append(longer)
    return tuple(spans)


def observe_demand(
    windows: TelemetryWindows, models: Iterable[str], policy: Policy, now_ms: int
) -> dict[str, ModelDemand]:
    """The demand for each of `models` at `now_ms`, in domain ms."""
    models = list(models)
    local_s, long_s = policy.local_window_s, policy.global_window_s
    seen = zip(
        models,
        windows.all_recent(models, now_ms, increase_spans_s(policy)),
        windows.all_stats(models, now_ms, local_s),
        windows.all_stats(models, now_ms, long_s),
        windows.all_gateways(models, now_ms, long_s),
        windows.all_blocks(models, now_ms, long_s),
        windows.all_newest_ms(models, now_ms),
        windows.all_tokens(
            models, now_ms, [span_s for span_s in SHIFT_SPANS_S if span_s < local_s]
        ),
        windows.all_prefix_hits(models, now_ms, HITS_RECENT_S, local_s, long_s),
        strict=True,
    )
    return {
        model: ModelDemand(
            recent=recent,
            local=local,
            long=long,
            gateways=gateways,
            blocks=blocks,
            long_lengths=long_lengths,
            local_lengths=local_lengths,
            reported_ms=seen_ms,
            kinds=windows.kinds(model, now_ms, local_s),
            recent_tokens=fresh,
            prefix_hits=hits,
            versions=windows.versions(model, now_ms),
            outcomes=windows.ended_requests(model),
        )
        for (
            model, recent, (local, local_lengths), (long, long_lengths), gateways, blocks, seen_ms,
            fresh, hits,
        ) in seen
    }  # fmt: skip
