"""What one tick knows of the demand for a model: its windows and its gateways.

Owns the value and how it is read off the windows. Knows nothing of capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.demand.windows import GatewaySeen, NoData, TelemetryWindows, WindowStats
from autoscaler.domain.cluster import Policy

_NEVER = NoData(None)


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Demand for one model as seen now.

    recent: (covered seconds, arrivals) of each span of `spans_s`, shortest first.
    local / long: the windows of policy.local_window_s and policy.global_window_s.
    gateways: those that spoke of the model lately.
    """

    recent: tuple[tuple[int, int], ...] = ()
    local: WindowStats = _NEVER
    long: WindowStats = _NEVER
    gateways: tuple[GatewaySeen, ...] = ()

    @property
    def req_per_s(self) -> float:
        """The mean rate of the local window; 0 where nothing is known."""
        return 0.0 if isinstance(self.local, NoData) else self.local.req_per_s


UNKNOWN = ModelDemand()


def spans_s(policy: Policy) -> tuple[int, ...]:
    """The spans that a rise is looked for in: each second up to the surge window, then half as
    long again each time, short of the local window.

    A tenfold burst shows within a second or two. A doubling at 1 request/s is beyond doubt only
    after half a minute, and would wait for the whole local window if there were none between.
    """
    spans = list(range(1, policy.surge_window_s + 1))
    while (longer := -(-spans[-1] * 3 // 2)) < policy.local_window_s:
        spans.append(longer)
    return tuple(spans)


def observe(
    windows: TelemetryWindows, models: Iterable[str], policy: Policy, now_ms: int
) -> dict[str, ModelDemand]:
    """The demand for each of `models` at `now_ms`, in domain ms."""
    return {
        model: ModelDemand(
            windows.recent(model, now_ms, spans_s(policy)),
            windows.stats(model, now_ms, policy.local_window_s),
            windows.stats(model, now_ms, policy.global_window_s),
            windows.gateways(model, now_ms),
        )
        for model in models
    }
