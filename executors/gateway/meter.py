"""What a gateway saw of one model since it last reported.

Owns the counts of a span and how a request's end is counted. Knows nothing of sockets or Kafka.
Every request that arrived is counted once more when it ends: as completed, failed,
refused or withdrawn; until then it is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from topics.records import Telemetry
from topics.shapes import shape_of
from topics.sketch import bucket_of

_FIRST_OUTPUT = 256.0
_LEARN = 0.02


class Ending(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"  # the client's own doing: no miss of ours


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request. Durations in domain ms, from its arrival at the gateway.

    first_ms: until the first token, None where the client did not stream. last_ms: until the end.
    """

    ending: Ending
    last_ms: float = 0.0
    first_ms: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Meter:
    """Counts of one model. guess_ratio: prompt tokens as engines count them per guessed one.
    usual_output: tokens of an answer, as learnt from the `answers` that completed."""

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
    guess_ratio: float = 1.0
    usual_output: float = _FIRST_OUTPUT
    answers: int = 0

    def arrived(self, tokens_guess: int, output_most: int = 0) -> tuple[float, float]:
        """A request came in; its input and expected output tokens. output_most: what it may make
        at most, 0 where it does not say: then what is usual is expected."""
        self.arrivals += 1
        self.in_flight += 1
        tokens = round(tokens_guess * self.guess_ratio)
        self.input_tokens_arrived += tokens
        _count(self.input_lengths, tokens)
        output = output_most or self.usual_output
        shape = shape_of(tokens, output)
        self.shapes[shape] = self.shapes.get(shape, 0) + 1
        return float(tokens), output

    def classed(self, number: int) -> None:
        """The request that came in has a score of this class."""
        self.classes[number] = self.classes.get(number, 0) + 1

    def sent(self, kind: str, group: str) -> None:
        """A request of `kind` goes to `group`; "" for either counts nothing."""
        if kind and group:
            to = self.sent_to.setdefault(kind, {})
            to[group] = to.get(group, 0) + 1

    def ended(
        self, outcome: Outcome, tokens_guess: int, ttft_limit_ms: float, tpot_limit_ms: float
    ) -> None:
        """A request that arrived has ended."""
        self.in_flight -= 1
        if outcome.ending is Ending.REFUSED:
            self.refused += 1
            return
        if outcome.ending is Ending.WITHDRAWN:
            # Who goes after the limit has passed without a token was failed by us.
            if outcome.first_ms is None and outcome.last_ms > ttft_limit_ms:
                self.failures += 1
            else:
                self.withdrawn += 1
            return
        if outcome.ending is Ending.FAILED:
            self.failures += 1
            return
        self.completions += 1
        self.input_tokens += outcome.input_tokens
        self.output_tokens += outcome.output_tokens
        _count(self.output_lengths, outcome.output_tokens)
        self.answers += 1
        learnt = max(_LEARN, 1.0 / self.answers)
        self.usual_output += learnt * (outcome.output_tokens - self.usual_output)
        if outcome.input_tokens and tokens_guess:
            seen = min(100.0, outcome.input_tokens / tokens_guess)
            self.guess_ratio += 0.1 * (seen - self.guess_ratio)
        if self._attains(outcome, ttft_limit_ms, tpot_limit_ms):
            self.attained += 1

    def _attains(self, outcome: Outcome, ttft_limit_ms: float, tpot_limit_ms: float) -> bool:
        """Whether both limits were kept.

        An answer that was not streamed shows no first token: it attains when it came within what
        both limits allow together, and adds nothing to the latency sketches.
        """
        gaps = max(0, outcome.output_tokens - 1)
        if outcome.first_ms is None:
            return outcome.last_ms <= ttft_limit_ms + tpot_limit_ms * gaps
        _count(self.ttft_ms, outcome.first_ms)
        if not gaps:
            return outcome.first_ms <= ttft_limit_ms
        tpot_ms = (outcome.last_ms - outcome.first_ms) / gaps
        _count(self.tpot_ms, tpot_ms)
        return outcome.first_ms <= ttft_limit_ms and tpot_ms <= tpot_limit_ms

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
        """The span that ends now, zeros included; the next one begins. leaving: it is the last."""
        record = Telemetry(
            model=model,
            gateway=gateway,
            boot=boot,
            sequence=sequence,
            end_ms=end_ms,
            span_ms=min(span_ms, 3_600_000),
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
        )
        self.arrivals = self.completions = self.failures = self.refused = self.attained = 0
        self.withdrawn = 0
        self.input_tokens_arrived = self.input_tokens = self.output_tokens = 0
        self.ttft_ms, self.tpot_ms = {}, {}
        self.input_lengths, self.output_lengths = {}, {}
        self.shapes, self.sent_to, self.classes = {}, {}, {}
        return record


def _count(sketch: dict[int, int], value: float) -> None:
    bucket = bucket_of(value)
    sketch[bucket] = sketch.get(bucket, 0) + 1
