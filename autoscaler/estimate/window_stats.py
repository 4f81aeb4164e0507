"""What windows say of a model: counts, lengths, gateways, or that nothing was reported.

Owns the values. Knows nothing of how they are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NoData:
    """Nothing was reported in the window. last_ms: end of the last second seen, None if none."""

    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """What a window holds.

    covered_s: seconds of it that some gateway reported on. age_ms: from the end of the newest
    reported second to now. req_per_s: arrivals / covered_s. Mean tokens: input over arrivals,
    output over completions, None where there were none. p95 in ms from merged sketches.
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


WindowStats = NoData | Stats


@dataclass(frozen=True, slots=True)
class LengthsSeen:
    """Lengths of the requests of a window, in tokens.

    inputs (of arrivals), outputs (of completions): sketches of `topics.sketch`, empty where the
    producer sends none; shapes: of `topics.request_shapes`, of arrivals. Means are of the token
    sums, None if there were no requests. classes: arrivals by score class, see `Telemetry`.
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
    """Requests that arrived with their prompts, requests that completed with their answers."""

    arrivals: int
    input_tokens: int
    completions: int
    output_tokens: int


@dataclass(slots=True)  # to make frozen ones, one per gateway and model, takes three times as long
class GatewaySeen:
    """A gateway's last word on a model.

    seen_ms: event time of its newest record. age_ms: from then to now. served_ms: event time of
    its newest record with requests, 0 if it never had any.
    """

    gateway: str
    boot: str
    seen_ms: int
    in_flight: int
    route_generation: int
    age_ms: int = 0
    served_ms: int = 0
