"""The workload of a model: phases, request lengths, SLOs and demand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from autoscaler.domain.validation import InvalidValue, finite
from topics.checks import MOST_REQ_PER_S


class Phase(StrEnum):
    """The part of a request that an instance computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


WEIGHTS = (0.1, 0.15, 0.15, 0.15, 0.15, 0.1, 0.075, 0.05, 0.035, 0.02, 0.01, 0.01)
"""Weights of the points of a spread: the share of requests that each point represents, shortest
first."""

LEVELS = (0.05, 0.175, 0.325, 0.475, 0.625, 0.75, 0.8375, 0.9, 0.9425, 0.97, 0.985, 0.995)
"""Quantile levels of the points of a spread: the middle of each share."""

MOST_PREFIX_HIT = 0.99
"""Highest share of prompt tokens that may come from a prefix cache."""

Spread = tuple[float, ...]
"""Distribution of a length: tokens at LEVELS, ascending; empty if all requests have the mean
length."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Request lengths: mean input and output tokens (R_in, R_out), and their spreads.

    inputs, outputs: spreads around the means. together: correlation between input and output
    lengths (of their normal scores); 0: independent. prefix_hit: share of the prompt tokens that
    come from a prefix cache, below 1; they need no computation, but room in the KV cache.
    """

    input_tokens: float
    output_tokens: float
    inputs: Spread = ()
    outputs: Spread = ()
    together: float = 0.0
    prefix_hit: float = 0.0

    def __post_init__(self) -> None:
        finite("lengths.together", self.together, -1.0, 1.0)
        finite("lengths.prefix_hit", self.prefix_hit, 0.0, MOST_PREFIX_HIT)
        finite("lengths.input_tokens", self.input_tokens, 1.0, 1e7)
        finite("lengths.output_tokens", self.output_tokens, 1.0, 1e7)
        for name in ("inputs", "outputs"):
            spread = getattr(self, name)
            if spread and len(spread) != len(LEVELS):
                raise InvalidValue(f"lengths.{name}", len(spread), f"0 or {len(LEVELS)} points")
            for tokens in spread:
                finite(f"lengths.{name}", tokens, 1.0, 1e7)
            if list(spread) != sorted(spread):
                raise InvalidValue(f"lengths.{name}", spread, "rising token counts")

    @classmethod
    def expected(cls, input_tokens: float, output_tokens: float, cv: float = 1.0) -> Lengths:
        """Lengths for given means, with lognormal distributions whose standard deviation is cv x
        mean."""
        return cls(
            input_tokens,
            output_tokens,
            lognormal(input_tokens, cv),
            lognormal(output_tokens, cv),
        )


def lognormal(mean: float, cv: float) -> Spread:
    """The spread of a lognormal distribution: its quantiles at LEVELS, scaled to keep the mean.

    Each point is at least one token, so the mean of the spread may be slightly above a very short
    `mean`.
    """
    sigma = math.sqrt(math.log(1.0 + cv * cv))
    raw = [math.exp(sigma * NormalDist().inv_cdf(level)) for level in LEVELS]
    scale = mean / sum(w * x for w, x in zip(WEIGHTS, raw, strict=True))
    return tuple(max(1.0, scale * x) for x in raw)


@dataclass(frozen=True, slots=True)
class WorkloadType:
    """One kind of request of a model: its share of all requests, in (0, 1], and its lengths.

    The requests of a type have equal lengths, without a spread. Source: Demystifying sec. 3 (nine
    types by input and output length).
    """

    name: str
    share: float
    lengths: Lengths

    def __post_init__(self) -> None:
        finite(f"workload type {self.name}: share", self.share, 1e-9, 1.0)


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency limits of one request: time to first token and mean time per output token."""

    ttft_ms: float
    tpot_ms: float

    def __post_init__(self) -> None:
        finite("slo.ttft_ms", self.ttft_ms, 1e-3, 1e9)
        finite("slo.tpot_ms", self.tpot_ms, 1e-3, 1e9)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrival process of a model, over all of its instances together.

    req_per_s: raw capacity of all instances that share the arrivals; 0 = unknown. cv: coefficient
    of variation of the times between arrivals (1: Poisson).
    """

    req_per_s: float = 0.0
    cv: float = 1.0

    def __post_init__(self) -> None:
        finite("arrivals.req_per_s", self.req_per_s, 0.0, MOST_REQ_PER_S)
        finite("arrivals.cv", self.cv, 0.01, 100.0)

    def instance_cv(self, req_per_s: float) -> float:
        """The CV of the times between arrivals at one instance with `req_per_s` of the total rate.
        Weighted round robin sends every n-th request to the instance, n = total rate / rate of the
        instance, so its CV is cv / sqrt(n). More instances share each burst, so each of them gets
        smoother arrivals.
        """
        if self.req_per_s <= 0.0:
            return self.cv
        return self.cv * math.sqrt(min(1.0, req_per_s / self.req_per_s))


POISSON_ARRIVALS = Arrivals()
"""Poisson arrivals that a single instance serves."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand for one model: requests/s to serve, and their lengths. arrival_cv: coefficient of
    variation of the times between arrivals (1: Poisson). mix: share of each workload type by name,
    if it differs from the declared one.
    """

    model: str
    req_per_s: float
    lengths: Lengths
    arrival_cv: float = 1.0
    mix: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        finite(f"demand of {self.model}: req_per_s", self.req_per_s, 0.0, MOST_REQ_PER_S)
        finite(f"demand of {self.model}: arrival_cv", self.arrival_cv, 0.01, 100.0)
        for name, share in self.mix:
            finite(f"demand of {self.model}: share of {name}", share, 0.0, 1.0)
