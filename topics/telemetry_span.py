"""Counters of one model between two telemetry records, for real and simulated gateways."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from topics.request_shapes import shape_of
from topics.sketch import bucket_of
from topics.telemetry import LONGEST_SPAN_MS, Telemetry


@dataclass(slots=True)
class Span:
    """Counts since the last record, defined as in `Telemetry`. in_flight: the current value."""

    in_flight: int = 0
    arrivals: int = 0
    completions: int = 0
    failures: int = 0
    refused: int = 0
    withdrawn: int = 0
    attained: int = 0
    input_tokens_arrived: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: dict[int, int] = field(default_factory=dict)
    tpot_ms: dict[int, int] = field(default_factory=dict)
    input_lengths: dict[int, int] = field(default_factory=dict)
    output_lengths: dict[int, int] = field(default_factory=dict)
    shapes: dict[int, int] = field(default_factory=dict)
    sent_to: dict[str, dict[str, int]] = field(default_factory=dict)
    classes: dict[int, int] = field(default_factory=dict)
    cache_queried_tokens: int = 0
    cache_hit_tokens: int = 0

    def count_arrival(self, input_tokens: int, output_tokens: int) -> None:
        """Count an arriving request. output_tokens: expected number of output tokens."""
        self.arrivals += 1
        self.in_flight += 1
        self.input_tokens_arrived += input_tokens
        _count(self.input_lengths, _length_bucket(input_tokens))
        _count(self.shapes, _shape(input_tokens, output_tokens))

    def count_sent(self, kind: str, to: str) -> None:
        """Count a request of `kind` sent to `to`; if either is "", count nothing."""
        if kind and to:
            places = self.sent_to.setdefault(kind, {})
            places[to] = places.get(to, 0) + 1

    def count_class(self, number: int) -> None:
        """Count the score class `number` of an arriving request."""
        _count(self.classes, number)

    def count_cached(self, input_tokens: int, cached_tokens: int) -> None:
        """Count the prompt of an answered request, of which `cached_tokens` were in a prefix
        cache."""
        self.cache_queried_tokens += input_tokens
        self.cache_hit_tokens += min(cached_tokens, input_tokens)

    def count_answer(
        self,
        first_ms: float | None,
        last_ms: float,
        input_tokens: int,
        output_tokens: int,
        ttft_limit_ms: float,
        tpot_limit_ms: float,
    ) -> None:
        """Count a request that was answered in full; times are in ms since the request arrived.

        first_ms None: the answer was not streamed, so the time of its first token is unknown. Such
        a request attains the SLO if its total time is at most the TTFT limit plus the TPOT limit
        for each further token. The latency sketches do not count it.
        """
        self.completions += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        _count(self.output_lengths, _length_bucket(output_tokens))
        gaps = max(0, output_tokens - 1)
        if first_ms is None:
            self.attained += last_ms <= ttft_limit_ms + tpot_limit_ms * gaps
            return
        _count(self.ttft_ms, bucket_of(first_ms))
        tpot_ms = 0.0
        if gaps:
            tpot_ms = (last_ms - first_ms) / gaps
            _count(self.tpot_ms, bucket_of(tpot_ms))
        self.attained += first_ms <= ttft_limit_ms and tpot_ms <= tpot_limit_ms

    def report(
        self,
        model: str,
        gateway: str,
        boot: str,
        sequence: int,
        end_ms: int,
        span_ms: int,
        route_generation: int,
        leaving: bool = False,
    ) -> Telemetry:
        """Return the record of the span that ends now, even if all counts are 0; then reset the
        counts. leaving: whether this is the last record."""
        record = Telemetry(
            model=model,
            gateway=gateway,
            boot=boot,
            sequence=sequence,
            end_ms=end_ms,
            span_ms=min(span_ms, LONGEST_SPAN_MS),
            age_ms=0,
            arrivals=self.arrivals,
            completions=self.completions,
            failures=self.failures,
            refused=self.refused,
            attained=self.attained,
            input_tokens_arrived=self.input_tokens_arrived,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            in_flight=self.in_flight,
            route_generation=route_generation,
            ttft_ms=self.ttft_ms,
            tpot_ms=self.tpot_ms,
            withdrawn=self.withdrawn,
            input_lengths=self.input_lengths,
            output_lengths=self.output_lengths,
            leaving=leaving,
            shapes=self.shapes,
            sent=self.sent_to,
            classes=self.classes,
            cache_queried_tokens=self.cache_queried_tokens,
            cache_hit_tokens=self.cache_hit_tokens,
        )
        self.reset()
        return record

    def reset(self) -> None:
        """Start the next span: all counts except in_flight become zero."""
        self.arrivals = self.completions = self.failures = self.refused = self.attained = 0
        self.withdrawn = 0
        self.input_tokens_arrived = self.input_tokens = self.output_tokens = 0
        self.cache_queried_tokens = self.cache_hit_tokens = 0
        self.ttft_ms, self.tpot_ms = {}, {}
        self.input_lengths, self.output_lengths = {}, {}
        self.shapes, self.sent_to, self.classes = {}, {}, {}


def _count(sketch: dict[int, int], bucket: int) -> None:
    sketch[bucket] = sketch.get(bucket, 0) + 1


@lru_cache(maxsize=1024)
def _length_bucket(tokens: int) -> int:
    return bucket_of(float(tokens))


@lru_cache(maxsize=1024)
def _shape(input_tokens: int, output_tokens: int) -> int:
    return shape_of(input_tokens, output_tokens)
