"""What a gateway saw of one model since it last reported.

Owns what each ending counts as, and what is learnt of lengths. Knows nothing of sockets or Kafka.
Every request that arrived is counted once more when it ends: as completed, failed,
refused or withdrawn; until then it is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topics.telemetry_span import Span

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
class Meter(Span):
    """Counts of one model. guess_ratio: prompt tokens as engines count them per guessed one.
    usual_output: tokens of an answer, as learnt from the `answers` that completed."""

    guess_ratio: float = 1.0
    usual_output: float = _FIRST_OUTPUT
    answers: int = 0

    def arrived(self, tokens_guess: int, output_most: int = 0) -> tuple[float, float]:
        """A request came in; its input and expected output tokens. output_most: what it may make
        at most, 0 where it does not say: then what is usual is expected."""
        tokens = round(tokens_guess * self.guess_ratio)
        output = output_most or self.usual_output
        self.count_arrival(tokens, round(output))
        return float(tokens), output

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
        self.answers += 1
        learnt = max(_LEARN, 1.0 / self.answers)
        self.usual_output += learnt * (outcome.output_tokens - self.usual_output)
        if outcome.input_tokens and tokens_guess:
            seen = min(100.0, outcome.input_tokens / tokens_guess)
            self.guess_ratio += 0.1 * (seen - self.guess_ratio)
        self.count_answer(
            outcome.first_ms,
            outcome.last_ms,
            outcome.input_tokens,
            outcome.output_tokens,
            ttft_limit_ms,
            tpot_limit_ms,
        )
