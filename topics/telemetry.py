"""Telemetry records of gateways, per model and second.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from topics import checks
from topics.sketch import HIGHEST, LOWEST, MOST_COUNT

COUNTS = (
    "arrivals",
    "completions",
    "failures",
    "refused",
    "attained",
    "input_tokens_arrived",
    "input_tokens",
    "output_tokens",
    "cache_queried_tokens",
    "cache_hit_tokens",
)
SKETCHES = ("ttft_ms", "tpot_ms", "input_lengths", "output_lengths", "shapes", "classes")

MOST_REQUESTS_PER_S = 10_000_000
MOST_TOKENS_PER_S = 100_000_000_000
MOST_PER_S = tuple(
    MOST_TOKENS_PER_S if "tokens" in name else MOST_REQUESTS_PER_S for name in COUNTS
)
"""Upper bound of each of COUNTS per second, both for one gateway in a record and for all gateways
together in a window. The planned rate for this bound, with headroom, stays below
`checks.MOST_REQ_PER_S`."""
MOST_IN_FLIGHT = 1_000_000_000
LONGEST_SPAN_MS = 3_600_000

UNCLASSED = -1
"""The class of an arrival without a score."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Counts of one gateway for one model in one span of its time (usually a second).

    (gateway, boot, sequence) identifies the record, so a repeated record is recognised as a
    duplicate. gateway, boot, sequence: Part of the record's identity. age_ms: Ms of domain time
    from the end of the span until the record was sent, by the gateway's monotonic clock. The event
    time is the broker's append time minus age_ms.

    arrivals: Requests that arrived in the span. completions: Requests answered in full. failures:
    Requests with an error or an interruption after acceptance. refused: Requests with 429 or
    without a route. attained: Requests within both limits. withdrawn: Requests that ended without a
    fault of the service, because the client left before a limit was missed or no instance serves
    such a request. in_flight: Requests in flight at the end of the span. input_tokens_arrived:
    Tokens of arrived requests. input_tokens, output_tokens: Tokens of requests that completed in
    the span. cache_queried_tokens, cache_hit_tokens: Prompt tokens of completed requests whose
    engine reports cached tokens, and the part of them that came from its prefix cache.

    ttft_ms, tpot_ms: Latency sketch of `topics.sketch` as {bucket: count}. input_lengths: Sketch of
    prompt tokens, counted on arrival. output_lengths: Sketch of answer tokens, counted on
    completion. shapes: Arrivals by input and expected output length, in buckets of
    `topics.request_shapes`. classes: Arrivals by score class (`topics.scoring`; `UNCLASSED` without
    a score), for services that route to several models.

    sent: Requests sent in the span, as {kind: {destination: requests}}. For workload types: {type:
    {group: n}}. For score splits: {"all": {model: n}}. For LoRA adapters: {"adapter:NAME": {model:
    n}}. While versions of the model are compared, also the counts of `topics.version_counts`.
    leaving: Whether this is the last record of the gateway, which then stops.
    route_generation: Generation of the routes that the gateway applies.

    In the encoded record, the one field `cells` holds all sketches.
    """

    model: str
    gateway: str
    boot: str
    sequence: int
    end_ms: int
    span_ms: int
    age_ms: int
    arrivals: int
    completions: int
    failures: int
    refused: int
    attained: int
    input_tokens_arrived: int
    input_tokens: int
    output_tokens: int
    in_flight: int
    route_generation: int
    ttft_ms: dict[int, int] = field(default_factory=dict)
    tpot_ms: dict[int, int] = field(default_factory=dict)
    withdrawn: int = 0
    input_lengths: dict[int, int] = field(default_factory=dict)
    output_lengths: dict[int, int] = field(default_factory=dict)
    leaving: bool = False
    shapes: dict[int, int] = field(default_factory=dict)
    sent: dict[str, dict[str, int]] = field(default_factory=dict)
    classes: dict[int, int] = field(default_factory=dict)
    cache_queried_tokens: int = 0
    cache_hit_tokens: int = 0

    packed_fields: ClassVar[tuple[str, ...]] = SKETCHES

    def __post_init__(self) -> None:
        for key in ("model", "gateway", "boot"):
            checks.name(key, getattr(self, key))
        checks.time_ms("end_ms", self.end_ms)
        checks.count("span_ms", self.span_ms, LONGEST_SPAN_MS)
        for key in ("sequence", "age_ms", "route_generation"):
            checks.count(key, getattr(self, key))
        checks.count("in_flight", self.in_flight, MOST_IN_FLIGHT)
        seconds = seconds_of(self.span_ms)
        for key, most in zip(COUNTS, MOST_PER_S, strict=True):
            checks.count(key, getattr(self, key), most * seconds)
        checks.count("withdrawn", self.withdrawn, MOST_REQUESTS_PER_S * seconds)
        for key in SKETCHES:
            for bucket, seen in getattr(self, key).items():
                plain = type(bucket) is int and type(seen) is int
                if plain and LOWEST <= bucket <= HIGHEST and 0 <= seen <= MOST_COUNT:
                    continue  # fast path for valid buckets, because a record has hundreds
                checks.number(f"{key} bucket", bucket, LOWEST, HIGHEST)
                checks.count(f"{key}[{bucket}]", seen, MOST_COUNT)
        check_sent(self.sent)


def seconds_of(span_ms: int) -> int:
    """The number of whole seconds, at least 1, by which the limit of the counts of a span is
    multiplied."""
    return max(1, -(-span_ms // 1000))


def check_sent(sent: Mapping[str, Mapping[str, int]]) -> None:
    """Check the value of `Telemetry.sent`; raises InvalidValue."""
    for kind, ways in sent.items():
        checks.name("sent", kind)
        for way, seen in ways.items():
            checks.combo(f"sent.{kind}", way)
            checks.count(f"sent.{kind}.{way}", seen)
