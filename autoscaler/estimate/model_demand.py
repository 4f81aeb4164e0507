"""What one tick knows of the demand for a model: its windows and its gateways.

Owns the value and how it is read off the windows. Knows nothing of capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.arrival_counts import Blocks, Count
from autoscaler.estimate.windows import (
    GatewaySeen,
    LengthsSeen,
    NoData,
    TelemetryWindows,
    TokenSums,
    WindowStats,
)

_NEVER = NoData(None)
FRESH_S = (20, 40, 80)
"""Spans, in seconds, in which a turn of requests is looked for within the local window."""
SILENT_MS = 10_000
"""A gateway reports every second: after ten without a word it has fallen silent."""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Demand for one model as seen now.

    recent: (covered seconds, arrivals) of each span of `spans_s`, shortest first, counted back
    from seen_ms, the end of the newest reported second (None: nothing was ever reported).
    local / long: the windows of policy.local_window_s and policy.global_window_s, and how long
    requests were in them; fresh: what was asked in the last FRESH_S seconds. gateways: those that
    spoke of the model within the long window and did not sign off. blocks: counts of each whole 10
    s block of the long window. kinds: requests of the local window by their kind, of models that
    have several.
    """

    recent: tuple[Count, ...] = ()
    local: WindowStats = _NEVER
    long: WindowStats = _NEVER
    gateways: tuple[GatewaySeen, ...] = ()
    blocks: Blocks = ()
    long_lengths: LengthsSeen = field(default_factory=LengthsSeen)
    local_lengths: LengthsSeen = field(default_factory=LengthsSeen)
    seen_ms: int | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    fresh: tuple[TokenSums, ...] = ()

    @property
    def req_per_s(self) -> float:
        """The mean rate of the local window; 0 where nothing is known."""
        return 0.0 if isinstance(self.local, NoData) else self.local.req_per_s

    @property
    def speaking(self) -> tuple[GatewaySeen, ...]:
        """The gateways that still report."""
        return tuple(seen for seen in self.gateways if seen.age_ms <= SILENT_MS)

    @property
    def in_flight(self) -> int:
        """Requests in flight at the gateways that still report."""
        return sum(seen.in_flight for seen in self.speaking)


UNKNOWN = ModelDemand()


def spans_s(policy: Policy) -> tuple[int, ...]:
    """The spans that a rise is looked for in: each second up to the surge window, then a quarter
    longer each time, short of the local window.

    A tenfold burst shows within a second or two. A doubling at 1 request/s is beyond doubt only
    after half a minute, and would wait for the whole local window if there were none between.
    """
    spans = list(range(1, policy.surge_window_s + 1))
    while (longer := -(-spans[-1] * 5 // 4)) < policy.local_window_s:
        spans.append(longer)
    return tuple(spans)


def observe(
    windows: TelemetryWindows, models: Iterable[str], policy: Policy, now_ms: int
) -> dict[str, ModelDemand]:
    """The demand for each of `models` at `now_ms`, in domain ms."""
    models = list(models)
    local_s, long_s = policy.local_window_s, policy.global_window_s
    seen = zip(
        models,
        windows.all_recent(models, now_ms, spans_s(policy)),
        windows.all_stats(models, now_ms, local_s),
        windows.all_stats(models, now_ms, long_s),
        windows.all_gateways(models, now_ms, long_s),
        windows.all_blocks(models, now_ms, long_s),
        windows.all_newest_ms(models, now_ms),
        windows.all_tokens(models, now_ms, [span_s for span_s in FRESH_S if span_s < local_s]),
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
            seen_ms=seen_ms,
            kinds=windows.kinds(model, now_ms, local_s),
            fresh=fresh,
        )
        for (
            model, recent, (local, local_lengths), (long, long_lengths), gateways, blocks, seen_ms,
            fresh,
        ) in seen
    }  # fmt: skip
