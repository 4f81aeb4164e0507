"""Statistics of a model's sliding windows: counts, lengths and gateway reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


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
class EndedRequests:
    """Requests that ended (answered, failed or refused), and those of them within the SLO."""

    ended: int = 0
    attained: int = 0

    @property
    def share(self) -> float | None:
        """Attained / ended; None without ended requests."""
        return self.attained / self.ended if self.ended else None


NO_REQUESTS = EndedRequests()


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
    """Arrivals and their prompt tokens, completions and their answer tokens, failed and refused
    requests, and completions within the SLO."""

    arrivals: int
    input_tokens: int
    completions: int
    output_tokens: int
    failures: int = 0
    refused: int = 0
    attained: int = 0


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """Prompt tokens that engines looked up in their prefix caches, and the part that hit.

    recent: of spans up to the last half minute, shortest first. local: of the local window. long:
    of the whole minutes of the long window, which are `minutes`, with proven_share, see
    `proven_share`.
    """

    recent: tuple[tuple[int, int], ...] = ()
    local_queried: int = 0
    local_hit: int = 0
    long_queried: int = 0
    minutes: int = 0
    proven_share: float = 0.0


MIN_MINUTES = 5
"""Minutes without which no share of hits is proven: conversations of one minute resemble each
other."""
_SIGMAS = 2.0
"""Standard errors of the bound below the mean."""


def proven_share(minutes: NDArray[np.int64]) -> tuple[int, int, float]:
    """Looked-up tokens, minutes with such tokens, and the share of hits that these minutes prove: a
    lower bound of the mean since the share last changed. The time since then is the number of
    newest minutes, at least `MIN_MINUTES`, with the highest bound; 0.0 with fewer minutes.

    minutes, (n, 2): looked-up tokens and hits of each minute, oldest first.
    """
    newest = minutes[minutes[:, 0] > 0][::-1].astype(float)
    if not len(newest):
        return 0, 0, 0.0
    tokens, shares = newest[:, 0], newest[:, 1] / newest[:, 0]
    total = np.cumsum(tokens)
    means = np.cumsum(newest[:, 1]) / total
    variances = np.maximum(0.0, np.cumsum(tokens * shares**2) / total - means**2)
    errors = np.sqrt(variances / np.maximum(1, np.arange(len(newest))))
    bounds = (means - _SIGMAS * errors)[MIN_MINUTES - 1 :]
    return int(total[-1]), len(newest), max(0.0, float(bounds.max(initial=0.0)))


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
