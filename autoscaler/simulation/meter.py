"""What a simulated gateway saw of one model since it last reported.

Owns the counts of a span, by the rules of `topics.telemetry`. Knows nothing of routes or engines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from autoscaler.simulation.requests import Call, Ending
from topics.shapes import shape_of
from topics.sketch import bucket_of
from topics.telemetry import Telemetry


@dataclass(slots=True)
class Meter:
    """Counts of one model at one gateway."""

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
    ttft_ms: Counter[int] = field(default_factory=Counter)
    tpot_ms: Counter[int] = field(default_factory=Counter)
    input_lengths: Counter[int] = field(default_factory=Counter)
    output_lengths: Counter[int] = field(default_factory=Counter)
    shapes: Counter[int] = field(default_factory=Counter)
    sent: dict[str, dict[str, int]] = field(default_factory=dict)

    def arrived(self, call: Call) -> None:
        """A request came in."""
        self.arrivals += 1
        self.in_flight += 1
        self.input_tokens_arrived += call.input_tokens
        self.input_lengths[_length_bucket(call.input_tokens)] += 1
        self.shapes[_shape(call.input_tokens, call.output_tokens)] += 1

    def went(self, call: Call) -> None:
        """A request is sent to its group."""
        if call.kind:
            to = self.sent.setdefault(call.kind, {})
            to[call.group] = to.get(call.group, 0) + 1

    def ended(self, call: Call, too_long: bool, ttft_limit_ms: float, tpot_limit_ms: float) -> None:
        """A request that arrived has ended. too_long: no engine would have taken it."""
        self.in_flight -= 1
        if call.ending is Ending.REFUSED:
            self.refused += 1
        elif too_long:
            self.withdrawn += 1
        elif call.ending is not Ending.SERVED or call.first_ms is None or call.end_ms is None:
            self.failures += 1
        else:
            self.completions += 1
            self.input_tokens += call.input_tokens
            self.output_tokens += call.output_tokens
            self.output_lengths[_length_bucket(call.output_tokens)] += 1
            ttft_ms = call.first_ms - call.arrival_ms
            self.ttft_ms[bucket_of(ttft_ms)] += 1
            tpot_ms = 0.0
            if call.output_tokens > 1:
                tpot_ms = (call.end_ms - call.first_ms) / (call.output_tokens - 1)
                self.tpot_ms[bucket_of(tpot_ms)] += 1
            self.attained += ttft_ms <= ttft_limit_ms and tpot_ms <= tpot_limit_ms

    def report(
        self, model: str, gateway: str, sequence: int, end_ms: int, span_ms: int, generation: int
    ) -> Telemetry:
        """The span that ends at `end_ms` (since the epoch); the next one begins."""
        record = Telemetry(
            model=model,
            gateway=gateway,
            boot="simulated",
            sequence=sequence,
            end_ms=end_ms,
            span_ms=span_ms,
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
            route_generation=generation,
            ttft_ms=self.ttft_ms,
            tpot_ms=self.tpot_ms,
            withdrawn=self.withdrawn,
            input_lengths=self.input_lengths,
            output_lengths=self.output_lengths,
            shapes=self.shapes,
            sent=self.sent,
        )
        self.arrivals = self.completions = self.failures = self.refused = 0
        self.withdrawn = self.attained = 0
        self.input_tokens_arrived = self.input_tokens = self.output_tokens = 0
        self.ttft_ms, self.tpot_ms = Counter(), Counter()
        self.input_lengths, self.output_lengths = Counter(), Counter()
        self.shapes, self.sent = Counter(), {}
        return record


@lru_cache(maxsize=65_536)
def _length_bucket(tokens: int) -> int:
    return bucket_of(float(tokens))


@lru_cache(maxsize=65_536)
def _shape(input_tokens: int, output_tokens: int) -> int:
    return shape_of(input_tokens, output_tokens)
