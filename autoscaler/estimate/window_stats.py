"""Statistics of a model's sliding windows: counts, lengths and gateway reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NoData:
    """Result for a window without any report. last_ms: end of the newest reported second; None if
    no gateway ever reported the model."""

    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of a window.

    covered_s: seconds of the window that at least one gateway reported. age_ms: time from the end
    of the newest reported second to now. req_per_s: arrivals / covered_s. Mean input tokens are per
    arrival, mean output tokens per completion; None without arrivals or completions. p95 and p50
    fields: 95% quantiles and median in ms, from merged sketches.
    """

    covered_s: int
    age_ms: int
    arrivals: int
    completions: int
    failures: int
    refused: int
    attained: int
    req_per_s: float
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    tpot_p50_ms: float | None = None


WindowStats = NoData | Stats


@dataclass(frozen=True, slots=True)
class WindowLengths:
    """Lengths of the requests of a window, in tokens.

    inputs (of arrivals), outputs (of completions): sketches of `topics.sketch`, empty if the
    producer sends none. shapes: counts of arrivals by shape, see `topics.request_shapes`. Means
    come from token sums and are None without requests. classes: arrivals by score class, see
    `Telemetry`.
    """

    inputs: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    mean_input_tokens: float | None = None
    mean_output_tokens: float | None = None
    arrivals: int = 0
    completions: int = 0
    shapes: Mapping[int, int] = field(default_factory=dict)
    classes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Arrivals and their prompt tokens, completions and their answer tokens."""

    arrivals: int
    input_tokens: int
    completions: int
    output_tokens: int


@dataclass(slots=True)  # not frozen, for speed: one per gateway and model each tick
class GatewayReport:
    """A gateway's newest report on a model.

    reported_ms: event time of the gateway's newest record. age_ms: from reported_ms to now.
    last_traffic_ms: event time of the gateway's newest record with requests; 0 if there is none.
    """

    gateway: str
    boot: str
    reported_ms: int
    in_flight: int
    route_generation: int
    age_ms: int = 0
    last_traffic_ms: int = 0
