"""What one tick knows of the demand for a model: its windows and its gateways.

Owns the value and how it is read off the windows. Knows nothing of capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.cluster import Policy
from autoscaler.scaling.windows import GatewaySeen, NoData, TelemetryWindows, WindowStats

_NEVER = NoData(None)


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Demand for one model as seen now.

    recent: (covered seconds, arrivals) of the last 1, 2, ... surge_window_s seconds.
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


def observe(
    windows: TelemetryWindows, models: Iterable[str], policy: Policy, now_ms: int
) -> dict[str, ModelDemand]:
    """The demand for each of `models` at `now_ms`, in domain ms."""
    return {
        model: ModelDemand(
            windows.recent(model, now_ms, policy.surge_window_s),
            windows.stats(model, now_ms, policy.local_window_s),
            windows.stats(model, now_ms, policy.global_window_s),
            windows.gateways(model, now_ms),
        )
        for model in models
    }
